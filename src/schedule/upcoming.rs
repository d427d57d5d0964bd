//! Nominal times of many schedules in one order, made or not. Pure, and bounded by the caller.

use std::collections::{BTreeMap, BinaryHeap};

use crate::cold::Rhythm;
use crate::model::rule::RuleError;
use crate::model::schedule::Times;
use crate::model::time::UnixMs;

/// One nominal time ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upcoming {
    /// When.
    pub at: UnixMs,
    /// Which of the schedules, by its place among them.
    pub of: usize,
}

/// Nominal times in [from, to) of these schedules that will make occurrences, or have, in order, at most `most`; and whether
/// there are more. None is before `now`.
pub fn upcoming(
    rows: &[Rhythm],
    from: UnixMs,
    to: UnixMs,
    now: UnixMs,
    most: usize,
) -> Result<(Vec<Upcoming>, bool), RuleError> {
    // The first ones so far, the last of them on top. One schedule at a time: a rule takes some kilobytes.
    let (mut first, mut more) = (BinaryHeap::new(), false);
    for (of, row) in rows.iter().enumerate() {
        let mut ahead = Ahead::new(row, from.max(now))?;
        while let Some(at) = ahead.next(to)? {
            if first.len() == most && first.peek().is_some_and(|last| (at, of) >= *last) {
                more = true;
                break;
            }
            first.push((at, of));
            if first.len() > most {
                first.pop();
                more = true;
            }
        }
    }
    let found = first.into_sorted_vec().into_iter().map(|(at, of)| Upcoming { at, of }).collect();
    Ok((found, more))
}

/// How many nominal times in [from, to) are not made yet, by steps from `from` on, and whether the count was cut off after
/// `most` of them.
pub fn counts(
    rows: &[Rhythm],
    (from, to): (UnixMs, UnixMs),
    step_ms: i64,
    now: UnixMs,
    most: usize,
) -> Result<(BTreeMap<i64, i64>, bool), RuleError> {
    let (mut counts, mut counted): (BTreeMap<i64, i64>, usize) = (BTreeMap::new(), 0);
    for row in rows {
        let unmade = UnixMs::new(row.last_nominal.get() + 1);
        let mut ahead = Ahead::new(row, from.max(now).max(unmade))?;
        while let Some(at) = ahead.next(to)? {
            if counted == most {
                return Ok((counts, true));
            }
            counted += 1;
            *counts.entry((at.get() - from.get()) / step_ms.max(1)).or_default() += 1;
        }
    }
    Ok((counts, false))
}

/// The nominal times of one schedule from a moment on.
struct Ahead {
    times: Times,
    last_made: UnixMs,
    left: Option<i64>,
}

impl Ahead {
    fn new(row: &Rhythm, from: UnixMs) -> Result<Self, RuleError> {
        let times = row.plan.times(UnixMs::new(from.get() - 1))?;
        Ok(Self { times, last_made: row.last_nominal, left: row.left })
    }

    /// The next one before `to`.
    fn next(&mut self, to: UnixMs) -> Result<Option<UnixMs>, RuleError> {
        let Some(at) = self.times.peek()?.filter(|at| *at < to) else { return Ok(None) };
        if at > self.last_made {
            match &mut self.left {
                Some(0) => return Ok(None),
                Some(left) => *left -= 1,
                None => {}
            }
        }
        self.times.pass(at);
        Ok(Some(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::schedule::{Missed, Overlap, Plan, Timing, When};
    use crate::model::time::Span;

    fn rhythm(id: &str, every: &str, left: Option<i64>) -> Rhythm {
        let when = When::Every(Span::parse(every).unwrap());
        let timing = Timing { when, zone: "UTC".into(), start_at: UnixMs::new(0) };
        let (missed, overlap) = (Missed::default(), Overlap::Allow);
        let plan = Plan { timing, end_at: None, max_occurrences: None, missed, overlap };
        Rhythm { id: id.into(), plan, left, last_nominal: UnixMs::new(2000) }
    }

    #[test]
    fn the_times_of_all_come_in_one_order() {
        let rows = [rhythm("a", "PT1S", Some(2)), rhythm("b", "PT3S", None)];
        let at = |from, to, now, most| {
            let (found, more) =
                upcoming(&rows, UnixMs::new(from), UnixMs::new(to), UnixMs::new(now), most).unwrap();
            (
                found.iter().map(|one| (one.at.get() / 1000, rows[one.of].id.as_str())).collect::<Vec<_>>(),
                more,
            )
        };
        // Of `a` 1 and 2 are made, and two more may be.
        let all = vec![(1, "a"), (2, "a"), (3, "a"), (3, "b"), (4, "a"), (6, "b"), (9, "b")];
        assert_eq!(at(1, 10_000, 0, 10), (all.clone(), false));
        assert_eq!(at(1, 10_000, 0, 4), (all[..4].to_vec(), true));
        assert_eq!(at(1, 6000, 2500, 10), (all[2..5].to_vec(), false), "the end does not belong to it");
    }

    #[test]
    fn what_is_made_already_is_not_counted_twice() {
        let rows = [rhythm("a", "PT1S", Some(2)), rhythm("b", "PT3S", None)];
        let range = (UnixMs::new(1000), UnixMs::new(10_000));
        let (found, is_cut) = counts(&rows, range, 4000, UnixMs::new(0), 100).unwrap();
        assert_eq!((found, is_cut), (BTreeMap::from([(0, 3), (1, 1), (2, 1)]), false));
        assert!(counts(&rows, range, 4000, UnixMs::new(0), 3).unwrap().1);
    }
}
