//! What goes on while a mutation waits for somebody's answer.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use codeagent_common::{SafeguardDecision, SafeguardId};
use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, EngineEvent, EventSink, StepRequest, UndoEngine};
use codeagent_test_support::TempWorkspace;
use virtiofsd::filesystem::{Context, FileSystem};
use virtiofsd::fuse::ROOT_ID;

struct Questions(Mutex<mpsc::Sender<SafeguardId>>);

impl EventSink for Questions {
    fn event(&self, event: EngineEvent) {
        if let EngineEvent::SafeguardTriggered(request) = event {
            self.0.lock().unwrap().send(request.id).unwrap();
        }
    }
}

fn ctx() -> Context {
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Context { uid: ids.0.into(), gid: ids.1.into(), pid: 1 }
}

/// Holds the removal of `file`, looks around meanwhile, and answers.
fn held_removal(decision: SafeguardDecision) -> (std::io::Result<()>, TempWorkspace) {
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("dir/inner"), "inner").unwrap();
        fs::write(root.join("file"), "file").unwrap();
    });
    let (sender, questions) = mpsc::channel();
    let mut config = EngineConfig::new(workspace.working(), workspace.undo());
    config.safeguards.delete_threshold = Some(1);
    config.events = Arc::new(Questions(Mutex::new(sender)));
    let engine = Arc::new(UndoEngine::open(config).unwrap());
    let fs = InterceptedFs::new(&FsConfig::new(workspace.working()), Arc::clone(&engine)).unwrap();
    engine.open_step(StepRequest::command("rm")).unwrap();
    let removed = std::thread::scope(|scope| {
        let remover = scope.spawn(|| fs.unlink(ctx(), ROOT_ID, c"file"));
        let question = questions.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(fs.in_flight(), 1);
        assert!(!fs.wait_until_quiet(Duration::ZERO, Duration::ZERO));
        let dir = fs.lookup(ctx(), ROOT_ID, c"dir").unwrap().inode;
        let inner = fs.lookup(ctx(), dir, c"inner").unwrap().inode;
        let handle = fs.open(ctx(), inner, false, libc::O_RDONLY as u32).unwrap().0.unwrap();
        fs.getattr(ctx(), inner, Some(handle)).unwrap();
        fs.lookup(ctx(), ROOT_ID, c"file").unwrap();
        engine.confirm(question, decision).unwrap();
        remover.join().unwrap()
    });
    assert!(fs.wait_until_quiet(Duration::ZERO, Duration::from_secs(30)));
    engine.close_step(Some(0)).unwrap();
    (removed, workspace)
}

#[test]
fn reads_go_on_while_a_removal_is_held() {
    let (removed, workspace) = held_removal(SafeguardDecision::Allow);
    removed.unwrap();
    assert!(!workspace.path("file").exists());
}

#[test]
fn a_denied_removal_fails_and_changes_nothing() {
    let (removed, workspace) = held_removal(SafeguardDecision::Deny);
    assert_eq!(removed.unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(fs::read_to_string(workspace.path("file")).unwrap(), "file");
}
