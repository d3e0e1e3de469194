//! Content and attributes are what they were.

use std::fs::File;
use std::sync::Arc;

use super::Inversion;
use crate::capture::{Recorder, Span, Wanted, Workspace};
use crate::error::{Result, UndoError};
use crate::host::{Dir, Found, Meta, Stamp, clone_file, copy_range, punch, write_all_at};
use crate::store::{At, Content, PackReader, Region};

impl Inversion<'_> {
    pub(super) fn change_back(
        &mut self,
        at: At<'_>,
        meta: Option<&Meta>,
        content: Option<&Content>,
    ) -> Result<()> {
        let entry = match at {
            At::Path(path) => {
                let times_only = content.is_none()
                    && meta.is_some_and(|meta| meta.scope == crate::host::MetaScope::Times);
                if !times_only && self.skips(path) {
                    return Ok(());
                }
                self.workspace.tree.find_owned(path).map_err(UndoError::host)?
            }
            At::Object(object) => self.object(object)?,
        };
        let Some(entry) = entry else { return Ok(()) };
        let Some((id, stamp)) = entry.stat_id().map_err(UndoError::host)? else {
            return Ok(());
        };
        if meta.is_some_and(|meta| meta.stamp.file_type() != stamp.file_type())
            || (content.is_some() && !stamp.is_file())
            || self.leaves(stamp.is_symlink())
        {
            return Ok(());
        }
        if let At::Path(path) = at {
            let found = Found { entry: entry.clone(), id, stamp };
            let is_another = self.is_another(meta, &stamp);
            if !self.treatment.force && (is_another || self.is_news(&found)) {
                return self.outrun(path);
            }
            if is_another && content.is_some_and(Content::is_partial) {
                self.leave(path); // the rest went with the file that somebody else has replaced
                return Ok(());
            }
            if self.treatment.skip_files.contains(&id) {
                self.leave(path); // by another of its names
                return Ok(());
            }
            if self.treatment.overridden.contains(&id) && content.is_some_and(Content::is_partial) {
                self.leave(path); // what somebody else wrote in other places stays
            }
        }
        let recorded = self.recorder.map(|recorder| recorder.journal().extent().0);
        if let Some(recorder) = self.recorder {
            let found = Found { entry: entry.clone(), id, stamp };
            capture_current(self.workspace, recorder, at, &found, content, meta)?;
        }
        self.mutation()?;
        if let Some(content) = content {
            let file = entry.open_write().map_err(UndoError::host)?;
            let (_, opened) = Stamp::of(&file).map_err(UndoError::host)?;
            if let At::Path(path) = at
                && !stamp.describes_object(&opened)
            {
                if let (Some(recorder), Some(first)) = (self.recorder, recorded) {
                    recorder.cancel(first..recorder.journal().extent().0);
                }
                return self.outrun(path);
            }
            put_content(&self.pack, &self.objects, &file, content)?;
            drop(file);
            // Writing moved the time; if this preimage does not set it, an earlier one will.
        }
        if let Some(meta) = meta {
            match content {
                Some(_) => meta.apply(&entry),
                None => meta.apply_over(&entry, &stamp),
            }
            .map_err(UndoError::host)?;
        }
        self.report.restored += 1;
        Ok(())
    }

    /// Whether it is not the file that the record speaks of: somebody has replaced that.
    fn is_another(&self, meta: Option<&Meta>, found: &Stamp) -> bool {
        let former = meta.filter(|_| !found.is_dir());
        former.is_some_and(|meta| {
            let (inode, _) = self.workspace.remade.current(meta.stamp.inode, self.sequence);
            inode != found.inode
        })
    }
}

/// Before something is changed back, what it is now is recorded.
pub(in crate::engine) fn capture_current(
    workspace: &Workspace,
    recorder: &Recorder,
    at: At<'_>,
    found: &Found<'_>,
    content: Option<&Content>,
    meta: Option<&Meta>,
) -> Result<()> {
    let Found { entry, id, stamp } = found;
    let state = recorder.inodes.state(*id);
    if meta.is_some_and(|meta| meta.scope == crate::host::MetaScope::Times) {
        if let (false, At::Path(path)) = (state.has_times(), at) {
            let dir = entry.open_dir().map_err(UndoError::host)?;
            recorder.touch_dir(workspace, &dir, path)?;
        }
        return Ok(());
    }
    let mut wanted = Vec::new();
    match content {
        Some(Content::Ranges { length, regions }) => {
            let spans = regions.iter().map(|region| Span { start: region.start, end: region.end });
            wanted.extend(spans.map(Wanted::Content));
            // What is behind the former end goes away; and the present length must be known.
            wanted.push(Wanted::Content(Span::from(*length)));
        }
        Some(Content::Clone { .. }) => wanted.push(Wanted::Content(Span::ALL)),
        None => {}
    }
    // What is captured first says which file it is.
    wanted.push(Wanted::Attributes);
    for wanted in wanted {
        let attributes_only = !stamp.is_file() && wanted != Wanted::Attributes;
        if attributes_only {
            continue;
        }
        recorder.capture(workspace, at, entry, *id, wanted)?;
    }
    Ok(())
}

/// Writes former content back. Bytes that fail their check are never written.
pub(in crate::engine) fn put_content(
    pack: &PackReader,
    objects: &Arc<Dir>,
    file: &File,
    content: &Content,
) -> Result<()> {
    match content {
        Content::Ranges { length, regions } => {
            file.set_len(*length).map_err(UndoError::host)?;
            regions.iter().try_for_each(|region| put_region(pack, file, region))
        }
        Content::Clone { length, object, stamp } => {
            let damaged = || UndoError::Corrupt(format!("object {object} is missing or changed"));
            let source = objects.entry(object.to_string().into_bytes());
            let found = source.stat().map_err(UndoError::host)?.ok_or_else(damaged)?;
            if !stamp.describes_object(&found) {
                return Err(damaged());
            }
            let source = source.open_read().map_err(UndoError::host)?;
            if !clone_file(file, &source).map_err(UndoError::host)? {
                copy_range(&source, file, 0, *length).map_err(UndoError::host)?;
            }
            file.set_len(*length).map_err(UndoError::host)
        }
    }
}

pub(in crate::engine) fn put_region(pack: &PackReader, file: &File, region: &Region) -> Result<()> {
    let mut hole_from = region.start;
    for extent in &region.extents {
        let plain = pack.read(extent).map_err(|error| UndoError::Corrupt(error.to_string()))?;
        punch(file, hole_from, extent.file_offset).map_err(UndoError::host)?;
        write_all_at(file, &plain, extent.file_offset).map_err(UndoError::host)?;
        hole_from = extent.file_offset + plain.len() as u64;
    }
    punch(file, hole_from, region.end).map_err(UndoError::host)
}
