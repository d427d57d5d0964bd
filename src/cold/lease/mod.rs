//! The lease: what is ready is given out to workers that ask.
//!
//! One transaction serves all workers of a queue that wait on a node. It locks the rows that it may give out, passing by
//! those that others have locked, decides in memory who gets what ([`crate::model::queue::Places`]), and writes that. A
//! timer's places change under the lock of its row alone, so of two nodes exactly one gives each of them out.
//!
//! Which node leads a shard does not matter here: leases outlive the node that gave them.

mod desk;
mod look;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Deref;
use std::sync::Arc;

pub use desk::Turn;
use desk::{Desk, Ready};

use crate::cold::apply::MAX_BATCH;
use crate::cold::columns::{LIFE, SEATS, TimerColumn};
use crate::cold::outbox::{Batch, Happened};
use crate::cold::row::{TimerRow, body_of};
use crate::cold::sql::{Column, Dialect, Statement, Tx};
use crate::cold::{ColdStore, Error};
use crate::model::id::Uid;
use crate::model::namespace::Namespace;
use crate::model::queue::{Held, LeaseToken, To, holder};
use crate::model::time::{Span, UnixMs};

/// The most workers that one transaction serves.
pub const MAX_ASKING: usize = 200;

/// The most rows that a look at what is ready locks and reads, without their payloads; all second looks of a transaction
/// together look at as many.
const MAX_LOOKED_AT: usize = 10_000;

/// The most workers of a transaction for which a second look is taken, past what they may not have.
const MAX_SECOND_LOOKS: usize = 16;

/// The fewest places of its own that are looked at for a worker that wants only those: what it has lost it may not be able to
/// have again.
const MIN_OWN: usize = 100;

/// A worker that asks.
#[derive(Debug, Clone)]
pub struct Asking {
    /// Its name.
    pub worker: String,
    /// The groups that it is in.
    pub groups: Vec<String>,
    /// How many items it takes.
    pub most: usize,
    /// How long it wants to have them; `None` is what the queue says.
    pub lease: Option<Span>,
    /// Timers that it does not take.
    pub exclude: HashSet<Uid>,
    /// While it has anything, it wants that and nothing else.
    pub redo: bool,
}

impl Asking {
    /// The same, asked of a queue of this namespace.
    pub fn of(self, namespace: Namespace, queue: &str) -> Asker {
        let own = To::Worker(self.worker.clone());
        let groups = self.groups.iter().map(|group| To::Group(group.clone()));
        let to = [To::Any, own].into_iter().chain(groups);
        let audiences = to.map(|to| to.audience(namespace, queue)).collect();
        Asker(Arc::new((self, audiences)))
    }
}

/// A worker that asks a certain queue. One that waits asks many times.
#[derive(Debug, Clone)]
pub struct Asker(Arc<(Asking, BTreeSet<i64>)>);

impl Asker {
    /// For whom there may be something for it.
    pub fn audiences(&self) -> &BTreeSet<i64> {
        &self.0.1
    }
}

impl Deref for Asker {
    type Target = Asking;

    fn deref(&self) -> &Asking {
        &self.0.0
    }
}

/// A place that was given out.
#[derive(Debug, Clone)]
pub struct Leased {
    /// The id of its delivery.
    pub delivery_id: String,
    /// The timer's id.
    pub timer: String,
    /// When it was due.
    pub due_at: UnixMs,
    /// How often this delivery was given out.
    pub attempt: i32,
    /// The payload, JSON.
    pub data: Vec<u8>,
    /// What it is settled with.
    pub token: LeaseToken,
    /// Until when the worker has it.
    pub lease_until: UnixMs,
    /// How long it waited for a worker, in milliseconds: since it was due, or came back.
    pub waited_ms: i64,
    /// What becomes of its place if nobody gets this: lost by this very worker, as it was before, or given back. `None`: its
    /// worker had it already, and asked for that.
    pub before: Option<Held>,
}

/// The outcome of a lease.
#[derive(Debug, Default)]
pub struct LeaseAnswer {
    /// For each worker what it got, in the order asked.
    pub given: Vec<Vec<Leased>>,
    /// Workers that got nothing, by their position, and would perhaps in a transaction of their own: at once.
    pub again: BTreeSet<usize>,
    /// The queue is paused.
    pub is_paused: bool,
    /// There may be more for those who asked than they could take.
    pub has_more: bool,
    /// Why nobody knows whether this was committed. What was given has to be taken back then.
    pub in_doubt: Option<Error>,
}

impl ColdStore {
    /// Gives out what is ready in a queue of the namespace to these workers, the first first; at most [`MAX_ASKING`] of them. Never before
    /// the due time by the store's clock.
    pub async fn lease(
        &self,
        queue: &str,
        asking: &[Asker],
        node: &str,
        turn: &mut Turn,
    ) -> Result<LeaseAnswer, Error> {
        for _ in 0..3 {
            match Box::pin(self.lease_once(queue, asking, node, turn)).await {
                Err(why) if why.is_deadlock() => {}
                other => return other,
            }
        }
        Err(Error::Busy)
    }

    async fn lease_once(
        &self,
        queue: &str,
        asking: &[Asker],
        node: &str,
        turn: &mut Turn,
    ) -> Result<LeaseAnswer, Error> {
        let mut tx = self.pool.begin_soon().await?;
        let mut desk = Desk::of(self.namespace(), queue, node, asking.len());
        let redo: Vec<usize> = (0..asking.len()).filter(|&i| asking[i].redo).collect();
        let (mut may_give, mut has_own) = (true, HashSet::new());
        // Otherwise the look at what is ready hears what store and queue say. On SQLite that would cost more than a statement.
        if !redo.is_empty() || self.dialect() == Dialect::Sqlite {
            // Taken before: what the store becomes meanwhile must not keep from a worker what it has, and give it more.
            let seen = self.seen();
            let heard = self.hear(&mut tx, queue).await?;
            may_give = heard.incarnation >= seen;
            desk.note(heard);
            if may_give {
                has_own = self.give_again(&mut tx, &mut desk, asking, redo).await?;
            }
        }
        if may_give && !desk.terms.paused {
            let new: Vec<usize> = (0..asking.len()).filter(|i| !has_own.contains(i)).collect();
            self.give_new(&mut tx, &mut desk, asking, &new, turn).await?;
        }
        // Who asks for ever new names leaves no more rows than these; there is nothing in such a queue.
        if desk.has_queue == Some(false) && self.has_queue_room(&mut tx).await? {
            self.make_queues(&mut tx, BTreeSet::from([(self.namespace(), queue.to_owned())])).await?;
        }
        let (is_paused, has_more) = (desk.terms.paused, desk.has_more);
        let mut again = std::mem::take(&mut desk.again);
        again.retain(|&i| desk.given[i].is_empty());
        let (given, late) = Box::pin(self.write_leases(&mut tx, desk)).await?;
        let answer = LeaseAnswer { given, again, is_paused, has_more, in_doubt: None };
        match tx.commit().await.map_err(Error::at_commit) {
            Ok(()) => {}
            Err(why) if why.is_ambiguous() => return Ok(LeaseAnswer { in_doubt: Some(why), ..answer }),
            Err(why) => return Err(why),
        }
        Box::pin(self.tell_late(late)).await?;
        Ok(answer)
    }

    /// Gives these workers, which want only what they have already, that again; returns who has something. What is out keeps its
    /// token; what was lost and nobody has taken since is given out anew.
    async fn give_again(
        &self,
        tx: &mut Tx,
        desk: &mut Desk<'_>,
        asking: &[Asker],
        redo: Vec<usize>,
    ) -> Result<HashSet<usize>, Error> {
        let mut has_own = HashSet::new();
        if redo.is_empty() {
            return Ok(has_own);
        }
        let mut most: BTreeMap<i64, usize> = BTreeMap::new();
        for &i in &redo {
            let most = most.entry(holder(desk.namespace, desk.queue, &asking[i].worker)).or_default();
            *most = asking[i].most.max(MIN_OWN).max(*most);
        }
        let mut s = Statement::new(self.dialect(), "lease_own");
        let batch = s.batch(
            "b",
            vec![
                ("b_holder", Column::Int(most.keys().copied().collect())),
                ("b_most", Column::Int(most.values().map(|most| *most as i64).collect())),
            ],
        );
        // What it has goes before what it has lost.
        let places = self.dialect().each("places", "holder = b_holder AND held IN (0, 2)", "");
        s.push(&format!(
            "WITH {batch} SELECT DISTINCT uid FROM (SELECT uid, b_most, \
             row_number() OVER (PARTITION BY holder ORDER BY held, given_at, uid) AS nth FROM b {places}) own \
             WHERE nth <= b_most ORDER BY uid"
        ));
        let own: Vec<Uid> =
            tx.fetch(s).await?.iter().map(|row| row.get(0).map(Uid)).collect::<Result<_, _>>()?;
        if own.is_empty() {
            return Ok(has_own);
        }
        // These are waited for: a worker that settles its task and asks for the next must not get a second one.
        self.lock_rows(tx, desk, &own).await?;
        for i in redo {
            let (worker, most) = (&asking[i].worker, asking[i].most);
            let mut own: Vec<(UnixMs, Uid)> = Vec::new();
            let mut has_ended = false;
            for (uid, row) in &desk.rows {
                for place in row.places.iter().filter(|place| place.worker == *worker) {
                    match place.held {
                        Held::Out if place.until > desk.now => own.push((place.given_at, *uid)),
                        // Its lease ended just now. Once somebody has looked at that, it is given out anew.
                        Held::Out => has_ended = true,
                        Held::Lost if row.is_free_for(worker, desk.now) => own.push((place.given_at, *uid)),
                        _ => {}
                    }
                }
            }
            if own.is_empty() && !has_ended {
                continue;
            }
            has_own.insert(i);
            if desk.is_full() {
                desk.again.insert(i);
                continue;
            }
            own.sort_unstable();
            for (_, uid) in own.into_iter().take(most) {
                desk.give_own(i, &asking[i], uid);
            }
            if has_ended {
                desk.again.insert(i);
            }
        }
        Ok(has_own)
    }

    /// Gives workers what is ready and new to them.
    async fn give_new(
        &self,
        tx: &mut Tx,
        desk: &mut Desk<'_>,
        asking: &[Asker],
        who: &[usize],
        turn: &mut Turn,
    ) -> Result<(), Error> {
        if who.is_empty() {
            return Ok(());
        }
        let mut wanted: BTreeMap<i64, usize> = BTreeMap::new();
        for &i in who {
            for audience in asking[i].audiences() {
                *wanted.entry(*audience).or_default() += asking[i].most;
            }
        }
        let ready = self.lock_ready(tx, desk, &wanted, None, MAX_LOOKED_AT).await?;
        let mut ready = Ready::of(desk, ready);
        desk.has_more = ready.was_cut();
        for &i in who {
            if desk.is_full() || desk.has_served_another(i, asking) {
                desk.again.insert(i);
            } else {
                desk.give_ready(i, &asking[i], &mut ready, turn);
            }
        }
        // What a worker may not have may hide what it may have: one of them, and nothing else, was looked at.
        let is_short = |desk: &Desk<'_>, i: usize| desk.given[i].len() < asking[i].most;
        let mut hidden: Vec<usize> = who
            .iter()
            .copied()
            .filter(|&i| is_short(desk, i) && !desk.again.contains(&i))
            .filter(|&i| ready.was_cut_for(asking[i].audiences()))
            .collect();
        // Who has nothing goes first, and is served again if it is not its turn now.
        hidden.sort_by_key(|&i| !desk.given[i].is_empty());
        let later = hidden.split_off(hidden.len().min(MAX_SECOND_LOOKS));
        let rows = MAX_LOOKED_AT / hidden.len().max(1);
        for &i in &hidden {
            if desk.is_full() || desk.has_served_another(i, asking) {
                desk.again.insert(i);
                continue;
            }
            let most = asking[i].most - desk.given[i].len();
            let wanted = asking[i].audiences().iter().map(|audience| (*audience, most)).collect();
            let more = self.lock_ready(tx, desk, &wanted, Some(&asking[i]), rows).await?;
            let mut more = Ready::of(desk, more);
            desk.give_ready(i, &asking[i], &mut more, turn);
        }
        desk.again.extend(later);
        Ok(())
    }

    /// Writes what was given out, and reads the payloads of it.
    async fn write_leases(&self, tx: &mut Tx, desk: Desk<'_>) -> Result<(Vec<Vec<Leased>>, Batch), Error> {
        let Desk { rows, changed, places, mut told, mut given, .. } = desk;
        let rows: Vec<&TimerRow> = rows.values().filter(|row| changed.contains(&row.uid)).collect();
        let written = [LIFE, SEATS, &[TimerColumn::ClaimedAt, TimerColumn::Node]].concat();
        let mut payloads: BTreeMap<Uid, Option<Vec<u8>>> = BTreeMap::new();
        // In one statement where one can write both: workers wait for each.
        let (mut together, apart) = match self.dialect() {
            Dialect::Postgres => (Some(places), None),
            Dialect::Sqlite => (None, Some(places)),
        };
        for rows in rows.chunks(MAX_BATCH) {
            let mut s = self.update_statement("lease_update", &written, rows, together.take());
            s.push(" RETURNING uid, data");
            for row in tx.fetch(s).await? {
                payloads.insert(Uid(row.get(0)?), row.get(1)?);
            }
        }
        // What their workers had already was not written.
        let had = given.iter().flatten().map(|item| item.token.uid);
        let had: BTreeSet<Uid> = had.filter(|uid| !changed.contains(uid)).collect();
        if !had.is_empty() {
            let mut s = Statement::new(self.dialect(), "lease_data");
            let batch = s.batch("b", vec![("b_uid", Column::Uuid(had.iter().map(|uid| uid.0).collect()))]);
            let is_it = self.dialect().keyed("uid", "b_uid");
            s.push(&format!("WITH {batch} SELECT uid, data FROM b CROSS JOIN timers WHERE {is_it}"));
            for row in tx.fetch(s).await? {
                payloads.insert(Uid(row.get(0)?), row.get(1)?);
            }
        }
        for item in given.iter_mut().flatten() {
            item.data = body_of(payloads.get(&item.token.uid).cloned().flatten());
        }
        for told in &mut told {
            told.row.data = payloads.get(&told.row.uid).cloned().flatten();
        }
        if let Some(places) = apart {
            self.write_places(tx, places).await?;
        }
        if told.is_empty() {
            return Ok((given, Batch::default()));
        }
        let set = Box::pin(self.listeners(tx)).await?;
        let late = Box::pin(self.tell(tx, &set, Happened::of_places(&told))).await?;
        Ok((given, late))
    }
}
