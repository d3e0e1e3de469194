//! Clients that no one here wrote: the Python package `mcp`, and the MCP Inspector in every era.
//!
//! `cargo xtask test` installs them and says where they are.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

use codeagent_test_support::filesystems::skip;
use serde_json::{Value, json};

/// Cargo builds examples before it runs tests, beside them.
fn server() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().parent().unwrap().join("examples/plain_directory");
    assert!(built.is_file(), "build it first: cargo build -p codeagent-mcp --examples");
    built
}

/// What a variable names, or a loud skip.
fn client(test: &str, variable: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).filter(|value| !value.is_empty());
    if named.is_none() {
        skip(test, &format!("{variable} is not set; `cargo xtask test` sets it"));
    }
    named.map(PathBuf::from)
}

fn project() -> tempfile::TempDir {
    let project = tempfile::tempdir().unwrap();
    std::fs::write(project.path().join("main.py"), "print('hello')\n").unwrap();
    project
}

fn run(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{text}\n{errors}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{errors}"))
}

#[test]
fn the_python_client_lists_calls_undoes_and_asks() {
    let test = "the_python_client_lists_calls_undoes_and_asks";
    let Some(python) = client(test, "CODEAGENT_TEST_MCP_PYTHON") else { return };
    let project = project();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client.py");

    let report = run(Command::new(python).arg(script).arg(server()).arg(project.path()));

    assert_eq!(report["tools"].as_array().unwrap().len(), 16);
    assert_eq!(report["ran"], "hello\n[step 1: 1 added; undo takes it back]");
    assert_eq!(report["undone"], "Undid step 1.\n  D a.txt\n");
    assert_eq!(report["isolation"], "host");
    assert_eq!(report["outside_failed"], true);
    assert!(report["discarded"].as_str().unwrap().starts_with("The undo history is gone"));
    assert!(!project.path().join("a.txt").exists());
}

/// `--cli` of the Inspector, with its own Node first.
fn inspector(bin: &Path, project: &Path, era: &str, arguments: &[&str]) -> Value {
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    run(Command::new(bin.join("mcp-inspector"))
        .env("PATH", path)
        .arg("--cli")
        .arg(server())
        .arg(project)
        .args(["--protocol-era", era, "--format", "json"])
        .args(arguments))
}

#[test]
fn the_inspector_lists_and_calls_in_every_era() {
    let test = "the_inspector_lists_and_calls_in_every_era";
    let Some(bin) = client(test, "CODEAGENT_TEST_MCP_INSPECTOR") else { return };
    for era in ["legacy", "auto", "modern"] {
        let project = project();
        let list = inspector(&bin, project.path(), era, &["--method", "tools/list", "--strict"]);
        let arguments = json!({ "file_path": "main.py" }).to_string();
        let call =
            ["--method", "tools/call", "--tool-name", "read_file", "--tool-args-json", &arguments];
        let read = inspector(&bin, project.path(), era, &call);

        assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 16, "{era}");
        assert!(read.to_string().contains("print('hello')"), "{era}: {read}");
    }
}
