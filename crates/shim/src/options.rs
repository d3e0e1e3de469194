//! The command line of the shim.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

use lexopt::prelude::*;

/// What the binary is asked to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Options {
    Help,
    Version,
    Run {
        channel: Channel,
        /// Flushed to the host before a command counts as completed.
        sync_dirs: Vec<PathBuf>,
        rollback_file: Option<PathBuf>,
        drop_caches: bool,
    },
    /// Watch over one command; what the shim starts itself for.
    Supervise {
        socket: RawFd,
    },
}

/// Where the host is.
#[derive(Debug, PartialEq, Eq)]
pub enum Channel {
    /// Standard input and output.
    Stdio,
    /// A socket that was left open for us.
    Fd(RawFd),
    /// A serial port.
    Device(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    #[error("{0}; try `codeagent-shim --help`")]
    CommandLine(#[from] lexopt::Error),
    #[error("`--fd` and `--device` exclude each other; try `codeagent-shim --help`")]
    TwoChannels,
}

impl Options {
    pub const HELP: &str = "\
Runs commands for the sandbox, over its control channel

Usage: codeagent-shim [--fd N | --device PATH] [OPTIONS]

Options:
  --fd N                The channel is the open socket N (default: stdin and stdout)
  --device PATH         The channel is a serial port, as in a guest
  --sync DIR            Flush the filesystem of DIR before a command counts as completed
  --rollback-file PATH  Append a line here whenever a step was undone
  --drop-caches         Drop the kernel's caches whenever a step was undone (needs root)
  -h, --help            Print this help
  -V, --version         Print the version of the shim and of its protocol
";

    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, UsageError> {
        let mut parser = lexopt::Parser::from_args(args);
        let mut channel = None;
        let (mut sync_dirs, mut rollback_file, mut drop_caches) = (Vec::new(), None, false);
        while let Some(arg) = parser.next()? {
            let chosen = match arg {
                Long("fd") => Channel::Fd(parser.value()?.parse()?),
                Long("device") => Channel::Device(parser.value()?.into()),
                Long("sync") => {
                    sync_dirs.push(parser.value()?.into());
                    continue;
                }
                Long("rollback-file") => {
                    rollback_file = Some(parser.value()?.into());
                    continue;
                }
                Long("drop-caches") => {
                    drop_caches = true;
                    continue;
                }
                Long("supervise") => {
                    return Ok(Self::Supervise { socket: parser.value()?.parse()? });
                }
                Short('h') | Long("help") => return Ok(Self::Help),
                Short('V') | Long("version") => return Ok(Self::Version),
                other => return Err(other.unexpected().into()),
            };
            if channel.replace(chosen).is_some() {
                return Err(UsageError::TwoChannels);
            }
        }
        let channel = channel.unwrap_or(Channel::Stdio);
        Ok(Self::Run { channel, sync_dirs, rollback_file, drop_caches })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, UsageError> {
        Options::parse(line.split_ascii_whitespace().map(OsString::from))
    }

    #[test]
    fn the_channel_is_chosen_once() {
        let message = parse("--fd 3 --device /dev/x").unwrap_err().to_string();
        assert!(message.contains("exclude each other"), "{message}");
    }

    #[test]
    fn an_unknown_option_points_to_the_help() {
        let message = parse("--frobnicate").unwrap_err().to_string();
        assert!(message.contains("--frobnicate") && message.contains("--help"), "{message}");
    }

    #[test]
    fn a_guest_gives_everything() {
        let options =
            parse("--device /dev/virtio-ports/control --sync /work --drop-caches").unwrap();
        let expected = Options::Run {
            channel: Channel::Device("/dev/virtio-ports/control".into()),
            sync_dirs: vec!["/work".into()],
            rollback_file: None,
            drop_caches: true,
        };
        assert_eq!(options, expected);
    }
}
