//! Trees to test with. Every entry gets a fixed mtime of its own, long past and exact to
//! the nanosecond, so that a restored mtime can only be right when it really was restored.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};

use crate::filesystems::supports_acls;

/// Files from empty to 1 MB, nested directories, and an executable.
pub fn small_tree(root: &Path) {
    write(root, "empty.txt", b"");
    write(root, "small.txt", b"a short line of text\n");
    write(root, "medium.txt", &[b'm'; 4096]);
    write(root, "large.bin", &varied_bytes(1_000_000));
    write(root, "src/main.rs", b"fn main() {}\n");
    write(root, "src/components/button.rs", b"pub struct Button;\n");
    fs::create_dir(root.join("empty-directory")).unwrap();
    write(root, "run.sh", b"#!/bin/sh\nexit 0\n");
    chmod(root, "run.sh", 0o755);
    set_distinct_mtimes(root);
}

/// Two files and two directories, one of them empty, to rename over one another.
pub fn rename_tree(root: &Path) {
    write(root, "a.txt", b"content of a\n");
    write(root, "b.txt", b"another content, of b\n");
    chmod(root, "b.txt", 0o600);
    write(root, "full/inner.txt", b"inside\n");
    write(root, "full/deeper/innermost.txt", b"further inside\n");
    fs::create_dir(root.join("empty")).unwrap();
    set_distinct_mtimes(root);
}

/// Files and a directory with `user.*` xattrs: text, bytes, an empty one, a long one.
///
/// # Panics
/// Where the filesystem has none: ask [`supports_user_xattrs`] first.
///
/// [`supports_user_xattrs`]: crate::filesystems::supports_user_xattrs
pub fn xattr_tree(root: &Path) {
    write(root, "plain.txt", b"no xattrs\n");
    write(root, "tagged.txt", b"with xattrs\n");
    set_xattr(root, "tagged.txt", "user.text", b"a value");
    set_xattr(root, "tagged.txt", "user.bytes", b"\x00\xff\n\x80");
    set_xattr(root, "tagged.txt", "user.empty", b"");
    write(root, "long.txt", b"with a long xattr\n");
    set_xattr(root, "long.txt", "user.long", &varied_bytes(2000));
    fs::create_dir(root.join("directory")).unwrap();
    set_xattr(root, "directory", "user.text", b"of a directory");
    set_distinct_mtimes(root);
}

/// Symlinks to a file, a directory, another link, nothing, themselves, and outside.
pub fn symlink_tree(root: &Path) {
    write(root, "file.txt", b"pointed at\n");
    write(root, "directory/inner.txt", b"reached through a link\n");
    for (target, link) in [
        ("file.txt", "to-file"),
        ("directory", "to-directory"),
        ("to-file", "to-link"),
        ("../file.txt", "directory/to-parent"),
        ("nowhere", "dangling"),
        ("loop", "loop"),
        ("../../outside", "to-outside"),
        ("/absolute/nowhere", "to-absolute"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    set_distinct_mtimes(root);
}

/// A file with two names, one with three across directories, and equal files that are not
/// linked.
pub fn hardlink_tree(root: &Path) {
    write(root, "pair-1", b"one inode, two names\n");
    write(root, "left/trio-1", b"one inode, three names\n");
    fs::create_dir(root.join("right")).unwrap();
    for (from, to) in
        [("pair-1", "pair-2"), ("left/trio-1", "left/trio-2"), ("left/trio-1", "right/trio-3")]
    {
        fs::hard_link(root.join(from), root.join(to)).unwrap();
    }
    write(root, "equal-1", b"one inode, two names\n");
    write(root, "equal-2", b"one inode, two names\n");
    set_distinct_mtimes(root);
}

/// Five levels of directories below the root with 124 files.
pub fn deep_tree(root: &Path) {
    fn fill(dir: &Path, levels: u32) {
        if levels == 0 {
            return;
        }
        for side in ["left", "right"] {
            let child = dir.join(side);
            fs::create_dir(&child).unwrap();
            for name in ["one.txt", "two.txt"] {
                let text = format!("{side} {name} with {levels} levels to go\n");
                write(&child, name, text.as_bytes());
            }
            fill(&child, levels - 1);
        }
    }
    fill(root, 5);
    set_distinct_mtimes(root);
}

/// What breaks tools that were tried on tidy trees only: odd names, modes, types and times.
pub fn awkward_tree(root: &Path) {
    awkward_names(root);
    awkward_modes(root);

    write(root, "empty", b"");
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(1024 * 1024).unwrap();
    sparse.write_all_at(b"far from both ends", 700_001).unwrap();
    make_fifo(&root.join("fifo"));
    if supports_acls(root) {
        write(root, "with-acl", b"one more user may read this\n");
        set_xattr(root, "with-acl", "system.posix_acl_access", &sample_acl());
        fs::create_dir(root.join("default-acl")).unwrap();
        let acl = sample_acl();
        set_xattr(root, "default-acl", "system.posix_acl_default", &acl);
    }

    let times = [
        ("first-nanosecond", 0, 1),
        ("last-before-epoch", -1, 999_999_999),
        ("whole-second", 86_400, 0),
        ("after-32-bits", 4_294_967_297, 987_654_321),
    ];
    for (name, _, _) in times {
        write(root, name, name.as_bytes());
    }
    set_distinct_mtimes(root);
    for (name, seconds, nanoseconds) in times {
        set_mtime(&root.join(name), seconds, nanoseconds);
    }
}

fn awkward_names(root: &Path) {
    let longest = [b'n'; 255];
    let names: [&[u8]; 10] = [
        b"latin-1 caf\xe9",
        b"\xff\xfe",
        b"two\nlines",
        b" spaces  around ",
        b"-rf",
        b"quote\"'`$(x)",
        b"back\\slash",
        b"*?[a-z]",
        "größe-名前-🦀".as_bytes(),
        &longest,
    ];
    for name in names {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let directory = root.join(OsStr::from_bytes(b"dir\xe9ctory\n"));
    fs::create_dir(&directory).unwrap();
    write(&directory, "inner", b"below an odd name\n");
    symlink(OsStr::from_bytes(b"two\nlines\xff"), root.join("odd-target")).unwrap();
}

fn awkward_modes(root: &Path) {
    for (name, mode) in [
        ("read-only", 0o444),
        ("nobody-writes", 0o555),
        ("suid", 0o4755),
        ("sgid", 0o2755),
        ("sticky-file", 0o1644),
        ("everyone", 0o777),
    ] {
        write(root, name, name.as_bytes());
        chmod(root, name, mode);
    }
    for (name, mode) in
        [("closed-directory", 0o500), ("sticky-directory", 0o1777), ("sgid-directory", 0o2750)]
    {
        fs::create_dir(root.join(name)).unwrap();
        write(&root.join(name), "inner", name.as_bytes());
        chmod(root, name, mode);
    }
}

/// `count` files of `size_bytes` each in `root`, no two alike as long as a size of 8 or
/// more leaves room for their number.
pub fn large_flat(root: &Path, count: usize, size_bytes: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(root, flags, Mode::empty()).unwrap();
    let mut content = varied_bytes(size_bytes);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    for index in 0..count {
        let name = format!("file-{index:07}");
        let number = (index as u64).to_le_bytes();
        let stamped = size_bytes.min(number.len());
        content[..stamped].copy_from_slice(&number[..stamped]);
        let fd = rustix::fs::openat(&directory, name, flags, Mode::from(0o644)).unwrap();
        let file = File::from(fd);
        file.write_all_at(&content, 0).unwrap();
        rustix::fs::futimens(file.as_fd(), &nth_mtime(index)).unwrap();
    }
    rustix::fs::futimens(&directory, &nth_mtime(count)).unwrap();
}

/// Gives everything at and below `root` its own old mtime, children before their parents,
/// in an order that depends on the names only.
pub fn set_distinct_mtimes(root: &Path) {
    fn visit(path: &Path, next: &mut usize) {
        if fs::symlink_metadata(path).unwrap().is_dir() {
            let entries = fs::read_dir(path).unwrap();
            let mut children: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
            children.sort();
            for child in children {
                visit(&child, next);
            }
        }
        set_times(path, &nth_mtime(*next));
        *next += 1;
    }
    visit(root, &mut 0);
}

/// Sets the mtime of one entry, of the link itself where it is a symlink.
pub fn set_mtime(path: &Path, seconds: i64, nanoseconds: u32) {
    set_times(path, &times(seconds, nanoseconds));
}

/// Makes a fifo.
pub fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from(0o640), 0).unwrap();
}

/// An ACL as the xattr `system.posix_acl_access` holds it: besides the owner, user 12345
/// may read and write.
pub fn sample_acl() -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, NO_ID),  // owner
        (0x02, 6, 12_345), // a named user
        (0x04, 4, NO_ID),  // owning group
        (0x10, 6, NO_ID),  // mask
        (0x20, 4, NO_ID),  // others
    ];
    let mut acl = 2_u32.to_le_bytes().to_vec(); // version of the format
    for (tag, permissions, id) in entries {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&permissions.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    acl
}

/// Bytes without a short period, the same at every call, that do not compress to nothing.
pub fn varied_bytes(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

/// Writes a file with mode 0644, and the directories it needs.
fn write(root: &Path, path: &str, content: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
}

fn chmod(root: &Path, path: &str, mode: u32) {
    fs::set_permissions(root.join(path), Permissions::from_mode(mode)).unwrap();
}

fn set_xattr(root: &Path, path: &str, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(root.join(path), name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("set {name} of {path}: {error}"));
}

/// Never a whole microsecond, so that a coarser clock somewhere on the way shows.
fn nth_mtime(n: usize) -> Timestamps {
    let n = u32::try_from(n).expect("a fixture has fewer entries");
    let nanoseconds = 123_456_001 + (n % 800_000) * 1000 + n % 997;
    times(1_000_000_000 + i64::from(n) * 61, nanoseconds)
}

fn times(seconds: i64, nanoseconds: u32) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn set_times(path: &Path, times: &Timestamps) {
    rustix::fs::utimensat(CWD, path, times, AtFlags::SYMLINK_NOFOLLOW)
        .unwrap_or_else(|error| panic!("set the mtime of {}: {error}", path.display()));
}
