//! The image that sessions have, with further files in its initial filesystem: the kernel unpacks
//! archives ("newc") that stand one behind the other as one.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use codeagent_vm::GuestImage;

const DIR: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// Makes one in `dir`.
pub(crate) fn extended(
    image: &GuestImage,
    dir: &Path,
    agent: &Path,
    programs: &[&Path],
) -> io::Result<GuestImage> {
    for file in ["kernel", "image.json"] {
        symlink(image.dir().canonicalize()?.join(file), dir.join(file))?;
    }
    let initramfs = dir.join("initramfs");
    std::fs::copy(image.initramfs(), &initramfs)?;
    let out = BufWriter::new(File::options().append(true).open(&initramfs)?);
    let mut archive = Archive { out, next: 1 };
    archive.linked_program("agent", agent, &initramfs)?;
    for program in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        archive.linked_program(&format!("bin/{name}"), program, &initramfs)?;
    }
    let (mut users, mut groups) = (String::new(), String::new());
    for (name, id) in [("daemon", 1), ("bin", 2), ("user", 1000)] {
        users.push_str(&format!("{name}::{id}:{id}::/tmp:/bin/sh\n"));
        groups.push_str(&format!("{name}:x:{id}:\n"));
    }
    archive.entry("etc/passwd", FILE, users.as_bytes())?;
    archive.entry("etc/group", FILE, groups.as_bytes())?;
    archive.entry("TRAILER!!!", 0, &[])?;
    archive.out.flush()?;
    GuestImage::open(dir).map_err(io::Error::other)
}

struct Archive {
    out: BufWriter<File>,
    /// The number of the next inode.
    next: u32,
}

impl Archive {
    fn program(&mut self, name: &str, file: &Path) -> io::Result<()> {
        let content = std::fs::read(file)
            .map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
        self.entry(name, PROGRAM, &content)
    }

    /// With the libraries that it needs. `near` is where there is room for a copy.
    fn linked_program(&mut self, name: &str, file: &Path, near: &Path) -> io::Result<()> {
        let stripped = stripped(file, &near.with_extension("stripped"))?;
        self.program(name, &stripped)?;
        for library in libraries(&stripped)? {
            let name = library.to_string_lossy().trim_start_matches('/').to_owned();
            self.dirs_above(&name)?;
            self.program(&name, &library)?;
        }
        Ok(())
    }

    fn dirs_above(&mut self, name: &str) -> io::Result<()> {
        for (at, _) in name.match_indices('/') {
            self.entry(&name[..at], DIR, &[])?; // one that is there already stays
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) -> io::Result<()> {
        let links = if mode & 0o040_000 != 0 { 2 } else { 1 };
        let size = u32::try_from(data.len()).map_err(io::Error::other)?;
        let length = name.len() as u32 + 1;
        let inode = self.next;
        self.next += 1;
        write!(self.out, "070701")?;
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, length, 0];
        for field in fields {
            write!(self.out, "{field:08X}")?;
        }
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(b"\0")?;
        self.pad(110 + name.len() + 1)?;
        self.out.write_all(data)?;
        self.pad(data.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..(4 - written % 4) % 4])
    }
}

/// Without what only debuggers need: every byte has to be copied while the guest boots.
fn stripped(program: &Path, to: &Path) -> io::Result<PathBuf> {
    let status = Command::new("strip").arg("-o").arg(to).arg(program).status();
    Ok(if status.is_ok_and(|status| status.success()) { to.into() } else { program.into() })
}

/// What the program is linked with, the dynamic linker among them.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let listed = Command::new("ldd").arg(program).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(Into::into);
    Ok(listed.lines().filter_map(path).collect())
}
