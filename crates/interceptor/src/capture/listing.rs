//! Names that a directory is known to hold, and so names that it is known not to hold.
//!
//! A creation must not be recorded for a name that is taken: recovery would take what has it for
//! the step's own. Looking costs a system call each time. A directory in which a step makes many
//! entries is therefore listed once, if it is small enough, and every name that comes after that
//! passes through the engine. What somebody outside puts there in between is not known here, any
//! more than what they put there between a look and the creation; if it was there before the step,
//! recovery knows it by its birth.

use std::collections::HashSet;

use crate::host::Dir;

/// The creation at which a directory is listed, and how many bytes of names are read at most.
/// A second attempt, with more, once it has paid.
const ATTEMPTS: [(u32, usize); 2] = [(4, 8 << 10), (256, 256 << 10)];

#[derive(Debug, Default)]
pub(crate) struct Listing {
    creations: u32,
    names: Option<HashSet<Box<[u8]>, foldhash::fast::FixedState>>,
}

impl Listing {
    /// Whether nothing has this name for certain. The caller keeps others from making entries.
    pub(crate) fn knows_free(&mut self, dir: &Dir, name: &[u8]) -> bool {
        if self.names.is_none() {
            self.creations += 1;
            let attempt = ATTEMPTS.iter().find(|(creation, _)| *creation == self.creations);
            if let Some((_, limit_bytes)) = attempt {
                // A directory that cannot be read is looked into name by name.
                self.names = dir.names_up_to(*limit_bytes).ok().flatten();
            }
        }
        self.names.as_ref().is_some_and(|names| !names.contains(name))
    }

    /// An entry of this name is about to appear.
    pub(crate) fn note(&mut self, name: &[u8]) {
        if let Some(names) = &mut self.names {
            names.insert(name.into());
        }
    }
}
