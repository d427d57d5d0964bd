//! Registration: many callers, one transaction, one flush.
//!
//! The insert comes first and the look at the ended ids after it, in the same transaction: an insert that
//! had to wait for the very row that was being ended goes through when that row is gone, and only a look
//! taken afterwards sees the end.

use std::collections::{HashMap, HashSet};

use super::row::TimerRow;
use super::sql::{Column, Statement};
use super::{ColdStore, Error};
use crate::model::id::{Epoch, Generation, TimerId, Uid, shard_of};
use crate::model::policy::Policies;
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::model::timer::Life;

/// The most timers one transaction registers.
pub const MAX_BATCH: usize = 1000;

/// A checked registration.
#[derive(Debug, Clone)]
pub struct NewTimer {
    /// Primary key: from the caller's id, the idempotency key, or new.
    pub uid: Uid,
    /// The id as text.
    pub id: TimerId,
    /// Whether the uid comes from the caller and stays taken after the end.
    pub caller_id: bool,
    /// On an ended id: a new generation instead of the old state.
    pub again: bool,
    /// The owner, if one was given.
    pub owner: Option<String>,
    /// When it should fire.
    pub due_at: UnixMs,
    /// `precision: minute`.
    pub minute: bool,
    /// Where it goes.
    pub target: Target,
    /// The payload as written; `None` for `null`.
    pub data: Option<Vec<u8>>,
    /// Labels as a JSON object of strings; `None` for none.
    pub labels: Option<String>,
    /// Retry and late policy.
    pub policies: Policies,
    /// Hash of the canonical request.
    pub request_hash: [u8; 16],
    /// When the request came in, by the store's clock.
    pub created_at: UnixMs,
}

/// What became of a registration.
#[derive(Debug, Clone)]
pub enum Registered {
    /// It is kept, durably.
    New(Box<TimerRow>),
    /// The same request was registered before; this is how that timer stands.
    Same(Box<TimerRow>),
    /// The id is taken by other content.
    Taken,
}

impl Registered {
    /// The timer of an answer, if this registration made it.
    pub fn new_row(answer: &Result<Self, Error>) -> Option<&TimerRow> {
        match answer {
            Ok(Self::New(row)) => Some(row),
            _ => None,
        }
    }
}

impl ColdStore {
    /// Registers up to [`MAX_BATCH`] timers in one transaction; answers in the order given.
    ///
    /// A value that the database refuses fails alone: the batch is halved until it is found. When the
    /// connection breaks at the commit, the batch is run again and recognises what it had written.
    pub async fn register(&self, timers: &[NewTimer]) -> Vec<Result<Registered, Error>> {
        let mut doubtful: Option<Error> = None;
        for tries_left in (0..3).rev() {
            match self.register_once(timers, doubtful.is_some()).await {
                Ok(answers) => return answers,
                Err(why) if why.is_data() && timers.len() > 1 => {
                    let (left, right) = timers.split_at(timers.len() / 2);
                    let mut answers = Box::pin(self.register(left)).await;
                    answers.extend(Box::pin(self.register(right)).await);
                    return answers;
                }
                Err(why) if tries_left > 0 && why.is_ambiguous() => doubtful = Some(why),
                Err(why) if tries_left > 0 && why.is_deadlock() => {}
                Err(why) => {
                    // Once a commit was in doubt, no later failure makes it certain.
                    let why = doubtful.unwrap_or(why);
                    return timers.iter().map(|_| Err(why.clone())).collect();
                }
            }
        }
        let why = doubtful.unwrap_or(Error::Busy);
        timers.iter().map(|_| Err(why.clone())).collect()
    }

    /// `rerun`: an earlier run may have been committed. What is there already, with the same content and the
    /// same moment of registration, is its work, even if it has ended meanwhile.
    async fn register_once(
        &self,
        timers: &[NewTimer],
        rerun: bool,
    ) -> Result<Vec<Result<Registered, Error>>, Error> {
        let mut answers: Vec<Option<Result<Registered, Error>>> = Vec::with_capacity(timers.len());
        answers.resize_with(timers.len(), || None);
        if rerun {
            let rows = self.find_many(&timers.iter().map(|timer| timer.uid).collect::<Vec<_>>()).await?;
            for (timer, answer) in timers.iter().zip(&mut answers) {
                *answer = rows
                    .get(&timer.uid)
                    .filter(|row| {
                        row.request_hash == timer.request_hash && row.created_at == timer.created_at
                    })
                    .map(|row| Ok(Registered::New(Box::new(row.clone()))));
            }
        }
        // Of equal ids in one batch one is inserted: the first, or the one that asks for the id again. Sorted,
        // so that two batches never deadlock.
        let mut order: Vec<usize> = (0..timers.len()).filter(|&i| answers[i].is_none()).collect();
        order.sort_by_key(|&i| (timers[i].uid, !timers[i].again, i));
        order.dedup_by_key(|i| timers[*i].uid);

        let mut kept = self.insert_new(timers, &order).await?;
        for &i in &order {
            if let Some(generation) = kept.remove(&timers[i].uid) {
                answers[i] = Some(Ok(Registered::New(Box::new(self.fresh_row(&timers[i], generation)))));
            }
        }
        let open: Vec<usize> = (0..timers.len()).filter(|&i| answers[i].is_none()).collect();
        if !open.is_empty() {
            let rows = self.find_many(&open.iter().map(|&i| timers[i].uid).collect::<Vec<_>>()).await?;
            for i in open {
                let same = |row: &&TimerRow| row.request_hash == timers[i].request_hash;
                answers[i] = Some(match rows.get(&timers[i].uid) {
                    Some(row) if same(&row) => Ok(Registered::Same(Box::new(row.clone()))),
                    Some(_) => Ok(Registered::Taken),
                    // Its id is still taken, and its history is gone already: the retention was shortened.
                    None => Ok(Registered::Taken),
                });
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Inserts what is new and returns it with its generation.
    async fn insert_new(
        &self,
        timers: &[NewTimer],
        order: &[usize],
    ) -> Result<HashMap<Uid, Generation>, Error> {
        let mut tx = self.pool.begin().await?;
        let inserted = tx.fetch(self.insert_statement(timers, order)).await?;
        let mut kept = HashMap::with_capacity(inserted.len());
        for row in inserted {
            kept.insert(Uid(row.get(0)?), Generation(1));
        }
        let callers: Vec<&NewTimer> = order
            .iter()
            .map(|&i| &timers[i])
            .filter(|timer| timer.caller_id && kept.contains_key(&timer.uid))
            .collect();
        if !callers.is_empty() {
            let mut look = Statement::new(self.dialect(), "register_look_at_ended");
            let batch =
                look.batch("b", vec![("b_uid", Column::Uuid(callers.iter().map(|t| t.uid.0).collect()))]);
            let now = look.now(self.given());
            look.push(&format!(
                "WITH {batch} SELECT uid, generation FROM ended_ids JOIN b ON uid = b_uid WHERE until > {now}"
            ));
            let mut ended = HashMap::new();
            for row in tx.fetch(look).await? {
                ended.insert(Uid(row.get(0)?), row.get::<i32>(1)?);
            }
            let again: HashSet<Uid> =
                callers.iter().filter(|timer| timer.again).map(|timer| timer.uid).collect();
            let (revived, refused): (Vec<_>, Vec<_>) =
                ended.into_iter().partition(|(uid, _)| again.contains(uid));
            if !refused.is_empty() {
                let mut take_back = Statement::new(self.dialect(), "register_take_back");
                let uids = refused.iter().map(|(uid, _)| uid.0).collect();
                let batch = take_back.batch("b", vec![("b_uid", Column::Uuid(uids))]);
                take_back
                    .push(&format!("WITH {batch} DELETE FROM timers WHERE uid IN (SELECT b_uid FROM b)"));
                tx.execute(take_back).await?;
                kept.retain(|uid, _| !refused.iter().any(|(refused, _)| refused == uid));
            }
            if !revived.is_empty() {
                let columns = |revived: &[(Uid, i32)]| {
                    vec![
                        ("b_uid", Column::Uuid(revived.iter().map(|(uid, _)| uid.0).collect())),
                        (
                            "b_generation",
                            Column::Int(revived.iter().map(|(_, g)| i64::from(*g) + 1).collect()),
                        ),
                    ]
                };
                let mut next = Statement::new(self.dialect(), "register_again");
                let batch = next.batch("b", columns(&revived));
                next.push(&format!(
                    "WITH {batch} UPDATE timers SET generation = b_generation FROM b WHERE uid = b_uid"
                ));
                tx.execute(next).await?;
                let mut free = Statement::new(self.dialect(), "register_again_free");
                let batch = free.batch("b", columns(&revived));
                free.push(&format!("WITH {batch} DELETE FROM ended_ids WHERE uid IN (SELECT b_uid FROM b)"));
                tx.execute(free).await?;
                kept.extend(revived.into_iter().map(|(uid, generation)| (uid, Generation(generation + 1))));
            }
        }
        self.count(&mut tx, &[("registered", kept.len() as i64)]).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(kept)
    }

    fn insert_statement(&self, timers: &[NewTimer], order: &[usize]) -> Statement {
        let mut s = Statement::new(self.dialect(), "register_insert");
        let of = |pick: fn(&NewTimer) -> i64| Column::Int(order.iter().map(|&i| pick(&timers[i])).collect());
        let text = |pick: fn(&NewTimer) -> Option<String>| {
            Column::TextOrNull(order.iter().map(|&i| pick(&timers[i])).collect())
        };
        let json = |value: &Target| serde_json::to_string(value).unwrap_or_default();
        let shards = order.iter().map(|&i| i64::from(self.shard(&timers[i]))).collect();
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(order.iter().map(|&i| timers[i].uid.0).collect())),
                ("b_id", Column::Text(order.iter().map(|&i| stored_id(&timers[i])).collect())),
                ("b_caller_id", Column::Bool(order.iter().map(|&i| timers[i].caller_id).collect())),
                ("b_owner", text(|t| t.owner.clone())),
                ("b_shard", Column::Int(shards)),
                ("b_due", of(|t| t.due_at.get())),
                (
                    "b_expire",
                    Column::IntOrNull(
                        order
                            .iter()
                            .map(|&i| timers[i].policies.expire_at(timers[i].due_at).map(UnixMs::get))
                            .collect(),
                    ),
                ),
                ("b_lane", of(|t| lane(&t.target))),
                ("b_minute", Column::Bool(order.iter().map(|&i| timers[i].minute).collect())),
                ("b_target", Column::Text(order.iter().map(|&i| json(&timers[i].target)).collect())),
                ("b_data", Column::BytesOrNull(order.iter().map(|&i| timers[i].data.clone()).collect())),
                ("b_labels", text(|t| t.labels.clone())),
                ("b_policies", text(|t| policies_json(&t.policies))),
                ("b_hash", Column::Bytes(order.iter().map(|&i| timers[i].request_hash.to_vec()).collect())),
                ("b_created", of(|t| t.created_at.get())),
            ],
        );
        let now = s.now(self.given());
        s.push(&format!(
            "WITH {batch} INSERT INTO timers ({columns}) \
             SELECT b_uid, b_id, b_caller_id, b_owner, b_shard, 0, b_due, \
             CASE WHEN b_due > {now} THEN b_due ELSE {now} END, b_expire, 1, 0, 0, 1, 0, b_lane, b_minute, \
             false, false, false, b_target, b_data, b_labels, b_policies, b_hash, b_created, NULL, NULL, NULL \
             FROM b WHERE true ON CONFLICT (uid) DO NOTHING RETURNING uid",
            columns = super::row::COLUMNS,
        ));
        s
    }

    fn shard(&self, timer: &NewTimer) -> i32 {
        shard_of(&self.namespace, timer.owner.as_deref().unwrap_or(timer.id.as_str()), self.shards)
    }

    /// The row that an insert has just made.
    fn fresh_row(&self, timer: &NewTimer, generation: Generation) -> TimerRow {
        let mut life = Life::new(timer.due_at, timer.created_at);
        life.generation = generation;
        TimerRow {
            uid: timer.uid,
            id: timer.id.as_str().to_owned(),
            caller_id: timer.caller_id,
            owner: timer.owner.clone(),
            shard: self.shard(timer),
            life,
            expire_at: timer.policies.expire_at(timer.due_at),
            epoch: Epoch(0),
            lane: lane(&timer.target),
            minute: timer.minute,
            target: timer.target.clone(),
            data: timer.data.clone(),
            labels: timer.labels.clone(),
            policies: timer.policies,
            request_hash: timer.request_hash,
            created_at: timer.created_at,
            claimed_at: None,
            node: None,
            via: None,
            ended_at: None,
            last: None,
        }
    }
}

/// An id of the service's own form says nothing that the uid does not: it is stored empty.
fn stored_id(timer: &NewTimer) -> String {
    if timer.id.server_uid().is_some() { String::new() } else { timer.id.as_str().to_owned() }
}

fn lane(target: &Target) -> i64 {
    match target {
        Target::Webhook(hook) => hook.lane(),
    }
}

fn policies_json(policies: &Policies) -> Option<String> {
    (*policies != Policies::default()).then(|| serde_json::to_string(policies).ok()).flatten()
}
