//! Cutting a line for the shell into the commands in it, as far as that is certain. What `split`
//! guesses at is left alone here: whoever asks acts on the answer.

use std::iter::Peekable;
use std::str::Chars;

/// Stands for a part of a word that only the shell knows: the value of a variable, what a command
/// prints, names that fit a pattern. What may be several words, which begin with anything, begins
/// with it.
pub(super) const UNKNOWN: char = '\0';

/// So deep command substitutions may be nested.
const MAX_DEPTH: usize = 4;

/// The words of every command in the line, without quotes; those in `$(…)` included. `None`: it
/// writes to a file, leaves something running, or is not understood for certain.
pub(super) fn commands(line: &str) -> Option<Vec<Vec<String>>> {
    if line.contains(UNKNOWN) {
        return None;
    }
    let mut reader = Reader { rest: line.chars().peekable(), depth: 0, found: Vec::new() };
    reader.list()?;
    Some(reader.found)
}

struct Reader<'l> {
    rest: Peekable<Chars<'l>>,
    /// In so many substitutions we are.
    depth: usize,
    found: Vec<Vec<String>>,
}

impl Reader<'_> {
    /// Commands up to the end of the line, or of the substitution.
    fn list(&mut self) -> Option<()> {
        let mut command = Vec::new();
        // An operator has been read that cannot be the last thing.
        let mut is_owed = true;
        loop {
            match self.rest.peek().copied() {
                None | Some(')') => {
                    let ends_here = self.rest.next().is_some() == (self.depth > 0);
                    let is_whole = !command.is_empty() || !is_owed;
                    self.end(&mut command);
                    return (ends_here && is_whole).then_some(());
                }
                Some(' ' | '\t') => drop(self.rest.next()),
                Some('#') => while self.rest.next_if(|c| *c != '\n').is_some() {},
                Some('\n') => {
                    self.rest.next();
                    is_owed &= !self.end(&mut command);
                }
                Some(operator @ (';' | '|' | '&')) => {
                    self.rest.next();
                    let is_double = self.rest.next_if_eq(&operator).is_some();
                    let is_understood = match operator {
                        ';' => !is_double,
                        '|' => self.rest.peek() != Some(&'&'),
                        _ => is_double, // one is for the background
                    };
                    if !is_understood || !self.end(&mut command) {
                        return None;
                    }
                    is_owed = operator != ';';
                }
                Some('<') => self.input()?,
                Some('>') => self.output()?,
                Some(_) => {
                    let word = self.word()?;
                    let is_redirected = matches!(self.rest.peek(), Some('<' | '>'));
                    if is_redirected && word.is_number() {
                        // A longer number is a descriptor to some shells, and a word to others.
                        word.is_descriptor().then_some(())?;
                    } else if !word.is_nothing() {
                        command.push(word.text);
                    }
                }
            }
        }
    }

    /// Whether there was a command.
    fn end(&mut self, command: &mut Vec<String>) -> bool {
        let words = std::mem::take(command);
        let is_one = !words.is_empty();
        if is_one {
            self.found.push(words);
        }
        is_one
    }

    /// `< file`, and nothing else that begins so: `<>` makes a file.
    fn input(&mut self) -> Option<()> {
        self.rest.next();
        self.skip_blanks();
        (!self.word()?.is_nothing()).then_some(())
    }

    /// `> /dev/null` or `>&2`.
    fn output(&mut self) -> Option<()> {
        self.rest.next();
        let appends = self.rest.next_if_eq(&'>').is_some();
        if !appends && self.rest.next_if_eq(&'&').is_some() {
            let target = self.word()?;
            return (target.is_descriptor() || target.text == "-").then_some(());
        }
        self.skip_blanks();
        (self.word()?.text == "/dev/null").then_some(())
    }

    fn skip_blanks(&mut self) {
        while self.rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
    }

    fn word(&mut self) -> Option<Word> {
        let mut word = Word::default();
        while let Some(c) = self.rest.next_if(|c| !" \t\n;|&<>)".contains(*c)) {
            match c {
                // Functions, subshells, groups, lists in braces, old substitutions.
                '(' | '{' | '}' | '`' => return None,
                '\\' => match self.rest.next()? {
                    // A line that goes on: what follows may begin a word, or a comment.
                    '\n' => return None,
                    c => word.quoted(c),
                },
                '\'' => {
                    word.is_quoted = true;
                    loop {
                        match self.rest.next()? {
                            '\'' => break,
                            c => word.text.push(c),
                        }
                    }
                }
                '"' => self.in_double_quotes(&mut word)?,
                '$' => self.expansion(&mut word, false)?,
                '[' if word.is_nothing() && self.is_at_blank() => word.text.push(c),
                '*' | '?' | '[' => word.text.push(UNKNOWN),
                c => word.text.push(c),
            }
        }
        Some(word)
    }

    fn is_at_blank(&mut self) -> bool {
        self.rest.peek().is_none_or(char::is_ascii_whitespace)
    }

    fn in_double_quotes(&mut self, word: &mut Word) -> Option<()> {
        word.is_quoted = true;
        loop {
            match self.rest.next()? {
                '"' => return Some(()),
                '`' => return None,
                '\\' => match self.rest.next()? {
                    '\n' => {}
                    c @ ('$' | '`' | '"' | '\\') => word.text.push(c),
                    c => word.text.extend(['\\', c]),
                },
                '$' => self.expansion(word, true)?,
                c => word.text.push(c),
            }
        }
    }

    /// What follows a `$`.
    fn expansion(&mut self, word: &mut Word, in_quotes: bool) -> Option<()> {
        let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        match self.rest.peek().copied() {
            Some('(') => {
                self.rest.next();
                if self.depth == MAX_DEPTH {
                    return None;
                }
                self.depth += 1;
                self.list()?;
                self.depth -= 1;
                word.unknown(in_quotes);
            }
            // A number, but none of a descriptor, whatever follows.
            Some('?') => {
                self.rest.next();
                word.quoted('0');
            }
            // Nothing but a name: what else can stand in braces may set variables.
            Some('{') => {
                self.rest.next();
                self.rest.next_if(|c| is_name(c) && !c.is_ascii_digit())?;
                while self.rest.next_if(is_name).is_some() {}
                self.rest.next_if_eq(&'}')?;
                word.unknown(in_quotes);
            }
            Some(c) if is_name(&c) && !c.is_ascii_digit() => {
                while self.rest.next_if(is_name).is_some() {}
                word.unknown(in_quotes);
            }
            // The end of a pattern, as in "x$".
            Some('"' | '|' | ')' | ' ') if in_quotes => word.text.push('$'),
            _ => return None,
        }
        Some(())
    }
}

#[derive(Default)]
struct Word {
    text: String,
    is_quoted: bool,
}

impl Word {
    fn quoted(&mut self, c: char) {
        self.is_quoted = true;
        self.text.push(c);
    }

    /// Out of quotes, it is cut into words wherever it has blanks.
    fn unknown(&mut self, in_quotes: bool) {
        let at = if in_quotes { self.text.len() } else { 0 };
        self.text.insert(at, UNKNOWN);
    }

    /// As an escaped end of a line within quotes alone would be.
    fn is_nothing(&self) -> bool {
        self.text.is_empty() && !self.is_quoted
    }

    fn is_number(&self) -> bool {
        !self.is_quoted && !self.text.is_empty() && self.text.bytes().all(|c| c.is_ascii_digit())
    }

    /// Before or behind a redirection.
    fn is_descriptor(&self) -> bool {
        self.is_number() && self.text.len() == 1
    }
}
