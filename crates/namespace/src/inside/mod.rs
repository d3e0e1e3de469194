//! The process that becomes the sandbox.
//!
//! ```text
//! whoever asked ── setup ── guard ── (new namespaces) ── shim, process 1 ── commands …
//!       └──────────────────── control channel ────────────────┘
//! ```
//!
//! The guard stays outside. It kills process 1, and the kernel with it everything in the
//! namespace, as soon as whoever asked has gone; and process 1 dies with the guard.
//!
//! The guard also holds the overlays until it ends, and nobody waits for that: when an overlay goes,
//! the kernel writes out everything that waits to be written on the filesystem of its upper layer,
//! whoever wrote it.

mod confine;
mod gateway;
mod mounts;
mod tree;
mod trial;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use codeagent_shim::{Defaults, Shim, ShimConfig};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};

use crate::link;
use crate::raw::{self, Forked};
pub(crate) use crate::report::{Confinement, Context, Failed, News};
use crate::spec::{Network, Wanted};
pub(crate) use confine::{has_second_wall, keeps_sockets_out};
pub(crate) use trial::try_everything;

/// The guard. Returns when nothing of the sandbox is left.
pub(crate) fn guard(setup: UnixStream) -> ExitCode {
    match start(&setup) {
        Ok((child, life)) => {
            watch(&setup, &child, &life);
            ExitCode::SUCCESS
        }
        Err(failed) => {
            let _ = link::send(&setup, &News::Failed(failed), &[]);
            ExitCode::FAILURE
        }
    }
}

/// Process 1, and a socket that is open for as long as this process lives, over which process 1
/// hands over what we are to hold.
fn start(setup: &UnixStream) -> Result<(OwnedFd, UnixStream), Failed> {
    let context = "reading what the sandbox is to be";
    let (wanted, mut descriptors) = link::receive::<Wanted>(setup).context(context)?;
    let control = descriptors.pop().ok_or_else(|| Failed::new(context, "no control channel"))?;
    let (theirs, ours) = UnixStream::pair().context("making a socket")?;
    let forked = raw::fork_into(namespaces(&wanted.spec.network)).context("making namespaces");
    match forked.map_err(none_left)? {
        Forked::Child => {
            drop(ours);
            let setup = setup.try_clone().context("taking over the socket");
            std::process::exit(match setup.map(|setup| inhabit(&wanted, &setup, control, theirs)) {
                Ok(()) => 0,
                Err(_) => 1,
            })
        }
        Forked::Parent(child) => {
            drop(theirs);
            write_maps(&child)?;
            // Process 1 goes on when it reads this.
            (&ours).write_all(b"!").context("starting process 1")?;
            Ok((child, ours))
        }
    }
}

fn namespaces(network: &Network) -> libc::c_int {
    let own_network = if *network == Network::Open { 0 } else { libc::CLONE_NEWNET };
    libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP
        | own_network
}

/// The same ids inside as outside: files belong to whoever they belong to. An ordinary user has
/// only his own.
fn write_maps(child: &OwnedFd) -> Result<(), Failed> {
    let context = "mapping the user into the sandbox";
    let pid = pid_of(child).context(context)?;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let (users, groups) = if uid.is_root() {
        (format!("0 0 {}", u32::MAX), format!("0 0 {}", u32::MAX))
    } else {
        fs::write(format!("/proc/{pid}/setgroups"), "deny").context(context)?;
        let (uid, gid) = (uid.as_raw(), gid.as_raw());
        (format!("{uid} {uid} 1"), format!("{gid} {gid} 1"))
    };
    fs::write(format!("/proc/{pid}/gid_map"), groups).context(context)?;
    fs::write(format!("/proc/{pid}/uid_map"), users).context(context)
}

fn pid_of(child: &OwnedFd) -> io::Result<i32> {
    use std::os::fd::AsRawFd;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", child.as_raw_fd()))?;
    info.lines()
        .find_map(|line| line.strip_prefix("Pid:"))
        .and_then(|pid| pid.trim().parse().ok())
        .ok_or_else(|| io::Error::other("the kernel does not say which process it is"))
}

/// Waits until process 1 has ended; ends it when nobody is on the other side any more.
fn watch(setup: &UnixStream, child: &OwnedFd, life: &UnixStream) {
    // We may outlive the command for a while, and no directory of anybody's is to be in use for that.
    let _ = rustix::process::chdir("/");
    // What is not taken out of a socket counts against what the user may have open.
    let (mut held, mut more_comes) = (Vec::new(), true);
    loop {
        let mut fds = [
            PollFd::new(child, PollFlags::IN),
            // Nothing is read here: process 1 does, and only its end matters to us.
            PollFd::new(setup, PollFlags::RDHUP),
            PollFd::new(life, PollFlags::IN),
        ];
        let watched = if more_comes { 3 } else { 2 };
        match poll(&mut fds[..watched], None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
            Ok(_) if !fds[0].revents().is_empty() => break,
            Ok(_) if !fds[1].revents().is_empty() => {
                let _ = rustix::process::pidfd_send_signal(child, Signal::KILL);
                break;
            }
            Ok(_) => more_comes = link::hold(life, &mut held).unwrap_or(false),
        }
    }
    let wait = || waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED);
    let _ = rustix::io::retry_on_intr(wait);
}

/// Process 1.
fn inhabit(wanted: &Wanted, setup: &UnixStream, control: OwnedFd, guard: UnixStream) {
    let news = match settle(wanted, setup, guard) {
        Ok(confinement) => News::Ready(confinement),
        Err(failed) => News::Failed(failed),
    };
    // Whoever asked can wait for our end, even if the guard should die before us.
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let own: Vec<_> = own.iter().map(AsFd::as_fd).collect();
    let is_ready = matches!(news, News::Ready(_));
    // Descriptors on their way are counted against the limit of who sends them, whoever they are of
    // among all processes of the user: until now it was that of the session.
    if link::send(setup, &news, &own).is_ok()
        && is_ready
        && confine::limit_open_files(&wanted.spec.limits).is_ok()
    {
        serve(control);
    }
}

fn settle(wanted: &Wanted, setup: &UnixStream, guard: UnixStream) -> Result<Confinement, Failed> {
    let Wanted { spec, limits_are_shared } = wanted;
    (&guard).read_exact(&mut [0]).context("waiting for the user to be mapped")?;
    let context = "binding the sandbox to its guard";
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context(context)?;
    // It may have died before it was bound; its socket tells.
    let mut fds = [PollFd::new(&guard, PollFlags::empty())];
    let now = rustix::event::Timespec::default();
    if poll(&mut fds, Some(&now)).context(context)? > 0 {
        return Err(Failed::new(context, "it has gone"));
    }
    if spec.network != Network::Open {
        raw::raise_loopback().context("raising the loopback interface")?;
    }
    let mut parts = tree::collect(spec)?;
    if !parts.devices.is_empty() {
        // With one of them in our hands, whoever serves it could go and the kernel would wait for him.
        let devices = std::mem::take(&mut parts.devices);
        let sent: Vec<_> = devices.iter().map(OwnedFd::as_fd).collect();
        let sent = link::send(setup, &News::Serve, &sent);
        drop(devices);
        sent.and_then(|()| (&*setup).read_exact(&mut [0]))
            .context("waiting for the folders to be served")?;
    }
    // Where it cannot be, commands end a little later.
    let _ = link::leave(&guard, &std::mem::take(&mut parts.held));
    let sockets_in_reach = parts.sockets_in_reach;
    parts.enter(&spec.limits, *limits_are_shared)?;
    let context = "opening the gateway to the network";
    let gateway = match spec.network {
        Network::Gateway { .. } => Some(gateway::listen().context(context)?),
        Network::Disabled | Network::Open => None,
    };
    let confining = "confining commands";
    let confinement = confine::confine(spec).context(confining)?;
    gateway.map_or(Ok(()), gateway::serve).context(context)?;
    if sockets_in_reach {
        // The threads of the gateway are there already, and need them.
        confine::forbid_local_sockets().context(confining)?;
    }
    Ok(confinement)
}

fn serve(control: OwnedFd) {
    let config = ShimConfig {
        supervisor: PathBuf::from(tree::PROGRAM),
        sync_dirs: Vec::new(),
        rollback_file: None,
        drop_caches: false,
        sets_clock: false,
        defaults: Defaults::default(),
    };
    let control = UnixStream::from(control);
    let Ok(from_host) = control.try_clone() else { return };
    let _ = Shim::new(config).run(from_host, control);
}

/// The kernel says that no space is left, and means the number of namespaces.
fn none_left(failed: Failed) -> Failed {
    match failed.errno {
        libc::ENOSPC => {
            Failed { reason: "user.max_user_namespaces allows no more of them".into(), ..failed }
        }
        _ => failed,
    }
}
