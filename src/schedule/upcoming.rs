//! Nominal times of many schedules in one order, made or not. Pure, and bounded by the caller.

use std::collections::{BTreeMap, BinaryHeap};

use crate::cold::Rhythm;
use crate::model::rule::RuleError;
use crate::model::schedule::{Times, When};
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
    let (mut first, mut more, mut passes) = (BinaryHeap::new(), false, MOST_PASSED);
    for (of, row) in rows.iter().enumerate() {
        let mut ahead = Ahead::new(row, from.max(now), &mut passes)?;
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

/// How many nominal times in [from, to) are not made yet, by steps from `from` on, and whether some were left out: about
/// `most` are looked at in all, and each schedule may take an equal part of what those before it have left.
pub fn counts(
    rows: &[Rhythm],
    (from, to): (UnixMs, UnixMs),
    step_ms: i64,
    now: UnixMs,
    most: usize,
) -> Result<(BTreeMap<i64, i64>, bool), RuleError> {
    let (mut counts, mut looks, mut is_cut): (BTreeMap<i64, i64>, usize, bool) =
        (BTreeMap::new(), most, false);
    let (step_ms, mut passes) = (step_ms.max(1), MOST_PASSED);
    for (nth, row) in rows.iter().enumerate() {
        let unmade = UnixMs::new(row.last_nominal.get() + 1);
        let mut ahead = Ahead::new(row, from.max(now).max(unmade), &mut passes)?;
        let part = (looks / (rows.len() - nth)).max(1);
        for look in 0.. {
            let Some(at) = ahead.next(to)? else { break };
            if look == part {
                is_cut = true;
                break;
            }
            looks = looks.saturating_sub(1);
            let step = (at.get() - from.get()) / step_ms;
            // Those at a fixed distance need no look each.
            let end = to.min(UnixMs::new(from.get().saturating_add((step + 1).saturating_mul(step_ms))));
            *counts.entry(step).or_default() += 1 + ahead.pass_evenly(end);
        }
    }
    Ok((counts, is_cut))
}

/// So many nominal times that come before a range are passed one by one, of all schedules together, to find how many of those
/// with `max_occurrences` are left in it. Beyond that all count as left.
const MOST_PASSED: usize = 100_000;

/// The nominal times of one schedule from a moment on.
struct Ahead {
    times: Times,
    /// The distance of a rule `every`.
    every_ms: Option<i64>,
    end_at: Option<UnixMs>,
    last_made: UnixMs,
    left: Option<i64>,
}

impl Ahead {
    /// Takes what it passes before `from` off `passes`.
    fn new(row: &Rhythm, from: UnixMs, passes: &mut usize) -> Result<Self, RuleError> {
        let every_ms = match &row.plan.timing.when {
            When::Every(every) => i64::try_from(every.get().as_millis()).ok(),
            _ => None,
        };
        let (last_made, end_at) = (row.last_nominal, row.plan.end_at);
        let times = |after: UnixMs| row.plan.times(after);
        let Some(left) = row.left.filter(|_| last_made < from) else {
            let times = times(UnixMs::new(from.get() - 1))?;
            return Ok(Self { times, every_ms, end_at, last_made, left: row.left });
        };
        // What comes before uses them up.
        let mut ahead = Self { times: times(last_made)?, every_ms, end_at, last_made, left: Some(left) };
        while *passes > 0 && ahead.next(from)?.is_some() {
            *passes -= 1;
            ahead.pass_evenly(from);
        }
        if ahead.times.peek()?.is_some_and(|at| at < from) {
            ahead.times = times(UnixMs::new(from.get() - 1))?;
        }
        Ok(ahead)
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

    /// After a nominal time that is not made yet: passes those before `to` that follow it at a fixed distance; returns how
    /// many they are.
    fn pass_evenly(&mut self, to: UnixMs) -> i64 {
        let (Some(every_ms), at) = (self.every_ms, self.times.at()) else { return 0 };
        let to = self.end_at.map_or(to, |end| to.min(UnixMs::new(end.get().saturating_add(1))));
        let follow = (to.get() - 1 - at.get()).max(0) / every_ms.max(1);
        let passed = self.left.map_or(follow, |left| left.min(follow));
        self.left = self.left.map(|left| left - passed);
        self.times.pass(UnixMs::new(at.get() + passed * every_ms));
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::schedule::{Missed, Overlap, Plan, Timing};
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
        let daily = Rhythm { plan: daily(), ..rhythm("c", "PT1S", None) };
        let rows = [daily, rows[0].clone()];
        let range = (UnixMs::new(1000), UnixMs::new(10 * 86_400_000));
        let (found, is_cut) = counts(&rows, range, 86_400_000, UnixMs::new(0), 8).unwrap();
        assert_eq!(
            (found.into_iter().collect::<Vec<_>>(), is_cut),
            (vec![(0, 1 + 2), (1, 1), (2, 1), (3, 1)], true),
            "one of many is cut off and keeps the others from nothing"
        );
    }

    fn daily() -> Plan {
        let when = When::Daily { at: "09:00".into(), every_days: 1 };
        let plan = rhythm("", "PT1S", None).plan;
        Plan { timing: Timing { when, ..plan.timing }, ..plan }
    }

    #[test]
    fn those_at_a_fixed_distance_are_counted_at_once() {
        let end_at = Some(UnixMs::new(3_600_000));
        let often = rhythm("a", "PT0.5S", None);
        let ends = Rhythm { plan: Plan { end_at, ..often.plan.clone() }, ..often.clone() };
        let (from, to) = (UnixMs::new(2001), UnixMs::new(7_200_000));
        for (row, minutes, last) in [(&often, 120, 115), (&ends, 60, 116)] {
            let (found, is_cut) =
                counts(std::slice::from_ref(row), (from, to), 60_000, UnixMs::new(0), 1000).unwrap();
            assert!(!is_cut);
            assert_eq!((found.len(), found[&0], found[&1]), (minutes, 120, 120));
            assert_eq!(
                found.values().next_back(),
                Some(&last),
                "what is due at the end does not belong to it"
            );
        }
    }

    #[test]
    fn the_last_of_so_many_is_the_last() {
        let at = |from: i64, left| {
            let rows = [
                rhythm("a", "PT1S", Some(left)),
                Rhythm { plan: daily(), ..rhythm("b", "PT1S", Some(left)) },
            ];
            let (from, to) = (UnixMs::new(from), UnixMs::new(from + 10 * 86_400_000));
            let (found, _) = upcoming(&rows, from, to, UnixMs::new(0), 20_000).unwrap();
            let counted = counts(&rows, (from, to), 86_400_000, UnixMs::new(0), 1000).unwrap().0;
            let unmade = found.iter().filter(|one| one.at > rows[one.of].last_nominal).count();
            assert_eq!(counted.values().sum::<i64>(), unmade as i64, "{from} {left}");
            [0, 1].map(|of| found.iter().filter(|one| one.of == of).count())
        };
        assert_eq!(at(1, 3), [5, 3], "two are made");
        assert_eq!(at(4001, 3), [1, 3]);
        assert_eq!(at(86_400_000, 3), [0, 2]);
        assert_eq!(at(10 * 86_400_000, 3), [0, 0]);
        assert_eq!(at(86_400_000, 100_000), [13_603, 10]);
    }
}
