//! Host names, in the one form in which they are compared.

use std::fmt;

/// Of all of DNS.
const MAX_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// A host name: lower case, no dot at the end, nothing but letters, digits, `-` and `_`. So it can
/// be printed anywhere, whoever sent it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

impl HostName {
    /// `None` if it is none; an IPv4 address is none either, in whatever notation.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() || text.len() > MAX_BYTES {
            return None;
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_label = |label: &str| {
            (1..=MAX_LABEL_BYTES).contains(&label.len())
                && label.bytes().all(plain)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // What resolvers take for a number is an address: 127.1, 0x7f000001, 2130706433.
        let last = text.rsplit('.').next()?;
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
            || last.get(..2).is_some_and(|prefix| prefix.eq_ignore_ascii_case("0x"));
        let is_name = !is_number && text.split('.').all(is_label);
        is_name.then(|| Self(text.to_ascii_lowercase()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it lies below another, at any depth.
    pub(crate) fn is_below(&self, domain: &Self) -> bool {
        self.0.strip_suffix(&domain.0).is_some_and(|rest| rest.ends_with('.'))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form_and_numbers_are_none() {
        for (text, name) in [
            ("example.org", Some("example.org")),
            ("EXAMPLE.Org.", Some("example.org")),
            ("localhost", Some("localhost")),
            ("_dmarc.a-b.example", Some("_dmarc.a-b.example")),
            ("xn--bcher-kva.example", Some("xn--bcher-kva.example")),
            ("1.example", Some("1.example")),
            ("", None),
            (".", None),
            ("a..b", None),
            (".a", None),
            ("-a.org", None),
            ("a-.org", None),
            ("a b.org", None),
            ("a\nb.org", None),
            ("bücher.example", None),
            ("*.example.org", None),
            ("127.0.0.1", None),
            ("127.1", None),
            ("2130706433", None),
            ("0x7f000001", None),
            ("0X7F.1", None),
            ("example.0x1", None),
            ("[::1]", None),
            ("user@example.org", None),
        ] {
            assert_eq!(HostName::parse(text).as_ref().map(HostName::as_str), name, "{text:?}");
        }
        assert_eq!(HostName::parse(&format!("{}.org", "a".repeat(64))), None);
        assert_eq!(HostName::parse(&"a.".repeat(128)), None);
    }

    #[test]
    fn only_whole_labels_count() {
        let name = |text| HostName::parse(text).unwrap();
        assert!(name("a.example.org").is_below(&name("example.org")));
        assert!(name("a.b.example.org").is_below(&name("example.org")));
        assert!(!name("example.org").is_below(&name("example.org")));
        assert!(!name("badexample.org").is_below(&name("example.org")));
        assert!(!name("example.org.evil.net").is_below(&name("example.org")));
    }
}
