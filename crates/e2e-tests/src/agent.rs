//! The guard of a guest, and the program inside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = codeagent_vm::run_if_asked().or_else(codeagent_test_guest::run_inside) {
        return code;
    }
    ExitCode::FAILURE
}
