//! The process between the shim and one command: starts it, reaps whatever it leaves, and ends its
//! whole tree when told to.
//!
//! It is the reaper of everything below it (`PR_SET_CHILD_SUBREAPER`): a process whose parent ends
//! becomes its child, whatever session or group it has put itself in. So "below the supervisor" is
//! exactly "started by the command", which is what a cancel has to reach. It speaks the control
//! protocol with the shim, for its one command.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use codeagent_control::{
    ByteString, Cause, CommandId, CommandLine, Exec, ExitStatus, HostMessage, Leftovers,
    MessageReader, MessageWriter, ShimErrorCode, ShimMessage,
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group};

use crate::{raw, tree};

/// How often KILL is repeated: a process may have forked since we looked,
const KILL_EVERY: Duration = Duration::from_millis(10);
/// and so many times without a pause, to catch one that does nothing else.
const KILL_PASSES: usize = 20;
/// What survives KILL for this long (somebody else's process, a hung disk) is reported and left.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the command that `socket` asks for, and returns when nothing of it is left.
pub fn supervise(socket: UnixStream) -> io::Result<()> {
    // Signals of the terminal that the shim may run in are not for us.
    let _ = rustix::process::setsid();
    become_reaper()?;
    let mut orders = MessageReader::new(socket.try_clone()?);
    let mut reports = MessageWriter::new(socket);
    let Some(Ok(HostMessage::Exec(exec))) = orders.read()? else {
        return Err(io::Error::other("the first message was no `exec`"));
    };
    let child = match spawn(&exec) {
        Ok(child) => child,
        Err(error) => {
            let message = format!("cannot run `{}`: {error}", exec.command);
            let code = ShimErrorCode::SpawnFailed;
            return reports.write(&ShimMessage::Error { id: Some(exec.id), code, message });
        }
    };
    release_stdio()?;
    reports.write(&ShimMessage::StepStarted { id: exec.id })?;

    let (news, inbox) = mpsc::channel();
    thread::spawn({
        let news = news.clone();
        move || reap(&news)
    });
    thread::spawn(move || take_orders(orders, &news));
    Supervision::new(&exec, &child, reports).run(&inbox)
}

fn become_reaper() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    Ok(())
}

fn spawn(exec: &Exec) -> io::Result<Child> {
    let mut command = command_line(&exec.command)?;
    if exec.clear_env {
        command.env_clear();
    }
    command.envs(exec.env.iter().map(|(name, value)| (name, as_os(value))));
    if let Some(cwd) = &exec.cwd {
        if !std::path::Path::new(as_os(cwd)).is_dir() {
            let error = format!("there is no directory `{}`", cwd.to_text());
            return Err(io::Error::new(io::ErrorKind::NotFound, error));
        }
        command.current_dir(as_os(cwd));
    }
    if let Some(user) = exec.user {
        // With them go the other groups of the shim.
        command.uid(user.uid).gid(user.gid);
    }
    command.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    raw::start_session(&mut command, exec.pty.is_some());
    command.spawn()
}

fn command_line(line: &CommandLine) -> io::Result<Command> {
    let no_program = || io::Error::new(io::ErrorKind::InvalidInput, "no program is named");
    Ok(match line {
        CommandLine::Shell(script) => {
            let mut command = Command::new("/bin/sh");
            command.arg("-c").arg(as_os(script));
            command
        }
        CommandLine::Argv(argv) => {
            let (program, args) = argv.split_first().ok_or_else(no_program)?;
            let mut command = Command::new(as_os(program));
            command.args(args.iter().map(as_os));
            command
        }
    })
}

fn as_os(bytes: &ByteString) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(bytes.as_bytes())
}

/// Lets go of the command's streams: their end must be seen when the command's processes are gone,
/// not when we are.
fn release_stdio() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

enum News {
    Reaped(Pid, ExitStatus),
    /// Nothing is left below us, and nothing can come any more.
    AllGone,
    Order(HostMessage),
    ShimGone,
}

/// Waits for children, the command's own and those it left us, until there are none.
fn reap(news: &Sender<News>) {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let signal = status.terminating_signal().map(ExitStatus::Signal);
                let status = signal.or(status.exit_status().map(ExitStatus::ExitCode));
                if let Some(status) = status {
                    let _ = news.send(News::Reaped(pid, status));
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => {
                let _ = news.send(News::AllGone);
                return;
            }
        }
    }
}

fn take_orders(mut orders: MessageReader<UnixStream, HostMessage>, news: &Sender<News>) {
    while let Ok(Some(order)) = orders.read() {
        if let Ok(order) = order {
            let _ = news.send(News::Order(order));
        }
    }
    let _ = news.send(News::ShimGone);
}

/// What the supervisor knows of its command.
struct Supervision {
    id: CommandId,
    /// The command's first process, and the group it leads.
    leader: Option<Pid>,
    grace: Duration,
    leftovers: Leftovers,
    times_out_at: Option<Instant>,
    /// How the first process ended.
    status: Option<ExitStatus>,
    ending: Option<Ending>,
    /// The shim knows that the command is completed.
    reported: bool,
    reports: MessageWriter<UnixStream, ShimMessage>,
}

/// The tree is being ended.
struct Ending {
    cause: Cause,
    kill_at: Instant,
    give_up_at: Instant,
}

impl Supervision {
    fn new(exec: &Exec, child: &Child, reports: MessageWriter<UnixStream, ShimMessage>) -> Self {
        let timeout = exec.timeout_ms.map(Duration::from_millis);
        Self {
            id: exec.id,
            leader: Some(Pid::from_child(child)),
            grace: Duration::from_millis(exec.grace_ms),
            leftovers: exec.leftovers,
            times_out_at: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            status: None,
            ending: None,
            reported: false,
            reports,
        }
    }

    fn run(mut self, inbox: &Receiver<News>) -> io::Result<()> {
        loop {
            match self.next(inbox) {
                Some(News::Reaped(pid, status)) if Some(pid) == self.leader => {
                    self.leader_ended(status);
                }
                Some(News::Reaped(..)) => {}
                Some(News::AllGone) => {
                    self.report_completion();
                    return Ok(());
                }
                Some(News::Order(HostMessage::Cancel { .. }) | News::ShimGone) => {
                    self.end_tree(Cause::Cancelled);
                }
                Some(News::Order(HostMessage::Signal { signal, .. })) => self.signal(signal),
                Some(News::Order(_)) => {}
                None => {
                    if !self.deadline_passed() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// The next news, or `None` when a deadline has come first.
    fn next(&self, inbox: &Receiver<News>) -> Option<News> {
        let deadline = match &self.ending {
            Some(ending) => Some(ending.kill_at),
            None => self.times_out_at.filter(|_| self.status.is_none()),
        };
        match deadline {
            None => inbox.recv().ok(),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                inbox.recv_timeout(left).ok()
            }
        }
    }

    fn leader_ended(&mut self, status: ExitStatus) {
        self.status = Some(status);
        // Its number may soon be somebody else's.
        self.leader = None;
        match (&self.ending, self.leftovers) {
            (None, Leftovers::Keep) => self.report_completion(),
            (None, Leftovers::Kill) => self.end_tree(Cause::Exited),
            // The tree is completed when all of it is gone.
            (Some(_), _) => {}
        }
    }

    /// TERM for all, and a while later KILL for who is left.
    fn end_tree(&mut self, cause: Cause) {
        if self.ending.is_some() {
            return;
        }
        let now = Instant::now();
        let kill_at = now.checked_add(self.grace).unwrap_or(now);
        self.ending = Some(Ending { cause, kill_at, give_up_at: kill_at + KILL_PATIENCE });
        self.signal_tree(Signal::TERM);
        // A stopped process takes TERM only when it goes on.
        self.signal_tree(Signal::CONT);
    }

    /// False if there is nothing more to do.
    fn deadline_passed(&mut self) -> bool {
        let now = Instant::now();
        let Some(ending) = &mut self.ending else {
            self.end_tree(Cause::TimedOut);
            return true;
        };
        if now >= ending.give_up_at {
            let message = "some processes of the command could not be ended".to_owned();
            let code = ShimErrorCode::ProcessesRemain;
            let _ = self.reports.write(&ShimMessage::Error { id: Some(self.id), code, message });
            self.report_completion();
            return false;
        }
        ending.kill_at = now + KILL_EVERY;
        for _ in 0..KILL_PASSES {
            if self.signal_tree(Signal::KILL) == 0 {
                break;
            }
        }
        true
    }

    /// To the whole tree; how many processes are in it. Each gets it once: to many programs a second
    /// TERM means "at once". Only KILL goes to the group as well, at one blow, so that a process that
    /// forks has no time to slip through; and all else where single processes cannot be found.
    fn signal_tree(&self, signal: Signal) -> usize {
        if let Some(leader) = self.leader
            && (signal == Signal::KILL || !cfg!(target_os = "linux"))
        {
            let _ = kill_process_group(leader, signal);
        }
        tree::signal_descendants(getpid(), signal)
    }

    fn signal(&self, number: i32) {
        if let (Some(leader), Some(signal)) = (self.leader, Signal::from_named_raw(number)) {
            let _ = kill_process_group(leader, signal);
        }
    }

    fn report_completion(&mut self) {
        if std::mem::replace(&mut self.reported, true) {
            return;
        }
        let status = self.status.unwrap_or(ExitStatus::Signal(Signal::KILL.as_raw()));
        let cause = self.ending.as_ref().map_or(Cause::Exited, |ending| ending.cause);
        let _ = self.reports.write(&ShimMessage::StepCompleted { id: self.id, status, cause });
    }
}
