//! Policies and safeguards: what is asked before anything is recorded.

use std::io::{self, Read};

use codeagent_common::{EntryKind, PathUse, PathVerdict, RelPath};
use parking_lot::RwLockReadGuard;
use rustix::io::Errno;

use super::Stop;
use super::change::Located;
use super::locks::same;
use crate::capture::{InodeState, Span, Wanted};
use crate::engine::UndoEngine;
use crate::engine::state::{OpenStep, State};
use crate::error::{Result, UndoError};
use crate::host::{Entry, Stamp};
use crate::interceptor::{FileRef, Mutation, RenameMode, Whereabouts};
use crate::store::At;

impl UndoEngine {
    pub(super) fn count_delete(
        &self,
        gate: &RwLockReadGuard<'_, State>,
        path: RelPath<'_>,
    ) -> std::result::Result<(), Stop> {
        let Some(step) = gate.open.as_ref() else {
            return Ok(());
        };
        let config = self.safeguards.read();
        let mut safeguards = step.safeguards.lock();
        match safeguards.on_delete(&config, step.id, path, 1) {
            Some(question) => Err(safeguards.stop(step.id, question)),
            None => Ok(()),
        }
    }

    pub(super) fn count_rename_over(
        &self,
        gate: &RwLockReadGuard<'_, State>,
        to: RelPath<'_>,
    ) -> std::result::Result<(), Stop> {
        let Some(step) = gate.open.as_ref() else {
            return Ok(());
        };
        let config = self.safeguards.read();
        let mut safeguards = step.safeguards.lock();
        match safeguards.on_rename_over(&config, step.id, to) {
            Some(question) => Err(safeguards.stop(step.id, question)),
            None => Ok(()),
        }
    }

    pub(super) fn check_overwrite(
        &self,
        gate: &RwLockReadGuard<'_, State>,
        located: &Located<'_>,
        state: &InodeState,
        wanted: Wanted,
    ) -> std::result::Result<(), Stop> {
        let (Some(step), Wanted::Content(span)) = (gate.open.as_ref(), wanted) else {
            return Ok(());
        };
        let size = state.former_length().unwrap_or(located.stamp.size);
        if span.start >= size {
            return Ok(()); // only adds to the file
        }
        let At::Path(path) = located.at() else {
            return Ok(());
        };
        let config = self.safeguards.read();
        let mut safeguards = step.safeguards.lock();
        match safeguards.on_overwrite(&config, step.id, path, size) {
            Some(question) => Err(safeguards.stop(step.id, question)),
            None => Ok(()),
        }
    }

    /// Asks the path policy about every name the mutation uses.
    pub(super) fn judge(&self, mutation: &Mutation<'_>, step: Option<&OpenStep>) -> Result<()> {
        match *mutation {
            Mutation::Link { existing, path } => {
                // By its new name the file could be written to unjudged.
                if let Some(existing) = existing {
                    self.judge_path(existing, PathUse::Write, step)?;
                }
                self.judge_unseen(path, step)?;
                self.judge_path(path, PathUse::Appear, step)
            }
            Mutation::Create { path, kind } => {
                if kind == EntryKind::Symlink {
                    self.judge_symlink(path)?;
                }
                // A file is empty now, and what it will hold cannot be looked at.
                self.judge_unseen(path, step)?;
                self.judge_path(path, PathUse::Appear, step)
            }
            Mutation::Mkdir { path } => self.judge_path(path, PathUse::Appear, step),
            Mutation::Unlink { path } | Mutation::Rmdir { path } => {
                self.judge_path(path, PathUse::Disappear, step)
            }
            Mutation::Rename { from, to, mode } => {
                self.judge_path(from, PathUse::Disappear, step)?;
                self.judge_path(to, PathUse::Appear, step)?;
                self.inspect_renamed(from, to, step)?;
                if mode == RenameMode::Exchange {
                    self.judge_path(from, PathUse::Appear, step)?;
                    self.inspect_renamed(to, from, step)?;
                }
                Ok(())
            }
            Mutation::Write { file, .. }
            | Mutation::Append { file }
            | Mutation::Truncate { file, .. }
            | Mutation::Allocate { file, .. }
            | Mutation::OpenUnseen { file } => self.judge_path(file.path, PathUse::Write, step),
            Mutation::SetAttributes { file } => {
                self.judge_path(file.path, PathUse::Attributes, step)
            }
        }
    }

    /// Of what is not recorded: that its names, which were judged, lead to where it would happen.
    pub(super) fn verify(
        &self,
        mutation: &Mutation<'_>,
        whereabouts: Whereabouts,
        step: Option<&OpenStep>,
    ) -> Result<()> {
        let Whereabouts { dir, new_dir, file: number } = whereabouts;
        let is_in = |path: RelPath<'_>, dir: Option<u64>| match dir {
            Some(_) => self.resolve_current(path, dir).map(|_| ()),
            None => Ok(()),
        };
        match *mutation {
            Mutation::Create { path, .. }
            | Mutation::Mkdir { path }
            | Mutation::Unlink { path }
            | Mutation::Rmdir { path } => is_in(path, dir),
            Mutation::Rename { from, to, .. } => is_in(from, dir).and(is_in(to, new_dir)),
            Mutation::Link { existing, path } => {
                if let (Some(existing), Some(_)) = (existing, number) {
                    let found = self.locate_path(existing, None)?;
                    let found = found.ok_or_else(|| UndoError::host(Errno::NOENT.into()))?;
                    same(number, found.id)?;
                }
                is_in(path, dir)
            }
            Mutation::Write { file, .. }
            | Mutation::Append { file }
            | Mutation::Truncate { file, .. }
            | Mutation::Allocate { file, .. }
            | Mutation::OpenUnseen { file } => {
                self.verify_file(file, number, Wanted::Content(Span::ALL), step)
            }
            Mutation::SetAttributes { file } => {
                self.verify_file(file, number, Wanted::Attributes, step)
            }
        }
    }

    fn verify_file(
        &self,
        file: FileRef<'_>,
        number: Option<u64>,
        wanted: Wanted,
        step: Option<&OpenStep>,
    ) -> Result<()> {
        let Some(located) = self.locate(file)? else { return Ok(()) };
        same(number, located.id)?;
        self.judge_elsewhere(&located, wanted, step)
    }

    pub(in crate::engine) fn judge_path(
        &self,
        path: RelPath<'_>,
        usage: PathUse,
        step: Option<&OpenStep>,
    ) -> Result<()> {
        match self.config.paths.judge(path, usage) {
            PathVerdict::Allow => Ok(()),
            PathVerdict::Flag => {
                if let Some(step) = step {
                    step.flag(path);
                }
                Ok(())
            }
            PathVerdict::Deny(rule) => Err(UndoError::PathProtected { path: path.to_buf(), rule }),
        }
    }

    /// What is protected below a name must not be somewhere else, where it is not.
    fn judge_symlink(&self, path: RelPath<'_>) -> Result<()> {
        match self.config.paths.leads_to_guarded(path) {
            true => Err(UndoError::PathProtected {
                path: path.to_buf(),
                rule: "a symlink there would lead past what is protected below it".into(),
            }),
            false => Ok(()),
        }
    }

    /// Content that nobody could look at takes a name: by a link, whose other name can be written
    /// to, or through a symlink.
    fn judge_unseen(&self, path: RelPath<'_>, step: Option<&OpenStep>) -> Result<()> {
        match self.config.paths.inspects(path) {
            true => self.judge_path(path, PathUse::Write, step),
            false => Ok(()),
        }
    }

    fn inspect_renamed(
        &self,
        from: RelPath<'_>,
        to: RelPath<'_>,
        step: Option<&OpenStep>,
    ) -> Result<()> {
        let policy = &self.config.paths;
        if !policy.inspects(to) && !policy.leads_to_guarded(to) {
            return Ok(());
        }
        let entry = self.workspace.tree.owned_entry(from).map_err(UndoError::host)?;
        self.inspect(to, &entry, step)
    }

    /// Asks the path policy about what is about to take a name, if it wants to look at it.
    pub(in crate::engine) fn inspect(
        &self,
        path: RelPath<'_>,
        entry: &Entry<'_>,
        step: Option<&OpenStep>,
    ) -> Result<()> {
        let policy = &self.config.paths;
        let (inspects, leads_on) = (policy.inspects(path), policy.leads_to_guarded(path));
        if !inspects && !leads_on {
            return Ok(());
        }
        let Some(stamp) = entry.stat().map_err(UndoError::host)? else { return Ok(()) };
        if stamp.is_dir() {
            return Ok(()); // what is in it is looked at by itself
        }
        if stamp.kind() == EntryKind::Symlink {
            self.judge_symlink(path)?;
        }
        if !inspects {
            return Ok(());
        }
        if stamp.links > 1 {
            // By its other name it could be written to afterwards.
            return self.judge_path(path, PathUse::Write, step);
        }
        let Some(content) = read_small(entry).map_err(UndoError::host)? else {
            return self.judge_path(path, PathUse::Write, step);
        };
        let former = self.workspace.tree.owned_entry(path).and_then(|entry| read_small(&entry));
        let former = former.unwrap_or_default();
        match self.config.paths.inspect(path, former.as_deref(), &content) {
            PathVerdict::Deny(rule) => Err(UndoError::PathProtected { path: path.to_buf(), rule }),
            PathVerdict::Allow | PathVerdict::Flag => Ok(()),
        }
    }

    /// A directory gets a new name: everything below it disappears, and appears there.
    pub(in crate::engine) fn judge_below(
        &self,
        from: RelPath<'_>,
        to: RelPath<'_>,
        step: Option<&OpenStep>,
    ) -> Result<()> {
        let policy = &self.config.paths;
        // If neither name means anything to the policy, what is protected below stays where it is as
        // far as that is concerned: programs outside obey it no more than before.
        let is_plain = |path: RelPath<'_>| !path.components().any(|name| policy.minds(name));
        let appears = !(is_plain(from) && is_plain(to));
        let is_guarded = policy.guards_below(from, PathUse::Disappear)
            || (appears && policy.guards_below(to, PathUse::Appear));
        if !is_guarded {
            return Ok(());
        }
        let Ok(dir) = self.workspace.tree.owned_dir(from) else {
            return Ok(());
        };
        let mut verdict = Ok(());
        crate::host::walk(&dir, from, &mut |path, _, _, _| {
            if verdict.is_ok() {
                let new = path.strip(from).map(|below| to.concat(below));
                verdict = self.judge_path(path, PathUse::Disappear, step);
                if let (Ok(()), Some(new), true) = (&verdict, new, appears) {
                    verdict = self
                        .judge_path(new.as_path(), PathUse::Appear, step)
                        .and_then(|()| self.inspect_renamed(path, new.as_path(), step));
                }
            }
            Ok(())
        })
        .map_err(UndoError::host)?;
        verdict
    }

    /// Whether all names of the mutation are ones undo leaves alone. What got such a name in this
    /// step, and had another one, is not left alone.
    pub(super) fn ignores(&self, mutation: &Mutation<'_>, step: Option<&OpenStep>) -> bool {
        let covers = |path: RelPath<'_>, is_dir| {
            self.ignored.covers(path, is_dir) && !step.is_some_and(|step| step.keeps(path))
        };
        let keep = |path: RelPath<'_>| {
            if let (true, Some(step)) = (covers(path, false) || covers(path, true), step) {
                step.keep(path);
            }
            false
        };
        match *mutation {
            Mutation::Create { path, kind } => {
                covers(path, false) || self.leaves_symlinks_alone(kind)
            }
            Mutation::Link { existing: Some(existing), path } if !covers(existing, false) => {
                keep(path)
            }
            Mutation::Rename { from, to, mode } => match (covers(from, false), covers(to, false)) {
                (true, true) => true,
                (true, false) if mode == RenameMode::Exchange => keep(from),
                (true, false) => false,
                (false, _) => keep(to),
            },
            Mutation::Link { path, .. } | Mutation::Unlink { path } => covers(path, false),
            Mutation::Mkdir { path } | Mutation::Rmdir { path } => covers(path, true),
            Mutation::Write { file, .. }
            | Mutation::Append { file }
            | Mutation::Truncate { file, .. }
            | Mutation::Allocate { file, .. }
            | Mutation::OpenUnseen { file }
            | Mutation::SetAttributes { file } => covers(file.path, false),
        }
    }

    pub(super) fn leaves_symlinks_alone(&self, kind: EntryKind) -> bool {
        kind == EntryKind::Symlink
            && self.config.symlinks == codeagent_common::SymlinkPolicy::Ignore
    }

    pub(super) fn skips_symlink(&self, stamp: &Stamp) -> bool {
        self.leaves_symlinks_alone(stamp.kind())
    }
}

/// Larger files are not looked at.
const MOST_INSPECTED_BYTES: u64 = 1 << 20;

/// What is in a file; `None` if it is something else, or too large.
fn read_small(entry: &Entry<'_>) -> io::Result<Option<Vec<u8>>> {
    let Some(stamp) = entry.stat()?.filter(Stamp::is_file) else { return Ok(None) };
    if stamp.size > MOST_INSPECTED_BYTES {
        return Ok(None);
    }
    let mut content = Vec::new();
    entry.open_read()?.take(MOST_INSPECTED_BYTES).read_to_end(&mut content)?;
    Ok(Some(content))
}
