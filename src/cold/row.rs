//! One timer as SQL holds it, live or ended, and the columns in the order that both tables share.

use serde::{Deserialize, Serialize};

use super::Error;
use super::sql::Row;
use crate::model::id::{Epoch, Generation, TimerId, Uid, delivery_id};
use crate::model::pointer::{Pointer, Via};
use crate::model::policy::Policies;
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::model::timer::{AttemptResult, Life, State};

/// The columns of `timers`, which are also the first columns of `history`.
pub(super) const COLUMNS: &str = "uid, id, caller_id, owner, shard, state, due_at, wake_at, expire_at, \
     generation, attempt, tries, version, epoch, lane, minute, uncertain, cancel_requested, acked_late, target, data, \
     labels, policies, request_hash, created_at, claimed_at, node, via";

/// How many columns [`COLUMNS`] names.
pub(super) const WIDTH: usize = 28;

/// A timer as it stands in the cold store.
#[derive(Debug, Clone)]
pub struct TimerRow {
    /// Primary key.
    pub uid: Uid,
    /// Its id as text.
    pub id: String,
    /// Whether the caller chose the id or an idempotency key, so that it must stay taken after the end.
    pub caller_id: bool,
    /// The owner, if one was given.
    pub owner: Option<String>,
    /// Its shard.
    pub shard: i32,
    /// The part that moves.
    pub life: Life,
    /// No first attempt after this moment.
    pub expire_at: Option<UnixMs>,
    /// The shard's epoch at the last claim.
    pub epoch: Epoch,
    /// The receiver's lane.
    pub lane: i64,
    /// `precision: minute`.
    pub minute: bool,
    /// Where it goes.
    pub target: Target,
    /// The payload, JSON as the caller wrote it; `None` for `null`.
    pub data: Option<Vec<u8>>,
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
    /// The node that made it.
    pub node: Option<String>,
    /// What led to it.
    pub via: Option<Via>,
    /// When it ended; live timers have none.
    pub ended_at: Option<UnixMs>,
    /// The attempt that ended it.
    pub last: Option<AttemptRecord>,
}

/// One attempt, as `GET /v1/timers/{id}/attempts` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Of which generation.
    pub generation: i32,
    /// Its number within the generation, from 1.
    pub attempt: i32,
    /// When the attempt began; if nobody knows, when its claim was made.
    pub started_at: i64,
    /// When the outcome was known.
    pub ended_at: i64,
    /// The outcome.
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
    /// The node that made it.
    pub node: String,
}

impl TimerRow {
    /// The delivery id of the current generation.
    pub fn delivery_id(&self) -> String {
        delivery_id(self.uid, self.created_at.get(), self.life.generation)
    }

    /// Where it points while it waits; `None` when nothing is to happen by itself.
    pub fn pointer(&self, via: Via) -> Option<Pointer> {
        matches!(self.life.state, State::Scheduled | State::Retrying).then_some(Pointer {
            uid: self.uid,
            shard: self.shard,
            generation: self.life.generation,
            attempt: self.life.attempt,
            wake_at: self.life.wake_at,
            lane: self.lane,
            minute: self.minute,
            overdue: false,
            via,
        })
    }

    /// The payload as it goes out.
    pub fn body(&self) -> Vec<u8> {
        self.data.clone().unwrap_or_else(|| b"null".to_vec())
    }

    /// Reads a row of [`COLUMNS`], followed by `ended_at, last` when `ended`.
    pub(super) fn read(row: &Row, ended: bool) -> Result<Self, Error> {
        let ms = |value: i64| UnixMs::new(value);
        let bad = |what: &str| Error::Corrupt(format!("a timer's {what} cannot be read back"));
        let target: String = row.get(19)?;
        let policies: Option<String> = row.get(22)?;
        let hash: Vec<u8> = row.get(23)?;
        let last: Option<String> = if ended { row.get(WIDTH + 1)? } else { None };
        let (uid, id) = (Uid(row.get(0)?), row.get::<String>(1)?);
        Ok(Self {
            uid,
            // Ids of the service's own form are not stored: the uid says it all.
            id: if id.is_empty() { TimerId::of_server(uid).as_str().to_owned() } else { id },
            caller_id: row.get(2)?,
            owner: row.get(3)?,
            shard: row.get(4)?,
            life: Life {
                state: State::from_code(row.get(5)?).ok_or_else(|| bad("state"))?,
                due_at: ms(row.get(6)?),
                wake_at: ms(row.get(7)?),
                generation: Generation(row.get(9)?),
                attempt: row.get(10)?,
                tries: row.get(11)?,
                version: row.get(12)?,
                uncertain: row.get(16)?,
                cancel_requested: row.get(17)?,
                acked_late: row.get(18)?,
            },
            expire_at: row.get::<Option<i64>>(8)?.map(ms),
            epoch: Epoch(row.get(13)?),
            lane: row.get(14)?,
            minute: row.get(15)?,
            target: serde_json::from_str(&target).map_err(|_| bad("target"))?,
            data: row.get(20)?,
            labels: row.get(21)?,
            policies: match policies {
                Some(text) => serde_json::from_str(&text).map_err(|_| bad("policies"))?,
                None => Policies::default(),
            },
            request_hash: hash.try_into().map_err(|_| bad("request hash"))?,
            created_at: ms(row.get(24)?),
            claimed_at: row.get::<Option<i64>>(25)?.map(ms),
            node: row.get(26)?,
            via: row.get::<Option<i16>>(27)?.and_then(|code| Via::from_code(u8::try_from(code).ok()?)),
            ended_at: if ended { Some(ms(row.get(WIDTH)?)) } else { None },
            last: match last {
                Some(text) => Some(serde_json::from_str(&text).map_err(|_| bad("last attempt"))?),
                None => None,
            },
        })
    }
}
