//! What virtiofsd uses of the crate `capng`, on system calls instead of libcap-ng.
//!
//! As there, changes are collected in a draft of the calling thread and take effect with [`apply`].
#![cfg(target_os = "linux")]

use std::cell::Cell;
use std::fmt;

use bitflags::bitflags;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// The number of a capability, as in `linux/capability.h`.
pub type Capability = u32;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    ApplyCapabilities,
    GetCapabilityId(String),
    GetProcessCapabilities,
    UpdateCapability(Capability),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApplyCapabilities => f.write_str("the kernel refused the capabilities"),
            Self::GetCapabilityId(name) => write!(f, "there is no capability {name}"),
            Self::GetProcessCapabilities => f.write_str("the capabilities could not be read"),
            Self::UpdateCapability(number) => write!(f, "there is no capability {number}"),
        }
    }
}

impl std::error::Error for Error {}

bitflags! {
    /// Which sets of a thread.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Type: u32 {
        const EFFECTIVE = 1;
        const PERMITTED = 2;
        const INHERITABLE = 4;
        const BOUNDING_SET = 8;
    }

    /// What `clear` and `apply` are about.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Set: u32 {
        const CAPS = 16;
        const BOUNDS = 32;
        const BOTH = Self::CAPS.bits() | Self::BOUNDS.bits();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    DROP,
    ADD,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CUpdate {
    pub action: Action,
    pub cap_type: Type,
    pub capability: Capability,
}

#[derive(Debug, Clone, Copy)]
struct Draft {
    sets: CapabilitySets,
    bounds: CapabilitySet,
}

thread_local! {
    /// Lives from the first change to [`apply`]: what a thread may do can change in between by other
    /// means, such as a change of its user.
    static DRAFT: Cell<Option<Draft>> = const { Cell::new(None) };
}

/// Starts a draft from what the thread has now.
pub fn get_caps_process() -> Result<()> {
    DRAFT.set(Some(current()?));
    Ok(())
}

/// Whether the draft, or without one the thread, has a capability in all of these sets.
pub fn have_capability(which: Type, capability: Capability) -> bool {
    let (Ok(mut draft), Some(bit)) = (draft(), bit(capability)) else { return false };
    draft.chosen(which).into_iter().flatten().all(|set| set.contains(bit))
}

/// Empties the draft.
pub fn clear(set: Set) {
    let Ok(mut draft) = draft() else { return };
    let empty = CapabilitySet::empty();
    if set.contains(Set::CAPS) {
        draft.sets = CapabilitySets { effective: empty, permitted: empty, inheritable: empty };
    }
    if set.contains(Set::BOUNDS) {
        draft.bounds = empty;
    }
    DRAFT.set(Some(draft));
}

/// Changes the draft.
pub fn update(updates: Vec<CUpdate>) -> Result<()> {
    let mut draft = draft()?;
    for CUpdate { action, cap_type, capability } in updates {
        let bit = bit(capability).ok_or(Error::UpdateCapability(capability))?;
        for set in draft.chosen(cap_type).into_iter().flatten() {
            set.set(bit, action == Action::ADD);
        }
    }
    DRAFT.set(Some(draft));
    Ok(())
}

/// Changes the draft, by names.
pub fn updatev(action: Action, cap_type: Type, names: Vec<&str>) -> Result<()> {
    let by_number = |name| Ok(CUpdate { action, cap_type, capability: name_to_capability(name)? });
    update(names.into_iter().map(by_number).collect::<Result<_>>()?)
}

/// Gives the thread what the draft says.
pub fn apply(set: Set) -> Result<()> {
    let draft = draft()?;
    DRAFT.set(None);
    // Bounds first: lowering them takes a capability that the thread may be about to lose.
    if set.contains(Set::BOUNDS) {
        lower_bounds(draft.bounds)?;
    }
    if set.contains(Set::CAPS) {
        set_capabilities(None, draft.sets).map_err(|_| Error::ApplyCapabilities)?;
    }
    Ok(())
}

/// The number of a capability by its name without `CAP_`, in any case.
pub fn name_to_capability(name: &str) -> Result<Capability> {
    CapabilitySet::all()
        .iter_names()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, bit)| bit.bits().trailing_zeros())
        .ok_or_else(|| Error::GetCapabilityId(name.to_owned()))
}

impl Draft {
    fn chosen(&mut self, which: Type) -> [Option<&mut CapabilitySet>; 4] {
        [
            which.contains(Type::EFFECTIVE).then_some(&mut self.sets.effective),
            which.contains(Type::PERMITTED).then_some(&mut self.sets.permitted),
            which.contains(Type::INHERITABLE).then_some(&mut self.sets.inheritable),
            which.contains(Type::BOUNDING_SET).then_some(&mut self.bounds),
        ]
    }
}

fn draft() -> Result<Draft> {
    DRAFT.get().map_or_else(current, Ok)
}

fn current() -> Result<Draft> {
    let sets = capabilities(None).map_err(|_| Error::GetProcessCapabilities)?;
    let bounds = known().filter(|bit| capability_is_in_bounding_set(*bit).unwrap_or(false));
    Ok(Draft { sets, bounds: bounds.collect() })
}

fn lower_bounds(wanted: CapabilitySet) -> Result<()> {
    for bit in known().filter(|bit| !wanted.contains(*bit)) {
        match remove_capability_from_bounding_set(bit) {
            // An older kernel does not know the newest ones.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(_) if !capability_is_in_bounding_set(bit).unwrap_or(true) => {}
            Err(_) => return Err(Error::ApplyCapabilities),
        }
    }
    Ok(())
}

/// Every capability that has a name.
fn known() -> impl Iterator<Item = CapabilitySet> {
    CapabilitySet::all().iter_names().map(|(_, bit)| bit)
}

fn bit(capability: Capability) -> Option<CapabilitySet> {
    known().find(|bit| bit.bits().trailing_zeros() == capability)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const FSETID: Capability = 4;

    fn change(action: Action) {
        update(vec![CUpdate { action, cap_type: Type::EFFECTIVE, capability: FSETID }]).unwrap();
    }

    #[test]
    fn names_have_the_numbers_of_the_kernel() {
        assert_eq!(name_to_capability("CHOWN"), Ok(0));
        assert_eq!(name_to_capability("FSETID"), Ok(FSETID));
        assert_eq!(name_to_capability("dac_override"), Ok(1));
        assert_eq!(name_to_capability("CHECKPOINT_RESTORE"), Ok(40));
        assert!(name_to_capability("FLY").is_err());
        assert!(name_to_capability("").is_err());
    }

    #[test]
    fn changes_stay_in_the_draft_until_they_are_applied() {
        let before = capabilities(None).unwrap();
        change(Action::DROP);
        assert!(!have_capability(Type::EFFECTIVE, FSETID));
        assert_eq!(capabilities(None).unwrap(), before);
        get_caps_process().unwrap();
        assert_eq!(
            have_capability(Type::EFFECTIVE, FSETID),
            before.effective.contains(CapabilitySet::FSETID)
        );
    }

    #[test]
    fn a_dropped_capability_comes_back_if_it_is_permitted() {
        let before = capabilities(None).unwrap();
        change(Action::DROP);
        apply(Set::CAPS).unwrap();
        assert!(!capabilities(None).unwrap().effective.contains(CapabilitySet::FSETID));
        change(Action::ADD);
        let permitted = before.permitted.contains(CapabilitySet::FSETID);
        assert_eq!(apply(Set::CAPS).is_ok(), permitted);
        assert_eq!(have_capability(Type::EFFECTIVE, FSETID), permitted);
    }

    #[test]
    fn a_cleared_thread_has_nothing_and_others_keep_theirs() {
        let before = capabilities(None).unwrap();
        std::thread::spawn(|| {
            clear(Set::CAPS);
            apply(Set::CAPS).unwrap();
            let left = capabilities(None).unwrap();
            assert!(left.effective.is_empty() && left.permitted.is_empty());
            assert!(!have_capability(Type::EFFECTIVE, FSETID));
            let names = vec!["CHOWN", "SETPCAP"];
            updatev(Action::ADD, Type::PERMITTED | Type::EFFECTIVE, names).unwrap();
            assert!(have_capability(Type::PERMITTED | Type::EFFECTIVE, 0));
            assert_eq!(apply(Set::CAPS), Err(Error::ApplyCapabilities));
        })
        .join()
        .unwrap();
        assert_eq!(capabilities(None).unwrap(), before);
    }

    #[test]
    fn unknown_capabilities_are_refused() {
        assert!(updatev(Action::ADD, Type::EFFECTIVE, vec!["CHOWN", "FLY"]).is_err());
        let update_ = CUpdate { action: Action::ADD, cap_type: Type::EFFECTIVE, capability: 63 };
        assert_eq!(update(vec![update_]), Err(Error::UpdateCapability(63)));
    }
}
