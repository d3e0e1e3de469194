//! Which names may reach a folder of Windows, and what a Linux guest calls those that are there.
//!
//! Plain functions, so that they can be tested anywhere. The host is asked by handle and by NT
//! path, where Windows itself checks little: `CON` or `a.` would become files that no ordinary
//! program can open or remove, and `a:b` a stream that nobody recorded.
//!
//! A name of Windows is any sequence of 16-bit units, a name of Linux any sequence of bytes. Names
//! that are text are the same text on both sides. Halves of characters, which Windows does not
//! mind, are encoded as if they were characters of their own (WTF-8): a guest sees bytes that are
//! not UTF-8, and can read, rename and remove what has such a name; new ones are refused.

/// As long as a name can be on every file system of Windows.
pub const MAX_NAME_UNITS: usize = 255;

/// Why no file can be made with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("the name is empty, \".\" or \"..\"")]
    NoName,
    #[error("the name is longer than {MAX_NAME_UNITS} units of UTF-16")]
    TooLong,
    #[error("the name has a character that Windows does not allow in names")]
    Character,
    #[error("the name ends with a dot or a space, which programs of Windows would leave out")]
    Ending,
    #[error("the name means a device to Windows")]
    Device,
    #[error("the name is not UTF-8")]
    NotText,
}

/// The name as Windows has it, if an ordinary program could make and use a file of that name.
pub fn new_name(name: &[u8]) -> Result<Vec<u16>, BadName> {
    let text = std::str::from_utf8(name).map_err(|_| BadName::NotText)?;
    check_new(text)?;
    Ok(text.encode_utf16().collect())
}

/// The name as Windows has it, for looking whether it is there. Whatever somebody managed to make
/// is found, also `nul.txt` or halves of characters; what can be no name at all is not asked for:
/// Windows would take `a:b` for a stream of `a`.
pub fn existing_name(name: &[u8]) -> Result<Vec<u16>, BadName> {
    let units = wtf8_to_units(name).ok_or(BadName::NotText)?;
    if matches!(name, b"" | b"." | b"..") {
        return Err(BadName::NoName);
    }
    if units.len() > MAX_NAME_UNITS {
        return Err(BadName::TooLong);
    }
    let forbidden = |unit: &u16| char::from_u32((*unit).into()).is_some_and(is_forbidden);
    if units.iter().any(forbidden) {
        return Err(BadName::Character);
    }
    Ok(units)
}

/// What a guest calls a name that Windows has.
pub fn guest_name(units: &[u16]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(units.len());
    for decoded in char::decode_utf16(units.iter().copied()) {
        match decoded {
            Ok(character) => {
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            Err(half) => {
                let unit = half.unpaired_surrogate();
                bytes.extend([
                    0xe0 | (unit >> 12) as u8,
                    0x80 | (unit >> 6 & 0x3f) as u8,
                    0x80 | (unit & 0x3f) as u8,
                ]);
            }
        }
    }
    bytes
}

/// The name as text, if an ordinary program could use it as well.
pub fn checked_units(units: &[u16]) -> Option<String> {
    let name = String::from_utf16(units).ok()?;
    check_new(&name).ok()?;
    Some(name)
}

fn check_new(name: &str) -> Result<(), BadName> {
    if matches!(name, "" | "." | "..") {
        return Err(BadName::NoName);
    }
    if name.encode_utf16().count() > MAX_NAME_UNITS {
        return Err(BadName::TooLong);
    }
    if name.contains(is_forbidden) {
        return Err(BadName::Character);
    }
    // First: `aux .` is a device as well, and that says more.
    if is_device(name) {
        return Err(BadName::Device);
    }
    if name.ends_with(['.', ' ']) {
        return Err(BadName::Ending);
    }
    Ok(())
}

fn is_forbidden(c: char) -> bool {
    c < ' ' || r#"<>:"/\|?*"#.contains(c)
}

/// Names that mean a device in every directory, with any extension.
pub fn is_device(name: &str) -> bool {
    let stem = name.split(['.', ':']).next().unwrap_or(name).trim_end_matches(' ');
    let stem = stem.to_ascii_uppercase();
    if ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"].contains(&stem.as_str()) {
        return true;
    }
    let port = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
    let mut digits = port.unwrap_or_default().chars();
    matches!((digits.next(), digits.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
}

/// `None` if the bytes are not what [`guest_name`] would write: each name has one form.
fn wtf8_to_units(bytes: &[u8]) -> Option<Vec<u16>> {
    let mut units = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while !rest.is_empty() {
        if let [0xed, second @ 0xa0..=0xbf, third @ 0x80..=0xbf, behind @ ..] = rest {
            units.push(0xd000 | u16::from(second & 0x3f) << 6 | u16::from(third & 0x3f));
            rest = behind;
            continue;
        }
        let text = rest.utf8_chunks().next()?.valid();
        if text.is_empty() {
            return None;
        }
        units.extend(text.encode_utf16());
        rest = &rest[text.len()..];
    }
    // Two halves that make a character are that character, which is written otherwise.
    (guest_name(&units) == bytes).then_some(units)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wide(text: &str) -> Vec<u16> {
        text.encode_utf16().collect()
    }

    #[test]
    fn ordinary_names_pass_as_they_are() {
        for name in [
            "a",
            ".git",
            "a b",
            " a",
            "CONSOLE",
            "COM",
            "COM10",
            "lpt",
            "nul_",
            "ä€😀",
            "...a",
            "con-1",
            "xCON",
            "a.con",
            "COM⁴",
            "$CONIN",
            "CONIN",
            "a'b",
            "a;b",
            "[a]",
            "a\u{7f}",
        ] {
            assert_eq!(new_name(name.as_bytes()), Ok(wide(name)), "{name:?}");
            assert_eq!(existing_name(name.as_bytes()), Ok(wide(name)), "{name:?}");
            assert_eq!(checked_units(&wide(name)).as_deref(), Some(name));
            assert_eq!(guest_name(&wide(name)), name.as_bytes());
        }
    }

    /// WN-02
    #[test]
    fn names_of_devices_are_refused_with_any_extension_in_any_case() {
        let stems = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"].map(str::to_owned);
        let ports = ["COM", "LPT"]
            .into_iter()
            .flat_map(|port| "0123456789¹²³".chars().map(move |digit| format!("{port}{digit}")));
        for stem in stems.into_iter().chain(ports) {
            for name in [
                stem.clone(),
                stem.to_lowercase(),
                format!("{stem}.txt"),
                format!("{stem}.tar.gz"),
                format!("{stem} .c"),
                format!("{stem}."),
                format!("{stem}  "),
            ] {
                assert_eq!(new_name(name.as_bytes()), Err(BadName::Device), "{name:?}");
                assert_eq!(checked_units(&wide(&name)), None, "{name:?}");
            }
        }
    }

    #[test]
    fn names_that_mean_something_else_are_refused() {
        let table: &[(&[u8], BadName)] = &[
            (b"", BadName::NoName),
            (b".", BadName::NoName),
            (b"..", BadName::NoName),
            (b"a.", BadName::Ending),
            (b"a ", BadName::Ending),
            (b"...", BadName::Ending),
            (b"a. .", BadName::Ending),
            (b"a/b", BadName::Character),
            (b"a\\b", BadName::Character),
            (b"a:b", BadName::Character),
            (b"a::$DATA", BadName::Character),
            (b"a*", BadName::Character),
            (b"a?", BadName::Character),
            (b"a|b", BadName::Character),
            (b"<a", BadName::Character),
            (b"a>", BadName::Character),
            (b"\"a", BadName::Character),
            (b"a\n", BadName::Character),
            (b"a\0", BadName::Character),
            (b"\xff", BadName::NotText),
            (b"\xed\xa0\x80", BadName::NotText), // half of a character
        ];
        for (name, why) in table {
            assert_eq!(new_name(name), Err(*why), "{name:?}");
        }
        assert_eq!(new_name("ä".repeat(255).as_bytes()).map(|units| units.len()), Ok(255));
        assert_eq!(new_name("ä".repeat(256).as_bytes()), Err(BadName::TooLong));
        assert_eq!(new_name("😀".repeat(128).as_bytes()), Err(BadName::TooLong));
    }

    #[test]
    fn what_somebody_managed_to_make_is_found_and_streams_are_not() {
        for name in ["nul.txt", "CON", "a.", "a ", "..."] {
            assert_eq!(existing_name(name.as_bytes()), Ok(wide(name)));
        }
        for name in ["a:b", ":a", "a\\b", "a/b", "a*", "a?", "<", "a\0"] {
            assert_eq!(existing_name(name.as_bytes()), Err(BadName::Character), "{name}");
        }
        for name in ["", ".", ".."] {
            assert_eq!(existing_name(name.as_bytes()), Err(BadName::NoName));
        }
        assert_eq!(existing_name(&[b'a'; 256]), Err(BadName::TooLong));
    }

    #[test]
    fn halves_of_characters_are_told_and_found_and_never_made() {
        let units = [b'a'.into(), 0xd83d, b'b'.into(), 0xde00];
        let told = guest_name(&units);
        assert_eq!(told, b"a\xed\xa0\xbdb\xed\xb8\x80");
        assert_eq!(existing_name(&told), Ok(units.to_vec()));
        assert_eq!(new_name(&told), Err(BadName::NotText));
        assert_eq!(checked_units(&units), None);
    }

    #[test]
    fn each_name_has_one_form() {
        // Two halves, one by one: together they are a character, which has a form of its own.
        assert_eq!(existing_name(b"\xed\xa0\xbd\xed\xb8\x80"), Err(BadName::NotText));
        assert_eq!(existing_name("😀".as_bytes()), Ok(vec![0xd83d, 0xde00]));
        for broken in [&b"\x80"[..], b"\xc0\xaf", b"a\xff", b"\xed\xa0", b"\xf5\x80\x80\x80"] {
            assert_eq!(existing_name(broken), Err(BadName::NotText), "{broken:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_windows_has_comes_back_as_it_was(units in prop::collection::vec(
            prop_oneof![any::<u16>(), 0xd800_u16..0xe000, 0x20_u16..0x7f], 1..40))
        {
            prop_assert_eq!(wtf8_to_units(&guest_name(&units)), Some(units));
        }

        #[test]
        fn no_two_names_of_a_guest_are_one_file(
            name in prop::collection::vec(any::<u8>(), 0..12))
        {
            if let Ok(units) = existing_name(&name) {
                prop_assert_eq!(guest_name(&units), name);
            }
        }

        #[test]
        fn a_new_name_can_be_found_again(name in "[ -~äß€😀]{1,12}") {
            if let Ok(units) = new_name(name.as_bytes()) {
                prop_assert_eq!(existing_name(name.as_bytes()), Ok(units));
            }
        }
    }
}
