//! What a machine offers to sandboxes: what is there, what is lost without it, and the command
//! that brings it. Looking changes nothing and leaves nothing behind.

mod judgement;
mod readings;
mod room;
#[cfg(test)]
mod tests;
pub(crate) mod trials;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use readings::Readings;

/// Tells the program that it is to try things.
pub(crate) const ARGUMENT: &str = "--codeagent-namespace-facts";

/// Where to look.
#[derive(Debug, Clone)]
pub struct FactsRequest {
    /// What would be worked in.
    pub folder: PathBuf,
    /// Where its history is, or would be.
    pub undo_dir: PathBuf,
    /// A program whose `main` begins with [`run_if_asked`](crate::run_if_asked).
    pub program: PathBuf,
}

impl FactsRequest {
    /// For this program.
    pub fn new(folder: impl Into<PathBuf>, undo_dir: impl Into<PathBuf>) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        Ok(Self { folder: folder.into(), undo_dir: undo_dir.into(), program })
    }
}

/// One thing a machine has or lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    pub id: FactId,
    pub presence: Presence,
    /// What was found, in one line.
    pub seen: String,
    /// What does not work without it, in one sentence.
    pub lost: String,
    /// One line for a shell; of those that differ, that of Debian and Ubuntu. Only where
    /// something is missing and a command can change that.
    pub fix: Option<String>,
}

/// Stable: programs may depend on these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactId {
    UserNamespaces,
    /// In a user namespace one may do what makes a sandbox; AppArmor can take that away.
    NamespaceCapabilities,
    MountApi,
    OwnProc,
    Overlay,
    Fuse,
    Fusermount,
    Landlock,
    Seccomp,
    Cgroups,
    /// Files that can be changed by a group of the user's are so inside as well.
    Groups,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    Present,
    /// A part of it is lost.
    Partial,
    Missing,
    /// Something else that is missing keeps us from trying.
    Untried,
}

/// Looks at everything, in a fraction of a second.
pub fn facts(request: &FactsRequest) -> io::Result<Vec<Fact>> {
    Ok(judgement::judge(&Readings::take(request)?))
}
