//! What a file of the host looks like to a guest.

use std::fs::File;
use std::os::windows::fs::FileExt;

use codeagent_interceptor::WriteInterceptor;
use codeagent_p9::wire::{Qid, QidKind, getattr};
use codeagent_p9::{Attributes, Errno, Result, Time};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_READONLY, FILE_ATTRIBUTE_REPARSE_POINT, FILE_READ_DATA,
};

use super::{Here, WindowsShare, of_io, of_overlay};
use crate::default_mode::{self, ByName};
use crate::host::{self, Facts};
use crate::names::guest_name;
use crate::overlay::{self, Posix};
use crate::reparse::{self, Reparse};

const TYPE_SOCKET: u32 = 0o140_000;
const TYPE_LINK: u32 = 0o120_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_FIFO: u32 = 0o010_000;

/// What something is to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Look {
    File,
    Directory,
    /// With the target as a guest reads it.
    Link(Vec<u8>),
    Fifo,
    Socket,
    /// A file or directory that cannot be opened here.
    Placeholder {
        directory: bool,
    },
    Opaque,
}

impl Look {
    fn type_bits(&self) -> u32 {
        match self {
            Self::Directory | Self::Placeholder { directory: true } => TYPE_DIRECTORY,
            Self::Link(_) => TYPE_LINK,
            Self::Fifo => TYPE_FIFO,
            Self::Socket => TYPE_SOCKET,
            Self::File | Self::Placeholder { directory: false } | Self::Opaque => TYPE_FILE,
        }
    }

    /// Whether its content can be opened; if not, why.
    pub(super) fn openable(&self) -> Result<()> {
        match self {
            Self::File | Self::Directory => Ok(()),
            Self::Link(_) => Err(Errno::ELOOP),
            Self::Fifo | Self::Socket => Err(Errno::ENXIO),
            Self::Placeholder { .. } => Err(Errno(crate::errno::EREMOTEIO)),
            Self::Opaque => Err(Errno::EACCES),
        }
    }
}

/// What is kept of it elsewhere goes by what the host has.
pub(super) fn kind_of(facts: &Facts) -> overlay::Kind {
    if facts.attributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
        overlay::Kind::Link
    } else if facts.attributes & FILE_ATTRIBUTE_DIRECTORY != 0 {
        overlay::Kind::Directory
    } else {
        overlay::Kind::File
    }
}

impl<I: WriteInterceptor + 'static> WindowsShare<I> {
    /// What is known of it besides what the host says. Nothing, if it has no name any more.
    pub(super) fn posix(&self, here: &Here) -> Result<Posix> {
        if here.facts.is_going {
            return Ok(Posix::default());
        }
        let kind = kind_of(&here.facts);
        self.overlay.get(here.place.path.as_path(), kind).map_err(of_overlay)
    }

    pub(super) fn look(&self, here: &Here, posix: &Posix) -> Result<Look> {
        let directory = here.facts.attributes & FILE_ATTRIBUTE_DIRECTORY != 0;
        if here.facts.attributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
            let data = host::reparse_data(&here.file).map_err(of_io)?;
            return Ok(match Reparse::parse(&data) {
                Reparse::Link(target) => {
                    let dir = here.place.split().map_or(&[][..], |(dir, _)| dir);
                    Look::Link(target.for_guest(self.root.path(), dir))
                }
                Reparse::Fifo => Look::Fifo,
                Reparse::Socket => Look::Socket,
                Reparse::Placeholder => Look::Placeholder { directory },
                Reparse::Opaque => Look::Opaque,
            });
        }
        if directory {
            return Ok(Look::Directory);
        }
        match &posix.target {
            Some(target) if self.holds(here, target)? => Ok(Look::Link(target.clone())),
            _ => Ok(Look::File),
        }
    }

    /// Whether the file that stands in for a link is still as it was made.
    fn holds(&self, here: &Here, content: &[u8]) -> Result<bool> {
        if here.facts.size != content.len() as u64 {
            return Ok(false);
        }
        let file = self.again(here, FILE_READ_DATA)?;
        Ok(head(&file, content.len())? == content)
    }

    /// The same file once more, for what the handle does not allow.
    pub(super) fn again(&self, here: &Here, access: u32) -> Result<File> {
        let again = self.walk(&here.place, access)?;
        if again.id == here.id { Ok(again.file) } else { Err(Errno::ESTALE) }
    }

    pub(super) fn attributes_of(&self, here: &Here) -> Result<Attributes> {
        let posix = self.posix(here)?;
        let look = self.look(here, &posix)?;
        let facts = &here.facts;
        let mode = match &look {
            Look::Link(_) => 0o777,
            Look::Opaque => 0,
            _ => match posix.mode {
                Some(mode) => mode,
                None => self.default_mode(here, &look)?,
            },
        };
        let size = match &look {
            Look::Link(target) => target.len() as u64,
            Look::Directory => 4096,
            _ => facts.size,
        };
        let kept = self.interceptor.kept_names(here.id);
        Ok(Attributes {
            valid: getattr::BASIC | getattr::BORN,
            qid: qid(facts, look.type_bits()),
            mode: mode | look.type_bits(),
            uid: posix.uid.unwrap_or(self.options.uid),
            gid: posix.gid.unwrap_or(self.options.gid),
            links: facts.links.saturating_sub(kept).into(),
            device: 0,
            size,
            block_size: 4096,
            blocks: facts.allocated.div_ceil(512),
            accessed: time(facts.accessed),
            modified: time(facts.written),
            changed: time(facts.changed),
            born: time(facts.created),
            generation: 0,
            data_version: 0,
        })
    }

    fn default_mode(&self, here: &Here, look: &Look) -> Result<u32> {
        if *look == Look::Directory || *look == (Look::Placeholder { directory: true }) {
            return Ok(default_mode::DIRECTORY);
        }
        let name = here.place.split().map(|(_, name)| guest_name(name)).unwrap_or_default();
        let executable = match default_mode::by_name(&name) {
            ByName::Executable => true,
            ByName::Data => false,
            // Who may not read it is told that it is data.
            ByName::LookInside if *look == Look::File && here.facts.size > 0 => self
                .again(here, FILE_READ_DATA)
                .and_then(|file| head(&file, default_mode::HEAD_BYTES))
                .is_ok_and(|head| default_mode::by_head(&head)),
            ByName::LookInside => false,
        };
        let mode = if executable { default_mode::EXECUTABLE } else { default_mode::FILE };
        let read_only = here.facts.attributes & FILE_ATTRIBUTE_READONLY != 0;
        Ok(if read_only { mode & !0o222 } else { mode })
    }

    /// The `DT_` number of a listed entry.
    pub(super) fn entry_kind(&self, dir: &Here, entry: &host::Listed) -> Result<u8> {
        const DIRECTORY: u8 = 4;
        const FILE: u8 = 8;
        const LINK: u8 = 10;
        if entry.facts.attributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
            return Ok(match entry.facts.tag {
                reparse::TAG_SYMLINK | reparse::TAG_MOUNT_POINT | reparse::TAG_LX_SYMLINK => LINK,
                reparse::TAG_LX_FIFO => 1,
                reparse::TAG_AF_UNIX => 12,
                // A file or a directory, which whoever wants to know asks for.
                _ => 0,
            });
        }
        if entry.facts.attributes & FILE_ATTRIBUTE_DIRECTORY != 0 {
            return Ok(DIRECTORY);
        }
        let Some(place) = dir.place.join(&entry.name) else { return Ok(FILE) };
        let posix =
            self.overlay.get(place.path.as_path(), overlay::Kind::File).map_err(of_overlay)?;
        Ok(match posix.target {
            Some(target) if target.len() as u64 == entry.facts.size => LINK,
            _ => FILE,
        })
    }
}

/// The first bytes of a file, up to as many.
fn head(file: &File, bytes: usize) -> Result<Vec<u8>> {
    let mut head = vec![0; bytes];
    let mut filled = 0;
    while filled < head.len() {
        match file.seek_read(&mut head[filled..], filled as u64).map_err(of_io)? {
            0 => break,
            more => filled += more,
        }
    }
    head.truncate(filled);
    Ok(head)
}

pub(super) fn qid(facts: &Facts, type_bits: u32) -> Qid {
    // Another one after each change, as far as the clock of the host shows it.
    let version = (facts.written ^ facts.written >> 32) as u32;
    Qid { kind: QidKind::of_mode(type_bits), version: version.max(1), path: facts.index }
}

/// From 1601 to 1970.
const EPOCH_SECONDS: i64 = 11_644_473_600;
/// A tick is 100 ns.
const TICKS_PER_SECOND: i64 = 10_000_000;

fn time(ticks: i64) -> Time {
    let seconds = ticks.div_euclid(TICKS_PER_SECOND) - EPOCH_SECONDS;
    let nanoseconds = ticks.rem_euclid(TICKS_PER_SECOND) as u64 * 100;
    Time { seconds: seconds as u64, nanoseconds }
}

/// `None` if the host has no such time. It knows none before 1601, and takes 0 for "as it is".
pub(super) fn ticks(time: Time) -> Option<i64> {
    let seconds = (time.seconds as i64).checked_add(EPOCH_SECONDS)?;
    let ticks = seconds.checked_mul(TICKS_PER_SECOND)?;
    let ticks = ticks.checked_add(i64::try_from(time.nanoseconds / 100).ok()?)?;
    (ticks > 0).then_some(ticks)
}
