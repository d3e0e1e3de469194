//! The clock of a guest. It stands still while the guest does, and while the host sleeps; the host
//! knows what time it is.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec};

/// What a message may take on its way. A clock that is set for less would go to and fro.
const TOLERATED: Duration = Duration::from_millis(100);

/// Sets the clock, if it is wrong.
pub(crate) fn set(unix_ms: u64) -> io::Result<()> {
    let wanted = Duration::from_millis(unix_ms);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if !is_wrong(now, wanted) {
        return Ok(());
    }
    let time = Timespec {
        tv_sec: i64::try_from(wanted.as_secs()).map_err(io::Error::other)?,
        tv_nsec: wanted.subsec_nanos().into(),
    };
    Ok(rustix::time::clock_settime(ClockId::Realtime, time)?)
}

fn is_wrong(now: Duration, wanted: Duration) -> bool {
    now.abs_diff(wanted) > TOLERATED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_in_both_directions_and_not_for_a_moment() {
        let at = Duration::from_millis;
        assert!(is_wrong(at(5_000), at(9_000)) && is_wrong(at(9_000), at(5_000)));
        assert!(!is_wrong(at(5_000), at(5_060)) && !is_wrong(at(5_060), at(5_000)));
    }
}
