//! Everything below the undo directory. `docs/undo-log-format.md` is the authority.

mod barriers;
mod changes;
mod frame;
mod journal;
mod layout;
mod loans;
mod mapped;
mod pack;
mod reaper;
mod record;
mod remade;
mod sealed;
mod step_dir;

pub(crate) use barriers::BarrierLog;
pub(crate) use changes::{ChangeTable, Refreshed, StoredChange};
pub(crate) use frame::{Damage, FrameReader, FrameWriter};
pub(crate) use journal::{Journal, JournalReader};
pub(crate) use layout::{
    Counters, FORMAT_VERSION, Store, Versioned, check_counters, check_workdir_file,
};
pub(crate) use loans::{Loan, LoanBook, Root};
pub(crate) use pack::{Pack, PackReader};
pub(crate) use reaper::Reaper;
pub(crate) use record::{At, Body, Content, Header, ObjectRef, Owner, Purpose, Record, Region};
pub(crate) use remade::{Remade, RemadeLog};
pub(crate) use step_dir::StepDir;
