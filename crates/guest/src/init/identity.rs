//! Who and where the guest is: names, the user of the commands, the time zone.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown, symlink};
use std::path::Path;

use super::{InitError, While};
use crate::settings::{GuestSettings, GuestUser, Link};

pub(super) fn settle(settings: &GuestSettings) -> Result<(), InitError> {
    let what = || "cannot set the name of the guest".to_owned();
    rustix::system::sethostname(settings.hostname.as_bytes()).during(what)?;
    make_dir(Path::new("/etc"))?;
    write("/etc/hostname", &format!("{}\n", settings.hostname))?;
    write("/etc/hosts", &format!("127.0.0.1 localhost {}\n", settings.hostname))?;
    add_user(&settings.user)?;
    if let Some(link) = &settings.network {
        write("/etc/resolv.conf", &resolver(link))?;
    }
    if let Some(zone) = &settings.time_zone {
        set_time_zone(zone)?;
    }
    Ok(())
}

fn add_user(user: &GuestUser) -> Result<(), InitError> {
    let (name, uid, gid, home) = (&user.name, user.uid, user.gid, user.home.display());
    let password = format!("{name}:x:{uid}:{gid}::{home}:/bin/sh");
    write("/etc/passwd", &with_entry(&read("/etc/passwd"), &password, uid))?;
    write("/etc/group", &with_entry(&read("/etc/group"), &format!("{name}:x:{gid}:"), gid))?;
    make_dir(&user.home)?;
    let what = || format!("cannot give {home} to {name}");
    chown(&user.home, Some(uid), Some(gid)).during(what)
}

/// A list such as `/etc/passwd` with this entry in place of those of the same name or number: names
/// are looked up by number, and the first one found counts.
fn with_entry(list: &str, entry: &str, number: u32) -> String {
    let name = entry.split(':').next();
    let number = number.to_string();
    let stays = |line: &&str| {
        let mut fields = line.split(':');
        !line.is_empty() && fields.next() != name && fields.nth(1) != Some(&number)
    };
    let mut lines: Vec<&str> = list.lines().filter(stays).collect();
    // Root is whom everything else expects to be there.
    if !lines.iter().any(|line| line.starts_with("root:")) && number != "0" {
        let root =
            if entry.matches(':').count() > 3 { "root:x:0:0::/root:/bin/sh" } else { "root:x:0:" };
        lines.insert(0, root);
    }
    lines.push(entry);
    lines.join("\n") + "\n"
}

fn resolver(link: &Link) -> String {
    link.name_servers.iter().map(|server| format!("nameserver {server}\n")).collect()
}

/// For programs that do not look at `TZ`.
fn set_time_zone(zone: &str) -> Result<(), InitError> {
    let file = Path::new("/usr/share/zoneinfo").join(zone);
    let is_below =
        Path::new(zone).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if !is_below || !file.is_file() {
        return Ok(());
    }
    let what = || "cannot set the time zone".to_owned();
    match fs::remove_file("/etc/localtime") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).during(what),
        _ => {}
    }
    symlink(file, "/etc/localtime").during(what)
}

/// Also those above it.
pub(super) fn make_dir(path: &Path) -> Result<(), InitError> {
    let what = || format!("cannot make the directory {}", path.display());
    DirBuilder::new().recursive(true).mode(0o755).create(path).during(what)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn write(path: &str, text: &str) -> Result<(), InitError> {
    // It may be a symlink into a directory that is not there, such as that of a resolver.
    let _ = fs::remove_file(path);
    fs::write(path, text).during(|| format!("cannot write {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_takes_the_place_of_those_with_his_name_or_number() {
        let list =
            "root:x:0:0::/root:/bin/sh\nold:x:1000:1000::/h:/bin/sh\nada:x:7:7::/h:/bin/sh\n";
        let entry = "ada:x:1000:1000::/home/ada:/bin/sh";
        let expected = format!("root:x:0:0::/root:/bin/sh\n{entry}\n");
        assert_eq!(with_entry(list, entry, 1000), expected);
    }

    #[test]
    fn an_empty_list_gets_root_as_well() {
        let groups = with_entry("", "ada:x:1000:", 1000);
        assert_eq!(groups, "root:x:0:\nada:x:1000:\n");
        let users = with_entry("", "ada:x:1000:1000::/home/ada:/bin/sh", 1000);
        assert!(users.starts_with("root:x:0:0::/root:/bin/sh\n"), "{users}");
    }

    #[test]
    fn root_can_be_the_user() {
        let list = with_entry("", "root:x:0:0::/root:/bin/sh", 0);
        assert_eq!(list, "root:x:0:0::/root:/bin/sh\n");
    }
}
