//! Mounts of ordinary users: through `fusermount3`, and in a user namespace of their own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use codeagent_test_support::filesystems::skip;
use common::{can_mount, has};

const NOBODY: u32 = 65534;

/// In a mount namespace in which everybody may open `/dev/fuse`, as on most machines.
const ARRANGE: &str = r#"
mount --make-rprivate /
mknod "$DIR/fuse" c 10 229
chmod 666 "$DIR/fuse"
mount --bind "$DIR/fuse" /dev/fuse
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -euc "$SCRIPT"
"#;

/// Mounts, works, kills the worker, works again, and undoes everything.
const WORK: &str = r#"
before=$(cd source; find . -ls | awk '{print $1, $3, $5, $6, $7, $11}'; cat old)
./codeagent-mount --source-dir source --mount-point point --undo-dir undo --ambient-timeout 600 &
mount=$!
served() { for try in $(seq 500); do [ -e point/old ] && return; sleep 0.02; done; false; }
served
echo new > point/new
rm point/dir/inner
mkdir point/made; mv point/new point/made/; chmod 400 point/made/new; ln -s nowhere point/made/link
echo more >> point/old
worker=$(pgrep -P $mount)
grep -q '^CapEff:.0000000000000000$' /proc/$worker/status || [ "$(id -u)" = 0 ]
kill -KILL $worker
sleep 0.1
served
[ "$(cat point/old)" = old ]
[ ! -e point/made ]
echo again > point/again
kill -TERM $mount
wait $mount
if grep -q " $PWD/point " /proc/self/mounts; then exit 1; fi
[ "$(cat source/again)" = again ]
rm source/again
after=$(cd source; find . -ls | awk '{print $1, $3, $5, $6, $7, $11}'; cat old)
[ "$before" = "$after" ]
"#;

fn prepare(dir: &Path) {
    fs::copy(env!("CARGO_BIN_EXE_codeagent-mount"), dir.join("codeagent-mount")).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    for made in ["source", "source/dir", "point"] {
        fs::create_dir(dir.join(made)).unwrap();
    }
    fs::write(dir.join("source/old"), "old\n").unwrap();
    fs::write(dir.join("source/dir/inner"), "inner").unwrap();
    for owned in ["", "source", "source/dir", "source/old", "source/dir/inner", "point"] {
        chown(dir.join(owned), Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

fn run_as_ordinary_user(test: &str, script: &str) {
    if !can_mount(test) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(test, "it takes root to become somebody else; the other tests ran as you");
    }
    for tool in ["unshare", "setpriv", "pgrep"] {
        if !has(tool) {
            return skip(test, &format!("{tool} is not installed"));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-euc", ARRANGE])
        .current_dir(dir.path())
        .env("DIR", dir.path())
        .env("SCRIPT", script)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn an_ordinary_user_mounts_with_the_help_of_fusermount() {
    let test = "an_ordinary_user_mounts_with_the_help_of_fusermount";
    if !has("fusermount3") {
        return skip(test, "fusermount3 is not installed");
    }
    run_as_ordinary_user(test, WORK);
}

#[test]
fn an_ordinary_user_mounts_in_a_user_namespace() {
    let test = "an_ordinary_user_mounts_in_a_user_namespace";
    if !has_user_namespaces() {
        return skip(test, "user namespaces are not available");
    }
    run_as_ordinary_user(test, &in_a_user_namespace(WORK));
}

/// Who may not have passthrough is told so, and is served all the same.
const ASKS_FOR_PASSTHROUGH: &str = r#"
head -c 2000000 /dev/zero > source/large
./codeagent-mount --source-dir source --mount-point point --undo-dir undo --passthrough on 2>said &
mount=$!
for try in $(seq 500); do grep -q 'is mounted' said && break; sleep 0.02; done
cmp point/large source/large
grep -q 'without passthrough: it takes root' said
[ "$(wc -l < said)" = 2 ]
kill -TERM $mount
wait $mount
"#;

#[test]
fn an_ordinary_user_is_told_that_there_is_no_passthrough() {
    let test = "an_ordinary_user_is_told_that_there_is_no_passthrough";
    if !has("fusermount3") {
        return skip(test, "fusermount3 is not installed");
    }
    run_as_ordinary_user(test, ASKS_FOR_PASSTHROUGH);
}

#[test]
fn root_of_a_user_namespace_is_told_that_there_is_no_passthrough() {
    let test = "root_of_a_user_namespace_is_told_that_there_is_no_passthrough";
    if !has_user_namespaces() {
        return skip(test, "user namespaces are not available");
    }
    run_as_ordinary_user(test, &in_a_user_namespace(ASKS_FOR_PASSTHROUGH));
}

fn has_user_namespaces() -> bool {
    let probe = Command::new("unshare").args(["--user", "--map-root-user", "true"]).status();
    probe.is_ok_and(|status| status.success())
}

fn in_a_user_namespace(script: &str) -> String {
    let quoted = script.replace('\'', r"'\''");
    format!("exec unshare --user --map-root-user --mount sh -euc '{quoted}'")
}
