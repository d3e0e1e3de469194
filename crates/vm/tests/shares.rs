//! Folders of the host in a guest, served by an ordinary virtiofsd: that the wiring is right. What
//! interception does with them is tested where it is.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use codeagent_control::ExitStatus;
use codeagent_vm::{Backend, Share, ShareServer};
use common::{Talk, config, image, start, user, wait_until};

const VIRTIOFSD: &str = "/usr/lib/qemu/virtiofsd";

/// Serves a folder until it is dropped.
struct Server(Child);

impl Server {
    fn start(folder: &Path, socket: &Path) -> Self {
        let child = Command::new(VIRTIOFSD)
            .arg(format!("--socket-path={}", socket.display()))
            .args(["-o", &format!("source={}", folder.display()), "-o", "sandbox=chroot"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("virtiofsd listens", || socket.exists());
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn folders_are_where_they_are_on_the_host() {
    let Some(image) = image("folders_are_where_they_are_on_the_host") else { return };
    if !Path::new(VIRTIOFSD).exists() || !rustix::process::geteuid().is_root() {
        let why = "QEMU's virtiofsd is not here, or we are not root";
        return codeagent_test_support::filesystems::skip(
            "folders_are_where_they_are_on_the_host",
            why,
        );
    }
    let host = tempfile::tempdir().unwrap();
    let folder = |name: &str| -> PathBuf {
        let folder = host.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(user().uid), Some(user().gid)).unwrap();
        std::fs::write(folder.join("there"), name).unwrap();
        folder
    };
    let (work, reference) = (folder("my work"), folder("reference"));
    let sockets = [host.path().join("0.sock"), host.path().join("1.sock")];
    let _servers = [Server::start(&work, &sockets[0]), Server::start(&reference, &sockets[1])];
    let mut config = config(image);
    let connected = std::os::unix::net::UnixStream::connect(&sockets[1]).unwrap();
    config.shares = vec![
        Share {
            tag: "folder0".into(),
            path: work.clone(),
            read_only: false,
            backend: Backend::Virtiofs,
            server: ShareServer::Socket(sockets[0].clone()),
        },
        Share {
            tag: "folder1".into(),
            path: reference.clone(),
            read_only: true,
            backend: Backend::Virtiofs,
            server: ShareServer::Connected(connected.into()),
        },
    ];
    let machine = start(config);
    let mut talk = Talk::with(&machine);

    // Commands begin in the first folder.
    assert_eq!(talk.output("pwd; cat there"), format!("{}\nmy work", work.display()));
    talk.output("mkdir -p deep/er && echo made > deep/er/file");
    assert_eq!(std::fs::read_to_string(work.join("deep/er/file")).unwrap(), "made\n");
    assert_eq!(std::fs::metadata(work.join("deep/er/file")).unwrap().uid(), user().uid);

    let theirs = reference.display();
    assert_eq!(talk.output(&format!("cat '{theirs}/there'")), "reference");
    let run = talk.shell(&format!("touch '{theirs}/new'"));
    assert_ne!(run.status, ExitStatus::ExitCode(0));
    assert!(run.output.contains("Read-only"), "{run:?}");
    assert!(!reference.join("new").exists());
}
