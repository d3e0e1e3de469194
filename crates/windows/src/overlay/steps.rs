//! Steps: what each changed, taken back and done again.

use codeagent_common::StepId;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::store::Store;
use super::{OverlayError, Result};

const OPEN: i64 = 0;
const ENDED: i64 = 1;
const UNDONE: i64 = 2;

impl Store {
    pub(super) fn begin_step(&mut self, step: StepId) -> Result<()> {
        if let Some(open) = self.open {
            return Err(OverlayError::StepOpen(StepId(open)));
        }
        if self.state_of(step)?.is_some() {
            return Err(OverlayError::StepKnown(step));
        }
        self.connection().execute(
            "INSERT INTO steps (id, place, state)
             SELECT ?1, coalesce(max(place), 0) + 1, ?2 FROM steps",
            params![step.0, OPEN],
        )?;
        self.open = Some(step.0);
        self.count()
    }

    pub(super) fn end_step(&mut self, step: StepId) -> Result<()> {
        if self.open != Some(step.0) {
            return Err(OverlayError::NotItsTurn(step));
        }
        let has_changed = self.counters().changes > 0;
        self.at_once(|connection| {
            set_state(connection, step, ENDED)?;
            if has_changed {
                drop_steps(connection, "state = ?1", UNDONE)?;
            } else {
                // Not kept: the undone ones still follow what was before.
                drop_steps(connection, "id = ?1", step.0)?;
            }
            Ok(())
        })?;
        self.open = None;
        Ok(())
    }

    pub(super) fn rollback(&mut self, step: StepId) -> Result<()> {
        let newest = self.first("state <> ?1 ORDER BY place DESC", UNDONE)?;
        if newest != Some(step.0) {
            return self.nothing_of(step);
        }
        let was_open = self.open == Some(step.0);
        self.at_once(|connection| {
            replace_facts(connection, step, "before")?;
            match was_open {
                true => drop_steps(connection, "id = ?1", step.0),
                false => set_state(connection, step, UNDONE),
            }
        })?;
        self.open = self.open.filter(|_| !was_open);
        self.count()
    }

    pub(super) fn redo(&mut self, step: StepId) -> Result<()> {
        if let Some(open) = self.open {
            return Err(OverlayError::StepOpen(StepId(open)));
        }
        if self.first("state = ?1 ORDER BY place", UNDONE)? != Some(step.0) {
            return self.nothing_of(step);
        }
        self.at_once(|connection| {
            replace_facts(connection, step, "after")?;
            set_state(connection, step, ENDED)
        })?;
        self.count()
    }

    pub(super) fn forget(&mut self, step: StepId) -> Result<()> {
        match self.state_of(step)? {
            Some(ENDED) => self.at_once(|connection| {
                let until = "place <= (SELECT place FROM steps WHERE id = ?1)";
                drop_steps(connection, until, step.0)
            }),
            Some(_) => Err(OverlayError::NotItsTurn(step)),
            None => Ok(()),
        }
    }

    pub(super) fn forget_undone(&mut self) -> Result<()> {
        self.at_once(|connection| drop_steps(connection, "state = ?1", UNDONE))
    }

    pub(super) fn find_open(&self) -> Result<Option<i64>> {
        self.first("state = ?1 ORDER BY place DESC", OPEN)
    }

    pub(super) fn has_steps(&self) -> Result<bool> {
        let mut query = self.connection().prepare_cached("SELECT EXISTS (SELECT 1 FROM steps)")?;
        Ok(query.query_row([], |row| row.get(0))?)
    }

    /// Nothing is to be done for a step that changed nothing here; one that did has to wait for
    /// its turn.
    fn nothing_of(&self, step: StepId) -> Result<()> {
        match self.state_of(step)? {
            Some(_) => Err(OverlayError::NotItsTurn(step)),
            None => Ok(()),
        }
    }

    fn state_of(&self, step: StepId) -> Result<Option<i64>> {
        let mut query =
            self.connection().prepare_cached("SELECT state FROM steps WHERE id = ?1")?;
        Ok(query.query_row([step.0], |row| row.get(0)).optional()?)
    }

    fn first(&self, condition: &str, value: i64) -> Result<Option<i64>> {
        let sql = format!("SELECT id FROM steps WHERE {condition} LIMIT 1");
        let mut query = self.connection().prepare_cached(&sql)?;
        Ok(query.query_row([value], |row| row.get(0)).optional()?)
    }

    fn at_once(&mut self, change: impl FnOnce(&Connection) -> Result<()>) -> Result<()> {
        let connection = self.connection_mut();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        change(&transaction)?;
        Ok(transaction.commit()?)
    }
}

fn set_state(connection: &Connection, step: StepId, state: i64) -> Result<()> {
    connection.execute("UPDATE steps SET state = ?2 WHERE id = ?1", params![step.0, state])?;
    Ok(())
}

/// Forgets steps, and with them what they changed.
fn drop_steps(connection: &Connection, condition: &str, value: i64) -> Result<()> {
    let of_steps = format!("SELECT id FROM steps WHERE {condition}");
    connection.execute(&format!("DELETE FROM changes WHERE step IN ({of_steps})"), [value])?;
    connection.execute(&format!("DELETE FROM steps WHERE {condition}"), [value])?;
    Ok(())
}

/// Gives every fact that the step changed the value in this column.
fn replace_facts(connection: &Connection, step: StepId, column: &str) -> Result<()> {
    let has = format!("FROM changes WHERE step = ?1 AND {column} IS");
    connection.execute(
        &format!("DELETE FROM facts WHERE (what, key) IN (SELECT what, key {has} NULL)"),
        [step.0],
    )?;
    connection.execute(
        &format!(
            "INSERT OR REPLACE INTO facts (what, key, value) \
             SELECT what, key, {column} {has} NOT NULL"
        ),
        [step.0],
    )?;
    Ok(())
}
