//! How many tests ran and how they ended, read from the reports of nextest and of `cargo test`.

use std::ops::AddAssign;

/// The outcome of some tests.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    /// Reads the totals of a JUnit report: the attributes of its outermost element.
    pub(crate) fn from_junit(report: &str) -> Option<Self> {
        let (_, rest) = report.split_once("<testsuites ")?;
        let (attributes, _) = rest.split_once('>')?;
        let number = |name: &str| -> Option<u64> {
            let (_, value) = attributes.split_once(&format!("{name}=\""))?;
            value.split_once('"')?.0.parse().ok()
        };
        let tests = number("tests")?;
        let failed = number("failures")? + number("errors")?;
        Some(Self { passed: tests.checked_sub(failed)?, failed, skipped: 0 })
    }

    /// Reads one line of `cargo test`, such as
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out`.
    pub(crate) fn from_libtest_line(line: &str) -> Option<Self> {
        let (_, results) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let number = |name: &str| -> Option<u64> {
            results.split("; ").find_map(|part| part.strip_suffix(name)?.trim().parse().ok())
        };
        Some(Self {
            passed: number(" passed")?,
            failed: number(" failed")?,
            skipped: number(" ignored")?,
        })
    }

    /// Counts as skipped what ended early because this machine cannot run it. The test runner took
    /// such a test for passed.
    pub(crate) fn move_to_skipped(&mut self, count: u64) {
        self.passed = self.passed.saturating_sub(count);
        self.skipped += count;
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_junit_report_counts_errors_as_failures() {
        let report = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="7" failures="2" errors="1" uuid="x" time="0.1">
    <testsuite name="a" tests="3" disabled="0" errors="0" failures="0">"#;

        let counts = Counts::from_junit(report);

        assert_eq!(counts, Some(Counts { passed: 4, failed: 3, skipped: 0 }));
    }

    #[test]
    fn a_broken_junit_report_counts_nothing() {
        assert_eq!(Counts::from_junit("<testsuites name=\"x\" tests=\"many\">"), None);
        assert_eq!(Counts::from_junit(""), None);
    }

    #[test]
    fn a_libtest_line_counts_ignored_as_skipped_and_leaves_filtered_out() {
        let line = "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; \
                    9 filtered out; finished in 0.00s";

        let counts = Counts::from_libtest_line(line);

        assert_eq!(counts, Some(Counts { passed: 3, failed: 1, skipped: 2 }));
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(Counts::from_libtest_line("running 3 tests"), None);
        assert_eq!(Counts::from_libtest_line("test result: unknown"), None);
    }

    #[test]
    fn the_summary_reads_as_promised() {
        let mut counts = Counts { passed: 10, failed: 1, skipped: 0 };
        counts.move_to_skipped(2);

        assert_eq!(counts.to_string(), "8 passed, 1 failed, 2 skipped");
    }
}
