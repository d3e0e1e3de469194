//! From nothing to the first word of the first command, against the same kernel and initial file
//! system in a QEMU with nothing else, up to the first word of process 1.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use codeagent_test_guest::Parts;

use super::side::needed_parts;
use crate::namespace::sandbox;
use crate::place::Place;
use crate::sample::{Samples, in_turn};
use crate::table::{Bar, Row};

/// Both machines have so much.
const MEMORY_MIB: u32 = 512;
const CPUS: u32 = 1;

/// What both say.
const WORD: &str = "here-it-is";

/// What is left of one must not disturb the next.
const FAREWELL: Duration = Duration::from_millis(100);

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let parts = needed_parts()?;
    let scratch = place.scratch(64 << 20)?;
    let (folder, home) = (scratch.work(), scratch.path("home"));
    configure(&parts, &home)?;
    let (mut ours, mut bare) = <(Samples, Samples)>::default();
    in_turn(
        repetitions,
        || first_word(&mut ours, session(&folder, &home)?),
        || first_word(&mut bare, machine(&parts)),
    )?;
    let name = "boot to the first command";
    Ok(vec![Row::compare(name, &ours, Bar::RatioAtMost(1.3), "bare QEMU to init", &bare)])
}

fn configure(parts: &Parts, home: &Path) -> Result<()> {
    let dir = home.join(".config/codeagent");
    std::fs::create_dir_all(&dir)?;
    let image = parts.image().dir().canonicalize()?;
    let text = format!(
        "[vm]\nimage = '{}'\naccelerator = 'tcg'\nmemory_mib = {MEMORY_MIB}\ncpus = {CPUS}\n",
        image.display()
    );
    Ok(std::fs::write(dir.join("codeagent.toml"), text)?)
}

fn session(folder: &Path, home: &Path) -> Result<Command> {
    let mut command = sandbox(["run", "--isolation", "vm", "--", "echo", WORD])?;
    command.current_dir(folder).env("HOME", home).env_remove("CODEAGENT_HOME");
    command.env_remove("XDG_CONFIG_HOME");
    Ok(command)
}

/// Process 1 is `echo`. When it has ended, the kernel panics, and QEMU ends.
fn machine(parts: &Parts) -> Command {
    let image = parts.image();
    let mut command = Command::new(image.architecture().qemu());
    command
        .args(["-machine", "q35", "-accel", "tcg", "-cpu", "max"])
        .args(["-m", &format!("{MEMORY_MIB}M"), "-smp", &CPUS.to_string()])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-serial", "stdio", "-kernel"])
        .arg(image.kernel())
        .arg("-initrd")
        .arg(image.initramfs())
        .args(["-append", &format!("console=ttyS0 quiet panic=-1 rdinit=/bin/echo -- {WORD}")]);
    command
}

/// Measures how long it takes to hear the word, and waits for the end.
fn first_word(samples: &mut Samples, mut command: Command) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = samples.time(|| {
        let mut child = command.spawn().context("cannot start it")?;
        listen(&mut child)?;
        Ok(child)
    })?;
    child.wait()?;
    std::thread::sleep(FAREWELL);
    Ok(())
}

fn listen(child: &mut Child) -> Result<()> {
    let mut stdout = child.stdout.take().context("it has no output")?;
    let (mut heard, mut chunk) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&heard).contains(WORD) {
        let count = stdout.read(&mut chunk)?;
        heard.extend_from_slice(&chunk[..count]);
        if count == 0 {
            let mut said = String::new();
            child.stderr.take().context("nothing was said")?.read_to_string(&mut said)?;
            ensure!(false, "it ended without the word: {said}{}", String::from_utf8_lossy(&heard));
        }
    }
    // The rest, so that nobody waits for us to read it.
    std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    Ok(())
}
