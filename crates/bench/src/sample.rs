//! Repeated measurements.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Times of the same thing, measured several times.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        Self(times.into_iter().collect())
    }
}

impl Samples {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Runs `work` and remembers how long it took.
    pub(crate) fn time<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let outcome = work()?;
        self.push(started.elapsed());
        Ok(outcome)
    }

    pub(crate) fn median(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    /// How many times as long this took: the median over rounds, each compared within itself, so
    /// that a machine that is slower for a while does not count.
    pub(crate) fn ratio_to(&self, baseline: &Self) -> Option<f64> {
        let rounds = self.0.iter().zip(&baseline.0);
        let mut ratios: Vec<f64> =
            rounds.map(|(ours, theirs)| ours.as_secs_f64() / theirs.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied()
    }
}

/// Runs both sides `repetitions` times, in turn and beginning with the other one each time, so that
/// whatever disturbs the machine disturbs both.
pub(crate) fn in_turn(
    repetitions: u32,
    mut one: impl FnMut() -> Result<()>,
    mut other: impl FnMut() -> Result<()>,
) -> Result<()> {
    for repetition in 0..repetitions {
        if repetition % 2 == 0 {
            one()?;
            other()?;
        } else {
            other()?;
            one()?;
        }
    }
    Ok(())
}
