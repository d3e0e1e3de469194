//! The program that runs in a guest, and does what busybox cannot.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::mapping;

/// What this process was started for, if that was to be of use in a guest.
pub fn run_inside() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["see", dir] => see_all(Path::new(dir)),
        ["write-mapped", file, text] => write_mapped(file, text),
        ["watch-mapped", file, go] => watch_mapped(file, go),
        ["watch-open", file, go] => watch_open(file, go),
        ["open-many", file, count] => open_many(file, count),
        ["workload", name, dir] => timed(name, Path::new(dir)),
        _ => return None,
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error}"));
            ExitCode::FAILURE
        }
    })
}

#[expect(clippy::print_stdout, reason = "it is a program in a guest")]
fn say(text: &str) {
    println!("{text}");
}

fn see_all(dir: &Path) -> io::Result<()> {
    let mut seen = String::new();
    see(dir, &mut seen)?;
    say(&seen);
    Ok(())
}

/// Writes through a mapping, at the beginning of a file.
fn write_mapped(file: &str, text: &str) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let mut mapped = mapping::shared(&file)?;
    mapped[..text.len()].copy_from_slice(text.as_bytes());
    Ok(())
}

/// Says how a mapped file begins, at once and whenever `go` appears.
fn watch_mapped(file: &str, go: &str) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let mapped = mapping::shared(&file)?;
    let beginning = || String::from_utf8_lossy(&mapped[..8.min(mapped.len())]).into_owned();
    say(&beginning());
    wait_for(go)?;
    say(&format!("unasked {}", beginning()));
    file.metadata()?;
    say(&format!("asked {}", beginning()));
    Ok(())
}

/// The same of a file that stays open and is read.
fn watch_open(file: &str, go: &str) -> io::Result<()> {
    let mut file = File::open(file)?;
    let mut beginning = || {
        let mut bytes = [0; 8];
        file.seek(SeekFrom::Start(0))?;
        let read = file.read(&mut bytes)?;
        io::Result::Ok(String::from_utf8_lossy(&bytes[..read]).into_owned())
    };
    say(&beginning()?);
    wait_for(go)?;
    say(&beginning()?);
    Ok(())
}

/// Names, attributes and contents of everything below a directory, in order.
fn see(dir: &Path, seen: &mut String) -> io::Result<()> {
    use std::hash::{DefaultHasher, Hasher};
    use std::os::unix::fs::MetadataExt;
    let mut paths =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        let meta = fs::symlink_metadata(&path)?;
        let mut hasher = DefaultHasher::new();
        if meta.is_file() {
            hasher.write(&fs::read(&path)?);
        } else if meta.is_symlink() {
            hasher.write(fs::read_link(&path)?.as_os_str().as_encoded_bytes());
        }
        seen.push_str(&format!(
            "{} {:o} {} {} {}:{} {}.{} {:x}\n",
            path.display(),
            meta.mode(),
            meta.size(),
            meta.nlink(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            hasher.finish()
        ));
        if meta.is_dir() {
            see(&path, seen)?;
        }
    }
    Ok(())
}

fn wait_for(file: &str) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !Path::new(file).exists() {
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Opens one file so often; says how often it could, and why not more often.
fn open_many(file: &str, count: &str) -> io::Result<()> {
    let count: usize = count.parse().map_err(io::Error::other)?;
    let mut open = Vec::new();
    let failed = loop {
        match File::open(file) {
            Ok(file) => open.push(file),
            Err(error) => break error.raw_os_error(),
        }
        if open.len() == count {
            break None;
        }
    };
    say(&format!("{} {}", open.len(), failed.unwrap_or(0)));
    Ok(())
}

/// Does a workload and says how many microseconds it took.
fn timed(name: &str, dir: &Path) -> io::Result<()> {
    let begun = Instant::now();
    workload(name, dir)?;
    say(&begun.elapsed().as_micros().to_string());
    Ok(())
}

/// Files in each of the directories that the workloads are about.
const FILES: usize = 100;

/// Something to be measured, with the files that `prepare` makes.
///
/// # Errors
/// When the filesystem fails, or there is no such workload.
pub fn workload(name: &str, dir: &Path) -> io::Result<()> {
    match name {
        "prepare" => prepare(dir, 20),
        "many" => prepare(dir, 100),
        "read" => read_everything(dir),
        "look" => look_at_everything(dir),
        "write" => rewrite_everything(dir),
        "large" => large_file(dir),
        "remove" => fs::remove_dir_all(dir.join("tree")),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn prepare(dir: &Path, dirs: usize) -> io::Result<()> {
    for number in 0..dirs {
        let below = dir.join("tree").join(number.to_string());
        fs::create_dir_all(&below)?;
        for file in 0..FILES {
            fs::write(below.join(file.to_string()), vec![b'x'; 4096])?;
        }
    }
    Ok(())
}

fn everything(dir: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for below in fs::read_dir(dir.join("tree"))? {
        for file in fs::read_dir(below?.path())? {
            files.push(file?.path());
        }
    }
    Ok(files)
}

fn read_everything(dir: &Path) -> io::Result<()> {
    for file in everything(dir)? {
        fs::read(file)?;
    }
    Ok(())
}

fn look_at_everything(dir: &Path) -> io::Result<()> {
    for file in everything(dir)? {
        fs::metadata(file)?;
    }
    Ok(())
}

/// As a build or a checkout does: files anew, renamed into place, some removed.
fn rewrite_everything(dir: &Path) -> io::Result<()> {
    for (number, file) in everything(dir)?.into_iter().enumerate() {
        match number % 4 {
            0 => fs::write(&file, vec![b'y'; 8192])?,
            1 => {
                let new = file.with_extension("new");
                fs::write(&new, vec![b'z'; 4096])?;
                fs::rename(&new, &file)?;
            }
            2 => OpenOptions::new().append(true).open(&file)?.write_all(&[b'a'; 1000])?,
            _ => fs::remove_file(&file)?,
        }
    }
    Ok(())
}

fn large_file(dir: &Path) -> io::Result<()> {
    let mut file = File::create(dir.join("large"))?;
    let block = vec![7; 128 << 10];
    for _ in 0..512 {
        file.write_all(&block)?;
    }
    Ok(())
}
