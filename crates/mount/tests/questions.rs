//! What goes on in a mount while somebody is asked about something destructive.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use codeagent_common::{SafeguardDecision, SafeguardId};
use codeagent_interceptor::{EngineConfig, EngineEvent, EventSink, StepRequest, UndoEngine};
use codeagent_mount::{Mount, MountOptions};
use codeagent_test_support::TempWorkspace;
use common::{can_mount, wait_for};

const THREADS: usize = 4;

struct Questions(Mutex<mpsc::Sender<SafeguardId>>);

impl EventSink for Questions {
    fn event(&self, event: EngineEvent) {
        if let EngineEvent::SafeguardTriggered(request) = event {
            self.0.lock().unwrap().send(request.id).unwrap();
        }
    }
}

/// Twice as many programs wait for the answer as the mount has threads.
#[test]
fn whoever_reads_goes_on_while_more_wait_than_the_mount_has_threads() {
    if !can_mount("whoever_reads_goes_on_while_more_wait_than_the_mount_has_threads") {
        return;
    }
    let workspace = TempWorkspace::with_fixture(|root| {
        for dir in ["asked", "read"] {
            fs::create_dir(root.join(dir)).unwrap();
            fs::write(root.join(dir).join("file"), dir).unwrap();
        }
        for writer in 0..2 * THREADS {
            fs::create_dir(root.join(format!("writer-{writer}"))).unwrap();
        }
    });
    let (sender, questions) = mpsc::channel();
    let mut config = EngineConfig::new(workspace.working(), workspace.undo());
    config.safeguards.delete_threshold = Some(1);
    config.events = Arc::new(Questions(Mutex::new(sender)));
    let engine = Arc::new(UndoEngine::open(config).unwrap());
    let point = tempfile::tempdir().unwrap();
    let options =
        MountOptions { threads: THREADS, ..MountOptions::new(workspace.working(), point.path()) };
    let mount = Mount::start(&options, Arc::clone(&engine)).unwrap();
    engine.open_step(StepRequest::command("rm")).unwrap();
    let path = |name: &str| point.path().join(name);
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| fs::remove_file(path("asked/file")));
        let question = questions.recv_timeout(Duration::from_secs(30)).unwrap();
        let writers: Vec<_> = (0..2 * THREADS)
            .map(|writer| {
                let new = path(&format!("writer-{writer}/new"));
                scope.spawn(move || fs::write(new, "new"))
            })
            .collect();
        wait_for("all of them wait", || mount.fs().in_flight() > 2 * THREADS);
        assert_eq!(fs::read_to_string(path("read/file")).unwrap(), "read");
        assert_eq!(fs::read_dir(path("read")).unwrap().count(), 1);
        assert!(workspace.path("asked/file").exists(), "nobody has answered");
        engine.confirm(question, SafeguardDecision::Allow).unwrap();
        remover.join().unwrap().unwrap();
        writers.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
    });
    engine.close_step(Some(0)).unwrap();
    assert!(!workspace.path("asked/file").exists());
    assert_eq!(fs::read_to_string(workspace.path("writer-0/new")).unwrap(), "new");
}
