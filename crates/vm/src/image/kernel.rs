//! The kernel, as QEMU starts it fastest.
//!
//! Debian's kernel for x86 unpacks itself, which takes seconds where the guest is emulated. What is
//! packed in it is an ELF file that QEMU can start as it is (PVH); so it is unpacked once, when the
//! image is built.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::hardware::Architecture;

/// Offsets in the boot header of x86.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;

/// Unpacks it, if there is something to unpack.
pub(crate) fn unpacked(packed: Vec<u8>, architecture: Architecture) -> io::Result<Vec<u8>> {
    match architecture {
        Architecture::X86_64 => {
            let payload = payload(&packed).ok_or_else(|| {
                io::Error::other("the kernel is not in the form Debian has it in")
            })?;
            let kernel = decompress(payload)?;
            if !kernel.starts_with(b"\x7fELF") {
                return Err(io::Error::other("what is packed in the kernel is no ELF file"));
            }
            Ok(kernel)
        }
        // It is not packed, or QEMU unpacks it.
        Architecture::Aarch64 => Ok(packed),
    }
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        let bytes: [u8; 4] = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(MAGIC..MAGIC + 4)? != b"HdrS" {
        return None;
    }
    let sectors = match image.get(SETUP_SECTORS)? {
        0 => 4,
        sectors => usize::from(*sectors),
    };
    let start = (sectors + 1) * SECTOR + word(PAYLOAD_OFFSET)?;
    // After it comes its unpacked length.
    image.get(start..start.checked_add(word(PAYLOAD_LENGTH)?)?.checked_sub(4)?)
}

fn decompress(payload: &[u8]) -> io::Result<Vec<u8>> {
    let program: &[&str] = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => &["xz", "-dc", "--single-stream"],
        [0x1f, 0x8b, ..] => &["gzip", "-dc"],
        [0x28, 0xb5, 0x2f, 0xfd, ..] => &["zstd", "-dc"],
        _ => return Err(io::Error::other("the kernel is packed in a way nobody knows here")),
    };
    let mut child = Command::new(program[0])
        .args(&program[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program[0])))?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(payload)));
        child.wait_with_output()
    })?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{} failed ({})", program[0], output.status)));
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_kernel_is_refused() {
        for broken in [Vec::new(), vec![0; 4096], b"\x7fELF".to_vec()] {
            assert!(unpacked(broken, Architecture::X86_64).is_err());
        }
    }

    #[test]
    fn a_payload_beyond_the_end_is_refused() {
        let mut image = vec![0; 4096];
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 8].copy_from_slice(&[0xff; 8]);
        assert!(payload(&image).is_none());
    }
}
