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
    (
        "file",
        Options {
            letters: "CpzZ",
            names: &["--compile", "--preserve-date", "--uncompress", "--uncompress-noreport"],
        },
    ),
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

/// Variables that have nothing to say about what a program does to files, nor about the language in
/// which it says that it could not.
const HARMLESS_VARIABLES: &[&str] =
    &["CLICOLOR", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TERM", "TZ"];

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
            "printf" => printf_only_reads(arguments),
            "test" | "[" => test_only_reads(arguments),
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
                    let checks =
                        |word: &String| word.contains("%G") || word.contains("%(signature");
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
    HARMLESS_VARIABLES.contains(&name)
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

/// With an option, it sets a variable, and runs what stands in the name of one.
fn printf_only_reads(words: &[String]) -> bool {
    words.first().is_some_and(|format| !format.starts_with(['-', UNKNOWN]))
}

/// Where nothing can be changed, nothing is writable; and whoever asks for a variable has run what
/// stands in its name.
fn test_only_reads(words: &[String]) -> bool {
    !words.iter().any(|word| word == "-w" || word == "-v" || word.starts_with(UNKNOWN))
}

/// Its second operand is where it writes to, and everything behind `--` is one.
fn uniq_only_reads(words: &[String]) -> bool {
    let is_operand = |word: &&String| !word.starts_with('-') || *word == "-";
    let is_unclear = |word: &String| word.contains(UNKNOWN) || word == "--";
    words.iter().filter(is_operand).count() <= 1 && !words.iter().any(is_unclear)
}

#[cfg(test)]
mod tests;
