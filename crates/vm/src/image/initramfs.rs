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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_of_a_shell_are_among_the_applets() {
        let applets: Vec<_> = APPLETS.split_whitespace().collect();
        for wanted in ["sh", "ls", "cat", "rm", "mkdir", "sleep", "ip", "id", "mount"] {
            assert!(applets.contains(&wanted), "{wanted}");
        }
        assert!(!applets.contains(&"busybox"));
    }
}
