//! On Windows, lets the binary start without WinFsp: its library lies outside the usual places, and
//! is loaded by hand when it is first needed.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let wanted = env::var_os("CARGO_FEATURE_WINFSP").is_some();
    if !wanted || !is("CARGO_CFG_TARGET_OS", "windows") || !is("CARGO_CFG_TARGET_ENV", "msvc") {
        return;
    }
    let library = if is("CARGO_CFG_TARGET_ARCH", "aarch64") { "winfsp-a64" } else { "winfsp-x64" };
    println!("cargo::rustc-link-lib=dylib=delayimp");
    println!("cargo::rustc-link-arg-bins=/DELAYLOAD:{library}.dll");
}
