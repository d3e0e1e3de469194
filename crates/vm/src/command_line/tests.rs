//! Command lines as data: what each host would run.

use super::*;

fn hardware(host: HostSystem, architecture: Architecture, accelerator: Accelerator) -> Hardware {
    Hardware {
        host,
        architecture,
        accelerator,
        kernel: "/image/kernel".into(),
        initramfs: "/image/initramfs".into(),
        memory_mib: 1024,
        cpus: 2,
        control: Endpoint::Descriptor(10),
        qmp: Endpoint::Descriptor(11),
        console: Endpoint::Descriptor(12),
        settings: FileSource::Descriptor(13),
        root_disk: None,
        shares: Vec::new(),
        network: NetworkDevice::Absent,
    }
}

fn share(tag: &str, transport: ShareTransport) -> ShareDevice {
    ShareDevice { tag: tag.to_owned(), transport }
}

/// One option a line, with what belongs to it.
fn text(hardware: &Hardware) -> String {
    let words: Vec<_> =
        arguments(hardware).iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ").replace(" -", "\n-")
}

#[test]
fn the_smallest_machine_on_linux() {
    let hardware = hardware(HostSystem::Linux, Architecture::X86_64, Accelerator::Kvm);
    insta::assert_snapshot!(text(&hardware));
}

#[test]
fn a_machine_with_everything_on_linux() {
    let mut hardware = hardware(HostSystem::Linux, Architecture::X86_64, Accelerator::Tcg);
    hardware.root_disk = Some(FileSource::Descriptor(14));
    hardware.shares = vec![
        share("folder0", ShareTransport::VhostUser(Endpoint::Descriptor(15))),
        share("folder1", ShareTransport::VhostUser(Endpoint::Descriptor(16))),
    ];
    hardware.network = NetworkDevice::Stream(Endpoint::Descriptor(17));
    insta::assert_snapshot!(text(&hardware));
}

#[test]
fn a_machine_on_a_mac() {
    let mut hardware = hardware(HostSystem::MacOs, Architecture::Aarch64, Accelerator::Hvf);
    hardware.root_disk = Some(FileSource::Path("/state/disk.qcow2".into()));
    hardware.shares = vec![share("folder0", ShareTransport::VhostUser(Endpoint::Descriptor(15)))];
    hardware.network = NetworkDevice::User;
    insta::assert_snapshot!(text(&hardware));
}

#[test]
fn a_machine_on_windows() {
    let socket = |name: &str| Endpoint::Socket(format!(r"C:\run\{name}").into());
    let mut hardware = hardware(HostSystem::Windows, Architecture::X86_64, Accelerator::Whpx);
    hardware.control = socket("control");
    hardware.qmp = socket("qmp");
    hardware.console = socket("console");
    hardware.settings = FileSource::Path(r"C:\run\settings.json".into());
    hardware.root_disk = Some(FileSource::Path(r"C:\state\disk.qcow2".into()));
    hardware.shares = vec![share("folder0", ShareTransport::Port(socket("folder0")))];
    hardware.network = NetworkDevice::Stream(socket("network"));
    insta::assert_snapshot!(text(&hardware));
}

#[test]
fn a_machine_whose_guest_has_our_module_for_9p() {
    let mut hardware = hardware(HostSystem::Linux, Architecture::X86_64, Accelerator::Kvm);
    let console =
        |slot, number| ShareTransport::Console { slot, endpoint: Endpoint::Descriptor(number) };
    hardware.shares = vec![
        share("folder0", console(0x10, 15)),
        share("folder1", console(0x11, 16)),
        share("folder2", ShareTransport::Port(Endpoint::Descriptor(17))),
    ];
    insta::assert_snapshot!(text(&hardware));
}

#[test]
fn a_comma_in_a_path_does_not_end_it() {
    let mut hardware = hardware(HostSystem::Linux, Architecture::X86_64, Accelerator::Tcg);
    hardware.qmp = Endpoint::Socket("/run/a,b/qmp,server=on".into());
    let text = text(&hardware);
    assert!(text.contains("path=/run/a,,b/qmp,,server=on"), "{text}");
}

#[test]
fn without_a_network_there_is_no_card() {
    let hardware = hardware(HostSystem::Linux, Architecture::X86_64, Accelerator::Tcg);
    let text = text(&hardware);
    assert!(text.contains("-nic none") && !text.contains("virtio-net"), "{text}");
}
