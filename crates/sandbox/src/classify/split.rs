//! Cutting a line for the shell into the commands in it, roughly.

/// One program with its arguments, without quotes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Simple {
    pub(super) words: Vec<String>,
    pub(super) writes_to_a_file: bool,
}

/// Every command in the line, those in `$(…)` and backquotes included.
pub(super) fn split(line: &str) -> Vec<Simple> {
    let mut cutter = Cutter::default();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                if let Some(next) = chars.next() {
                    cutter.push(next);
                }
            }
            '\'' => {
                cutter.in_word = true;
                chars.by_ref().take_while(|c| *c != '\'').for_each(|c| cutter.push(c));
            }
            '"' => {
                cutter.in_word = true;
                let mut inside = String::new();
                while let Some(c) = chars.next() {
                    match c {
                        '"' => break,
                        '\\' => inside.extend(chars.next()),
                        c => inside.push(c),
                    }
                }
                cutter.commands.extend(substituted(&inside));
                inside.chars().for_each(|c| cutter.push(c));
            }
            '$' if chars.peek() == Some(&'(') => {
                chars.next();
                let mut depth = 1;
                let inside: String = chars
                    .by_ref()
                    .take_while(|c| {
                        depth += match c {
                            '(' => 1,
                            ')' => -1,
                            _ => 0,
                        };
                        depth > 0
                    })
                    .collect();
                cutter.commands.extend(split(&inside));
                cutter.push('$');
            }
            '`' => {
                let inside: String = chars.by_ref().take_while(|c| *c != '`').collect();
                cutter.commands.extend(split(&inside));
                cutter.push('`');
            }
            '>' => {
                cutter.end_word();
                while chars.next_if(|c| matches!(c, '>' | '|' | ' ')).is_some() {}
                let target: String = std::iter::from_fn(|| {
                    chars.next_if(|c| !c.is_whitespace() && !";|&)".contains(*c) || *c == '&')
                })
                .collect();
                let is_harmless = target.starts_with('&') || target == "/dev/null";
                cutter.current.writes_to_a_file |= !is_harmless;
            }
            ';' | '|' | '&' | '\n' | '(' | ')' | '{' | '}' => cutter.end_command(),
            '#' if !cutter.in_word => drop(chars.by_ref().find(|c| *c == '\n')),
            c if c.is_whitespace() || c == '<' => cutter.end_word(),
            c => cutter.push(c),
        }
    }
    cutter.end_command();
    cutter.commands
}

/// Commands within double quotes.
fn substituted(text: &str) -> Vec<Simple> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("$(") {
        let inside = &rest[at + 2..];
        let end = inside.find(')').unwrap_or(inside.len());
        found.extend(split(&inside[..end]));
        rest = &inside[end..];
    }
    if let Some(inside) = text.split('`').nth(1) {
        found.extend(split(inside));
    }
    found
}

#[derive(Default)]
struct Cutter {
    commands: Vec<Simple>,
    current: Simple,
    word: String,
    in_word: bool,
}

impl Cutter {
    fn push(&mut self, c: char) {
        self.word.push(c);
        self.in_word = true;
    }

    fn end_word(&mut self) {
        if std::mem::take(&mut self.in_word) {
            let word = std::mem::take(&mut self.word);
            // Words of the shell itself, before a command.
            let is_syntax =
                ["if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!"];
            if !(self.current.words.is_empty() && is_syntax.contains(&word.as_str())) {
                self.current.words.push(word);
            }
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        let command = std::mem::take(&mut self.current);
        if command != Simple::default() {
            self.commands.push(command);
        }
    }
}
