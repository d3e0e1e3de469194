//! What a set-user-id file loses when an ordinary user changes it.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use virtiofsd::filesystem::Context;
use virtiofsd::soft_idmap::Id;

/// While this lives, files that this thread changes lose their set-user-id and set-group-id bits.
#[must_use = "the thread has its privilege again when this is dropped"]
pub(crate) struct Ordinary(Option<CapabilitySets>);

impl Ordinary {
    /// For requests that do not say it themselves: the host clears the bits, unless who changes the
    /// file may keep them, as root may.
    pub(crate) fn for_request(ctx: &Context) -> io::Result<Self> {
        if ctx.uid.into_inner() == 0 {
            return Ok(Self(None));
        }
        let had = capabilities(None)?;
        if !had.effective.contains(CapabilitySet::FSETID) {
            return Ok(Self(None));
        }
        let effective = had.effective.difference(CapabilitySet::FSETID);
        set_capabilities(None, CapabilitySets { effective, ..had })?;
        Ok(Self(Some(had)))
    }
}

impl Drop for Ordinary {
    fn drop(&mut self) {
        if let Some(had) = self.0.take() {
            let _ = set_capabilities(None, had); // what is permitted can be had
        }
    }
}
