//! Which isolation a session gets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeagent_common::CancelToken;
use codeagent_namespace::{FactId, FactsRequest, Policy, Presence, facts};

use super::{
    Executor, GuestNetwork, HostExecutor, Isolation, IsolationChoice, NamespaceExecutor,
    VmExecutor, VmPlan,
};
use crate::error::{Result, SandboxError};
use crate::session::VmOptions;

/// Without these no command can be contained.
const NEEDED: [FactId; 5] = [
    FactId::UserNamespaces,
    FactId::NamespaceCapabilities,
    FactId::MountApi,
    FactId::OwnProc,
    FactId::Seccomp,
];

/// An executor that can be made, and why it is not a better one.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) plan: Plan,
    /// What was tried before it, with the reason why it was not taken.
    pub(crate) passed_over: Vec<(Isolation, String)>,
}

/// An executor before anything is made for it: the folders may still be refused.
#[derive(Debug)]
pub(crate) enum Plan {
    Vm(Box<VmPlan>),
    Namespace { program: Option<PathBuf> },
    Host { program: Option<PathBuf> },
}

impl Plan {
    /// The policy is for namespaces.
    pub(crate) fn make(self, policy: Policy) -> Result<Arc<dyn Executor>> {
        Ok(match self {
            Self::Vm(plan) => Arc::new(VmExecutor::new(*plan)),
            Self::Namespace { program } => Arc::new(NamespaceExecutor::new(policy, program)?),
            Self::Host { program } => Arc::new(HostExecutor::new(program)),
        })
    }
}

/// What was asked for, and what it takes to find out whether it can be had.
pub(crate) struct Wanted<'a> {
    pub(crate) choice: IsolationChoice,
    pub(crate) vm: VmOptions,
    pub(crate) network: GuestNetwork,
    pub(crate) state_dir: PathBuf,
    pub(crate) persistent: bool,
    pub(crate) program: Option<PathBuf>,
    pub(crate) folder: &'a Path,
    pub(crate) undo_dir: &'a Path,
    /// Finding out may take a trial.
    pub(crate) cancel: &'a CancelToken,
}

/// Takes what was asked for, or nothing; with `Auto` the first that works.
pub(crate) fn choose(wanted: Wanted<'_>) -> Result<Chosen> {
    let only = |plan| Ok(Chosen { plan, passed_over: vec![] });
    let Wanted { choice, vm, network, state_dir, persistent, program, .. } = wanted;
    let Wanted { folder, undo_dir, cancel, .. } = wanted;
    let plan = || VmPlan::new(vm, network, (state_dir, persistent), program.clone()).map(Box::new);
    match choice {
        IsolationChoice::Vm => only(Plan::Vm(plan()?)),
        IsolationChoice::Namespace => only(Plan::Namespace { program }),
        IsolationChoice::Host => only(Plan::Host { program }),
        IsolationChoice::Auto => {
            let why_not = match plan() {
                Ok(plan) => match plan.lacks_acceleration(cancel)? {
                    None => return only(Plan::Vm(plan)),
                    Some(reason) => reason,
                },
                Err(SandboxError::Isolation { reason, .. }) => reason,
                Err(error) => error.to_string(),
            };
            let mut passed_over = vec![(Isolation::Vm, why_not)];
            let plan = match lacks(folder, undo_dir, program.as_deref()) {
                None => Plan::Namespace { program },
                Some(reason) => {
                    passed_over.push((Isolation::Namespace, reason));
                    Plan::Host { program }
                }
            };
            Ok(Chosen { plan, passed_over })
        }
    }
}

/// What keeps commands from being contained here. To find out takes a fraction of a second, so
/// that it was possible is remembered until the machine is started again; should it not be so any
/// more, commands fail and say why.
fn lacks(folder: &Path, undo_dir: &Path, program: Option<&Path>) -> Option<String> {
    let program = program.map_or_else(std::env::current_exe, |program| Ok(program.to_owned()));
    let program = match program {
        Ok(program) => program,
        Err(error) => return Some(error.to_string()),
    };
    let memory = Memory::of_this_boot(&program);
    if memory.as_ref().is_some_and(Memory::says_it_works) {
        return None;
    }
    let found = facts(&FactsRequest { folder: folder.into(), undo_dir: undo_dir.into(), program });
    let lacking = match found {
        Err(error) => Some(error.to_string()),
        Ok(facts) => facts
            .into_iter()
            .find(|fact| NEEDED.contains(&fact.id) && fact.presence == Presence::Missing)
            .map(|fact| fact.seen),
    };
    if let (None, Some(memory)) = (&lacking, memory) {
        memory.note_that_it_works();
    }
    lacking
}

/// A file that says in which boot of the machine namespaces were found to work, for whom.
struct Memory {
    file: PathBuf,
    text: String,
}

impl Memory {
    fn of_this_boot(program: &Path) -> Option<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let user = rustix::process::geteuid().as_raw();
        let file = crate::places::own_dir()?.join("namespaces-work");
        Some(Self { file, text: format!("{} {user} {}\n", boot.trim(), program.display()) })
    }

    fn says_it_works(&self) -> bool {
        std::fs::read_to_string(&self.file).is_ok_and(|text| text == self.text)
    }

    /// Without it the next one looks again.
    fn note_that_it_works(&self) {
        let _ = crate::places::make_parent(&self.file);
        let _ = std::fs::write(&self.file, &self.text);
    }
}
