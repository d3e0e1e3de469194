//! What can be said on the command line, on every system.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Mounts a folder so that whatever any program does in it can be undone.
///
/// What is written within a few seconds is one step. The mount ends with Ctrl-C, a signal to end,
/// or `umount`.
#[derive(Debug, Parser)]
#[command(name = "codeagent-mount", version)]
pub(crate) struct Arguments {
    /// The folder with the real files.
    #[arg(long, value_name = "DIR")]
    pub(crate) source_dir: PathBuf,

    /// Where it appears; may be the folder itself.
    #[arg(long, value_name = "DIR")]
    pub(crate) mount_point: PathBuf,

    /// Where undo data is kept: outside the folder, best on the same disk.
    #[arg(long, value_name = "DIR")]
    pub(crate) undo_dir: PathBuf,

    /// Stay in the foreground (the default).
    #[arg(long, conflicts_with = "daemon")]
    pub(crate) foreground: bool,

    /// Return as soon as the folder is mounted, and go on in the background.
    #[arg(long)]
    pub(crate) daemon: bool,

    /// Nothing can be changed through the mount.
    #[arg(long)]
    pub(crate) read_only: bool,

    /// What the kernel may keep.
    #[arg(long, value_enum, default_value_t = CacheChoice::Coherent, value_name = "HOW")]
    pub(crate) cache: CacheChoice,

    /// Whether the kernel reads large files itself, without asking. Programs that open one for
    /// reading and writing then wait until those who read it have closed it.
    #[arg(long, value_enum, default_value_t = PassthroughChoice::Off, value_name = "WHETHER")]
    pub(crate) passthrough: PassthroughChoice,

    /// A step ends after this much quiet.
    #[arg(long, value_name = "SECS", default_value_t = 5.0, value_parser = seconds)]
    pub(crate) ambient_timeout: f64,

    /// Started by --daemon.
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CacheChoice {
    /// Nothing; programs cannot map files for writing.
    Never,
    /// Contents, checked at each open; names and attributes are always asked for.
    Coherent,
    /// Contents, names and attributes. An undo is seen at once; what others change in the folder
    /// itself, within a second.
    Auto,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PassthroughChoice {
    /// No.
    Off,
    /// Where it can: on Linux, for root.
    Auto,
    /// The same, and it is said where it cannot.
    On,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.01..=86_400.0).contains(&value) => Ok(value),
        _ => Err("a number of seconds between 0.01 and 86400".into()),
    }
}
