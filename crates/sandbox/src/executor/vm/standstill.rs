//! When a guest stands still: while somebody is asked about anything that may be of it, in whichever
//! of its folders.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(super) struct Standstill {
    /// Questions that are not decided. Beside the lock, because whoever hears of one must not wait.
    asked: AtomicUsize,
    /// Held while the machine is stopped, or goes on.
    is_still: Mutex<bool>,
}

impl Standstill {
    /// A question was raised, and [`Standstill::go_on`] follows when it is decided.
    pub(super) fn asked(&self) {
        self.asked.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn hold(&self, pause: impl FnOnce()) {
        let mut is_still = self.is_still.lock();
        if !std::mem::replace(&mut *is_still, true) {
            pause();
        }
    }

    /// A question is decided. After the last one the machine goes on, once `settle` has seen that
    /// nothing is on its way any more in any folder: what is, the machine would never hear of. It
    /// stands still, so nothing is added.
    pub(super) fn go_on(&self, settle: impl FnOnce(), resume: impl FnOnce()) {
        let mut is_still = self.is_still.lock();
        if self.asked.fetch_sub(1, Ordering::SeqCst) > 1 || !*is_still {
            return;
        }
        settle();
        // What was on its way may have raised a question of its own, whose end is waited for then.
        if self.asked.load(Ordering::SeqCst) == 0 {
            *is_still = false;
            resume();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_after_the_last_question_of_all_folders() {
        let (still, resumed) = (Standstill::default(), AtomicUsize::new(0));
        let resume = || {
            resumed.fetch_add(1, Ordering::SeqCst);
        };
        still.asked();
        still.hold(|| {});
        // Whoever heard of this one has not stopped anything yet.
        still.asked();
        still.go_on(|| {}, resume);
        assert_eq!(resumed.load(Ordering::SeqCst), 0);
        still.hold(|| panic!("it stands still already"));
        still.go_on(|| {}, resume);
        assert_eq!(resumed.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_question_that_is_raised_while_the_rest_settles_is_waited_for() {
        let (still, resumed) = (Standstill::default(), AtomicUsize::new(0));
        let resume = || {
            resumed.fetch_add(1, Ordering::SeqCst);
        };
        still.asked();
        still.hold(|| {});
        still.go_on(|| still.asked(), resume);
        assert_eq!(resumed.load(Ordering::SeqCst), 0);
        still.go_on(|| {}, resume);
        assert_eq!(resumed.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_question_for_somebody_else_changes_nothing() {
        let still = Standstill::default();
        still.asked();
        still.go_on(|| panic!("nothing stands still"), || panic!("nothing stands still"));
    }
}
