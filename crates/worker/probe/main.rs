//! A worker whose front end tries to break out, and reports how that went.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
mod names;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    codeagent_worker::run(Box::new(linux::Probe))
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::sync::Arc;

    use codeagent_worker::{Ended, FrontEnd, WorkerFs};
    use rustix::fs::{Mode, OFlags, openat};

    use super::{calls, names};

    pub(super) struct Probe;

    impl FrontEnd for Probe {
        /// The options are the path of a file outside, the name of one inside, and the path of one to
        /// be made outside.
        fn serve(
            &self,
            fs: Arc<WorkerFs>,
            channel: OwnedFd,
            _helper: Option<OwnedFd>,
            options: &[u8],
            ended: Ended,
        ) -> io::Result<()> {
            assert!(options != b"panic", "as somebody wanted");
            let options = String::from_utf8_lossy(options).into_owned();
            let [outside, inside, new] = options.split('\n').collect::<Vec<_>>()[..] else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let mut report = File::from(channel);
            let mut say = |what: &str, outcome: io::Result<()>| {
                let outcome = match outcome {
                    Ok(()) => "done".to_owned(),
                    Err(error) => format!("{:?}", error.kind()),
                };
                writeln!(report, "{what}: {outcome}")
            };
            let root = fs.root();
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let read = openat(root, inside, flags, Mode::empty());
            say("read inside", read.map(drop).map_err(io::Error::from))?;
            say("read outside", std::fs::read(outside).map(drop))?;
            say("list outside", std::fs::read_dir("/").map(drop))?;
            say("make outside", File::create(new).map(drop))?;
            say("run a program", Command::new("/bin/true").status().map(drop))?;
            say("make a socket", UnixStream::pair().map(drop))?;
            let another_thread = std::thread::spawn(|| File::open("/etc/passwd").map(drop)).join();
            let joined = another_thread.map_err(|_| io::Error::other("it panicked"));
            say("read in another thread", joined.and_then(|outcome| outcome))?;
            for (what, outcome) in names::try_them(root, outside) {
                say(what, outcome)?;
            }
            for (what, outcome) in calls::try_forbidden_ones() {
                say(what, outcome)?;
            }
            ended();
            Ok(())
        }
    }
}
