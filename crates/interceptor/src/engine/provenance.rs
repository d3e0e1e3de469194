//! Whose work a file is that a step made, when the step is taken back for good.
//!
//! Undo keeps what it removes, so that redo can bring it back. Abort, denial and recovery do not:
//! what they remove is gone. They must therefore remove only what the step itself made, and set
//! everything else aside.

use crate::capture::{InodeState, InodeTable};
use crate::error::{Result, UndoError};
use crate::host::{Found, Stamp};
use crate::store::{JournalReader, Record, StepDir};

type Moment = (i64, u32);

/// Longer than clocks are coarse and a write takes to follow its record.
const SLACK_SECONDS: i64 = 1;

/// How the step's own work is recognised.
pub(super) enum Provenance {
    /// By identity: the process that made it is this one.
    Known(InodeTable),
    /// The process died. What came after its last record is not its work, and of the creations
    /// that had not returned nobody knows.
    Guessed { begun: Option<Moment>, ended: Moment, settled: u64 },
}

/// What to do with an entry that a creation may have made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Own,
    /// It was there before; the host refused the creation.
    Former,
    /// Somebody else's, or nobody knows.
    Foreign,
}

impl Provenance {
    /// For the journal of a process that died.
    pub(super) fn guess(dir: &StepDir, journal: &JournalReader) -> Result<Self> {
        let failed = || UndoError::io("looking at the interrupted step");
        let objects = dir.objects().map_err(failed())?;
        let begun = objects.entry(&b"."[..]).born().map_err(failed())?;
        let ended = dir.last_written().map_err(failed())?;
        let settled = journal.records().filter_map(|(_, record)| match record {
            Ok(Record::Create { settled, .. }) => Some(settled),
            _ => None,
        });
        let settled = settled.max().unwrap_or(0);
        Ok(Self::Guessed { begun, ended: (ended.0 + SLACK_SECONDS, ended.1), settled })
    }

    /// Of an entry at the place of a creation recorded at `index`.
    pub(super) fn of_created(&self, index: u64, found: &Found<'_>) -> Result<Verdict> {
        let (begun, ended, settled) = match self {
            Self::Known(inodes) => return Ok(known(inodes, found)),
            Self::Guessed { begun, ended, settled } => (*begun, *ended, *settled),
        };
        let born = found.entry.born().map_err(UndoError::host)?;
        if born.zip(begun).is_some_and(|(born, begun)| born < begun) {
            return Ok(Verdict::Former);
        }
        let later = found.stamp.mtime > ended || born.is_some_and(|born| born > ended);
        Ok(if index < settled && !later { Verdict::Own } else { Verdict::Foreign })
    }

    /// Of an entry at the place where something with this stamp was put.
    pub(super) fn of_put(&self, stamp: &Stamp, found: &Found<'_>) -> Verdict {
        let same_file = stamp.inode == found.stamp.inode;
        // Across filesystems it was copied, with its times.
        let copied = stamp.size == found.stamp.size && stamp.mtime == found.stamp.mtime;
        let own = match self {
            Self::Known(inodes) => same_file || copied || known(inodes, found) == Verdict::Own,
            Self::Guessed { ended, .. } => {
                copied || (same_file && (stamp.is_dir() || found.stamp.mtime <= *ended))
            }
        };
        if own { Verdict::Own } else { Verdict::Foreign }
    }
}

fn known(inodes: &InodeTable, found: &Found<'_>) -> Verdict {
    if inodes.check(found.id, InodeState::is_created) { Verdict::Own } else { Verdict::Foreign }
}
