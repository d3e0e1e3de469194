//! A real folder behind the undo engine, for clients to talk to.

use std::sync::Arc;

use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, OnConflict, RollbackOptions, StepRequest, UndoEngine};
use codeagent_p9::linux::Shared;
use codeagent_p9::{Limits, Server};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};

use crate::client::Client;

pub(crate) type Fs = InterceptedFs<UndoEngine>;

pub(crate) struct Folder {
    pub(crate) workspace: TempWorkspace,
    pub(crate) engine: Arc<UndoEngine>,
    pub(crate) fs: Fs,
    pub(crate) server: Arc<Server>,
}

impl Folder {
    pub(crate) fn new(fixture: impl FnOnce(&std::path::Path)) -> Self {
        Self::configured(fixture, |_| {})
    }

    pub(crate) fn configured(
        fixture: impl FnOnce(&std::path::Path),
        configure: impl FnOnce(&mut EngineConfig),
    ) -> Self {
        let workspace = TempWorkspace::with_fixture(fixture);
        let mut config = EngineConfig::new(workspace.working(), workspace.undo());
        configure(&mut config);
        let engine = Arc::new(UndoEngine::open(config).unwrap());
        let config = FsConfig::new(workspace.working());
        let fs = InterceptedFs::new(&config, Arc::clone(&engine)).unwrap();
        Self { workspace, engine, fs, server: Arc::new(Server::new(Limits::default())) }
    }

    /// With a few things in it.
    pub(crate) fn usual() -> Self {
        Self::new(|root| {
            std::fs::write(root.join("file"), "0123456789").unwrap();
            std::fs::create_dir_all(root.join("dir/sub")).unwrap();
            std::fs::write(root.join("dir/inner"), "inner").unwrap();
            std::os::unix::fs::symlink("file", root.join("link")).unwrap();
        })
    }

    pub(crate) fn client(&self) -> Client {
        Client::to(&self.server, Shared::new(Arc::new(self.fs.another())))
    }

    /// What a client does in one step is undone exactly, and redone exactly.
    pub(crate) fn undone_and_redone(&self, act: impl FnOnce(&mut Client)) {
        let before = self.workspace.snapshot();
        self.engine.open_step(StepRequest::command("9p")).unwrap();
        let mut client = self.client();
        act(&mut client);
        client.leave().unwrap();
        self.engine.close_step(Some(0)).unwrap();
        let after = self.workspace.snapshot();
        assert_ne!(before, after, "it did something");
        let options = RollbackOptions { on_conflict: OnConflict::Refuse };
        self.engine.rollback(1, options).unwrap();
        assert_tree_eq(&before, &self.workspace.snapshot());
        self.engine.redo(1, options).unwrap();
        assert_tree_eq(&after, &self.workspace.snapshot());
    }
}
