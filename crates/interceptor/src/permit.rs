//! Permission for one mutation, held while it happens.

#[cfg(target_os = "linux")]
use crate::engine::Held;
use crate::file_id::FileId;

/// The mutation may happen now.
///
/// While a permit lives, no step is opened, closed or undone, and no other mutation of the same
/// name gets a permit: the journal's order is the order on the host. One that is dropped without a
/// word (a front end failed) leaves open whether the mutation happened; undo then finds out by
/// looking.
#[must_use = "the mutation is only recorded while the permit is held"]
pub struct Permit<'e> {
    pub(crate) performed: bool,
    /// What the engine holds, and has yet to do. Its drop concludes what nobody spoke about.
    pub(crate) held: Option<Held<'e>>,
}

impl Permit<'_> {
    /// A permit that guards nothing, for interceptors that record nothing.
    pub fn free() -> Permit<'static> {
        Permit { performed: false, held: None }
    }

    /// The mutation has happened already; the front end must not repeat it.
    pub fn performed(&self) -> bool {
        self.performed
    }

    /// The mutation succeeded.
    pub fn done(self) {
        if let Some(held) = self.held {
            held.done();
        }
    }

    /// The mutation succeeded and made this inode. Saves the engine a look.
    pub fn created(self, id: FileId) {
        if let Some(held) = self.held {
            held.created(id);
        }
    }

    /// The host refused.
    pub fn failed(self) {
        if let Some(held) = self.held {
            held.failed();
        }
    }
}

impl std::fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit").field("performed", &self.performed).finish_non_exhaustive()
    }
}

/// There is no engine on this system yet, and so nothing it could hold.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Held<'e>(std::convert::Infallible, std::marker::PhantomData<&'e ()>);

#[cfg(not(target_os = "linux"))]
impl Held<'_> {
    fn done(self) {
        match self.0 {}
    }

    fn created(self, _id: FileId) {
        match self.0 {}
    }

    fn failed(self) {
        match self.0 {}
    }
}
