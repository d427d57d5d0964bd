//! The order in which writes come to SQLite's one writer.
//!
//! Without it the writer is given out first come first served, and a claim waits for every registration that came before
//! it. Here the lower [`Rank`] goes first. So that the higher ones still move, every [`PASSED`] turns one goes to the
//! rank that was passed over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// After how many turns of others a rank that waits has one.
const PASSED: u32 = 16;

/// Who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    /// Claims, and what ownership needs.
    First,
    /// Ends and other results of attempts, and what is given to workers. A desk has one lease under way.
    Second,
    /// What callers write, and everything else.
    Third,
}

/// Lets one write through at a time.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    taken: bool,
    waiting: [VecDeque<oneshot::Sender<Turn>>; 3],
    /// For each rank, the turns of others since one waits.
    passed: [u32; 3],
}

/// The right to write, until it is dropped.
pub(super) struct Turn(Option<Arc<Mutex<State>>>);

impl Gate {
    /// Waits for a turn. One that is no longer waited for goes to the next.
    pub async fn turn(&self, rank: Rank) -> Turn {
        loop {
            let waiting = {
                let mut state = lock(&self.0);
                if !state.taken {
                    state.taken = true;
                    return Turn(Some(Arc::clone(&self.0)));
                }
                let (turn, waiting) = oneshot::channel();
                state.waiting[rank as usize].push_back(turn);
                waiting
            };
            // The sender is dropped without a turn only with the gate itself.
            if let Ok(turn) = waiting.await {
                return turn;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(gate) = self.0.take() else { return };
        loop {
            let Some(next) = lock(&gate).next() else { return };
            match next.send(Turn(Some(Arc::clone(&gate)))) {
                Ok(()) => return,
                // It is no longer waited for. Its turn is not passed on by itself: this loop does it.
                Err(mut turn) => drop(turn.0.take()),
            }
        }
    }
}

impl State {
    /// Whose turn it is; `None` frees the gate.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let waits = |rank: &usize| !self.waiting[*rank].is_empty();
        let passed = (0..3).filter(waits).find(|rank| self.passed[*rank] >= PASSED);
        let Some(rank) = passed.or_else(|| (0..3).find(waits)) else {
            self.taken = false;
            return None;
        };
        for other in 0..3 {
            let counts = other != rank && !self.waiting[other].is_empty();
            self.passed[other] = if counts { self.passed[other] + 1 } else { 0 };
        }
        self.waiting[rank].pop_front()
    }
}

/// Nothing panics while the lock is held.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;

    /// Everybody queues in this order while the gate is taken; returns the order in which they come through.
    fn order(ranks: &[Rank]) -> Vec<usize> {
        let gate = Gate::default();
        let first = gate.turn(Rank::Third).now_or_never().expect("free");
        let mut waiting: Vec<(usize, BoxFuture<'_, Turn>)> =
            ranks.iter().enumerate().map(|(n, rank)| (n, gate.turn(*rank).boxed())).collect();
        let mut through = Vec::new();
        let mut ready = |waiting: &mut Vec<(usize, BoxFuture<'_, Turn>)>| {
            let mut found = None;
            waiting.retain_mut(|(n, turn)| match turn.now_or_never() {
                Some(turn) => {
                    assert!(found.replace(turn).is_none(), "one at a time");
                    through.push(*n);
                    false
                }
                None => true,
            });
            found
        };
        assert!(ready(&mut waiting).is_none());
        drop(first);
        while let Some(turn) = ready(&mut waiting) {
            assert!(ready(&mut waiting).is_none());
            drop(turn);
        }
        assert!(waiting.is_empty() && gate.turn(Rank::Third).now_or_never().is_some(), "free again");
        through
    }

    #[test]
    fn claims_go_first_then_ends_then_the_rest() {
        use Rank::{First, Second, Third};
        assert_eq!(order(&[Third, Second, First, Third, First]), [2, 4, 1, 0, 3]);
    }

    #[test]
    fn nobody_is_passed_over_for_ever() {
        let mut ranks = vec![Rank::Third];
        ranks.extend([Rank::First; 40]);
        let through = order(&ranks);
        assert_eq!(through.iter().position(|n| *n == 0), Some(PASSED as usize));
    }

    #[test]
    fn a_turn_that_nobody_waits_for_goes_to_the_next() {
        let gate = Gate::default();
        let held = gate.turn(Rank::First).now_or_never().expect("free");
        let mut waiting: Vec<_> = (0..3).map(|_| gate.turn(Rank::First).boxed()).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        // The first is given its turn and dropped before it sees it; the second is gone before.
        drop(waiting.remove(1));
        drop(held);
        drop(waiting.remove(0));
        assert!(waiting.remove(0).now_or_never().is_some());
    }
}
