//! What a project may decide: that less is allowed, never that more is.

use std::time::Duration;

use codeagent_common::{ExternalModificationPolicy, OverLimitPolicy};
use codeagent_network::Rule;

use super::file::{FileConfig, Watch};
use crate::executor::IsolationChoice;
use crate::session::{NetworkChoice, SessionOptions};

/// Comes back with the keys that are ignored.
pub(super) fn tighten(options: &mut SessionOptions, config: FileConfig) -> Vec<&'static str> {
    let mut ignored = Ignored::default();
    let FileConfig { sandbox, vm, undo, watch, safeguards, protected, commands, classify, agent } =
        config;

    if let Some(wanted) = sandbox.isolation {
        let stricter = strength(wanted) > strength(options.isolation);
        ignored.unless(stricter || wanted == options.isolation, "sandbox.isolation");
        if stricter {
            options.isolation = wanted;
        }
    }
    ignored.unless(sandbox.view.is_none(), "sandbox.view");
    tighten_network(options, sandbox.network, sandbox.allow_hosts, &mut ignored);
    match sandbox.persistent {
        Some(false) => options.persistent = false,
        Some(true) => ignored.unless(options.persistent, "sandbox.persistent"),
        None => {}
    }

    // What runs as the user is never the project's choice.
    ignored.unless(vm.image.is_none(), "vm.image");
    ignored.unless(vm.qemu.is_none(), "vm.qemu");
    ignored.unless(vm.accelerator.is_none(), "vm.accelerator");
    ignored.unless(vm.backend.is_none(), "vm.backend");
    ignored.unless(vm.boot_seconds.is_none(), "vm.boot_seconds");
    ignored.least(&mut options.vm.memory_mib, vm.memory_mib, "vm.memory_mib");
    ignored.least(&mut options.vm.cpus, vm.cpus, "vm.cpus");

    let limits = &mut options.limits;
    ignored.least(&mut limits.max_log_bytes, undo.max_log_bytes, "undo.max_log_bytes");
    ignored.least(&mut limits.max_steps, undo.max_steps, "undo.max_steps");
    ignored.least(&mut limits.max_step_bytes, undo.max_step_bytes, "undo.max_step_bytes");
    if undo.over_step_limit == Some(OverLimitPolicy::Refuse) {
        limits.over_step_limit = OverLimitPolicy::Refuse;
    }
    limits.min_free_bytes = limits.min_free_bytes.max(undo.min_free_bytes.unwrap_or(0));
    options.durable |= undo.durable == Some(true);
    ignored.unless(undo.gitignore != Some(true) || options.gitignore, "undo.gitignore");
    match undo.external_modifications {
        Some(ExternalModificationPolicy::Warn) => ignored.unless(
            options.external_modifications == ExternalModificationPolicy::Warn,
            "undo.external_modifications",
        ),
        stricter => {
            options.external_modifications = stricter.unwrap_or(options.external_modifications);
        }
    }
    ignored.unless(watch == Watch::default(), "watch");

    let asked = &mut options.safeguards;
    asked.delete_threshold = least(asked.delete_threshold, safeguards.delete_threshold);
    asked.overwrite_threshold_bytes =
        least(asked.overwrite_threshold_bytes, safeguards.overwrite_threshold_bytes);
    asked.rename_over_existing |= safeguards.rename_over_existing == Some(true);
    let timeout = safeguards.timeout_seconds.map(Duration::from_secs);
    ignored.least(&mut asked.timeout, timeout, "safeguards.timeout_seconds");

    ignored.unless(protected.allow.is_empty(), "protected.allow");
    options.rules.deny.extend(protected.deny);
    options.rules.flag.extend(protected.flag);
    options.rules.refuse_step |= protected.refuse_step;

    let limits = &mut options.command_limits;
    limits.memory_bytes = least(limits.memory_bytes, commands.max_memory_bytes);
    limits.processes = least(limits.processes, commands.max_processes);
    limits.open_files = least(limits.open_files, commands.max_open_files);
    limits.file_bytes = least(limits.file_bytes, commands.max_file_bytes);
    match commands.nested_namespaces {
        Some(false) => options.nested_namespaces = false,
        Some(true) => ignored.unless(options.nested_namespaces, "commands.nested_namespaces"),
        None => {}
    }
    ignored.unless(commands.toolchains.is_empty(), "commands.toolchains");
    ignored.unless(commands.readable.is_empty(), "commands.readable");
    ignored.unless(classify.is_empty(), "classify");
    ignored.unless(agent.command.is_none(), "agent.command");
    ignored.0
}

/// A project can name what it needs: then nothing else is reached. What the user has not listed
/// stays closed.
fn tighten_network(
    options: &mut SessionOptions,
    wanted: Option<NetworkChoice>,
    hosts: Vec<Rule>,
    ignored: &mut Ignored,
) {
    use NetworkChoice::{Allowlist, Disabled, Open};
    if wanted != Some(Allowlist) {
        ignored.unless(hosts.is_empty(), "sandbox.allow_hosts");
    }
    match (wanted, options.network) {
        (None, _) | (Some(Open), Open) => {}
        (Some(Disabled), _) => options.network = Disabled,
        (Some(Allowlist), Open) => {
            options.network = Allowlist;
            options.allow_hosts = hosts;
        }
        (Some(Allowlist), Allowlist) => {
            let ours = codeagent_network::Allowlist::new(options.allow_hosts.drain(..));
            let (kept, is_all) = ours.narrowed_to(&codeagent_network::Allowlist::new(hosts));
            ignored.unless(is_all, "sandbox.allow_hosts");
            options.allow_hosts = kept.rules().to_vec();
        }
        (Some(Open | Allowlist), _) => ignored.unless(false, "sandbox.network"),
    }
}

#[derive(Default)]
struct Ignored(Vec<&'static str>);

impl Ignored {
    fn unless(&mut self, is_heeded: bool, key: &'static str) {
        if !is_heeded {
            self.0.push(key);
        }
    }

    fn least<T: Ord + Copy>(&mut self, target: &mut T, wanted: Option<T>, key: &'static str) {
        let Some(wanted) = wanted else { return };
        self.unless(wanted <= *target, key);
        *target = wanted.min(*target);
    }
}

fn least<T: Ord>(ours: Option<T>, wanted: Option<T>) -> Option<T> {
    match (ours, wanted) {
        (Some(ours), Some(wanted)) => Some(ours.min(wanted)),
        (ours, wanted) => ours.or(wanted),
    }
}

/// `Auto` may end on the host.
fn strength(choice: IsolationChoice) -> u8 {
    match choice {
        IsolationChoice::Host => 0,
        IsolationChoice::Auto => 1,
        IsolationChoice::Namespace => 2,
        IsolationChoice::Vm => 3,
    }
}
