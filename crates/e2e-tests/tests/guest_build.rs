//! `sandbox guest build`, as somebody runs it who has installed the program and nothing else.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use codeagent_test_support::{TempWorkspace, fixtures};
use common::{Ground, Home, PROGRAM, descendants, eventually, kill, text};

/// A program that was installed: alone in its directory, and with packages that were fetched before.
struct Installed {
    home: tempfile::TempDir,
}

impl Installed {
    fn with_packages_of(ground: &Ground) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("bin")).unwrap();
        fs::copy(PROGRAM, home.path().join("bin/sandbox")).unwrap();
        let packages = home.path().join("home/guests/packages");
        fs::create_dir_all(&packages).unwrap();
        let fetched = ground.image.parent().unwrap().join("packages");
        for package in fs::read_dir(fetched).unwrap().flatten() {
            if package.path().extension().is_some_and(|extension| extension == "deb") {
                fs::hard_link(package.path(), packages.join(package.file_name()))
                    .or_else(|_| {
                        fs::copy(package.path(), packages.join(package.file_name())).map(drop)
                    })
                    .unwrap();
            }
        }
        Self { home }
    }

    fn build(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.home.path().join("bin/sandbox"));
        command.args(["guest", "build", "--flavour", "minimal"]).args(arguments);
        command.env("CODEAGENT_HOME", self.home.path().join("home"));
        command.current_dir(self.home.path());
        command
    }

    fn images(&self) -> std::path::PathBuf {
        self.home.path().join("home/guests")
    }
}

/// What the tests' own image was made of where Debian has dropped what is locked.
fn lock_of_the_day(ground: &Ground) -> Option<String> {
    let lock = ground.image.parent()?.join("minimal.lock");
    lock.exists().then(|| "--newest=newest.lock".to_owned())
}

#[test]
fn an_installed_program_builds_an_image_that_runs_commands() {
    let test = "an_installed_program_builds_an_image_that_runs_commands";
    let Some(ground) = Ground::find(test) else { return };
    let installed = Installed::with_packages_of(&ground);
    // As `cargo build` leaves it: it needs libraries, and is passed over.
    fs::copy("/bin/true", installed.home.path().join("bin/codeagent-guest")).unwrap();
    let newest = lock_of_the_day(&ground);
    let newest: Vec<&str> = newest.iter().map(String::as_str).collect();
    let output = installed.build(&newest).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));

    let image = installed.images().join("minimal-x86_64");
    let home = Home::new(&Ground { image, ..ground });
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let run = ["run", "--isolation", "vm", "--", "sh", "-c", "echo built; uname -s"];
    let output = home.sandbox(&workspace, &run).output().unwrap();
    assert!(text(&output).contains("built\nLinux"), "{}", text(&output));
}

#[test]
fn without_process_one_it_is_said_what_to_name_before_anything_is_fetched() {
    let test = "without_process_one_it_is_said_what_to_name_before_anything_is_fetched";
    let Some(ground) = Ground::find(test) else { return };
    let installed = Installed::with_packages_of(&ground);
    fs::remove_dir_all(installed.images()).unwrap();
    let elsewhere = installed.build(&["--checkout", "."]).output().unwrap();
    let said = text(&elsewhere);
    assert!(!elsewhere.status.success(), "{said}");
    assert!(said.contains("--checkout") && said.contains("--init"), "{said}");

    let dynamic = installed.build(&["--init", "/bin/true"]).output().unwrap();
    let said = text(&dynamic);
    assert!(!dynamic.status.success() && said.contains("static program"), "{said}");
    assert!(!Path::new(&installed.images()).join("packages/lists").exists(), "nothing was fetched");
}

/// What builds leave where images are, beside images and packages.
fn leftovers(images: &Path) -> Vec<String> {
    let names = fs::read_dir(images).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with('.')).collect()
}

#[test]
fn a_build_that_is_interrupted_leaves_nothing() {
    let Some(ground) = Ground::find("a_build_that_is_interrupted_leaves_nothing") else { return };
    let installed = Installed::with_packages_of(&ground);
    fs::remove_dir_all(installed.images()).unwrap();
    // It fetches without end.
    let tools = installed.home.path().join("tools");
    fs::create_dir(&tools).unwrap();
    let (apt, began) = (tools.join("apt-get"), installed.home.path().join("began"));
    fs::write(&apt, format!("#!/bin/sh\n: > '{}'\nexec sleep 1000\n", began.display())).unwrap();
    fs::set_permissions(&apt, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let begin = || {
        let _ = fs::remove_file(&began);
        let building = installed.build(&[]).env("PATH", &path).stderr(Stdio::piped()).spawn();
        eventually("it fetches", || began.exists());
        building.unwrap()
    };

    let mut killed = begin();
    let fetching = descendants(killed.id());
    kill(killed.id());
    killed.wait().unwrap();
    fetching.iter().for_each(|(pid, _)| kill(*pid));
    assert_eq!(leftovers(&installed.images()).len(), 1);

    let interrupted = begin();
    let fetching = descendants(interrupted.id());
    let pid = rustix::process::Pid::from_child(&interrupted);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = interrupted.wait_with_output().unwrap();
    assert!(!output.status.success() && text(&output).contains("interrupted"), "{}", text(&output));
    let is_gone = |(pid, _): &(u32, String)| !Path::new(&format!("/proc/{pid}")).exists();
    assert!(fetching.iter().all(is_gone), "{fetching:?}");
    assert_eq!(leftovers(&installed.images()), [""; 0]);
    assert_eq!(leftovers(&installed.images().join("packages")), [""; 0]);
}
