//! Debian packages, fetched with apt. Its lists are our own, so that neither root is needed nor
//! anything depends on when the machine last looked what Debian has.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use codeagent_common::CancelToken;
use sha2::{Digest, Sha256};

use super::build::BuildRequest;
use super::lock::Locked;
use super::programs::{run, start, while_wanted};
use super::recipe::{SUITE, debian_architecture};
use super::scratch::Scratch;
use crate::error::VmError;
use crate::hardware::Architecture;

/// Where apt of this machine knows Debian from.
const SOURCES: &[&str] = &["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];

/// Debian, as one build sees it.
#[derive(Debug)]
pub(crate) struct Apt<'a> {
    architecture: Architecture,
    /// Packages are kept here from one build to the next, and the lists below it.
    cache: &'a Path,
    /// Where packages come from.
    sources: PathBuf,
    /// The build is not wanted any more.
    cancel: &'a CancelToken,
}

impl<'a> Apt<'a> {
    pub(crate) fn new(request: &'a BuildRequest) -> io::Result<Self> {
        let cache = &request.cache_dir;
        fs::create_dir_all(cache.join("lists/partial"))?;
        fs::create_dir_all(cache.join("apt"))?;
        let sources = match &request.sources {
            Some(named) => named.clone(),
            None => known_sources(cache)?,
        };
        let (architecture, cancel) = (request.architecture, &request.cancel);
        Ok(Self { architecture, cache, sources, cancel })
    }

    pub(crate) fn sources(&self) -> &Path {
        &self.sources
    }

    /// That all of them can be had, before anything is begun that takes long.
    pub(crate) fn expect_available(&self, packages: &[Locked]) -> io::Result<()> {
        let wanted = packages.iter().map(|package| format!("{}={}", package.name, package.version));
        let wanted: Vec<_> = wanted.collect();
        self.update()?;
        let mut apt = self.command("apt-get");
        let printed = run(apt.args(["download", "--print-uris"]).args(&wanted), self.cancel);
        printed.map(drop).map_err(|error| {
            let outdated = packages.iter().find_map(|package| self.is_outdated(package));
            outdated.unwrap_or_else(|| io::Error::other(format!("packages are missing ({error})")))
        })
    }

    /// What to say if the lists know the package, but only in another version.
    fn is_outdated(&self, Locked { name, version, .. }: &Locked) -> Option<io::Error> {
        let newest = self.newest(name).ok()?.version;
        let is_listed = self.show(&format!("{name}={version}")).is_ok();
        (!is_listed).then(|| {
            let which = format!("{name} is {newest} by now, and not {version}");
            io::Error::other(VmError::LockOutdated(which))
        })
    }

    /// The package, as the lock has it. One that is in the cache is not fetched again.
    pub(crate) fn fetch(&self, package: &Locked) -> io::Result<PathBuf> {
        let kept = self.cache.join(format!("{}.deb", package.sha256));
        if kept.is_file() && sha256_of(&kept)? == package.sha256 {
            return Ok(kept);
        }
        let dir = Scratch::new_in(self.cache)?;
        let wanted = format!("{}={}", package.name, package.version);
        let download = || {
            let mut apt = self.command("apt-get");
            run(apt.args(["download", "--quiet", &wanted]).current_dir(dir.path()), self.cancel)
        };
        // What the lists do not know yet, Debian may have by now.
        if download().is_err() {
            self.update()?;
            download().map_err(|error| {
                let failed = || io::Error::other(format!("{wanted} cannot be fetched ({error})"));
                self.is_outdated(package).unwrap_or_else(failed)
            })?;
        }
        let fetched = fs::read_dir(dir.path())?.next().transpose()?;
        let fetched = fetched.ok_or_else(|| io::Error::other("apt-get fetched nothing"))?.path();
        expect_content(&fetched, package)?;
        fs::rename(fetched, &kept)?;
        Ok(kept)
    }

    /// Fetches the lists of what Debian has at present.
    pub(crate) fn update(&self) -> io::Result<()> {
        run(self.command("apt-get").args(["update", "--quiet"]), self.cancel).map(drop)
    }

    /// What apt would install.
    pub(crate) fn newest(&self, name: &str) -> io::Result<Locked> {
        let shown = self.show(name)?;
        let field = |key: &str| -> io::Result<String> {
            let value = shown.lines().find_map(|line| line.strip_prefix(key));
            let missing = || io::Error::other(format!("apt does not say {key} of {name}"));
            Ok(value.ok_or_else(missing)?.trim().to_owned())
        };
        Ok(Locked { name: name.to_owned(), version: field("Version:")?, sha256: field("SHA256:")? })
    }

    /// The kernel that a package without content of its own depends on.
    pub(crate) fn newest_kernel(&self, name: &str) -> io::Result<Locked> {
        let needed = self.needed(name)?;
        let kernel = needed.iter().find(|name| name.starts_with("linux-image-"));
        let kernel =
            kernel.ok_or_else(|| io::Error::other(format!("{name} depends on no kernel")))?;
        self.newest(kernel)
    }

    /// What modules for a kernel are built with.
    pub(crate) fn newest_headers(&self, kernel: &Locked) -> io::Result<Vec<Locked>> {
        let own = kernel.name.replacen("linux-image-", "linux-headers-", 1);
        let mut needed = self.needed(&own)?;
        needed
            .retain(|name| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-"));
        needed.insert(0, own);
        needed.iter().map(|name| self.newest(name)).collect()
    }

    /// What a package depends on.
    fn needed(&self, name: &str) -> io::Result<Vec<String>> {
        let shown = self.show(name)?;
        let depends = shown.lines().find_map(|line| line.strip_prefix("Depends:"));
        let entries = depends.unwrap_or_default().split(',');
        Ok(entries.filter_map(|entry| entry.split_whitespace().next()).map(Into::into).collect())
    }

    fn show(&self, name: &str) -> io::Result<String> {
        run(self.command("apt-cache").args(["show", "--no-all-versions", name]), self.cancel)
    }

    fn command(&self, program: &str) -> Command {
        let architecture = debian_architecture(self.architecture);
        let mut command = Command::new(program);
        let mut set = |name: &str, value: &str| {
            command.arg(format!("--option={name}={value}"));
        };
        let at = |path: &Path| path.to_string_lossy().into_owned();
        set("Dir::State::Lists", &at(&self.cache.join("lists")));
        set("Dir::Cache", &at(&self.cache.join("apt")));
        set("Dir::Etc::SourceList", &at(&self.sources));
        set("Dir::Etc::SourceParts", "/dev/null");
        set("APT::Architecture", architecture);
        set("APT::Architectures", architecture);
        // Whoever runs this can write here, and the user whom apt would become perhaps not.
        set("APT::Sandbox::User", "");
        set("Acquire::Languages", "none");
        set("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false");
        command
    }
}

/// What this machine knows of Debian: the release itself, or, on another release of Debian, where it
/// has that from. What is made of that is kept in the cache.
fn known_sources(cache: &Path) -> io::Result<PathBuf> {
    let known = || SOURCES.iter().filter_map(|path| Some((path, fs::read_to_string(path).ok()?)));
    let has = |text: &str, suite: &str| text.split_whitespace().any(|word| word == suite);
    if let Some((path, _)) = known().find(|(_, text)| has(text, SUITE)) {
        return Ok(path.into());
    }
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let other = debian_release(&system);
    let of_other = other.and_then(|release| {
        let (path, text) = known().find(|(_, text)| has(text, release))?;
        Some((path, of_our_suite(&text, release)))
    });
    let (path, text) =
        of_other.ok_or_else(|| io::Error::other(VmError::NoDebian { suite: SUITE }))?;
    // apt knows by its name how it is written.
    let name = Path::new(path).extension().unwrap_or_default();
    let made = cache.join("debian").with_extension(name);
    fs::write(&made, text)?;
    Ok(made)
}

/// Which release of Debian this is, if it is Debian.
fn debian_release(system: &str) -> Option<&str> {
    let field = |key: &str| {
        let value = system.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(value.trim_matches('"'))
    };
    field("VERSION_CODENAME").filter(|_| field("ID") == Some("debian"))
}

/// The same archive, security updates included, in our release.
fn of_our_suite(text: &str, release: &str) -> String {
    let line = |line: &str| {
        let word = |word: &str| match word.strip_prefix(release) {
            Some(rest) if rest.is_empty() || rest.starts_with('-') => format!("{SUITE}{rest}"),
            _ => word.to_owned(),
        };
        line.split(' ').map(word).collect::<Vec<_>>().join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

fn expect_content(file: &Path, package: &Locked) -> io::Result<()> {
    let sha256 = sha256_of(file)?;
    if sha256 == package.sha256 {
        return Ok(());
    }
    let name = &package.name;
    Err(io::Error::other(format!("{name} is not what the lock says: its SHA-256 is {sha256}")))
}

/// Unpacks what fits one of the patterns.
pub(crate) fn unpack(
    package: &Path,
    patterns: &[&str],
    into: &Path,
    cancel: &CancelToken,
) -> io::Result<()> {
    fs::create_dir_all(into)?;
    let mut archive = Command::new("dpkg-deb");
    archive.arg("--fsys-tarfile").arg(package).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut archive = start(&mut archive, cancel)?;
    let stdout = archive.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--wildcards", "--no-same-owner", "--directory"])
        .arg(into)
        .args(patterns);
    let tar = start(tar.stdin(stdout).stderr(Stdio::piped()), cancel);
    let unpacked = tar.and_then(|tar| while_wanted(tar, cancel, Child::wait_with_output));
    let archived = archive.wait()?;
    let unpacked = unpacked?;
    // A pattern that fits nothing is no mistake: kernels differ in what they have built in.
    let said = String::from_utf8_lossy(&unpacked.stderr);
    let is_harmless =
        |line: &str| line.contains("Not found in archive") || line.contains("previous errors");
    if !archived.success() || !said.lines().all(is_harmless) {
        return Err(io::Error::other(format!("{}: {}", package.display(), said.trim())));
    }
    Ok(())
}

pub(crate) fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => hasher.update(&chunk[..count]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_with_other_content_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("package.deb");
        fs::write(&file, "content").unwrap();
        let (name, version) = ("tool".to_owned(), "1".to_owned());
        let mut package = Locked { name, version, sha256: sha256_of(&file).unwrap() };
        assert!(expect_content(&file, &package).is_ok());
        package.sha256 = "0".repeat(64);
        let error = expect_content(&file, &package).unwrap_err().to_string();
        assert!(error.contains("not what the lock says"), "{error}");
    }

    #[test]
    fn another_release_of_debian_knows_where_ours_is() {
        let system = "PRETTY_NAME=\"Debian\"\nID=debian\nVERSION_CODENAME=trixie\n";
        assert_eq!(debian_release(system), Some("trixie"));
        assert_eq!(debian_release("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n"), None);
        let theirs = "Types: deb\nURIs: http://mirror.invalid/trixie-mirror\n\
                      Suites: trixie trixie-updates trixie-security\nComponents: main\n";
        let ours = of_our_suite(theirs, "trixie");
        assert!(ours.contains(&format!("Suites: {SUITE} {SUITE}-updates {SUITE}-security\n")));
        assert!(ours.contains("http://mirror.invalid/trixie-mirror\n"), "{ours}");
    }
}
