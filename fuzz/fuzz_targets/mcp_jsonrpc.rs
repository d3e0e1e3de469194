//! A hostile MCP client: whatever it says, the server does not panic, ends when the client hangs up,
//! plans no write outside the folder, and reads nothing there.
#![no_main]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use codeagent_common::ErrorCode;
use codeagent_mcp::{
    Backend, BashEnd, BashRequest, Call, Failure, Outcome, Settings, Surroundings, Undone, serve,
};
use codeagent_stdio::operations::*;
use codeagent_stdio::{DirectoryRef, StepSummary};
use codeagent_tools::{Folder, WritePlan};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SECRET: &str = "nobody-may-read-this";

/// Answers, and does nothing.
struct Nothing {
    folder: Arc<Folder>,
}

fn nothing<T>() -> Outcome<T> {
    Err(Failure::new(ErrorCode::NoSession, "there is none").into())
}

impl Backend for Nothing {
    fn surroundings(&self) -> Surroundings {
        Surroundings {
            directories: vec![self.folder.path().to_owned()],
            isolation: Isolation::Namespace,
            warnings: vec![],
        }
    }
    fn folder(&self, _: Option<&DirectoryRef>) -> Outcome<Arc<Folder>> {
        Ok(Arc::clone(&self.folder))
    }
    fn write(
        &self,
        _: Option<&DirectoryRef>,
        plan: &WritePlan,
        _: &Call,
    ) -> Outcome<Option<StepSummary>> {
        assert!(!plan.path.as_path().is_root());
        Ok(None)
    }
    fn bash(&self, request: &BashRequest, call: &Call) -> Outcome<BashEnd> {
        call.output(request.command.as_bytes());
        Ok(BashEnd { cwd: Some("/".to_owned()), ..BashEnd::default() })
    }
    fn undo(&self, request: UndoRollback, _: &Call) -> Outcome<Undone> {
        assert!(request.count > 0);
        nothing()
    }
    fn redo(&self, _: UndoRedo, _: &Call) -> Outcome<Undone> {
        nothing()
    }
    fn preview(&self, _: UndoPreview, _: &Call) -> Outcome<UndoPreviewed> {
        nothing()
    }
    fn history(&self, _: UndoHistory, _: &Call) -> Outcome<UndoHistoryReply> {
        Ok(UndoHistoryReply { entries: vec![], entry_count: 0, redoable: vec![] })
    }
    fn diff(&self, _: UndoDiff, _: &Call) -> Outcome<StepDiff> {
        nothing()
    }
    fn restore(&self, _: UndoRestore, _: &Call) -> Outcome<RestoreReport> {
        nothing()
    }
    fn discard(&self, _: UndoDiscard, _: &Call) -> Outcome<()> {
        panic!("nobody agreed")
    }
    fn status(&self, _: &Call) -> Outcome<SessionStatus> {
        nothing()
    }
}

struct Stage {
    runtime: tokio::runtime::Runtime,
    backend: Arc<Nothing>,
    _root: tempfile::TempDir,
}

fn stage() -> Stage {
    let root = tempfile::tempdir().expect("a directory");
    let project = root.path().join("project");
    std::fs::create_dir(&project).expect("a project");
    std::fs::write(root.path().join("secret"), SECRET).expect("a secret");
    std::fs::write(project.join("a.txt"), "one\ntwo\n").expect("a file");
    std::os::unix::fs::symlink("../secret", project.join("link")).expect("a symlink");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let folder = Arc::new(Folder::open(&project).expect("the project"));
    Stage {
        runtime: runtime.expect("a runtime"),
        backend: Arc::new(Nothing { folder }),
        _root: root,
    }
}

thread_local! {
    static STAGE: RefCell<Stage> = RefCell::new(stage());
}

const HELLO: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"fuzz","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
"#;

async fn converse(backend: Arc<Nothing>, data: &[u8]) -> Vec<u8> {
    let (here, there) = tokio::io::duplex(1 << 20);
    let (read, write) = tokio::io::split(there);
    let server = tokio::spawn(serve(read, write, backend, Settings::default()));
    let (mut from_server, mut to_server) = tokio::io::split(here);
    let reader = tokio::spawn(async move {
        let mut said = Vec::new();
        let _ = from_server.read_to_end(&mut said).await;
        said
    });
    let _ = to_server.write_all(HELLO).await;
    let _ = to_server.write_all(data).await;
    let _ = to_server.shutdown().await;
    drop(to_server);
    let ended = tokio::time::timeout(Duration::from_secs(20), server).await;
    let _ = ended.expect("the server goes on").expect("the server panicked");
    reader.await.unwrap_or_default()
}

fuzz_target!(|data: &[u8]| {
    STAGE.with_borrow(|stage| {
        let said = stage.runtime.block_on(converse(Arc::clone(&stage.backend), data));
        assert!(!String::from_utf8_lossy(&said).contains(SECRET));
    });
});
