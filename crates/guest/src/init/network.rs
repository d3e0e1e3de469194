//! The network card, with the tools of the initial file system.

use std::io;
use std::process::{Command, Stdio};

use super::{InitError, While};
use crate::settings::Link;

const BUSYBOX: &str = "/bin/busybox";
const CARD: &str = "eth0";

pub(super) fn raise_loopback() -> Result<(), InitError> {
    ip(&["link", "set", "lo", "up"])
}

/// Before the root changes: another one need not have the tools.
pub(super) fn set_up(link: &Link) -> Result<(), InitError> {
    ip(&["address", "add", &link.address.to_string(), "dev", CARD])?;
    ip(&["link", "set", CARD, "up"])?;
    if let Some(gateway) = link.gateway {
        ip(&["route", "add", "default", "via", &gateway.to_string()])?;
    }
    Ok(())
}

fn ip(arguments: &[&str]) -> Result<(), InitError> {
    let what = || format!("cannot set up the network (ip {})", arguments.join(" "));
    let mut command = Command::new(BUSYBOX);
    let output = command.arg("ip").args(arguments).stdin(Stdio::null()).output().during(what)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(said)).during(what);
    }
    Ok(())
}
