//! How many files the process may have open.

use rustix::process::{Resource, Rlimit};

/// What the kernel lets a privileged process have, unless somebody has changed it.
const DEFAULT_MOST: u64 = 1 << 20;

/// Allows this process as many descriptors as it can get: one is kept for each file that the
/// kernel knows. If it gets no more, the filesystem keeps within what there is.
pub fn raise_descriptor_limit() {
    let allowed = rustix::process::getrlimit(Resource::Nofile).maximum;
    for most in [Some(most()), allowed] {
        let raised = Rlimit { current: most, maximum: most };
        if rustix::process::setrlimit(Resource::Nofile, raised).is_ok() {
            return;
        }
    }
}

fn most() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/fs/nr_open");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_MOST)
}
