//! Security descriptors, as the driver wants them: it judges by them who may open what.
#![expect(unsafe_code, reason = "the standard library knows nothing of security descriptors")]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use windows_sys::Win32::Foundation::{LocalFree, STATUS_INVALID_SECURITY_DESCR};
use windows_sys::Win32::Security::Authorization::{
    ConvertSecurityDescriptorToStringSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, GROUP_SECURITY_INFORMATION, GetKernelObjectSecurity,
    OWNER_SECURITY_INFORMATION,
};
use winfsp_wrs::{PSecurityDescriptor, SecurityDescriptor, U16CString};

use super::status::{Outcome, of_io};

const PARTS: u32 =
    OWNER_SECURITY_INFORMATION | GROUP_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;

/// Every descriptor ever asked for, by its text. The driver copies from a bare pointer after a
/// callback has returned, so none is dropped; there are far fewer than files.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    known: Mutex<HashMap<U16CString, Box<SecurityDescriptor>>>,
}

impl Descriptors {
    pub(super) fn of(&self, file: &File) -> Outcome<PSecurityDescriptor> {
        let text = text_of(file).map_err(of_io)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(descriptor) = known.get(&text) {
            return Ok(descriptor.as_ptr());
        }
        let made =
            SecurityDescriptor::from_wstr(&text).map_err(|_| STATUS_INVALID_SECURITY_DESCR)?;
        Ok(known.entry(text).or_insert_with(|| Box::new(made)).as_ptr())
    }
}

/// Owner, group and access list, in the security descriptor definition language.
fn text_of(file: &File) -> io::Result<U16CString> {
    let handle = file.as_raw_handle();
    let mut needed = 0;
    // SAFETY: with no buffer the call only says how long one must be.
    unsafe { GetKernelObjectSecurity(handle, PARTS, ptr::null_mut(), 0, &raw mut needed) };
    let mut buffer = vec![0_u64; (needed as usize).div_ceil(size_of::<u64>())];
    let room = size_of_val(buffer.as_slice()) as u32;
    let descriptor = buffer.as_mut_ptr().cast();
    // SAFETY: the buffer has that many bytes.
    let ok = unsafe { GetKernelObjectSecurity(handle, PARTS, descriptor, room, &raw mut needed) };
    if ok == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut text = ptr::null_mut();
    // SAFETY: the buffer holds the descriptor that the system has just written.
    let ok = unsafe {
        ConvertSecurityDescriptorToStringSecurityDescriptorW(
            descriptor,
            SDDL_REVISION_1,
            PARTS,
            &raw mut text,
            ptr::null_mut(),
        )
    };
    if ok == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded: a string that ends with a NUL, and is ours to free, once.
    unsafe {
        let copy = U16CString::from_ptr_str(text);
        LocalFree(text.cast());
        Ok(copy)
    }
}
