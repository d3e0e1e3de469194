//! `sandbox run` and what comes after it, with the real binary.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TreeSnapshot, as_ordinary_user, assert_tree_eq};
use common::repository::{EVERYTHING, REPOSITORY};
use common::{Person, can_use_fuse, eventually, eventually_within, processes_that_name, sh, text};

fn a_destroyed_repository_comes_back() {
    let person = Person::with(REPOSITORY);
    let before = person.snapshot();
    let output = person.run(EVERYTHING);
    assert_eq!(fs::read_dir(person.project()).unwrap().count(), 0);
    let said = text(&output.stderr);
    assert!(said.contains("sandbox: step 1 (namespace): "), "{said}");
    assert!(said.contains("deleted; undo it with: sandbox undo"), "{said}");
    let after = person.snapshot();
    assert!(person.ok(&["undo"]).starts_with("undone: step 1"));
    assert_tree_eq(&before, &person.snapshot());
    sh(
        "git fsck --strict && test -z \"$(git --no-optional-locks status --porcelain)\"",
        &person.project(),
    );
    person.ok(&["redo"]);
    assert_tree_eq(&after, &person.snapshot());
    person.ok(&["undo"]);
    assert_tree_eq(&before, &person.snapshot());
}

#[test]
fn a_destroyed_repository_comes_back_exactly() {
    a_destroyed_repository_comes_back();
}

#[test]
fn a_destroyed_repository_comes_back_exactly_for_an_ordinary_user() {
    let test = "a_destroyed_repository_comes_back_exactly_for_an_ordinary_user";
    as_ordinary_user(test, a_destroyed_repository_comes_back);
}

#[test]
fn in_the_live_view_changes_are_there_at_once_and_undone_as_exactly() {
    let test = "in_the_live_view_changes_are_there_at_once_and_undone_as_exactly";
    if !can_use_fuse() {
        return skip(test, "/dev/fuse cannot be used");
    }
    let person = Person::with("mkdir d; echo a > d/a; ln -s d l; echo b > b");
    let before = person.snapshot();
    let mut child = person
        .sandbox([
            "run",
            "--view",
            "live",
            "--",
            "sh",
            "-c",
            "echo new > new; read _; rm -rf d l b",
        ])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("seen while it runs", || person.path("new").exists());
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!person.path("b").exists());
    person.ok(&["undo"]);
    assert_tree_eq(&before, &person.snapshot());
}

#[test]
fn streams_input_and_exit_codes_are_those_of_the_command() {
    let person = Person::new();
    let output = person.output(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stdout), "out\n");
    assert!(text(&output.stderr).starts_with("err\n"), "{output:?}");
    assert_eq!(person.output(&["run", "sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    assert_eq!(person.output(&["run", "--", "/no/such/program"]).status.code(), Some(127));
    let mut child = person
        .sandbox(["run", "--", "wc", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&vec![b'x'; 3_000_000]).unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "3000000\n");
    let json = person.json(&["run", "--", "sh", "-c", "echo hi; touch x; exit 3"]);
    assert_eq!(json["stdout"], "hi\n");
    assert_eq!(json["report"]["exit_code"], 3);
    assert_eq!(json["report"]["directories"][0]["info"]["added"], 1);
}

/// As after `. .venv/bin/activate`; what is elsewhere and not there is left out.
#[test]
fn programs_of_the_folder_are_found_and_the_surroundings_are_those_of_the_user() {
    let person = Person::with(
        "mkdir -p .venv/bin; printf '#!/bin/sh\\necho mine\\n' > .venv/bin/tool; chmod +x .venv/bin/tool",
    );
    let (own, foreign) = (person.path(".venv/bin"), person.home().join("elsewhere/bin"));
    std::fs::create_dir_all(&foreign).unwrap();
    let path = format!("{}:{}:/usr/bin:/bin", own.display(), foreign.display());
    let script = "tool; echo $PATH; echo $VIRTUAL_ENV; date +%H; echo $LC_ALL; hostname";
    let output = person
        .sandbox(["run", "--", "sh", "-c", script])
        .env("PATH", &path)
        .env("VIRTUAL_ENV", person.path(".venv"))
        .env("TZ", "UTC-9")
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let &[tool, path, environment, hour, locale, host] = &*lines else { panic!("{output:?}") };
    assert_eq!((tool, environment), ("mine", person.path(".venv").to_str().unwrap()));
    assert!(path.starts_with(own.to_str().unwrap()) && !path.contains("elsewhere"), "{path}");
    let there = std::process::Command::new("date").arg("+%H").env("TZ", "UTC-9").output().unwrap();
    assert_eq!((hour, locale), (text(&there.stdout).trim(), "C.UTF-8"), "{output:?}");
    assert!(!host.is_empty());
}

#[test]
fn a_reader_that_goes_away_ends_the_command() {
    let person = Person::new();
    let mut child = person
        .sandbox(["run", "--", "yes", "a-word-of-its-own"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    eventually("ended", || child.try_wait().unwrap().is_some());
}

#[test]
fn a_timeout_takes_everything_the_command_started() {
    let person = Person::new();
    let script = "sh -c 'sleep 4321.25 & setsid sleep 4321.25 & wait' & wait";
    let output = person.output(&["run", "--timeout", "1", "--", "sh", "-c", script]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("its time was up"), "{output:?}");
    assert!(processes_that_name("4321.25").is_empty());
}

#[test]
fn a_signal_takes_everything_the_command_started() {
    let person = Person::new();
    let mut child = person
        .sandbox(["run", "--", "sh", "-c", "setsid sleep 4322.25 & sleep 4322.25"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it runs", || processes_that_name("4322.25").len() >= 2);
    sh(&format!("kill -TERM {}", child.id()), &person.project());
    assert!(!child.wait().unwrap().success());
    assert!(processes_that_name("4322.25").is_empty());
}

#[test]
fn an_edit_made_by_hand_is_refused_listed_and_kept() {
    let person = Person::with("echo old > edited; echo old > other; echo old > third");
    person.run("echo new > edited; echo new > other; rm third");
    fs::write(person.path("edited"), "mine").unwrap();
    let refused = person.output(&["undo"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("edited"), "{refused:?}");
    assert_eq!((person.read("edited").as_str(), person.read("other").as_str()), ("mine", "new\n"));
    assert!(person.ok(&["undo", "--preview"]).contains("it would be refused"));
    let said = person.ok(&["undo", "--skip-conflicts"]);
    assert!(said.contains("edited"), "{said}");
    assert_eq!((person.read("edited").as_str(), person.read("other").as_str()), ("mine", "old\n"));
    assert_eq!(person.read("third"), "old\n");
}

fn nothing_outside_is_touched() {
    let person = Person::with("echo a > a");
    let home = person.home();
    fs::create_dir(home.join(".ssh")).unwrap();
    fs::write(home.join(".ssh/id_ed25519"), "secret").unwrap();
    let neighbour = person.root().join("neighbour");
    fs::create_dir(&neighbour).unwrap();
    fs::write(neighbour.join("file"), "theirs").unwrap();
    person.run("touch first"); // so that there is an undo directory
    let before = [TreeSnapshot::capture(&neighbour), TreeSnapshot::capture(&home.join(".ssh"))];
    let passwd = fs::read("/etc/passwd").unwrap();
    let script = format!(
        "cat {home}/.ssh/id_ed25519; echo x > {home}/.ssh/id_ed25519; rm -rf {home}/.ssh
         cat {neighbour}/file; echo x > {neighbour}/file; rm -rf {neighbour}
         ls -a {home}/.codeagent; rm -rf {home}/.codeagent
         echo x >> /etc/passwd; rm -f /etc/passwd; touch /usr/x
         ln -s {neighbour} out; echo x > out/file; rm -rf a; true",
        home = home.display(),
        neighbour = neighbour.display()
    );
    let output = person.run(&script);
    assert!(!text(&output.stdout).contains("secret"), "{output:?}");
    assert!(!text(&output.stdout).contains("theirs"), "{output:?}");
    assert!(!text(&output.stdout).contains("undo"), "{output:?}");
    assert_tree_eq(&before[0], &TreeSnapshot::capture(&neighbour));
    assert_tree_eq(&before[1], &TreeSnapshot::capture(&home.join(".ssh")));
    assert_eq!(fs::read("/etc/passwd").unwrap(), passwd);
    assert!(!std::path::Path::new("/usr/x").exists());
    person.ok(&["undo", "2"]);
    assert_eq!(person.read("a"), "a\n");
}

#[test]
fn nothing_a_command_does_reaches_anything_else() {
    nothing_outside_is_touched();
}

#[test]
fn nothing_a_command_does_reaches_anything_else_for_an_ordinary_user() {
    let test = "nothing_a_command_does_reaches_anything_else_for_an_ordinary_user";
    as_ordinary_user(test, nothing_outside_is_touched);
}

#[test]
fn killed_at_fifty_moments_the_folder_is_at_a_boundary_and_the_next_session_works() {
    let person = Person::with("mkdir d; for i in $(seq 200); do echo $i > d/$i; done");
    let mut states = vec![person.snapshot()];
    for round in 0..50_u64 {
        let script = format!(
            "rm -rf d/*; for i in $(seq 200); do echo {round} > d/$i; done; rm d/{}",
            round + 1
        );
        let mut child = person
            .sandbox(["run", "--", "sh", "-c", &script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From before the worker is there until after the command has been committed.
        std::thread::sleep(std::time::Duration::from_micros(round * 1_700));
        child.kill().unwrap();
        child.wait().unwrap();
        let history = person.json(&["history"]);
        // The first ones die before there is a history.
        let steps = history["history"].as_array().map_or(0, Vec::len);
        assert!(!history["history"].is_null() || states.len() == 1, "{history}");
        let now = person.snapshot();
        if steps + 1 == states.len() {
            assert_tree_eq(states.last().unwrap(), &now);
        } else {
            assert_eq!(steps, states.len(), "round {round}");
            states.push(now);
        }
    }
    assert!(person.ok(&["undo-log", "verify"]).contains("sound"));
    person.run("echo works > works");
    states.push(person.snapshot());
    while states.len() > 1 {
        assert_tree_eq(&states.pop().unwrap(), &person.snapshot());
        person.ok(&["undo"]);
    }
    assert_tree_eq(&states[0], &person.snapshot());
}

#[test]
fn several_folders_each_have_their_own_history_and_read_only_ones_stay() {
    let person = Person::with("echo p > p");
    let [other, fixed] = ["other", "fixed"].map(|name| person.root().join(name));
    for dir in [&other, &fixed] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("file"), "old").unwrap();
    }
    let output = person
        .sandbox(["run", "--working-dir", ".", "--working-dir"])
        .arg(format!("second={}", other.display()))
        .arg("--read-only")
        .arg(&fixed)
        .args(["--", "sh", "-c", "echo x > p; echo x > $0/file; cat $1/file; ! echo x > $1/file"])
        .args([&other, &fixed])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), "old");
    let said = text(&output.stderr);
    // Each with the command that undoes it there.
    assert!(said.contains("project: step 1 (namespace): 1 modified; undo it with: sandbox undo\n"));
    let other_path = other.canonicalize().unwrap();
    let hint = format!("undo it with: sandbox undo --working-dir {}\n", other_path.display());
    assert!(said.contains("second: step 1") && said.contains(&hint), "{said}");
    assert_eq!(fs::read_to_string(fixed.join("file")).unwrap(), "old");
    let undo = person.sandbox(["undo", "--working-dir"]).arg(&other).output().unwrap();
    assert!(undo.status.success(), "{undo:?}");
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "old");
    assert_eq!(person.read("p"), "x\n");
}

#[test]
fn a_folder_that_was_given_a_name_is_found_again_as_the_hint_says() {
    let person = Person::new();
    let other = person.root().join("it's other");
    fs::create_dir(&other).unwrap();
    let named = format!("second={}", other.display());
    let output = person.run_with(&["--working-dir", &named], "touch x");
    let said = text(&output.stderr);
    let (_, command) = said.split_once("undo it with: sandbox ").unwrap();
    sh(&format!("HOME={} {} {command}", person.home().display(), common::PROGRAM), person.root());
    assert!(!other.join("x").exists());
}

#[test]
fn as_json_much_output_is_cut_in_the_middle() {
    let person = Person::new();
    let json =
        person.json(&["run", "--", "sh", "-c", "echo first; yes | head -c 20000000; echo last"]);
    let stdout = json["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("first\ny\n") && stdout.ends_with("y\nlast\n"));
    let left_out = json["stdout_left_out_bytes"].as_u64().unwrap();
    assert_eq!(left_out, 20_000_000 + 6 + 5 - (2 << 20));
    assert!(stdout.contains(&format!("\n[{left_out} bytes left out]\n")));
    assert_eq!((&json["stderr"], &json["stderr_left_out_bytes"]), (&"".into(), &0.into()));
}

#[test]
fn a_safeguard_that_nobody_can_answer_leaves_the_folder_as_it_was() {
    let person = Person::with("for i in 1 2 3 4; do echo $i > $i; done");
    person.configure("[safeguards]\ndelete_threshold = 3\ntimeout_seconds = 5\n");
    let before = person.snapshot();
    let output = person.sandbox(["run", "--", "rm", "1", "2", "3", "4"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output.stderr).contains("nothing of what it did was kept"), "{output:?}");
    assert_tree_eq(&before, &person.snapshot());
    person.run("rm 1");
    assert!(!person.path("1").exists());
}

#[test]
fn below_a_folder_with_a_history_that_folder_is_meant() {
    let person = Person::with("mkdir -p a/b; echo x > a/b/x");
    person.run("echo y > y");
    let mut inside = person.sandbox(["run", "--", "sh", "-c", "pwd; rm x"]);
    let output = inside.current_dir(person.path("a/b")).output().unwrap();
    assert!(text(&output.stdout).ends_with("/a/b\n"), "{output:?}");
    assert_eq!(person.json(&["history"])["history"].as_array().unwrap().len(), 2);
    person.ok(&["undo"]);
    assert!(person.path("a/b/x").exists());
}

#[test]
fn steps_are_shown_restored_pinned_and_told() {
    let person = Person::with(
        "printf 'one\\ntwo\\n' > text; head -c 50 /dev/zero > binary; echo keep > keep",
    );
    person.run("printf 'one\\n2\\n' > text; echo >> binary; rm keep");
    person.run("echo later > text");
    let shown = person.ok(&["show", "1"]);
    assert!(shown.contains("--- a/text\n+++ b/text\n@@ -1,2 +1,2 @@\n one\n-two\n+2"), "{shown}");
    assert!(shown.contains("~ binary  (binary: 50 bytes → 51 bytes)"), "{shown}");
    assert!(shown.contains("--- a/keep\n+++ /dev/null"), "{shown}");
    assert!(!shown.contains('\u{1b}'));
    assert!(person.ok(&["show", "1", "--stat"]).contains("~ text  +1 -1"));
    assert_eq!(person.json(&["show", "1"])["changes"].as_array().unwrap().len(), 3);
    let said = person.ok(&["restore", "--step", "1", "keep", "text"]);
    assert!(said.contains("restored: keep, text"), "{said}");
    assert_eq!(
        (person.read("keep").as_str(), person.read("text").as_str()),
        ("keep\n", "one\ntwo\n")
    );
    person.ok(&["pin", "1"]);
    assert!(person.ok(&["history"]).contains("pinned"));
    assert!(person.ok(&["status"]).contains("3 to undo"));
    assert_eq!(person.json(&["status"])["store"]["steps"], 3);
    assert!(person.ok(&["doctor"]).contains("user_namespaces"));
    assert!(person.ok(&["undo-log", "dump"]).contains("header"));
}

#[test]
fn doctor_forgets_which_accelerators_work_if_told_to() {
    let person = Person::with("true");
    let verdicts = person.home().join(".codeagent/accelerators.json");
    fs::create_dir_all(verdicts.parent().unwrap()).unwrap();
    fs::write(&verdicts, "{}").unwrap();
    person.ok(&["doctor"]);
    assert!(verdicts.exists());
    // What is not there is forgotten already.
    for _ in 0..2 {
        person.ok(&["doctor", "--try-again"]);
        assert!(!verdicts.exists());
    }
}

#[test]
fn while_a_command_runs_others_can_look_and_not_undo() {
    let person = Person::with("echo a > a");
    let mut child = person
        .sandbox(["run", "--", "sh", "-c", "read _; echo b > b"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("a step is open", || !person.json(&["history"])["open_step"].is_null());
    let undo = person.output(&["undo"]);
    assert_eq!(undo.status.code(), Some(1), "{undo:?}");
    assert!(text(&undo.stderr).contains("is still open"), "{undo:?}");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(person.read("b"), "b\n");
}

#[test]
fn a_project_makes_its_own_sessions_stricter_and_never_less_strict() {
    let person = Person::with("mkdir infra; echo x > infra/x");
    let project = "[protected]\nallow = ['.envrc']\ndeny = ['infra/']\n";
    fs::write(person.path("codeagent.toml"), project).unwrap();
    let output = person.run("echo y > infra/x; echo y > .envrc; echo '' > codeagent.toml; rm -f codeagent.toml; echo y > y");
    assert_eq!(person.read("infra/x"), "x\n");
    assert!(!person.path(".envrc").exists() && person.path("y").exists());
    assert_eq!(person.read("codeagent.toml"), project);
    assert!(text(&output.stderr).contains("protected.allow in "), "{output:?}");
}

/// A folder can be a whole home, with the histories of all others in it.
#[test]
fn the_histories_of_other_folders_are_not_in_a_home_either() {
    let person = Person::with("echo x > a");
    person.run("rm a");
    let script = "ls -A .codeagent; rm -rf .codeagent/undo .codeagent/* 2>/dev/null; echo y > new";
    let home = person.home();
    let output = person.run_with(&["--working-dir", home.to_str().unwrap()], script);
    assert_eq!(common::text(&output.stdout), "");
    assert!(home.join("new").exists());
    person.ok(&["undo"]);
    assert_eq!(person.read("a"), "x\n");
}

#[test]
fn when_the_terminal_goes_away_the_command_ends_and_what_it_did_is_a_step() {
    let person = Person::with("echo old > file");
    let script = "echo new > file; setsid sleep 4323.25 & sleep 4323.25";
    let mut run = person.sandbox(["run", "--", "sh", "-c", script]);
    let mut run = run.stderr(Stdio::null()).spawn().unwrap();
    eventually("it runs", || processes_that_name("sleep\x004323.25").len() == 2);
    sh(&format!("kill -HUP {}", run.id()), &person.project());
    assert!(!run.wait().unwrap().success());
    assert!(processes_that_name("4323.25").is_empty());
    assert_eq!(person.read("file"), "new\n");
    person.ok(&["undo"]);
    assert_eq!(person.read("file"), "old\n");
}

#[test]
fn a_signal_that_whoever_started_it_wants_ignored_is_ignored() {
    let person = Person::new();
    let line =
        format!("trap '' HUP INT; exec {} run -- sh -c 'read _; touch new'", common::PROGRAM);
    let mut run = std::process::Command::new("sh")
        .args(["-c", &line])
        .current_dir(person.project())
        .env("HOME", person.home())
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("a step is open", || person.json(&["history"])["open_step"].is_number());
    sh(&format!("kill -HUP {0}; kill -INT {0}", run.id()), &person.project());
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(run.wait().unwrap().success());
    assert!(person.path("new").exists());
}

#[test]
fn closed_and_full_streams_lose_nothing_of_what_was_done() {
    let person = Person::new();
    let run = |name: &str, streams: &str| {
        let line = format!(
            "exec {} run -- sh -c 'cat; echo said; echo err >&2; touch {name}' {streams}",
            common::PROGRAM
        );
        let mut sh = std::process::Command::new("sh");
        sh.args(["-c", &line]).current_dir(person.project()).env("HOME", person.home());
        sh.output().unwrap()
    };
    let closed = run("closed", "<&- >&- 2>&-");
    assert_eq!((closed.status.code(), person.path("closed").exists()), (Some(0), true));
    let quiet = run("quiet", "<&-");
    assert_eq!(text(&quiet.stdout), "said\n");
    // Here somebody wanted to know what it says.
    let full = run("full", "</dev/null >/dev/full");
    assert_eq!(full.status.code(), Some(125), "{full:?}");
    assert!(text(&full.stderr).contains("could be passed on: No space left"), "{full:?}");
    let nowhere = fs::File::create("/dev/full").unwrap();
    let full = person.sandbox(["history"]).stdout(nowhere).output().unwrap();
    assert_eq!(full.status.code(), Some(1));
    assert!(text(&full.stderr).contains("could not be printed"), "{full:?}");
}

/// Begins to change a file, and waits for a line.
fn busy(person: &Person, nap: &str) -> std::process::Child {
    let script = format!("echo new > file; sleep {nap} & read _");
    let mut run = person.sandbox(["run", "--", "sh", "-c", &script]);
    let run = run.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it runs", || processes_that_name(&format!("sleep\0{nap}")).len() == 1);
    run
}

#[test]
fn a_folder_that_is_removed_meanwhile_is_told_in_one_sentence() {
    let person = Person::with("echo old > file");
    let run = busy(&person, "4326.25");
    fs::remove_dir_all(person.project()).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = text(&output.stderr);
    assert!(
        said.contains("nothing of what it did was kept") && said.contains("\nhint: "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 2, "{said}");
    // Another folder of that name can be worked in.
    fs::create_dir(person.project()).unwrap();
    person.run("echo newer > file");
    person.ok(&["undo"]);
    assert!(!person.path("file").exists());
}

#[test]
fn a_folder_that_is_moved_meanwhile_has_what_was_done_wherever_it_is() {
    let person = Person::with("echo old > file");
    let run = busy(&person, "4327.25");
    let moved = person.root().join("moved");
    fs::rename(person.project(), &moved).unwrap();
    run.wait_with_output().unwrap();
    assert_eq!(fs::read_to_string(moved.join("file")).unwrap(), "new\n");
    fs::rename(moved, person.project()).unwrap();
    person.ok(&["undo"]);
    assert_eq!(person.read("file"), "old\n");
}

#[test]
fn from_a_folder_that_is_gone_nothing_is_run() {
    let person = Person::new();
    for command in ["run -- true", "history", "undo", "setup vscode", "--protocol mcp"] {
        let line = format!("rmdir $PWD; exec {} {command}", common::PROGRAM);
        fs::create_dir(person.path("gone")).unwrap();
        let mut sh = std::process::Command::new("sh");
        sh.args(["-c", &line]).current_dir(person.path("gone")).env("HOME", person.home());
        let output = sh.stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.starts_with("sandbox: . cannot be worked in: "), "{command}: {said}");
        assert!(said.contains("\nhint: "), "{command}: {said}");
    }
}

#[test]
fn a_folder_that_may_not_be_read_is_named() {
    let test = "a_folder_that_may_not_be_read_is_named";
    as_ordinary_user(test, || {
        let person = Person::with("mkdir locked unlisted; chmod 000 locked; chmod 300 unlisted");
        for folder in ["locked", "unlisted"] {
            let output = person.output(&["run", "--working-dir", folder, "--", "true"]);
            assert_eq!(output.status.code(), Some(125), "{output:?}");
            let said = text(&output.stderr);
            let sentence = format!("sandbox: {folder} cannot be worked in: Permission denied");
            assert!(said.starts_with(&sentence) && said.contains("\nhint: "), "{said}");
        }
        sh("chmod 700 locked unlisted", &person.project());
    });
}

#[test]
fn input_that_comes_faster_than_it_is_taken_waits_and_costs_little_memory() {
    const INPUT_BYTES: usize = 128 << 20;
    let person = Person::new();
    let mut run = person
        .sandbox(["run", "--", "sh", "-c", "sleep 1; wc -c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = run.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let chunk = vec![b'x'; 1 << 20];
        (0..INPUT_BYTES / chunk.len()).try_for_each(|_| stdin.write_all(&chunk))
    });
    let status = format!("/proc/{}/status", run.id());
    let mut most_kib = 0;
    eventually_within(Duration::from_secs(120), "it is through", || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.map(|peak| peak.trim().trim_end_matches(" kB").parse().unwrap());
        most_kib = most_kib.max(peak.unwrap_or(0));
        run.try_wait().unwrap().is_some()
    });
    writer.join().unwrap().unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), format!("{INPUT_BYTES}\n"));
    assert!(most_kib > 0 && most_kib < 64 << 10, "{} MiB", most_kib >> 10);
}
