//! Devices that our own module carries 9P over (`guest/module`). They are consoles to the kernel, whose
//! driver for those has taken them by the time anybody asks.

use std::fs;
use std::io;
use std::path::Path;

const BUS: &str = "/sys/bus";
const DRIVER_OF_CONSOLES: &str = "virtio_console";
const OUR_DRIVER: &str = "codeagent_9p";

/// Hands the device at this address to our module. What comes back is its name, for the mount.
pub(super) fn take(address: &str) -> io::Result<String> {
    let bus = Path::new(BUS);
    let device = device_at(bus, address)?;
    let drivers = bus.join("virtio/drivers");
    fs::write(drivers.join(DRIVER_OF_CONSOLES).join("unbind"), &device)?;
    fs::write(drivers.join(OUR_DRIVER).join("bind"), &device)?;
    Ok(device)
}

/// Such as `virtio3`.
fn device_at(bus: &Path, address: &str) -> io::Result<String> {
    for entry in fs::read_dir(bus.join("pci/devices").join(address))? {
        if let Ok(name) = entry?.file_name().into_string()
            && name.starts_with("virtio")
        {
            return Ok(name);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no device at {address}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_found_by_its_address() {
        let bus = tempfile::tempdir().unwrap();
        let at = bus.path().join("pci/devices/0000:00:10.0");
        fs::create_dir_all(at.join("virtio3")).unwrap();
        fs::create_dir_all(at.join("power")).unwrap();
        assert_eq!(device_at(bus.path(), "0000:00:10.0").unwrap(), "virtio3");
        assert!(device_at(bus.path(), "0000:00:11.0").is_err());
    }
}
