//! The serial ports to the host. They belong to root and can be open once, so that nothing else in
//! the guest gets at them while we live.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PORTS: &str = "/sys/class/virtio-ports";
/// The host is on the other side from the start; the driver learns of it a moment later.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The port of this name.
pub(super) fn open(name: &str) -> io::Result<File> {
    let give_up_at = Instant::now() + PATIENCE;
    let mut port = None;
    loop {
        if port.is_none()
            && let Some(device) = find(Path::new(PORTS), name)
        {
            port = Some(OpenOptions::new().read(true).write(true).open(device)?);
        }
        if let Some(port) = port.take_if(|port| host_is_there(port)) {
            return Ok(port);
        }
        if Instant::now() > give_up_at {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the host is not there"));
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn find(ports: &Path, name: &str) -> Option<PathBuf> {
    let is_ours = |port: &PathBuf| {
        fs::read_to_string(port.join("name")).is_ok_and(|found| found.trim() == name)
    };
    let mut entries = fs::read_dir(ports).ok()?.flatten().map(|entry| entry.path());
    Some(Path::new("/dev").join(entries.find(is_ours)?.file_name()?))
}

/// A port without a host reads as if it had ended.
fn host_is_there(port: &File) -> bool {
    let mut fds = [PollFd::new(port, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok() && !fds[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_by_its_name() {
        let ports = tempfile::tempdir().unwrap();
        for (port, name) in [("vport0p1", "else\n"), ("vport0p2", "codeagent.control\n")] {
            fs::create_dir(ports.path().join(port)).unwrap();
            fs::write(ports.path().join(port).join("name"), name).unwrap();
        }
        assert_eq!(find(ports.path(), "codeagent.control"), Some("/dev/vport0p2".into()));
    }
}
