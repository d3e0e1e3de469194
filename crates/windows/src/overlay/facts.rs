//! Single facts, read and changed within one transaction.
//!
//! | what | key | value |
//! |---|---|---|
//! | name | path | number of the file |
//! | file | number | record |
//! | extended attribute | number, name | value |
//!
//! All are rows of one table, so that what a step changed can be kept, taken back and done again
//! without knowing what it means.

use codeagent_common::{RelPath, RelPathBuf};
use rusqlite::{Connection, OptionalExtension, params};

use super::record::Record;
use super::store::{Counters, Store};
use super::{Kind, Limits, OverlayError, Result};

pub(super) const NAME: i64 = 0;
const FILE: i64 = 1;
const XATTR: i64 = 2;

/// Which step a change belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Step(i64),
    /// There are no steps at all.
    NotNeeded,
    /// None is open, and those that are kept could not be rolled back exactly any more.
    Missing,
}

/// A transaction, or whoever only reads.
#[derive(Debug)]
pub(super) struct Facts<'s> {
    connection: &'s Connection,
    limits: Limits,
    owner: Owner,
    pub(super) counters: Counters,
}

impl<'s> Facts<'s> {
    pub(super) fn reading(store: &'s Store) -> Self {
        Self::new(store.connection(), store.limits(), Owner::Missing, store.counters())
    }

    pub(super) fn new(
        connection: &'s Connection,
        limits: Limits,
        owner: Owner,
        counters: Counters,
    ) -> Self {
        Self { connection, limits, owner, counters }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn file_at(&self, path: RelPath<'_>) -> Result<Option<(i64, Record)>> {
        let Some(id) = self.get(NAME, path.as_bytes())? else { return Ok(None) };
        let id = number(&id)?;
        match self.get(FILE, &id.to_be_bytes())? {
            Some(record) => Ok(Some((id, Record::decode(&record)?))),
            None => Err(OverlayError::Damaged(format!("there is no file {id}"))),
        }
    }

    /// As `file_at`, if it is of what is there now.
    pub(super) fn file_of_kind(
        &self,
        path: RelPath<'_>,
        kind: Kind,
    ) -> Result<Option<(i64, Record)>> {
        Ok(self.file_at(path)?.filter(|(_, record)| record.kind == kind))
    }

    pub(super) fn file_or_new(&mut self, path: RelPath<'_>, kind: Kind) -> Result<(i64, Record)> {
        match self.file_at(path)? {
            Some((id, record)) if record.kind == kind => return Ok((id, record)),
            // What was below was of something else as well.
            Some(_) => self.drop_tree(path)?,
            None => {}
        }
        let id = self.counters.next_file;
        self.counters.next_file += 1;
        let record = Record::new(kind);
        self.put_record(id, Some(&record))?;
        self.put_name(path, Some(id))?;
        Ok((id, record))
    }

    /// Everything known of `path` and of what is below it.
    pub(super) fn drop_tree(&mut self, path: RelPath<'_>) -> Result<()> {
        for (path, id) in self.names_within(path)? {
            self.put_name(path.as_path(), None)?;
            let Some(record) = self.get(FILE, &id.to_be_bytes())? else { continue };
            let mut record = Record::decode(&record)?;
            record.names = record.names.saturating_sub(1);
            if record.names > 0 {
                self.put_record(id, Some(&record))?;
                continue;
            }
            for (name, _) in self.xattrs(id)? {
                self.put_xattr(id, &name, None)?;
            }
            self.put_record(id, None)?;
        }
        Ok(())
    }

    /// `path` and everything below it that something is known of.
    pub(super) fn names_within(&self, path: RelPath<'_>) -> Result<Vec<(RelPathBuf, i64)>> {
        let mut found = Vec::new();
        if let Some(id) = self.get(NAME, path.as_bytes())? {
            found.push((path.to_buf(), number(&id)?));
        }
        // Behind `dir/` and before whatever follows that in the order of bytes. Below the root is
        // everything but the root itself.
        let (first, end) = match path.is_root() {
            true => (vec![0], vec![0xff; 8]),
            false => ([path.as_bytes(), b"/"].concat(), [path.as_bytes(), b"0"].concat()),
        };
        let mut rows = self.connection.prepare_cached(
            "SELECT key, value FROM facts WHERE what = ?1 AND key >= ?2 AND key < ?3 ORDER BY key",
        )?;
        let mut rows = rows.query(params![NAME, first, end])?;
        while let Some(row) = rows.next()? {
            let key: Vec<u8> = row.get(0)?;
            let id: Vec<u8> = row.get(1)?;
            let path = RelPathBuf::new(key)
                .map_err(|error| OverlayError::Damaged(format!("a name is none: {error}")))?;
            found.push((path, number(&id)?));
        }
        Ok(found)
    }

    pub(super) fn xattr(&self, id: i64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get(XATTR, &xattr_key(id, name))
    }

    pub(super) fn xattrs(&self, id: i64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut rows = self.connection.prepare_cached(
            "SELECT key, value FROM facts WHERE what = ?1 AND key >= ?2 AND key < ?3 ORDER BY key",
        )?;
        let (first, end) = (id.to_be_bytes(), (id + 1).to_be_bytes());
        let rows = rows.query_map(params![XATTR, first, end], |row| {
            let key: Vec<u8> = row.get(0)?;
            Ok((key.get(first.len()..).unwrap_or_default().to_vec(), row.get(1)?))
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    pub(super) fn put_name(&mut self, path: RelPath<'_>, id: Option<i64>) -> Result<()> {
        let value = id.map(i64::to_be_bytes);
        self.put(NAME, path.as_bytes(), value.as_ref().map(<[u8; 8]>::as_slice))
    }

    pub(super) fn put_record(&mut self, id: i64, record: Option<&Record>) -> Result<()> {
        self.put(FILE, &id.to_be_bytes(), record.map(Record::encode).as_deref())
    }

    pub(super) fn put_xattr(&mut self, id: i64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.put(XATTR, &xattr_key(id, name), value)
    }

    fn get(&self, what: i64, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut query = self
            .connection
            .prepare_cached("SELECT value FROM facts WHERE what = ?1 AND key = ?2")?;
        Ok(query.query_row(params![what, key], |row| row.get(0)).optional()?)
    }

    /// Changes one fact; the step that it belongs to keeps what it was before the step, and what
    /// it has become.
    fn put(&mut self, what: i64, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let before = self.get(what, key)?;
        if before.as_deref() == value {
            return Ok(());
        }
        match self.owner {
            Owner::Step(step) => self.keep(step, what, key, before.as_deref(), value)?,
            Owner::NotNeeded => {}
            Owner::Missing => return Err(OverlayError::NoStepOpen),
        }
        self.write(what, key, value)?;
        if what == NAME {
            match (before.is_some(), value.is_some()) {
                (false, true) => self.counters.names += 1,
                (true, false) => self.counters.names -= 1,
                _ => {}
            }
            if self.counters.names > self.limits.names {
                return Err(OverlayError::TooManyNames(self.limits.names));
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, what: i64, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => self
                .connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO facts (what, key, value) VALUES (?1, ?2, ?3)",
                )?
                .execute(params![what, key, value])?,
            None => self
                .connection
                .prepare_cached("DELETE FROM facts WHERE what = ?1 AND key = ?2")?
                .execute(params![what, key])?,
        };
        Ok(())
    }

    fn keep(
        &mut self,
        step: i64,
        what: i64,
        key: &[u8],
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Result<()> {
        let again = self
            .connection
            .prepare_cached(
                "UPDATE changes SET after = ?4 WHERE step = ?1 AND what = ?2 AND key = ?3",
            )?
            .execute(params![step, what, key, after])?;
        if again > 0 {
            return Ok(());
        }
        if self.counters.changes >= self.limits.changes_in_step {
            return Err(OverlayError::StepTooLarge(self.limits.changes_in_step));
        }
        self.counters.changes += 1;
        self.connection
            .prepare_cached(
                "INSERT INTO changes (step, what, key, before, after) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![step, what, key, before, after])?;
        Ok(())
    }
}

fn xattr_key(id: i64, name: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes()[..], name].concat()
}

fn number(bytes: &[u8]) -> Result<i64> {
    let bytes = bytes.try_into().map_err(|_| {
        OverlayError::Damaged(format!("{} bytes are no number of a file", bytes.len()))
    })?;
    Ok(i64::from_be_bytes(bytes))
}
