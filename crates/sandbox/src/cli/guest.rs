use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use codeagent_vm::image::{BuildProgress, BuildRequest, Flavour, LockMode, build};
use codeagent_vm::{Architecture, GuestImage};
use indicatif::ProgressBar;
use serde_json::json;

use super::log::Log;
use super::output::Outcome;
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
    /// Process 1 of the guest, linked statically; found beside this program if not given
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
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
        let images_dir = places::images_dir().ok_or(SandboxError::NoHome)?;
        std::fs::create_dir_all(&images_dir)
            .map_err(SandboxError::doing("cannot make a place for images"))?;
        let request = BuildRequest {
            flavour: self.flavour,
            architecture: Architecture::current(),
            cache_dir: images_dir.join("packages"),
            images_dir,
            sources: self.sources.as_ref().map(std::path::absolute).transpose()?,
            init: self.init.map_or_else(init_beside_us, Ok)?,
            lock: self.newest.map_or(LockMode::Exact, LockMode::Newest),
            keep_root: false,
        };
        let Built { image, without_module } = with_progress(&request).map_err(|error| {
            let hint = "on Debian and Ubuntu apt has what is needed; elsewhere guest/Containerfile \
                        builds it";
            SandboxError::usage(error.to_string(), hint)
        })?;
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

struct Built {
    image: GuestImage,
    /// Why it has not our module for 9P.
    without_module: Option<String>,
}

/// On a terminal it shows what is being done; elsewhere nothing.
fn with_progress(request: &BuildRequest) -> std::result::Result<Built, codeagent_vm::VmError> {
    let mut without_module = None;
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
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

const INIT: &str = "codeagent-guest";

fn init_beside_us() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let found = [dir.join(INIT), dir.join("../lib/codeagent").join(INIT)]
        .into_iter()
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        SandboxError::usage(
            format!("{INIT}, which is process 1 of a guest, is not beside this program"),
            "in the source of this program: cargo xtask build-guest --install; or name it with --init",
        )
    })
}
