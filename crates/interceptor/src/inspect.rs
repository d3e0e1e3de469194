//! Reading an undo directory without an engine: checking it, and showing it.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use codeagent_common::RelPathBuf;

use crate::fold::Marks;
use crate::host::Dir;
use crate::store::{
    At, BarrierLog, Body, ChangeTable, Content, Damage, JournalReader, LoanBook, ObjectRef, Owner,
    PackReader, Purpose, Record, Region, RemadeLog, StepDir, Trailer, check_counters,
    check_workdir_file, is_current_format,
};

/// Something `verify` did not like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which part of the log, as a path below the undo directory.
    pub place: String,
    pub problem: String,
}

/// The result of reading everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    pub steps: usize,
    pub redoable: usize,
    pub records: u64,
    pub findings: Vec<Finding>,
}

impl VerifyReport {
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }

    fn find(&mut self, place: impl Into<String>, problem: impl ToString) {
        self.findings.push(Finding { place: place.into(), problem: problem.to_string() });
    }
}

/// Whether nothing in it can be undone or redone, nor was interrupted. What a log of another format
/// holds nobody knows, so that one is not empty.
pub fn is_empty(undo_dir: &Path) -> io::Result<bool> {
    if !is_current_format(undo_dir)? {
        return Ok(false);
    }
    for dir in ["steps", "redo", "wal"] {
        let holds_something = match fs::read_dir(undo_dir.join(dir)) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if holds_something {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads every byte the engine would ever use, and says what is damaged. Changes nothing.
pub fn verify(undo_dir: &Path) -> io::Result<VerifyReport> {
    let mut report = VerifyReport::default();
    if !is_current_format(undo_dir)? {
        report.find("version", "not a log of this program's format");
        return Ok(report);
    }
    if let Err(error) = check_workdir_file(undo_dir) {
        report.find("workdir", error);
    }
    if let Err(error) = check_counters(undo_dir) {
        report.find("counters", error);
    }
    if !BarrierLog::is_sound(&undo_dir.join("barriers").into())? {
        report.find("barriers", "damaged or missing");
    }
    if !RemadeLog::is_sound(&undo_dir.join("remade").into())? {
        report.find("remade", "damaged or missing");
    }
    if !LoanBook::is_sound(undo_dir)? {
        report.find("loans", "damaged");
    }
    let mut entries = Vec::new();
    for which in ["steps", "redo"] {
        let found = list(undo_dir, which)?;
        match which {
            "steps" => report.steps = found.len(),
            _ => report.redoable = found.len(),
        }
        entries.extend(found.into_iter().map(|dir| (place(which, &dir), dir)));
    }
    // Newest first: a later step may have written to what lies in an earlier one's store.
    let sequence = |dir: &StepDir| {
        dir.journal().ok().and_then(|journal| journal.header()).map_or(0, |header| header.sequence)
    };
    entries.sort_by_key(|(_, dir)| std::cmp::Reverse(sequence(dir)));
    // What has been inverted is spent, and waits to be dropped.
    let spent: HashSet<u64> = entries
        .iter()
        .filter_map(|(_, dir)| match dir.journal().ok()?.header()?.purpose {
            Purpose::Step => None,
            Purpose::Undo(sequence) | Purpose::Redo(sequence) => Some(sequence),
        })
        .collect();
    entries.retain(|(_, dir)| !spent.contains(&sequence(dir)));
    let mut written = HashSet::new();
    let wal = StepDir::at(undo_dir.join("wal/in_progress"));
    if wal.path().exists() {
        verify_records(&wal, "wal/in_progress", &mut written, &mut report)?;
    }
    for (place, dir) in &entries {
        verify_entry(dir, place, &mut written, &mut report)?;
    }
    Ok(report)
}

fn list(undo_dir: &Path, which: &str) -> io::Result<Vec<StepDir>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(undo_dir.join(which))? {
        found.push(StepDir::at(entry?.path()));
    }
    found.sort_by(|a, b| a.path().cmp(b.path()));
    Ok(found)
}

fn place(which: &str, dir: &StepDir) -> String {
    format!("{which}/{}", dir.path().file_name().unwrap_or_default().to_string_lossy())
}

fn verify_entry(
    dir: &StepDir,
    place: &str,
    written: &mut HashSet<ObjectRef>,
    report: &mut VerifyReport,
) -> io::Result<()> {
    match (dir.summary(), ChangeTable::read(&dir.place().join("changes"))) {
        (Err(error), _) => report.find(format!("{place}/summary.json"), error),
        (Ok((_, check)), Ok((_, trailer))) if check != trailer.summary_check => {
            report.find(format!("{place}/summary.json"), "it was changed after the step");
        }
        _ => {}
    }
    if !ChangeTable::refreshed_is_sound(&dir.refreshed())? {
        report.find(format!("{place}/refreshed"), "damaged");
    }
    if let Err(error) = dir.held_below() {
        report.find(format!("{place}/held"), error);
    }
    verify_records(dir, place, written, report)
}

fn verify_records(
    dir: &StepDir,
    place: &str,
    written: &mut HashSet<ObjectRef>,
    report: &mut VerifyReport,
) -> io::Result<()> {
    let mut check = || {
        let journal = dir.journal()?;
        // An unfinished one has no trailer.
        let trailer = dir.is_closed().then(|| dir.changes()).transpose()?.map(|read| read.1);
        let problems = check_journal(dir, &journal, trailer.as_ref(), written)?;
        Ok::<_, io::Error>((problems, journal.end()))
    };
    match check() {
        Ok((problems, end)) => {
            problems.iter().for_each(|problem| report.find(place, problem));
            report.records += end.saturating_sub(1);
        }
        Err(error) => report.find(place, error),
    }
    Ok(())
}

/// What speaks against inverting a journal.
pub(crate) enum Problem {
    /// It cannot be done.
    Damage(String),
    /// What the step had taken from here is still there, but not as it was: whoever had it open has
    /// gone on writing.
    WrittenSince(RelPathBuf),
}

impl From<String> for Problem {
    fn from(damage: String) -> Self {
        Self::Damage(damage)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damage(what) => out.write_str(what),
            Self::WrittenSince(path) => write!(out, "what was kept of {path} has been changed"),
        }
    }
}

/// Everything that speaks against inverting a journal. `written` holds the objects that newer
/// journals have written to, and gets those that this one has.
pub(crate) fn check_journal(
    dir: &StepDir,
    journal: &JournalReader,
    trailer: Option<&Trailer>,
    written: &mut HashSet<ObjectRef>,
) -> io::Result<Vec<Problem>> {
    let pack = dir.pack()?;
    let Some(header) = journal.header() else {
        return Ok(vec![Problem::Damage("its journal has no header".into())]);
    };
    let lengths = check_lengths(journal, &pack, trailer)?;
    let mut problems: Vec<Problem> = lengths.into_iter().map(Problem::Damage).collect();
    let marks = Marks::read(journal)?;
    let objects = dir.objects()?;
    // What the step had captured may have been written to after it moved into the store, too.
    let mut captured = HashSet::new();
    for (_, record) in journal.records() {
        if let Record::Preimage { at, meta, .. } = record? {
            captured.extend(meta.map(|meta| meta.stamp.inode));
            if let At::Object(object) = at {
                written.insert(object);
            }
        }
    }
    for (index, record) in journal.records() {
        if marks.cancelled.contains(&index) {
            continue;
        }
        let owner = Owner::Sequence(header.sequence);
        let is_written = |number: u32, inode: u64| {
            written.contains(&ObjectRef { owner, number }) || captured.contains(&inode)
        };
        match check_record(&record?, &pack, &objects, is_written) {
            Err(Problem::Damage(what)) => {
                problems.push(Problem::Damage(format!("record {index}: {what}")));
            }
            outcome => problems.extend(outcome.err()),
        }
    }
    Ok(problems)
}

/// Whether anything is missing from journal and pack. Only an unfinished journal has no trailer, and
/// may end in a torn frame.
pub(crate) fn check_lengths(
    journal: &JournalReader,
    pack: &PackReader,
    trailer: Option<&Trailer>,
) -> io::Result<Vec<String>> {
    let mut problems = Vec::new();
    if journal.damage() == Damage::Broken {
        problems.push("its journal is damaged".into());
    }
    if let Some(trailer) = trailer {
        if journal.damage() != Damage::None
            || journal.extent() != (trailer.journal_frames, trailer.journal_bytes)
        {
            problems.push("its journal is not as long as it was".into());
        }
        if pack.length()? != trailer.pack_bytes {
            problems.push("its pack is not as long as it was".into());
        }
    }
    Ok(problems)
}

fn check_record(
    record: &Record<'_>,
    pack: &PackReader,
    objects: &Arc<Dir>,
    is_written: impl Fn(u32, u64) -> bool,
) -> Result<(), Problem> {
    let object = |number: u32| {
        let found = objects.entry(number.to_string().into_bytes()).stat();
        found.ok().flatten().ok_or_else(|| format!("object {number} is missing"))
    };
    let check_extents = |region: &Region| {
        let mut extents = region.extents.iter();
        extents.try_for_each(|extent| pack.read(extent).map(|_| ())).map_err(|e| e.to_string())
    };
    match record {
        Record::Take { path, object: number, stamp, .. }
        | Record::Swap { path, object: number, taken: stamp, .. } => {
            let found = object(*number)?;
            // Another name of the file may still be in the working directory: what happens to it
            // there is recorded there.
            let may_differ = stamp.links > 1 || found.links > 1 || is_written(*number, stamp.inode);
            if stamp.describes_object(&found) || (may_differ && found.inode == stamp.inode) {
                return Ok(());
            }
            if found.inode == stamp.inode && found.is_file() && stamp.is_file() {
                return Err(Problem::WrittenSince(path.to_buf()));
            }
            Err(format!("what was kept of {path} is something else").into())
        }
        Record::Preimage {
            content: Some(Content::Clone { object: number, stamp, .. }), ..
        } => {
            if stamp.describes_object(&object(*number)?) {
                return Ok(());
            }
            Err(format!("object {number} has been changed").into())
        }
        Record::Preimage { content: Some(Content::Ranges { regions, .. }), .. } => {
            Ok(regions.iter().try_for_each(check_extents)?)
        }
        Record::Removed { body: Body::File(region), .. } => Ok(check_extents(region)?),
        _ => Ok(()),
    }
}

/// Everything a step's journal says, one record a line, for people.
pub fn dump(undo_dir: &Path, entry: &str) -> io::Result<String> {
    let dir = StepDir::at(undo_dir.join(entry));
    let journal = dir.journal()?;
    let mut text = String::new();
    match journal.header() {
        Some(header) => {
            let _ = writeln!(text, "header {header:?}");
        }
        None => text.push_str("header missing\n"),
    }
    for (index, record) in journal.records() {
        let _ = match record {
            Ok(record) => writeln!(text, "{index:>6} {record:?}"),
            Err(error) => writeln!(text, "{index:>6} {error}"),
        };
    }
    if journal.damage() != Damage::None {
        let _ = writeln!(text, "the journal ends in a damaged frame ({:?})", journal.damage());
    }
    Ok(text)
}
