//! From [`Hardware`] to the arguments of QEMU. Nothing here looks at the machine it runs on.

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use codeagent_guest::{CONTROL_PORT, SETTINGS_NAME, share_port};

use crate::hardware::{
    Accelerator, Architecture, Endpoint, FileSource, Hardware, HostSystem, NetworkDevice,
    ShareDevice, ShareTransport,
};

/// The block device of the root file system, in QEMU's words.
const ROOT_NODE: &str = "root";
/// The set of descriptors that holds its file.
const ROOT_SET: u32 = 1;
/// The device of the ports.
const PORTS: &str = "ports";
/// A stream that QEMU knows how to leave alone on its way to vhost-user needs a queue of requests.
const SHARE_QUEUE: u32 = 1024;

/// What comes after the name of the program.
pub fn arguments(hardware: &Hardware) -> Vec<OsString> {
    let mut line = Line::default();
    line.machine(hardware);
    line.memory(hardware);
    line.boot(hardware);
    line.channels(hardware);
    if let Some(file) = &hardware.root_disk {
        line.root_disk(file);
    }
    for (number, share) in hardware.shares.iter().enumerate() {
        line.share(number, share);
    }
    line.network(&hardware.network);
    line.0
}

#[derive(Debug, Default)]
struct Line(Vec<OsString>);

impl Line {
    fn flag(&mut self, name: &str) {
        self.0.push(format!("-{name}").into());
    }

    fn option(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.flag(name);
        self.0.push(value.as_ref().to_owned());
    }

    fn machine(&mut self, hardware: &Hardware) {
        let machine = match hardware.architecture {
            // Neither a mouse nor a second mode of the processor is missed.
            Architecture::X86_64 => "q35,vmport=off,smm=off",
            Architecture::Aarch64 => "virt,gic-version=max",
        };
        let (accelerator, cpu) = match hardware.accelerator {
            Accelerator::Kvm => ("kvm", "host"),
            Accelerator::Hvf => ("hvf", "host"),
            // The processor of the host is not to be had by name there.
            Accelerator::Whpx => ("whpx,kernel-irqchip=off", "max"),
            Accelerator::Tcg => ("tcg", "max"),
        };
        self.option("machine", machine);
        self.option("accel", accelerator);
        self.option("cpu", cpu);
        self.option("smp", hardware.cpus.to_string());
        // Only what is asked for: each device costs boot time, and is one more to attack.
        self.flag("nodefaults");
        self.flag("no-user-config");
        self.option("display", "none");
        // A guest that panics asks for a reboot, and so ends QEMU.
        self.flag("no-reboot");
        if hardware.host == HostSystem::Linux {
            let denied = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
            self.option("sandbox", denied);
        }
    }

    /// Whoever serves a folder over vhost-user shares the memory of the guest.
    fn memory(&mut self, hardware: &Hardware) {
        let size = format!("{}M", hardware.memory_mib);
        self.option("m", &size);
        let is_shared =
            |share: &ShareDevice| matches!(share.transport, ShareTransport::VhostUser(_));
        if !hardware.shares.iter().any(is_shared) {
            return;
        }
        let backend = match hardware.host {
            HostSystem::Linux => "memory-backend-memfd",
            HostSystem::MacOs | HostSystem::Windows => "memory-backend-shm",
        };
        self.option("object", format!("{backend},id=memory,size={size},share=on"));
        self.option("numa", "node,memdev=memory");
    }

    fn boot(&mut self, hardware: &Hardware) {
        let console = match hardware.architecture {
            Architecture::X86_64 => "ttyS0",
            Architecture::Aarch64 => "ttyAMA0",
        };
        self.option("kernel", &hardware.kernel);
        self.option("initrd", &hardware.initramfs);
        self.option("append", format!("console={console} quiet panic=-1"));
        let settings = match &hardware.settings {
            FileSource::Descriptor(number) => format!("/dev/fd/{number}").into(),
            FileSource::Path(path) => escaped(path),
        };
        self.option("fw_cfg", joined(format!("name={SETTINGS_NAME},file="), settings));
    }

    fn channels(&mut self, hardware: &Hardware) {
        self.character_device("console", &hardware.console);
        self.option("serial", "chardev:console");
        self.character_device("qmp", &hardware.qmp);
        self.option("mon", "chardev=qmp,mode=control");
        // Whoever writes to a port hands it over himself: to have another thread of QEMU do it takes
        // longer. And with a port more than there are, the guest looks through the queues of no others
        // at each interrupt; the first one is not for us.
        let is_port = |share: &&ShareDevice| matches!(share.transport, ShareTransport::Port(_));
        let ports = 2 + hardware.shares.iter().filter(is_port).count();
        self.option(
            "device",
            format!("virtio-serial-pci,id={PORTS},ioeventfd=off,max_ports={ports}"),
        );
        self.port("control", CONTROL_PORT, &hardware.control);
    }

    fn port(&mut self, id: &str, name: &str, endpoint: &Endpoint) {
        self.character_device(id, endpoint);
        self.option("device", format!("virtserialport,bus={PORTS}.0,chardev={id},name={name}"));
    }

    fn character_device(&mut self, id: &str, endpoint: &Endpoint) {
        self.option("chardev", joined(format!("socket,id={id},"), source(endpoint)));
    }

    fn root_disk(&mut self, file: &FileSource) {
        let name = match file {
            FileSource::Descriptor(number) => {
                self.option("add-fd", format!("fd={number},set={ROOT_SET}"));
                format!("/dev/fdset/{ROOT_SET}").into()
            }
            FileSource::Path(path) => escaped(path),
        };
        // What the guest gives up takes no room on the host any more.
        let node = format!(
            "driver=qcow2,node-name={ROOT_NODE},discard=unmap,file.driver=file,file.discard=unmap,file.filename="
        );
        self.option("blockdev", joined(node, name));
        // A full disk of the host is an error for whoever writes in the guest. As it comes, QEMU would
        // stop the machine, which nobody lets go on.
        let errors = "werror=report,rerror=report";
        self.option("device", format!("virtio-blk-pci,drive={ROOT_NODE},{errors}"));
    }

    /// The device announces no tag of its own: versions 7.1 to 8.0 of QEMU die of one.
    fn share(&mut self, number: usize, share: &ShareDevice) {
        let id = format!("share{number}");
        match &share.transport {
            ShareTransport::VhostUser(endpoint) => {
                self.character_device(&id, endpoint);
                let tag = &share.tag;
                let device =
                    format!("vhost-user-fs-pci,chardev={id},tag={tag},queue-size={SHARE_QUEUE}");
                self.option("device", device);
            }
            ShareTransport::Port(endpoint) => {
                self.port(&id, &share_port(&share.tag), endpoint);
            }
            ShareTransport::Console { slot, endpoint } => {
                self.character_device(&id, endpoint);
                // The first port would be a console, where QEMU drops what nobody takes at once. With
                // four interrupts, each queue that there is something to say about has its own.
                let device = format!("virtio-serial-pci,id={id}-bus,addr={slot:#x},max_ports=2");
                self.option("device", format!("{device},vectors=4,ioeventfd=off"));
                self.option("device", format!("virtserialport,nr=1,chardev={id},bus={id}-bus.0"));
            }
        }
    }

    fn network(&mut self, network: &NetworkDevice) {
        let backend: OsString = match network {
            NetworkDevice::Absent => {
                // Without a word about it, some versions bring a card of their own.
                return self.option("nic", "none");
            }
            // It leads to the host's loopback, too, at 10.0.2.2. All that QEMU could do about that is
            // `restrict`, which closes everything; who wants it closed has a filtered network.
            NetworkDevice::User => "user,id=network,ipv6=off".into(),
            NetworkDevice::Stream(Endpoint::Descriptor(number)) => {
                format!("stream,id=network,server=off,addr.type=fd,addr.str={number}").into()
            }
            NetworkDevice::Stream(Endpoint::Socket(path)) => joined(
                "stream,id=network,server=off,addr.type=unix,addr.path=".to_owned(),
                escaped(path),
            ),
        };
        self.option("netdev", backend);
        // No boot code for a card that nobody boots from.
        self.option("device", "virtio-net-pci,netdev=network,romfile=");
    }
}

fn source(endpoint: &Endpoint) -> OsString {
    match endpoint {
        Endpoint::Descriptor(number) => format!("fd={number}").into(),
        Endpoint::Socket(path) => joined("path=".to_owned(), escaped(path)),
    }
}

fn joined(start: String, end: OsString) -> OsString {
    let mut text = OsString::from(start);
    text.push(end);
    text
}

/// A comma within a value is written twice.
fn escaped(path: &Path) -> OsString {
    let text = path.as_os_str();
    if !text.as_encoded_bytes().contains(&b',') {
        return text.to_owned();
    }
    let mut parts = text.to_string_lossy().into_owned();
    parts = parts.replace(',', ",,");
    parts.into()
}
