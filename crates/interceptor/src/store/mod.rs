//! Everything below the undo directory. `docs/undo-log-format.md` is the authority.

mod background;
mod barriers;
mod changes;
mod claim;
mod counters;
mod frame;
mod journal;
mod layout;
mod loans;
mod lock;
mod mapped;
mod pack;
mod place;
mod record;
mod remade;
mod reserve;
mod sealed;
mod step_dir;

pub(crate) use background::Counted;
pub(crate) use barriers::BarrierLog;
pub(crate) use changes::{ChangeTable, Refreshed, StoredChange, Trailer};
pub use claim::{Belonging, SOCKET, belonging, working_dir_of};
pub(crate) use claim::{FORMAT_VERSION, check_workdir_file, is_current_format};
pub(crate) use counters::Counters;
pub(crate) use frame::{Damage, FrameReader, FrameWriter};
pub(crate) use journal::{Journal, JournalReader};
pub(crate) use layout::{Store, Time, Versioned, check_counters};
pub(crate) use loans::{Loan, LoanBook, Root};
pub(crate) use pack::{Pack, PackReader};
pub(crate) use place::Place;
pub(crate) use record::{
    At, Body, Content, Extent, Header, ObjectRef, Owner, Purpose, Record, Region,
};
pub(crate) use remade::{Remade, RemadeLog};
pub(crate) use step_dir::{Recorded, StepDir};
