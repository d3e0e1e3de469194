//! Tests that have to run as somebody whom permissions bind.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::filesystems;

const NOBODY: u32 = 65534;

/// Runs `body` as an ordinary user. Where the tests run as root, that takes another process: the
/// test named `test` (its whole path in this binary) is run there again.
///
/// # Panics
/// When the test fails there.
pub fn as_ordinary_user(test: &str, body: impl FnOnce()) {
    if !rustix::process::geteuid().is_root() {
        return body();
    }
    let binary = std::env::current_exe().expect("the path of this binary");
    let mut command = Command::new(binary);
    command.args(["--exact", test, "--nocapture"]).uid(NOBODY).gid(NOBODY);
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return filesystems::skip(test, "an ordinary user cannot reach the test binary");
        }
        output => output.expect("run the test again"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "as an ordinary user:\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
}
