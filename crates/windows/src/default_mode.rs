//! The mode of files whose mode nobody has ever set.

/// Of every directory.
pub const DIRECTORY: u32 = 0o755;
pub const FILE: u32 = 0o644;
pub const EXECUTABLE: u32 = 0o755;
/// Who owns files, unless somebody has said otherwise.
pub const OWNER: u32 = 1000;

/// How much of a file's beginning has to be known.
pub const HEAD_BYTES: usize = 4;

/// What the name of a file says about whether it can be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByName {
    Executable,
    Data,
    /// Its first bytes decide.
    LookInside,
}

/// Names that end so are of programs and scripts, whatever is in the files.
const PROGRAMS: &[&str] =
    &["sh", "bash", "zsh", "fish", "ksh", "exe", "com", "bat", "cmd", "run", "appimage"];
/// Some of these are scripts, and say so in their first line.
const SCRIPTS: &[&str] = &[
    "py", "pl", "rb", "js", "mjs", "cjs", "ts", "php", "lua", "tcl", "awk", "sed", "r", "jl",
    "groovy", "scala", "kts", "swift", "ps1", "nu", "ml", "rkt", "in", "tool", "command",
];

pub fn by_name(name: &[u8]) -> ByName {
    let Some(dot) = name.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0) else {
        return ByName::LookInside; // as programs are called: node_modules/.bin/tsc, gradlew
    };
    let Ok(extension) = std::str::from_utf8(&name[dot + 1..]) else { return ByName::Data };
    let extension = extension.to_ascii_lowercase();
    let is_in = |list: &[&str]| list.contains(&extension.as_str());
    // `libc.so.6`, `tool-1.2`: a version, not a kind.
    let is_version = !extension.is_empty() && extension.bytes().all(|byte| byte.is_ascii_digit());
    match () {
        () if is_in(PROGRAMS) => ByName::Executable,
        () if is_in(SCRIPTS) || is_version || extension == "so" => ByName::LookInside,
        () => ByName::Data,
    }
}

/// Whether a file that begins so can be executed: a script with its interpreter, or a program.
pub fn by_head(head: &[u8]) -> bool {
    head.starts_with(b"#!") || head.starts_with(b"\x7fELF")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WN-04
    #[test]
    fn names_say_what_can_be_executed() {
        for name in ["a.sh", "A.SH", "setup.exe", "x.bat", "b.c.bash"] {
            assert_eq!(by_name(name.as_bytes()), ByName::Executable, "{name}");
        }
        for name in ["tsc", "gradlew", ".bashrc", "a.py", "cli.js", "tool-1.2", "lib.so", "a."] {
            let wanted = if name == "a." { ByName::Data } else { ByName::LookInside };
            assert_eq!(by_name(name.as_bytes()), wanted, "{name}");
        }
        for name in ["main.rs", "a.txt", "a.sh.txt", "README.md", "a.dll", ".a.json"] {
            assert_eq!(by_name(name.as_bytes()), ByName::Data, "{name}");
        }
        assert_eq!(by_name(b"a.\xff"), ByName::Data);
    }

    /// WN-04
    #[test]
    fn first_bytes_say_what_can_be_executed() {
        assert!(by_head(b"#!/bin/sh") && by_head(b"#!") && by_head(b"\x7fELF\x02"));
        assert!(!by_head(b"") && !by_head(b"# a") && !by_head(b"MZ\x90\0"));
    }
}
