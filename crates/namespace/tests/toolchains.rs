//! Directories of the home in which tools live, and commands of one session that change them at the
//! same time.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use codeagent_namespace::View;
use codeagent_test_support::TempWorkspace;
use common::{Ran, Session, as_ordinary_user_with_fuse, sh, shell};

const TOOLS: &str = "mkdir -p .cargo/of-a .cargo/of-b
    for who in a b; do
        for i in 1 2 3 4 5 6 7 8 9; do
            echo old > .cargo/$who$i; echo old > .cargo/of-$who/$i
        done
    done
    head -c 3000000 /dev/zero > .cargo/large-a; cp .cargo/large-a .cargo/large-b";

/// Changes, removes and makes; before and after the other one has begun and ended to do so.
fn script(who: &str, other: &str) -> String {
    format!(
        "set -e; cd; cd .cargo
         meet() {{
             : > /tmp/{who}$1
             for i in $(seq 1000); do [ ! -e /tmp/{other}$1 ] || return 0; sleep 0.01; done
             echo the other one has not come; exit 1
         }}
         meet 1
         echo {who} >> {who}1; rm {who}2; echo {who} > new-{who}; mv {who}3 moved-{who}
         meet 2
         echo {who} >> {who}4; rm {who}5; chmod 700 {who}6; echo {who} >> large-{who}
         echo {who} >> of-{who}/1; rm of-{who}/2; mkdir made-{who}; echo {who} > made-{who}/file
         meet 3
         for i in 7 8 9; do echo {who} >> {who}$i; rm of-{who}/$i; echo {who} > of-{who}/new$i; done
         rm -r of-{who}/3 made-{who}; mkdir made-{who}; echo done"
    )
}

const LOOK: &str = "cd; cd .cargo
    for who in a b; do
        cat ${who}1 ${who}4 ${who}7 moved-$who new-$who of-$who/1 of-$who/new9 | xargs
        stat -c '%a %s' ${who}6 large-$who | xargs
        ls -d ${who}* of-$who/* made-$who/* 2>/dev/null | xargs
    done";

fn with_tools(home: &Path) -> Session {
    sh(TOOLS, home);
    let home = Some(home.to_owned());
    Session::with(TempWorkspace::new(), |policy| policy.home = home)
}

/// One of them in the background, as it has to be, the other in this view.
fn run_both(session: &Session, scripts: [String; 2]) -> [Ran; 2] {
    std::thread::scope(|scope| {
        let [one, other] = &scripts;
        let one = scope.spawn(|| session.run_in_background(shell(one)).unwrap());
        let other = session.run(other);
        [one.join().unwrap(), other]
    })
}

/// Names in the layers of toolchains, but for the layers themselves.
fn left_beside_layers(session: &Session) -> Vec<PathBuf> {
    let toolchains = session.state.path().join("state/persistent/toolchains");
    let entries = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let found = entries(&toolchains).flat_map(|staging| entries(&staging).collect::<Vec<_>>());
    found.filter(|path| !path.ends_with("up")).collect()
}

/// What is on its way between processes counts against what their user may have open.
#[test]
fn commands_that_may_open_few_files_all_start_at_once() {
    const COUNT: usize = 10;
    let home = tempfile::tempdir().unwrap();
    sh("mkdir .cargo .rustup .nvm .npm .pyenv .rbenv .deno .bun", home.path());
    let session = Session::with(TempWorkspace::new(), |policy| {
        policy.home = Some(home.path().to_owned());
        policy.limits.open_files = Some(64);
    });
    let script = |number: usize| {
        format!(
            "ulimit -n; : > /tmp/come{number}
             for i in $(seq 1000); do
                 [ $(ls /tmp/come* | wc -l) -lt {COUNT} ] || {{ echo all; exit; }}
                 sleep 0.02
             done"
        )
    };
    std::thread::scope(|scope| {
        let session = &session;
        let start = |number| scope.spawn(move || session.run_in_background(shell(&script(number))));
        let started: Vec<_> = (0..COUNT).map(start).collect();
        for ran in started {
            let ran = ran.join().unwrap().unwrap();
            assert_eq!((ran.code(), &*ran.stdout), (Some(0), "64\nall\n"), "{ran:?}");
        }
    });
}

#[test]
fn what_a_killed_session_has_left_beside_the_layers_goes_with_the_next_one() {
    let home = tempfile::tempdir().unwrap();
    sh(TOOLS, home.path());
    let session = Session::with(TempWorkspace::new(), |policy| {
        policy.home = Some(home.path().to_owned());
        let staging = policy.state_dir.join("persistent/toolchains/.cargo");
        fs::create_dir_all(staging.join("up")).unwrap();
        fs::write(staging.join("up/installed"), "kept").unwrap();
        fs::create_dir_all(staging.join("work-1-1/work/#1")).unwrap();
        let locked = fs::Permissions::from_mode(0o000);
        fs::set_permissions(staging.join("work-1-1/work"), locked).unwrap();
    });
    assert_eq!(left_beside_layers(&session), Vec::<PathBuf>::new());
    assert_eq!(session.run("cat ~/.cargo/installed").stdout, "kept");
}

#[test]
fn commands_that_run_at_once_change_a_toolchain_and_the_next_one_finds_it_all() {
    change_at_once();
}

#[test]
fn those_of_an_ordinary_user_do_so_too() {
    as_ordinary_user_with_fuse("those_of_an_ordinary_user_do_so_too", change_at_once);
}

fn change_at_once() {
    for view in [View::Transactional, View::Live] {
        let home = tempfile::tempdir().unwrap();
        let session = with_tools(home.path()).seen(view);
        for ran in run_both(&session, [script("a", "b"), script("b", "a")]) {
            assert_eq!((ran.code(), &*ran.stdout), (Some(0), "done\n"), "{view:?}: {ran:?}");
        }
        let of = |who: &str| {
            let names = |of: &str, names: &[&str]| {
                let names: Vec<_> = names.iter().map(|name| format!("{of}{name}")).collect();
                names.join(" ")
            };
            let top = names(who, &["1", "4", "6", "7", "8", "9"]);
            let below = names(&format!("of-{who}/"), &["1", "4", "5", "6", "new7", "new8", "new9"]);
            format!(
                "old {who} old {who} old {who} old {who} old {who} {who}\n700 4 644 3000002\n\
                 {top} {below}\n"
            )
        };
        let found = session.run(LOOK);
        assert_eq!(found.stdout, of("a") + &of("b"), "{view:?}: {found:?}");
        assert_eq!(left_beside_layers(&session), Vec::<PathBuf>::new(), "{view:?}");
        let outside = fs::read_to_string(home.path().join(".cargo/a1")).unwrap();
        assert_eq!(outside, "old\n", "what is outside is as it was");
    }
}
