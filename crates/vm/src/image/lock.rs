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

/// The packages of an image, by what becomes of them; in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packages {
    pub(crate) kernel: Locked,
    pub(crate) busybox: Locked,
    /// What our module is built with, if it is.
    pub(crate) headers: Vec<Locked>,
    pub(crate) root: Vec<Locked>,
}

impl Packages {
    pub(crate) fn parse(text: &str) -> io::Result<Self> {
        let mut all = parse(text)?.into_iter();
        let (Some(kernel), Some(busybox)) = (all.next(), all.next()) else {
            return Err(io::Error::other("the lock does not name a kernel and busybox"));
        };
        let is_for_module = |package: &Locked| {
            ["linux-headers-", "linux-kbuild-"].iter().any(|start| package.name.starts_with(start))
        };
        let (headers, root) = all.partition(is_for_module);
        Ok(Self { kernel, busybox, headers, root })
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Locked> {
        [&self.kernel, &self.busybox].into_iter().chain(&self.headers).chain(&self.root)
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

pub(crate) fn render(packages: &Packages) -> String {
    let mut text = HEADER.to_owned();
    for package in packages.all() {
        let _ = writeln!(text, "{package}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Locked {
        let (version, sha256) = ("1:1.35.0-4+b1".to_owned(), "0123456789abcdef".repeat(4));
        Locked { name: name.to_owned(), version, sha256 }
    }

    #[test]
    fn what_is_written_is_read() {
        let packages = Packages {
            kernel: package("linux-image-6.1.0-1-amd64"),
            busybox: package("busybox-static"),
            headers: vec![package("linux-headers-6.1.0-1-amd64"), package("linux-kbuild-6.1")],
            root: vec![package("apt"), package("linux-libc-dev")],
        };
        assert_eq!(Packages::parse(&render(&packages)).unwrap(), packages);
    }

    #[test]
    fn a_lock_without_a_kernel_is_refused() {
        assert!(Packages::parse(&package("busybox-static").to_string()).is_err());
    }

    #[test]
    fn a_line_without_a_checksum_is_refused() {
        assert!(parse("busybox-static 1.35 deadbeef").is_err());
    }
}
