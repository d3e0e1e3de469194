//! Our own kernel module, built for the kernel of the image: with it, the guest's 9P talks to its
//! device itself. Its source is `guest/module`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use codeagent_common::CancelToken;

use super::packages::unpack;
use super::programs::run;
use crate::qemu::in_path;

pub(crate) const NAME: &str = "codeagent_9p";

const SOURCE: &str = include_str!("../../../../guest/module/codeagent_9p.c");
const MAKEFILE: &str = include_str!("../../../../guest/module/Kbuild");

/// The kernel's own compiler, then any.
const COMPILERS: [&str; 2] = ["gcc-12", "gcc"];

/// What would change the result: whoever runs this may be run by another make, or build kernels.
const MEANT_FOR_OTHERS: [&str; 11] = [
    "ARCH",
    "CROSS_COMPILE",
    "GNUMAKEFLAGS",
    "KBUILD_EXTMOD",
    "KBUILD_OUTPUT",
    "KCPPFLAGS",
    "LLVM",
    "MAKEFLAGS",
    "MAKELEVEL",
    "MFLAGS",
    "O",
];

/// Builds it below `dir`, with the headers and tools from these packages. Nothing in it tells where
/// that was.
pub(crate) fn build(packages: &[PathBuf], dir: &Path, cancel: &CancelToken) -> io::Result<PathBuf> {
    let compiler = COMPILERS.into_iter().find(|name| in_path(name).is_some());
    let compiler = compiler.ok_or_else(|| io::Error::other("there is no gcc"))?;
    for package in packages {
        unpack(package, &["*"], dir, cancel)?;
    }
    let headers = moved_headers(&dir.join("usr/src"))?;
    let module = dir.join("module");
    fs::create_dir_all(&module)?;
    fs::write(module.join(format!("{NAME}.c")), SOURCE)?;
    fs::write(module.join("Kbuild"), MAKEFILE)?;
    let mut make = Command::new("make");
    make.arg("--directory").arg(headers).arg(format!("M={}", module.display()));
    make.arg(format!("CC={compiler}"));
    make.arg(format!("KCFLAGS=-g0 -ffile-prefix-map={}=.", dir.display()));
    make.arg("modules").env("LC_ALL", "C");
    for variable in MEANT_FOR_OTHERS {
        make.env_remove(variable);
    }
    run(&mut make, cancel)?;
    Ok(module.join(format!("{NAME}.ko")))
}

/// The headers of this kernel; they refer to those of all its variants by where both would be
/// installed.
fn moved_headers(sources: &Path) -> io::Result<PathBuf> {
    let missing = || io::Error::other("the packages have no configured headers");
    let mut dirs = fs::read_dir(sources)?.flatten().map(|entry| entry.path());
    let headers = dirs.find(|dir| dir.join(".config").is_file()).ok_or_else(missing)?;
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile)?;
    fs::write(makefile, text.replace("/usr/src", &sources.to_string_lossy()))?;
    Ok(headers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_and_refer_to_each_other_where_they_are() {
        let sources = tempfile::tempdir().unwrap();
        let dir = |name: &str| sources.path().join(name);
        for name in ["common", "amd64"] {
            fs::create_dir(dir(name)).unwrap();
        }
        fs::write(dir("amd64").join(".config"), "").unwrap();
        fs::write(dir("amd64").join("Makefile"), "include /usr/src/common/Makefile\n").unwrap();
        let found = moved_headers(sources.path()).unwrap();
        assert_eq!(found, dir("amd64"));
        let text = fs::read_to_string(found.join("Makefile")).unwrap();
        assert_eq!(text, format!("include {}\n", dir("common").join("Makefile").display()));
    }
}
