//! Which packages, in which versions, with which content. One line each: name, version, SHA-256.

use std::fmt::Write;
use std::io;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Locked {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) sha256: String,
}

impl std::fmt::Display for Locked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.name, self.version, self.sha256)
    }
}

const HEADER: &str = "# What the image is made of: package, version, SHA-256. Written by `cargo xtask build-guest --update-lock`.\n";

pub(crate) fn parse(text: &str) -> io::Result<Vec<Locked>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(parse_line).collect()
}

fn parse_line(line: &str) -> io::Result<Locked> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let is_hash =
        |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match fields[..] {
        [name, version, sha256] if is_hash(sha256) => Ok(Locked {
            name: name.to_owned(),
            version: version.to_owned(),
            sha256: sha256.to_owned(),
        }),
        _ => Err(io::Error::other(format!("the lock has a line that makes no sense: {line}"))),
    }
}

pub(crate) fn render(packages: &[Locked]) -> String {
    let mut text = HEADER.to_owned();
    for package in packages {
        let _ = writeln!(text, "{package}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let sha256 = "0123456789abcdef".repeat(4);
        let (name, version) = ("busybox-static".to_owned(), "1:1.35.0-4+b1".to_owned());
        let packages = vec![Locked { name, version, sha256 }];
        assert_eq!(parse(&render(&packages)).unwrap(), packages);
    }

    #[test]
    fn a_line_without_a_checksum_is_refused() {
        assert!(parse("busybox-static 1.35 deadbeef").is_err());
    }
}
