use codeagent_common::RelPathBuf;

use super::*;

fn guard() -> Guard {
    Guard::new(&PathRules::default()).unwrap()
}

fn judged(guard: &Guard, path: &str, usage: PathUse) -> PathVerdict {
    guard.judge(RelPathBuf::new(path.as_bytes()).unwrap().as_path(), usage)
}

fn is_denied(path: &str) -> bool {
    [PathUse::Appear, PathUse::Write, PathUse::Attributes]
        .iter()
        .all(|usage| matches!(judged(&guard(), path, *usage), PathVerdict::Deny(_)))
}

#[test]
fn what_host_tools_run_is_denied_at_any_depth_in_any_spelling() {
    for path in [
        ".git/hooks/pre-commit",
        "vendor/x/.git/hooks/post-checkout",
        ".git/modules/sub/hooks/pre-push",
        ".GIT/Hooks/pre-commit",
        ".envrc",
        "deep/er/.envrc",
        ".vscode/tasks.json",
        "a/.VSCode/Settings.json",
        ".idea/runConfigurations/x.xml",
        ".mcp.json",
        ".cursor",
        ".cursor/rules/x.mdc",
        ".claude/settings.json",
        ".claude/settings.local.json",
        ".claude/commands/x.md",
        ".codex/config.toml",
        ".gemini/settings.json",
        ".husky/pre-commit",
        ".devcontainer/devcontainer.json",
        "codeagent.toml",
    ] {
        assert!(is_denied(path), "{path}");
    }
}

#[test]
fn ordinary_files_and_samples_are_not() {
    for path in [
        "src/main.rs",
        ".git",
        ".git/hooks",
        ".git/hooks/pre-commit.sample",
        ".git/objects/ab/cdef",
        ".git/refs/heads/hooks/x",
        ".vscode/extensions.json",
        "envrc",
        ".envrc.example",
        ".claude/notes.md",
        "docs/codeagent.toml",
        "hooks/pre-commit",
    ] {
        assert_eq!(judged(&guard(), path, PathUse::Appear), PathVerdict::Allow, "{path}");
    }
}

#[test]
fn removal_is_allowed_but_for_the_projects_own_policy() {
    for path in [".envrc", ".git/hooks/pre-commit", ".git/config", ".mcp.json"] {
        assert_eq!(judged(&guard(), path, PathUse::Disappear), PathVerdict::Allow, "{path}");
    }
    let verdict = judged(&guard(), "codeagent.toml", PathUse::Disappear);
    assert!(matches!(verdict, PathVerdict::Deny(_)));
}

#[test]
fn what_people_run_is_flagged_but_not_what_is_installed_by_the_thousand() {
    for path in [
        "package.json",
        "web/package.json",
        "Makefile",
        "build.rs",
        "AGENTS.md",
        ".github/workflows/ci.yml",
    ] {
        assert_eq!(judged(&guard(), path, PathUse::Write), PathVerdict::Flag, "{path}");
    }
    let installed = judged(&guard(), "node_modules/x/package.json", PathUse::Appear);
    assert_eq!(installed, PathVerdict::Allow);
}

#[test]
fn what_is_allowed_by_name_is_allowed() {
    let mut rules = PathRules::default();
    rules.allow.extend(["/.envrc".into(), ".husky/".into(), ".git/config".into()]);
    let guard = Guard::new(&rules).unwrap();
    let allowed = |path| judged(&guard, path, PathUse::Write) == PathVerdict::Allow;
    assert!(allowed(".envrc") && allowed(".husky/pre-commit") && allowed("a/.husky/x"));
    assert!(!allowed("sub/.envrc") && !allowed(".mcp.json"));
    assert!(!guard.inspects(RelPathBuf::new(&b".git/config"[..]).unwrap().as_path()));
}

#[test]
fn nonsense_is_no_pattern() {
    for nonsense in ["", "/", "a//b", "../x", "a/./b"] {
        assert!(Pattern::new(nonsense).is_err(), "{nonsense:?}");
    }
}

fn inspected(path: &str, former: Option<&str>, content: &str) -> PathVerdict {
    let path = RelPathBuf::new(path.as_bytes()).unwrap();
    guard().inspect(path.as_path(), former.map(str::as_bytes), content.as_bytes())
}

const PLAIN: &str = "[core]\n\tbare = false\n\tfsmonitor = true\n[remote \"origin\"]\n\turl = https://example.org/x\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n[user]\n\tname = A\n[alias]\n\tst = status\n";

#[test]
fn an_ordinary_git_configuration_passes() {
    assert_eq!(inspected(".git/config", None, PLAIN), PathVerdict::Allow);
    assert_eq!(inspected(".git/config", Some(PLAIN), ""), PathVerdict::Allow);
    let modules = "[submodule \"x\"]\n\tpath = x\n\turl = ../x\n";
    assert_eq!(inspected(".gitmodules", None, modules), PathVerdict::Allow);
}

#[test]
fn a_key_that_makes_git_run_something_does_not() {
    for evil in [
        "[core]\nfsmonitor = touch /tmp/x",
        "[core]\nhooksPath = .hooks",
        "[CORE]\nsshCommand = evil",
        "[core]\npager = evil",
        "[alias]\nst = !evil",
        "[diff \"x\"]\ntextconv = evil",
        "[filter \"lfs\"]\nclean = evil",
        "[include]\npath = ../evil",
        "[includeIf \"gitdir:/\"]\npath = evil",
        "[credential]\nhelper = evil",
        "[credential \"https://x\"]\nhelper = !evil",
        "[remote \"o\"]\nuploadpack = evil",
        "[remote \"o\"]\nurl = ext::evil",
        "[protocol \"ext\"]\nallow = always",
        "[submodule \"x\"]\nupdate = !evil",
        "[core]\n\tpager = \"ev\\\n il\"",
        "[pager]\nlog = evil",
    ] {
        let verdict = inspected(".git/config", Some(PLAIN), &format!("{PLAIN}{evil}\n"));
        assert!(matches!(verdict, PathVerdict::Deny(_)), "{evil}");
    }
    assert!(matches!(inspected(".git/config", None, "[core\nbroken"), PathVerdict::Deny(_)));
}

#[test]
fn what_the_person_had_configured_stays_and_is_not_altered() {
    let former = "[core]\n\tpager = less\n[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n";
    let more = format!("{former}[user]\n\tname = B\n");
    assert_eq!(inspected(".git/config", Some(former), &more), PathVerdict::Allow);
    let altered = former.replace("less", "evil");
    assert!(matches!(inspected(".git/config", Some(former), &altered), PathVerdict::Deny(_)));
}

#[test]
fn a_git_file_names_a_git_directory() {
    let submodule = "gitdir: ../.git/modules/sub\n";
    assert_eq!(inspected("sub/.git", None, submodule), PathVerdict::Allow);
    for evil in ["../evil", "../e/.git/x", "../.git/modules/../x", "../.git/modules/..", ""] {
        let verdict = inspected("sub/.git", None, &format!("gitdir: {evil}\n"));
        assert!(matches!(verdict, PathVerdict::Deny(_)), "{evil}");
    }
    let commondir = ".git/worktrees/w/commondir";
    assert_eq!(inspected(commondir, None, "../..\n"), PathVerdict::Allow);
    assert!(matches!(inspected(commondir, None, "../../evil\n"), PathVerdict::Deny(_)));
}

#[test]
fn rules_arrive_as_they_were_sent() {
    let rules = PathRules::default();
    let guard = read(&rules.to_bytes().unwrap()).unwrap();
    let path = RelPathBuf::new(&b".envrc"[..]).unwrap();
    assert!(matches!(guard.judge(path.as_path(), PathUse::Appear), PathVerdict::Deny(_)));
    assert!(read(b"").is_err());
}

#[test]
fn a_path_that_rules_speak_of_has_a_name_that_matters() {
    let rules = PathRules { deny: vec!["**/x*".into(), "/a/**/b".into()], ..Default::default() };
    let vocabulary = [
        "a",
        "b",
        "xy",
        "src",
        ".git",
        "GIT",
        ".Git",
        "hooks",
        "config",
        "modules",
        "pre-commit",
        "package.json",
        ".envrc",
        ".ENVRC",
        ".cursor",
        "codeagent.toml",
        ".gitmodules",
        ".github",
        "workflows",
        "f.js",
    ];
    for guard in [Guard::new(&PathRules::default()).unwrap(), Guard::new(&rules).unwrap()] {
        let mut guarded = 0;
        let names = || vocabulary.iter().map(|name| name.as_bytes());
        for first in names() {
            for second in names() {
                for third in names() {
                    let path = RelPathBuf::new([first, second, third].join(&b'/')).unwrap();
                    let path = path.as_path();
                    let matters = guard.judge(path, PathUse::Appear) != PathVerdict::Allow
                        || guard.inspects(path);
                    let is_minded = path.components().any(|name| guard.minds(name));
                    assert!(is_minded || !matters, "{path}");
                    guarded += usize::from(matters);
                }
            }
        }
        assert!(guarded > 100, "{guarded}");
    }
    assert!(!Guard::new(&PathRules::default()).unwrap().minds(b"index.js"));
}
