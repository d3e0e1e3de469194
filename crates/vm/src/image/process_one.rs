//! Process 1 of a guest: which file can be it, and how it is built from the source of this program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use codeagent_common::CancelToken;

use super::programs::run;
use crate::hardware::Architecture;

/// Its name, and that of its package.
pub const PROCESS_ONE: &str = "codeagent-guest";

/// Whether it can run where there is no library to link it with.
pub fn is_static(program: &Path) -> io::Result<bool> {
    Ok(is_static_program(&fs::read(program)?))
}

pub(crate) fn expect_static(program: &Path) -> io::Result<()> {
    match is_static(program)? {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "{} cannot be process 1 of a guest, which has to be a static program",
            program.display()
        ))),
    }
}

fn is_static_program(content: &[u8]) -> bool {
    let wants_linker = content.windows(14).any(|window| window == b"/lib64/ld-linu")
        || content.windows(14).any(|window| window == b"/lib/ld-linux-");
    content.starts_with(b"\x7fELF") && !wants_linker
}

/// Builds it in the source of this program, which has to be below `source`, with this cargo. It is
/// linked statically; with a target of its own, so that what runs while building is not.
pub fn build_process_one(
    mut cargo: Command,
    source: &Path,
    architecture: Architecture,
    cancel: &CancelToken,
) -> io::Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", architecture.name());
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"));
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    // Where it was built must not show in it.
    flags.push(format!("--remap-path-prefix={}=.", source.display()));
    flags.extend(home.map(|home| format!("--remap-path-prefix={home}=cargo")));
    if architecture != Architecture::current() {
        let variable = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
        cargo.env(variable, format!("{}-linux-gnu-gcc", architecture.name()));
    }
    // What cargo has told us of us is not true of it, and would have it built anew each time.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let built = source.join("target");
    cargo
        .args(["build", "--quiet", "--locked", "--package", PROCESS_ONE, "--profile", "guest"])
        .args(["--target", &target, "--target-dir"])
        .arg(&built)
        .current_dir(source)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    run(&mut cargo, cancel)?;
    Ok(built.join(target).join("guest").join(PROCESS_ONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_wants_libraries_is_refused() {
        assert!(!is_static_program(b"\x7fELF ... /lib64/ld-linux-x86-64.so.2"));
        assert!(!is_static_program(b"#!/bin/sh"));
        assert!(is_static_program(b"\x7fELF and nothing else"));
    }
}
