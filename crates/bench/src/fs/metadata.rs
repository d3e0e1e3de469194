//! Names and attributes of many small files.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::Bench;
use super::side::Side;
use super::times::{READS, Times, WRITES, rounds};
use crate::one_core::OneCore;
use crate::table::Row;
use crate::tree::{Tree, host_path};

const FILES: usize = 1_000;
const LISTINGS: usize = 5;

pub(super) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let _one_core = OneCore::keep()?;
    let tree = Tree::new(FILES, 1024)?;
    let content = tree.content(1);
    let count = 3 * bench.repetitions;
    let mut sides = Side::prepare(bench, 256 << 20, |work| {
        (0..count).try_for_each(|round| {
            tree.make_dirs(&work.join(format!("new_{round}")))?;
            tree.fill(&work.join(format!("old_{round}")))
        })
    })?;
    let (mut create, mut stat, mut list, mut unlink) = <(Times, Times, Times, Times)>::default();
    rounds(&mut sides, count, |side, round| {
        let kind = side.kind();
        let (old, new) = (format!("old_{round}"), format!("new_{round}"));
        create.push(kind, side.step(|dir| create_all(&dir.join(&new), &tree, &content))?);
        let full = side.dir().join(&old);
        let started = Instant::now();
        list_all(&full, &tree)?;
        list.push(kind, started.elapsed());
        let started = Instant::now();
        stat_all(&full, &tree)?;
        stat.push(kind, started.elapsed());
        unlink.push(kind, side.step(|dir| unlink_all(&dir.join(&old), &tree))?);
        // FUSE alone keeps every file open that the kernel knows.
        side.step(|dir| unlink_all(&dir.join(&new), &tree))?;
        Ok(())
    })?;
    let mut rows = Vec::new();
    rows.extend(create.rows("create 1,000 × 1 KiB", WRITES));
    rows.extend(stat.rows("stat 1,000", READS));
    rows.extend(list.rows("list 10 directories of 100, 5 times", READS));
    rows.extend(unlink.rows("unlink 1,000", WRITES));
    Ok(rows)
}

fn create_all(root: &Path, tree: &Tree, content: &[u8]) -> Result<()> {
    for file in &tree.files {
        fs::File::create_new(host_path(root, file.as_path()))?.write_all(content)?;
    }
    Ok(())
}

fn stat_all(root: &Path, tree: &Tree) -> Result<()> {
    for file in &tree.files {
        let found = fs::symlink_metadata(host_path(root, file.as_path()))?;
        ensure!(found.len() == 1024, "a file of the wrong size");
    }
    Ok(())
}

fn list_all(root: &Path, tree: &Tree) -> Result<()> {
    for dir in std::iter::repeat_n(&tree.dirs, LISTINGS).flatten() {
        let mut files = 0;
        for entry in fs::read_dir(host_path(root, dir.as_path()))? {
            files += usize::from(entry?.file_type()?.is_file());
        }
        ensure!(files == 100, "a directory of {files} files");
    }
    Ok(())
}

fn unlink_all(root: &Path, tree: &Tree) -> Result<()> {
    tree.files.iter().try_for_each(|file| Ok(fs::remove_file(host_path(root, file.as_path()))?))
}
