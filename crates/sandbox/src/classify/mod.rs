//! What a command line probably does: for annotations, histories and events. It protects nothing.
//! Whether it certainly only reads ([`ReadingJudge`]): for the choice of a view.

mod certain;
mod only_reads;
mod sanitise;
mod split;

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

pub use only_reads::{ReadingJudge, is_harmless_variable};
pub use sanitise::refuse;
use split::{Simple, split};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    ReadOnly,
    /// Changes something, or nobody knows.
    Write,
    /// Removes or overwrites what was there.
    Destructive,
}

/// Programs, and subcommands of those that have some; each list adds to the usual one, and a later
/// list takes a name away from those before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lists {
    pub read_only: Vec<String>,
    pub write: Vec<String>,
    pub destructive: Vec<String>,
    pub git_read_only: Vec<String>,
    pub git_destructive: Vec<String>,
    pub cargo_read_only: Vec<String>,
    pub cargo_destructive: Vec<String>,
    pub npm_read_only: Vec<String>,
    pub npm_destructive: Vec<String>,
}

impl Lists {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

const READ_ONLY: &[&str] = &[
    "awk",
    "basename",
    "cat",
    "cd",
    "cmp",
    "column",
    "cut",
    "date",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "env",
    "exit",
    "expr",
    "false",
    "fd",
    "fgrep",
    "file",
    "find",
    "grep",
    "head",
    "hexdump",
    "hostname",
    "id",
    "jq",
    "less",
    "ls",
    "lsof",
    "md5sum",
    "more",
    "nl",
    "nproc",
    "od",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "read",
    "readlink",
    "realpath",
    "rg",
    "sed",
    "seq",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "strings",
    "tac",
    "tail",
    "test",
    "[",
    "tr",
    "tree",
    "true",
    "type",
    "uname",
    "uniq",
    "wait",
    "wc",
    "which",
    "who",
    "whoami",
    "xxd",
    "yes",
];
const DESTRUCTIVE: &[&str] =
    &["dd", "mkfs", "rm", "rmdir", "shred", "srm", "truncate", "unlink", "wipefs"];
const GIT_READ_ONLY: &[&str] = &[
    "blame",
    "cat-file",
    "describe",
    "diff",
    "for-each-ref",
    "grep",
    "help",
    "log",
    "ls-files",
    "ls-remote",
    "ls-tree",
    "reflog",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "show-ref",
    "status",
    "version",
    "whatchanged",
];
const GIT_DESTRUCTIVE: &[&str] = &["clean", "filter-branch", "gc", "prune", "reset", "rm"];
const CARGO_READ_ONLY: &[&str] =
    &["help", "locate-project", "metadata", "pkgid", "read-manifest", "search", "tree", "version"];
const CARGO_DESTRUCTIVE: &[&str] = &["clean", "uninstall"];
const NPM_READ_ONLY: &[&str] = &[
    "audit", "explain", "fund", "help", "list", "ls", "outdated", "ping", "prefix", "root",
    "search", "view", "whoami",
];
const NPM_DESTRUCTIVE: &[&str] = &["ci", "prune", "rm", "un", "uninstall"];

/// Programs that run what follows them.
const WRAPPERS: &[&str] =
    &["command", "env", "exec", "nice", "nohup", "setsid", "stdbuf", "time", "timeout", "xargs"];
const SHELLS: &[&str] = &["bash", "dash", "sh", "zsh"];

/// Knows what programs do.
#[derive(Debug, Clone)]
pub struct Classifier {
    programs: [HashSet<String>; 3],
    git: [HashSet<String>; 2],
    cargo: [HashSet<String>; 2],
    npm: [HashSet<String>; 2],
}

impl Default for Classifier {
    fn default() -> Self {
        Self::new(&Lists::default())
    }
}

impl Classifier {
    pub fn new(lists: &Lists) -> Self {
        let all = |usual: &[&str], more: &[String]| {
            usual.iter().map(ToString::to_string).chain(more.iter().cloned()).collect()
        };
        let mut programs: [HashSet<String>; 3] = [
            all(READ_ONLY, &lists.read_only),
            all(&[], &lists.write),
            all(DESTRUCTIVE, &lists.destructive),
        ];
        // What the person says counts more than what is usual.
        for (nth, more) in [&lists.read_only, &lists.write, &lists.destructive].iter().enumerate() {
            for name in more.iter() {
                for (other, programs) in programs.iter_mut().enumerate() {
                    if other != nth {
                        programs.remove(name);
                    }
                }
            }
        }
        Self {
            programs,
            git: [
                all(GIT_READ_ONLY, &lists.git_read_only),
                all(GIT_DESTRUCTIVE, &lists.git_destructive),
            ],
            cargo: [
                all(CARGO_READ_ONLY, &lists.cargo_read_only),
                all(CARGO_DESTRUCTIVE, &lists.cargo_destructive),
            ],
            npm: [
                all(NPM_READ_ONLY, &lists.npm_read_only),
                all(NPM_DESTRUCTIVE, &lists.npm_destructive),
            ],
        }
    }

    /// The worst that any command in the line does.
    pub fn classify(&self, line: &str) -> Class {
        split(line).iter().map(|simple| self.judge(simple)).max().unwrap_or(Class::ReadOnly)
    }

    fn judge(&self, simple: &Simple) -> Class {
        let program = self.judge_words(&simple.words);
        if simple.writes_to_a_file { program.max(Class::Write) } else { program }
    }

    fn judge_words(&self, words: &[String]) -> Class {
        let is_assignment = |word: &String| {
            word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')
            })
        };
        let start = words.iter().position(|word| !is_assignment(word)).unwrap_or(words.len());
        let Some((program, arguments)) = words[start..].split_first() else {
            return Class::ReadOnly;
        };
        let name = program.rsplit('/').next().unwrap_or(program);
        let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
        match name {
            _ if SHELLS.contains(&name) => {
                let script = arguments.iter().position(|word| word == "-c");
                match script.and_then(|at| arguments.get(at + 1)) {
                    Some(script) => self.classify(script),
                    None => Class::Write,
                }
            }
            _ if WRAPPERS.contains(&name) => {
                let skipped = |word: &&String| {
                    word.starts_with('-') || word.chars().all(|c| c.is_ascii_digit() || c == 's')
                };
                let inner = arguments.iter().skip_while(skipped).cloned().collect::<Vec<_>>();
                self.judge_words(&inner)
            }
            "find" if has("-delete") => Class::Destructive,
            "find" => match arguments.iter().position(|word| word == "-exec" || word == "-execdir")
            {
                Some(at) => self.judge_words(&arguments[at + 1..]),
                None => Class::ReadOnly,
            },
            "sed" | "perl" if arguments.iter().any(|word| word.starts_with("-i")) => Class::Write,
            "git" => self.subcommand(&self.git, arguments),
            "cargo" => self.subcommand(&self.cargo, arguments),
            "npm" | "pnpm" | "yarn" => self.subcommand(&self.npm, arguments),
            _ => {
                let [read_only, _, destructive] = &self.programs;
                if destructive.contains(name) {
                    Class::Destructive
                } else if read_only.contains(name) {
                    Class::ReadOnly
                } else {
                    Class::Write
                }
            }
        }
    }

    fn subcommand(
        &self,
        [read_only, destructive]: &[HashSet<String>; 2],
        words: &[String],
    ) -> Class {
        // Options that come before it may have a value of their own.
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-C" | "-c" | "--git-dir" | "--work-tree" | "--prefix" => drop(words.next()),
                "--version" | "--help" | "-h" | "-V" => return Class::ReadOnly,
                word if word.starts_with('-') || word.starts_with('+') => {}
                word if destructive.contains(word) => return Class::Destructive,
                word if read_only.contains(word) => return Class::ReadOnly,
                "checkout" | "restore" if words.any(|word| word == "--" || word == ".") => {
                    return Class::Destructive;
                }
                _ => {
                    let forced = words.any(|word| matches!(word.as_str(), "--force" | "-f" | "-D"));
                    return if forced { Class::Destructive } else { Class::Write };
                }
            }
        }
        Class::ReadOnly
    }
}

#[cfg(test)]
mod tests;
