//! Commands in Linux namespaces.

use std::path::PathBuf;

use codeagent_namespace::{
    Executor as Namespaces, Limits, Network, Policy, Surroundings, View, ViewChoice,
};

use super::{Executor, Isolation, Ran, Work};
use crate::error::{Result, SandboxError};

/// Threads that serve a live view.
const LIVE_THREADS: usize = 4;

#[derive(Debug)]
pub struct NamespaceExecutor {
    namespaces: Namespaces,
    network_is_open: bool,
    limits: Limits,
}

impl NamespaceExecutor {
    /// `main` of the program, or of this one, begins with
    /// [`run_if_asked`](crate::run_if_asked).
    pub fn new(policy: Policy, program: Option<PathBuf>) -> Result<Self> {
        let what = format!("cannot make a home for commands in {}", policy.state_dir.display());
        let limits = policy.limits;
        let network_is_open = policy.network == Network::Open;
        let surroundings = Surroundings::new(policy).map_err(SandboxError::doing(what))?;
        let namespaces = match program {
            Some(program) => Namespaces::with_program(surroundings, program),
            None => Namespaces::new(surroundings)?,
        };
        let namespaces = namespaces.with_live_options(codeagent_mount::live_options(LIVE_THREADS));
        Ok(Self { namespaces, network_is_open, limits })
    }
}

impl Executor for NamespaceExecutor {
    fn isolation(&self) -> Isolation {
        Isolation::Namespace
    }

    fn weakness(&self) -> Option<String> {
        let wall = if !codeagent_namespace::has_second_wall() {
            Some(
                "only mounts keep commands from other files: this machine has no Landlock that \
                 could stand behind them (see `sandbox doctor`)",
            )
        } else if self.network_is_open && !codeagent_namespace::keeps_sockets_out() {
            Some(
                "with the open network, commands can reach abstract sockets of programs outside: \
                 the kernel's Landlock is too old to keep them out (see `sandbox doctor`)",
            )
        } else {
            None
        };
        let processes = (!codeagent_namespace::limits_processes(&self.limits)).then_some(
            "commands of root may start any number of processes: there is no cgroup of version 2 \
             to count them, and the kernel is older than Linux 6.14 (see `sandbox doctor`)",
        );
        let weaknesses: Vec<_> = wall.into_iter().chain(processes).collect();
        (!weaknesses.is_empty()).then(|| weaknesses.join("; "))
    }

    fn run(&self, work: Work<'_>) -> Result<Ran> {
        let Work { folders, exec, view, background, orders, output, shared: _, warn, .. } = work;
        // Whoever asked for a view in which nothing can be changed gets no other.
        let finished = if background && view != ViewChoice::Only(View::ReadOnly) {
            self.namespaces.run_in_background(folders, exec, orders, output)
        } else {
            // In the background, what others change meanwhile has to be seen.
            let view = if background { ViewChoice::Reading } else { view };
            self.namespaces.run_and_tell(folders, exec, view, orders, output, |view, why_not| {
                warn(match view {
                    View::Live => format!(
                        "changes are seen as they happen, because the transactional view cannot be \
                         had: {why_not}"
                    ),
                    View::Transactional => format!(
                        "changes are seen only when the command has ended, because the live view \
                         cannot be had: {why_not}"
                    ),
                    View::ReadOnly => format!(
                        "nothing in the folders can be changed, but pipes in them are those of \
                         programs outside, because no overlay can be had: {why_not}"
                    ),
                });
            })
        }?;
        Ok(Ran {
            outcome: finished.outcome,
            steps: finished.steps,
            view: Some(finished.view),
            other_view: finished.other_view,
            not_undoable: None,
            confined: finished.confinement.is_complete(),
            committed_in: finished.committed_in,
        })
    }
}
