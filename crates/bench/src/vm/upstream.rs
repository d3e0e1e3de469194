//! virtiofsd as it is, with what a guest can do and keep set as in ours: extended attributes, which
//! cost a request before a file is first written to, and nothing kept of names and attributes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use vhost_user_backend::VhostUserDaemon;
use virtiofsd::passthrough::{CachePolicy, Config, PassthroughFs};
use virtiofsd::vhost_user::VhostUserFsBackendBuilder;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    folder: PathBuf,
    socket: PathBuf,
}

/// Serves one guest. In a process of its own, as virtiofsd has it.
pub(crate) fn run(args: &Args) -> Result<()> {
    codeagent_mount::raise_descriptor_limit();
    let config = Config {
        root_dir: args.folder.to_string_lossy().into_owned(),
        cache_policy: CachePolicy::Auto,
        entry_timeout: Duration::ZERO,
        attr_timeout: Duration::ZERO,
        xattr: true,
        killpriv_v2: true,
        ..Config::default()
    };
    let fs = PassthroughFs::new(config)?;
    let backend =
        VhostUserFsBackendBuilder::default().build(fs).map_err(|error| anyhow!("{error}"))?;
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let mut daemon = VhostUserDaemon::new("virtiofsd".into(), Arc::new(backend), memory)
        .map_err(|error| anyhow!("{error}"))?;
    daemon.serve(&args.socket).map_err(|error| anyhow!("{error}"))
}
