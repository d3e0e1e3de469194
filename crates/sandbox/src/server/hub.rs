//! What the connections of one process share: at most one session, the commands that run in it,
//! and the questions that wait for an answer.
//!
//! Whoever asks, over whichever protocol, sees the same session: an undo of one is seen by all, and
//! a question that one side raised can be answered by the other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use codeagent_common::{SafeguardDecision, SafeguardId, SafeguardRequest, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::error::{Result, SandboxError};
use crate::session::{Asker, Event, Question, Session, SessionOptions};

/// See the module.
pub struct Hub {
    /// As the command line and the user's configuration have it.
    defaults: SessionOptions,
    session: RwLock<Option<Arc<Session>>>,
    /// Held while a session starts or ends, so that it does so once.
    changing: Mutex<()>,
    /// The one that starts: whoever wants it to end does not wait until it has started.
    starting: Mutex<Option<Arc<Session>>>,
    listeners: RwLock<BTreeMap<u64, (Role, Listener)>>,
    next_listener: AtomicU64,
    questions: Mutex<Questions>,
    commands: Mutex<BTreeMap<u64, RunningCommand>>,
    /// Where agents connect, if they can.
    mcp_socket: RwLock<Option<PathBuf>>,
}

/// Must not wait for the session.
type Listener = Box<dyn Fn(&Heard<'_>) + Send + Sync>;

/// Who listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Shows questions to a person.
    Frontend,
    /// Runs a command for an agent that can ask its user.
    Agent { command: u64 },
}

/// Somebody listens, and may answer questions, until this is dropped.
#[derive(Debug)]
pub struct Listening {
    hub: Weak<Hub>,
    id: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.listeners.write().remove(&self.id);
        }
    }
}

/// What everybody hears.
#[derive(Debug)]
pub enum Heard<'a> {
    Session(&'a Event),
    Question(&'a Pending),
}

/// A question of a safeguard that nobody has answered.
#[derive(Debug, Clone)]
pub struct Pending {
    /// One for all working directories.
    pub name: String,
    pub directory: String,
    pub request: SafeguardRequest,
    /// The commands that it may be of.
    pub commands: Vec<u64>,
    pub timeout: Duration,
    pub expires: Instant,
}

impl Pending {
    /// A frontend shows every question to a person; an agent's user is asked about the agent's own
    /// commands, if there is no frontend.
    fn is_for(&self, role: Role, has_frontend: bool) -> bool {
        match role {
            Role::Frontend => true,
            Role::Agent { .. } if has_frontend => false,
            Role::Agent { command } => self.commands.contains(&command),
        }
    }
}

#[derive(Debug, Default)]
struct Questions {
    asked: u64,
    open: Vec<Pending>,
}

#[derive(Debug, Clone)]
pub struct RunningCommand {
    pub line: String,
    pub started_at: Timestamp,
}

impl Hub {
    pub fn new(defaults: SessionOptions) -> Arc<Self> {
        Arc::new(Self {
            defaults,
            session: RwLock::default(),
            changing: Mutex::default(),
            starting: Mutex::default(),
            listeners: RwLock::default(),
            next_listener: AtomicU64::new(0),
            questions: Mutex::default(),
            commands: Mutex::default(),
            mcp_socket: RwLock::default(),
        })
    }

    pub fn defaults(&self) -> &SessionOptions {
        &self.defaults
    }

    pub fn listen(
        self: &Arc<Self>,
        role: Role,
        listener: impl Fn(&Heard<'_>) + Send + Sync + 'static,
    ) -> Listening {
        let id = self.next_listener.fetch_add(1, Ordering::Relaxed);
        self.listeners.write().insert(id, (role, Box::new(listener)));
        Listening { hub: Arc::downgrade(self), id }
    }

    pub fn session(&self) -> Result<Arc<Session>> {
        self.session.read().clone().ok_or(SandboxError::NotRunning)
    }

    /// Starts the session; there is only one.
    pub fn start(self: &Arc<Self>, options: SessionOptions) -> Result<Arc<Session>> {
        let _changing = self.changing.lock();
        if self.session.read().is_some() {
            return Err(SandboxError::AlreadyRunning);
        }
        let session = Session::new(options)?;
        let hub = Arc::downgrade(self);
        session.listen(move |event| {
            if let Some(hub) = hub.upgrade() {
                hub.hear(event);
            }
        });
        session.set_asker(Arc::new(AskEverybody(Arc::downgrade(self))));
        *self.starting.lock() = Some(Arc::clone(&session));
        let started = session.start();
        if started.is_ok() {
            *self.session.write() = Some(Arc::clone(&session));
        }
        *self.starting.lock() = None;
        started.map(|()| session)
    }

    pub fn stop(&self) -> Result<()> {
        let starting = self.starting.lock().clone();
        if let Some(session) = starting {
            let stopped = session.stop();
            let _changing = self.changing.lock();
            // It may just have started.
            self.session.write().take_if(|running| Arc::ptr_eq(running, &session));
            return stopped;
        }
        let _changing = self.changing.lock();
        let session = self.session.write().take().ok_or(SandboxError::NotRunning)?;
        // Commands that wait for answers would not end.
        for question in self.questions() {
            let (directory, id) = (Some(question.directory.as_str()), question.request.id);
            let _ = session.answer(directory, id, SafeguardDecision::Deny); // or just answered
        }
        let stopped = session.stop();
        self.questions.lock().open.clear();
        stopped
    }

    pub fn questions(&self) -> Vec<Pending> {
        let mut questions = self.questions.lock();
        questions.open.retain(|question| question.expires > Instant::now());
        questions.open.clone()
    }

    /// Answers the question of that name.
    pub fn answer(&self, name: &str, decision: SafeguardDecision) -> Result<()> {
        let found = self.questions().into_iter().find(|question| question.name == name);
        let question = found.ok_or_else(|| SandboxError::UnknownQuestion(name.to_owned()))?;
        self.session()?.answer(Some(&question.directory), question.request.id, decision)
    }

    pub fn commands(&self) -> BTreeMap<u64, RunningCommand> {
        self.commands.lock().clone()
    }

    pub fn mcp_socket(&self) -> Option<PathBuf> {
        self.mcp_socket.read().clone()
    }

    pub fn set_mcp_socket(&self, path: PathBuf) {
        *self.mcp_socket.write() = Some(path);
    }

    fn hear(&self, event: &Event) {
        match event {
            Event::SafeguardAnswered { directory, question, .. } => {
                self.forget(directory, *question);
            }
            Event::CommandStarted { command, line, .. } => {
                let running =
                    RunningCommand { line: line.clone(), started_at: SystemTime::now().into() };
                self.commands.lock().insert(*command, running);
            }
            Event::CommandEnded { command, .. } => drop(self.commands.lock().remove(command)),
            _ => {}
        }
        self.tell(&Heard::Session(event));
    }

    fn tell(&self, heard: &Heard<'_>) {
        self.listeners.read().values().for_each(|(_, listener)| listener(heard));
    }

    fn forget(&self, directory: &str, question: SafeguardId) {
        let is_it = |open: &Pending| open.directory == directory && open.request.id == question;
        self.questions.lock().open.retain(|open| !is_it(open));
    }

    /// Whether somebody can answer it beside the agent that runs this command.
    pub fn asks_others(&self, question: &Pending, command: u64) -> bool {
        let listeners = self.listeners.read();
        let has_frontend = has_frontend(&listeners);
        let is_own = |role| role == Role::Agent { command };
        let mut roles = listeners.values().map(|(role, _)| *role);
        roles.any(|role| !is_own(role) && question.is_for(role, has_frontend))
    }

    /// Whether somebody can answer it.
    fn ask(&self, question: &Question) -> bool {
        let pending = {
            let mut questions = self.questions.lock();
            questions.asked += 1;
            let pending = Pending {
                name: format!("sg_{:03}", questions.asked),
                directory: question.directory.clone(),
                request: question.request.clone(),
                commands: question.commands.clone(),
                timeout: question.timeout,
                expires: Instant::now() + question.timeout,
            };
            questions.open.push(pending.clone());
            pending
        };
        // A session that ends has denied all it knew of.
        if self.session().is_err() {
            return false;
        }
        let listeners = self.listeners.read();
        let has_frontend = has_frontend(&listeners);
        let is_for = |(role, _): &&(Role, Listener)| pending.is_for(*role, has_frontend);
        let asked: Vec<_> = listeners.values().filter(is_for).collect();
        asked.iter().for_each(|(_, listener)| listener(&Heard::Question(&pending)));
        !asked.is_empty()
    }
}

/// Whether a person sees questions.
fn has_frontend(listeners: &BTreeMap<u64, (Role, Listener)>) -> bool {
    listeners.values().any(|(role, _)| *role == Role::Frontend)
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Lays a question before everybody whom it is for; without anybody here or elsewhere, the answer is no.
struct AskEverybody(Weak<Hub>);

impl Asker for AskEverybody {
    fn ask(&self, question: &Question) -> Option<SafeguardDecision> {
        match self.0.upgrade().is_some_and(|hub| hub.ask(question)) {
            true => None,
            false => question.without_anybody(),
        }
    }
}
