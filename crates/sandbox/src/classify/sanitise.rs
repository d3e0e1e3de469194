//! Command lines that nobody means well with, or that cannot work here. They are refused before
//! they run, to save the agent the detour; what keeps them from doing harm is the sandbox.

use super::split::split;

/// Ask for a password, or for rights that nobody has in a sandbox.
const PRIVILEGES: &[&str] = &["sudo", "doas", "su", "pkexec", "runuser"];

/// Devices of the host, of which a sandbox has none.
const DEVICES: &[&str] = &[
    "/dev/sd",
    "/dev/nvme",
    "/dev/vd",
    "/dev/hd",
    "/dev/mmcblk",
    "/dev/mem",
    "/dev/kmem",
    "/dev/port",
];

/// Why a command line is not run, if it is not.
pub fn refuse(line: &str) -> Option<String> {
    let reason = |text: &str| Some(text.to_owned());
    if line.contains('\0') {
        return reason("it has a NUL byte in it");
    }
    let dense: String = line.chars().filter(|c| !c.is_whitespace()).collect();
    if is_fork_bomb(&dense) {
        return reason("it starts itself again without end");
    }
    if dense.contains("${IFS") || dense.contains("$IFS") {
        return reason("it hides its words from whoever reads it, with IFS");
    }
    for command in split(line) {
        let mut words = command.words.iter().map(String::as_str);
        if let Some(program) = words.next()
            && PRIVILEGES.contains(&program.rsplit('/').next().unwrap_or(program))
        {
            return Some(format!("{program} gives no rights in a sandbox"));
        }
        if let Some(device) = words.find(|word| DEVICES.iter().any(|device| word.contains(device)))
        {
            return Some(format!("{device} is a device of the host"));
        }
    }
    let redirected = DEVICES.iter().find(|device| dense.contains(&format!(">{device}")));
    redirected.map(|device| format!("{device}… is a device of the host"))
}

/// `f(){ f|f& };f`, whatever it is called.
fn is_fork_bomb(dense: &str) -> bool {
    let Some((before, after)) = dense.split_once("(){") else { return false };
    let name: String = before
        .chars()
        .rev()
        .take_while(|c| !";|&(){}".contains(*c))
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect();
    let name = name.trim_start_matches("function");
    !name.is_empty() && after.contains(&format!("{name}|{name}"))
}
