//! Copying entries, with everything that belongs to them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::{Dir, Entry, FileId, Meta, MetaScope, clone_file, copy_range, data_segments};

/// Where the first copy of a hard-linked file went, by the inode of its source.
pub(crate) type CopiedLinks = HashMap<FileId, (Arc<Dir>, Vec<u8>)>;

/// Copies an entry, recursively, with all its metadata; hard links below it stay hard links.
pub(crate) fn copy_entry(source: &Entry<'_>, target: &Entry<'_>) -> io::Result<()> {
    copy_linked(source, target, &mut CopiedLinks::new())
}

/// As [`copy_entry`]; files that were copied before under another name are linked.
pub(crate) fn copy_linked(
    source: &Entry<'_>,
    target: &Entry<'_>,
    links: &mut CopiedLinks,
) -> io::Result<()> {
    let (id, stamp) = source.stat_id()?.ok_or(Errno::NOENT)?;
    if !stamp.is_dir() && stamp.links > 1 {
        if let Some((dir, name)) = links.get(&id) {
            return dir.entry(name.as_slice()).link_to(target);
        }
        links.insert(id, (Arc::clone(target.dir_handle()), target.name().to_vec()));
    }
    let meta = Meta::read(source, stamp, MetaScope::Full)?;
    match stamp.file_type() {
        FileType::Directory => {
            target.mkdir()?;
            let (from, to) = (source.open_dir()?, target.open_dir()?);
            for name in from.names()? {
                let (source, target) = (from.entry(&*name), to.entry(&*name));
                copy_linked(&source.owned(), &target.owned(), links)?;
            }
        }
        FileType::RegularFile => copy_content(source, target, stamp.size)?,
        FileType::Symlink => target.symlink(&source.read_link()?)?,
        special => target.mknod(special, stamp.rdev)?,
    }
    meta.apply(target)
}

fn copy_content(source: &Entry<'_>, target: &Entry<'_>, size: u64) -> io::Result<()> {
    let (from, to) = (source.open_read()?, target.create_file()?);
    if size > 0 && clone_file(&to, &from)? {
        return Ok(());
    }
    to.set_len(size)?;
    for (start, end) in data_segments(&from, 0, size)? {
        copy_range(&from, &to, start, end)?;
    }
    Ok(())
}
