//! System packages that the tasks need, installed where that is allowed.

use std::path::Path;

use crate::process::{find_program, is_root, program, run_silently};

const NEEDED_RUST: &str = env!("CARGO_PKG_RUST_VERSION");

/// A program the tests call, and the Debian package that has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needed {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

/// What `cargo xtask test` needs beyond Rust and a C compiler.
pub(crate) const FOR_TESTS: &[Needed] = &[
    Needed { program: "git", package: "git" },
    Needed { program: "getfattr", package: "attr" },
    Needed { program: "getfacl", package: "acl" },
    Needed { program: "fusermount3", package: "fuse3" },
    Needed { program: "pgrep", package: "procps" },
    Needed { program: "npm", package: "npm" },
    Needed { program: "python3", package: "python3" },
    Needed { program: "rsync", package: "rsync" },
    Needed { program: "sqlite3", package: "sqlite3" },
    Needed { program: "stress-ng", package: "stress-ng" },
    Needed { program: "vim", package: "vim" },
    Needed { program: "diodls", package: "diod" },
    Needed { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Needed { program: "mkfs.btrfs", package: "btrfs-progs" },
    Needed { program: "mkfs.xfs", package: "xfsprogs" },
    Needed { program: "mkfs.ext4", package: "e2fsprogs" },
];

/// What `cargo xtask build-guest` needs.
pub(crate) const FOR_GUESTS: &[Needed] = &[
    Needed { program: "dpkg-deb", package: "dpkg" },
    Needed { program: "xz", package: "xz-utils" },
    Needed { program: "gcc", package: "gcc" },
    Needed { program: "make", package: "make" },
    // What the kernel's own tools for modules are linked to.
    #[cfg(target_arch = "x86_64")]
    Needed { program: "/usr/lib/x86_64-linux-gnu/libelf.so.1", package: "libelf1" },
    Needed { program: "mmdebstrap", package: "mmdebstrap" },
    Needed { program: "fakeroot", package: "fakeroot" },
    Needed { program: "newuidmap", package: "uidmap" },
    Needed { program: "mke2fs", package: "e2fsprogs" },
    Needed { program: "qemu-img", package: "qemu-utils" },
];

/// What `cargo xtask bench` needs: a filesystem on a disk image, and what it compares with.
pub(crate) const FOR_BENCHMARKS: &[Needed] = &[
    Needed { program: "mkfs.ext4", package: "e2fsprogs" },
    Needed { program: "git", package: "git" },
    Needed { program: "npm", package: "npm" },
    Needed { program: "bwrap", package: "bubblewrap" },
    Needed { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Needed { program: "dpkg-deb", package: "dpkg" },
    Needed { program: "xz", package: "xz-utils" },
];

/// What `cargo xtask check-cross` needs. By path: another toolchain usually comes first in `PATH`.
pub(crate) const FOR_CROSS_CHECKS: &[Needed] = &[
    Needed { program: "/usr/bin/cargo", package: "cargo-web" },
    Needed { program: "/usr/bin/rustc", package: "rustc-web" },
    Needed { program: "/usr/bin/cargo-clippy", package: "rust-web-clippy" },
    Needed { program: "/usr/lib/rustlib/src", package: "rust-web-src" },
    Needed { program: "/usr/bin/pkg-config", package: "pkg-config" },
];

/// What `cargo xtask test-cross` needs to run programs for Windows.
pub(crate) const FOR_CROSS_TESTS: &[Needed] = &[
    Needed { program: "/usr/bin/cargo", package: "cargo-web" },
    Needed { program: "/usr/bin/rustc", package: "rustc-web" },
    Needed { program: "/usr/lib/rustlib/src", package: "rust-web-src" },
    Needed { program: "/usr/bin/x86_64-w64-mingw32-gcc", package: "gcc-mingw-w64-x86-64-posix" },
    Needed { program: "/usr/lib/wine/wine64", package: "wine64" },
    Needed { program: "/usr/lib/wine/wineserver", package: "wine" },
];

/// Installs what is missing. What cannot be installed is said, and is no error: the tests that
/// need it are skipped and say so.
pub(crate) fn install_missing(needed: &[Needed]) {
    // Twice: what does not go together with a new package, such as the tools of another version of
    // it, apt has removed.
    for _ in 0..2 {
        let missing = missing(needed);
        if missing.is_empty() {
            return;
        }
        let names = missing.join(" ");
        if find_program("apt-get").is_none() {
            return eprintln!(
                "Missing: {names}. Install them with the package manager of this system."
            );
        }
        if !is_root() {
            return eprintln!("Missing: {names}. Install them: sudo apt-get install {names}");
        }
        eprintln!("Installing {names} …");
        if let Err(error) = apt_install(&missing) {
            return eprintln!("Could not install {names}: {error:#}");
        }
    }
}

/// The packages of what is not there, or too old.
pub(crate) fn missing(needed: &[Needed]) -> Vec<&'static str> {
    let is_missing = |needed: &&Needed| match Path::new(needed.program) {
        path if path.is_absolute() => !path.exists() || is_too_old(needed.program),
        _ => find_program(needed.program).is_none(),
    };
    needed.iter().filter(is_missing).map(|needed| needed.package).collect()
}

/// Whether it is a compiler that does not know the Rust this is written in: which of several versions
/// a machine has depends on how old its package lists were.
fn is_too_old(program_path: &str) -> bool {
    let said = || run_silently(program(program_path).arg("--version")).ok();
    program_path.ends_with("/rustc") && said().and_then(|said| minor(&said)) < minor(NEEDED_RUST)
}

/// The second number of the version in such a text.
fn minor(text: &str) -> Option<u32> {
    let version = text.split_whitespace().find(|word| word.starts_with("1."))?;
    version.split('.').nth(1)?.parse().ok()
}

fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    let install = || {
        run_silently(
            program("apt-get")
                .args(["install", "--yes", "--no-install-recommends"])
                .args(packages)
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )
    };
    // The package lists of a new machine are often empty or old, and then packages are, too. Without a
    // network they have to do.
    let _ = run_silently(program("apt-get").arg("update"));
    install().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_second_number() {
        assert_eq!(
            minor("rustc 1.85.0 (4d91de4e4 2025-02-17) (built from a source tarball)"),
            Some(85)
        );
        assert_eq!(minor("1.91"), Some(91));
        assert_eq!(minor("no version"), None);
        assert!(minor(NEEDED_RUST).is_some());
    }
}
