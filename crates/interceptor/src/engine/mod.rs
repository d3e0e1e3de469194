//! The undo engine: one working directory, one undo directory, any number of threads.
//!
//! | file | what it holds |
//! |---|---|
//! | `hooks` | what happens before each mutation |
//! | `steps` | opening and closing steps |
//! | `shared` | steps beside commands in the background, and what becomes of those nobody ends |
//! | `own` | steps that take nothing but what is handed to the engine |
//! | `invert`, `provenance` | replaying a journal backwards, and whose work is removed by that |
//! | `rollback` | undo and redo |
//! | `recovery` | what happens at the start after a crash |
//! | `external`, `continuity`, `refresh` | telling other people's edits from our own |
//! | `adopt`, `overlay` | committing a staged tree, and the upper layer of an overlay |
//! | `restore`, `past`, `rebuild`, `placing` | bringing single paths back |
//! | `history` | what can be asked without changing anything |
//! | `content` | what was in a file, for people who want to see what a step did |
//! | `limits` | eviction and pinning |
//! | `full_disk` | what still works when there is no space left |
//! | `caches` | what clients have in memory of files' contents |

mod adopt;
mod caches;
mod content;
mod continuity;
mod cursor;
mod external;
mod full_disk;
mod history;
mod hooks;
mod invert;
mod limits;
mod overlay;
mod own;
mod past;
mod permit;
mod placing;
mod provenance;
mod rebuild;
mod recovery;
mod refresh;
mod restore;
mod rollback;
mod safeguard;
mod shared;
mod state;
mod steps;
mod whole_dirs;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use codeagent_common::{ResourceLimits, SafeguardConfig, SafeguardDecision, SafeguardId};
use parking_lot::{Mutex, RwLock};

use crate::capture::{FreeSpace, Moved, Recorder, Workspace};
use crate::clock::timestamp;
use crate::config::EngineConfig;
use crate::error::{Result, UndoError};
use crate::events::EngineEvent;
use crate::host::{Entry, Lender, Tree};
use crate::ignored::Ignored;
use crate::store::{
    BarrierLog, Counters, FORMAT_VERSION, Header, LoanBook, ObjectRef, Owner, Purpose, RemadeLog,
    Store, Versioned,
};

pub use adopt::{AdoptReport, StagedChange};
pub use caches::ClientCache;
pub use content::EntryContent;
pub use history::{HistoryEntry, Preview, StoreStatus};
pub use overlay::{OverlayReport, Staging};
pub use own::OwnChanges;
pub(crate) use permit::Held;
pub use recovery::RecoveryReport;
pub use restore::RestoreReport;
pub use rollback::{OnConflict, RollbackOptions, RollbackReport};
pub use shared::AbortedStep;
pub use steps::{ClosedStep, StepRequest};

use caches::Caches;
use overlay::Staged;
use safeguard::SafeguardDesk;
use state::State;

/// Locks for directories whose entries change; more than threads, so that they rarely meet.
const DIR_LOCKS: usize = 256;

/// Records every change to a working directory, and takes it back.
pub struct UndoEngine {
    config: EngineConfig,
    workspace: Workspace,
    /// Shared by mutations of clients from before they take any lock; owned by a step that takes
    /// nothing of theirs, for as long as it is open. Taken before the gate.
    others: Arc<RwLock<()>>,
    /// The gate: shared by mutations under way, exclusive for everything that changes steps.
    state: RwLock<State>,
    /// Shared while entries change, exclusive while a directory changes its name. Taken after the
    /// gate, and before any of `dir_locks`.
    names: RwLock<()>,
    dir_locks: Box<[Mutex<()>]>,
    desk: SafeguardDesk,
    caches: Caches,
    limits: RwLock<ResourceLimits>,
    safeguards: RwLock<SafeguardConfig>,
    ignored: Ignored,
    staged: Mutex<Staged>,
    recovery: Option<RecoveryReport>,
}

impl std::fmt::Debug for UndoEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UndoEngine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl UndoEngine {
    /// Opens both directories, recovers from a crash if there was one, and reads the history.
    pub fn open(mut config: EngineConfig) -> Result<Self> {
        let working = config.working_dir.clone();
        let unusable = |source| UndoError::WorkingDirUnusable { path: working.clone(), source };
        if config.opened.is_none() {
            config.working_dir = config.working_dir.canonicalize().map_err(unusable)?;
        }
        let way_in = config.way_in();
        let tree = Tree::open(&way_in).map_err(unusable)?;
        let (probe, durable) = (config.probe(), config.durable);
        let working = (config.working_dir.as_path(), way_in.as_path());
        let way_into_undo = config.way_into_undo();
        let undo = (config.undo_dir.as_path(), way_into_undo.as_deref());
        let opened = Store::open(undo, working, probe, durable)?;
        let (store, disabled) = match opened {
            Versioned::Current(store) => (store, None),
            Versioned::Other { store, found } => (store, Some(found)),
        };
        if let Some(found) = &disabled {
            config.events.event(EngineEvent::VersionMismatch {
                found: found.clone(),
                expected: FORMAT_VERSION,
            });
        }
        let remade = RemadeLog::open(&store.remade_place(), store.probe.clone())
            .map_err(UndoError::io("reading the undo directory"))?;
        let book = LoanBook::new(store.root(), store.probe.clone(), config.durable);
        let lender = Lender::start(&way_in, store.root(), book)
            .map_err(UndoError::io("opening the undo directory"))?;
        let workspace = Workspace {
            tree,
            store,
            moved: Moved::default(),
            can_clone: AtomicBool::new(true),
            can_swap: AtomicBool::new(true),
            space: FreeSpace::keeping(config.limits.min_free_bytes),
            remade,
            lender,
        };
        let ignored =
            if config.gitignore { Ignored::from_gitignore(&way_in) } else { Ignored::nothing() };
        let mut engine = Self {
            state: RwLock::new(State {
                open: None,
                reserved: None,
                history: Vec::new(),
                redo: Mutex::default(),
                barriers: open_barriers(&workspace)?,
                counters: Mutex::new(Counters::default()),
                disabled,
                interrupted: None,
                left: Mutex::default(),
                retired: false,
                background: 0,
            }),
            workspace,
            others: Arc::default(),
            names: RwLock::new(()),
            dir_locks: (0..DIR_LOCKS).map(|_| Mutex::new(())).collect(),
            desk: SafeguardDesk::default(),
            caches: Caches::default(),
            limits: RwLock::new(config.limits),
            safeguards: RwLock::new(config.safeguards),
            ignored,
            staged: Mutex::default(),
            recovery: None,
            config,
        };
        if engine.state.get_mut().disabled.is_none() {
            let settled = engine.workspace.lender.settle();
            settled.map_err(UndoError::io("giving back lent permissions"))?;
            let earlier = engine.workspace.store.take_noted_recovery();
            engine.recovery = engine.load_and_recover()?.or(earlier);
            engine.workspace.store.fill_reserve();
        }
        Ok(engine)
    }

    /// What recovery did when this engine was opened, or the last one before it ended.
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.recovery.as_ref()
    }

    /// Answers an open safeguard question.
    pub fn confirm(&self, id: SafeguardId, decision: SafeguardDecision) -> Result<()> {
        self.desk.answer(id, decision)
    }

    pub fn set_safeguards(&self, config: SafeguardConfig) {
        *self.safeguards.write() = config;
    }

    /// New bounds: what a step may store, for steps that are opened from now on; the rest at once.
    pub fn set_limits(&self, limits: ResourceLimits) {
        self.workspace.space.keep(limits.min_free_bytes);
        *self.limits.write() = limits;
    }

    /// The format found, if the log is of another version and nothing is being recorded.
    pub fn disabled_by_version(&self) -> Option<String> {
        self.state.read().disabled.clone()
    }

    /// What a log of another format holds cannot be told.
    pub fn check_format(&self) -> Result<()> {
        match self.disabled_by_version() {
            Some(found) => Err(UndoError::VersionMismatch { found, expected: FORMAT_VERSION }),
            None => Ok(()),
        }
    }

    /// Throws the history away, whatever its format, and starts a new one.
    pub fn discard(&self) -> Result<()> {
        let mut state = self.state.write();
        if let Some(step) = state.begun() {
            return Err(step.in_the_way());
        }
        self.workspace.store.reinitialise((&self.config.working_dir, &self.config.way_in()))?;
        self.workspace.moved.clear();
        self.workspace.remade.forget();
        *state = State {
            open: None,
            reserved: None,
            history: Vec::new(),
            redo: Mutex::default(),
            barriers: open_barriers(&self.workspace)?,
            counters: Mutex::new(Counters::default()),
            disabled: None,
            interrupted: None,
            left: Mutex::default(),
            retired: false,
            background: state.background,
        };
        Ok(())
    }

    fn ready<'s>(&self, state: &'s mut State) -> Result<&'s mut State> {
        if state.disabled.is_some() {
            return Err(UndoError::UndoDisabled);
        }
        self.finish_interrupted(state)?;
        // Somebody outside may have given a directory another name since it was cached.
        self.workspace.tree.forget_dirs();
        Ok(state)
    }

    /// The recorder of the open step, made when it is first needed.
    fn recorder<'s>(&self, state: &'s State) -> Result<&'s Recorder> {
        let step = state.open.as_ref().ok_or(UndoError::NoStepOpen)?;
        step.recorder_or_start(|| {
            let header = Header {
                id: step.id,
                sequence: self.next_sequence(state)?,
                kind: step.kind,
                command: step.commands.join("\n"),
                started_at: step.started_at,
                purpose: Purpose::Step,
            };
            Recorder::create(&self.workspace, header, Some(*self.limits.read()))
        })
    }

    /// Something went wrong that stops nobody.
    fn warn(&self, what: &str, outcome: std::result::Result<(), impl std::fmt::Display>) {
        if let Err(error) = outcome {
            self.config.events.event(EngineEvent::Warning(format!("{what}: {error}")));
        }
    }

    fn save_counters(&self, counters: &Counters) -> Result<()> {
        self.workspace
            .store
            .save_counters(counters)
            .map_err(UndoError::io("writing the counters of the undo directory"))
    }

    fn next_sequence(&self, state: &State) -> Result<u64> {
        state.counters.lock().take_sequence(|counters| self.save_counters(counters))
    }

    fn object_entry(&self, object: ObjectRef) -> Result<Option<Entry<'static>>> {
        let Owner::Sequence(sequence) = object.owner else {
            return Ok(None);
        };
        let Some(dir) = self.workspace.store.find(sequence) else {
            return Ok(None);
        };
        let objects = dir.objects().map_err(UndoError::io("opening the objects of a step"))?;
        Ok(Some(objects.entry(object.number.to_string().into_bytes())))
    }

    fn now(&self) -> codeagent_common::Timestamp {
        timestamp(&self.config.clock)
    }
}

fn open_barriers(workspace: &Workspace) -> Result<BarrierLog> {
    let store = &workspace.store;
    BarrierLog::open(&store.barriers_place(), store.probe.clone())
        .map_err(UndoError::io("reading the barriers"))
}
