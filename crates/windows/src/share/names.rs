//! Changes of names: what is made, linked, renamed and removed. Each asks the interceptor first, with
//! names that the host has just told by handle, acts on handles, says how it went, and tells the
//! overlay of new names.

use std::fs::File;
use std::sync::atomic::Ordering;

use codeagent_common::EntryKind;
use codeagent_interceptor::{Mutation, Permit, RenameMode, WriteInterceptor};
use codeagent_p9::{Caller, Errno, Result};
use windows_sys::Win32::Storage::FileSystem::{
    DELETE, FILE_LIST_DIRECTORY, FILE_WRITE_ATTRIBUTES, FILE_WRITE_DATA,
};

use super::contents::write_all;
use super::look::kind_of;
use super::places::Node;
use super::{
    Here, WindowsShare, of_io, of_new_name, of_overlay, of_refusal, of_sought_name, of_status,
};
use crate::casing::{self, Rename};
use crate::default_mode::{self, ByName};
use crate::host::{self, Kind, Outcome};
use crate::names::{existing_name, new_name};
use crate::overlay;
use crate::reparse::{NativeLink, native_link, symlink_data};
use crate::volume_path::VolumePath;

impl<I: WriteInterceptor + 'static> WindowsShare<I> {
    pub(super) fn ask(&self, mutation: &Mutation<'_>) -> Result<Permit<'_>> {
        self.interceptor.before(mutation).map_err(of_refusal)
    }

    pub(super) fn writable(&self) -> Result<()> {
        if self.options.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Where something new of this name would be, if there can be such a name.
    fn new_place(&self, dir: &Here, name: &[u8]) -> Result<(VolumePath, Vec<u16>)> {
        let units = new_name(name).map_err(of_new_name)?;
        let place = dir.place.join(&units).ok_or(Errno::EINVAL)?;
        match place.fits(self.root.path().len()) {
            true => Ok((place, units)),
            false => Err(Errno::ENAMETOOLONG),
        }
    }

    /// What a directory has by exactly this name.
    pub(super) fn visible_child(&self, dir: &Here, name: &[u8], access: u32) -> Result<Here> {
        let units = existing_name(name).map_err(of_sought_name)?;
        let child = self.child(dir, &units, access)?;
        let (_, spelled) = child.place.split().ok_or(Errno::ENOENT)?;
        match casing::is_visible(&units, spelled) {
            true => Ok(child),
            false => Err(Errno::ENOENT),
        }
    }

    /// Makes a plain file.
    pub(super) fn make_file(
        &self,
        caller: Caller,
        dir: &Here,
        name: &[u8],
        mode: u32,
        access: u32,
    ) -> Result<Here> {
        self.writable()?;
        let (place, units) = self.new_place(dir, name)?;
        let path = place.path.as_path();
        let permit = self.ask(&Mutation::Create { path, kind: EntryKind::File })?;
        let file = self.made(permit, host::make_in(&dir.file, &units, access, Kind::File))?;
        self.overlay.created(path).map_err(of_overlay)?;
        let here = self.here(Ok(file))?;
        let is_default =
            mode & 0o7777 == default_mode::FILE && default_mode::by_name(name) == ByName::Data;
        self.own(caller, &here, (!is_default).then_some(mode))?;
        Ok(here)
    }

    pub(super) fn make_dir(
        &self,
        caller: Caller,
        dir: &Here,
        name: &[u8],
        mode: u32,
    ) -> Result<Here> {
        self.writable()?;
        let (place, units) = self.new_place(dir, name)?;
        let path = place.path.as_path();
        let permit = self.ask(&Mutation::Mkdir { path })?;
        let file = self.made(permit, host::make_in(&dir.file, &units, 0, Kind::Directory))?;
        self.overlay.created(path).map_err(of_overlay)?;
        let here = self.here(Ok(file))?;
        self.own(caller, &here, (mode & 0o7777 != default_mode::DIRECTORY).then_some(mode))?;
        Ok(here)
    }

    /// Makes a link: a symlink of the host, where it can have such a one, or a file that stands in
    /// for it.
    pub(super) fn make_link(
        &self,
        caller: Caller,
        dir: &Here,
        name: &[u8],
        target: &[u8],
    ) -> Result<Here> {
        const LONGEST_TARGET: usize = 4096;
        self.writable()?;
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() > LONGEST_TARGET {
            return Err(Errno::ENAMETOOLONG);
        }
        let (place, units) = self.new_place(dir, name)?;
        let path = place.path.as_path();
        let permit = self.ask(&Mutation::Create { path, kind: EntryKind::Symlink })?;
        if let Some(native) = native_link(target)
            && let Some(file) = self.make_native_link(dir, &units, &native)
        {
            let file = self.made(permit, Ok(file))?;
            self.overlay.created(path).map_err(of_overlay)?;
            let here = self.here(Ok(file))?;
            self.own(caller, &here, None)?;
            return Ok(here);
        }
        let made = host::make_in(&dir.file, &units, FILE_WRITE_DATA | DELETE, Kind::File);
        let made = made.and_then(|file| match write_all(&file, target, 0) {
            Ok(_) => Ok(file),
            Err(error) => {
                let _ = host::remove(&file); // it has just been made, and is nothing
                Err(host::of_io(error))
            }
        });
        let file = self.made(permit, made)?;
        self.overlay.created(path).map_err(of_overlay)?;
        self.overlay.set_target(path, target).map_err(of_overlay)?;
        let here = self.here(Ok(file))?;
        self.own(caller, &here, None)?;
        Ok(here)
    }

    /// `None` if the host makes none: it may want a privilege or a setting for developers, and not
    /// every disk knows them.
    fn make_native_link(&self, dir: &Here, name: &[u16], native: &NativeLink) -> Option<File> {
        if !self.makes_links.load(Ordering::Relaxed) {
            return None;
        }
        let data = symlink_data(&native.target)?;
        let kind = match native.surely_directory || self.leads_to_dir(dir, &native.target) {
            true => Kind::Directory,
            false => Kind::File,
        };
        let access = FILE_WRITE_DATA | FILE_WRITE_ATTRIBUTES | DELETE;
        let file = host::make_in(&dir.file, name, access, kind).ok()?;
        // Looked at again: there are systems that say yes and do nothing.
        let is_link = host::set_reparse_data(&file, &data)
            .and_then(|()| host::reparse_data(&file))
            .is_ok_and(|made| made == data);
        if is_link {
            return Some(file);
        }
        self.makes_links.store(false, Ordering::Relaxed);
        let _ = host::remove(&file); // it has just been made, and is nothing
        None
    }

    /// Whether a relative target is a directory now, as far as that can be seen without leaving the
    /// folder or following anything.
    fn leads_to_dir(&self, dir: &Here, target: &[u16]) -> bool {
        const BACKSLASH: u16 = b'\\' as u16;
        const DOT: u16 = b'.' as u16;
        let mut names: Vec<&[u16]> = dir
            .place
            .units
            .split(|unit| *unit == BACKSLASH)
            .filter(|name| !name.is_empty())
            .collect();
        for name in target.split(|unit| *unit == BACKSLASH) {
            match name {
                [] | [DOT] => {}
                [DOT, DOT] => {
                    if names.pop().is_none() {
                        return false;
                    }
                }
                name => names.push(name),
            }
        }
        let place = VolumePath::existing(&names.join(&BACKSLASH));
        place.and_then(|place| self.walk(&place, 0).ok()).is_some_and(|here| here.is_dir())
    }

    /// Tells the permit what was made.
    fn made(&self, permit: Permit<'_>, outcome: Outcome<File>) -> Result<File> {
        match outcome {
            Ok(file) => {
                match host::id_of(&file) {
                    Ok(id) => permit.created(id),
                    Err(_) => permit.done(),
                }
                Ok(file)
            }
            Err(status) => {
                permit.failed();
                Err(of_status(status))
            }
        }
    }

    /// Who made something owns it, and has said which mode it has. What is as it would be anyway
    /// is not kept.
    fn own(&self, caller: Caller, here: &Here, mode: Option<u32>) -> Result<()> {
        let uid = Some(caller.uid).filter(|uid| *uid != self.options.uid);
        let gid = Some(caller.gid).filter(|gid| *gid != self.options.gid);
        if mode.is_none() && uid.is_none() && gid.is_none() {
            return Ok(());
        }
        let change = overlay::Change { mode, uid, gid };
        let path = here.place.path.as_path();
        self.overlay.set(path, kind_of(&here.facts), change).map_err(of_overlay)
    }

    pub(super) fn add_name(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.writable()?;
        let dir = self.dir_at(dir, 0)?;
        let file = self.at(node, FILE_WRITE_ATTRIBUTES)?;
        if file.is_dir() {
            return Err(Errno::EPERM);
        }
        let (place, units) = self.new_place(&dir, name)?;
        let (existing, path) = (file.place.path.as_path(), place.path.as_path());
        let permit = self.ask(&Mutation::Link { existing: Some(existing), path })?;
        finish(permit, host::link(&file.file, &dir.file, &units))?;
        self.overlay.linked(existing, path, kind_of(&file.facts)).map_err(of_overlay)
    }

    pub(super) fn remove_name(&self, dir: &Node, name: &[u8], directory: bool) -> Result<()> {
        self.writable()?;
        let dir = self.dir_at(dir, 0)?;
        let child = self.visible_child(&dir, name, DELETE)?;
        match (child.is_dir(), directory) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.remove(&child)
    }

    /// Takes the name of something away that was opened for that.
    fn remove(&self, child: &Here) -> Result<()> {
        let path = child.place.path.as_path();
        if child.is_dir() && !self.is_empty(child)? {
            return Err(Errno::ENOTEMPTY);
        }
        let mutation = match child.is_dir() {
            true => Mutation::Rmdir { path },
            false => Mutation::Unlink { path },
        };
        let permit = self.ask(&mutation)?;
        if permit.performed() {
            permit.done();
        } else {
            finish(permit, host::remove(&child.file))?;
        }
        self.overlay.removed(path).map_err(of_overlay)
    }

    fn is_empty(&self, dir: &Here) -> Result<bool> {
        let listable = self.again(dir, FILE_LIST_DIRECTORY)?;
        let mut is_empty = true;
        host::list_each(&listable, |entry| {
            is_empty &= super::serve::is_dots(&entry.name);
            Ok(())
        })
        .map_err(of_io)?;
        Ok(is_empty)
    }

    pub(super) fn move_name(&self, from: (&Node, &[u8]), to: (&Node, &[u8])) -> Result<()> {
        self.writable()?;
        let from_dir = self.dir_at(from.0, 0)?;
        let to_dir = self.dir_at(to.0, 0)?;
        let source = self.visible_child(&from_dir, from.1, DELETE)?;
        let (place, units) = self.new_place(&to_dir, to.1)?;
        let found = match self.child(&to_dir, &units, DELETE) {
            Ok(found) => Some(found),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        let names = found.as_ref().and_then(|found| Some((found, found.place.split()?.1)));
        let judged = casing::judge_rename(
            source.place.split().ok_or(Errno::EBUSY)?.1,
            &units,
            from_dir.id == to_dir.id,
            names.map(|(found, spelled)| casing::Found {
                spelled,
                is_source: found.id == source.id,
            }),
            true,
        );
        let mode = match judged {
            Rename::Nothing => return Ok(()),
            Rename::Taken => return Err(Errno::EEXIST),
            Rename::Move => RenameMode::NoReplace,
            Rename::Replace => RenameMode::Replace,
        };
        let (old, new) = (source.place.path.as_path(), place.path.as_path());
        if new != old && new.is_within(old) {
            return Err(Errno::EINVAL); // into itself
        }
        let mut mode = mode;
        if let (Some(target), RenameMode::Replace) = (&found, mode) {
            match (source.is_dir(), target.is_dir()) {
                (false, true) => return Err(Errno::EISDIR),
                (true, false) => return Err(Errno::ENOTDIR),
                (true, true) => {
                    // Windows replaces no directory: the empty one goes first.
                    self.remove(target)?;
                    mode = RenameMode::NoReplace;
                }
                (false, false) => {}
            }
        }
        // An open handle, of ours too, would keep its name taken.
        drop(found);
        let permit = self.ask(&Mutation::Rename { from: old, to: new, mode })?;
        if permit.performed() {
            permit.done();
        } else {
            let replace = mode == RenameMode::Replace;
            finish(permit, host::rename_as_posix(&source.file, &to_dir.file, &units, replace))?;
        }
        self.places.renamed(&source.place, &place);
        self.overlay.renamed(old, new).map_err(of_overlay)
    }
}

/// Tells the permit how it went.
fn finish(permit: Permit<'_>, outcome: Outcome<()>) -> Result<()> {
    match outcome {
        Ok(()) => permit.done(),
        Err(_) => permit.failed(),
    }
    outcome.map_err(of_status)
}
