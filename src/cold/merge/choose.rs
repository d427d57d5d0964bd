//! What goes out together, and when: decided from rows that are locked, without SQL.

use std::time::Duration;

use super::super::claim::Early;
use crate::model::id::{Epoch, Uid};
use crate::model::merge::{MergeKey, Merged, Waiting, form};
use crate::model::pointer::Pointer;
use crate::model::policy::Policies;
use crate::model::time::UnixMs;
use crate::model::timer::State;

/// The most bytes of data that one call claims, if that are several sets.
const MAX_CLAIMED_BYTES: usize = 16 * 1024 * 1024;

/// The wait, in milliseconds, before a set is looked at again of which an attempt is not recorded yet.
const UNRECORDED_WAIT_MS: i64 = 250;

/// What decides about a timer that may be a member.
pub(super) struct Member {
    pub pointer: Pointer,
    pub state: State,
    pub due_at: UnixMs,
    pub key: MergeKey,
    pub merged: Option<Merged>,
    pub policies: Policies,
    pub bytes: usize,
    /// It is not held since the store was restored.
    pub may_fire: bool,
}

impl Member {
    /// How far ahead others may be due that go out with it.
    pub(super) fn window(&self) -> Duration {
        self.policies.merge.map_or(Duration::ZERO, |merge| merge.window.get())
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.state == State::Scheduled && self.pointer.attempt == 0
    }
}

/// What timers are looked at together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// Those of this key that have had no attempt.
    Fresh(MergeKey),
    /// The members of the set with this delivery id.
    Set(MergeKey, String),
    /// This timer alone: it went out alone before, and is tried again.
    Alone(Uid),
}

impl Group {
    pub(super) fn of(member: &Member) -> Self {
        match &member.merged {
            Some(merged) => Self::Set(member.key, merged.id.clone()),
            None if member.is_fresh() => Self::Fresh(member.key),
            None => Self::Alone(member.pointer.uid),
        }
    }
}

/// What is written about the members of a transaction.
#[derive(Default)]
pub(super) struct Written {
    /// The pointer that came up, its epoch, and the members with their set.
    pub claims: Vec<(Pointer, Epoch, Vec<Pointer>, Option<Merged>)>,
    /// Timers that wait for others: until when, and when they expire.
    pub waits: Vec<(Uid, UnixMs, Option<UnixMs>)>,
    pub early: Vec<Early>,
    pub bytes: usize,
    /// A planted defect: a set gets another delivery id for each attempt.
    pub forgets_sets: bool,
}

/// The pointer that came up, again in so many milliseconds.
fn again(pointer: Pointer, wait_ms: i64) -> Early {
    Early { pointer, wait_ms: wait_ms.max(0), is_moved: true }
}

/// Decides about timers of one key that have had no attempt: the earliest set goes out, or waits for its moment.
pub(super) fn claim_fresh(
    came: &[&(Member, Pointer, Epoch)],
    mut members: Vec<Member>,
    now: UnixMs,
    horizon: UnixMs,
    written: &mut Written,
) {
    let waiting: Vec<Waiting> =
        members.iter().map(|one| Waiting { due_at: one.due_at, bytes: one.bytes }).collect();
    let Some(set) = members.first().and_then(|first| form(&waiting, first.window())) else { return };
    members.truncate(set.members);
    // Its grace counts from the moment of the set. What is later is left to the sweep, which ends it as expired; it knows
    // by `wake_at` that the timer was looked at here.
    let is_in_time = |one: &mut Member| one.policies.expire_at(set.at).is_none_or(|expire| expire >= now);
    for late in members.extract_if(.., |one| !is_in_time(one)) {
        if late.pointer.wake_at <= late.due_at {
            written.waits.push((late.pointer.uid, now, late.policies.expire_at(set.at)));
        }
    }
    let is_member = |uid: Uid| members.iter().any(|member| member.pointer.uid == uid);
    let outside = || came.iter().filter(|(_, pointer, _)| !is_member(pointer.uid));
    let Some((_, pointer, epoch)) =
        came.iter().find(|(_, pointer, _)| is_member(pointer.uid)).or(came.first())
    else {
        return;
    };
    // They are of another set, which comes next; a moment later, because they may be too late, too.
    let by_ms = if set.at <= horizon && !members.is_empty() { 1 } else { UNRECORDED_WAIT_MS };
    let is_due = |one: &Member| one.policies.expire_at(one.due_at).is_none_or(|expire| expire >= now);
    let others = outside().filter(|(member, ..)| is_due(member));
    written.early.extend(others.map(|(_, pointer, _)| again(*pointer, by_ms)));
    let Some(first) = members.first() else { return };
    if set.at > horizon {
        let highest = members.iter().map(|member| member.pointer.priority).min();
        let last = members.last().map(|member| member.pointer.priority);
        // The last member's own pointer comes up at that moment. Another one is needed if it were less urgent.
        if let Some(priority) = highest.filter(|highest| Some(*highest) != last) {
            let pointer = Pointer { priority, wake_at: set.at, ..*pointer };
            written.early.push(again(pointer, set.at.get() - horizon.get()));
        }
        // The last one, too, if it waited for another that is no longer in the set.
        let moved = members.iter().filter(|member| member.due_at < set.at || member.pointer.wake_at > set.at);
        written
            .waits
            .extend(moved.map(|member| (member.pointer.uid, set.at, member.policies.expire_at(set.at))));
        return;
    }
    let merged = (members.len() > 1).then(|| Merged {
        id: Merged::delivery_id(first.pointer.uid, first.pointer.generation, *epoch, now),
        at: set.at.get(),
        members: members.len(),
        retry: first.policies.retry,
    });
    claim(&members, pointer, *epoch, merged, written);
}

/// Nothing of a set can go out now; its pointer comes again.
pub(super) fn come_again(came: &[&(Member, Pointer, Epoch)], written: &mut Written) {
    written.early.extend(came.first().map(|(_, pointer, _)| again(*pointer, UNRECORDED_WAIT_MS)));
}

/// Decides about a set that was claimed before, or a timer that went out alone: all its members go out again, once the
/// last attempt of each is recorded.
pub(super) fn claim_again(
    came: &[&(Member, Pointer, Epoch)],
    members: &[Member],
    horizon: UnixMs,
    written: &mut Written,
) {
    let Some((_, pointer, epoch)) = came.first() else { return };
    let latest = members.iter().map(|member| member.pointer.wake_at).max().unwrap_or_default();
    if members.iter().any(|member| !member.may_fire) {
        // It is held as a whole; once that is over, the sweep brings it.
    } else if members.iter().any(|member| member.state == State::Delivering) {
        come_again(came, written);
    } else if latest > horizon {
        let pointer = Pointer { wake_at: latest, ..*pointer };
        written.early.push(again(pointer, latest.get() - horizon.get()));
    } else if let Some(first) = members.first() {
        let mut merged = first.merged.clone();
        if written.forgets_sets
            && let Some(merged) = &mut merged
        {
            merged.id = Merged::delivery_id(first.pointer.uid, first.pointer.generation, *epoch, latest);
        }
        claim(members, pointer, *epoch, merged, written);
    }
}

/// Notes that these timers go out together, if that is not too much for one transaction.
fn claim(members: &[Member], pointer: &Pointer, epoch: Epoch, merged: Option<Merged>, written: &mut Written) {
    let bytes: usize = members.iter().map(|member| member.bytes).sum();
    if written.bytes > 0 && written.bytes + bytes > MAX_CLAIMED_BYTES {
        written.early.push(again(*pointer, 1));
        return;
    }
    written.bytes += bytes;
    let members = members.iter().map(|member| member.pointer).collect();
    written.claims.push((*pointer, epoch, members, merged));
}
