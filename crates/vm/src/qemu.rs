//! Finding QEMU.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Result, VmError};
use crate::hardware::{Architecture, HostSystem};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    pub path: PathBuf,
    /// Such as `7.2.22`.
    pub version: String,
}

impl Qemu {
    /// The one that was named, or the one in `PATH`.
    pub fn find(named: Option<&Path>, architecture: Architecture) -> Result<Self> {
        let path = match named {
            Some(path) if path.is_file() => path.to_owned(),
            Some(path) => return Err(missing(path.display().to_string())),
            None => in_path(architecture.qemu())
                .ok_or_else(|| missing(architecture.qemu().to_owned()))?,
        };
        let version = version(&path)?;
        Ok(Self { path, version })
    }
}

/// A program by its name.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(&file)).find(|candidate| candidate.is_file())
}

fn missing(program: String) -> VmError {
    let hint = match HostSystem::current() {
        HostSystem::Linux => {
            "on Debian and Ubuntu: sudo apt-get install qemu-system-x86 qemu-utils"
        }
        HostSystem::MacOs => "install it with: brew install qemu",
        HostSystem::Windows => "install QEMU for Windows and put it into PATH",
    };
    VmError::QemuMissing { program, hint }
}

fn version(path: &Path) -> Result<String> {
    let not_qemu = |reason: String| VmError::NotQemu { path: path.to_owned(), reason };
    let output = Command::new(path)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| not_qemu(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse_version(&text).ok_or_else(|| not_qemu("it does not tell its version".to_owned()))
}

/// From `QEMU emulator version 7.2.22 (Debian …)`.
fn parse_version(text: &str) -> Option<String> {
    let rest = text.strip_prefix("QEMU")?.split("version ").nth(1)?;
    let version = rest.split(|c: char| c.is_whitespace() || c == '(').next()?;
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_what_qemu_says() {
        let text = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright (c)";
        assert_eq!(parse_version(text).as_deref(), Some("7.2.22"));
        assert_eq!(parse_version("something else"), None);
    }

    #[test]
    fn a_qemu_that_is_not_there_is_said_with_what_brings_it() {
        let error = Qemu::find(Some(Path::new("/no/such/qemu")), Architecture::X86_64).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/no/such/qemu") && text.contains("install"), "{text}");
    }

    #[cfg(unix)]
    #[test]
    fn another_program_is_not_taken_for_qemu() {
        let error = Qemu::find(Some(Path::new("/bin/true")), Architecture::X86_64).unwrap_err();
        assert!(matches!(error, VmError::NotQemu { .. }), "{error}");
    }
}
