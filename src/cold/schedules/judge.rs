//! What one look at a schedule decides: pure, from its row, its live occurrences and the time.
//!
//! [`past`] decides about every nominal time up to now that is not decided yet, and about occurrences that wait for a
//! judgement; [`ahead`] makes occurrences ahead of their times.

use std::collections::HashSet;
use std::time::Duration;

use super::ScheduleRow;
use super::turn::{self, Candidate, Ended, Verdict};
use crate::cold::apply::{Change, ChangeEvent};
use crate::model::id::{Generation, Uid};
use crate::model::rule::RuleError;
use crate::model::schedule::{MOST_AHEAD, ScheduleState, Skipped, Turn, fires};
use crate::model::time::{LAST, UnixMs};
use crate::model::timer::MISSED;

/// About so many nominal times one look decides.
pub(super) const MOST: usize = 1000;

/// The shortest and the longest pause between two looks at occurrences that wait for others.
const WAITING_MS: (i64, i64) = (1000, 10_000);

/// How often the nominal times of a paused schedule are recorded, at most.
const RECORDED_MS: i64 = 60_000;

/// A live occurrence of a schedule that runs, or is due soon.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub uid: Uid,
    pub nominal: UnixMs,
    pub generation: Generation,
    pub is_scheduled: bool,
    /// It was claimed, and has not ended.
    pub is_under_way: bool,
    pub due_at: UnixMs,
    pub turn: Option<Turn>,
    pub judge_after: Option<UnixMs>,
    /// Its shard was served by nobody from when it could have fired until it had to be judged.
    pub is_unserved: bool,
}

/// A nominal time that becomes an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Make {
    pub at: UnixMs,
    /// It was missed: it is not asked how late it is.
    pub is_missed: bool,
}

/// A range of nominal times, next to each other, that become no occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cold) struct Skip {
    pub first: UnixMs,
    pub last: UnixMs,
    pub count: i64,
    pub reason: Skipped,
    /// The one before the first, if that was decided by an earlier look.
    pub follows: Option<UnixMs>,
}

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub makes: Vec<Make>,
    pub skips: Vec<Skip>,
    pub changes: Vec<Change>,
    /// There is more to decide about the past.
    pub is_cut: bool,
    /// The first occurrence that waits for another is due since then.
    waits_since: Option<UnixMs>,
}

impl Decided {
    /// What a later step of the same change has to know: that some wait.
    pub fn go_on(&self) -> Self {
        Self { waits_since: self.waits_since, ..Self::default() }
    }

    fn change(&mut self, uid: Uid, event: ChangeEvent) {
        self.changes.push(Change { uid, caller: None, event });
    }

    /// Adds a nominal time to the last range, or begins another.
    fn skip(&mut self, at: UnixMs, reason: Skipped, before: Before) {
        match (self.skips.last_mut(), before) {
            (Some(range), Before::Skipped(why)) if why == reason => {
                (range.last, range.count) = (at, range.count + 1);
            }
            (_, before) => {
                let follows = if let Before::Earlier(at) = before { Some(at) } else { None };
                self.skips.push(Skip { first: at, last: at, count: 1, reason, follows });
            }
        }
    }
}

/// What became of the nominal time before.
#[derive(Clone, Copy)]
enum Before {
    /// An earlier look decided about it.
    Earlier(UnixMs),
    Skipped(Skipped),
    Made,
}

/// The nominal times of a store that was restored and that may have fired already.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    pub from: UnixMs,
    pub until: UnixMs,
    pub accepted_from: Option<UnixMs>,
}

impl Lost {
    fn holds(&self, at: UnixMs) -> bool {
        (self.from..=self.until).contains(&at) && self.accepted_from.is_none_or(|from| at < from)
    }
}

/// Decides about what lies behind `now`.
pub(super) fn past(
    row: &mut ScheduleRow,
    live: &[Live],
    ended: &[Ended],
    lost: Option<Lost>,
    now: UnixMs,
) -> Result<Decided, RuleError> {
    let mut decided = Decided::default();
    let before = row.last_nominal;
    let (undecided, is_cut) = undecided(row, now)?;
    decided.is_cut = is_cut;
    let (state, paused_until, gone) = (row.state, row.paused_until, std::mem::take(&mut row.gone));
    let reason = |at: UnixMs| match state {
        ScheduleState::Paused => Some(Skipped::Paused),
        _ if paused_until.is_some_and(|until| at <= until) => Some(Skipped::Paused),
        _ if lost.is_some_and(|lost| lost.holds(at)) => Some(Skipped::Missed),
        _ => None,
    };
    let is_gone = |at: &UnixMs| gone.contains(at);
    // Beyond a minute it was missed; within it, its maker was a little late.
    let is_old = |at: &UnixMs| at.plus(MISSED) < now;
    let found: Vec<Found> = live.iter().filter_map(|one| Found::of(one, now)).collect();
    let missed_made = found.iter().filter(|found| found.is_missed).map(|found| found.live.nominal);
    let missed_unmade =
        undecided.iter().filter(|at| is_old(at) && reason(**at).is_none() && !is_gone(at)).copied();
    let mut missed: Vec<UnixMs> = missed_made.chain(missed_unmade).collect();
    missed.sort_unstable();
    // Of what is left to the next look the first says whether any of it was missed: all is in order.
    let more_follow = match undecided.last().filter(|_| is_cut && state == ScheduleState::Active) {
        Some(last) => row.plan.times(*last)?.peek()?.is_some_and(|at| is_old(&at)),
        None => false,
    };
    let fire = fires(&missed, more_follow, now, row.plan.missed);
    let fire: HashSet<UnixMs> =
        missed.iter().zip(fire).filter(|(_, fires)| *fires).map(|(at, _)| *at).collect();
    let (mut cleared, mut skipped) = (HashSet::new(), HashSet::new());
    for Found { live, is_missed, is_paused } in &found {
        let event = match (is_paused, is_missed) {
            (true, _) => ChangeEvent::Skipped(live.generation, Skipped::Paused),
            (false, true) if !fire.contains(&live.nominal) => {
                ChangeEvent::Skipped(live.generation, Skipped::Missed)
            }
            (false, is_missed) => ChangeEvent::Cleared(live.generation, *is_missed),
        };
        let is_skipped = matches!(event, ChangeEvent::Skipped(..));
        if is_skipped {
            skipped.insert(live.uid)
        } else {
            cleared.insert(live.uid)
        };
        decided.change(live.uid, event);
    }
    let mut came_before = Before::Earlier(before);
    let mut left = row.left();
    for at in undecided {
        if is_gone(&at) {
            came_before = Before::Made;
        } else if left == Some(0) {
            // As many as it may make were made: it has no further nominal times.
            decided.is_cut = false;
            break;
        } else if let Some(why) = reason(at) {
            decided.skip(at, why, came_before);
            came_before = Before::Skipped(why);
        } else if is_old(&at) && !fire.contains(&at) {
            decided.skip(at, Skipped::Missed, came_before);
            came_before = Before::Skipped(Skipped::Missed);
        } else {
            take(&mut left);
            decided.makes.push(Make { at, is_missed: is_old(&at) });
            came_before = Before::Made;
        }
        row.last_nominal = row.last_nominal.max(at);
    }
    row.made += decided.makes.len() as i64;
    take_turns(&mut decided, live, ended, &cleared, &skipped, now);
    row.gone = gone.into_iter().filter(|at| *at > now).collect();
    if decided.is_cut {
        row.make_at = Some(now);
    }
    Ok(decided)
}

/// One more of so many that are left; `false` if none is.
fn take(left: &mut Option<i64>) -> bool {
    match left {
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
        None => true,
    }
}

/// Nominal times up to now that are not decided, at most [`MOST`], and whether there are more.
fn undecided(row: &ScheduleRow, now: UnixMs) -> Result<(Vec<UnixMs>, bool), RuleError> {
    if row.state == ScheduleState::Ended || row.last_nominal >= now {
        return Ok((Vec::new(), false));
    }
    row.plan.times(row.last_nominal)?.take_until(now, MOST)
}

/// A live occurrence that waits for a judgement, and what is found of it.
struct Found<'a> {
    live: &'a Live,
    is_missed: bool,
    /// Its schedule was paused at its time.
    is_paused: bool,
}

impl<'a> Found<'a> {
    fn of(live: &'a Live, now: UnixMs) -> Option<Self> {
        let judge_after = live.judge_after.filter(|at| live.is_scheduled && *at <= now)?;
        let is_paused = judge_after < live.due_at;
        // Of a paused schedule it is looked at a moment ahead of its time, which may see it resumed.
        (!is_paused || live.due_at <= now).then_some(Self {
            live,
            is_missed: live.is_unserved && !is_paused,
            is_paused,
        })
    }
}

/// Decides whose turn it is.
fn take_turns(
    decided: &mut Decided,
    live: &[Live],
    ended: &[Ended],
    cleared: &HashSet<Uid>,
    skipped: &HashSet<Uid>,
    now: UnixMs,
) {
    let candidates: Vec<Candidate> = live
        .iter()
        .filter(|one| !skipped.contains(&one.uid))
        .map(|one| Candidate {
            uid: one.uid,
            nominal: one.nominal,
            due_at: one.due_at,
            is_scheduled: one.is_scheduled,
            is_under_way: one.is_under_way,
            waits: one.judge_after == Some(LAST) && !cleared.contains(&one.uid),
            turn: one.turn,
        })
        .collect();
    let mut waits: HashSet<Uid> = candidates.iter().filter(|one| one.waits).map(|one| one.uid).collect();
    for (uid, verdict) in turn::turns(&candidates, ended, now) {
        let Some(one) = live.iter().find(|one| one.uid == uid) else { continue };
        let event = match verdict {
            Verdict::Skip => ChangeEvent::Skipped(one.generation, Skipped::Overlap),
            Verdict::Wait => ChangeEvent::Waits(one.generation),
            Verdict::Go => ChangeEvent::Cleared(one.generation, false),
        };
        if verdict == Verdict::Wait {
            waits.insert(uid)
        } else {
            waits.remove(&uid)
        };
        decided.change(uid, event);
    }
    decided.waits_since = live.iter().filter(|one| waits.contains(&one.uid)).map(|one| one.due_at).min();
}

/// Makes occurrences ahead of their times, as far as `reach`, and says when to look again. `decided` is what [`past`] has
/// found, and it has found everything.
pub(super) fn ahead(
    row: &mut ScheduleRow,
    decided: &mut Decided,
    reach: Duration,
    now: UnixMs,
) -> Result<(), RuleError> {
    row.make_at = match row.state {
        ScheduleState::Active => make_ahead(row, decided, reach, now)?,
        ScheduleState::Paused => {
            let next = row.plan.times(row.last_nominal.max(now))?.peek()?;
            next.filter(|_| row.left() != Some(0)).map(|at| at.max(UnixMs::new(now.get() + RECORDED_MS)))
        }
        ScheduleState::Ended => None,
    };
    if row.make_at.is_none() {
        match row.last_nominal > now {
            true => row.make_at = Some(row.last_nominal),
            false => row.state = ScheduleState::Ended,
        }
    }
    if let Some(since) = decided.waits_since {
        let (least, most) = WAITING_MS;
        let pause = (i64::try_from(now.since(since).as_millis()).unwrap_or(most) / 10).clamp(least, most);
        let look = UnixMs::new(now.get() + pause);
        row.make_at = Some(row.make_at.map_or(look, |at| at.min(look)));
    }
    Ok(())
}

/// Makes what is wanted ahead; `None` if there is nothing left to make.
fn make_ahead(
    row: &mut ScheduleRow,
    decided: &mut Decided,
    reach: Duration,
    now: UnixMs,
) -> Result<Option<UnixMs>, RuleError> {
    let mut times = row.plan.times(now)?;
    let (mut wanted, _) = times.take_until(now.plus(reach), MOST_AHEAD)?;
    if wanted.is_empty() {
        wanted.extend(times.peek()?);
    }
    let (mut left, mut kept) = (row.left(), Vec::new());
    for at in wanted {
        if at > row.last_nominal {
            if !row.gone.contains(&at) {
                if !take(&mut left) {
                    break;
                }
                decided.makes.push(Make { at, is_missed: false });
                row.made += 1;
            }
            row.last_nominal = at;
        }
        kept.push(at);
    }
    // When half of them is used up, and not after the last.
    Ok(kept.get(kept.len() / 2).copied())
}
