//! Commands that prepare something for the next one, or use what lies about.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use codeagent_control::{Order, Stream};
use codeagent_namespace::{Executor, Policy, RunError, Surroundings, View, ViewChoice, WorkFolder};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::{PROGRAM, Session, as_ordinary_user_with_fuse, shell, start_worker};

/// Not in `/tmp`, where the new root is built: what lies there cannot be reached meanwhile.
fn outside_tmp() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn write(path: PathBuf, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// But for the undo directory.
fn names_below(dir: &Path) -> Vec<PathBuf> {
    let (mut names, mut pending) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() && entry.file_name() != "undo" {
                pending.push(entry.path());
            }
            names.push(entry.path());
        }
    }
    names.sort();
    names
}

#[test]
fn links_that_a_command_leaves_in_its_home_lead_the_next_sandbox_nowhere() {
    leave_links();
}

#[test]
fn links_that_an_ordinary_user_leaves_lead_nowhere_either() {
    as_ordinary_user_with_fuse(
        "links_that_an_ordinary_user_leaves_lead_nowhere_either",
        leave_links,
    );
}

fn leave_links() {
    // What is in the way of the folder and of a readable file, and what is put there instead.
    let attempts = [
        "ln -s VICTIM ~/code; ln -s VICTIM ~/.config",
        "ln -s ../../../../../..VICTIM ~/code; ln -s ../../../../../..VICTIM ~/.config",
        "ln -s VICTIM/none ~/code; ln -s VICTIM/none ~/.config",
        "mkdir -p ~/.config/git ~/code; ln -s VICTIM/none ~/.config/git/config; ln -s VICTIM ~/code/work",
        "echo > ~/code; echo > ~/.config",
    ];
    for attempt in attempts {
        let holder = outside_tmp();
        let (home, victim) = (holder.path().join("home"), holder.path().join("victim"));
        write(home.join(".config/git/config"), "[user]\n\tname = someone\n");
        fs::create_dir_all(home.join("code")).unwrap();
        fs::create_dir(&victim).unwrap();
        let workspace = TempWorkspace::on(&home.join("code"));
        let session = Session::with(workspace, |policy| policy.home = Some(home.clone()));
        let before = names_below(holder.path());
        let attempt = attempt.replace("VICTIM", victim.to_str().unwrap());
        let ran =
            session.run(&format!("cd /; mv ~/code ~/a; mv ~/.config ~/b; {attempt}; ls -A ~"));
        assert!(ran.stdout.contains(".config\n"), "{ran:?}");
        let ran = session.run("echo done > file; cat file; cat ~/.config/git/config");
        assert!(ran.stdout.starts_with("done\n[user]"), "{attempt}: {ran:?}");
        fs::remove_file(session.workspace.path("file")).unwrap();
        assert_eq!(before, names_below(holder.path()), "{attempt}");
    }
}

#[test]
fn what_the_host_has_open_is_not_inherited() {
    let dir = outside_tmp();
    write(dir.path().join("secret"), "canary");
    // As a shell, an editor or an agent may have left it to us.
    let open = |path: &Path| {
        let file = File::open(path).unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        file
    };
    let (folder, secret) = (open(dir.path()), open(&dir.path().join("secret")));
    let session = Session::new(|_| {});
    let ran = session.run(&format!(
        "python3 -c '
import os
for attempt in (lambda: os.read({1}, 6), lambda: os.listdir({0})):
    try: print(attempt())
    except OSError as error: print(error.errno)
'; ls /proc/$PPID/fd | wc -l",
        folder.as_raw_fd(),
        secret.as_raw_fd(),
    ));
    assert!(ran.stdout.starts_with("9\n9\n"), "{ran:?}");
    let mut content = String::new();
    (&secret).read_to_string(&mut content).unwrap();
    assert_eq!(content, "canary");
}

#[test]
fn what_tells_of_the_end_of_a_command_cannot_be_changed_by_it() {
    tamper_with_the_supervisor();
}

#[test]
fn what_tells_of_the_end_of_a_command_cannot_be_changed_by_an_ordinary_user() {
    as_ordinary_user_with_fuse(
        "what_tells_of_the_end_of_a_command_cannot_be_changed_by_an_ordinary_user",
        tamper_with_the_supervisor,
    );
}

fn tamper_with_the_supervisor() {
    let session = Session::new(|_| {});
    for file in ["mem", "environ", "fd/0", "exe", "root/", "cwd/"] {
        let ran = session.run(&format!(": < /proc/$PPID/{file}"));
        assert!(ran.stderr.contains("Permission denied"), "{file}: {ran:?}");
    }
}

/// Its supervisor would end it, if it were not held.
#[test]
fn time_is_up_for_a_command_that_holds_its_supervisor_and_never_stops_talking() {
    let session = Session::new(|_| {});
    let mut exec = shell("kill -STOP $PPID; echo x > file; exec yes");
    (exec.timeout_ms, exec.grace_ms) = (Some(300), 200);
    let (_orders, taken) = channel();
    let started = Instant::now();
    let ran = session.run_watched(exec, taken, |_| {
        assert!(started.elapsed() < Duration::from_secs(60), "it goes on for ever");
        std::thread::sleep(Duration::from_millis(1));
    });
    assert!(matches!(ran, Err(RunError::Lost(_))), "{ran:?}");
    assert!(!session.workspace.path("file").exists());
}

#[test]
fn a_command_that_says_more_than_its_reader_takes_waits() {
    let session = Session::new(|_| {}).seen(View::Live);
    let count = session.workspace.path("count");
    let script = "i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > count; done";
    let (orders, taken) = channel();
    let mut stalled_at = None;
    session
        .run_watched(shell(script), taken, |_| {
            if stalled_at.is_some() {
                return;
            }
            let said = || fs::read_to_string(&count).unwrap_or_default();
            let deadline = Instant::now() + Duration::from_secs(20);
            let mut last = (said(), Instant::now());
            while last.1.elapsed() < Duration::from_secs(1) {
                assert!(Instant::now() < deadline, "everything is kept in memory: {}", last.0);
                std::thread::sleep(Duration::from_millis(10));
                let now = said();
                if now != last.0 {
                    last = (now, Instant::now());
                }
            }
            stalled_at = Some(last.0);
            orders.send(Order::Cancel).unwrap();
        })
        .unwrap();
    assert!(stalled_at.is_some());
}

#[test]
fn of_the_home_only_tools_are_there() {
    let home = outside_tmp();
    for secret in [
        ".local/share/opencode/auth.json",
        ".local/share/jupyter/runtime/token",
        ".local/state/history",
        ".rye/credentials",
        ".dotnet/corefx/cryptography/x509stores/my/key",
        "go/src/other-project/file",
    ] {
        write(home.path().join(secret), "canary");
    }
    for tool in [".local/bin/tool", ".local/share/uv/tool", "go/bin/tool"] {
        write(home.path().join(tool), "works");
    }
    let session =
        Session::with(TempWorkspace::new(), |policy| policy.home = Some(home.path().into()));
    let ran =
        session.run("cd; grep -rs canary .; cat .local/bin/tool .local/share/uv/tool go/bin/tool");
    assert_eq!(ran.stdout, "worksworksworks", "{ran:?}");
    let ran = session.run("cd; echo new > .local/bin/new; mkdir .local/share/own; ls .local/bin");
    assert_eq!(ran.stdout, "new\ntool\n", "{ran:?}");
    assert!(!home.path().join(".local/bin/new").exists());
    assert!(!home.path().join(".local/share/own").exists());
}

#[test]
fn files_of_the_system_that_are_not_for_everybody_are_empty() {
    let session = Session::new(|_| {});
    let ran = session.run("find /etc -type f ! -perm -004 -size +0; cat /etc/shadow; id -un");
    assert_eq!(ran.stdout.lines().count(), 1, "{ran:?}");
}

/// Somebody works in the whole home.
#[test]
fn secrets_are_not_there_in_the_home_itself() {
    for view in [View::Transactional, View::Live, View::ReadOnly] {
        let holder = outside_tmp();
        let home = holder.path().join("home");
        for secret in [".ssh/id", ".aws/credentials", ".config/gh/hosts.yml", ".netrc"] {
            write(home.join(secret), "canary");
        }
        // As people have them who keep their settings in one place.
        write(home.join("dotfiles/gnupg/private"), "canary");
        write(home.join("dotfiles/key"), "canary");
        symlink("dotfiles/gnupg", home.join(".gnupg")).unwrap();
        symlink("../dotfiles/key", home.join(".ssh/linked")).unwrap();
        write(home.join("project/file"), "mine\n");
        let before = names_below(&home);
        let worker = start_worker(&home, &holder.path().join("undo"));
        let mut policy = Policy::new(home.join(".local/state/sandbox"));
        policy.home = Some(home.clone());
        let executor = Executor::with_program(Surroundings::new(policy).unwrap(), PROGRAM)
            .with_live_options(codeagent_mount::live_options(2));
        write(home.join(".local/state/sandbox/persistent/home/kept"), "canary");
        let folder = WorkFolder { path: &home, worker: Some(worker.client()) };
        let (_orders, taken) = channel();
        let script = "grep -rs canary .; cat project/file; ls -A .local/state/sandbox
            echo new > .local/state/sandbox/file || rm -r .local/state/sandbox .ssh || echo kept";
        let mut said = Vec::new();
        let collect = |stream, data: &[u8]| {
            if stream == Stream::Stdout {
                said.extend_from_slice(data);
            }
        };
        let choice = ViewChoice::Only(view);
        executor.run(&[folder], shell(script), choice, taken, collect).unwrap();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(said, "mine\nkept\n", "{view:?}");
        fs::remove_dir_all(home.join(".local")).unwrap();
        assert_eq!(before, names_below(&home), "{view:?}");
    }
}

#[test]
fn the_undo_directory_is_not_there_where_everything_around_it_is() {
    let home = outside_tmp();
    let tools = home.path().join("tools");
    write(tools.join("library"), "readable\n");
    let session = Session::with(TempWorkspace::on(&tools), |policy| {
        policy.home = Some(home.path().into());
        policy.toolchains.push("tools".into());
    });
    let before = session.snapshot();
    let undo = session.workspace.undo().display();
    let ran = session.run(&format!("cat ~/tools/library; ls -A {undo}; cat {undo}/version"));
    assert_eq!(ran.stdout, "readable\n", "{ran:?}");
    assert_tree_eq(&before, &session.snapshot());
}

#[test]
fn shared_memory_is_memory() {
    let session = Session::with(TempWorkspace::new(), |policy| {
        policy.limits.memory_bytes = Some(64 << 20);
    });
    let ran =
        session.run("head -c 100M /dev/zero > /dev/shm/file && echo got it; rm /dev/shm/file");
    assert!(!ran.stdout.contains("got it"), "{ran:?}");
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
}
