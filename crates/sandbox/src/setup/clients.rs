//! What each client wants: where it keeps servers, and how its own tools are switched off.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::document::{Edit, Format};

/// What the server is called in clients.
pub const NAME: &str = "sandbox";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Client {
    ClaudeCode,
    ClaudeDesktop,
    Codex,
    Gemini,
    Cursor,
    Vscode,
    Zed,
    Opencode,
}

/// How the server is started.
#[derive(Debug, Clone)]
pub struct Launch {
    pub program: String,
    pub arguments: Vec<String>,
}

/// A file and what is changed in it.
#[derive(Debug, Clone)]
pub struct FileEdits {
    pub file: PathBuf,
    pub format: Format,
    pub edits: Vec<Edit>,
}

/// The client's own command, which knows best where it keeps things.
#[derive(Debug, Clone)]
pub struct OwnCommand {
    pub program: &'static str,
    pub add: Vec<String>,
    pub remove: Vec<String>,
}

/// Directories that files are in.
#[derive(Debug, Clone)]
pub struct Dirs {
    pub home: PathBuf,
    /// `~/.config`, or what `XDG_CONFIG_HOME` says.
    pub config: PathBuf,
    /// What `CLAUDE_CONFIG_DIR` says.
    pub claude: Option<PathBuf>,
    /// `~/.codex`, or what `CODEX_HOME` says.
    pub codex: PathBuf,
    pub project: PathBuf,
}

const CLAUDE_TOOLS: [&str; 11] = [
    "Bash",
    "PowerShell",
    "Monitor",
    "Edit",
    "Write",
    "NotebookEdit",
    "Read",
    "Glob",
    "Grep",
    "LSP",
    "EnterWorktree",
];
const GEMINI_TOOLS: [&str; 8] = [
    "run_shell_command",
    "write_file",
    "replace",
    "read_file",
    "read_many_files",
    "list_directory",
    "glob",
    "search_file_content",
];
const CURSOR_TOOLS: [&str; 3] = ["Shell(*)", "Write(**)", "Read(**)"];
const OPENCODE_TOOLS: [&str; 6] = ["edit", "bash", "read", "glob", "grep", "list"];
const ZED_TOOLS: [&str; 12] = [
    "terminal",
    "edit_file",
    "read_file",
    "list_directory",
    "find_path",
    "grep",
    "create_directory",
    "copy_path",
    "move_path",
    "delete_path",
    "diagnostics",
    "save_file",
];

impl Client {
    pub fn id(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::ClaudeDesktop => "claude-desktop",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Cursor => "cursor",
            Self::Vscode => "vscode",
            Self::Zed => "zed",
            Self::Opencode => "opencode",
        }
    }

    /// Its file belongs to one project, so that there can be many.
    pub fn is_of_project(self) -> bool {
        self == Self::Vscode
    }

    pub fn own_command(self, launch: &Launch) -> Option<OwnCommand> {
        let line = std::iter::once(launch.program.clone()).chain(launch.arguments.iter().cloned());
        let words = |before: &[&str], after: Vec<String>| {
            before.iter().map(ToString::to_string).chain(after).collect()
        };
        let (program, add, remove): (_, Vec<String>, Vec<String>) = match self {
            Self::ClaudeCode => (
                "claude",
                words(&["mcp", "add", "-s", "user", NAME, "--"], line.collect()),
                words(&["mcp", "remove", "-s", "user", NAME], vec![]),
            ),
            Self::Codex => (
                "codex",
                words(&["mcp", "add", NAME, "--"], line.collect()),
                words(&["mcp", "remove", NAME], vec![]),
            ),
            Self::Gemini => (
                "gemini",
                words(&["mcp", "add", "-s", "user", NAME], line.collect()),
                words(&["mcp", "remove", "-s", "user", NAME], vec![]),
            ),
            _ => return None,
        };
        Some(OwnCommand { program, add, remove })
    }

    /// Enters the server in the client's file.
    pub fn registration(self, dirs: &Dirs, launch: &Launch) -> FileEdits {
        let Launch { program, arguments } = launch;
        let plain = json!({ "command": program, "args": arguments });
        let whole: Vec<&String> = std::iter::once(program).chain(arguments).collect();
        let (file, key, value) = match self {
            Self::ClaudeCode => (claude_code(dirs), "mcpServers", plain),
            Self::ClaudeDesktop => (claude_desktop(dirs), "mcpServers", plain),
            Self::Codex => (dirs.codex.join("config.toml"), "mcp_servers", plain),
            Self::Gemini => (dirs.home.join(".gemini/settings.json"), "mcpServers", plain),
            Self::Cursor => (dirs.home.join(".cursor/mcp.json"), "mcpServers", plain),
            Self::Vscode => (
                dirs.project.join(".vscode/mcp.json"),
                "servers",
                json!({ "type": "stdio", "command": program, "args": arguments }),
            ),
            Self::Zed => (
                dirs.config.join("zed/settings.json"),
                "context_servers",
                json!({ "source": "custom", "command": program, "args": arguments }),
            ),
            Self::Opencode => (
                dirs.config.join("opencode/opencode.json"),
                "mcp",
                json!({ "type": "local", "command": whole, "enabled": true }),
            ),
        };
        let format = if self == Self::Codex { Format::Toml } else { Format::Json };
        FileEdits { file, format, edits: vec![set(&[key, NAME], value)] }
    }

    /// Switches the client's own tools off, as far as it can be told to.
    pub fn without_own_tools(self, dirs: &Dirs) -> Option<FileEdits> {
        let add = |at: &[&str], values: &[&str]| Edit::Add {
            at: at.iter().map(ToString::to_string).collect(),
            values: values.iter().map(ToString::to_string).collect(),
        };
        let json = |file: PathBuf, edits| Some(FileEdits { file, format: Format::Json, edits });
        match self {
            Self::ClaudeCode => json(
                dirs.claude
                    .clone()
                    .unwrap_or_else(|| dirs.home.join(".claude"))
                    .join("settings.json"),
                vec![add(&["permissions", "deny"], &CLAUDE_TOOLS)],
            ),
            Self::Codex => Some(FileEdits {
                file: dirs.codex.join("config.toml"),
                format: Format::Toml,
                edits: vec![set(&["features", "shell_tool"], json!(false))],
            }),
            Self::Gemini => json(
                dirs.home.join(".gemini/settings.json"),
                vec![add(&["tools", "exclude"], &GEMINI_TOOLS)],
            ),
            Self::Cursor => json(
                dirs.home.join(".cursor/cli-config.json"),
                vec![add(&["permissions", "deny"], &CURSOR_TOOLS)],
            ),
            Self::Opencode => {
                let deny =
                    OPENCODE_TOOLS.iter().map(|tool| set(&["permission", tool], json!("deny")));
                json(dirs.config.join("opencode/opencode.json"), deny.collect())
            }
            Self::Zed => {
                let off: serde_json::Map<String, Value> =
                    ZED_TOOLS.iter().map(|tool| (tool.to_string(), json!(false))).collect();
                let profile =
                    json!({ "name": "Sandbox", "tools": off, "enable_all_context_servers": true });
                json(
                    dirs.config.join("zed/settings.json"),
                    vec![set(&["agent", "profiles", NAME], profile)],
                )
            }
            Self::Vscode | Self::ClaudeDesktop => None,
        }
    }

    /// What the person still has to do, or has to know.
    pub fn remark(self, blocks_tools: bool) -> Option<&'static str> {
        match (self, blocks_tools) {
            (Self::Codex, true) => Some(
                "apply_patch of Codex cannot be switched off, and what it changes is not recorded",
            ),
            (Self::Zed, true) => Some("choose the profile \"Sandbox\" in the agent panel"),
            (Self::Vscode, true) => Some(
                "VS Code's own tools stay on; make a custom agent with tools: ['sandbox/*'] to work without them",
            ),
            (Self::Vscode, false) => Some("entered for the folder you are in"),
            (Self::ClaudeDesktop, _) => Some("start Claude Desktop again"),
            _ => None,
        }
    }
}

/// Whether an entry in any client's file starts this program as a server, wherever it is installed.
pub(super) fn is_our_server(entry: &Value) -> bool {
    let words = |value: &Value| match value {
        Value::String(word) => vec![word.clone()],
        Value::Array(words) => {
            words.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<String>>()
        }
        _ => vec![],
    };
    let line = [words(&entry["command"]), words(&entry["args"])].concat();
    let is_ours = |program: &String| {
        let program = Path::new(program);
        program.file_name() == Some(OsStr::new("sandbox"))
            || std::env::current_exe().is_ok_and(|own| own == program)
    };
    line.first().is_some_and(is_ours) && line.windows(2).any(|pair| pair == ["--protocol", "mcp"])
}

fn set(at: &[&str], value: Value) -> Edit {
    Edit::Set { at: at.iter().map(ToString::to_string).collect(), value }
}

/// Beside its directory, unless somebody has moved that.
fn claude_code(dirs: &Dirs) -> PathBuf {
    dirs.claude.as_ref().unwrap_or(&dirs.home).join(".claude.json")
}

fn claude_desktop(dirs: &Dirs) -> PathBuf {
    let below = if cfg!(target_os = "macos") {
        dirs.home.join("Library/Application Support/Claude")
    } else {
        dirs.config.join("Claude")
    };
    below.join(Path::new("claude_desktop_config.json"))
}
