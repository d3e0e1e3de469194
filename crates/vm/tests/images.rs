//! Images are made of what their lock says, the same bytes each time.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use codeagent_vm::Architecture;
use codeagent_vm::image::{BuildRequest, Flavour, LockMode, build};
use common::image;

/// Packages come from the cache of the first build, so that nothing is fetched here.
#[test]
fn two_builds_give_the_same_bytes() {
    let Some(image) = image("two_builds_give_the_same_bytes") else { return };
    let kept = image.dir().parent().unwrap();
    let target = kept.parent().unwrap();
    let init = target.join("x86_64-unknown-linux-gnu/guest/codeagent-guest");
    if !init.exists() || kept.join("minimal.lock").exists() {
        let why = "the image was not built from its lock, below `target`";
        return codeagent_test_support::filesystems::skip("two_builds_give_the_same_bytes", why);
    }
    let images_dir = tempfile::tempdir().unwrap();
    let request = BuildRequest {
        flavour: Flavour::Minimal,
        architecture: Architecture::current(),
        images_dir: images_dir.path().to_owned(),
        cache_dir: kept.join("packages"),
        sources: None,
        init,
        lock: LockMode::Exact,
        keep_root: false,
    };
    let again = build(&request, &mut |_| {}).unwrap();
    assert_eq!(again.manifest(), image.manifest());
    let left = std::fs::read_dir(images_dir.path()).unwrap().count();
    assert_eq!(left, 1, "nothing but the image is left");
}
