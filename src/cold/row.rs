//! One row of `timers` or `history`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Error;
use super::columns::{AFTER, TimerColumn as C, WEBHOOK};
use super::sql::Row;
use crate::model::id::{Epoch, Generation, TimerId, Uid, Version, delivery_id};
use crate::model::merge::{MergeKey, Merged};
use crate::model::namespace::{Namespace, Salt};
use crate::model::pointer::{Pointer, Via};
use crate::model::policy::Policies;
use crate::model::priority::Priority;
use crate::model::queue::{self, Dispatch, Place, Places, Seats};
use crate::model::schedule::{Occurrence, Skipped, Turn};
use crate::model::spread::Spread;
use crate::model::target::Target;
use crate::model::time::{Span, UnixMs};
use crate::model::timer::{Answer, AttemptResult, Life, State};
use crate::model::trace::Trace;

/// A timer as the cold store has it, live or ended.
#[derive(Debug, Clone)]
pub struct TimerRow {
    /// Primary key.
    pub uid: Uid,
    /// The namespace that it is of.
    pub namespace: Namespace,
    /// The id as text.
    pub id: String,
    /// Whether the uid comes from the caller's id or idempotency key, which stays taken after the end.
    pub caller_id: bool,
    /// The owner, if one was given.
    pub owner: Option<String>,
    /// Its shard.
    pub shard: i32,
    /// State, times and counts: the part that changes while it is live.
    pub life: Life,
    /// No first attempt is made after this moment.
    pub expire_at: Option<UnixMs>,
    /// The shard's epoch at the last claim.
    pub epoch: Epoch,
    /// The receiver's lane.
    pub lane: i64,
    /// `precision: minute`.
    pub minute: bool,
    /// The target.
    pub target: Target,
    /// The payload, JSON as the caller wrote it; `None` for `null`.
    pub data: Option<Vec<u8>>,
    /// The template that its payload was checked against.
    pub template: Option<String>,
    /// Labels as a JSON object of strings; `None` for none.
    pub labels: Option<String>,
    /// Retry and late policy.
    pub policies: Policies,
    /// Hash of the canonical request.
    pub request_hash: [u8; 16],
    /// When it was registered.
    pub created_at: UnixMs,
    /// When the latest claim was made.
    pub claimed_at: Option<UnixMs>,
    /// The node that made the latest claim.
    pub node: Option<String>,
    /// Who goes first where timers wait for one receiver.
    pub priority: Priority,
    /// The span over which its due time was chosen.
    pub spread: Option<Spread>,
    /// What it has of the schedule that made it.
    pub occurrence: Option<Occurrence>,
    /// Which path led to the latest claim.
    pub via: Option<Via>,
    /// The trace of the call that registered it.
    pub trace: Option<Trace>,
    /// Where its pointer lies in a wheel, if it was moved to a later moment: that pointer comes up then, and is promoted
    /// again to where the timer belongs. Once that moment has passed, no pointer of it is known. `None`: it has a pointer
    /// of its own at `wake_at`.
    pub pointed_at: Option<UnixMs>,
    /// What it has in common with timers that it may go out with; `None` if it does not merge.
    pub merge_key: Option<MergeKey>,
    /// The set that a claim has made of it and others, which all attempts of this generation are for.
    pub merged: Option<Merged>,
    /// Of a timer for a queue: how it is given out.
    pub seats: Option<Seats>,
    /// Of a timer for a queue, where its places are read beside it; empty elsewhere. Stored in a table of their own.
    pub places: Vec<Place>,
    /// Of a timer for a queue that was looked at just now: how many leases had ended. Not stored.
    pub lost: u64,
    /// Of a timer that a change takes away from its queue: a worker has done it, or may have. Not stored.
    pub may_be_done: bool,
    /// Of a timer that was changed just now: what it merged by before, because others may wait for it. Not stored.
    pub left: Option<MergeKey>,
    /// When it ended; `None` for a live timer.
    pub ended_at: Option<UnixMs>,
    /// The attempt that ended it.
    pub last: Option<AttemptRecord>,
}

/// One attempt, as `GET /v1/timers/{id}/attempts` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// The generation.
    pub generation: i32,
    /// Its number within the generation, from 1.
    pub attempt: i32,
    /// When the attempt began; if that is not known, when its claim was made.
    pub started_at: i64,
    /// When its result was known.
    pub ended_at: i64,
    /// The result.
    pub result: AttemptResult,
    /// The HTTP status, if there was an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The first 1 KiB of the answer's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
    /// What went wrong, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The node that made the attempt.
    pub node: String,
    /// The delivery id, if it was an attempt to deliver a merged set, or of another place than the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<String>,
    /// The worker, if it fetched the delivery itself; what it said is `reply`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

/// The priority that is stored as this; an unknown one counts as the default.
pub(super) fn priority_of(stored: Option<i16>) -> Priority {
    stored.and_then(|code| Priority::from_code(u8::try_from(code).ok()?)).unwrap_or_default()
}

/// The merge key that is stored as these bytes.
pub(super) fn merge_key_of(stored: Option<Vec<u8>>) -> Result<Option<MergeKey>, Error> {
    let bad = |_| Error::Corrupt("a timer's merge key cannot be read back".into());
    stored.map(|bytes| bytes.try_into().map(MergeKey).map_err(bad)).transpose()
}

/// The merged set that is stored as this.
pub(super) fn merged_of(stored: Option<String>) -> Result<Option<Merged>, Error> {
    let bad = |_| Error::Corrupt("a timer's merged set cannot be read back".into());
    stored.map(|text| serde_json::from_str(&text).map_err(bad)).transpose()
}

/// The spread that is stored as its length and its begin, in milliseconds.
fn spread_of(within_ms: Option<i64>, from: Option<i64>) -> Option<Spread> {
    let within = Duration::from_millis(u64::try_from(within_ms?).ok()?);
    Some(Spread { within: Span::from_duration(within), from: UnixMs::new(from?) })
}

/// What a row has of the schedule that made it.
fn occurrence_of(row: &Row, namespace: Namespace) -> Result<Option<Occurrence>, Error> {
    let Some(schedule) = row.of(C::Schedule)? else { return Ok(None) };
    Ok(Some(Occurrence {
        schedule: namespace.plain(schedule),
        nominal: row.of::<Option<i64>>(C::Nominal)?.map(UnixMs::new),
        turn: row.of::<Option<i16>>(C::Overlap)?.and_then(Turn::from_code),
        judge_after: row.of::<Option<i64>>(C::JudgeAfter)?.map(UnixMs::new),
        skipped: row.of::<Option<i16>>(C::Skipped)?.and_then(Skipped::from_code),
    }))
}

/// How a timer for a queue is given out.
fn seats_of(row: &Row) -> Result<Seats, Error> {
    let bad = |what: &str| Error::Corrupt(format!("a timer's {what} cannot be read back"));
    let dispatch = match row.of::<Option<String>>(C::Dispatch)? {
        Some(text) => serde_json::from_str(&text).map_err(|_| bad("dispatch"))?,
        None => Dispatch::default(),
    };
    let count = |count: Option<i32>| u32::try_from(count.unwrap_or(0)).unwrap_or(0);
    Ok(Seats {
        dispatch,
        fresh: count(row.of(C::Fresh)?),
        acked: count(row.of(C::Acked)?),
        ready_at: row.of::<Option<i64>>(C::ReadyAt)?.map(UnixMs::new),
    })
}

/// The id that is stored as this; see [`TimerRow::stored_id`].
pub(super) fn id_of(uid: Uid, namespace: Namespace, stored: String) -> String {
    if stored.is_empty() { TimerId::of_server(uid, namespace).as_str().to_owned() } else { stored }
}

/// The payload that is stored as this, as it is sent.
pub(super) fn body_of(data: Option<Vec<u8>>) -> Vec<u8> {
    data.unwrap_or_else(|| b"null".to_vec())
}

impl TimerRow {
    /// The delivery id of the current generation.
    pub fn delivery_id(&self) -> String {
        match &self.merged {
            Some(merged) => merged.id.clone(),
            None => delivery_id(self.uid, self.created_at.get(), self.life.generation),
        }
    }

    /// The schedule that made it.
    pub fn schedule(&self) -> Option<&str> {
        self.occurrence.as_ref().map(|one| one.schedule.as_str())
    }

    /// The nominal time that it was made for.
    pub fn nominal(&self) -> Option<UnixMs> {
        self.occurrence.as_ref()?.nominal
    }

    /// Why its schedule skipped it.
    pub fn skipped(&self) -> Option<Skipped> {
        self.occurrence.as_ref()?.skipped
    }

    /// When its delivery is due: at its own due time, or at the moment of its set.
    pub fn delivery_due_at(&self) -> UnixMs {
        self.merged.as_ref().map_or(self.life.due_at, Merged::moment)
    }

    /// What it has in common with timers that it may go out with.
    pub(super) fn find_merge_key(&self, salt: &Salt) -> Option<MergeKey> {
        let owner = self.owner.as_deref().unwrap_or(&self.id);
        Some(self.policies.merge?.key(salt, owner, &self.target))
    }

    /// Queue and audience as one number, if it is for a queue.
    pub(super) fn audience(&self) -> Option<i64> {
        Some(self.seats.as_ref()?.dispatch.to.audience(self.namespace, self.target.queue()?))
    }

    /// The answer to its caller: of a cancelled timer for a queue, whether places were acked decides, and whether anything was
    /// sent before it was for one.
    pub fn answer(&self, answer: Answer) -> Answer {
        // Workers that fetch leave no path.
        let was_sent = self.via.is_some() && self.life.tries > 0;
        match (&self.seats, answer) {
            (Some(seats), Answer::Cancelled | Answer::Stopped) if seats.acked == 0 && !was_sent => {
                Answer::Cancelled
            }
            (Some(_), Answer::Cancelled | Answer::Stopped) => Answer::Stopped,
            _ => answer,
        }
    }

    /// Whether this worker may have a place of it now; its places have to be read.
    pub(super) fn is_free_for(&self, worker: &str, now: UnixMs) -> bool {
        let free = |seats| queue::free_for(&self.life, seats, &self.places, self.expire_at, worker, now);
        self.seats.as_ref().and_then(free).is_some()
    }

    /// Whether anybody at all may have a place of it, now or later.
    pub(super) fn has_free(&self) -> bool {
        let comes_back = |place: &Place| matches!(place.held, queue::Held::Returned | queue::Held::Lost);
        self.seats.as_ref().is_some_and(|seats| seats.fresh > 0) || self.places.iter().any(comes_back)
    }

    /// The places of a timer for a queue.
    pub fn places(&mut self) -> Option<Places<'_>> {
        let Self { life, seats, places, expire_at, .. } = self;
        Some(Places { life, seats: seats.as_mut()?, places, expire_at: *expire_at })
    }

    /// The pointer to the attempt that it waits for; `None` in a state that waits for none. One to a timer for a queue
    /// wakes the workers that wait.
    pub fn pointer(&self, via: Via) -> Option<Pointer> {
        let wake_at = match &self.seats {
            Some(seats) => seats.ready_at,
            None => {
                matches!(self.life.state, State::Scheduled | State::Retrying).then_some(self.life.wake_at)
            }
        };
        Some(Pointer {
            uid: self.uid,
            shard: self.shard,
            namespace: self.namespace,
            generation: self.life.generation,
            attempt: self.life.attempt,
            wake_at: wake_at?,
            is_for_queue: self.seats.is_some(),
            lane: self.lane,
            minute: self.minute,
            priority: self.priority,
            change: self.life.version.change(),
            overdue: false,
            via,
        })
    }

    /// The payload as it is sent.
    pub fn body(&self) -> Vec<u8> {
        body_of(self.data.clone())
    }

    /// The id as it is stored: an id of the service's own form is derived from the uid and stored as an empty
    /// text.
    pub(super) fn stored_id(&self) -> String {
        if self.id == TimerId::of_server(self.uid, self.namespace).as_str() {
            String::new()
        } else {
            self.id.clone()
        }
    }

    /// Reads a row with the columns of [`super::columns::ALL`]; with `ended` they are followed by `ended_at,
    /// last`, which are NULL of a live timer.
    pub(super) fn read(row: &Row, ended: bool) -> Result<Self, Error> {
        let bad = |what: &str| Error::Corrupt(format!("a timer's {what} cannot be read back"));
        let target: String = row.of(C::Target)?;
        let policies: Option<String> = row.of(C::Policies)?;
        let hash: Vec<u8> = row.of(C::RequestHash)?;
        let via: Option<i16> = row.of(C::Via)?;
        let (uid, id) = (Uid(row.of(C::Uid)?), row.of::<String>(C::Id)?);
        let namespace = Namespace::of_stored(row.of(C::Namespace)?);
        let target = Target::read(row.of::<Option<i16>>(C::Kind)?.unwrap_or(WEBHOOK), &target)
            .map_err(|_| bad("target"))?;
        let (ended_at, last): (Option<i64>, Option<String>) =
            if ended { (row.get(AFTER)?, row.get(AFTER + 1)?) } else { (None, None) };
        Ok(Self {
            uid,
            namespace,
            id: id_of(uid, namespace, id),
            caller_id: row.of(C::CallerId)?,
            owner: row.of(C::Owner)?,
            shard: row.of(C::Shard)?,
            life: Life {
                state: State::from_code(row.of(C::State)?).ok_or_else(|| bad("state"))?,
                due_at: UnixMs::new(row.of(C::DueAt)?),
                wake_at: UnixMs::new(row.of(C::WakeAt)?),
                generation: Generation(row.of(C::Generation)?),
                attempt: row.of(C::Attempt)?,
                tries: row.of(C::Tries)?,
                version: Version(row.of(C::Version)?),
                uncertain: row.of(C::Uncertain)?,
                cancel_requested: row.of(C::CancelRequested)?,
                acked_late: row.of(C::AckedLate)?,
            },
            expire_at: row.of::<Option<i64>>(C::ExpireAt)?.map(UnixMs::new),
            epoch: Epoch(row.of(C::Epoch)?),
            lane: row.of(C::Lane)?,
            minute: row.of(C::Minute)?,
            seats: match target.queue() {
                Some(_) => Some(seats_of(row)?),
                None => None,
            },
            places: Vec::new(),
            lost: 0,
            may_be_done: false,
            target,
            data: row.of(C::Data)?,
            template: row.of::<Option<String>>(C::Template)?.map(|name| namespace.plain(name)),
            labels: row.of(C::Labels)?,
            policies: match policies {
                Some(text) => serde_json::from_str(&text).map_err(|_| bad("policies"))?,
                None => Policies::default(),
            },
            request_hash: hash.try_into().map_err(|_| bad("request hash"))?,
            created_at: UnixMs::new(row.of(C::CreatedAt)?),
            claimed_at: row.of::<Option<i64>>(C::ClaimedAt)?.map(UnixMs::new),
            node: row.of(C::Node)?,
            via: via.and_then(|code| Via::from_code(u8::try_from(code).ok()?)),
            trace: row.of::<Option<Vec<u8>>>(C::Trace)?.and_then(|packed| Trace::from_packed(&packed)),
            pointed_at: row.of::<Option<i64>>(C::PointedAt)?.map(UnixMs::new),
            priority: priority_of(row.of(C::Priority)?),
            merge_key: merge_key_of(row.of(C::MergeKey)?)?,
            merged: merged_of(row.of(C::Merged)?)?,
            left: None,
            spread: spread_of(row.of(C::Spread)?, row.of(C::SpreadFrom)?),
            occurrence: occurrence_of(row, namespace)?,
            ended_at: ended_at.map(UnixMs::new),
            last: match last {
                Some(text) => Some(serde_json::from_str(&text).map_err(|_| bad("last attempt"))?),
                None => None,
            },
        })
    }
}
