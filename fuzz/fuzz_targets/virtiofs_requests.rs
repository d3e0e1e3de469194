//! A guest that lies, about its requests and about where they are: whatever it asks for, nothing
//! outside the folder changes, nobody panics or hangs, and what happened inside is undone exactly.
#![no_main]

#[path = "../../crates/virtiofs/tests/forge/mod.rs"]
mod forge;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forge::round(bytes));
