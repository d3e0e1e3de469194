//! Kernel modules. Which there are, and that each comes after those it needs, was settled when the
//! image was built.

use std::fs::{self, File};
use std::path::Path;

use rustix::io::Errno;

use super::{InitError, While};
use crate::{MODULES_DIR, ModulePurpose};

/// An image without a directory for it has no modules for that purpose: they are in its kernel.
pub(super) fn load(purpose: ModulePurpose) -> Result<(), InitError> {
    let dir = Path::new(MODULES_DIR).join(purpose.dir());
    let Ok(entries) = fs::read_dir(&dir) else { return Ok(()) };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files {
        let what = || format!("cannot load {}", file.display());
        let module = File::open(&file).during(what)?;
        match rustix::system::finit_module(&module, c"", 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).during(what),
        }
    }
    Ok(())
}
