//! Files that are mapped, which no shell can do.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::{MmapMut, MmapOptions};

/// The file in memory, shared with everybody who has it there.
pub(crate) fn shared(file: &File) -> io::Result<MmapMut> {
    // SAFETY: what others write into it meanwhile is what the tests are about; it is only read and
    // written byte by byte.
    unsafe { MmapOptions::new().map_mut(file) }
}
