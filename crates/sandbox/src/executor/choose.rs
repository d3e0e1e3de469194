//! Which isolation a session gets.

use std::path::{Path, PathBuf};

use codeagent_namespace::{FactId, FactsRequest, Policy, Presence, facts};

use super::{Executor, HostExecutor, Isolation, IsolationChoice, NamespaceExecutor};
use crate::error::{Result, SandboxError};

/// Without these no command can be contained.
const NEEDED: [FactId; 4] =
    [FactId::UserNamespaces, FactId::NamespaceCapabilities, FactId::MountApi, FactId::OwnProc];

/// An executor, and why it is not a better one.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) executor: Box<dyn Executor>,
    /// What was tried before it, with the reason why it was not taken.
    pub(crate) passed_over: Vec<(Isolation, String)>,
}

/// Takes what was asked for, or nothing; with `Auto` the first that works.
pub(crate) fn choose(
    choice: IsolationChoice,
    policy: Policy,
    program: Option<PathBuf>,
    (folder, undo_dir): (&Path, &Path),
) -> Result<Chosen> {
    let only = |executor: Box<dyn Executor>| Ok(Chosen { executor, passed_over: vec![] });
    match choice {
        IsolationChoice::Vm => Err(no_vm()),
        IsolationChoice::Namespace => only(Box::new(NamespaceExecutor::new(policy, program)?)),
        IsolationChoice::Host => only(Box::new(HostExecutor::new(program))),
        IsolationChoice::Auto => {
            let mut passed_over = vec![(Isolation::Vm, "not built yet".to_owned())];
            let executor: Box<dyn Executor> = match lacks(folder, undo_dir, program.as_deref()) {
                None => Box::new(NamespaceExecutor::new(policy, program)?),
                Some(reason) => {
                    passed_over.push((Isolation::Namespace, reason));
                    Box::new(HostExecutor::new(program))
                }
            };
            Ok(Chosen { executor, passed_over })
        }
    }
}

fn no_vm() -> SandboxError {
    SandboxError::Isolation {
        isolation: Isolation::Vm,
        reason: "virtual machines are not built yet".into(),
        hint: "use --isolation namespace".into(),
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
