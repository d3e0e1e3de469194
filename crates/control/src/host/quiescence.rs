//! Waiting for writes that arrive after their command has ended.

use std::time::{Duration, Instant};

use super::{Activity, HostConfig};

/// From the end of a command to the end of its step.
///
/// ```text
/// completed        last operation seen             closed
///    │◄── operations ──►│◄──── quiet (100 ms) ───────►│
///    │◄─────────────────── at most 2 s ──────────────►│
/// ```
#[derive(Debug)]
pub(super) struct Quiescence {
    give_up_at: Instant,
    quiet_since: Instant,
    seen: Activity,
}

impl Quiescence {
    pub(super) fn begin(now: Instant, activity: Activity, config: &HostConfig) -> Self {
        Self { give_up_at: now + config.quiescence_limit, quiet_since: now, seen: activity }
    }

    /// Looks at the filesystem; true if the step can be closed.
    pub(super) fn is_over(&mut self, now: Instant, activity: Activity, quiet: Duration) -> bool {
        if activity.in_flight > 0 || activity != self.seen {
            self.quiet_since = now;
            self.seen = activity;
        }
        now >= self.quiet_since + quiet || now >= self.give_up_at
    }

    /// When to look again. Nobody tells us that an operation ended, so while one is under way we
    /// look often.
    pub(super) fn look_again_at(&self, config: &HostConfig) -> Instant {
        let wait = match self.seen.in_flight {
            0 => config.quiet,
            _ => config.look_every,
        };
        (self.quiet_since + wait).min(self.give_up_at)
    }
}
