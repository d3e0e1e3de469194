//! Guests, QEMUs and owners that die, and what is left then: nothing.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use codeagent_control::{Exec, HostMessage, User};
use codeagent_vm::{
    Accelerator, AcceleratorChoice, Death, GuestImage, Machine, MachineConfig, Progress, Stage,
    VmError, remembered,
};
use common::{
    PATIENCE, Talk, config, image, is_alive, program_of, start, traced_pid, traced_qemu, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

const ROOT: User = User { uid: 0, gid: 0 };

/// A machine whose QEMU is known by its number.
fn traced(image: GuestImage, dir: &Path) -> MachineConfig {
    let mut config = config(image);
    config.qemu = Some(traced_qemu(dir, false));
    config.accelerator = AcceleratorChoice::Only(Accelerator::Tcg);
    config.state_dir = dir.join("state");
    config
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// The kernel of the guest panics, and the owner hears why.
#[test]
fn a_panic_of_the_guest_is_noticed() {
    let Some(image) = image("a_panic_of_the_guest_is_noticed") else { return };
    let machine = start(config(image));
    let mut talk = Talk::with(&machine);
    let crash = Exec { user: Some(ROOT), ..Exec::shell("echo c > /proc/sysrq-trigger") };
    talk.send(&HostMessage::Exec(crash));
    let death = machine.death().wait_for(PATIENCE).expect("it dies");
    assert!(matches!(&death, Death::Panicked { .. }), "{death:?}");
    assert!(death.to_string().contains("sysrq"), "{death}");
}

/// Somebody kills QEMU: the owner hears of it, and the control channel ends.
#[test]
fn a_qemu_that_is_killed_is_noticed() {
    let Some(image) = image("a_qemu_that_is_killed_is_noticed") else { return };
    let dir = tempfile::tempdir().unwrap();
    let machine = start(traced(image, dir.path()));
    let noticed = Instant::now();
    kill(traced_pid(dir.path()));
    let death = machine.death().wait_for(PATIENCE);
    assert_eq!(death, Some(Death::Killed { signal: 9 }));
    println!("noticed after {:?}", noticed.elapsed());
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut machine.control(), &mut rest).unwrap();
    assert!(machine.pause().is_err());
}

/// A guest belongs to whoever started it: when the host hangs up, it ends its commands and itself.
#[test]
fn a_guest_whose_host_hangs_up_switches_itself_off() {
    let Some(image) = image("a_guest_whose_host_hangs_up_switches_itself_off") else { return };
    let machine = start(config(image));
    let mut talk = Talk::with(&machine);
    let id = talk.begin(Exec { grace_ms: 100, ..Exec::shell("trap '' TERM; echo on; sleep 1000") });
    talk.output_until(id, "on");
    machine.control().shutdown(std::net::Shutdown::Both).unwrap();
    let death = machine.death().wait_for(PATIENCE).expect("it ends");
    assert!(matches!(death, Death::SwitchedOff { .. }), "{death:?}");
}

/// The owner is killed, and so is its guest. Then the same with the guard in between.
#[test]
fn nothing_is_left_of_a_machine_whose_owner_or_guard_is_killed() {
    let Some(image) = image("nothing_is_left_of_a_machine_whose_owner_or_guard_is_killed") else {
        return;
    };
    for victim_is_owner in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let mut owner = Command::new(env!("CARGO_BIN_EXE_vm-probe"))
            .args([image.dir(), &state, &traced_qemu(dir.path(), false)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let qemu = traced_pid(dir.path());
        let guard = parent_of(qemu);
        kill(if victim_is_owner { owner.id() as i32 } else { guard });
        wait_until("QEMU ends", || !is_alive(qemu));
        wait_until("the guard ends", || !is_alive(guard));
        owner.wait().unwrap();
        assert!(!state.exists() || files_in(&state).is_empty(), "{:?}", files_in(&state));
    }
}

/// And it is gone when that is said.
#[test]
fn a_guest_that_is_not_ready_in_time_is_given_up() {
    let Some(image) = image("a_guest_that_is_not_ready_in_time_is_given_up") else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut config = traced(image, dir.path());
    config.boot_deadline = Duration::from_millis(300);
    let error = Machine::start(config, &mut |_| {}).unwrap_err();
    assert!(matches!(error, VmError::BootDeadline { .. }), "{error}");
    assert!(!is_alive(traced_pid(dir.path())));
}

/// An accelerator that hangs is given up, said, and not tried again: here QEMU is a program that
/// hangs with KVM, and is QEMU otherwise.
#[test]
fn an_accelerator_that_hangs_is_tried_once() {
    let Some(image) = image("an_accelerator_that_hangs_is_tried_once") else { return };
    if !Path::new("/dev/kvm").exists() {
        let why = "there is no /dev/kvm";
        return codeagent_test_support::filesystems::skip(
            "an_accelerator_that_hangs_is_tried_once",
            why,
        );
    }
    let state = tempfile::tempdir().unwrap();
    let qemu = traced_qemu(state.path(), true);
    let config = || {
        let mut config = config(image.clone());
        config.qemu = Some(qemu.clone());
        config.state_dir = state.path().to_owned();
        config.verdicts_dir = state.path().to_owned();
        config.trial_deadline = Duration::from_secs(1);
        config
    };
    let mut warnings = Vec::new();
    let mut hear = |progress| {
        if let Progress::Warning(text) = progress {
            warnings.push(text);
        }
    };
    let started = Instant::now();
    let machine = Machine::start(config(), &mut hear).unwrap();
    println!("with a trial: {:?}", started.elapsed());
    assert_eq!(machine.accelerator(), Accelerator::Tcg);
    assert!(remembered(state.path(), machine.qemu()).contains_key(&Accelerator::Kvm));
    drop(machine);

    let mut stages = Vec::new();
    let machine = Machine::start(config(), &mut |progress| stages.push(progress)).unwrap();
    let tries = |progress: &&Progress| format!("{progress:?}").contains("Trying");
    assert_eq!(stages.iter().filter(tries).count(), 0, "{stages:?}");
    drop(machine);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("kvm does not work here"), "{warnings:?}");
}

/// What worked in its trial and then fails a guest is told, doubted and tried again: here QEMU is a
/// program that plays QEMU with KVM in a trial, which has no disk and no folder, and fails otherwise.
#[test]
fn an_accelerator_that_fails_a_guest_after_its_trial_is_doubted() {
    let test = "an_accelerator_that_fails_a_guest_after_its_trial_is_doubted";
    let Some(image) = image(test) else { return };
    if !Path::new("/dev/kvm").exists() {
        return codeagent_test_support::filesystems::skip(test, "there is no /dev/kvm");
    }
    let dir = tempfile::tempdir().unwrap();
    let trouble = dir.path().join("trouble");
    // Emulated, whatever it is asked for.
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *kvm*) [ -e '{}' ] && {{ echo an assertion failed >&2; exit 1; }};; esac\n\
         for word; do shift\n\
         case \"$word\" in *kvm*) word=$(echo \"$word\" | sed s/kvm/tcg/);; host|host,*) word=max;; esac\n\
         set -- \"$@\" \"$word\"; done\nexec qemu-system-x86_64 \"$@\"\n",
        trouble.display()
    );
    let config = || {
        let mut config = config(image.clone());
        config.qemu = Some(program_of(dir.path(), &script));
        config.state_dir = dir.path().join("state");
        config.verdicts_dir = dir.path().join("state");
        config.trial_deadline = PATIENCE;
        config
    };
    let machine = Machine::start(config(), &mut |_| {}).unwrap();
    assert_eq!(machine.accelerator(), Accelerator::Kvm);
    let qemu = machine.qemu().clone();
    drop(machine);
    assert_eq!(remembered(&dir.path().join("state"), &qemu).len(), 1);

    std::fs::write(&trouble, "").unwrap();
    let error = Machine::start(config(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, VmError::AcceleratorBroken { .. }), "{error}");
    assert!(error.to_string().contains("an assertion failed"), "{error}");
    assert!(remembered(&dir.path().join("state"), &qemu).is_empty(), "it is tried again");
    // Somebody who insists on it hears what happened, and nothing is doubted.
    let mut insisting = config();
    insisting.accelerator = AcceleratorChoice::Only(Accelerator::Kvm);
    let error = Machine::start(insisting, &mut |_| {}).unwrap_err();
    assert!(matches!(error, VmError::DiedAtBoot(_)), "{error}");
}

/// No guest starts, with an accelerator or without: that says nothing about the accelerator, which is
/// tried again when there is no trouble any more.
#[test]
fn an_accelerator_is_not_blamed_for_what_keeps_every_guest_from_starting() {
    let test = "an_accelerator_is_not_blamed_for_what_keeps_every_guest_from_starting";
    let Some(image) = image(test) else { return };
    if !Path::new("/dev/kvm").exists() {
        return codeagent_test_support::filesystems::skip(test, "there is no /dev/kvm");
    }
    let dir = tempfile::tempdir().unwrap();
    let trouble = dir.path().join("trouble");
    let script = format!(
        "#!/bin/sh\nif [ -e '{}' ] && [ \"$1\" != --version ]; then\n\
         echo cannot set up guest memory >&2; exit 1\nfi\n\
         exec qemu-system-x86_64 \"$@\"\n",
        trouble.display()
    );
    let config = || {
        let mut config = config(image.clone());
        config.qemu = Some(program_of(dir.path(), &script));
        config.state_dir = dir.path().join("state");
        config.verdicts_dir = dir.path().join("state");
        config
    };
    std::fs::write(&trouble, "").unwrap();
    let mut heard = Vec::new();
    let error = Machine::start(config(), &mut |progress| heard.push(progress)).unwrap_err();
    assert!(error.to_string().contains("guest memory"), "{error}");
    let is_undecided = |progress: &Progress| matches!(progress, Progress::Warning(text) if text.contains("not known yet"));
    assert!(heard.iter().any(is_undecided), "{heard:?}");

    std::fs::remove_file(&trouble).unwrap();
    let mut heard = Vec::new();
    let machine = Machine::start(config(), &mut |progress| heard.push(progress)).unwrap();
    assert!(heard.contains(&Progress::Stage(Stage::Trying(Accelerator::Kvm))), "{heard:?}");
    assert_eq!(remembered(&dir.path().join("state"), machine.qemu()).len(), 1);
}

/// A cancel is noticed while QEMU has not said a word, by a trial as well.
#[test]
fn a_cancel_ends_the_wait_for_a_qemu_that_says_nothing() {
    let Some(image) = image("a_cancel_ends_the_wait_for_a_qemu_that_says_nothing") else { return };
    for accelerator in [AcceleratorChoice::Auto, AcceleratorChoice::Only(Accelerator::Tcg)] {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && exec qemu-system-x86_64 --version\n\
             echo $$ > '{0}.new'; mv '{0}.new' '{0}'; exec sleep 1000\n",
            pid.display()
        );
        let mut config = config(image.clone());
        config.qemu = Some(program_of(dir.path(), &script));
        config.accelerator = accelerator;
        config.trial_deadline = PATIENCE;
        config.verdicts_dir = dir.path().join("state");
        let cancel = config.cancel.clone();
        let starting = std::thread::spawn(move || Machine::start(config, &mut |_| {}).map(drop));
        wait_until("QEMU runs", || pid.exists());
        let cancelled = Instant::now();
        cancel.cancel();
        let error = starting.join().unwrap().unwrap_err();
        let noticed = cancelled.elapsed();
        assert!(matches!(error, VmError::Cancelled), "{error}");
        assert!(noticed < Duration::from_secs(2), "{noticed:?}");
        assert!(!is_alive(traced_pid(dir.path())));
        assert!(!dir.path().join("state").exists(), "nothing was learnt");
    }
}

/// A QEMU that cannot start says why.
#[test]
fn what_qemu_complains_about_is_told() {
    let Some(image) = image("what_qemu_complains_about_is_told") else { return };
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\n[ \"$1\" = --version ] || set -- \"$@\" -no-such-option\n\
                  exec qemu-system-x86_64 \"$@\"\n";
    let mut config = config(image);
    config.qemu = Some(program_of(dir.path(), script));
    config.accelerator = AcceleratorChoice::Only(Accelerator::Tcg);
    let error = Machine::start(config, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("no-such-option"), "{error}");
}

/// Whatever the kernel says about half an image: that it is half of one is told.
#[test]
fn an_image_that_is_damaged_is_told_as_that_and_blames_no_accelerator() {
    let Some(image) = image("an_image_that_is_damaged_is_told_as_that_and_blames_no_accelerator")
    else {
        return;
    };
    for damaged in ["kernel", "initramfs"] {
        let dir = tempfile::tempdir().unwrap();
        for file in ["kernel", "initramfs", "image.json"] {
            std::fs::copy(image.dir().join(file), dir.path().join(file)).unwrap();
        }
        let file = std::fs::File::options().write(true).open(dir.path().join(damaged)).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        let mut config = config(GuestImage::open(dir.path()).unwrap());
        config.verdicts_dir = dir.path().join("state");
        let error = Machine::start(config, &mut |_| {}).unwrap_err();
        assert!(matches!(error, VmError::ImageBroken { .. }), "{damaged}: {error}");
        let said = error.to_string();
        assert!(said.contains(damaged) && said.contains("guest build"), "{said}");
        assert!(!dir.path().join("state").exists(), "nothing was learnt");
    }
}

fn parent_of(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
