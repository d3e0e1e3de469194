//! Entering the server in agent clients, with clients that only write down what they are told.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

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
        assert_eq!(clients.calls(), [removed.to_owned(), expected], "{client}");
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
