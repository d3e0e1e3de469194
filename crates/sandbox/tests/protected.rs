//! Protected paths, from the command line to the folder, in both views.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;

use codeagent_test_support::{assert_tree_eq, filesystems::skip};
use common::{Person, can_use_fuse, text};

const PROJECT: &str = "git init -q .; git config user.name Somebody; echo old > .envrc
    printf '#!/bin/sh\\n' > .git/hooks/post-merge; mkdir sub";

/// Each tries to have something run on the host later.
const ATTACKS: [&str; 24] = [
    "echo evil > .envrc",
    "echo evil > sub/.envrc",
    "mkdir -p new/deep; echo evil > new/deep/.envrc",
    "echo evil > t; mv t .git/hooks/pre-commit",
    "echo evil >> .git/hooks/post-merge",
    "chmod +x .git/hooks/post-merge",
    "mkdir .husky && echo evil > .husky/pre-commit",
    "mkdir -p x/hooks; echo evil > x/hooks/pre-push; mv x/hooks/pre-push .git/hooks/",
    "git config core.fsmonitor 'touch /tmp/evil'",
    "printf '[core]\\n\\tpager = evil\\n' > .git/config",
    "rm -rf .git/config; ln -s ../sub/evil .git/config",
    "mkdir -p fake; printf '[core]\\n\\thooksPath = /x\\n' > fake/config; mkdir sub/.git; mv fake/config sub/.git/config",
    "mkdir nh; echo evil > nh/post-commit; rm -rf .git/hooks; ln -s ../nh .git/hooks",
    "mkdir nh; echo evil > nh/post-commit; rm -rf .git/hooks; ln -s ../nh l; mv -T l .git/hooks",
    "mkdir c; echo evil > c/settings.json; ln -s c .claude; ln -s c .vscode",
    "cp -r .git evil; echo ../evil > .git/commondir",
    "mkdir -p e/.git ev; echo evil > ev/config; ln -s ../../ev e/.git/modules; echo 'gitdir: ../e/.git/modules' > sub/.git",
    "rm .git/config; printf '[core]\\n\\tfsmonitor = evil\\n' > .git/config",
    "cp .git/config z; ln -f z .git/config; printf '[core]\\n\\tfsmonitor = evil\\n' >> z",
    // Looked at first, written to afterwards: by a new descriptor, by one from before the rename, of
    // the file or of one in a directory, and through a mapping.
    "cp .git/config z; mv z .git/config; printf '[core]\\n\\tfsmonitor = evil\\n' >> .git/config",
    "cp .git/config z; exec 3>> z; mv z .git/config; printf '[core]\\n\\tfsmonitor = evil\\n' >&3",
    "cp .git/config z; exec 3>> z; python3 -c 'import ctypes; ctypes.CDLL(None).renameat2(-100, b\"z\", -100, b\".git/config\", 2)'; printf '[core]\\n\\tfsmonitor = evil\\n' >&3",
    "cp -r .git g; exec 3>> g/config; rm -rf .git; mv g .git; printf '[core]\\n\\tfsmonitor = evil\\n' >&3",
    "cp .git/config z; python3 -c '
import mmap, os
f = os.open(\"z\", os.O_RDWR); m = mmap.mmap(f, 0); os.close(f)
os.rename(\"z\", \".git/config\"); m[0:31] = b\"[core]\\n\\tfsmonitor = evil       \"; m.flush()'",
];

fn attacks_fail(view: &str) {
    for attack in ATTACKS {
        let person = Person::with(PROJECT);
        let before = person.snapshot();
        let script = format!("({attack}) 2>/dev/null; true");
        person.run_with(&["--view", view], &script);
        for guarded in [".envrc", ".git/hooks/post-merge", ".git/config"] {
            let text = fs::read_to_string(person.path(guarded)).unwrap_or_default();
            assert!(!text.contains("evil") && !text.contains("fsmonitor"), "{view}: {attack}");
        }
        for absent in [
            "sub/.envrc",
            "new/deep/.envrc",
            ".git/hooks/pre-commit",
            ".git/hooks/pre-push",
            ".husky/pre-commit",
            ".git/hooks/post-commit",
            ".claude/settings.json",
            ".vscode/settings.json",
            ".git/commondir",
        ] {
            assert!(!person.path(absent).exists(), "{view}: {attack}: {absent}");
        }
        let config = fs::read_to_string(person.path("sub/.git/config")).unwrap_or_default();
        assert!(!config.contains("hooksPath"), "{view}: {attack}");
        assert!(!person.path(".git/config").is_symlink(), "{view}: {attack}");
        let symlink = |path: &str| person.path(path).is_symlink();
        assert!(!symlink(".git/hooks") && !symlink("e/.git/modules"), "{view}: {attack}");
        // It may be removed.
        if let Ok(hook) = fs::metadata(person.path(".git/hooks/post-merge")) {
            let mode = std::os::unix::fs::MetadataExt::mode(&hook);
            assert_eq!(mode & 0o111, 0, "{view}: {attack}");
        }
        if !person.json(&["history"])["history"].as_array().unwrap().is_empty() {
            person.ok(&["undo"]);
        }
        assert_tree_eq(&before, &person.snapshot());
    }
}

#[test]
fn nothing_that_host_tools_run_can_be_planted() {
    attacks_fail("transactional");
}

#[test]
fn nothing_that_host_tools_run_can_be_planted_in_the_live_view() {
    if !can_use_fuse() {
        return skip(
            "nothing_that_host_tools_run_can_be_planted_in_the_live_view",
            "/dev/fuse cannot be used",
        );
    }
    attacks_fail("live");
}

/// git's everyday work is not in the way.
const EVERYDAY: &str = "
    git init -q new && git -C new config user.email a@b && git remote add origin https://example.org/x
    git config user.name Else && echo x > f && git add f && git -c user.email=a@b commit -qm one
    git clone -q . clone && git branch other && git config --list >/dev/null
    git -C clone config alias.st status && git submodule -q status";

#[test]
fn gits_everyday_work_goes_on_in_both_views() {
    for view in ["transactional", "live"] {
        if view == "live" && !can_use_fuse() {
            skip("gits_everyday_work_goes_on_in_both_views (live)", "/dev/fuse cannot be used");
            continue;
        }
        let person = Person::with("git init -q .; git config user.name Somebody");
        let before = person.snapshot();
        let output = person.run_with(&["--view", view], &format!("set -e; {EVERYDAY}"));
        assert!(!text(&output.stderr).contains("protected"), "{view}: {output:?}");
        assert!(person.read(".git/config").contains("Else"), "{view}");
        assert!(person.read("clone/.git/config").contains("alias"), "{view}");
        person.ok(&["undo"]);
        assert_tree_eq(&before, &person.snapshot());
    }
}

/// Programs outside obey it no more than before.
#[test]
fn what_is_protected_in_a_directory_goes_where_the_directory_goes() {
    const REPOSITORY: &str =
        "git init -q repo; cd repo; echo mine > .envrc; git config core.pager less
        echo hook > .git/hooks/pre-push; mkdir -p .cursor/rules; echo rule > .cursor/rules/one
        mkdir .other; echo evil > .other/x";
    for view in ["transactional", "live"] {
        if view == "live" && !can_use_fuse() {
            skip(
                "what_is_protected_in_a_directory_goes_where_the_directory_goes (live)",
                "/dev/fuse cannot be used",
            );
            continue;
        }
        let person = Person::with(REPOSITORY);
        let before = person.snapshot();
        let said = text(&person.run_with(&["--view", view], "mv repo moved").stderr);
        assert!(!said.contains("protected"), "{view}: {said}");
        for (name, content) in [
            (".envrc", "mine\n"),
            (".git/hooks/pre-push", "hook\n"),
            (".cursor/rules/one", "rule\n"),
        ] {
            assert_eq!(person.read(&format!("moved/{name}")), content, "{view}");
        }
        assert!(!person.path("repo").exists());
        person.ok(&["undo"]);
        assert_tree_eq(&before, &person.snapshot());

        // What is not as it was, or gets where it would be obeyed, is not let through.
        let mut attacks = vec!["mv repo/.git .git", "cp -r repo/.other repo/.husky; mv repo moved"];
        if view == "transactional" {
            attacks.push("cp -r repo moved; echo evil >> moved/.envrc; rm -rf repo");
        }
        for attack in attacks {
            person.run_with(&["--view", view], &format!("({attack}) 2>/dev/null; true"));
            assert!(!person.path(".git/hooks/pre-push").exists(), "{view}: {attack}");
            assert!(!person.path("moved/.husky/x").exists(), "{view}: {attack}");
            assert!(
                !person.path("moved/.envrc").exists() || person.read("moved/.envrc") == "mine\n"
            );
            while !person.json(&["history"])["history"].as_array().unwrap().is_empty() {
                person.ok(&["undo"]);
            }
            assert_tree_eq(&before, &person.snapshot());
        }
    }
}

#[test]
fn what_is_allowed_by_name_is_allowed() {
    let person = Person::new();
    person.run_with(
        &["--allow-path", ".envrc"],
        "echo new > .envrc; mkdir .husky; echo x > .husky/x",
    );
    assert_eq!(person.read(".envrc"), "new\n");
    assert!(!person.path(".husky/x").exists());
    person.configure("[protected]\nallow = ['.husky/']\n");
    person.run("mkdir -p .husky; echo x > .husky/x");
    assert_eq!(person.read(".husky/x"), "x\n");
}

#[test]
fn a_step_that_wants_what_is_protected_is_refused_as_a_whole_if_that_is_wanted() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    person.configure("[protected]\nrefuse_step = true\n");
    for script in
        ["echo x > fine; echo evil > .envrc", "mkdir -p new/.husky; echo x > new/.husky/x"]
    {
        let refused = person.output(&["run", "--", "sh", "-c", script]);
        let said = text(&refused.stderr);
        assert!(!refused.status.success(), "{said}");
        assert!(
            said.contains("nothing of what it did was kept") && said.contains("hint:"),
            "{said}"
        );
        assert_tree_eq(&before, &person.snapshot());
    }
    person.run("echo x > fine");
    assert_eq!(person.read("fine"), "x\n");
}

#[test]
fn what_people_will_run_is_told() {
    let person = Person::new();
    let output = person.run("echo '{}' > package.json; mkdir -p node_modules/a; echo '{}' > node_modules/a/package.json");
    let said = text(&output.stderr);
    assert!(said.contains("look at what other programs will run: package.json\n"), "{said}");
    assert_eq!(person.json(&["history"])["history"][0]["flagged"][0], "package.json");
}

#[test]
fn a_file_that_runs_with_the_rights_of_its_owner_is_told() {
    const MADE: &str = "cp /bin/true u; cp /bin/true g; cp /bin/true plain; mkdir -p d/e;
        cp /bin/true d/e/u; chmod 4755 u d/e/u; chmod 2755 g; mkdir s; chmod 2775 s";
    let views: &[&str] =
        if common::can_use_fuse() { &["transactional", "live"] } else { &["transactional"] };
    for view in views {
        let person = Person::new();
        let said = text(&person.run_with(&["--view", view], MADE).stderr);
        let sentence = "so whoever runs them has the rights of their owner: d/e/u, g, u\n";
        assert!(said.contains(sentence), "{view}: {said}");
        let flagged = &person.json(&["history"])["history"][0]["flagged"];
        assert_eq!(*flagged, serde_json::json!(["d/e/u", "g", "u"]), "{view}");
        // Once is enough.
        let said = text(&person.run_with(&["--view", view], "touch u; echo > x").stderr);
        assert!(!said.contains("the rights of their owner"), "{view}: {said}");
    }
}
