//! The program that the tests run again: as a guard, and as an owner that is killed.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    codeagent_vm::run_if_asked().unwrap_or_else(owner::own_until_killed)
}

/// `vm-probe IMAGE STATE QEMU`: starts a machine, says so, and waits.
#[cfg(target_os = "linux")]
#[expect(clippy::print_stdout, reason = "that is how the test learns of it")]
mod owner {
    use std::process::ExitCode;

    use codeagent_vm::{
        Accelerator, AcceleratorChoice, GuestImage, GuestUser, Machine, MachineConfig,
    };

    pub(crate) fn own_until_killed() -> ExitCode {
        match own() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("{error}");
                ExitCode::FAILURE
            }
        }
    }

    fn own() -> Result<(), Box<dyn std::error::Error>> {
        let mut arguments = std::env::args_os().skip(1);
        let (image, state_dir) = arguments.next().zip(arguments.next()).ok_or("two directories")?;
        let qemu = arguments.next().ok_or("no QEMU")?;
        let image = GuestImage::open(image)?;
        let user =
            GuestUser { name: "agent".into(), uid: 1000, gid: 1000, home: "/home/agent".into() };
        let program = std::env::current_exe()?;
        let mut config = MachineConfig::new(program, image, user, state_dir);
        config.qemu = Some(qemu.into());
        config.accelerator = AcceleratorChoice::Only(Accelerator::Tcg);
        let machine = Machine::start(config, &mut |_| {})?;
        println!("ready");
        machine.death().wait();
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
