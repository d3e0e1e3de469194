//! Debian packages, fetched with apt. Its lists are our own, so that neither root is needed nor
//! anything depends on when the machine last looked what Debian has.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use super::build::BuildRequest;
use super::lock::Locked;
use super::recipe::{SUITE, debian_architecture};
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
}

impl<'a> Apt<'a> {
    pub(crate) fn new(request: &'a BuildRequest) -> io::Result<Self> {
        let cache = &request.cache_dir;
        fs::create_dir_all(cache.join("lists/partial"))?;
        fs::create_dir_all(cache.join("apt"))?;
        let sources = match &request.sources {
            Some(named) => named.clone(),
            None => known_sources()?,
        };
        Ok(Self { architecture: request.architecture, cache, sources })
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
        run(apt.args(["download", "--print-uris"]).args(&wanted)).map(drop).map_err(|error| {
            io::Error::other(format!(
                "Debian has not all packages of the lock any more ({error}); update the lock"
            ))
        })
    }

    /// The package, as the lock has it. One that is in the cache is not fetched again.
    pub(crate) fn fetch(&self, package: &Locked) -> io::Result<PathBuf> {
        let kept = self.cache.join(format!("{}.deb", package.sha256));
        if kept.is_file() && sha256_of(&kept)? == package.sha256 {
            return Ok(kept);
        }
        let dir = tempfile::Builder::new().prefix("fetch-").tempdir_in(self.cache)?;
        let wanted = format!("{}={}", package.name, package.version);
        let download = || {
            let mut apt = self.command("apt-get");
            run(apt.args(["download", "--quiet", &wanted]).current_dir(dir.path()))
        };
        // What the lists do not know yet, Debian may have by now.
        if download().is_err() {
            self.update()?;
            download().map_err(|error| {
                io::Error::other(format!(
                    "{wanted} cannot be fetched ({error}); if Debian has a newer one by now, update the lock"
                ))
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
        run(self.command("apt-get").args(["update", "--quiet"])).map(drop)
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
        run(self.command("apt-cache").args(["show", "--no-all-versions", name]))
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

/// What this machine knows of Debian, if it has the release at all.
fn known_sources() -> io::Result<PathBuf> {
    let has_suite = |path: &PathBuf| {
        fs::read_to_string(path).is_ok_and(|text| text.split_whitespace().any(|word| word == SUITE))
    };
    SOURCES.iter().map(PathBuf::from).find(has_suite).ok_or_else(|| {
        io::Error::other(format!(
            "apt knows no Debian {SUITE} on this machine; name a list that does with --sources"
        ))
    })
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
pub(crate) fn unpack(package: &Path, patterns: &[&str], into: &Path) -> io::Result<()> {
    fs::create_dir_all(into)?;
    let mut archive = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| named("dpkg-deb", &error))?;
    let stdout = archive.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--wildcards", "--no-same-owner", "--directory"])
        .arg(into)
        .args(patterns);
    let unpacked = tar.stdin(stdout).stderr(Stdio::piped()).output();
    let archived = archive.wait()?;
    let unpacked = unpacked.map_err(|error| named("tar", &error))?;
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

/// Runs a program; what it wrote to stderr is the error unless it succeeds.
pub(crate) fn run(command: &mut Command) -> io::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| named(&name, &error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<_> = said.lines().rev().take(3).collect();
        return Err(io::Error::other(format!(
            "{name}: {}",
            last.into_iter().rev().collect::<Vec<_>>().join(" / ")
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn named(program: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{program}: {error}"))
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
}
