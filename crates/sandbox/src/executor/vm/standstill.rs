//! When a guest stands still: while somebody is asked about anything that may be of it, in whichever
//! of its folders.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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

    /// A question is decided. After the last one the machine goes on, once `is_all_answered` has
    /// seen that nothing is on its way any more in any folder: what is, the machine would never hear
    /// of. It stands still, so nothing is added. Nothing happens if it stands still for another
    /// question, or did not at all.
    ///
    /// What is on its way may raise a question of its own, whose end is waited for then, and not here:
    /// whoever asks it may want to stop the machine first. So `resume` has it go on before anybody can.
    pub(super) fn go_on(
        &self,
        is_all_answered: &dyn Fn() -> bool,
        longest: Duration,
        resume: impl FnOnce(GoingOn),
    ) {
        let mut is_still = self.is_still.lock();
        if self.asked.fetch_sub(1, Ordering::SeqCst) > 1 || !*is_still {
            return;
        }
        let give_up_at = Instant::now() + longest;
        while self.asked.load(Ordering::SeqCst) == 0 {
            let going_on = match is_all_answered() {
                true if self.asked.load(Ordering::SeqCst) > 0 => break,
                true => GoingOn::Answered,
                false if Instant::now() >= give_up_at => GoingOn::Stuck,
                false => continue,
            };
            *is_still = false;
            return resume(going_on);
        }
    }
}

/// How a machine that stood still goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoingOn {
    Answered,
    /// Something on the host does not come to an end.
    Stuck,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// How it goes on, if it does.
    fn go_on(
        still: &Standstill,
        is_all_answered: &dyn Fn() -> bool,
        longest: Duration,
    ) -> Option<GoingOn> {
        let mut went_on = None;
        still.go_on(is_all_answered, longest, |how| went_on = Some(how));
        went_on
    }

    #[test]
    fn nobody_stops_a_machine_before_it_has_gone_on() {
        let still = Standstill::default();
        still.asked();
        still.hold(|| {});
        let events = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let (going_on, goes_on) = std::sync::mpsc::channel();
            let (still, events) = (&still, &events);
            scope.spawn(move || {
                goes_on.recv().unwrap();
                still.asked();
                still.hold(|| events.lock().push("stopped"));
            });
            still.go_on(&|| true, LONG, |_| {
                going_on.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(100)); // the other one is waiting by then
                events.lock().push("went on");
            });
        });
        assert_eq!(*events.lock(), ["went on", "stopped"]);
    }

    #[test]
    fn it_goes_on_after_the_last_question_of_all_folders() {
        let still = Standstill::default();
        still.asked();
        still.hold(|| {});
        // Whoever heard of this one has not stopped anything yet.
        still.asked();
        assert_eq!(go_on(&still, &|| true, LONG), None);
        still.hold(|| panic!("it stands still already"));
        assert_eq!(go_on(&still, &|| true, LONG), Some(GoingOn::Answered));
    }

    #[test]
    fn a_question_that_is_raised_while_the_rest_settles_is_waited_for() {
        for answered in [true, false] {
            let still = Standstill::default();
            still.asked();
            still.hold(|| {});
            let another = || {
                still.asked();
                answered
            };
            assert_eq!(go_on(&still, &another, LONG), None);
            assert_eq!(go_on(&still, &|| true, LONG), Some(GoingOn::Answered));
        }
    }

    #[test]
    fn it_waits_for_all_answers_but_not_for_ever() {
        let still = Standstill::default();
        still.asked();
        still.hold(|| {});
        let looks = AtomicUsize::new(0);
        let slow = || looks.fetch_add(1, Ordering::SeqCst) > 3;
        assert_eq!(go_on(&still, &slow, LONG), Some(GoingOn::Answered));
        still.asked();
        still.hold(|| {});
        assert_eq!(go_on(&still, &|| false, Duration::ZERO), Some(GoingOn::Stuck));
    }

    #[test]
    fn a_question_for_somebody_else_changes_nothing() {
        let still = Standstill::default();
        still.asked();
        assert_eq!(go_on(&still, &|| panic!("nothing stands still"), LONG), None);
    }
}
