//! A folder, its worker, and a guest that has it, without a session around them.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use codeagent_common::SafeguardRequest;
use codeagent_interceptor::{EngineEvent, OnConflict, StepRequest};
use codeagent_p9::linux::NinePOptions;
use codeagent_test_guest::{Folder, Guest, Parts};
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use codeagent_virtiofs::{GuestOptions, Owners, connection};
use codeagent_worker::{Client, Event, Settings, WorkerProcess, WorkerSpec};

/// What carries the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Virtiofs,
    /// With our module in the guest.
    NineP,
    /// With a relay in the guest.
    NinePRelay,
}

/// Declares a test for each carrier.
macro_rules! over_each_carrier {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        mod $name {
            use super::common::folder::Carrier;

            #[test]
            fn over_virtiofs() {
                super::$name(Carrier::Virtiofs);
            }

            #[test]
            fn over_9p() {
                if super::common::folder::has_module(stringify!($name)) {
                    super::$name(Carrier::NineP);
                }
            }

            #[test]
            fn over_9p_through_a_relay() {
                super::$name(Carrier::NinePRelay);
            }
        }
    };
}
pub(crate) use over_each_carrier;

pub(crate) struct Session {
    // Dropped in this order.
    pub(crate) guest: Guest,
    pub(crate) worker: WorkerProcess,
    pub(crate) attachment: u64,
    pub(crate) events: Receiver<Event>,
    pub(crate) workspace: TempWorkspace,
}

/// What a guest needs, if this machine has it; says what is missing.
pub(crate) fn parts(test: &str) -> Option<Parts> {
    Parts::find().map_err(|missing| skip(test, &missing)).ok()
}

/// Whether the guest's kernel carries 9P itself; says so if not.
pub(crate) fn has_module(test: &str) -> bool {
    let Some(parts) = parts(test) else { return false };
    let has_module = parts.image().manifest().module_9p;
    if !has_module {
        skip(test, "the image was built without our module for 9P");
    }
    has_module
}

pub(crate) fn start_worker(
    workspace: &TempWorkspace,
    change: impl FnOnce(&mut Settings),
) -> (WorkerProcess, Receiver<Event>) {
    let mut settings = Settings::new(workspace.working(), workspace.undo());
    change(&mut settings);
    let mut spec = WorkerSpec::new(settings).unwrap();
    spec.program = super::PROGRAM.into();
    let (sender, events) = channel();
    let worker = WorkerProcess::start(&spec, move |event| {
        let _ = sender.send(event); // the test has ended
    });
    let worker = worker.unwrap().unwrap();
    worker.client().subscribe().unwrap();
    (worker, events)
}

/// How a guest has its folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) carrier: Carrier,
    pub(crate) owners: Option<Owners>,
}

impl Way {
    /// The files of the folder belong to whoever runs the test, on both sides.
    pub(crate) fn ours(carrier: Carrier) -> Self {
        Self { carrier, owners: Some(Owners::this_user()) }
    }

    /// The worker serves one end, the guest gets the other.
    fn attach(self, client: &Client) -> (Folder, u64) {
        let Self { carrier, owners } = self;
        match carrier {
            Carrier::Virtiofs => {
                let dir = tempfile::tempdir().unwrap();
                let (listener, stream) = connection(dir.path()).unwrap();
                let names = std::fs::read_dir(dir.path()).unwrap().count();
                assert_eq!(names, 0, "no name is left");
                let options = GuestOptions { owners }.encode();
                (Folder::Virtiofs(stream), client.attach(&listener, None, options).unwrap())
            }
            Carrier::NineP | Carrier::NinePRelay => {
                let (served, stream) = UnixStream::pair().unwrap();
                let options = NinePOptions { owners }.encode();
                let attachment = client.attach(&served, None, options).unwrap();
                let folder = match carrier {
                    Carrier::NinePRelay => Folder::NinePRelay(stream),
                    _ => Folder::NineP(stream),
                };
                (folder, attachment)
            }
        }
    }
}

pub(crate) fn boot(parts: &Parts, client: &Client, way: Way) -> (Guest, u64) {
    boot_with(parts, client, way, &[])
}

/// With further programs in the guest.
pub(crate) fn boot_with(
    parts: &Parts,
    client: &Client,
    way: Way,
    programs: &[&Path],
) -> (Guest, u64) {
    let (folder, attachment) = way.attach(client);
    let agent = Path::new(env!("CARGO_BIN_EXE_guest-agent"));
    (Guest::boot_with(parts, agent, folder, programs), attachment)
}

impl Session {
    pub(crate) fn start(parts: &Parts, carrier: Carrier, fixture: impl FnOnce(&Path)) -> Self {
        Self::start_with(parts, carrier, fixture, |_| {})
    }

    pub(crate) fn start_with(
        parts: &Parts,
        carrier: Carrier,
        fixture: impl FnOnce(&Path),
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let workspace = TempWorkspace::with_fixture(fixture);
        let (worker, events) = start_worker(&workspace, change);
        let (guest, attachment) = boot(parts, worker.client(), Way::ours(carrier));
        Self { guest, worker, attachment, events, workspace }
    }

    pub(crate) fn client(&self) -> &Client {
        self.worker.client()
    }

    /// Runs a script in the guest, as one step.
    pub(crate) fn step(&mut self, script: &str) -> String {
        self.client().open_step(StepRequest::command(script)).unwrap();
        let said = self.guest.sh(&format!("{script}\nsync"));
        self.client().close_step(Some(0)).unwrap();
        said
    }

    /// One step, undone and redone; the tree is exact each time, and the guest sees it so.
    pub(crate) fn there_and_back(&mut self, script: &str) {
        let before = self.workspace.snapshot();
        let seen_before = self.guest.see();
        self.step(script);
        let after = self.workspace.snapshot();
        let seen_after = self.guest.see();
        assert!(before != after, "{script} changes something");
        assert_ne!(seen_before, seen_after, "{script}: the guest sees it");
        self.client().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &self.workspace.snapshot());
        assert_eq!(seen_before, self.guest.see(), "{script}: undone");
        self.client().redo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&after, &self.workspace.snapshot());
        assert_eq!(seen_after, self.guest.see(), "{script}: redone");
        self.client().undo(1, OnConflict::Refuse).unwrap();
    }

    pub(crate) fn question(&self) -> SafeguardRequest {
        let deadline = Duration::from_secs(60);
        loop {
            let event = self.events.recv_timeout(deadline).expect("a question");
            if let Event::Engine(EngineEvent::SafeguardTriggered(question)) = event {
                return question;
            }
        }
    }
}
