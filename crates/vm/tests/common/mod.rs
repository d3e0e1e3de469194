//! A real guest, and a conversation with its shim.

#![allow(dead_code, reason = "not every test file uses all of it")]
#![allow(clippy::print_stdout, reason = "shown when a test fails")]

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use codeagent_control::{
    Cause, CommandId, Exec, ExitStatus, HostMessage, LineDecoder, MessageWriter, PROTOCOL_VERSION,
    ShimMessage,
};
use codeagent_vm::{AcceleratorChoice, GuestImage, GuestUser, Machine, MachineConfig};

/// Emulated guests on a busy machine take their time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The image that `cargo xtask test` has built, or the test counts as skipped.
pub(crate) fn image(test: &str) -> Option<GuestImage> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest/minimal-x86_64");
    let dir = std::env::var_os("CODEAGENT_TEST_GUEST").map_or(built, PathBuf::from);
    let image = GuestImage::open(dir);
    let qemu = codeagent_vm::Qemu::find(None, codeagent_vm::Architecture::current());
    match (image, qemu) {
        (Ok(image), Ok(_)) => Some(image),
        (Err(error), _) | (_, Err(error)) => {
            codeagent_test_support::filesystems::skip(test, &error.to_string());
            None
        }
    }
}

/// Verdicts about accelerators are shared by all tests, so that one of them waits at most.
pub(crate) fn state_dir() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vm-state");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

pub(crate) fn user() -> GuestUser {
    GuestUser { name: "agent".into(), uid: 1234, gid: 2345, home: "/home/agent".into() }
}

pub(crate) fn config(image: GuestImage) -> MachineConfig {
    let mut config = MachineConfig::new(env!("CARGO_BIN_EXE_vm-probe"), image, user(), state_dir());
    config.accelerator = AcceleratorChoice::Auto;
    config.memory_mib = 256;
    config.cpus = 1;
    config.boot_deadline = Duration::from_secs(120);
    config
}

pub(crate) fn start(config: MachineConfig) -> Machine {
    Machine::start(config, &mut |progress| println!("{progress:?}")).unwrap()
}

/// What the host says and hears.
pub(crate) struct Talk {
    pub(crate) channel: UnixStream,
    decoder: LineDecoder<ShimMessage>,
    kept: VecDeque<ShimMessage>,
    next_id: u64,
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) output: String,
    pub(crate) status: ExitStatus,
    pub(crate) cause: Cause,
}

impl Talk {
    pub(crate) fn with(machine: &Machine) -> Self {
        let channel = machine.control().try_clone().unwrap();
        let mut talk =
            Self { channel, decoder: LineDecoder::new(), kept: VecDeque::new(), next_id: 1 };
        talk.send(&HostMessage::Hello { version: PROTOCOL_VERSION });
        for _ in 0..2 {
            let hello = talk.receive_where(|message| matches!(message, ShimMessage::Hello { .. }));
            assert!(matches!(hello, ShimMessage::Hello { version: PROTOCOL_VERSION, .. }));
        }
        talk
    }

    pub(crate) fn send(&mut self, message: &HostMessage) {
        MessageWriter::new(&self.channel).write(message).unwrap();
    }

    pub(crate) fn begin(&mut self, mut exec: Exec) -> CommandId {
        let id = CommandId(self.next_id);
        self.next_id += 1;
        exec.id = id;
        self.send(&HostMessage::Exec(exec));
        self.receive_where(|message| *message == ShimMessage::StepStarted { id });
        id
    }

    pub(crate) fn run(&mut self, exec: Exec) -> Run {
        let id = self.begin(exec);
        self.finish(id)
    }

    pub(crate) fn shell(&mut self, line: &str) -> Run {
        self.run(Exec::shell(line))
    }

    /// What a command prints that has to succeed.
    pub(crate) fn output(&mut self, line: &str) -> String {
        let run = self.shell(line);
        assert_eq!(run.status, ExitStatus::ExitCode(0), "{line}: {run:?}");
        run.output
    }

    pub(crate) fn finish(&mut self, wanted: CommandId) -> Run {
        let mut output = String::new();
        loop {
            match self.receive_where(|message| id_of(message) == Some(wanted)) {
                ShimMessage::Output { data, .. } => output.push_str(&data.to_text()),
                ShimMessage::StepCompleted { status, cause, .. } => {
                    return Run { output, status, cause };
                }
                ShimMessage::StdinAccepted { .. } => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    pub(crate) fn output_until(&mut self, id: CommandId, wanted: &str) -> String {
        let mut text = String::new();
        while !text.contains(wanted) {
            let message = self.receive_where(|message| id_of(message) == Some(id));
            match message {
                ShimMessage::Output { data, .. } => text.push_str(&data.to_text()),
                ShimMessage::StdinAccepted { .. } => {}
                other => panic!("unexpected: {other:?} after {text:?}"),
            }
        }
        text
    }

    pub(crate) fn receive_where(&mut self, wanted: impl Fn(&ShimMessage) -> bool) -> ShimMessage {
        if let Some(at) = self.kept.iter().position(&wanted) {
            return self.kept.remove(at).unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(message) = self.decoder.next_message() {
                let message = message.unwrap();
                if wanted(&message) {
                    return message;
                }
                self.kept.push_back(message);
            }
            assert!(Instant::now() < deadline, "never came; kept: {:?}", self.kept);
            self.channel.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut chunk = [0; 64 * 1024];
            let count = self.channel.read(&mut chunk).unwrap();
            assert!(count > 0, "the guest has gone; kept: {:?}", self.kept);
            self.decoder.push(&chunk[..count]);
        }
    }
}

fn id_of(message: &ShimMessage) -> Option<CommandId> {
    match message {
        ShimMessage::StepStarted { id }
        | ShimMessage::Output { id, .. }
        | ShimMessage::StdinAccepted { id, .. }
        | ShimMessage::StepCompleted { id, .. } => Some(*id),
        ShimMessage::Error { id, .. } => *id,
        _ => None,
    }
}

/// Polls until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A QEMU that leaves its number in `pid`. With KVM it only hangs, if it is told so.
pub(crate) fn traced_qemu(dir: &Path, hangs_with_kvm: bool) -> PathBuf {
    let hang = if hangs_with_kvm { "case \"$*\" in *kvm*) exec sleep 1000;; esac\n" } else { "" };
    let pid = dir.join("pid");
    let script =
        format!("#!/bin/sh\n{hang}echo $$ > '{}'\nexec qemu-system-x86_64 \"$@\"\n", pid.display());
    program_of(dir, &script)
}

/// A script that plays QEMU.
pub(crate) fn program_of(dir: &Path, script: &str) -> PathBuf {
    let qemu = dir.join("qemu");
    std::fs::write(&qemu, script).unwrap();
    std::fs::set_permissions(&qemu, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    qemu
}

pub(crate) fn traced_pid(dir: &Path) -> i32 {
    std::fs::read_to_string(dir.join("pid")).unwrap().trim().parse().unwrap()
}

pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}
