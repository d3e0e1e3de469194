//! Commands that may outlive the call that started them.

use std::collections::BTreeMap;
use std::sync::Arc;

use codeagent_common::{CancelToken, ErrorCode};
use codeagent_stdio::Failure;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backend::BashEnd;
use crate::call::Outcome;
use crate::output::OutputBuffer;
use crate::questions::Questions;

/// So many may go on at once, and so many ends that nobody has asked for are remembered.
const MAX_COMMANDS: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Commands {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Those that run, and those whose end nobody has heard, by their numbers.
    known: BTreeMap<u64, Arc<Command>>,
}

/// One command, while it runs and until somebody has heard of its end.
#[derive(Debug)]
pub(crate) struct Command {
    number: u64,
    pub(crate) handle: String,
    pub(crate) cancel: CancelToken,
    /// What nobody has heard yet.
    pub(crate) output: Arc<Mutex<OutputBuffer>>,
    /// What the client has to ask its user before it can go on.
    pub(crate) questions: Questions,
    /// Set when it has ended.
    end: watch::Sender<Option<Outcome<Ended>>>,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) end: BashEnd,
    /// There are several working directories, so that steps need the name of theirs.
    pub(crate) several_directories: bool,
}

impl Commands {
    /// A command that is about to run.
    pub(crate) fn begin(&self, cancel: CancelToken) -> Outcome<Arc<Command>> {
        let mut state = self.state.lock();
        let ended: Vec<u64> = state.ended().collect();
        if state.known.len() - ended.len() >= MAX_COMMANDS {
            let message = format!("{MAX_COMMANDS} commands are running already");
            return Err(Failure::new(ErrorCode::Busy, message)
                .hinted("stop one of them first: Bash with its handle and stop")
                .into());
        }
        // Nobody asked how the oldest ended.
        if ended.len() >= MAX_COMMANDS {
            state.known.remove(&ended[0]);
        }
        state.last += 1;
        let number = state.last;
        let handle = format!("bash_{number}");
        let command = Arc::new(Command {
            number,
            handle: handle.clone(),
            cancel,
            output: Arc::default(),
            questions: Questions::new(handle),
            end: watch::Sender::new(None),
        });
        state.known.insert(number, Arc::clone(&command));
        Ok(command)
    }

    pub(crate) fn find(&self, handle: &str) -> Outcome<Arc<Command>> {
        let known = &self.state.lock().known;
        known.values().find(|command| command.handle == handle).cloned().ok_or_else(|| {
            let message = format!("no command with the handle {handle} is running");
            Failure::new(ErrorCode::CommandNotFound, message).into()
        })
    }

    /// The handles of all that can be waited for.
    pub(crate) fn handles(&self) -> Vec<String> {
        self.state.lock().known.values().map(|command| command.handle.clone()).collect()
    }

    /// Its end has been told.
    pub(crate) fn forget(&self, command: &Command) {
        self.state.lock().known.remove(&command.number);
    }

    pub(crate) fn cancel_all(&self) {
        let known: Vec<_> = self.state.lock().known.values().cloned().collect();
        known.iter().for_each(|command| command.cancel.cancel());
    }
}

impl State {
    /// Oldest first.
    fn ended(&self) -> impl Iterator<Item = u64> {
        self.known.values().filter(|command| command.has_ended()).map(|command| command.number)
    }
}

impl Command {
    pub(crate) fn ended(&self, outcome: Outcome<Ended>) {
        self.end.send_replace(Some(outcome));
    }

    fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    pub(crate) async fn wait(&self) -> Outcome<Ended> {
        let mut end = self.end.subscribe();
        match end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone()) {
            Some(end) => end,
            None => Err(Failure::new(ErrorCode::Internal, "the command was lost").into()),
        }
    }

    /// What it wrote since somebody last asked.
    pub(crate) fn take_output(&self) -> String {
        std::mem::take(&mut *self.output.lock()).text()
    }
}
