//! Images are made of what their lock says, the same bytes each time.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::path::Path;

use codeagent_vm::image::{BuildRequest, Flavour, LockMode, build};
use codeagent_vm::{Architecture, GuestImage};
use common::image;

/// Packages come from the cache of the first build, so that nothing is fetched here.
fn request(test: &str, image: &GuestImage, images_dir: &Path) -> Option<BuildRequest> {
    let kept = image.dir().parent().unwrap();
    let target = kept.parent().unwrap();
    let init = target.join("x86_64-unknown-linux-gnu/guest/codeagent-guest");
    if !init.exists() || kept.join("minimal.lock").exists() {
        let why = "the image was not built from its lock, below `target`";
        codeagent_test_support::filesystems::skip(test, why);
        return None;
    }
    Some(BuildRequest {
        flavour: Flavour::Minimal,
        architecture: Architecture::current(),
        images_dir: images_dir.to_owned(),
        cache_dir: kept.join("packages"),
        sources: None,
        init,
        lock: LockMode::Exact,
        keep_root: false,
        cancel: Default::default(),
    })
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn two_builds_give_the_same_bytes() {
    let test = "two_builds_give_the_same_bytes";
    let Some(image) = image(test) else { return };
    let images_dir = tempfile::tempdir().unwrap();
    let Some(request) = request(test, &image, images_dir.path()) else { return };
    for _ in 0..2 {
        let again = build(&request, &mut |_| {}).unwrap();
        assert_eq!(again.manifest(), image.manifest());
        assert_eq!(entries(images_dir.path()), 1, "nothing but the image is left");
    }
}

#[test]
fn a_build_that_fails_leaves_the_image_that_is_there() {
    let test = "a_build_that_fails_leaves_the_image_that_is_there";
    let Some(image) = image(test) else { return };
    let images_dir = tempfile::tempdir().unwrap();
    let Some(request) = request(test, &image, images_dir.path()) else { return };
    let built = build(&request, &mut |_| {}).unwrap();
    std::fs::write(built.kernel(), "the one that is there").unwrap();
    // Found out when the kernel of the next one has been unpacked.
    let fails = BuildRequest { init: "/no/such/program".into(), ..request };
    build(&fails, &mut |_| {}).unwrap_err();
    assert_eq!(std::fs::read(built.kernel()).unwrap(), b"the one that is there");
    assert_eq!(GuestImage::open(built.dir()).unwrap(), built);
    assert_eq!(entries(images_dir.path()), 1, "nothing but the image is left");
}
