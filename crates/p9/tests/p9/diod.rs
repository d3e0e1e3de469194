//! An implementation that nobody here wrote: its server answers our client as ours does, and its
//! client understands our server.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use codeagent_p9::linux::Shared;
use codeagent_p9::wire::{NO_FID, Reply, Request, lock, setattr};
use codeagent_p9::{Errno, OpenFlags};
use codeagent_test_support::{CompareOptions, TempWorkspace, assert_tree_eq_with, filesystems};

use crate::client::{Client, PATIENCE, ROOT};
use crate::folder::Folder;

fn is_there(program: &str, test: &str) -> bool {
    let there = Command::new(program).arg("--help").output().is_ok();
    if !there {
        filesystems::skip(test, &format!("{program} is not installed"));
    }
    there
}

/// The other server, on a stream of its own.
struct Diod {
    process: Child,
    client: Client,
}

impl Diod {
    fn new(workspace: &TempWorkspace) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let (input, output) = (theirs.try_clone().unwrap(), theirs);
        let process = Command::new("diod")
            .args(["--foreground", "--no-auth", "--no-userdb", "--config-file", "/dev/null"])
            .args(["--rfdno", "0", "--wfdno", "1", "--logdest", "stderr", "--export"])
            .arg(workspace.working())
            .stdin(Stdio::from(OwnedFd::from(input)))
            .stdout(Stdio::from(OwnedFd::from(output)))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, client: Client::over(ours, None) }
    }
}

impl Drop for Diod {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Does a little of everything and writes down what it was told.
struct Script<'c> {
    client: &'c mut Client,
    told: Vec<String>,
}

impl Script<'_> {
    fn note<T: std::fmt::Debug>(&mut self, what: &str, answer: Result<T, Errno>) {
        self.told.push(format!("{what}: {answer:?}"));
    }

    fn ask(&mut self, what: &str, request: &Request<'_>) {
        let answer = self.client.tell(request);
        self.note(what, answer);
    }

    fn walk(&mut self, fid: u32, new_fid: u32, names: &[&str]) {
        let walked = self.client.walk(fid, new_fid, names);
        let kinds = walked.map(|qids| qids.iter().map(|qid| qid.kind.0).collect::<Vec<_>>());
        self.note(&format!("walk {names:?}"), kinds);
    }

    fn attributes(&mut self, fid: u32) {
        let told = self.client.attributes(fid).map(|told| {
            let size = if told.qid.is_dir() { 0 } else { told.size };
            (told.mode, told.uid, told.gid, told.links, size, told.qid.kind.0)
        });
        self.note("attributes", told);
    }
}

fn script(client: &mut Client, tree: &[u8]) -> Vec<String> {
    client.greet(65_536);
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let mut all = Script { client, told: Vec::new() };
    all.ask("attach", &Request::Attach { fid: ROOT, auth_fid: NO_FID, user: b"", tree, uid });
    all.attributes(ROOT);
    all.walk(ROOT, 1, &["dir", "inner"]);
    all.walk(ROOT, 2, &["dir", "none"]);
    all.walk(ROOT, 2, &["none", "x"]);
    all.walk(ROOT, 2, &["link"]);
    all.attributes(1);
    all.attributes(2);
    let target = match all.client.ask(&Request::Readlink { fid: 2 }) {
        Ok(Reply::Readlink { target }) => Ok(target.to_vec()),
        Ok(_) => Err(Errno::EPROTO),
        Err(errno) => Err(errno),
    };
    all.note("readlink", target);
    let opened = all.client.open(1, 0).map(|_| ());
    all.note("open", opened);
    for (offset, count) in [(0, 100), (2, 2), (5, 10)] {
        let read = all.client.read(1, offset, count);
        all.note("read", read);
    }
    let created = all.client.create(3, "new", OpenFlags::READ_WRITE | OpenFlags::CREATE, 0o640);
    all.note("create", created.map(|qid| qid.kind.0));
    let written = all.client.write(3, 3, b"written");
    all.note("write", written);
    let read = all.client.read(3, 0, 100);
    all.note("read back", read);
    all.ask("sync", &Request::Fsync { fid: 3, data_only: 0 });
    let (mode, time) = (0o600, setattr::MODIFIED | setattr::MODIFIED_SET);
    let changed = all.client.change(3, setattr::MODE | setattr::SIZE | time, mode, 5);
    all.note("change", changed);
    all.attributes(3);
    let (fid, start, length, process) = (3, 0, 10, 1);
    let (kind, client) = (lock::WRITE, &b"guest"[..]);
    all.ask("lock", &Request::Lock { fid, kind, flags: 0, start, length, process, client });
    all.ask("mkdir", &Request::Mkdir { dir: ROOT, name: b"made", mode: 0o750, gid });
    all.ask("mkdir again", &Request::Mkdir { dir: ROOT, name: b"made", mode: 0o750, gid });
    let target = &b"to"[..];
    all.ask("symlink", &Request::Symlink { dir: ROOT, name: b"soft", target, gid });
    all.ask("link", &Request::Link { dir: ROOT, fid: 3, name: b"hard" });
    let (major, minor) = (0, 0);
    let mode = 0o010_600;
    all.ask("mknod", &Request::Mknod { dir: ROOT, name: b"fifo", mode, major, minor, gid });
    all.walk(ROOT, 4, &["made"]);
    // By number: it is too old for the other way.
    all.walk(ROOT, 6, &["hard"]);
    all.ask("rename", &Request::Rename { fid: 6, dir: 4, name: b"moved" });
    all.walk(ROOT, 7, &["file"]);
    all.ask("remove a file", &Request::Remove { fid: 7 });
    all.walk(ROOT, 7, &["dir"]);
    all.ask("remove a directory that is not empty", &Request::Remove { fid: 7 });
    all.walk(ROOT, 7, &["dir", "sub"]);
    all.ask("remove a directory", &Request::Remove { fid: 7 });
    all.walk(ROOT, 5, &[]);
    let opened = all.client.open(5, OpenFlags::DIRECTORY).map(|_| ());
    all.note("open the root", opened);
    let listed = all.client.list(5, 200).map(|mut names| {
        names.sort();
        names
    });
    all.note("list", listed);
    all.walk(ROOT, 8, &["made", "moved"]);
    all.ask("remove what was moved", &Request::Remove { fid: 6 });
    all.walk(ROOT, 9, &["made", "moved"]);
    all.ask("clunk", &Request::Clunk { fid: 3 });
    all.ask("flush", &Request::Flush { old_tag: 999 });
    all.ask("statfs", &Request::Statfs { fid: ROOT });
    all.told
}

#[test]
fn its_server_tells_our_client_what_ours_does() {
    if !is_there("diod", "its_server_tells_our_client_what_ours_does") {
        return;
    }
    let (ours, theirs) = (Folder::usual(), Folder::usual());
    let server = Arc::clone(&ours.server);
    let mut client = Client::silent(server, Shared::new(Arc::new(ours.fs.another())));
    let told = script(&mut client, b"/");
    client.leave().unwrap();
    let tree = theirs.workspace.working().as_os_str().as_encoded_bytes().to_vec();
    let mut diod = Diod::new(&theirs.workspace);
    let expected = script(&mut diod.client, &tree);
    assert_eq!(told, expected);
    // They were not made at the same moment; what was set is years away.
    let options =
        CompareOptions { mtime_tolerance_ns: 3_600_000_000_000, ..CompareOptions::default() };
    assert_tree_eq_with(&theirs.workspace.snapshot(), &ours.workspace.snapshot(), &options);
}

/// One client of its tools, served by ours.
fn run(folder: &Folder, program: &str, arguments: &[&str]) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let share = Shared::new(Arc::new(folder.fs.another()));
    let server = Arc::clone(&folder.server);
    let serving = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        server.serve(share, stream.try_clone().unwrap(), stream)
    });
    let mut command = Command::new(program);
    command.args(["--server", &address, "--aname", "/", "-t", "60"]).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    serving.join().unwrap().unwrap();
    output
}

#[test]
fn its_client_lists_our_directories() {
    if !is_there("diodls", "its_client_lists_our_directories") {
        return;
    }
    let folder = Folder::usual();
    let listed = run(&folder, "diodls", &["/"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut names: Vec<&str> =
        listed.split_whitespace().filter(|name| *name != "." && *name != "..").collect();
    names.sort_unstable();
    assert_eq!(names, ["dir", "file", "link"]);
    let long = run(&folder, "diodls", &["-l", "dir"]);
    let long = String::from_utf8(long.stdout).unwrap();
    assert!(long.lines().any(|line| line.starts_with("-rw") && line.ends_with("inner")), "{long}");
    assert!(long.lines().any(|line| line.starts_with("drwx") && line.ends_with("sub")), "{long}");
}

#[test]
fn its_client_reads_our_files() {
    if !is_there("diodcat", "its_client_reads_our_files") {
        return;
    }
    let large: Vec<u8> = (0..300_000_u32).map(|number| (number % 253) as u8).collect();
    let folder = Folder::usual();
    std::fs::write(folder.workspace.path("large"), &large).unwrap();
    let both = run(&folder, "diodcat", &["dir/inner", "large"]);
    assert_eq!(both.stdout, [&b"inner"[..], &large].concat());
}
