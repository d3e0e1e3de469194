//! A server, and the plainest client there is.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::namespace::sandbox;

pub(super) const FILE: &str = "file.txt";

#[derive(Debug)]
pub(super) struct Server {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Server {
    pub(super) fn start(folder: &Path, home: &Path) -> Result<Self> {
        let mut process = sandbox(["--protocol", "mcp", "--working-dir"])?
            .arg(folder)
            .env("HOME", home)
            .env_remove("CODEAGENT_HOME")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the server")?;
        let input = process.stdin.take().context("no input")?;
        let output = BufReader::new(process.stdout.take().context("no output")?);
        let mut server = Self { process, input, output };
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "bench", "version": "0"}});
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello});
        server.write(&format!("{hello}\n"))?;
        server.read()?;
        server.write("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
        Ok(server)
    }

    /// Asks for the file.
    pub(super) fn ask(&mut self, id: u32) -> Result<()> {
        let call = json!({"name": "read_file", "arguments": {"file_path": FILE}});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call});
        self.write(&format!("{call}\n"))
    }

    /// Waits for an answer, which has to have the file in it.
    pub(super) fn answer(&mut self) -> Result<()> {
        let answer = self.read()?;
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        ensure!(text.contains("line 99 of a file"), "it answered {answer}");
        Ok(())
    }

    fn write(&mut self, text: &str) -> Result<()> {
        Ok(self.input.write_all(text.as_bytes())?)
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))
    }

    pub(super) fn end(self) -> Result<()> {
        let Self { mut process, input, .. } = self;
        drop(input);
        ensure!(process.wait()?.success(), "the server failed");
        Ok(())
    }
}
