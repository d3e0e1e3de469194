//! Pipes and terminals between the shim and a command.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;

use codeagent_control::{Exec, PtySize, Stdin, Stream};
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The shim's ends. None of them blocks.
#[derive(Debug)]
pub(crate) struct Streams {
    /// `None` if the command takes no input.
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) outputs: Vec<(Stream, OwnedFd)>,
    /// The terminal's side of ours, for its size and its foreground processes.
    pub(crate) terminal: Option<OwnedFd>,
}

/// The command's ends.
pub(crate) struct CommandEnds {
    pub(crate) stdin: Stdio,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
}

pub(crate) fn open(exec: &Exec) -> io::Result<(Streams, CommandEnds)> {
    match exec.pty {
        Some(size) => open_terminal(exec, size),
        None => open_pipes(exec.stdin),
    }
}

fn open_pipes(stdin: Stdin) -> io::Result<(Streams, CommandEnds)> {
    let (out_reader, out_writer) = io::pipe()?;
    let (err_reader, err_writer) = io::pipe()?;
    let (stdin, command_stdin) = match stdin {
        Stdin::Null => (None, Stdio::null()),
        Stdin::Stream => {
            let (reader, writer) = io::pipe()?;
            (Some(unblocked(writer.into())?), reader.into())
        }
    };
    let outputs = vec![
        (Stream::Stdout, unblocked(out_reader.into())?),
        (Stream::Stderr, unblocked(err_reader.into())?),
    ];
    let ends =
        CommandEnds { stdin: command_stdin, stdout: out_writer.into(), stderr: err_writer.into() };
    Ok((Streams { stdin, outputs, terminal: None }, ends))
}

fn open_terminal(exec: &Exec, size: PtySize) -> io::Result<(Streams, CommandEnds)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    // Not every system can do this while opening. No command is started meanwhile.
    fcntl_setfd(&master, FdFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = rustix::fs::open(ptsname(&master, Vec::new())?, flags, Mode::empty())?;
    if let Some(user) = exec.user {
        // So that the command can open its terminal by name. Not worth failing for.
        let owner = Some(rustix::fs::Uid::from_raw(user.uid));
        let _ = rustix::fs::fchown(&slave, owner, None);
    }
    set_size(&master, size)?;
    let master = unblocked(master)?;
    let streams = Streams {
        stdin: Some(master.try_clone()?),
        outputs: vec![(Stream::Stdout, master.try_clone()?)],
        terminal: Some(master),
    };
    let ends = CommandEnds {
        stdin: slave.try_clone()?.into(),
        stdout: slave.try_clone()?.into(),
        stderr: slave.into(),
    };
    Ok((streams, ends))
}

pub(crate) fn set_size(terminal: impl AsFd, size: PtySize) -> rustix::io::Result<()> {
    let PtySize { rows, columns } = size;
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
}

fn unblocked(fd: OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}
