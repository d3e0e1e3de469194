//! Signals that are ours to heed.

/// Those of them that whoever started us has not told us to ignore, as `nohup` does, and shells do
/// for commands in the background.
pub(crate) fn heeded(signals: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_in(&status);
    let is_heeded = |signal: &&i32| ignored & (1 << (**signal - 1)) == 0;
    signals.iter().filter(is_heeded).copied().collect()
}

fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_mask() {
        assert_eq!(ignored_in("SigBlk:\t0001\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored_in("nothing of the kind"), 0);
    }
}
