use proptest::prelude::*;

use super::*;

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().collect()
}

fn data(tag: u32, body: &[u8]) -> Vec<u8> {
    let mut data = tag.to_le_bytes().to_vec();
    data.extend((body.len() as u16).to_le_bytes());
    data.extend([0, 0]);
    data.extend(body);
    data
}

/// A mount point or junction, as the system writes it.
fn junction(target: &str) -> Vec<u8> {
    let name: Vec<u8> = wide(target).iter().flat_map(|unit| unit.to_le_bytes()).collect();
    let length = name.len() as u16;
    let mut body = Vec::new();
    for field in [0, length, length + 2, 0] {
        body.extend(field.to_le_bytes());
    }
    body.extend(name);
    body.extend([0; 4]);
    data(TAG_MOUNT_POINT, &body)
}

fn absolute_symlink(target: &str) -> Vec<u8> {
    let mut data = symlink_data(&wide(target)).unwrap();
    data[HEADER + 8] = 0;
    data
}

/// What a guest reads of a link in `\src\lib` of `C:\work`.
fn told(data: &[u8]) -> String {
    let Reparse::Link(target) = Reparse::parse(data) else { panic!("no link") };
    String::from_utf8(target.for_guest(&wide(r"\\?\C:\work"), &wide(r"src\lib"))).unwrap()
}

/// WN-06, WN-07, SC-06
#[test]
fn every_tag_has_a_look_and_none_is_followed() {
    let table = [
        (TAG_AF_UNIX, Reparse::Socket),
        (TAG_LX_FIFO, Reparse::Fifo),
        (TAG_CLOUD, Reparse::Placeholder),
        (0x9000_101a, Reparse::Placeholder), // a later version of the cloud's
        (0x9000_f01a, Reparse::Placeholder),
        (0x8000_0021, Reparse::Placeholder), // OneDrive
        (0x8000_0013, Reparse::Placeholder), // deduplicated
        (0x8000_0017, Reparse::Placeholder), // compressed
        (TAG_APPEXECLINK, Reparse::Opaque),
        (0x8000_0025, Reparse::Opaque), // a character device of WSL
        (0x8000_0026, Reparse::Opaque), // a block device of WSL
        (0xa000_0010, Reparse::Opaque), // a link of containers
        (0xa000_0027, Reparse::Opaque), // a link of projected file systems
        (0x1234_5678, Reparse::Opaque), // nobody knows
        (TAG_SYMLINK, Reparse::Opaque), // without data
        (TAG_MOUNT_POINT, Reparse::Opaque),
        (TAG_LX_SYMLINK, Reparse::Opaque),
    ];
    for (tag, look) in table {
        assert_eq!(Reparse::parse(&data(tag, &[])), look, "{tag:#x}");
    }
    assert_eq!(Reparse::parse(&[]), Reparse::Opaque);
}

#[test]
fn relative_targets_have_other_separators() {
    for (windows, linux) in
        [("a", "a"), (r"a\b", "a/b"), (r"..\..\x", "../../x"), (r".\a\", "./a/"), ("ä€", "ä€")]
    {
        assert_eq!(told(&symlink_data(&wide(windows)).unwrap()), linux);
    }
    // From the root of a drive: no guest has that.
    assert_eq!(told(&symlink_data(&wide(r"\Windows")).unwrap()), r"\Windows");
}

/// WN-06, WN-07, SC-06
#[test]
fn absolute_targets_lead_into_the_folder_or_nowhere() {
    for (windows, linux) in [
        (r"\??\C:\work\src\lib\a", "a"),
        (r"\??\C:\work\src\b", "../b"),
        (r"\??\C:\work\docs", "../../docs"),
        (r"\??\C:\work\docs\", "../../docs"),
        (r"\??\c:\WORK\docs", "../../docs"),
        (r"\??\C:\work", "../.."),
        (r"\??\C:\work\src\lib", "."),
        (r"\??\C:\Windows\System32", r"C:\Windows\System32"),
        (r"\??\C:\workshop", r"C:\workshop"),
        (r"\??\C:\work\..\secret", r"C:\work\..\secret"),
        (r"\??\Volume{0af1}\", r"Volume{0af1}\"),
        (r"\??\UNC\server\share", r"UNC\server\share"),
        (r"\Device\HarddiskVolume1", r"\Device\HarddiskVolume1"),
    ] {
        assert_eq!(told(&junction(windows)), linux, "{windows}");
        assert_eq!(told(&absolute_symlink(windows)), linux, "{windows}");
    }
}

#[test]
fn links_of_wsl_are_told_as_they_were_written() {
    let mut body = 2_u32.to_le_bytes().to_vec();
    body.extend(b"/usr/bin/env");
    assert_eq!(told(&data(TAG_LX_SYMLINK, &body)), "/usr/bin/env");
    body[0] = 3;
    assert_eq!(Reparse::parse(&data(TAG_LX_SYMLINK, &body)), Reparse::Opaque);
}

#[test]
fn links_of_a_guest_are_native_where_windows_can_have_them() {
    let table = [
        ("a", Some((r"a", false))),
        ("a/b", Some((r"a\b", false))),
        ("../a", Some((r"..\a", false))),
        ("a/", Some((r"a\", true))),
        (".", Some((".", true))),
        ("../..", Some((r"..\..", true))),
        ("a//b", Some((r"a\\b", false))),
        ("", None),
        ("/usr/bin", None),
        (r"a\b", None),
        ("C:", None),
        ("a:b", None),
        ("con", None),
        ("a.", None),
        ("a?", None),
    ];
    for (target, native) in table {
        let wanted = native.map(|(target, surely_directory)| NativeLink {
            target: wide(target),
            surely_directory,
        });
        assert_eq!(native_link(target.as_bytes()), wanted, "{target}");
    }
    assert_eq!(native_link(b"\xff"), None);
}

proptest! {
    #[test]
    fn a_native_link_is_read_as_it_was_made(target in "[a-z./ä]{1,20}") {
        if let Some(native) = native_link(target.as_bytes()) {
            let data = symlink_data(&native.target).unwrap();
            prop_assert_eq!(told(&data), target);
        }
    }

    #[test]
    fn whatever_the_data_is_it_is_something(
        tag in prop_oneof![
            Just(TAG_SYMLINK), Just(TAG_MOUNT_POINT), Just(TAG_LX_SYMLINK), any::<u32>()],
        body in prop::collection::vec(any::<u8>(), 0..64),
        cut in 0_usize..80)
    {
        let mut bytes = data(tag, &body);
        bytes.truncate(cut);
        if let Reparse::Link(target) = Reparse::parse(&bytes) {
            let _ = target.for_guest(&wide(r"\\?\C:\work"), &[]);
        }
    }
}
