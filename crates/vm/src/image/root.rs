//! The root file system of `dev`: Debian, installed by mmdebstrap, as an ext4 file system in a qcow2
//! file. Root is not needed: mmdebstrap makes do with a user namespace, and fakeroot remembers whose
//! files they are.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use codeagent_common::CancelToken;

use super::build::{BuildProgress, BuildRequest, LockMode, lock_text};
use super::lock::{self, Locked, Packages};
use super::packages::Apt;
use super::programs::{run, start, while_wanted};
use super::recipe::{DEV_PACKAGES, ROOT_SIZE, SOURCE_DATE_EPOCH, SUITE, debian_architecture};
use super::scratch::Scratch;
use crate::error::VmError;

/// Names of the file system and of its hashes: the same from one build to the next.
const FILESYSTEM_ID: &str = "6f5ba1d0-9f3c-4c1e-8f3f-3f2c5d0c0de5";
/// Twice what an installation takes on its way.
const PLENTY_BYTES: u64 = 12 << 30;
/// The root directory of every ext4 file system.
const ROOT_INODE: u64 = 2;
/// Where apt looks for preferences while the system is installed.
const PREFERENCES: &str = "/etc/apt/preferences.d/lock";
/// Where it is written down what has been installed.
const LIST: &str = "/var/lib/installed";
/// What differs from one build to the next, and what no guest needs.
const REMOVED: &[&str] = &[
    "/etc/machine-id",
    LIST,
    PREFERENCES,
    // It keeps pip from a system that others look after; this one is the user's.
    "/usr/lib/python3*/EXTERNALLY-MANAGED",
    "/var/cache/ldconfig/aux-cache",
    "/var/log/alternatives.log",
    "/var/log/apt",
    "/var/log/bootstrap.log",
    "/var/log/dpkg.log",
];

/// Returns what is in it.
pub(crate) fn build(
    request: &BuildRequest,
    (apt, beside): (&Apt<'_>, &Scratch),
    root: &Path,
    progress: &mut dyn FnMut(BuildProgress),
) -> io::Result<Vec<Locked>> {
    let quick = quick_place().map(Scratch::new_in).transpose()?;
    let scratch = quick.as_ref().unwrap_or(beside).dir("root")?;
    let locked = match request.lock {
        LockMode::Exact => Packages::parse(lock_text(request)?)?.root,
        LockMode::Newest(_) => Vec::new(),
    };
    if !locked.is_empty() {
        apt.expect_available(&locked)?;
    }
    let place = Place {
        tar: scratch.join("root.tar"),
        list: scratch.join("packages"),
        preferences: scratch.join("preferences"),
        quick: quick.as_ref().map(|quick| quick.path().to_owned()),
    };
    fs::write(&place.preferences, preferences(&locked))?;
    install(request, apt, &place, progress)?;
    let packages = lock::parse(&fs::read_to_string(&place.list)?)?;
    if request.lock == LockMode::Exact {
        expect_locked(&packages, &locked)?;
    }
    progress(BuildProgress::PackingRoot);
    pack(&place.tar, &scratch, root, &request.cancel)?;
    Ok(packages)
}

/// Memory, where there is plenty of it: what is installed is written, read, packed and thrown away,
/// tens of thousands of files.
fn quick_place() -> Option<&'static Path> {
    let memory = Path::new("/dev/shm");
    let space = rustix::fs::statvfs(memory).ok()?;
    let information = fs::read_to_string("/proc/meminfo").ok()?;
    let available = information.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available_kib: u64 = available.trim().strip_suffix(" kB")?.parse().ok()?;
    let is_enough = |bytes: u64| bytes >= PLENTY_BYTES;
    let fits = is_enough(space.f_bavail.saturating_mul(space.f_frsize))
        && is_enough(available_kib.saturating_mul(1024));
    fits.then_some(memory)
}

/// What an installation reads and writes.
#[derive(Debug)]
struct Place {
    /// The file system, when it is installed.
    tar: PathBuf,
    /// What is in it.
    list: PathBuf,
    /// What apt takes where it has a choice.
    preferences: PathBuf,
    /// Where it is installed, if that is in memory.
    quick: Option<PathBuf>,
}

/// The versions of the lock, also where there are newer ones by now.
fn preferences(locked: &[Locked]) -> String {
    let pin = |package: &Locked| {
        let Locked { name, version, .. } = package;
        format!("Package: {name}\nPin: version {version}\nPin-Priority: 1001\n\n")
    };
    locked.iter().map(pin).collect()
}

fn install(
    request: &BuildRequest,
    apt: &Apt<'_>,
    place: &Place,
    progress: &mut dyn FnMut(BuildProgress),
) -> io::Result<()> {
    let removed: Vec<_> = REMOVED.iter().map(|path| format!("\"$1\"{path}")).collect();
    // Inside, apt still knows the checksum of everything that it has installed.
    let told = format!(
        "chroot \"$1\" sh -c 'apt-cache show --no-all-versions $(dpkg-query -W -f \"\\${{Package}}:\\${{Architecture}}=\\${{Version}} \")' \
         | awk '/^Package:/ {{p = $2}} /^Version:/ {{v = $2}} /^SHA256:/ {{print p, v, $2}}' | LC_ALL=C sort > \"$1\"{LIST}"
    );
    let mut command = Command::new("mmdebstrap");
    command
        .arg("--variant=minbase")
        .arg(format!("--architectures={}", debian_architecture(request.architecture)))
        .arg(format!("--include={}", DEV_PACKAGES.join(",")))
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        // What a crash of this machine leaves is thrown away.
        .arg("--dpkgopt=force-unsafe-io")
        .arg("--dpkgopt=path-exclude=/usr/share/doc/*")
        .arg("--dpkgopt=path-exclude=/usr/share/man/*")
        .arg("--format=tar")
        // Without root, what runs inside has no access to our files: these two are handed over.
        .arg(format!("--setup-hook=upload '{}' {PREFERENCES}", place.preferences.display()))
        .arg(format!("--customize-hook={told}"))
        .arg(format!("--customize-hook=download {LIST} '{}'", place.list.display()))
        .arg(format!("--customize-hook=rm -rf {}", removed.join(" ")))
        .arg(SUITE)
        .arg(&place.tar)
        .arg(apt.sources())
        .env("SOURCE_DATE_EPOCH", SOURCE_DATE_EPOCH.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if let Some(memory) = &place.quick {
        command.env("TMPDIR", memory);
    }
    let child = start(&mut command, &request.cancel)?;
    let mut last = String::new();
    let status = while_wanted(child, &request.cancel, |mut child| {
        for line in child.stderr.take().into_iter().flat_map(|said| BufReader::new(said).lines()) {
            last = line?;
            progress(BuildProgress::InstallingRoot(last.clone()));
        }
        child.wait()
    })?;
    if !status.success() {
        return Err(io::Error::other(format!("mmdebstrap failed ({status}): {last}")));
    }
    Ok(())
}

fn expect_locked(installed: &[Locked], locked: &[Locked]) -> io::Result<()> {
    let other = installed.iter().find(|package| !locked.contains(package));
    let other = other.or_else(|| locked.iter().find(|package| !installed.contains(package)));
    if other.is_none() {
        return Ok(());
    }
    let which =
        other.map_or_else(String::new, |package| format!(": {} {}", package.name, package.version));
    Err(io::Error::other(VmError::LockOutdated(format!("there are others{which}"))))
}

/// From an archive to a file system, without mounting anything.
fn pack(tar: &Path, scratch: &Path, root: &Path, cancel: &CancelToken) -> io::Result<()> {
    let (tree, raw) = (scratch.join("tree"), scratch.join("root.ext4"));
    fs::create_dir(&tree)?;
    fs::File::create(&raw)?;
    let script = "set -e\n\
        tar --extract --numeric-owner --xattrs --directory \"$1\" --file \"$2\"\n\
        mke2fs -q -F -t ext4 -d \"$1\" -L root -U \"$4\" -E \"hash_seed=$4,lazy_itable_init=1,nodiscard\" -m 0 \"$3\" \"$5\"";
    let is_root = rustix::process::geteuid().is_root();
    let mut command = if is_root { Command::new("sh") } else { Command::new("fakeroot") };
    if !is_root {
        command.arg("sh");
    }
    command
        .args(["-c", script, "sh"])
        .args([&tree, tar, &raw])
        .args([FILESYSTEM_ID, ROOT_SIZE])
        .env("E2FSPROGS_FAKE_TIME", SOURCE_DATE_EPOCH.to_string())
        .env("SOURCE_DATE_EPOCH", SOURCE_DATE_EPOCH.to_string());
    run(&mut command, cancel)?;
    fs::remove_file(tar)?;
    settle_times(&raw, scratch, cancel)?;
    // Written aside first, so that no machine ever starts half a file.
    let made = root.with_extension("new");
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]).args([&raw, &made]);
    run(&mut convert, cancel)?;
    fs::rename(made, root)
}

/// What the tools took from the clock of this machine: when each file was unpacked and read.
fn settle_times(raw: &Path, scratch: &Path, cancel: &CancelToken) -> io::Result<()> {
    let header = run(Command::new("dumpe2fs").arg("-h").arg(raw), cancel)?;
    let number = |key: &str| -> io::Result<u64> {
        let value = header.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let number = value.and_then(|value| value.trim().parse().ok());
        number.ok_or_else(|| io::Error::other(format!("dumpe2fs does not say the {key}")))
    };
    let used = number("Inode count")? - number("Free inodes")?;
    let first = number("First inode")?;
    let mut orders = String::new();
    for inode in std::iter::once(ROOT_INODE).chain(first..=used) {
        for time in ["atime", "ctime", "crtime"] {
            orders += &format!("set_inode_field <{inode}> {time} @{SOURCE_DATE_EPOCH}\n");
            orders += &format!("set_inode_field <{inode}> {time}_extra 0\n");
        }
    }
    let file = scratch.join("orders");
    fs::write(&file, orders)?;
    let mut debugfs = Command::new("debugfs");
    debugfs.args(["-w", "-f"]).arg(&file).arg(raw);
    debugfs.env("E2FSPROGS_FAKE_TIME", SOURCE_DATE_EPOCH.to_string());
    run(&mut debugfs, cancel).map(drop)
}
