//! Numbers that name steps and journals.

use serde::{Deserialize, Serialize};

/// Sequence numbers that are set aside at once. Those that nobody used are lost with the process;
/// people never see them.
const RESERVED_SEQUENCES: u64 = 64;

/// Numbers that are never given out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) next_step: i64,
    pub(crate) next_ambient: i64,
    /// On disk, where those begin that nobody has set aside.
    pub(crate) next_sequence: u64,
    /// Steps up to here may be missing: undo cannot go past it.
    pub(crate) evicted_up_to: u64,
    /// Sequence numbers below this one are set aside.
    #[serde(skip)]
    reserved_sequences: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            next_step: 1,
            next_ambient: -1,
            next_sequence: 1,
            evicted_up_to: 0,
            reserved_sequences: 0,
        }
    }
}

impl Counters {
    /// The next sequence number; `save` is called only now and then.
    pub(crate) fn take_sequence<E>(
        &mut self,
        save: impl FnOnce(&Self) -> Result<(), E>,
    ) -> Result<u64, E> {
        let sequence = self.next_sequence;
        let mut taken = *self;
        taken.next_sequence = sequence.saturating_add(1);
        if sequence >= self.reserved_sequences {
            taken.reserved_sequences = sequence.saturating_add(RESERVED_SEQUENCES);
            save(&taken)?;
        }
        *self = taken;
        Ok(sequence)
    }

    /// As whoever opens the undo directory next has to find them.
    pub(crate) fn to_keep(self) -> Self {
        Self { next_sequence: self.next_sequence.max(self.reserved_sequences), ..self }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// As a process does that dies after so many numbers; says what it gave out.
    fn take(kept: &mut Counters, count: u64) -> Vec<u64> {
        let mut counters = *kept;
        counters.reserved_sequences = 0; // it is not kept
        let mut save = |counters: &Counters| {
            *kept = counters.to_keep();
            Ok::<(), ()>(())
        };
        (0..count).map(|_| counters.take_sequence(&mut save).unwrap()).collect()
    }

    #[test]
    fn no_sequence_number_is_given_twice_whenever_the_process_dies() {
        let mut kept = Counters::default();
        let mut given = Vec::new();
        for count in [1, 2, RESERVED_SEQUENCES, RESERVED_SEQUENCES + 1, 3 * RESERVED_SEQUENCES] {
            given.extend(take(&mut kept, count));
            assert!(given.is_sorted_by(|one, next| one < next), "{given:?}");
        }
    }

    #[test]
    fn sequence_numbers_are_saved_now_and_then() {
        let (mut counters, mut saved) = (Counters::default(), 0);
        for _ in 0..2 * RESERVED_SEQUENCES {
            counters
                .take_sequence(|_| {
                    saved += 1;
                    Ok::<(), ()>(())
                })
                .unwrap();
        }
        assert_eq!(saved, 2);
    }

    #[test]
    fn a_number_that_could_not_be_saved_was_not_given() {
        let mut counters = Counters::default();
        assert_eq!(counters.take_sequence(|_| Err("full")), Err("full"));
        assert_eq!(counters, Counters::default());
    }
}
