use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, Subcommand};
use codeagent_common::CancelToken;
use codeagent_vm::image::{
    self, BuildProgress, BuildRequest, Flavour, LockMode, PROCESS_ONE, build,
};
use codeagent_vm::{Architecture, GuestImage, VmError};
use indicatif::ProgressBar;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::log::Log;
use super::output::Outcome;
use super::signals::heeded;
use super::text::printable;
use crate::error::{Result, SandboxError};
use crate::executor::forget_guest;
use crate::places;

/// Build what --isolation vm starts, and forget what commands have installed there
#[derive(Debug, Args)]
pub(crate) struct Guest {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Build(Build),
    Reset(Reset),
}

/// Build an image for guests from Debian packages, which apt fetches; no root is needed
///
/// The versions are those that this program was made with, and their checksums are compared.
#[derive(Debug, Args)]
struct Build {
    /// minimal (a shell and busybox, in memory) or dev (Debian with compilers, git, Python, Node)
    #[arg(long, default_value = "dev", value_parser = flavour)]
    flavour: Flavour,
    /// Take the newest packages instead, and write down here which they were
    #[arg(long, value_name = "FILE")]
    newest: Option<PathBuf>,
    /// Where apt finds Debian, such as a snapshot; what this machine knows of it if not given
    #[arg(long, value_name = "FILE")]
    sources: Option<PathBuf>,
    /// Process 1 of the guest, linked statically; found beside this program, or built, if not given
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// The source of this program, in which cargo builds process 1; where it was built if not given
    #[arg(long, value_name = "DIR", conflicts_with = "init")]
    checkout: Option<PathBuf>,
}

fn flavour(name: &str) -> std::result::Result<Flavour, String> {
    let found = Flavour::ALL.into_iter().find(|flavour| flavour.name() == name);
    found.ok_or_else(|| "there are `minimal` and `dev`".to_owned())
}

impl Guest {
    pub(crate) fn execute(self) -> Result<Outcome> {
        match self.action {
            Action::Build(action) => action.execute(),
            Action::Reset(action) => action.execute(),
        }
    }
}

/// Throw away the disk of a folder's guest, with all that commands have installed on it
///
/// The next guest begins with its image again. The folder and its history stay as they are.
#[derive(Debug, Args)]
struct Reset {
    #[command(flatten)]
    log: Log,
}

impl Reset {
    fn execute(self) -> Result<Outcome> {
        let folder = self.log.find()?.working_dir;
        let state = places::surroundings_of(&folder)?;
        forget_guest(&state).map_err(SandboxError::doing("cannot throw the disk away"))?;
        let text =
            format!("the next guest in {} begins anew", printable(&folder.to_string_lossy()));
        Ok(Outcome::new(json!({ "folder": folder }), text))
    }
}

impl Build {
    fn execute(self) -> Result<Outcome> {
        let cancel = cancelled_by_signals()?;
        let images_dir = places::images_dir().ok_or(SandboxError::NoHome)?;
        std::fs::create_dir_all(&images_dir)
            .map_err(SandboxError::doing("cannot make a place for images"))?;
        let request = BuildRequest {
            flavour: self.flavour,
            architecture: Architecture::current(),
            cache_dir: images_dir.join("packages"),
            images_dir,
            sources: self.sources.as_ref().map(std::path::absolute).transpose()?,
            init: self.init.map_or_else(|| process_one(self.checkout, &cancel), Ok)?,
            lock: self.newest.map_or(LockMode::Exact, LockMode::Newest),
            keep_root: false,
            cancel,
        };
        let Built { image, without_module } = with_progress(&request).map_err(not_built)?;
        let shown = image.dir().display().to_string();
        let value = json!({
            "image": image.dir(),
            "flavour": image.manifest().flavour.name(),
            "without_module_9p": without_module,
        });
        let mut text = format!("built: {shown}; use it with: --isolation vm");
        if let Some(reason) = without_module {
            text.push_str(&format!(
                "\nIt goes without the module for 9P, so that folders over 9P are slower: {reason}"
            ));
        }
        Ok(Outcome::new(value, text))
    }
}

/// Whoever presses Ctrl-C leaves no gigabytes behind.
fn cancelled_by_signals() -> Result<CancelToken> {
    let cancel = CancelToken::new();
    let (interrupted, mut signals) =
        (cancel.clone(), Signals::new(heeded(&[SIGINT, SIGTERM, SIGHUP]))?);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            interrupted.cancel();
        }
    })?;
    Ok(cancel)
}

fn not_built(error: VmError) -> SandboxError {
    let hint = match error {
        VmError::Cancelled => {
            let message = "the build was interrupted, and nothing of it is left";
            return SandboxError::usage(message, "what was fetched is kept for the next one");
        }
        VmError::LockOutdated(_) => {
            "`--newest FILE` takes what Debian has today and writes down in FILE what that was; \
             `--sources FILE` can name a snapshot of the archive that still has the others"
        }
        VmError::NoDebian { .. } => NO_DEBIAN,
        _ => "on Debian and Ubuntu apt has what is needed; elsewhere guest/Containerfile builds it",
    };
    SandboxError::usage(error.to_string(), hint)
}

/// What apt has to be told on a machine that is not Debian.
const NO_DEBIAN: &str = "install debian-archive-keyring, and name with --sources a file whose name ends \
    in .sources, with these lines: `Types: deb`, `URIs:` and a mirror of Debian, \
    `Suites: bookworm bookworm-updates`, `Components: main`, \
    `Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg`";

struct Built {
    image: GuestImage,
    /// Why it has not our module for 9P.
    without_module: Option<String>,
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// On a terminal it shows what is being done; elsewhere nothing.
fn with_progress(request: &BuildRequest) -> std::result::Result<Built, VmError> {
    let mut without_module = None;
    let bar = spinner();
    let built = build(request, &mut |progress| {
        bar.set_message(match progress {
            BuildProgress::Fetching { package, version } => {
                format!("fetching {package} {version}")
            }
            BuildProgress::UnpackingKernel => "unpacking the kernel".into(),
            BuildProgress::BuildingModule => "building the module for 9P".into(),
            BuildProgress::WithoutModule(reason) => {
                without_module = Some(printable(&reason).to_string());
                return;
            }
            BuildProgress::PackingInitramfs => "packing the initial file system".into(),
            BuildProgress::InstallingRoot(line) => printable(&line).to_string(),
            BuildProgress::PackingRoot => "packing the root file system".into(),
        });
    });
    bar.finish_and_clear();
    Ok(Built { image: built?, without_module })
}

/// One that somebody has put beside this program, or one that cargo builds now: an installation has
/// this program only, and what `cargo build` leaves beside it needs libraries.
fn process_one(checkout: Option<PathBuf>, cancel: &CancelToken) -> Result<PathBuf> {
    let is_static = |path: &PathBuf| image::is_static(path).unwrap_or(false);
    let checkout = match checkout {
        Some(named) => Some(std::path::absolute(named)?),
        None => match beside_us()?.into_iter().find(is_static) {
            Some(found) => return Ok(found),
            None => own_source(),
        },
    };
    let Some(source) = checkout.filter(|dir| manifest_in(dir).is_file()) else {
        return Err(SandboxError::usage(
            format!(
                "{PROCESS_ONE}, which is process 1 of a guest, has to be built first, and the source of \
                 this program is not where it was built"
            ),
            "name the source with --checkout, or a static codeagent-guest with --init",
        ));
    };
    let bar = spinner();
    bar.set_message("building process 1 of the guest");
    let cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let built = image::build_process_one(cargo, &source, Architecture::current(), cancel);
    bar.finish_and_clear();
    built.map_err(|error| {
        if cancel.is_cancelled() {
            return not_built(VmError::Cancelled);
        }
        SandboxError::usage(
            format!("process 1 of a guest cannot be built in {}: {error}", source.display()),
            "it takes cargo and a C compiler with its static library; or name a static \
             codeagent-guest with --init",
        )
    })
}

fn beside_us() -> Result<[PathBuf; 2]> {
    let program = std::env::current_exe()?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    Ok([dir.join(PROCESS_ONE), dir.join("../lib/codeagent").join(PROCESS_ONE)])
}

/// Where this program was built, unless that is somebody else's by now: cargo runs what is there.
fn own_source() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.parent()?;
    let owner = manifest_in(source).metadata().ok()?.uid();
    let is_trusted = owner == 0 || owner == rustix::process::geteuid().as_raw();
    is_trusted.then(|| source.to_owned())
}

fn manifest_in(source: &Path) -> PathBuf {
    source.join("crates/guest/Cargo.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_an_image_from_being_built_is_said_with_what_helps() {
        let hint = |error| not_built(error).hint().unwrap_or_default();
        assert!(
            hint(VmError::LockOutdated("x is 2 by now, and not 1".into())).contains("--newest")
        );
        let without = hint(VmError::NoDebian { suite: "bookworm" });
        for needed in ["--sources", "URIs:", "Suites: bookworm", "debian-archive-keyring"] {
            assert!(without.contains(needed), "{without}");
        }
    }
}
