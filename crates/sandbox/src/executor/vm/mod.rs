//! Commands in a Linux guest. It begins with the session and ends with it; the folders reach it
//! through their workers, so what commands do there is recorded before it happens.

mod guest;
mod plan;
mod standstill;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use codeagent_common::{CancelToken, StepId};
use codeagent_control::{Leftovers, LineError, Outcome};
use codeagent_namespace::{Steps, View};
use parking_lot::Mutex;

use super::{Executor, Isolation, Ran, SharedFolder, Tell, Work};
use crate::error::{Result, SandboxError, lost};
use guest::Guest;
pub(crate) use plan::{GuestNetwork, VmPlan, facts, forget_verdicts};
use standstill::{GoingOn, Standstill};

/// How soon somebody who waits for a guest notices that he is not to wait any more.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A disk that takes longer for one request will not answer.
const LONGEST_ANSWER: Duration = Duration::from_secs(120);

pub struct VmExecutor {
    plan: VmPlan,
    /// Held for a moment only: who wants to know how it is, or to end it, waits for nothing.
    guest: Mutex<Option<Arc<Guest>>>,
    /// Held by whoever starts one, for as long as that takes.
    starting: Mutex<()>,
    standstill: Standstill,
    /// Commands that run: whoever runs one tells of the end of the guest himself.
    running: Arc<AtomicUsize>,
    tell: Mutex<Option<Tell>>,
}

impl fmt::Debug for VmExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmExecutor").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// A command that runs, for as long as this lives.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn one_more(running: &'a AtomicUsize) -> Self {
        running.fetch_add(1, Ordering::SeqCst);
        Self(running)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl VmExecutor {
    pub(crate) fn new(plan: VmPlan) -> Self {
        Self {
            plan,
            guest: Mutex::default(),
            starting: Mutex::default(),
            standstill: Standstill::default(),
            running: Arc::default(),
            tell: Mutex::default(),
        }
    }

    /// The guest that runs, or a new one: the last may have died, or have lost a folder with the
    /// worker that served it.
    fn guest(
        &self,
        folders: &[SharedFolder<'_>],
        warn: &dyn Fn(String),
        cancel: &CancelToken,
    ) -> Result<Arc<Guest>> {
        let _starting = loop {
            if cancel.is_cancelled() {
                return Err(SandboxError::Cancelled);
            }
            if let Some(starting) = self.starting.try_lock_for(ASK_AGAIN) {
                break starting;
            }
        };
        if let Some(guest) = self.current() {
            match guest.reason_to_replace(folders)? {
                None => return Ok(guest),
                Some(reason) => {
                    warn(format!("the guest is started again: {reason}"));
                    // With it goes whatever still runs in it.
                    self.give_up(&guest, &reason);
                }
            }
        }
        let guest = Arc::new(Guest::start(&self.plan, folders, warn, cancel)?);
        *self.guest.lock() = Some(Arc::clone(&guest));
        self.tell_of_its_end(&guest);
        Ok(guest)
    }

    /// A guest that ends by itself between two commands is told when it does.
    fn tell_of_its_end(&self, guest: &Arc<Guest>) {
        let Some(tell) = self.tell.lock().clone() else { return };
        let (death, guest) = (guest.death_watch(), Arc::downgrade(guest));
        let running = Arc::clone(&self.running);
        let watching = std::thread::Builder::new().name("guest-death".into());
        let watch = watching.spawn(move || {
            let how = death.wait();
            let is_news = guest.upgrade().is_some_and(|guest| guest.is_wanted());
            if is_news && running.load(Ordering::SeqCst) == 0 {
                tell(format!("the guest has ended ({how}); the next command has another"));
            }
        });
        drop(watch); // without it, the next command tells
    }

    fn current(&self) -> Option<Arc<Guest>> {
        self.guest.lock().clone()
    }

    /// Whatever still runs in it must not write to the folders any more.
    fn give_up(&self, guest: &Arc<Guest>, reason: &str) {
        guest.give_up(reason);
        let mut current = self.guest.lock();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, guest)) {
            *current = None;
        }
    }
}

impl Executor for VmExecutor {
    fn isolation(&self) -> Isolation {
        Isolation::Vm
    }

    fn begin(
        &self,
        folders: &[SharedFolder<'_>],
        warn: &dyn Fn(String),
        cancel: &CancelToken,
    ) -> Result<()> {
        self.guest(folders, warn, cancel).map(drop)
    }

    fn run(&self, work: Work<'_>) -> Result<Ran> {
        let _running = Running::one_more(&self.running);
        let guest = self.guest(work.shared, work.warn, work.cancel)?;
        let steps = match work.background {
            true => Steps::ambient(work.folders)?,
            false => Steps::open(work.folders, &work.exec.label(), View::Live)?,
        };
        let (mut exec, orders, output) = (work.exec, work.orders, work.output);
        // There is one guest for all commands: what outlived one would write into others' steps.
        exec.leftovers = Leftovers::Kill;
        let ran = guest.watched(work.shared, || guest.run(exec, orders, output));
        let outcome = match ran {
            Ok(outcome @ Outcome::Completed { .. }) => outcome,
            Ok(Outcome::NotStarted { code, message }) => {
                let not_started = lost(Outcome::NotStarted { code, message });
                return Err(not_started.but_kept(steps.abort_unbegun(work.folders)));
            }
            other => {
                let silence = match &other {
                    Ok(Outcome::Unresponsive) => "it did not end the command".into(),
                    Ok(_) => "it does not answer".into(),
                    Err(LineError::Control(error)) => error.to_string(),
                    Err(LineError::Io(error)) => error.to_string(),
                };
                // One that is only slow is not dying.
                let reason = match other {
                    Ok(Outcome::Unresponsive) => guest.death(),
                    _ => guest.obituary(),
                }
                .unwrap_or(silence);
                // Before the steps are given up.
                self.give_up(&guest, &reason);
                let lost = SandboxError::CommandLost(format!("the guest was lost: {reason}"));
                return Err(lost.but_kept(steps.abort(work.folders)));
            }
        };
        let ended = Instant::now();
        let steps = steps.close(work.folders, &outcome)?;
        Ok(Ran {
            outcome,
            steps,
            view: Some(View::Live),
            other_view: None,
            not_undoable: None,
            confined: true,
            committed_in: ended.elapsed(),
        })
    }

    fn tell_of_losses(&self, tell: Tell) {
        *self.tell.lock() = Some(tell);
    }

    fn asked(&self) {
        self.standstill.asked();
    }

    fn hold(&self) {
        self.standstill.hold(|| {
            if let Some(guest) = self.current() {
                guest.pause();
            }
        });
    }

    fn go_on(&self, is_all_answered: &dyn Fn() -> bool) {
        self.standstill.go_on(is_all_answered, LONGEST_ANSWER, |going_on| {
            let Some(guest) = self.current() else { return };
            match going_on {
                GoingOn::Answered => guest.resume(),
                // Whoever waits in it would wait for ever.
                GoingOn::Stuck => self.give_up(&guest, "what it asked for does not come to an end"),
            }
        });
    }

    fn rolled_back(&self, step: StepId) {
        if let Some(guest) = self.current() {
            guest.notify_rollback(step);
        }
    }

    fn about(&self) -> Option<String> {
        self.current().map(|guest| guest.about())
    }

    fn end(&self) {
        let guest = self.guest.lock().take();
        if let Some(guest) = guest {
            guest.shut_down();
        }
    }
}

/// Forgets what commands have changed in the guest itself.
pub(crate) fn forget(state_dir: &Path) -> std::io::Result<()> {
    codeagent_vm::discard_disk(&plan::disk_in(state_dir))
}
