use std::path::Path;

use clap::Args;
use codeagent_interceptor::verify;
use codeagent_namespace::{FactsRequest, Presence, facts};
use serde::Serialize;
use serde_json::json;

use super::log::Log;
use super::output::Outcome;
use super::text::{self, printable};
use crate::error::{Result, SandboxError};
use crate::executor::{forget_verdicts, guest_facts};
use crate::{config, places};

/// Say what this machine offers, what is lost without it, and the command that brings it
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    log: Log,
    /// Forget which accelerators were found to work or not: the next guest tries them again
    #[arg(long)]
    try_again: bool,
}

#[derive(Debug, Serialize)]
struct Finding {
    name: String,
    state: &'static str,
    seen: String,
    /// What does not work without it.
    lost: Option<String>,
    /// A command.
    fix: Option<String>,
}

impl Finding {
    fn new(name: &str, state: &'static str, seen: impl Into<String>) -> Self {
        Self { name: name.into(), state, seen: seen.into(), lost: None, fix: None }
    }

    fn without(self, lost: &str, fix: &str) -> Self {
        Self { lost: Some(lost.into()), fix: (!fix.is_empty()).then(|| fix.into()), ..self }
    }
}

const OK: &str = "ok";
const PARTLY: &str = "partly";
const MISSING: &str = "missing";
const UNTRIED: &str = "untried";

impl Doctor {
    pub(crate) fn execute(self) -> Result<Outcome> {
        if self.try_again {
            let what = "cannot forget which accelerators work";
            forget_verdicts().map_err(SandboxError::doing(what))?;
        }
        let folder = places::canonical(self.log.working_dir.as_deref().unwrap_or(Path::new(".")))?;
        let undo_dir = match &self.log.undo_dir {
            Some(dir) => Ok(dir.clone()),
            None => places::undo_dir_of(&folder),
        };
        let mut findings = vec![kernel()];
        findings.extend(machine(&folder, undo_dir.as_deref().unwrap_or(&folder))?);
        findings.extend(guests());
        findings.push(configuration());
        findings.push(match undo_dir {
            Ok(dir) => store(&dir),
            Err(error) => Finding::new("undo_directory", MISSING, error.to_string()).without(
                "Nothing can be undone in this folder.",
                &error.hint().unwrap_or_default(),
            ),
        });
        let text = findings.iter().map(describe).collect::<Vec<_>>().join("\n");
        Ok(Outcome::new(json!({ "folder": folder, "findings": findings }), text))
    }
}

fn describe(finding: &Finding) -> String {
    let Finding { name, state, seen, lost, fix } = finding;
    let mut text = format!("{state:<8} {name:<22} {}", printable(seen));
    if *state != OK {
        if let Some(lost) = lost {
            text.push_str(&format!("\n         {}", printable(lost)));
        }
        if let Some(fix) = fix {
            text.push_str(&format!("\n         fix: {}", printable(fix)));
        }
    }
    text
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    Finding::new("kernel", OK, format!("Linux {}", name.release().to_string_lossy()))
}

fn machine(folder: &Path, undo_dir: &Path) -> Result<Vec<Finding>> {
    let request = FactsRequest::new(folder, undo_dir)?;
    let found = facts(&request).map_err(SandboxError::doing("cannot look at this machine"))?;
    Ok(found
        .into_iter()
        .map(|fact| {
            let name = serde_json::to_value(fact.id).unwrap_or_default();
            let state = match fact.presence {
                Presence::Present => OK,
                Presence::Partial => PARTLY,
                Presence::Missing => MISSING,
                Presence::Untried => UNTRIED,
            };
            let finding = Finding::new(name.as_str().unwrap_or("?"), state, fact.seen);
            Finding { lost: Some(fact.lost), fix: fact.fix, ..finding }
        })
        .collect())
}

/// What guests need. None is of use without the others.
fn guests() -> Vec<Finding> {
    let mut options = crate::session::SessionOptions::new(vec![]);
    if let Ok(config) = config::of_user(None) {
        config.apply(&mut options);
    }
    let finding = |fact: codeagent_vm::Fact| {
        use codeagent_vm::Presence;
        let name = serde_json::to_value(fact.id).unwrap_or_default();
        let state = match fact.presence {
            Presence::Present => OK,
            Presence::Partial => PARTLY,
            Presence::Missing => MISSING,
            Presence::Untried => UNTRIED,
        };
        let finding = Finding::new(name.as_str().unwrap_or("?"), state, fact.seen);
        Finding { lost: Some(sentence(&fact.lost)), fix: fact.fix, ..finding }
    };
    guest_facts(&options.vm).into_iter().map(finding).collect()
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn configuration() -> Finding {
    let file = places::user_config();
    let shown = file.as_ref().map_or("?".into(), |file| file.display().to_string());
    match config::of_user(None) {
        Ok(_) if file.is_some_and(|file| file.exists()) => Finding::new("configuration", OK, shown),
        Ok(_) => Finding::new(
            "configuration",
            OK,
            format!("none, so everything is as it comes ({shown})"),
        ),
        Err(error) => Finding::new("configuration", MISSING, error.to_string()).without(
            "No command is run with a configuration that cannot be read.",
            &format!("$EDITOR {shown}"),
        ),
    }
}

fn store(undo_dir: &Path) -> Finding {
    let name = "undo_directory";
    let shown = undo_dir.display();
    if !undo_dir.exists() {
        return Finding::new(name, OK, format!("{shown}, made when something is recorded"));
    }
    let size = text::bytes(size_of(undo_dir));
    match verify(undo_dir) {
        Ok(report) if report.is_sound() => {
            Finding::new(name, OK, format!("{shown}: {} steps, {size}, sound", report.steps))
        }
        Ok(report) => Finding::new(
            name,
            PARTLY,
            format!("{shown}: {size}, {} damaged places", report.findings.len()),
        )
        .without(
            "Steps that are damaged cannot be undone.",
            &format!("sandbox undo-log verify --undo-dir {shown}"),
        ),
        Err(error) => Finding::new(name, MISSING, format!("{shown}: {error}"))
            .without("Nothing can be undone in this folder.", &format!("ls -la {shown}")),
    }
}

/// What it takes on the disk; directories that cannot be read count for nothing.
fn size_of(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut pending = vec![dir.to_owned()];
    let mut total = 0;
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => pending.push(entry.path()),
                Ok(found) => total += found.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    total
}
