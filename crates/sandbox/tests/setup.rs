//! Entering the server in agent clients, with clients that only write down what they are told.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Output;

use codeagent_test_support::{TreeSnapshot, assert_tree_eq};
use common::{PROGRAM, Person, text};
use serde_json::Value;

struct Clients {
    person: Person,
}

impl Clients {
    fn new() -> Self {
        let clients = Self { person: Person::new() };
        fs::create_dir(clients.person.root().join("bin")).unwrap();
        clients
    }

    /// A command of that name which writes down its arguments.
    fn install(&self, name: &str, body: &str) {
        let file = self.person.root().join("bin").join(name);
        let script = format!("#!/bin/sh\necho \"$*\" >> {}\n{body}\n", self.calls_file().display());
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn calls_file(&self) -> PathBuf {
        self.person.root().join("calls")
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.calls_file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn setup(&self, arguments: &[&str]) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.person.root().join("bin").display());
        self.person.sandbox(["setup"]).args(arguments).env("PATH", path).output().unwrap()
    }

    /// It has to fail with one sentence and a hint, and to leave everything as it is.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> String {
        let before = TreeSnapshot::capture(self.person.root());
        let output = self.setup(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let said = text(&output.stderr);
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines.len() == 2 && lines[1].starts_with("hint: "), "{said}");
        assert_tree_eq(&before, &TreeSnapshot::capture(self.person.root()));
        said
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.setup(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.person.home().join(name)
    }

    fn put(&self, name: &str, content: &str) {
        fs::create_dir_all(self.file(name).parent().unwrap()).unwrap();
        fs::write(self.file(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    fn names(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut pending = vec![self.person.home()];
        while let Some(dir) = pending.pop() {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true if entry.file_name() == ".codeagent" => {}
                    true => pending.push(entry.path()),
                    false => found.push(entry.path()),
                }
            }
        }
        found.sort();
        found
    }
}

#[test]
fn clients_with_a_command_of_their_own_are_told_by_it() {
    for (client, name, added, removed) in [
        ("claude-code", "claude", "mcp add -s user sandbox -- ", "mcp remove -s user sandbox"),
        ("codex", "codex", "mcp add sandbox -- ", "mcp remove sandbox"),
        ("gemini", "gemini", "mcp add -s user sandbox ", "mcp remove -s user sandbox"),
    ] {
        let clients = Clients::new();
        clients.install(name, "");
        clients.ok(&[client]);
        let expected = format!("{added}{PROGRAM} --protocol mcp");
        assert_eq!(clients.calls(), [expected], "{client}");
        assert_eq!(clients.names(), Vec::<PathBuf>::new(), "{client}");
        clients.ok(&[client, "--remove"]);
        assert_eq!(clients.calls().last().unwrap(), removed, "{client}");
    }
}

#[test]
fn a_command_that_fails_is_quoted_and_nothing_is_left() {
    let clients = Clients::new();
    clients.install("codex", "case $2 in add) echo 'no such thing' >&2; exit 1;; esac");
    let output = clients.setup(&["codex", "--block-builtin-tools"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no such thing"), "{output:?}");
    assert_eq!(clients.names(), Vec::<PathBuf>::new());
}

/// Comments, order, odd spacing and unknown keys.
const JSON: &str = "{\n  // mine\n  \"theme\": \"dark\",\n  \"mcpServers\": {\n    \"other\": { \"command\": \"x\" } /* keep */\n  },\n  \"unknown\": [1,2,   3]\n}\n";

const FILES: [(&str, &str, &str); 6] = [
    ("claude-code", ".claude.json", "mcpServers"),
    ("claude-desktop", ".config/Claude/claude_desktop_config.json", "mcpServers"),
    ("gemini", ".gemini/settings.json", "mcpServers"),
    ("cursor", ".cursor/mcp.json", "mcpServers"),
    ("zed", ".config/zed/settings.json", "context_servers"),
    ("opencode", ".config/opencode/opencode.json", "mcp"),
];

#[test]
fn files_are_merged_kept_beside_and_given_back_exactly() {
    for (client, file, key) in FILES {
        let clients = Clients::new();
        let before = JSON.replace("mcpServers", key);
        clients.put(file, &before);
        fs::set_permissions(clients.file(file), fs::Permissions::from_mode(0o640)).unwrap();
        let said = clients.ok(&[client]);
        assert!(said.contains("as it was: "), "{client}: {said}");
        let after = clients.read(file);
        for kept in ["// mine", "/* keep */", "\"unknown\": [1,2,   3]", "\"other\""] {
            assert!(after.contains(kept), "{client}: {after}");
        }
        let plain = after.replace("// mine", "").replace("/* keep */", "");
        let value: Value = serde_json::from_str(&plain).unwrap();
        let entry = value[key]["sandbox"].to_string();
        assert!(entry.contains(PROGRAM) && entry.contains("mcp"), "{client}: {entry}");
        let mode = fs::metadata(clients.file(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "{client}");
        assert_eq!(clients.names().len(), 2, "{client}: a copy is beside it");
        clients.ok(&[client, "--remove"]);
        assert_eq!(clients.read(file), before, "{client}");
        assert_eq!(clients.names().len(), 1, "{client}");
    }
}

#[test]
fn files_that_were_not_there_go_again() {
    for (client, file, _) in FILES {
        let clients = Clients::new();
        clients.ok(&[client]);
        assert!(clients.file(file).exists(), "{client}");
        clients.ok(&[client, "--remove"]);
        assert_eq!(clients.names(), Vec::<PathBuf>::new(), "{client}");
    }
}

#[test]
fn what_somebody_else_changed_since_is_kept() {
    let clients = Clients::new();
    clients.put(".cursor/mcp.json", JSON);
    clients.ok(&["cursor"]);
    let changed = clients.read(".cursor/mcp.json").replace("\"dark\"", "\"light\"");
    clients.put(".cursor/mcp.json", &changed);
    let said = clients.ok(&["cursor", "--remove"]);
    assert!(said.contains("somebody else has changed since"), "{said}");
    let after = clients.read(".cursor/mcp.json");
    assert!(
        after.contains("light") && after.contains("// mine") && after.contains("other"),
        "{after}"
    );
    assert!(!after.contains("sandbox"), "{after}");
}

#[test]
fn own_tools_are_switched_off_and_on_again() {
    let clients = Clients::new();
    clients.install("claude", "");
    let before = "{\n  \"permissions\": { \"deny\": [\"WebFetch\", \"Bash\"], \"allow\": [\"x\"] } // mine\n}\n";
    clients.put(".claude/settings.json", before);
    clients.ok(&["claude-code", "--block-builtin-tools"]);
    let after: Value =
        serde_json::from_str(&clients.read(".claude/settings.json").replace("// mine", ""))
            .unwrap();
    let denied: Vec<&str> =
        after["permissions"]["deny"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(denied.contains(&"Write") && denied.contains(&"WebFetch"), "{denied:?}");
    assert_eq!(denied.iter().filter(|name| **name == "Bash").count(), 1);
    clients.ok(&["claude-code", "--remove"]);
    assert_eq!(clients.read(".claude/settings.json"), before);

    let codex = "# mine\nmodel = \"x\"\n\n[features]\nother = true # keep\n";
    clients.put(".codex/config.toml", codex);
    let said = clients.ok(&["codex", "--block-builtin-tools"]);
    assert!(said.contains("apply_patch"), "{said}");
    let after = clients.read(".codex/config.toml");
    assert!(
        after.contains("shell_tool = false") && after.contains("[mcp_servers.sandbox]"),
        "{after}"
    );
    assert!(after.contains("# mine") && after.contains("other = true # keep"), "{after}");
    clients.ok(&["codex", "--remove"]);
    assert_eq!(clients.read(".codex/config.toml"), codex);

    for client in ["gemini", "cursor", "opencode", "zed"] {
        clients.ok(&[client, "--block-builtin-tools"]);
        clients.ok(&[client, "--remove"]);
    }
    let left = clients.names();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn entering_twice_and_removing_once_gives_the_file_back() {
    let clients = Clients::new();
    clients.put(".cursor/mcp.json", JSON);
    clients.ok(&["cursor"]);
    clients.ok(&["cursor", "--working-dir", "."]);
    assert!(clients.read(".cursor/mcp.json").contains("--working-dir"));
    clients.ok(&["cursor", "--remove"]);
    assert_eq!(clients.read(".cursor/mcp.json"), JSON);
}

#[test]
fn a_file_that_cannot_be_understood_is_left_alone() {
    let clients = Clients::new();
    clients.put(".cursor/mcp.json", "{ not json");
    let output = clients.setup(&["cursor"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("hint: "), "{output:?}");
    assert_eq!(clients.read(".cursor/mcp.json"), "{ not json");
    assert_eq!(clients.names().len(), 1);
}

#[test]
fn vs_code_is_entered_for_the_folder() {
    let clients = Clients::new();
    clients.ok(&["vscode"]);
    let file = clients.person.path(".vscode/mcp.json");
    let value: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(value["servers"]["sandbox"]["type"], "stdio");
    clients.ok(&["vscode", "--remove"]);
    assert!(!file.exists());
}

#[test]
fn each_project_has_its_own_entry_in_vs_code() {
    let clients = Clients::new();
    let [one, two] = ["one", "two"].map(|name| clients.person.root().join(name));
    let mine = |project: &PathBuf| {
        format!("{{ \"servers\": {{}}, \"mine\": {:?} }}\n", project.file_name().unwrap())
    };
    for project in [&one, &two] {
        fs::create_dir_all(project.join(".vscode")).unwrap();
        fs::write(project.join(".vscode/mcp.json"), mine(project)).unwrap();
    }
    let setup = |project: &PathBuf, arguments: &[&str]| {
        let mut setup = clients.person.sandbox(["setup", "vscode"]);
        setup.args(arguments).current_dir(project).output().unwrap()
    };
    assert!(setup(&one, &[]).status.success());
    let never = setup(&two, &["--remove"]);
    assert!(text(&never.stderr).contains("not entered in vscode for this folder"), "{never:?}");
    assert!(setup(&two, &[]).status.success());
    assert!(setup(&two, &["--remove"]).status.success());
    let entered = fs::read_to_string(one.join(".vscode/mcp.json")).unwrap();
    assert!(entered.contains(PROGRAM) && entered.contains("\"one\""), "{entered}");
    assert!(setup(&one, &["--remove"]).status.success());
    for project in [&one, &two] {
        assert_eq!(fs::read_to_string(project.join(".vscode/mcp.json")).unwrap(), mine(project));
        assert_eq!(fs::read_dir(project.join(".vscode")).unwrap().count(), 1);
    }
}

const FOREIGN: &str = r#"{ "command": "npx", "args": ["-y", "another-sandbox"] }"#;

#[test]
fn a_server_of_somebody_else_with_our_name_is_left_alone() {
    for (client, file, key) in FILES {
        let clients = Clients::new();
        clients.put(file, &format!("{{ \"{key}\": {{ \"sandbox\": {FOREIGN} }} }}"));
        let said = clients.refused(&[client]);
        assert!(said.contains("another server is called \"sandbox\""), "{client}: {said}");
        clients.refused(&[client, "--block-builtin-tools"]);
    }
    let clients = Clients::new();
    clients.put(".codex/config.toml", "[mcp_servers.sandbox]\ncommand = \"npx\"\n");
    clients.refused(&["codex"]);
}

/// The same where the client has a command of its own, which would replace it without a word.
#[test]
fn no_client_is_told_to_replace_or_remove_a_server_of_somebody_else() {
    for (client, name, file, content) in [
        (
            "claude-code",
            "claude",
            ".claude.json",
            format!(r#"{{"mcpServers": {{"sandbox": {FOREIGN}}}}}"#),
        ),
        (
            "gemini",
            "gemini",
            ".gemini/settings.json",
            format!(r#"{{"mcpServers": {{"sandbox": {FOREIGN}}}}}"#),
        ),
        ("codex", "codex", ".codex/config.toml", "[mcp_servers.sandbox]\ncommand = 'npx'\n".into()),
    ] {
        let clients = Clients::new();
        clients.install(name, "");
        clients.put(file, &content);
        clients.refused(&[client]);
        assert_eq!(clients.calls(), Vec::<String>::new(), "{client}");
        // Nor if it came later.
        fs::remove_file(clients.file(file)).unwrap();
        clients.ok(&[client]);
        clients.put(file, &content);
        let said = clients.ok(&[client, "--remove"]);
        assert!(said.contains("somebody else's now"), "{client}: {said}");
        assert_eq!(clients.calls().len(), 1, "{client}");
        assert_eq!(clients.read(file), content, "{client}");
    }
}

#[test]
fn an_entry_that_somebody_else_has_replaced_since_stays() {
    let clients = Clients::new();
    clients.put(".cursor/mcp.json", JSON);
    clients.ok(&["cursor"]);
    let theirs = format!("{{ \"mcpServers\": {{ \"sandbox\": {FOREIGN} }} }}");
    clients.put(".cursor/mcp.json", &theirs);
    let said = clients.ok(&["cursor", "--remove"]);
    assert!(said.contains("left mcpServers.sandbox in") && said.contains("not ours"), "{said}");
    assert_eq!(clients.read(".cursor/mcp.json"), theirs);
}

#[test]
fn an_entry_of_ours_from_another_place_is_replaced_and_given_back() {
    let clients = Clients::new();
    let older = r#"{ "mcpServers": { "sandbox": { "command": "/opt/old/sandbox", "args": ["--protocol", "mcp"] } } }"#;
    clients.put(".cursor/mcp.json", older);
    clients.ok(&["cursor"]);
    assert!(clients.read(".cursor/mcp.json").contains(PROGRAM));
    clients.ok(&["cursor", "--remove"]);
    assert_eq!(clients.read(".cursor/mcp.json"), older);
}

#[test]
fn a_server_that_the_client_has_lost_already_can_be_removed() {
    let clients = Clients::new();
    clients.install("claude", "case $2 in remove) echo 'no such server' >&2; exit 1;; esac");
    clients.put(".claude.json", "{}");
    clients.ok(&["claude-code", "--block-builtin-tools"]);
    let said = clients.ok(&["claude-code", "--remove"]);
    assert!(said.contains("gone from") && said.contains("removed "), "{said}");
    assert!(!clients.file(".claude/settings.json").exists());
}

#[test]
fn links_are_written_through_and_stay_links() {
    let clients = Clients::new();
    clients.put("dotfiles/mcp.json", JSON);
    fs::create_dir(clients.file(".cursor")).unwrap();
    symlink("../dotfiles/mcp.json", clients.file(".cursor/mcp.json")).unwrap();
    clients.ok(&["cursor"]);
    let link = fs::read_link(clients.file(".cursor/mcp.json")).unwrap();
    assert_eq!(link, PathBuf::from("../dotfiles/mcp.json"));
    assert!(clients.read("dotfiles/mcp.json").contains(PROGRAM));
    clients.ok(&["cursor", "--remove"]);
    assert!(fs::symlink_metadata(clients.file(".cursor/mcp.json")).unwrap().is_symlink());
    assert_eq!(clients.read("dotfiles/mcp.json"), JSON);
    assert_eq!(clients.names().len(), 2);
}

#[test]
fn files_that_cannot_be_changed_safely_are_refused_and_left_as_they_are() {
    let clients = Clients::new();
    fs::create_dir(clients.file(".cursor")).unwrap();
    let file = clients.file(".cursor/mcp.json");
    symlink("nowhere", &file).unwrap();
    assert!(clients.refused(&["cursor"]).contains("a link that leads nowhere"));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(clients.refused(&["cursor"]).contains("it is no file"));
    fs::remove_dir(&file).unwrap();
    fs::write(&file, b"{ \"name\": \"\xe4\" }").unwrap();
    assert!(clients.refused(&["cursor"]).contains("it is not UTF-8"));
    fs::write(&file, b"\xff\xfe{\0}\0").unwrap();
    assert!(clients.refused(&["cursor"]).contains("it is not UTF-8"));
    for text in ["[]", "{ \"a\": 1 \"b\": 2 }", "{ \"mcpServers\": null }", "nonsense"] {
        fs::write(&file, text).unwrap();
        assert!(clients.refused(&["cursor"]).contains("it cannot be understood"), "{text}");
    }
    fs::write(&file, "{}").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(clients.refused(&["cursor"]).contains("it is read-only"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    clients.ok(&["cursor"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(clients.refused(&["cursor", "--remove"]).contains("it is read-only"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    clients.ok(&["cursor", "--remove"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
}

#[test]
fn empty_files_and_byte_order_marks_are_kept_as_they_are() {
    for (client, file, before) in [
        ("cursor", ".cursor/mcp.json", "".to_owned()),
        ("cursor", ".cursor/mcp.json", " \n".to_owned()),
        ("cursor", ".cursor/mcp.json", format!("\u{feff}{JSON}")),
        ("cursor", ".cursor/mcp.json", "\u{feff}".to_owned()),
        ("codex", ".codex/config.toml", "".to_owned()),
        ("codex", ".codex/config.toml", "\u{feff}model = \"x\"\r\n".to_owned()),
    ] {
        let clients = Clients::new();
        clients.put(file, &before);
        clients.ok(&[client]);
        let entered = clients.read(file);
        assert!(entered.contains(PROGRAM), "{entered:?}");
        assert_eq!(entered.starts_with('\u{feff}'), before.starts_with('\u{feff}'), "{entered:?}");
        // Also if somebody else has changed it since.
        clients.put(file, &entered.replace("dark", "light").replace("\"x\"", "\"y\""));
        clients.ok(&[client, "--remove"]);
        assert!(!clients.read(file).contains(PROGRAM), "{before:?}");
        clients.put(file, &before);
        clients.ok(&[client]);
        clients.ok(&[client, "--remove"]);
        assert_eq!(clients.read(file), before);
    }
}

/// What an interruption at any moment leaves: the copy without a note, the note without the change,
/// the change undone and the note still there.
#[test]
fn an_interruption_loses_nothing() {
    let clients = Clients::new();
    let (file, note) = (".cursor/mcp.json", ".codeagent/setup/cursor.json");
    clients.put(file, JSON);
    clients.put(&format!("{file}.before-sandbox-0"), "an older copy");
    clients.ok(&["cursor"]);
    assert_eq!(clients.read(&format!("{file}.before-sandbox-0")), "an older copy");
    let (entered, noted) = (clients.read(file), clients.read(note));
    clients.put(file, JSON);
    clients.ok(&["cursor", "--remove"]);
    assert_eq!(clients.read(file), JSON);
    // Restored, and the copy is gone, too.
    clients.put(note, &noted);
    clients.ok(&["cursor", "--remove"]);
    assert_eq!(clients.read(file), JSON);
    // The copy was lost, by whomever.
    clients.put(note, &noted);
    clients.put(file, &entered);
    clients.ok(&["cursor", "--remove"]);
    assert!(!clients.read(file).contains(PROGRAM) && clients.read(file).contains("// mine"));
}

#[test]
fn clients_that_were_told_to_live_elsewhere_are_found_there() {
    let clients = Clients::new();
    let elsewhere = clients.person.root().join("elsewhere");
    for (client, variable, file) in [
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "CODEX_HOME", "config.toml"),
    ] {
        let mut setup = clients.person.sandbox(["setup", client]);
        let output = setup.env(variable, &elsewhere).env("PATH", "/bin").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(fs::read_to_string(elsewhere.join(file)).unwrap().contains(PROGRAM), "{client}");
    }
    assert_eq!(clients.names(), Vec::<PathBuf>::new());
}

#[test]
fn directories_that_were_made_for_a_file_go_with_it() {
    let clients = Clients::new();
    let made = [
        ("claude-code", clients.file(".claude")),
        ("claude-desktop", clients.file(".config")),
        ("codex", clients.file(".codex")),
        ("gemini", clients.file(".gemini")),
        ("cursor", clients.file(".cursor")),
        ("vscode", clients.person.path(".vscode")),
        ("zed", clients.file(".config")),
        ("opencode", clients.file(".config")),
    ];
    for (client, dir) in &made {
        clients.ok(&[client, "--block-builtin-tools"]);
        assert!(dir.exists(), "{client}");
        clients.ok(&[client, "--remove"]);
        assert!(!dir.exists(), "{client}");
    }
    // Not if they were there, nor if somebody else uses them.
    fs::create_dir(clients.file(".codex")).unwrap();
    clients.ok(&["codex"]);
    clients.ok(&["codex", "--remove"]);
    assert!(clients.file(".codex").exists());
    clients.ok(&["gemini"]);
    fs::write(clients.file(".gemini/mine"), "").unwrap();
    clients.ok(&["gemini", "--remove"]);
    assert!(clients.file(".gemini/mine").exists());
}
