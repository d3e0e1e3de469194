//! What a client sees of a safeguard's question, and what the engine sees of the client meanwhile.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use codeagent_common::{SafeguardDecision, SafeguardId};
use codeagent_interceptor::{EngineEvent, EventSink, StepRequest};
use codeagent_p9::wire::{Reply, Request};
use codeagent_p9::{Errno, Limits, linux};

use crate::client::{Client, PATIENCE, ROOT};
use crate::folder::Folder;

struct Questions(Mutex<mpsc::Sender<SafeguardId>>);

impl EventSink for Questions {
    fn event(&self, event: EngineEvent) {
        if let EngineEvent::SafeguardTriggered(request) = event {
            self.0.lock().unwrap().send(request.id).unwrap();
        }
    }
}

/// Has a removal held, looks around meanwhile, and answers the question.
fn held_removal(decision: SafeguardDecision) -> (Folder, Result<(), Errno>) {
    let (sender, questions) = mpsc::channel();
    let folder = Folder::configured(
        |root| {
            std::fs::create_dir(root.join("dir")).unwrap();
            std::fs::write(root.join("dir/inner"), "inner").unwrap();
            std::fs::write(root.join("file"), "file").unwrap();
        },
        |config| {
            config.safeguards.delete_threshold = Some(1);
            config.events = Arc::new(Questions(Mutex::new(sender)));
        },
    );
    folder.engine.open_step(StepRequest::command("rm")).unwrap();
    let mut client = folder.client();
    client.send(50, &Request::Unlinkat { dir: ROOT, name: b"file", flags: 0 });
    let question = questions.recv_timeout(PATIENCE).unwrap();
    // What a paused guest is told meanwhile waits in the stream, and it in turn for nothing.
    assert!(folder.fs.wait_until_answered(Duration::ZERO), "a machine can go on");
    assert!(!folder.fs.wait_until_quiet(Duration::ZERO, Duration::ZERO), "a step waits for it");
    client.find_open(1, "dir/inner", 0);
    assert_eq!(client.read(1, 0, 10).unwrap(), b"inner");
    client.find(2, "file").unwrap();
    folder.engine.confirm(question, decision).unwrap();
    let removed = match client.receive() {
        (50, Reply::Unlinkat {}) => Ok(()),
        (50, Reply::Error { errno }) => Err(Errno(errno)),
        other => panic!("{other:?}"),
    };
    client.leave().unwrap();
    assert!(folder.fs.wait_until_quiet(Duration::ZERO, PATIENCE));
    folder.engine.close_step(Some(0)).unwrap();
    (folder, removed)
}

#[test]
fn a_question_holds_what_it_is_about_and_no_reader() {
    let (folder, removed) = held_removal(SafeguardDecision::Allow);
    removed.unwrap();
    assert!(!folder.workspace.path("file").exists());
}

#[test]
fn what_is_denied_fails_and_changes_nothing() {
    let (folder, removed) = held_removal(SafeguardDecision::Deny);
    assert_eq!(removed, Err(Errno::EPERM));
    assert_eq!(std::fs::read(folder.workspace.path("file")).unwrap(), b"file");
}

#[test]
fn a_filesystem_is_served_over_one_stream_until_that_is_closed() {
    let folder = Folder::usual();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let fs = Arc::new(folder.fs.another());
    let thread = std::thread::spawn(|| linux::serve_stream(fs, theirs, Limits::default()));
    let mut client = Client::over(ours, Some(thread));
    assert_eq!(client.greet(u32::MAX), 4 << 20);
    client.attach(ROOT).unwrap();
    client.find_open(1, "file", 0);
    assert_eq!(client.read(1, 0, 3).unwrap(), b"012");
    client.leave().unwrap();
}
