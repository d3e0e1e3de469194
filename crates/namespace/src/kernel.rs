//! What is to be known of a kernel by its release.

/// The first two numbers of a release.
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Whether `pid_max` is a number of each namespace of processes. Before Linux 6.14 it is one of the
/// whole machine, and root changes that of the host, from wherever he writes to it.
pub(crate) fn counts_by_namespace(release: &str) -> bool {
    version(release).is_some_and(|version| version >= (6, 14))
}

/// The same, of this kernel.
pub(crate) fn this_one_counts_by_namespace() -> bool {
    rustix::system::uname().release().to_str().is_ok_and(counts_by_namespace)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn releases_of_all_kinds_are_read() {
        for (release, expected) in [
            ("6.14.0-27-generic", Some((6, 14))),
            ("5.15.167.4-microsoft-standard-WSL2", Some((5, 15))),
            ("7.0-rc1", Some((7, 0))),
            ("6.1", Some((6, 1))),
            ("6", None),
            ("", None),
            ("linux-6.14", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }

    #[test]
    fn only_kernels_with_a_number_for_each_namespace_have_it_changed() {
        for newer in ["6.14.0-rc1", "6.14.0-27-generic", "6.18.44", "7.0.0", "10.0.1"] {
            assert!(counts_by_namespace(newer), "{newer}");
        }
        for older in ["6.13.12", "6.8.0-90-generic", "5.15.0", "6.2", "4.18.0-553.el8", "", "6"] {
            assert!(!counts_by_namespace(older), "{older}");
        }
    }
}
