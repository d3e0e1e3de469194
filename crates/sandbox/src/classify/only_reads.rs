//! Whether a command is known to only read. Unlike [`Classifier`](super::Classifier), which says what
//! a line probably does, this answers yes only if there is no doubt: commands that it says yes to are
//! run where nothing can be changed. A wrong no costs some speed, a wrong yes a command that fails.

use std::collections::HashSet;

use super::Lists;
use super::certain::{UNKNOWN, commands};

/// Programs that have no option that writes to a file or runs another program.
const READERS: &[&str] = &[
    "basename",
    "cat",
    "cd",
    "cmp",
    "cut",
    "dirname",
    "du",
    "echo",
    "egrep",
    "false",
    "fgrep",
    "grep",
    "head",
    "ls",
    "md5sum",
    "nl",
    "od",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "seq",
    "sha256sum",
    "stat",
    "strings",
    "tail",
    "tr",
    "true",
    "wc",
    "which",
];

/// Programs that have some, and those.
const CAREFUL_READERS: &[(&str, Options)] = &[
    ("diff", Options { letters: "l", names: &["--paginate"] }),
    ("file", Options { letters: "CzZ", names: &["--compile", "--uncompress"] }),
    ("rg", Options { letters: "z", names: &["--pre", "--hostname-bin", "--search-zip"] }),
    (
        "sort",
        Options {
            letters: "oT",
            names: &["--output", "--temporary-directory", "--compress-program"],
        },
    ),
    ("tree", Options { letters: "oR", names: &["--output"] }),
];

/// Actions of `find` begin so; and whether something is writable depends on where one looks.
const FIND_ACTIONS: &[&str] = &["-delete", "-exec", "-fls", "-fprint", "-ok", "-writable"];

const GIT_READERS: &[&str] = &[
    "blame",
    "cat-file",
    "describe",
    "diff",
    "for-each-ref",
    "grep",
    "log",
    "ls-files",
    "ls-tree",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "show-ref",
    "status",
];
/// `--remerge-diff` and its like write objects.
const GIT_OPTIONS: Options = Options {
    letters: "O",
    names: &[
        "--diff-merges",
        "--ext-diff",
        "--filters",
        "--help",
        "--open-files-in-pager",
        "--output",
        "--remerge-diff",
        "--show-signature",
        "--textconv",
    ],
};

/// Variables that have nothing to say about what a program does to files.
const HARMLESS_VARIABLES: &[&str] =
    &["CLICOLOR", "COLUMNS", "FORCE_COLOR", "LANG", "LANGUAGE", "LINES", "NO_COLOR", "TERM", "TZ"];

/// Knows which commands only read.
#[derive(Debug, Clone, Default)]
pub struct ReadingJudge {
    /// The person says that they do not.
    programs: HashSet<String>,
    git: HashSet<String>,
}

impl ReadingJudge {
    pub fn new(lists: &Lists) -> Self {
        let programs = lists.write.iter().chain(&lists.destructive).cloned().collect();
        Self { programs, git: lists.git_destructive.iter().cloned().collect() }
    }

    /// A line for the shell.
    pub fn line_only_reads(&self, line: &str) -> bool {
        commands(line)
            .is_some_and(|commands| commands.iter().all(|words| self.program_only_reads(words)))
    }

    /// A program and its arguments, without a shell.
    pub fn words_only_read(&self, words: &[&str]) -> bool {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        self.program_only_reads(&words)
    }

    fn program_only_reads(&self, words: &[String]) -> bool {
        let Some((program, arguments)) = words.split_first() else { return false };
        let usual_places = ["/usr/bin/", "/bin/"];
        let name = usual_places.iter().find_map(|place| program.strip_prefix(place));
        let name = name.unwrap_or(program);
        if self.programs.contains(name) {
            return false;
        }
        match name {
            "find" => find_only_reads(arguments),
            "git" => self.git_only_reads(arguments),
            // Where nothing can be changed, nothing is writable.
            "test" | "[" => !arguments.iter().any(|word| word == "-w"),
            "uniq" => uniq_only_reads(arguments),
            _ if READERS.contains(&name) => true,
            _ => CAREFUL_READERS
                .iter()
                .find(|(program, _)| *program == name)
                .is_some_and(|(_, forbidden)| forbidden.are_absent(arguments)),
        }
    }

    fn git_only_reads(&self, words: &[String]) -> bool {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-C" => match words.next() {
                    Some(dir) if !dir.contains(UNKNOWN) => {}
                    _ => return false,
                },
                "--no-pager" | "--no-optional-locks" | "--literal-pathspecs" => {}
                command => {
                    let arguments = words.as_slice();
                    // A format that has signatures checked, by another program.
                    let checks = |word: &String| word.contains("%G");
                    return GIT_READERS.contains(&command)
                        && !self.git.contains(command)
                        && !arguments.iter().any(checks)
                        && GIT_OPTIONS.are_absent(arguments);
                }
            }
        }
        false
    }
}

/// Whether a variable that is given to a command leaves open whether that only reads.
pub fn is_harmless_variable(name: &str) -> bool {
    HARMLESS_VARIABLES.contains(&name) || name.starts_with("LC_")
}

/// Options, by their letters and their names.
struct Options {
    letters: &'static str,
    names: &'static [&'static str],
}

impl Options {
    /// Looks behind `--` as well, which may be the value of an option; and takes values for options
    /// if they look like some.
    fn are_absent(&self, words: &[String]) -> bool {
        !words.iter().any(|word| self.may_be_in(word))
    }

    fn may_be_in(&self, word: &str) -> bool {
        if word.starts_with("--") {
            let name = word.split('=').next().unwrap_or(word);
            // Names can be shortened, and "--" is the shortest of all, but has a meaning of its own.
            let is_meant = |forbidden: &&str| forbidden.starts_with(name) && name != "--";
            return name.contains(UNKNOWN) || self.names.iter().any(is_meant);
        }
        match word.strip_prefix('-') {
            Some(letters) => letters.contains(|c| c == UNKNOWN || self.letters.contains(c)),
            None => word.starts_with(UNKNOWN),
        }
    }
}

fn find_only_reads(words: &[String]) -> bool {
    let may_act = |word: &String| {
        let acts = FIND_ACTIONS.iter().any(|action| word.starts_with(action));
        acts || word.starts_with(UNKNOWN) || (word.starts_with('-') && word.contains(UNKNOWN))
    };
    !words.iter().any(may_act)
}

/// Its second operand is where it writes to.
fn uniq_only_reads(words: &[String]) -> bool {
    let is_operand = |word: &&String| !word.starts_with('-') || *word == "-";
    let is_unknown = |word: &String| word.contains(UNKNOWN);
    words.iter().filter(is_operand).count() <= 1 && !words.iter().any(is_unknown)
}

#[cfg(test)]
mod tests;
