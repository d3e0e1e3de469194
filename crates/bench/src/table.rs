//! Figures, bars, and how they are printed.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::json;

use crate::place::{MissingPlace, Place};
use crate::sample::Samples;

/// A measured value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    Time(Duration),
    /// The time of one call, averaged over many.
    PerCall {
        ns: f64,
    },
    Bytes(u64),
    Records(u64),
    PerSecond(f64),
}

impl Value {
    fn number(self) -> f64 {
        match self {
            Self::Time(time) => time.as_secs_f64() * 1e3,
            Self::PerCall { ns } => ns,
            Self::PerSecond(rate) => rate,
            Self::Bytes(count) | Self::Records(count) => count as f64,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Time(_) => "ms",
            Self::PerCall { .. } => "ns",
            Self::Bytes(_) => "bytes",
            Self::Records(_) => "records",
            Self::PerSecond(_) => "per second",
        }
    }

    fn text(self) -> String {
        match self {
            Self::Time(time) if time < Duration::from_millis(1) => {
                format!("{:.0} µs", time.as_secs_f64() * 1e6)
            }
            Self::Time(time) if time < Duration::from_millis(100) => {
                format!("{:.2} ms", time.as_secs_f64() * 1e3)
            }
            Self::Time(time) => format!("{:.0} ms", time.as_secs_f64() * 1e3),
            Self::PerCall { ns } => format!("{ns:.1} ns"),
            Self::Bytes(bytes) if bytes < 10 << 10 => format!("{bytes} B"),
            Self::Bytes(bytes) if bytes < 10 << 20 => format!("{} KiB", bytes >> 10),
            Self::Bytes(bytes) => format!("{} MiB", bytes >> 20),
            Self::Records(count) => count.to_string(),
            Self::PerSecond(rate) => format!("{rate:.0}/s"),
        }
    }
}

/// What a row promises.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bar {
    /// Nothing: the figure is there to compare.
    None,
    RatioAtMost(f64),
    RatioBelow(f64),
    /// The baseline takes at least this many times as long.
    FasterTimes(f64),
    AtMost(Value),
    AtLeast(Value),
    Below(Value),
    Exactly(Value),
}

impl Bar {
    fn is_met(self, value: Value, ratio: Option<f64>) -> Option<bool> {
        let number = value.number();
        match self {
            Self::None => None,
            Self::RatioAtMost(bound) => ratio.map(|ratio| ratio <= bound),
            Self::RatioBelow(bound) => ratio.map(|ratio| ratio < bound),
            Self::FasterTimes(bound) => ratio.map(|ratio| ratio * bound <= 1.0),
            Self::AtMost(bound) => Some(number <= bound.number()),
            Self::AtLeast(bound) => Some(number >= bound.number()),
            Self::Below(bound) => Some(number < bound.number()),
            Self::Exactly(bound) => Some(number == bound.number()),
        }
    }

    fn text(self) -> String {
        match self {
            Self::None => String::new(),
            Self::RatioAtMost(bound) => format!("≤ {bound}×"),
            Self::RatioBelow(bound) => format!("< {bound}×"),
            Self::FasterTimes(bound) => format!("{bound:.0}× faster"),
            Self::AtMost(bound) => format!("≤ {}", bound.text()),
            Self::AtLeast(bound) => format!("≥ {}", bound.text()),
            Self::Below(bound) => format!("< {}", bound.text()),
            Self::Exactly(bound) => format!("= {}", bound.text()),
        }
    }
}

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    value: Value,
    /// What it is compared with.
    baseline: Option<(&'static str, Value)>,
    /// Found by comparing rounds; otherwise it is that of the values.
    ratio: Option<f64>,
    bar: Bar,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>, value: Value, bar: Bar) -> Self {
        Self { name: name.into(), value, baseline: None, ratio: None, bar }
    }

    pub(crate) fn time(name: impl Into<String>, time: Duration, bar: Bar) -> Self {
        Self::new(name, Value::Time(time), bar)
    }

    #[must_use]
    pub(crate) fn against(mut self, name: &'static str, baseline: Value) -> Self {
        self.baseline = Some((name, baseline));
        self
    }

    #[must_use]
    pub(crate) fn against_time(self, name: &'static str, baseline: Duration) -> Self {
        self.against(name, Value::Time(baseline))
    }

    /// Measured in rounds with what it is compared with.
    pub(crate) fn compare(
        name: impl Into<String>,
        samples: &Samples,
        bar: Bar,
        baseline_name: &'static str,
        baseline: &Samples,
    ) -> Self {
        let ratio = samples.ratio_to(baseline);
        let row = Self::time(name, samples.median(), bar);
        Self { ratio, ..row.against_time(baseline_name, baseline.median()) }
    }

    fn ratio(&self) -> Option<f64> {
        if self.ratio.is_some() {
            return self.ratio;
        }
        let (_, baseline) = self.baseline?;
        (baseline.number() > 0.0).then(|| self.value.number() / baseline.number())
    }

    fn is_met(&self) -> Option<bool> {
        self.bar.is_met(self.value, self.ratio())
    }
}

/// Everything measured in one place.
#[derive(Debug)]
pub(crate) struct Report {
    place: &'static str,
    title: String,
    counts: bool,
    rows: Vec<Row>,
    /// Groups without figures, and why. `true`: it should have worked.
    missing: Vec<(String, String, bool)>,
}

impl Report {
    pub(crate) fn new(place: &Place) -> Self {
        Self {
            place: place.name,
            title: place.describe(),
            counts: place.counts,
            rows: Vec::new(),
            missing: Vec::new(),
        }
    }

    pub(crate) fn not_measured(place: &MissingPlace) -> Self {
        Self {
            place: place.name,
            title: place.name.to_owned(),
            counts: false,
            rows: Vec::new(),
            missing: vec![("everything".to_owned(), place.reason.clone(), false)],
        }
    }

    pub(crate) fn add(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    pub(crate) fn add_missing(&mut self, group: &str, reason: String, failed: bool) {
        self.missing.push((group.to_owned(), reason, failed));
    }

    /// Whether nothing failed and, where bars count, none was missed.
    pub(crate) fn is_met(&self) -> bool {
        let failed = self.missing.iter().any(|(_, _, failed)| *failed);
        let missed = self.counts && self.rows.iter().any(|row| row.is_met() == Some(false));
        !failed && !missed
    }

    pub(crate) fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        for row in &self.rows {
            let line = json!({
                "name": format!("{}: {}", self.place, row.name),
                "value": row.value.number(),
                "unit": row.value.unit(),
                "baseline": row.baseline.map(|(_, value)| value.number()),
                "baseline_name": row.baseline.map(|(name, _)| name),
                "ratio": row.ratio(),
                "bar": row.bar.text(),
                "ok": row.is_met(),
            });
            writeln!(out, "{line}")?;
        }
        for (group, reason, failed) in &self.missing {
            let line = json!({
                "name": format!("{}: {group}", self.place),
                "not_measured": reason,
                "ok": failed.then_some(false),
            });
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    pub(crate) fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\n{}", self.title)?;
        let heads = ["", "value", "baseline", "ratio", "bar", ""].map(str::to_owned);
        let lines: Vec<[String; 6]> =
            std::iter::once(heads).chain(self.rows.iter().map(|row| self.cells(row))).collect();
        let widths: [usize; 6] = std::array::from_fn(|column| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        });
        for [name, value, baseline, ratio, bar, verdict] in &lines {
            let line = format!(
                "{name:<w0$}  {value:>w1$}  {baseline:>w2$}  {ratio:>w3$}  {bar:>w4$}  {verdict}",
                w0 = widths[0],
                w1 = widths[1],
                w2 = widths[2],
                w3 = widths[3],
                w4 = widths[4],
            );
            writeln!(out, "{}", line.trim_end())?;
        }
        for (group, reason, failed) in &self.missing {
            let what = if *failed { "FAILED" } else { "not measured" };
            writeln!(out, "{group}: {what}: {reason}")?;
        }
        Ok(())
    }

    fn cells(&self, row: &Row) -> [String; 6] {
        let verdict = match row.is_met() {
            Some(true) => "ok",
            Some(false) if self.counts => "MISSED",
            Some(false) => "missed (information only)",
            None => "",
        };
        [
            row.name.clone(),
            row.value.text(),
            row.baseline
                .map_or_else(String::new, |(name, value)| format!("{name} {}", value.text())),
            row.ratio().map_or_else(String::new, ratio_text),
            row.bar.text(),
            verdict.to_owned(),
        ]
    }
}

fn ratio_text(ratio: f64) -> String {
    if ratio < 0.1 { format!("1/{:.0}", ratio.recip()) } else { format!("{ratio:.2}×") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_ratio_bar_compares_with_the_baseline() {
        let row = |bar| Row::time("row", ms(20), bar).against_time("bare", ms(10));
        assert_eq!(row(Bar::RatioAtMost(2.0)).is_met(), Some(true));
        assert_eq!(row(Bar::RatioBelow(2.0)).is_met(), Some(false));
        assert_eq!(row(Bar::None).is_met(), None);
    }

    #[test]
    fn faster_means_that_the_baseline_takes_longer() {
        let row = |baseline| {
            Row::time("row", ms(2), Bar::FasterTimes(50.0)).against_time("git", ms(baseline))
        };
        assert_eq!(row(100).is_met(), Some(true));
        assert_eq!(row(99).is_met(), Some(false));
    }

    #[test]
    fn a_bound_compares_values_of_its_unit() {
        let bound = Bar::AtMost(Value::Time(ms(5)));
        assert_eq!(Row::time("row", ms(5), bound).is_met(), Some(true));
        assert_eq!(Row::time("row", ms(6), bound).is_met(), Some(false));
        let bound = Bar::AtLeast(Value::PerSecond(1_000.0));
        let row = |rate| Row::new("row", Value::PerSecond(rate), bound).is_met();
        assert_eq!((row(1_000.0), row(999.0)), (Some(true), Some(false)));
        let bound = Bar::Below(Value::Bytes(64 << 10));
        assert_eq!(Row::new("row", Value::Bytes(64 << 10), bound).is_met(), Some(false));
    }
}
