//! The load run of the MCP Inspector, in all of its eras.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value as Json, json};

use super::server::FILE;
use super::{ENOUGH_CALLS, scratch};
use crate::namespace::sandbox;
use crate::place::{NotMeasured, Place, Scratch};
use crate::table::{Row, Value};

/// `cargo xtask bench mcp` installs it and says where it is.
const VARIABLE: &str = "CODEAGENT_TEST_MCP_INSPECTOR";

const CALLS: &str = "5000";

const ERAS: [(&str, &str); 3] = [
    ("legacy", "calls of the Inspector, legacy"),
    ("auto", "calls of the Inspector, auto"),
    ("modern", "calls of the Inspector, modern"),
];

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let Some(bin) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        bail!(NotMeasured(format!("{VARIABLE} is not set; `cargo xtask bench mcp` sets it")));
    };
    let scratch = scratch(place)?;
    let config = scratch.path("inspector.json");
    std::fs::write(&config, server(&scratch)?.to_string())?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", bin.display()); // its own Node first
    let arguments = json!({"file_path": FILE}).to_string();
    let load = |era: &str| {
        let mut command = Command::new(bin.join("mcp-inspector"));
        command.env("PATH", &path).env("HOME", scratch.path("home"));
        command.env("MCP_INSPECTOR_SECRET_STORE", "memory").arg("--cli").arg("--config");
        command.arg(&config).args(["--server", "sandbox", "--protocol-era", era, "--quiet"]);
        command.args(["--format", "json", "--method", "tools/call", "--tool-name", "read_file"]);
        command.args(["--tool-args-json", &arguments, "--load", "--load-requests", CALLS]);
        throughput(&mut command)
    };
    ERAS.iter()
        .map(|&(era, name)| {
            let mut rates = (0..repetitions).map(|_| load(era)).collect::<Result<Vec<f64>>>()?;
            rates.sort_by(f64::total_cmp);
            let median = rates.get(rates.len() / 2).copied().unwrap_or_default();
            Ok(Row::new(name, Value::PerSecond(median), ENOUGH_CALLS))
        })
        .collect()
}

fn server(scratch: &Scratch) -> Result<Json> {
    let command = sandbox(["--protocol", "mcp", "--working-dir"])?;
    let mut arguments: Vec<String> =
        command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
    arguments.push(scratch.work().display().to_string());
    let server = json!({
        "command": command.get_program().to_string_lossy(),
        "args": arguments,
        "env": {"HOME": scratch.path("home")},
    });
    Ok(json!({"mcpServers": {"sandbox": server}}))
}

/// Calls a second, if none of them failed.
fn throughput(command: &mut Command) -> Result<f64> {
    let output = command.output().context("cannot start the Inspector")?;
    let said = || {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("the Inspector said {}{errors}", String::from_utf8_lossy(&output.stdout))
    };
    let report: Json = serde_json::from_slice(&output.stdout).with_context(said)?;
    let result = &report["result"];
    ensure!(result["ok"] == result["requests"] && result["ok"] != 0, "{}", said());
    result["throughput"].as_f64().with_context(said)
}
