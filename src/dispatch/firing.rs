//! What one attempt is for: a timer that was claimed, or the members of a merged set.

use std::sync::Arc;

use crate::cold::{AttemptRecord, TimerRow};
use crate::config::CLAIM_MARGIN;
use crate::model::destination::Destination;
use crate::model::id::Uid;
use crate::model::namespace::Sender;
use crate::model::pointer::Revision;
use crate::model::policy::Retry;
use crate::model::time::UnixMs;
use crate::model::timer::Token;
use crate::sink::{Claim, Delivery, Event};
use crate::traces;

/// Claimed rows that go out together.
pub(super) struct Firing {
    /// The only one, or the first member: the one that is due first.
    pub first: TimerRow,
    others: Vec<TimerRow>,
}

impl Firing {
    /// A timer by itself.
    pub const fn alone(row: TimerRow) -> Self {
        Self { first: row, others: Vec::new() }
    }

    /// The members of a set, in order of their due times; `None` if there are none.
    pub fn of(rows: Vec<TimerRow>) -> Option<Self> {
        let mut rows = rows.into_iter();
        Some(Self { first: rows.next()?, others: rows.collect() })
    }

    /// Its timers.
    pub fn rows(&self) -> impl Iterator<Item = &TimerRow> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The tokens of its attempts.
    pub fn tokens(&self) -> impl Iterator<Item = (Uid, Token)> {
        self.rows().map(|row| (row.uid, Token { generation: row.life.generation, attempt: row.life.attempt }))
    }

    /// Whether it is a merged set.
    pub const fn is_merged(&self) -> bool {
        self.first.merged.is_some()
    }

    /// Whether this timer is one of it.
    pub fn has(&self, uid: Uid) -> bool {
        self.rows().any(|row| row.uid == uid)
    }

    /// Its timers, as they were before the claim.
    pub fn members(&self) -> impl Iterator<Item = (Uid, Revision)> {
        self.rows().map(before)
    }

    /// When it is due.
    pub fn due_at(&self) -> UnixMs {
        self.first.delivery_due_at()
    }

    /// When a timer of it could be sent at the earliest: it may have been registered after its due time.
    pub fn could_be_sent(&self, row: &TimerRow) -> UnixMs {
        self.due_at().max(row.created_at)
    }

    /// The policy that decides about another attempt, if it is not the default. `destination` is that of the destination.
    pub fn retry(&self, destination: Option<Retry>) -> Option<Retry> {
        let own = match &self.first.merged {
            Some(merged) => merged.retry,
            None => self.first.policies.retry,
        };
        own.or(destination)
    }

    /// How many attempts it has had, this one included.
    pub fn attempt(&self) -> i32 {
        self.rows().map(|row| row.life.attempt).max().unwrap_or(1)
    }

    /// The records of an attempt, one for each timer.
    pub fn records(&self, of: AttemptRecord) -> Vec<(Uid, AttemptRecord, UnixMs)> {
        let one = |row: &TimerRow, of: AttemptRecord| {
            let (generation, attempt) = (row.life.generation.0, row.life.attempt);
            let delivery_id = row.merged.as_ref().map(|merged| merged.id.clone());
            (row.uid, AttemptRecord { generation, attempt, delivery_id, ..of }, self.could_be_sent(row))
        };
        let others: Vec<_> = self.others.iter().map(|row| one(row, of.clone())).collect();
        std::iter::once(one(&self.first, of)).chain(others).collect()
    }

    /// Its delivery, sent for this namespace. Takes the payloads out of the rows.
    pub fn delivery(&mut self, destination: Option<Arc<Destination>>, sender: Arc<Sender>) -> Delivery {
        let data = match self.first.merged {
            Some(_) => self.body(),
            None => self.first.data.take().unwrap_or_else(|| b"null".to_vec()),
        };
        let members = if self.is_merged() { self.tokens().collect() } else { Vec::new() };
        let (due_at, attempt, row) = (self.due_at(), self.attempt(), &self.first);
        let claimed_at = row.claimed_at.unwrap_or(row.life.wake_at);
        let claim = row.life.wake_at.since(claimed_at);
        Delivery {
            namespace: row.namespace,
            sender,
            event: if row.merged.is_some() { Event::Merged } else { Event::Fired },
            // No longer than the claim lasts: it may be of before this node knew the destination.
            timeout: destination
                .as_ref()
                .and_then(|one| one.limits.timeout)
                .map(|timeout| timeout.get().min(claim.saturating_sub(CLAIM_MARGIN))),
            destination,
            id: row.delivery_id(),
            subject: match row.merged {
                Some(_) => row.owner.clone().unwrap_or_else(|| row.id.clone()),
                None => row.id.clone(),
            },
            due_at,
            generation: row.life.generation,
            attempt,
            target: row.target.clone(),
            data,
            schedule: row.schedule().filter(|_| row.merged.is_none()).map(str::to_owned),
            nominal: row.nominal().filter(|_| row.merged.is_none()),
            trace: row.trace,
            onward: traces::Onward::default(),
            claim: Claim { shard: row.shard, epoch: row.epoch, via: row.via },
            members,
        }
    }

    /// The body of a merged set. Each payload is JSON as its caller wrote it, and is not read again.
    fn body(&mut self) -> Vec<u8> {
        let mut body = b"{\"merged\":[".to_vec();
        for (i, row) in std::iter::once(&mut self.first).chain(&mut self.others).enumerate() {
            if i > 0 {
                body.push(b',');
            }
            // An id has only characters that JSON takes as they are.
            let head = format!(
                "{{\"timer\":\"{}\",\"due_at\":\"{}\",\"generation\":{},\"data\":",
                row.id,
                row.life.due_at.rfc3339(),
                row.life.generation.0
            );
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(row.data.take().as_deref().unwrap_or(b"null"));
            body.push(b'}');
        }
        body.extend_from_slice(b"]}");
        body
    }
}

/// A claimed timer, as it was before.
fn before(row: &TimerRow) -> (Uid, Revision) {
    let life = &row.life;
    (row.uid, Revision::new(life.generation, life.attempt - 1, life.version.change()))
}
