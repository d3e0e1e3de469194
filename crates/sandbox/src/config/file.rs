//! What can be written in a configuration file. `docs/configuration.md` says it for people.

use std::path::PathBuf;
use std::time::Duration;

use codeagent_common::{ExternalModificationPolicy, OverLimitPolicy};
use codeagent_network::Rule;
use codeagent_vm::{Accelerator, Backend};
use serde::Deserialize;

use crate::classify::Lists;
use crate::executor::IsolationChoice;
use crate::policy::Pattern;
use crate::session::{NetworkChoice, SessionOptions, ViewSetting};

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    pub sandbox: Sandbox,
    pub vm: Vm,
    pub undo: Undo,
    pub watch: Watch,
    pub safeguards: Safeguards,
    pub protected: Protected,
    pub commands: Commands,
    pub classify: Lists,
    pub agent: Agent,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    pub isolation: Option<IsolationChoice>,
    pub view: Option<ViewSetting>,
    pub network: Option<NetworkChoice>,
    pub allow_hosts: Vec<Rule>,
    pub persistent: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Vm {
    pub image: Option<PathBuf>,
    pub qemu: Option<PathBuf>,
    pub accelerator: Option<Accelerator>,
    pub backend: Option<Backend>,
    pub memory_mib: Option<u32>,
    pub cpus: Option<u32>,
    pub boot_seconds: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Undo {
    pub max_log_bytes: Option<u64>,
    pub max_steps: Option<usize>,
    pub max_step_bytes: Option<u64>,
    pub over_step_limit: Option<OverLimitPolicy>,
    pub min_free_bytes: Option<u64>,
    pub durable: Option<bool>,
    pub gitignore: Option<bool>,
    pub external_modifications: Option<ExternalModificationPolicy>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Watch {
    pub enabled: Option<bool>,
    pub quiet_ms: Option<u64>,
    pub exclude: Option<Vec<Pattern>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Safeguards {
    pub delete_threshold: Option<u64>,
    pub overwrite_threshold_bytes: Option<u64>,
    pub rename_over_existing: Option<bool>,
    pub timeout_seconds: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Protected {
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub flag: Vec<String>,
    pub refuse_step: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Commands {
    pub max_memory_bytes: Option<u64>,
    pub max_processes: Option<u64>,
    pub max_open_files: Option<u64>,
    pub max_file_bytes: Option<u64>,
    pub nested_namespaces: Option<bool>,
    /// Of the home.
    pub toolchains: Vec<PathBuf>,
    pub readable: Vec<PathBuf>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agent {
    /// A program and its arguments; the prompt follows them.
    pub command: Option<Vec<String>>,
}

fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

impl FileConfig {
    /// As the user wants it.
    pub fn apply(self, options: &mut SessionOptions) {
        let Self { sandbox, vm, undo, watch, safeguards, protected, commands, classify, agent } =
            self;
        set(&mut options.isolation, sandbox.isolation);
        set(&mut options.view, sandbox.view);
        set(&mut options.network, sandbox.network);
        options.allow_hosts.extend(sandbox.allow_hosts);
        set(&mut options.persistent, sandbox.persistent);
        options.vm.image = vm.image.or(options.vm.image.take());
        options.vm.qemu = vm.qemu.or(options.vm.qemu.take());
        options.vm.accelerator = vm.accelerator.or(options.vm.accelerator);
        set(&mut options.vm.backend, vm.backend);
        set(&mut options.vm.memory_mib, vm.memory_mib);
        set(&mut options.vm.cpus, vm.cpus);
        set(&mut options.vm.boot_deadline, vm.boot_seconds.map(Duration::from_secs));
        set(&mut options.limits.max_log_bytes, undo.max_log_bytes);
        set(&mut options.limits.max_steps, undo.max_steps);
        set(&mut options.limits.max_step_bytes, undo.max_step_bytes);
        set(&mut options.limits.over_step_limit, undo.over_step_limit);
        set(&mut options.limits.min_free_bytes, undo.min_free_bytes);
        set(&mut options.durable, undo.durable);
        set(&mut options.gitignore, undo.gitignore);
        set(&mut options.external_modifications, undo.external_modifications);
        set(&mut options.watch.enabled, watch.enabled);
        set(&mut options.watch.quiet, watch.quiet_ms.map(Duration::from_millis));
        set(&mut options.watch.exclude, watch.exclude);
        let asked = &mut options.safeguards;
        asked.delete_threshold = safeguards.delete_threshold.or(asked.delete_threshold);
        asked.overwrite_threshold_bytes =
            safeguards.overwrite_threshold_bytes.or(asked.overwrite_threshold_bytes);
        set(&mut asked.rename_over_existing, safeguards.rename_over_existing);
        set(&mut asked.timeout, safeguards.timeout_seconds.map(Duration::from_secs));
        options.rules.allow.extend(protected.allow);
        options.rules.deny.extend(protected.deny);
        options.rules.flag.extend(protected.flag);
        options.rules.refuse_step |= protected.refuse_step;
        let limits = &mut options.command_limits;
        limits.memory_bytes = commands.max_memory_bytes.or(limits.memory_bytes);
        limits.processes = commands.max_processes.or(limits.processes);
        limits.open_files = commands.max_open_files.or(limits.open_files);
        limits.file_bytes = commands.max_file_bytes.or(limits.file_bytes);
        set(&mut options.nested_namespaces, commands.nested_namespaces);
        options.lists = classify;
        options.toolchains.extend(commands.toolchains);
        options.readable.extend(commands.readable);
        options.agent = agent.command.or(options.agent.take());
    }
}
