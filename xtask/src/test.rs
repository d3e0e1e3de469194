use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

#[cfg(target_os = "linux")]
use crate::build_guest;
use crate::clients;
use crate::counts::Counts;
use crate::filesystems::{Filesystems, Kind};
use crate::packages;
use crate::process::{
    cargo, is_root, run_silently, run_watching, scratch, status, stop_if_interrupted,
};
use crate::tools::{self, Tool};

/// XFS refuses to be smaller than 300 MiB. The images are sparse, so the size costs nothing.
const FILESYSTEM_SIZE_BYTES: u64 = 512 << 20;

/// The filesystem test suites, and the variables that tell the tests where they are.
const SUITES: &[(&str, Tool)] =
    &[("CODEAGENT_TEST_PJDFSTEST", tools::PJDFSTEST), ("CODEAGENT_TEST_FSX", tools::FSX)];

/// Run every test, on every filesystem this machine can offer
///
/// Installs what the tests need (as root, with apt; test suites and MCP clients into target/tools),
/// mounts btrfs, XFS and ext4 images below target/test-fs for the run, builds the images
/// of the guests that tests start below target/guest, and says at the end what was skipped and why.
/// An image that could not be built, though its tools are there, is a failure.
/// The last line is `N passed, N failed, N skipped`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the long versions of the tests too
    #[arg(long)]
    long: bool,
    /// Run only the tests whose name contains this
    filter: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let started = Instant::now();
    packages::install_missing(packages::FOR_TESTS);
    packages::install_missing(packages::FOR_GUESTS);
    let filesystems = Filesystems::prepare(Kind::ALL, FILESYSTEM_SIZE_BYTES)?;
    let skips = Skips::collect_in(scratch("test-skips.txt"))?;
    let mut notes = filesystems.describe();
    let mut suites = install_suites(&mut notes)?;
    suites.extend(clients::install(&mut notes));
    // What could not run, though it should have.
    let mut broken_layers = 0;
    #[cfg(target_os = "linux")]
    suites.extend(guest_images(&mut notes, &mut broken_layers)?);
    stop_if_interrupted()?;
    let run = Run { args, filesystems: &filesystems, suites: &suites, skips: &skips };

    let mut counts = Counts::default();
    let layers: &[Layer<'_>] = &[("tests", Run::tests), ("doc tests", Run::doc_tests)];
    for (name, layer) in layers {
        match layer(&run, &mut notes) {
            Ok(part) => counts += part,
            Err(error) => {
                stop_if_interrupted()?;
                notes.push(format!("{name}: {error:#}"));
                broken_layers += 1;
            }
        }
    }
    drop(filesystems);

    let skipped = skips.read()?;
    counts.move_to_skipped(skipped.len() as u64);
    notes.extend(skipped.iter().map(|line| format!("skipped {line}")));

    println!();
    for note in notes {
        println!("{note}");
    }
    let ran = counts.passed + counts.failed;
    println!("tests run: {ran}, in {} s altogether", started.elapsed().as_secs());
    // A layer that could not run must not look like one without failures.
    counts.failed += broken_layers;
    println!("{counts}");
    Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A name, and what runs the tests of that layer. It adds to the notes what a person should know.
type Layer<'a> = (&'static str, fn(&Run<'a>, &mut Vec<String>) -> Result<Counts>);

/// What every layer of one run shares.
#[derive(Debug)]
struct Run<'a> {
    args: &'a Args,
    filesystems: &'a Filesystems,
    suites: &'a [(&'static str, PathBuf)],
    skips: &'a Skips,
}

impl Run<'_> {
    /// Unit and integration tests. All features are on, or tests behind a feature would be left out
    /// without a word.
    fn tests(&self, notes: &mut Vec<String>) -> Result<Counts> {
        if run_silently(cargo().args(["nextest", "--version"])).is_ok() {
            return self.tests_with_nextest(notes);
        }
        notes.push("cargo-nextest is not installed; ran `cargo test` instead".to_owned());
        self.libtest(&["--lib", "--bins", "--tests", "--examples"], notes)
    }

    fn tests_with_nextest(&self, notes: &mut Vec<String>) -> Result<Counts> {
        let profile = if self.args.long { "long" } else { "default" };
        let report = scratch("nextest").join(profile).join("junit.xml");
        // A report of an earlier run must not be taken for this one's.
        if report.exists() {
            fs::remove_file(&report).context("cannot remove the last test report")?;
        }

        let mut command = self.cargo(&["nextest", "run", "--workspace", "--all-features"]);
        command.args(["--no-tests", "pass", "--profile", profile]).args(&self.args.filter);
        let status = status(&mut command)?;
        let Ok(text) = fs::read_to_string(&report) else {
            bail!("they did not build or did not start");
        };
        let mut counts = Counts::from_junit(&text).context("cannot read nextest's report")?;
        if !status.success() && counts.failed == 0 {
            bail!("nextest failed ({status}), though no test did");
        }

        let ignored = self.ignored_by_nextest()?;
        counts.skipped += ignored.len() as u64;
        notes.extend(ignored.iter().map(|test| ignored_note(test)));
        Ok(counts)
    }

    /// The tests marked `#[ignore]`. Nextest's report leaves them out, and its summary counts them
    /// together with those that the filter left out.
    fn ignored_by_nextest(&self) -> Result<Vec<String>> {
        let mut command = self.cargo(&["nextest", "list", "--workspace", "--all-features"]);
        command.args(["--run-ignored", "only", "--message-format", "oneline"]);
        let list = run_silently(command.args(&self.args.filter))?;
        Ok(list.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    /// The examples in the documentation, which nextest does not run.
    fn doc_tests(&self, notes: &mut Vec<String>) -> Result<Counts> {
        self.libtest(&["--doc"], notes)
    }

    fn libtest(&self, targets: &[&str], notes: &mut Vec<String>) -> Result<Counts> {
        let mut command = self.cargo(&["test", "--workspace", "--all-features", "--no-fail-fast"]);
        command.args(targets).args(&self.args.filter);
        let mut counts = Counts::default();
        let status = run_watching(&mut command, |line| {
            counts += Counts::from_libtest_line(line).unwrap_or_default();
            notes.extend(ignored_by_libtest(line).map(ignored_note));
        })?;
        if !status.success() && counts.failed == 0 {
            bail!("they did not build or did not start");
        }
        Ok(counts)
    }

    /// Cargo, with everything the tests want to know in its environment.
    fn cargo(&self, args: &[&str]) -> Command {
        let mut command = cargo();
        command.args(args).env("CODEAGENT_SKIPS", &self.skips.file);
        if self.args.long {
            command.env("CODEAGENT_LONG", "1");
        }
        self.filesystems.announce(&mut command);
        command.envs(self.suites.iter().map(|(variable, binary)| (variable, binary)));
        command
    }
}

/// The suites that can be had. One that cannot is no error: its tests are skipped and say so.
fn install_suites(notes: &mut Vec<String>) -> Result<Vec<(&'static str, PathBuf)>> {
    let mut suites = Vec::new();
    // They are of use only where a mount can be tested by several users.
    let wanted = if cfg!(target_os = "linux") && is_root() { SUITES } else { &[] };
    for (variable, tool) in wanted {
        match tool.ensure() {
            Ok(binary) => suites.push((*variable, binary)),
            Err(error) => {
                stop_if_interrupted()?;
                notes.push(format!("{}: not available, {error:#}", tool.name));
            }
        }
    }
    Ok(suites)
}

/// The images of the guests that tests start. Without one, its tests are skipped and say so; where
/// there is everything that it takes to build one, that is a failure.
#[cfg(target_os = "linux")]
fn guest_images(
    notes: &mut Vec<String>,
    broken_layers: &mut u64,
) -> Result<Vec<(&'static str, PathBuf)>> {
    let lacking = packages::missing(packages::FOR_GUESTS);
    let mut images = Vec::new();
    for (variable, flavour) in build_guest::TESTED {
        match build_guest::for_tests(flavour) {
            Ok((image, note)) => {
                notes.extend(note);
                images.push((variable, image.dir().to_owned()));
            }
            Err(error) => {
                stop_if_interrupted()?;
                let (note, is_failure) = without_image(flavour.name(), &error, &lacking);
                notes.push(note);
                *broken_layers += u64::from(is_failure);
            }
        }
    }
    Ok(images)
}

/// What to say of an image that could not be built, and whether it should have been.
#[cfg(target_os = "linux")]
fn without_image(flavour: &str, error: &anyhow::Error, lacking: &[&str]) -> (String, bool) {
    let lacks = match (cfg!(target_arch = "x86_64"), lacking) {
        (false, _) => "images are built for the tests on x86_64".to_owned(),
        (true, []) => {
            let note = format!("guest image {flavour}: FAILED, no test ran in it: {error:#}");
            return (note, true);
        }
        (true, lacking) => format!("without {}", lacking.join(" ")),
    };
    (format!("guest image {flavour}: not available, {lacks}: {error:#}"), false)
}

/// The test that a line of `cargo test` such as `test a::b ... ignored` is about.
fn ignored_by_libtest(line: &str) -> Option<&str> {
    let (test, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    outcome.starts_with("ignored").then_some(test)
}

fn ignored_note(test: &str) -> String {
    format!("skipped {test}: marked #[ignore]")
}

/// The file in which a test that cannot run on this machine leaves the line `test-name: reason`.
#[derive(Debug)]
pub(crate) struct Skips {
    file: PathBuf,
}

impl Skips {
    pub(crate) fn collect_in(file: PathBuf) -> Result<Self> {
        fs::write(&file, "").with_context(|| format!("cannot create {}", file.display()))?;
        Ok(Self { file })
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn read(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.file)
            .with_context(|| format!("cannot read {}", self.file.display()))?;
        Ok(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect())
    }
}

#[cfg(test)]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_could_have_been_built_is_a_failure_and_a_machine_without_tools_is_not() {
        let error = anyhow::anyhow!("apt has no such package");
        let (note, is_failure) = without_image("minimal", &error, &[]);
        assert!(
            is_failure && note.contains("FAILED") && note.contains("no such package"),
            "{note}"
        );
        let (note, is_failure) = without_image("dev", &error, &["mmdebstrap"]);
        assert!(!is_failure && note.contains("without mmdebstrap"), "{note}");
    }
}
