//! Initial file systems in the format `newc`, the same bytes for the same files: sorted by the
//! caller, numbered in order, and of one time.

use std::io::{self, Write};

/// The kind of a file, in the words of `stat`.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

#[derive(Debug)]
pub(crate) struct Archive<W: Write> {
    out: W,
    written: usize,
    next_inode: u32,
    time: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W, time: u32) -> Self {
        Self { out, written: 0, next_inode: 1, time }
    }

    pub(crate) fn directory(&mut self, name: &str, mode: u32) -> io::Result<()> {
        self.entry(name, DIRECTORY | mode, b"", (0, 0))
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(name, REGULAR | mode, content, (0, 0))
    }

    pub(crate) fn symlink(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, SYMLINK | 0o777, target.as_bytes(), (0, 0))
    }

    pub(crate) fn device(&mut self, name: &str, mode: u32, number: (u32, u32)) -> io::Result<()> {
        self.entry(name, CHARACTER | mode, b"", number)
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.time = 0;
        self.next_inode = 0;
        self.entry("TRAILER!!!", 0, b"", (0, 0))?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        content: &[u8],
        device: (u32, u32),
    ) -> io::Result<()> {
        let length = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let fields = [
            self.next_inode,
            mode,
            0, // user
            0, // group
            links,
            self.time,
            length(content.len())?,
            0, // the device it is on
            0,
            device.0,
            device.1,
            length(name.len() + 1)?,
            0, // no checksum
        ];
        self.next_inode += 1;
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08X}"));
        }
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.align()?;
        self.put(content)?;
        self.align()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    fn align(&mut self) -> io::Result<()> {
        let padding = self.written.next_multiple_of(4) - self.written;
        self.put(&[0; 3][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Vec<u8> {
        let mut archive = Archive::new(Vec::new(), 7);
        archive.directory("bin", 0o755).unwrap();
        archive.file("bin/tool", 0o755, b"12345").unwrap();
        archive.symlink("bin/sh", "tool").unwrap();
        archive.device("console", 0o600, (5, 1)).unwrap();
        archive.finish().unwrap()
    }

    #[test]
    fn the_same_files_are_the_same_bytes() {
        assert_eq!(archive(), archive());
    }

    #[test]
    fn every_entry_begins_at_a_multiple_of_four() {
        let bytes = archive();
        assert_eq!(bytes.len() % 4, 0);
        let starts: Vec<_> = bytes
            .windows(6)
            .enumerate()
            .filter(|(_, at)| at == b"070701")
            .map(|(at, _)| at)
            .collect();
        assert_eq!(starts.len(), 5);
        assert!(starts.iter().all(|at| at % 4 == 0), "{starts:?}");
    }
}
