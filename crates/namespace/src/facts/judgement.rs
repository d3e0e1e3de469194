//! What readings mean.

use std::path::Path;

use super::readings::{Device, Readings, Settings};
use super::trials::{Landlock, Trial};
use super::{Fact, FactId, Presence};
use crate::cgroup::NoCgroup;
use crate::kernel;

/// From this version on, Landlock lets files be moved to other directories.
const LANDLOCK_MOVES: i32 = 2;
/// From this version on, Landlock keeps abstract sockets and signals in.
const LANDLOCK_SCOPES: i32 = 6;
/// From this one on, also what is done to devices.
const LANDLOCK_DEVICES: i32 = 5;
/// From this one on, `truncate`.
const LANDLOCK_TRUNCATE: i32 = 3;

pub(super) fn judge(readings: &Readings) -> Vec<Fact> {
    [
        user_namespaces,
        namespace_capabilities,
        mount_api,
        own_proc,
        overlay,
        fuse,
        fusermount,
        landlock,
        seccomp,
        cgroups,
        groups,
    ]
    .iter()
    .map(|judge| judge(readings))
    .collect()
}

fn user_namespaces(readings: &Readings) -> Fact {
    let Readings { settings, trials, .. } = readings;
    let fact = Fact {
        id: FactId::UserNamespaces,
        presence: presence(&trials.namespaces),
        seen: seen(&trials.namespaces, "they can be made"),
        lost: "Without user namespaces no command can be contained unless a VM runs it.".into(),
        fix: None,
    };
    if trials.namespaces.works() {
        return fact;
    }
    let switch = |name: &str, value: &str| Some(set_permanently(&format!("{name}={value}")));
    let (seen, fix) = if settings.max_user_namespaces == Some(0) {
        ("user.max_user_namespaces is 0".into(), switch("user.max_user_namespaces", "15000"))
    } else if settings.unprivileged_user_namespaces == Some(false) && !settings.is_root {
        let name = "kernel.unprivileged_userns_clone";
        (format!("{name} is 0"), switch(name, "1"))
    } else if let Some(container) = &settings.container {
        (format!("{}, in a container of {container}", fact.seen), Some(in_container("")))
    } else {
        (fact.seen, None)
    };
    Fact { seen, fix, ..fact }
}

fn namespace_capabilities(readings: &Readings) -> Fact {
    let Readings { settings, trials, request, .. } = readings;
    let restricted = settings.apparmor_restricts == Some(true) && !settings.is_root;
    let is_to_blame = restricted && matches!(trials.capabilities, Trial::Failed(_));
    let works =
        if restricted { "AppArmor lets this program have them" } else { "nothing restricts them" };
    let fix = match &trials.capabilities {
        Trial::Failed(_) if is_to_blame => Some(allow_in_apparmor(&request.program)),
        Trial::Failed(_) if settings.container.is_some() => Some(in_container("")),
        _ => None,
    };
    let seen = seen(&trials.capabilities, works);
    Fact {
        id: FactId::NamespaceCapabilities,
        presence: presence(&trials.capabilities),
        seen: if is_to_blame {
            format!("AppArmor allows user namespaces without capabilities only ({seen})")
        } else {
            seen
        },
        lost: "Without capabilities in its namespace a sandbox can mount nothing, and so no command can be contained.".into(),
        fix,
    }
}

fn mount_api(readings: &Readings) -> Fact {
    let Readings { settings, trials, .. } = readings;
    let is_old = kernel::version(&settings.kernel).is_some_and(|version| version < (5, 12));
    let fix = match &trials.mount_api {
        Trial::Failed(_) if is_old => newer_kernel(settings),
        Trial::Failed(_) if settings.container.is_some() => Some(in_container("")),
        _ => None,
    };
    let mut seen = seen(&trials.mount_api, "mounts can be made and changed by descriptor");
    if is_old {
        seen = format!("Linux {}, which is older than 5.12 ({seen})", settings.kernel);
    }
    Fact {
        id: FactId::MountApi,
        presence: presence(&trials.mount_api),
        seen,
        lost: "Without the mount calls of Linux 5.12 the system cannot be made read-only for commands, and none can be contained.".into(),
        fix,
    }
}

fn own_proc(readings: &Readings) -> Fact {
    let Readings { settings, trials, .. } = readings;
    let is_masked = matches!(trials.proc, Trial::Failed(_)) && settings.container.is_some();
    Fact {
        id: FactId::OwnProc,
        presence: presence(&trials.proc),
        seen: seen(&trials.proc, "it can be mounted"),
        lost: "Without a /proc of their own commands would see the processes of the host, so none is run.".into(),
        fix: is_masked.then(|| in_container(" --security-opt systempaths=unconfined")),
    }
}

fn overlay(readings: &Readings) -> Fact {
    let Readings { trials, request, undo_is_in_overlay, .. } = readings;
    let folder = request.folder.display();
    let mut seen = seen(&trials.overlay, &format!("it can be mounted over {folder}"));
    let mut fix = None;
    if let Trial::Failed(failed) = &trials.overlay {
        if *undo_is_in_overlay {
            seen = format!("the undo directory lies in an overlay itself ({seen})");
            fix = readings.settings.container.as_ref().map(|_| {
                format!("docker run --volume {0}:{0} …", parent(&request.folder).display())
            });
        } else {
            match failed.errno {
                libc::ENODEV => fix = Some("sudo modprobe overlay".into()),
                libc::EOPNOTSUPP | libc::EIO => {
                    seen = format!("the filesystem has no extended attributes ({seen})");
                }
                _ => {}
            }
        }
    }
    Fact {
        id: FactId::Overlay,
        presence: presence(&trials.overlay),
        seen,
        lost: "Without overlays commands get the live view, in which they are slower and their changes are seen before they end.".into(),
        fix,
    }
}

fn fuse(readings: &Readings) -> Fact {
    let Readings { settings, trials, .. } = readings;
    let in_a_container = settings.container.is_some();
    let (seen, fix) = match &settings.fuse_device {
        Device::Missing if in_a_container => (
            "/dev/fuse is not in this container".into(),
            Some("docker run --device /dev/fuse …".into()),
        ),
        Device::Missing => ("there is no /dev/fuse".into(), Some("sudo modprobe fuse".into())),
        Device::Unusable(reason) => (
            format!("/dev/fuse cannot be opened ({reason})"),
            // As udev has it on every desktop; it gives nobody anything but his own mounts.
            Some("sudo chmod 666 /dev/fuse".into()),
        ),
        Device::Usable => (seen(&trials.fuse, "it can be mounted in a namespace"), None),
    };
    let presence = match settings.fuse_device {
        Device::Usable => presence(&trials.fuse),
        Device::Missing | Device::Unusable(_) => Presence::Missing,
    };
    Fact {
        id: FactId::Fuse,
        presence,
        seen,
        lost: "Without FUSE there is no live view and no mount, and background commands cannot be watched at work.".into(),
        fix,
    }
}

fn fusermount(readings: &Readings) -> Fact {
    let settings = &readings.settings;
    let (presence, seen) = match &settings.fusermount {
        Some(path) => (Presence::Present, path.display().to_string()),
        None if settings.is_root => {
            (Presence::Present, "not installed, and root needs none".into())
        }
        None => (Presence::Missing, "fusermount3 is not installed".into()),
    };
    Fact {
        id: FactId::Fusermount,
        presence,
        seen,
        lost: "Without fusermount3 an ordinary user cannot mount a folder outside a sandbox."
            .into(),
        fix: (presence == Presence::Missing).then(|| "sudo apt install fuse3".into()),
    }
}

fn landlock(readings: &Readings) -> Fact {
    let Readings { settings, trials, .. } = readings;
    let everything = "Without Landlock nothing stands behind the mounts: a mistake in them would let a command write elsewhere, and abstract sockets of the host can be reached when the network is open.";
    let (presence, seen, lost) = match trials.landlock {
        Landlock::NotBuilt => (Presence::Missing, "the kernel has none".into(), everything.into()),
        Landlock::NotEnabled => {
            (Presence::Missing, "the kernel has it, and does not use it".into(), everything.into())
        }
        Landlock::Version(version) if version < LANDLOCK_MOVES => {
            let seen = format!(
                "version {version} of its interface, which lets no file be moved to another \
                 directory, and so is not used"
            );
            (Presence::Missing, seen, everything.into())
        }
        Landlock::Version(version) => {
            let lacks = landlock_lacks(version);
            let seen = format!("version {version} of its interface");
            if lacks.is_empty() {
                (Presence::Present, seen, everything.into())
            } else {
                (
                    Presence::Partial,
                    seen,
                    format!("This version does not cover {}.", lacks.join(", nor ")),
                )
            }
        }
    };
    let fix = match trials.landlock {
        Landlock::Version(version) if version >= LANDLOCK_SCOPES => None,
        Landlock::NotEnabled => {
            Some(kernel_argument("lsm=landlock,lockdown,yama,integrity,apparmor,bpf"))
        }
        Landlock::Version(_) | Landlock::NotBuilt => newer_kernel(settings),
    };
    Fact { id: FactId::Landlock, presence, seen, lost, fix }
}

fn landlock_lacks(version: i32) -> Vec<&'static str> {
    let since = [
        (LANDLOCK_TRUNCATE, "truncating files"),
        (LANDLOCK_DEVICES, "commands to devices"),
        (LANDLOCK_SCOPES, "abstract sockets and signals of the host when the network is open"),
    ];
    since.iter().filter(|(since, _)| version < *since).map(|(_, what)| *what).collect()
}

fn seccomp(readings: &Readings) -> Fact {
    let works = readings.trials.seccomp;
    Fact {
        id: FactId::Seccomp,
        presence: if works { Presence::Present } else { Presence::Missing },
        seen: if works { "filters are enforced" } else { "the kernel takes no filter" }.into(),
        lost: "Without seccomp commands can use system calls that no development tool needs, and that have been ways out of sandboxes.".into(),
        fix: if works { None } else { newer_kernel(&readings.settings) },
    }
}

fn cgroups(readings: &Readings) -> Fact {
    let (presence, seen, fix) = match &readings.settings.cgroup {
        Some(Ok(group)) => {
            (Presence::Present, format!("groups can be made in {}", group.display()), None)
        }
        Some(Err(reason)) => {
            let fix = match reason {
                NoCgroup::NotMounted => kernel_argument("systemd.unified_cgroup_hierarchy=1"),
                NoCgroup::NotDelegated => {
                    "systemd-run --user --scope --property=Delegate=yes \"$SHELL\"".into()
                }
            };
            (Presence::Missing, reason.to_string(), Some(fix))
        }
        None => (Presence::Untried, "not looked at".into(), None),
    };
    Fact {
        id: FactId::Cgroups,
        presence,
        seen,
        lost: "Without a cgroup memory is limited for each process by itself, not for all processes of a command together; and before Linux 6.14 root may start any number of them.".into(),
        fix,
    }
}

/// The kernel lets an ordinary user take along his own group only.
fn groups(readings: &Readings) -> Fact {
    let Settings { is_root, other_groups, .. } = &readings.settings;
    let (presence, seen) = match other_groups.len() {
        _ if *is_root => (Presence::Present, "root needs none".into()),
        0 => (Presence::Present, "the user is in no other than his own".into()),
        count => {
            let names: Vec<String> = other_groups.iter().map(u32::to_string).collect();
            (
                Presence::Partial,
                format!("the user is in {count} beside his own: {}", names.join(", ")),
            )
        }
    };
    Fact {
        id: FactId::Groups,
        presence,
        seen,
        lost: "Without their groups, commands cannot change files that only these let the user change.".into(),
        fix: None,
    }
}

fn presence(trial: &Trial) -> Presence {
    match trial {
        Trial::Works => Presence::Present,
        Trial::Failed(_) => Presence::Missing,
        Trial::Untried => Presence::Untried,
    }
}

fn seen(trial: &Trial, works: &str) -> String {
    match trial {
        Trial::Works => works.into(),
        Trial::Failed(failed) => failed.to_string(),
        Trial::Untried => "not tried, because something before it failed".into(),
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

fn set_permanently(setting: &str) -> String {
    format!("echo {setting} | sudo tee /etc/sysctl.d/60-codeagent.conf && sudo sysctl --system")
}

fn in_container(further: &str) -> String {
    format!(
        "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined{further} …"
    )
}

/// For this program only: the restriction stays in force for all others.
fn allow_in_apparmor(program: &Path) -> String {
    format!(
        "echo 'abi <abi/4.0>, profile codeagent \"{}\" flags=(unconfined) {{ userns, }}' | sudo tee /etc/apparmor.d/codeagent && sudo apparmor_parser -r /etc/apparmor.d/codeagent",
        program.display()
    )
}

/// After the next start of the machine.
fn kernel_argument(argument: &str) -> String {
    format!(
        "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {argument}\"' | sudo tee /etc/default/grub.d/60-codeagent.cfg && sudo update-grub && sudo reboot"
    )
}

/// Nobody in a container can do that.
fn newer_kernel(settings: &Settings) -> Option<String> {
    let system = &settings.system;
    match system.id.as_str() {
        _ if settings.container.is_some() => None,
        "ubuntu" => Some(format!(
            "sudo apt install --install-recommends linux-generic-hwe-{} && sudo reboot",
            system.version
        )),
        "debian" => Some(format!(
            "sudo apt install --target-release {}-backports linux-image-amd64 && sudo reboot",
            system.codename
        )),
        _ => None,
    }
}
