//! Which paths are protected: what programs outside the sandbox run without being asked.
//!
//! [`PathRules`] are plain data, made at the edge and sent to the worker with its settings; there
//! they become a [`Guard`], which the engine asks before every change. What the rules mean, in the
//! order in which they are asked:
//!
//! | list | what happens |
//! |---|---|
//! | `allow` | nothing of what follows |
//! | `deny` | nothing may appear there or change there |
//! | `keep` | as `deny`, and it may not be removed either |
//! | `inspect` | git's configuration: its content is looked at before it takes the name |
//! | `flag` | allowed, and reported with the step |

mod git_config;
mod pattern;

use std::sync::Arc;

use codeagent_common::{PathUse, PathVerdict, RelPath};
use codeagent_interceptor::PathPolicy;
use serde::{Deserialize, Serialize};

use pattern::FirstNames;
pub use pattern::{BadPattern, Pattern};

/// What host tools run unasked.
const DENY: &[&str] = &[
    ".git/hooks/*",
    ".git/modules/**/hooks/*",
    ".git/commondir",
    ".git/modules/**/commondir",
    ".envrc",
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".vscode/launch.json",
    ".idea/runConfigurations/",
    ".idea/workspace.xml",
    ".mcp.json",
    ".vscode/mcp.json",
    ".cursor/",
    ".claude/settings*.json",
    ".claude/commands/",
    ".claude/agents/",
    ".claude/skills/",
    ".claude/hooks/",
    ".codex/",
    ".gemini/",
    ".husky/",
    ".devcontainer/",
    ".devcontainer.json",
];

/// Without it, the next session would be less strict.
const KEEP: &[&str] = &["/codeagent.toml"];

const INSPECT: &[&str] = &[
    ".git",
    ".git/config",
    ".git/config.worktree",
    ".git/modules/**/config",
    ".git/modules/**/config.worktree",
    ".git/worktrees/*/config.worktree",
    ".git/worktrees/*/commondir",
    ".gitmodules",
];

/// What people run themselves, or machines of theirs: worth a look.
const FLAG: &[&str] = &[
    "package.json",
    "Makefile",
    "GNUmakefile",
    "justfile",
    "build.rs",
    "conftest.py",
    "setup.py",
    ".github/workflows/",
    ".gitlab-ci.yml",
    "CLAUDE.md",
    "AGENTS.md",
    "GEMINI.md",
];

/// Samples are not run; what is installed by the thousand is not looked at.
const ALLOW: &[&str] = &[".git/hooks/*.sample", ".git/modules/**/hooks/*.sample"];
const NOT_FLAGGED_BELOW: &[&str] = &["node_modules", ".git", "site-packages"];

/// The rules, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRules {
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub keep: Vec<String>,
    pub inspect: Vec<String>,
    pub flag: Vec<String>,
    /// A command that wants what is denied has nothing of what it did kept, where that is known
    /// before any of it has happened.
    pub refuse_step: bool,
}

impl Default for PathRules {
    fn default() -> Self {
        let list = |rules: &[&str]| rules.iter().map(ToString::to_string).collect();
        Self {
            allow: list(ALLOW),
            deny: list(DENY),
            keep: list(KEEP),
            inspect: list(INSPECT),
            flag: list(FLAG),
            refuse_step: false,
        }
    }
}

impl PathRules {
    /// For the way to the worker.
    pub fn to_bytes(&self) -> Result<Vec<u8>, rmp_serde::encode::Error> {
        rmp_serde::to_vec_named(self)
    }
}

/// What came the way to the worker; without rules nothing is protected.
pub fn read(bytes: &[u8]) -> Result<Arc<dyn PathPolicy>, String> {
    let rules: PathRules = rmp_serde::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(Arc::new(Guard::new(&rules).map_err(|error| error.to_string())?))
}

/// Rules, ready to be asked.
#[derive(Debug)]
pub struct Guard {
    allow: Vec<Pattern>,
    deny: Vec<Pattern>,
    keep: Vec<Pattern>,
    inspect: Vec<Pattern>,
    flag: Vec<Pattern>,
    refuse_step: bool,
    /// Of all but `allow`.
    first_names: FirstNames,
}

impl Guard {
    pub fn new(rules: &PathRules) -> Result<Self, BadPattern> {
        let read = |rules: &[String]| -> Result<Vec<Pattern>, BadPattern> {
            rules.iter().map(|rule| Pattern::new(rule)).collect()
        };
        let (deny, keep) = (read(&rules.deny)?, read(&rules.keep)?);
        let (inspect, flag) = (read(&rules.inspect)?, read(&rules.flag)?);
        let first_names = FirstNames::of([&deny, &keep, &inspect, &flag].into_iter().flatten());
        let (allow, refuse_step) = (read(&rules.allow)?, rules.refuse_step);
        Ok(Self { allow, deny, keep, inspect, flag, refuse_step, first_names })
    }

    fn allows(&self, names: &[&[u8]]) -> bool {
        matching(&self.allow, names).is_some()
    }
}

fn matching<'p>(patterns: &'p [Pattern], names: &[&[u8]]) -> Option<&'p Pattern> {
    patterns.iter().find(|pattern| pattern.matches(names))
}

fn denied(rule: &Pattern) -> PathVerdict {
    PathVerdict::Deny(format!("programs outside the sandbox obey {rule}"))
}

impl PathPolicy for Guard {
    fn judge(&self, path: RelPath<'_>, usage: PathUse) -> PathVerdict {
        let names: Vec<&[u8]> = path.components().collect();
        let verdict = if let Some(rule) = matching(&self.keep, &names) {
            denied(rule)
        } else if usage == PathUse::Disappear {
            PathVerdict::Allow
        } else if let Some(rule) = matching(&self.deny, &names) {
            denied(rule)
        } else if usage == PathUse::Write && self.inspects(path) {
            PathVerdict::Deny(
                "git obeys it; it can be replaced as a whole, as git does, and not in place".into(),
            )
        } else if matching(&self.flag, &names).is_some()
            && !names.iter().any(|name| NOT_FLAGGED_BELOW.iter().any(|dir| dir.as_bytes() == *name))
        {
            PathVerdict::Flag
        } else {
            PathVerdict::Allow
        };
        match verdict {
            PathVerdict::Deny(_) if self.allows(&names) => PathVerdict::Allow,
            verdict => verdict,
        }
    }

    fn guards_below(&self, path: RelPath<'_>, usage: PathUse) -> bool {
        match usage {
            // What may not be removed is in the root.
            PathUse::Disappear => path.is_root(),
            _ => true,
        }
    }

    fn minds(&self, name: &[u8]) -> bool {
        self.first_names.has(name)
    }

    fn refuses_step(&self) -> bool {
        self.refuse_step
    }

    fn leads_to_guarded(&self, path: RelPath<'_>) -> bool {
        let names: Vec<&[u8]> = path.components().collect();
        let rules = [&self.deny, &self.keep, &self.inspect];
        rules.into_iter().flatten().any(|pattern| pattern.leads_on_from(&names))
            && !self.allows(&names)
    }

    fn inspects(&self, path: RelPath<'_>) -> bool {
        let names: Vec<&[u8]> = path.components().collect();
        matching(&self.inspect, &names).is_some() && !self.allows(&names)
    }

    fn inspect(&self, path: RelPath<'_>, former: Option<&[u8]>, content: &[u8]) -> PathVerdict {
        let judged = match path.name() {
            Some(name) if name.eq_ignore_ascii_case(b".git") => git_config::judge_gitdir(content),
            Some(name) if name.eq_ignore_ascii_case(b"commondir") => {
                git_config::judge_commondir(content)
            }
            _ => git_config::judge(former, content),
        };
        match judged {
            Ok(()) => PathVerdict::Allow,
            Err(rule) => PathVerdict::Deny(rule),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
