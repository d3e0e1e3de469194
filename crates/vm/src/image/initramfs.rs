//! The initial file system: our process 1, busybox, and modules. It is not compressed: unpacking
//! takes an emulated guest longer than it takes QEMU to hand over the bytes.

use std::fs;
use std::io;
use std::path::Path;

use codeagent_guest::{MODULES_DIR, ModulePurpose};

use super::cpio::Archive;
use super::module_9p;
use super::modules::Modules;
use super::recipe::{self, Flavour, SOURCE_DATE_EPOCH};

/// Those that busybox stands in for; its own list, so that it need not be run to build an image.
const APPLETS: &str = include_str!("../../../../guest/applets.txt");

/// Where process 1 finds what it needs, and mounts things.
const DIRECTORIES: &[&str] = &[
    "bin", "dev", "etc", "modules", "new-root", "proc", "root", "run", "sbin", "sys", "tmp", "usr",
];

pub(crate) fn build(
    init: &Path,
    busybox: &Path,
    modules_dir: &Path,
    flavour: Flavour,
) -> io::Result<Vec<u8>> {
    let init = fs::read(init)?;
    expect_static(&init)?;
    let time = u32::try_from(SOURCE_DATE_EPOCH).map_err(io::Error::other)?;
    let mut archive = Archive::new(Vec::new(), time);
    for dir in DIRECTORIES {
        archive.directory(dir, 0o755)?;
    }
    archive.device("dev/console", 0o600, (5, 1))?;
    archive.file("init", 0o755, &init)?;
    archive.file("bin/busybox", 0o755, &fs::read(busybox)?)?;
    for applet in APPLETS.split_whitespace() {
        archive.symlink(&format!("bin/{applet}"), "busybox")?;
    }
    // Scripts name programs by where other systems have them.
    archive.symlink("usr/bin", "../bin")?;
    archive.symlink("usr/sbin", "../bin")?;

    let modules = Modules::below(modules_dir)?;
    let mut loaded = Vec::new();
    let below = MODULES_DIR.trim_start_matches('/');
    for purpose in recipe::purposes(flavour) {
        let dir = format!("{below}/{}", purpose.dir());
        archive.directory(&dir, 0o755)?;
        let mut wanted = recipe::modules(purpose).to_vec();
        if purpose == ModulePurpose::Shares9p && modules.has(module_9p::NAME) {
            wanted.push(module_9p::NAME);
        }
        let wanted = modules.closure(&wanted, &mut loaded)?;
        for (number, (name, module)) in wanted.iter().enumerate() {
            archive.file(&format!("{dir}/{number:02}-{name}.ko"), 0o644, module)?;
        }
    }
    archive.finish()
}

/// There is no library in the guest to link it with.
fn expect_static(program: &[u8]) -> io::Result<()> {
    let is_elf = program.starts_with(b"\x7fELF");
    let wants_linker = program.windows(14).any(|window| window == b"/lib64/ld-linu")
        || program.windows(14).any(|window| window == b"/lib/ld-linux-");
    if !is_elf || wants_linker {
        return Err(io::Error::other("process 1 of the guest has to be a static program"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_wants_libraries_is_refused() {
        assert!(expect_static(b"\x7fELF ... /lib64/ld-linux-x86-64.so.2").is_err());
        assert!(expect_static(b"#!/bin/sh").is_err());
        assert!(expect_static(b"\x7fELF and nothing else").is_ok());
    }

    #[test]
    fn the_tools_of_a_shell_are_among_the_applets() {
        let applets: Vec<_> = APPLETS.split_whitespace().collect();
        for wanted in ["sh", "ls", "cat", "rm", "mkdir", "sleep", "ip", "id", "mount"] {
            assert!(applets.contains(&wanted), "{wanted}");
        }
        assert!(!applets.contains(&"busybox"));
    }
}
