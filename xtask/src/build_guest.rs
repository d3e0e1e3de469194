use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use codeagent_common::CancelToken;
use codeagent_vm::image::{
    BuildProgress, BuildRequest, Flavour, LockMode, build, build_process_one,
};
use codeagent_vm::{Architecture, GuestImage};

use crate::packages;
use crate::process::{cargo, root, scratch};

/// Build an image for guests, below target/guest
///
/// Fetches Debian packages with apt (no root needed) in the versions that guest/locks names, and
/// builds process 1 of the guest statically.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// minimal (a shell and busybox, in memory) or dev (Debian with compilers, git, Python, Node)
    #[arg(long, default_value = "minimal", value_parser = flavour)]
    flavour: Flavour,
    /// The processor it is for: x86_64 or aarch64; that of this machine if not given
    ///
    /// For another one, its target has to be there (rustup target add aarch64-unknown-linux-gnu) and
    /// a linker (gcc-aarch64-linux-gnu and libc6-dev-arm64-cross).
    #[arg(long, value_parser = architecture)]
    architecture: Option<Architecture>,
    /// Take the newest packages, and write down in guest/locks which they were
    #[arg(long)]
    update_lock: bool,
    /// Where apt finds Debian, such as a snapshot of the day of the lock; what this machine knows of it
    /// if not given
    #[arg(long, value_name = "FILE")]
    sources: Option<PathBuf>,
    /// Put it where `sandbox --isolation vm` looks for it
    #[arg(long)]
    install: bool,
}

fn flavour(name: &str) -> Result<Flavour, String> {
    let found = Flavour::ALL.into_iter().find(|flavour| flavour.name() == name);
    found.ok_or_else(|| "there are `minimal` and `dev`".to_owned())
}

fn architecture(name: &str) -> Result<Architecture, String> {
    let all = [Architecture::X86_64, Architecture::Aarch64];
    let found = all.into_iter().find(|architecture| architecture.name() == name);
    found.ok_or_else(|| "there are `x86_64` and `aarch64`".to_owned())
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    packages::install_missing(packages::FOR_GUESTS);
    let architecture = args.architecture.unwrap_or(Architecture::current());
    let lock = match args.update_lock {
        true => LockMode::Newest(lock_file(args.flavour, architecture)),
        false => LockMode::Exact,
    };
    let mut images_dir = scratch("guest");
    if args.install {
        let own = std::env::var_os("CODEAGENT_HOME").map(PathBuf::from);
        let own = own.or_else(|| Some(std::env::home_dir()?.join(".codeagent")));
        images_dir = own.context("there is no home directory")?.join("guests");
    }
    let sources = args.sources.as_ref().map(std::path::absolute).transpose()?;
    let request = request(args.flavour, architecture, lock, images_dir)?;
    let image = build_image(&BuildRequest { sources, ..request })?;
    println!("{}", image.dir().display());
    Ok(ExitCode::SUCCESS)
}

/// Tells tests and benchmarks where the image is that they start.
pub(crate) const TESTED_IMAGE: &str = "CODEAGENT_TEST_GUEST";

/// All images of tests, and the variables that tell where they are.
pub(crate) const TESTED: [(&str, Flavour); 2] =
    [(TESTED_IMAGE, Flavour::Minimal), ("CODEAGENT_TEST_GUEST_DEV", Flavour::Dev)];

/// The image that the tests start. Where Debian has dropped a version that is locked, the newest
/// ones do as well, and the second result says so.
pub(crate) fn for_tests(flavour: Flavour) -> Result<(GuestImage, Option<String>)> {
    let images = scratch("guest");
    let lock = images.join(format!("{}.lock", flavour.name()));
    let architecture = Architecture::current();
    let exact = request(flavour, architecture, LockMode::Exact, images.clone())?;
    let error = match build_image(&BuildRequest { keep_root: true, ..exact }) {
        Ok(image) => {
            let _ = std::fs::remove_file(lock); // of an earlier one that was not
            return Ok((image, None));
        }
        Err(error) => error,
    };
    let newest = request(flavour, architecture, LockMode::Newest(lock), images)?;
    let image = build_image(&newest)?;
    Ok((image, Some(format!("guest image: made of the newest packages, because {error:#}"))))
}

fn request(
    flavour: Flavour,
    architecture: Architecture,
    lock: LockMode,
    images_dir: PathBuf,
) -> Result<BuildRequest> {
    Ok(BuildRequest {
        flavour,
        architecture,
        images_dir,
        cache_dir: scratch("guest").join("packages"),
        sources: None,
        init: build_process_one(cargo(), &root(), architecture, &CancelToken::new())
            .context("cannot build process 1 of the guest")?,
        lock,
        keep_root: false,
        cancel: CancelToken::new(), // Ctrl-C ends what it has started
    })
}

fn build_image(request: &BuildRequest) -> Result<GuestImage> {
    std::fs::create_dir_all(&request.images_dir).context("cannot make a place for images")?;
    let image = build(request, &mut |progress| match progress {
        BuildProgress::Fetching { package, version } => eprintln!("Fetching {package} {version} …"),
        BuildProgress::UnpackingKernel => eprintln!("Unpacking the kernel …"),
        BuildProgress::BuildingModule => eprintln!("Building the module for 9P …"),
        BuildProgress::WithoutModule(reason) => {
            eprintln!("Without the module for 9P, which takes longer then: {reason}");
        }
        BuildProgress::PackingInitramfs => eprintln!("Packing the initial file system …"),
        BuildProgress::InstallingRoot(line) => eprintln!("{line}"),
        BuildProgress::PackingRoot => eprintln!("Packing the root file system …"),
    })?;
    Ok(image)
}

fn lock_file(flavour: Flavour, architecture: Architecture) -> PathBuf {
    let name = format!("{}-{}.lock", flavour.name(), architecture.name());
    root().join("guest").join("locks").join(name)
}
