//! A folder of this Windows, served, with an interceptor of the tests' own.
#![allow(dead_code, reason = "each file of tests uses some of it")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeagent_common::{RelPath, RelPathBuf, StepId};
use codeagent_interceptor::{
    FileId, Mutation, Permit, Result as Verdict, UndoError, Whereabouts, WriteInterceptor,
};
use codeagent_p9::{Attributes, Caller, Created, Errno, NewNode, OpenFlags, Result, Share};
use codeagent_windows::overlay::{FILE_NAME, Limits, Overlay};
use codeagent_windows::share::{Node, Opened, ShareOptions, WindowsShare};
use parking_lot::Mutex;

pub(crate) const ME: Caller = Caller { uid: 1000, gid: 1000 };
pub(crate) const NEW: OpenFlags =
    OpenFlags(OpenFlags::READ_WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE);
pub(crate) const READ: OpenFlags = OpenFlags(OpenFlags::READ_ONLY);
pub(crate) const WRITE: OpenFlags = OpenFlags(OpenFlags::READ_WRITE);

/// Writes down what it is asked, and refuses it if told so.
#[derive(Debug, Default, Clone)]
pub(crate) struct Notes {
    asked: Arc<Mutex<Vec<String>>>,
    refuses: Arc<Mutex<bool>>,
}

impl Notes {
    /// What was asked since the last time.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock())
    }

    pub(crate) fn refuse(&self, refuses: bool) {
        *self.refuses.lock() = refuses;
    }
}

impl WriteInterceptor for Notes {
    fn before_at<'e>(&'e self, mutation: &Mutation<'_>, _: Whereabouts) -> Verdict<Permit<'e>> {
        let said = match mutation {
            Mutation::Create { path, kind } => format!("create {path} {kind:?}"),
            Mutation::Mkdir { path } => format!("mkdir {path}"),
            Mutation::Link { existing, path } => {
                format!("link {} {path}", existing.unwrap_or(RelPath::ROOT))
            }
            Mutation::Unlink { path } => format!("unlink {path}"),
            Mutation::Rmdir { path } => format!("rmdir {path}"),
            Mutation::Rename { from, to, mode } => format!("rename {from} {to} {mode:?}"),
            Mutation::Write { file, offset, length } => {
                format!("write {} {offset} {length}", file.path)
            }
            Mutation::Append { file } => format!("append {}", file.path),
            Mutation::Truncate { file, length } => format!("truncate {} {length}", file.path),
            Mutation::Allocate { file, .. } => format!("allocate {}", file.path),
            Mutation::OpenUnseen { file } => format!("open unseen {}", file.path),
            Mutation::SetAttributes { file } => format!("attributes {}", file.path),
        };
        self.asked.lock().push(said);
        match *self.refuses.lock() {
            true => Err(UndoError::ReadOnly),
            false => Ok(Permit::free()),
        }
    }

    fn repeat_write<'e>(&'e self, _: FileId, _: u64, _: u64) -> Option<Permit<'e>> {
        None
    }

    fn kept_names(&self, _: FileId) -> u32 {
        0
    }

    fn current_step(&self) -> Option<StepId> {
        None
    }
}

pub(crate) type Served = WindowsShare<Notes>;

/// A folder with something beside it that nobody may touch.
pub(crate) struct Folder {
    dir: tempfile::TempDir,
    pub(crate) notes: Notes,
    pub(crate) overlay: Arc<Overlay>,
    pub(crate) share: Served,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self::with(tempfile::tempdir().unwrap(), ShareOptions::default())
    }

    pub(crate) fn with(dir: tempfile::TempDir, options: ShareOptions) -> Self {
        let _ = fs::create_dir(dir.path().join("work"));
        let _ = fs::create_dir(dir.path().join("outside"));
        fs::write(dir.path().join("outside/victim"), "untouched").unwrap();
        let overlay = Overlay::open(&dir.path().join(FILE_NAME), Limits::default()).unwrap();
        let overlay = Arc::new(overlay);
        let notes = Notes::default();
        let work = dir.path().join("work");
        let share =
            WindowsShare::open(&work, Arc::clone(&overlay), notes.clone(), options).unwrap();
        Self { dir, notes, overlay, share }
    }

    /// The same folder, for another client.
    pub(crate) fn another(&self) -> Served {
        let (overlay, notes) = (Arc::clone(&self.overlay), self.notes.clone());
        WindowsShare::open(&self.host(""), overlay, notes, ShareOptions::default()).unwrap()
    }

    /// The next session in the same folder.
    pub(crate) fn again(self, options: ShareOptions) -> Self {
        let Self { dir, share, overlay, .. } = self;
        drop(share);
        drop(overlay);
        Self::with(dir, options)
    }

    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.dir.path().join("work").join(path)
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    pub(crate) fn victim_is_untouched(&self) {
        assert_eq!(fs::read_to_string(self.outside().join("victim")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(self.outside()).unwrap().count(), 1);
    }

    pub(crate) fn root(&self) -> Node {
        self.share.root(ME).unwrap().node
    }

    pub(crate) fn try_node(&self, path: &str) -> Result<Node> {
        let mut node = self.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            node = self.share.lookup(ME, &node, name.as_bytes())?.node;
        }
        Ok(node)
    }

    pub(crate) fn node(&self, path: &str) -> Node {
        self.try_node(path).unwrap()
    }

    pub(crate) fn make(&self, dir: &Node, name: &str) -> Result<Created<Node, Opened>> {
        self.share.create(ME, dir, name.as_bytes(), NEW, 0o644)
    }

    pub(crate) fn mkdir(&self, dir: &Node, name: &str) -> Node {
        let new = NewNode::Directory { mode: 0o755 };
        self.share.make(ME, dir, name.as_bytes(), new).unwrap();
        self.share.lookup(ME, dir, name.as_bytes()).unwrap().node
    }

    pub(crate) fn stat(&self, path: &str) -> Attributes {
        self.share.attributes(ME, &self.node(path), None, u64::MAX).unwrap()
    }

    pub(crate) fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let change = codeagent_p9::Change { mode: Some(mode), ..Default::default() };
        self.share.change(ME, &self.node(path), None, &change)
    }

    pub(crate) fn names(&self, dir: &Node) -> Vec<(String, u8)> {
        let open = self.share.open(ME, dir, READ).unwrap();
        let mut found = Vec::new();
        self.share
            .list(ME, dir, &open, 0, &mut |entry| {
                found.push((String::from_utf8_lossy(entry.name).into_owned(), entry.kind));
                true
            })
            .unwrap();
        found.sort();
        found
    }
}

pub(crate) fn path(text: &str) -> RelPathBuf {
    RelPathBuf::new(text).unwrap()
}

/// This system cannot show it. Counted by whoever runs the tests, and never as passed.
pub(crate) fn skip(test: &str, reason: &str) {
    let line = format!("{test}: {reason}\n");
    let Some(file) = std::env::var_os("CODEAGENT_SKIPS") else { return };
    let mut file = fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(line.as_bytes()).unwrap();
}

/// Makes a junction, if this system can.
pub(crate) fn junction(at: &Path, to: &Path) -> Option<()> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;
    const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;
    fs::create_dir(at).unwrap();
    let dir = fs::OpenOptions::new()
        .write(true)
        .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)
        .open(at)
        .unwrap();
    let full = fs::canonicalize(to).unwrap();
    let target = full.to_str().unwrap().replace(r"\\?\", r"\??\");
    let name: Vec<u8> = target.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let length = name.len() as u16;
    let mut body: Vec<u8> = Vec::new();
    for field in [0, length, length + 2, 0] {
        body.extend(field.to_le_bytes());
    }
    body.extend(name);
    body.extend([0; 4]);
    let mut data = codeagent_windows::reparse::TAG_MOUNT_POINT.to_le_bytes().to_vec();
    data.extend((body.len() as u16).to_le_bytes());
    data.extend([0; 2]);
    data.extend(body);
    let made = codeagent_windows::host::set_reparse_data(&dir, &data).is_ok();
    drop(dir);
    if !made {
        fs::remove_dir(at).unwrap();
    }
    made.then_some(())
}

pub(crate) fn failed<T>(outcome: Result<T>) -> Errno {
    outcome.err().unwrap()
}
