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

/// So many may go on at once.
const MAX_COMMANDS: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Commands {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    running: BTreeMap<String, Arc<Command>>,
}

/// One command, while it runs and until somebody has heard of its end.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) handle: String,
    pub(crate) cancel: CancelToken,
    /// What nobody has heard yet.
    pub(crate) output: Arc<Mutex<OutputBuffer>>,
    /// Set when it has ended.
    end: watch::Sender<Option<Outcome<BashEnd>>>,
}

impl Commands {
    /// A command that is about to run.
    pub(crate) fn begin(&self, cancel: CancelToken) -> Outcome<Arc<Command>> {
        let mut state = self.state.lock();
        if state.running.len() >= MAX_COMMANDS {
            let message = format!("{MAX_COMMANDS} commands are running already");
            return Err(Failure::new(ErrorCode::Busy, message)
                .hinted("stop one of them first: Bash with its handle and stop")
                .into());
        }
        state.last += 1;
        let handle = format!("bash_{}", state.last);
        let command = Arc::new(Command {
            handle: handle.clone(),
            cancel,
            output: Arc::default(),
            end: watch::Sender::new(None),
        });
        state.running.insert(handle, Arc::clone(&command));
        Ok(command)
    }

    pub(crate) fn find(&self, handle: &str) -> Outcome<Arc<Command>> {
        self.state.lock().running.get(handle).cloned().ok_or_else(|| {
            let message = format!("no command with the handle {handle} is running");
            Failure::new(ErrorCode::CommandNotFound, message).into()
        })
    }

    /// Its end has been told.
    pub(crate) fn forget(&self, command: &Command) {
        self.state.lock().running.remove(&command.handle);
    }

    pub(crate) fn cancel_all(&self) {
        let running: Vec<_> = self.state.lock().running.values().cloned().collect();
        running.iter().for_each(|command| command.cancel.cancel());
    }
}

impl Command {
    pub(crate) fn ended(&self, outcome: Outcome<BashEnd>) {
        self.end.send_replace(Some(outcome));
    }

    pub(crate) async fn wait(&self) -> Outcome<BashEnd> {
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
