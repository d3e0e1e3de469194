//! The database: how it is opened, and what it is before anything is done with it.

use std::path::Path;

use codeagent_common::StepId;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::facts::{Facts, NAME, Owner};
use super::{Limits, OverlayError, Result};

/// "CAPM": what tells our databases from others.
const APPLICATION_ID: i64 = 0x4341_504d;
const FORMAT: i64 = 1;

const SCHEMA: &str = "
    CREATE TABLE facts (
        what INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (what, key)) WITHOUT ROWID;
    -- What each step changed, as it was before and as it is since; NULL where there was nothing.
    CREATE TABLE changes (
        step INTEGER NOT NULL, what INTEGER NOT NULL, key BLOB NOT NULL, before BLOB, after BLOB,
        PRIMARY KEY (step, what, key)) WITHOUT ROWID;
    -- In the order of place. state: 0 open, 1 ended, 2 rolled back.
    CREATE TABLE steps (
        id INTEGER PRIMARY KEY, place INTEGER NOT NULL UNIQUE, state INTEGER NOT NULL);
    -- Numbers of files are never given twice: a step may bring an old one back.
    CREATE TABLE numbers (next_file INTEGER NOT NULL);
    INSERT INTO numbers VALUES (1);
";

/// Counted once, at the beginning, and kept in step with every transaction that completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counters {
    pub(super) names: u64,
    /// Of the open step.
    pub(super) changes: u64,
    pub(super) next_file: i64,
}

#[derive(Debug)]
pub(super) struct Store {
    connection: Connection,
    limits: Limits,
    counters: Counters,
    pub(super) open: Option<i64>,
}

impl Store {
    pub(super) fn open(path: &Path, limits: Limits) -> Result<Self> {
        // SQLite would take less than a header for an empty database, and write over it.
        const HEADER_BYTES: u64 = 100;
        let length = std::fs::metadata(path).map_or(0, |file| file.len());
        if (1..HEADER_BYTES).contains(&length) {
            return Err(OverlayError::Damaged(format!("{length} bytes are no database")));
        }
        let connection = ready(path).map_err(|error| match error {
            OverlayError::Database(source) => match source.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    OverlayError::InUse(path.into())
                }
                _ => OverlayError::Unusable { path: path.into(), source },
            },
            other => other,
        })?;
        let mut store = Self { connection, limits, counters: Counters::default(), open: None };
        store.open = store.find_open()?;
        store.count()?;
        Ok(store)
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn open_step(&self) -> Option<StepId> {
        self.open.map(StepId)
    }

    /// One transaction: all of it, or an error and nothing.
    pub(super) fn change<T>(
        &mut self,
        change: impl FnOnce(&mut Facts<'_>) -> Result<T>,
    ) -> Result<T> {
        let owner = match self.open {
            Some(step) => Owner::Step(step),
            None if self.has_steps()? => Owner::Missing,
            None => Owner::NotNeeded,
        };
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut facts = Facts::new(&transaction, self.limits, owner, self.counters);
        let outcome = change(&mut facts)?;
        let counters = facts.counters;
        if counters.next_file != self.counters.next_file {
            transaction.execute("UPDATE numbers SET next_file = ?1", [counters.next_file])?;
        }
        transaction.commit()?;
        self.counters = counters;
        Ok(outcome)
    }

    /// Counts anew, after many facts changed at once.
    pub(super) fn count(&mut self) -> Result<()> {
        let number = |sql: &str, value: i64| -> rusqlite::Result<i64> {
            self.connection.query_row(sql, [value], |row| row.get(0))
        };
        let names = number("SELECT count(*) FROM facts WHERE what = ?1", NAME)?;
        let changes = match self.open {
            Some(step) => number("SELECT count(*) FROM changes WHERE step = ?1", step)?,
            None => 0,
        };
        let next_file = number("SELECT next_file FROM numbers WHERE ?1 = 0", 0)?;
        self.counters = Counters { names: names as u64, changes: changes as u64, next_file };
        Ok(())
    }

    /// The connection, for more than single facts. Counters are to be brought up to date after.
    pub(super) fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// A connection to a database that is ours, or becomes so now.
fn ready(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX; // one thread at a time has it
    let connection = Connection::open_with_flags(path, flags)?;
    // One process has it, so nothing has to be shared in memory between several.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    let is_new = is_new(&connection, path)?;
    // From here on the file is written to.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // Against crashes of this process; what the power takes are whole transactions, the last ones.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_prepared_statement_cache_capacity(32);
    if is_new {
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; \
             PRAGMA user_version = {FORMAT}; COMMIT;"
        ))?;
    }
    Ok(connection)
}

/// Whether nothing is in it yet. What is in it has to be ours, of a format we know, and whole.
fn is_new(connection: &Connection, path: &Path) -> Result<bool> {
    let number = |pragma| -> rusqlite::Result<i64> {
        connection.pragma_query_value(None, pragma, |row| row.get(0))
    };
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let (application, format) = (number("application_id")?, number("user_version")?);
    if tables == 0 && application == 0 && format == 0 {
        return Ok(true);
    }
    if application != APPLICATION_ID {
        return Err(OverlayError::NotOurs(path.into()));
    }
    if format != FORMAT {
        return Err(OverlayError::Version { found: format, expected: FORMAT });
    }
    let fault: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    match fault.as_str() {
        "ok" => Ok(false),
        _ => Err(OverlayError::Damaged(fault)),
    }
}
