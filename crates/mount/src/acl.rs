//! POSIX ACLs: the kernel checks them, the host keeps them.

use std::ffi::OsStr;
use std::io;

use fuser::{InitFlags, KernelConfig, Request};
use virtiofsd::filesystem::{FsOptions, SetxattrFlags};
use virtiofsd::fuse::Attr;
use virtiofsd::soft_idmap::Id;

/// The umask comes to us with them: where a directory has a default ACL, that counts instead.
const NEEDED: InitFlags = InitFlags::FUSE_POSIX_ACL.union(InitFlags::FUSE_DONT_MASK);

/// What the filesystem is told that its client can do. The third of these, to hear from the kernel
/// when an ACL costs a file its set-group-id bit, the library does not speak; [`costs_set_group_id`]
/// says it instead.
pub(crate) fn negotiate(config: &mut KernelConfig) -> FsOptions {
    match config.add_capabilities(NEEDED) {
        Ok(()) => FsOptions::POSIX_ACL | FsOptions::DONT_MASK | FsOptions::SETXATTR_EXT,
        Err(_older_kernel) => FsOptions::empty(),
    }
}

/// Who is neither in the file's group nor privileged cannot keep its set-group-id bit. Where the
/// caller's other groups cannot be seen, as from within a worker, the bit is lost: the safe side.
pub(crate) fn costs_set_group_id(
    request: &Request,
    name: &OsStr,
    attr: impl FnOnce() -> io::Result<Attr>,
) -> io::Result<SetxattrFlags> {
    if name != "system.posix_acl_access" || request.uid() == 0 {
        return Ok(SetxattrFlags::empty());
    }
    let gid = attr()?.gid.into_inner();
    if request.gid() == gid || groups_of(request.pid()).contains(&gid) {
        return Ok(SetxattrFlags::empty());
    }
    Ok(SetxattrFlags::SETXATTR_ACL_KILL_SGID)
}

/// None, of a process that cannot be seen from here.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_this_process_are_those_the_kernel_says() {
        let mut groups = groups_of(std::process::id());
        groups.sort_unstable();
        let mut expected: Vec<u32> = rustix::process::getgroups()
            .unwrap_or_default()
            .into_iter()
            .map(rustix::process::Gid::as_raw)
            .collect();
        expected.sort_unstable();
        assert_eq!(groups, expected);
        assert!(groups_of(0).is_empty());
    }
}
