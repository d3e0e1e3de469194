//! Which view a command gets.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use codeagent_control::{ByteString, CommandLine, Stream};
use codeagent_namespace::{View, ViewChoice, WorkFolder};
use serde::{Deserialize, Serialize};

use super::Session;
use super::commands::CommandRequest;
use super::lane::Workers;
use crate::classify::is_harmless_variable;
use crate::error::{Result, SandboxError};
use crate::executor::Isolation;

/// How commands are to see the folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ViewSetting {
    /// Read-only for a command that is known to only read, transactional for others
    #[default]
    Auto,
    /// Changes are there when the command has ended, all at once; if it fails to, none of them
    Transactional,
    /// Changes are there as they happen
    Live,
    /// Changes are refused
    ReadOnly,
}

/// The view of a command, and why it is that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChosenView {
    pub(super) choice: ViewChoice,
    /// It is known to only read, and nobody named a view.
    pub(super) only_reads: bool,
}

impl Session {
    /// `workers` are those of the folders it may change.
    pub(super) fn choose_view(
        &self,
        request: &CommandRequest,
        isolation: Isolation,
        workers: &Workers,
        folders: &[WorkFolder<'_>],
    ) -> Result<ChosenView> {
        let named = |choice| Ok(ChosenView { choice, only_reads: false });
        match request.view.unwrap_or(self.options.view) {
            ViewSetting::ReadOnly if isolation != Isolation::Namespace => {
                Err(SandboxError::Isolation {
                    isolation,
                    reason: "there is no read-only view in it".into(),
                    hint: "use --isolation namespace, or name another view".into(),
                })
            }
            ViewSetting::ReadOnly => named(ViewChoice::Only(View::ReadOnly)),
            ViewSetting::Live => named(ViewChoice::AutoLive),
            ViewSetting::Auto
                if isolation == Isolation::Namespace
                    && self.only_reads(request)
                    && is_all_written_out(workers)
                    && !hold_mounts(folders) =>
            {
                Ok(ChosenView { choice: ViewChoice::Reading, only_reads: true })
            }
            ViewSetting::Auto | ViewSetting::Transactional => named(ViewChoice::Auto),
        }
    }

    /// That is known of it for certain. Who is at a terminal may type anything.
    fn only_reads(&self, request: &CommandRequest) -> bool {
        !request.background
            && request.pty.is_none()
            && request.env.keys().all(|name| is_harmless_variable(name))
            && !self.reading_failed.load(Ordering::Relaxed)
            && match (&request.script, &request.command) {
                (Some(line), _) => self.judge.line_only_reads(line),
                (None, CommandLine::Shell(line)) => {
                    text(line).is_some_and(|line| self.judge.line_only_reads(line))
                }
                (None, CommandLine::Argv(words)) => words
                    .iter()
                    .map(text)
                    .collect::<Option<Vec<_>>>()
                    .is_some_and(|words| self.judge.words_only_read(&words)),
            }
    }

    /// For a command that was run in the read-only view because it is known to only read, and that
    /// failed because it wanted to write nevertheless: what can be done. From now on this session
    /// takes no command for a reading one, so that whoever cannot name a view only has to try again.
    pub(super) fn wanted_to_write(&self) -> String {
        self.reading_failed.store(true, Ordering::Relaxed);
        "it was taken for a command that only reads, and ran in the read-only view; with --view \
         transactional it can write, and when it is run again in this session"
            .into()
    }
}

/// Through mounts, files are written that the folder itself may not show yet. A step would have
/// them written out first.
fn is_all_written_out(workers: &Workers) -> bool {
    let is_served = |keeper: &std::sync::Arc<super::folder::Keeper>| {
        keeper.client().hello().map_or(true, |greeting| greeting.attached)
    };
    !workers.iter().flatten().any(is_served)
}

/// What is mounted in a folder is not seen in the other views either.
fn hold_mounts(folders: &[WorkFolder<'_>]) -> bool {
    let is_in = |point: &PathBuf, folder: &WorkFolder<'_>| {
        point != folder.path && point.starts_with(folder.path)
    };
    codeagent_worker::mount_points().map_or(true, |points| {
        points.iter().any(|point| folders.iter().any(|folder| is_in(point, folder)))
    })
}

fn text(bytes: &ByteString) -> Option<&str> {
    std::str::from_utf8(bytes.as_bytes()).ok()
}

/// Notices if a command says that the kernel did not let it write, in whichever stream: people have
/// both in one.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    was_told: bool,
    /// The ends of what has come so far, of each stream.
    ends: [Vec<u8>; 2],
}

/// What `strerror` says of `EROFS`.
const REFUSAL: &[u8] = b"Read-only file system";

impl Refusals {
    pub(super) fn hear(&mut self, stream: Stream, bytes: &[u8]) {
        if self.was_told {
            return;
        }
        let holds = |bytes: &[u8]| bytes.windows(REFUSAL.len()).any(|part| part == REFUSAL);
        let end = &mut self.ends[usize::from(stream == Stream::Stderr)];
        // Where two pieces meet, and within this one.
        end.extend_from_slice(&bytes[..bytes.len().min(REFUSAL.len())]);
        self.was_told = holds(end) || holds(bytes);
        if let Some(last) = bytes.last_chunk::<{ REFUSAL.len() }>() {
            end.clear();
            end.extend_from_slice(last);
        }
        end.drain(..end.len().saturating_sub(REFUSAL.len() - 1));
    }

    pub(super) fn were_told(&self) -> bool {
        self.was_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_heard_wherever_the_stream_is_cut() {
        let said = b"touch: cannot touch 'a': Read-only file system\n";
        for cut in 0..said.len() {
            let mut refusals = Refusals::default();
            refusals.hear(Stream::Stderr, &said[..cut]);
            refusals.hear(Stream::Stdout, b"something else");
            refusals.hear(Stream::Stderr, &said[cut..]);
            assert!(refusals.were_told(), "{cut}");
        }
        let mut refusals = Refusals::default();
        refusals.hear(Stream::Stdout, b"Read-only");
        refusals.hear(Stream::Stderr, b" file system");
        assert!(!refusals.were_told());
    }
}
