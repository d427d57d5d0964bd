//! Whose turn it is among the occurrences of one schedule. Pure: what is decided follows from the rows.
//!
//! An occurrence is *blocked* while another of its schedule has not ended: one that was claimed, and one for an earlier nominal
//! time that is paused or scheduled for now. One that somebody has moved far ahead blocks nobody. The claim
//! refuses what is blocked ([`super::may_go`]); here is what becomes of it then. With [`Turn::Skip`] one that had not ended at
//! the due time blocks too: its end keeps the claim from those after it.

use std::collections::HashSet;

use super::SOON_MS;
use crate::model::id::Uid;
use crate::model::schedule::Turn;
use crate::model::time::UnixMs;

/// A live occurrence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub uid: Uid,
    pub nominal: UnixMs,
    pub due_at: UnixMs,
    /// It waits for its due time or for others.
    pub is_scheduled: bool,
    /// It was claimed, and has not ended.
    pub is_under_way: bool,
    /// It waits for others already.
    pub waits: bool,
    pub turn: Option<Turn>,
}

/// An occurrence that was claimed, and has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub nominal: UnixMs,
    pub ended_at: UnixMs,
}

/// What becomes of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is skipped: the one before had not ended.
    Skip,
    /// It waits from now on.
    Wait,
    /// It waits no longer.
    Go,
}

/// What becomes of those of these occurrences, in order of their nominal times, whose time has come; nothing of those that
/// are left as they are.
pub(super) fn turns(all: &[Candidate], ended: &[Ended], now: UnixMs) -> Vec<(Uid, Verdict)> {
    let mut skipped = HashSet::new();
    let mut waiting: HashSet<Uid> = all.iter().filter(|one| one.waits).map(|one| one.uid).collect();
    let mut verdicts = Vec::new();
    for one in all.iter().filter(|one| one.is_scheduled && one.due_at <= now) {
        let Some(turn) = one.turn else { continue };
        let blocks = |other: &&Candidate| {
            let is_now = !other.is_scheduled || other.due_at.get() <= now.get() + SOON_MS;
            let is_before = other.nominal < one.nominal && is_now;
            other.uid != one.uid && !skipped.contains(&other.uid) && (other.is_under_way || is_before)
        };
        let ran_over = ended.iter().any(|other| other.nominal < one.nominal && other.ended_at > one.due_at);
        let is_blocked = all.iter().any(|other| blocks(&other)) || (turn == Turn::Skip && ran_over);
        let another_waits = all.iter().any(|other| {
            let is_queued = other.turn == Some(Turn::QueueOne) && waiting.contains(&other.uid);
            other.uid != one.uid && other.nominal < one.nominal && is_queued && !skipped.contains(&other.uid)
        });
        let verdict = match (turn, is_blocked) {
            (Turn::Skip, true) => Verdict::Skip,
            (Turn::QueueOne, true) if another_waits => Verdict::Skip,
            (_, true) if !one.waits => Verdict::Wait,
            (_, false) if one.waits => Verdict::Go,
            _ => continue,
        };
        match verdict {
            Verdict::Skip => drop(skipped.insert(one.uid)),
            Verdict::Wait => drop(waiting.insert(one.uid)),
            Verdict::Go => drop(waiting.remove(&one.uid)),
        }
        verdicts.push((one.uid, verdict));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn at(n: i64) -> UnixMs {
        UnixMs::new(n * 1000)
    }

    fn one(n: i64, turn: Turn) -> Candidate {
        let uid = Uid(Uuid::from_u128(n.unsigned_abs().into()));
        let (is_scheduled, is_under_way, turn) = (true, false, Some(turn));
        Candidate { uid, nominal: at(n), due_at: at(n), is_scheduled, is_under_way, waits: false, turn }
    }

    fn running(n: i64) -> Candidate {
        Candidate { is_scheduled: false, is_under_way: true, ..one(n, Turn::Skip) }
    }

    fn judged(all: &[Candidate], ended: &[Ended]) -> Vec<(i64, Verdict)> {
        let n = |uid: Uid| i64::try_from(uid.0.as_u128()).unwrap();
        turns(all, ended, at(100)).into_iter().map(|(uid, verdict)| (n(uid), verdict)).collect()
    }

    #[test]
    fn one_whose_time_has_come_while_another_runs_is_skipped() {
        for before in [running(1), Candidate { waits: true, ..one(1, Turn::InLine) }] {
            assert_eq!(
                judged(&[before, one(2, Turn::Skip)], &[])[..],
                [(2, Verdict::Skip)]
                    .into_iter()
                    .chain(before.waits.then_some((1, Verdict::Go)))
                    .rev()
                    .collect::<Vec<_>>()[..]
            );
        }
        assert_eq!(judged(&[one(2, Turn::Skip)], &[]), [], "nobody is before it");
        assert_eq!(judged(&[one(2, Turn::Skip), running(3)], &[]), [(2, Verdict::Skip)], "a later one runs");
        assert_eq!(
            judged(&[one(1, Turn::Skip), one(2, Turn::Skip)], &[]),
            [(2, Verdict::Skip)],
            "the first goes"
        );
    }

    #[test]
    fn one_that_ran_over_the_nominal_time_counts_though_it_has_ended() {
        let over = [Ended { nominal: at(1), ended_at: at(3) }];
        assert_eq!(judged(&[one(2, Turn::Skip)], &over), [(2, Verdict::Skip)]);
        assert_eq!(judged(&[one(4, Turn::Skip)], &over), []);
        assert_eq!(judged(&[one(2, Turn::QueueOne)], &over), [], "its turn has come");
    }

    #[test]
    fn one_waits_and_the_next_is_skipped() {
        let all = [running(1), one(2, Turn::QueueOne), one(3, Turn::QueueOne)];
        assert_eq!(judged(&all, &[]), [(2, Verdict::Wait), (3, Verdict::Skip)]);
        let waits = Candidate { waits: true, ..one(2, Turn::QueueOne) };
        assert_eq!(judged(&[running(1), waits, one(3, Turn::QueueOne)], &[]), [(3, Verdict::Skip)]);
        assert_eq!(judged(&[waits, one(3, Turn::QueueOne)], &[]), [(2, Verdict::Go), (3, Verdict::Wait)]);
    }

    #[test]
    fn one_that_is_paused_blocks_those_after_it() {
        let paused = Candidate { is_scheduled: false, ..one(3, Turn::Skip) };
        assert_eq!(judged(&[one(2, Turn::Skip), paused], &[]), [], "it is not its turn yet");
        assert_eq!(judged(&[paused, one(4, Turn::Skip)], &[]), [(4, Verdict::Skip)]);
        let far = Candidate { due_at: at(1000), ..paused };
        assert_eq!(judged(&[far, one(4, Turn::QueueOne)], &[]), [(4, Verdict::Wait)]);
    }

    #[test]
    fn those_in_line_all_wait() {
        let all = [running(9), one(2, Turn::InLine), one(3, Turn::InLine)];
        assert_eq!(judged(&all, &[]), [(2, Verdict::Wait), (3, Verdict::Wait)]);
    }

    #[test]
    fn one_that_was_moved_far_ahead_blocks_nobody() {
        let moved = Candidate { due_at: at(1000), ..one(1, Turn::Skip) };
        assert_eq!(judged(&[moved, one(2, Turn::Skip)], &[]), []);
        let soon = Candidate { due_at: at(130), ..moved };
        assert_eq!(judged(&[soon, one(2, Turn::Skip)], &[]), [(2, Verdict::Skip)]);
        assert_eq!(judged(&[running(1), one(200, Turn::Skip)], &[]), [], "its time has not come");
    }
}
