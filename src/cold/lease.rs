//! The lease: what is ready is given out to workers that ask.
//!
//! One transaction serves all workers of a queue that wait on a node. It locks the rows that it may give out, passing by
//! those that others have locked, decides in memory who gets what ([`crate::model::queue::Places`]), and writes that. A
//! timer's places change under the lock of its row alone, so of two nodes exactly one gives each of them out.
//!
//! Which node leads a shard does not matter here: leases outlive the node that gave them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::apply::MAX_BATCH;
use super::columns::{LIFE, SEATS, TimerColumn};
use super::outbox::{Batch, Happened};
use super::places::{PLACE, PlaceWrites, QueueTerms, Told, place_of};
use super::restore::MAY_FIRE;
use super::row::{TimerRow, body_of};
use super::sql::{Column, Dialect, Statement, Tx};
use super::{ColdStore, Error};
use crate::clock::Monotonic;
use crate::model::id::Uid;
use crate::model::pointer::Pointer;
use crate::model::priority::Priority;
use crate::model::queue::{DEFAULT_LEASE, Held, LeaseToken, MAX_ITEMS, Place, To, holder};
use crate::model::subscription::Lifecycle;
use crate::model::time::{LAST, Span, UnixMs};
use crate::planted::Defect;

/// The most workers that one transaction serves.
pub const MAX_ASKING: usize = 200;

/// Once a transaction has given out so many places, it serves no further worker.
const MAX_GIVEN: usize = 2000;

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
    /// For whom there may be something for it.
    pub fn audiences(&self, queue: &str) -> BTreeSet<i64> {
        let own = To::Worker(self.worker.clone());
        let groups = self.groups.iter().map(|group| To::Group(group.clone()));
        [To::Any, own].into_iter().chain(groups).map(|to| to.audience(queue)).collect()
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
    /// Why nobody knows whether this was committed. What was given has to be taken back then.
    pub in_doubt: Option<Error>,
}

/// What a transaction of a lease has in hand.
struct Desk<'a> {
    queue: &'a str,
    now: UnixMs,
    node: &'a str,
    terms: QueueTerms,
    /// Locked rows, with their places.
    rows: BTreeMap<Uid, TimerRow>,
    changed: BTreeSet<Uid>,
    places: PlaceWrites,
    told: Vec<Told>,
    given: Vec<Vec<Leased>>,
    again: BTreeSet<usize>,
}

impl ColdStore {
    /// Gives out what is ready in a queue to these workers, the first first; at most [`MAX_ASKING`] of them. Never before
    /// the due time by the store's clock.
    pub async fn lease(
        &self,
        queue: &str,
        asking: &[Asking],
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
        asking: &[Asking],
        node: &str,
        turn: &mut Turn,
    ) -> Result<LeaseAnswer, Error> {
        let mut tx = self.pool.begin().await?;
        let (now, may_give) = self.lease_clock(&mut tx).await?;
        let names = || vec![queue.to_owned()];
        let terms = match self.queue_terms(&mut tx, names()).await?.remove(queue) {
            Some(terms) => terms,
            None => {
                self.make_queues(&mut tx, names().into_iter().collect()).await?;
                QueueTerms::default()
            }
        };
        let mut desk = Desk {
            queue,
            now,
            node,
            terms,
            rows: BTreeMap::new(),
            changed: BTreeSet::new(),
            places: PlaceWrites::default(),
            told: Vec::new(),
            given: asking.iter().map(|_| Vec::new()).collect(),
            again: BTreeSet::new(),
        };
        if may_give {
            let has_own = self.give_again(&mut tx, &mut desk, asking).await?;
            if !desk.terms.paused {
                let new: Vec<usize> = (0..asking.len()).filter(|i| !has_own.contains(i)).collect();
                self.give_new(&mut tx, &mut desk, asking, &new, turn).await?;
            }
        }
        let is_paused = desk.terms.paused;
        let mut again = std::mem::take(&mut desk.again);
        again.retain(|&i| desk.given[i].is_empty());
        let (given, late) = Box::pin(self.write_leases(&mut tx, desk)).await?;
        let answer = LeaseAnswer { given, again, is_paused, in_doubt: None };
        match tx.commit().await.map_err(Error::at_commit) {
            Ok(()) => {}
            Err(why) if why.is_ambiguous() => return Ok(LeaseAnswer { in_doubt: Some(why), ..answer }),
            Err(why) => return Err(why),
        }
        Box::pin(self.tell_late(late)).await?;
        Ok(answer)
    }

    /// The store's time, and whether anything may be given out: not by a node that has seen a later
    /// building of the store than this.
    async fn lease_clock(&self, tx: &mut Tx) -> Result<(UnixMs, bool), Error> {
        let mut s = Statement::new(self.dialect(), "lease_clock");
        let now = s.now(self.bound_now());
        s.push(&format!("SELECT {now}, incarnation FROM store"));
        let sent = Monotonic::now();
        let rows = tx.fetch(s).await?;
        let row = rows.first().ok_or_else(|| Error::Corrupt("the store has no row of itself".into()))?;
        let (now, incarnation) = (UnixMs::new(row.get(0)?), row.get::<i64>(1)?);
        self.clock.observe(sent, now);
        Ok((now, incarnation >= self.seen()))
    }

    /// Gives workers that want only what they have already that again; returns who has something. What is out keeps its
    /// token; what was lost and nobody has taken since is given out anew.
    async fn give_again(
        &self,
        tx: &mut Tx,
        desk: &mut Desk<'_>,
        asking: &[Asking],
    ) -> Result<HashSet<usize>, Error> {
        let redo: Vec<usize> = (0..asking.len()).filter(|&i| asking[i].redo).collect();
        let mut has_own = HashSet::new();
        if redo.is_empty() {
            return Ok(has_own);
        }
        let mut most: BTreeMap<i64, usize> = BTreeMap::new();
        for &i in &redo {
            let most = most.entry(holder(desk.queue, &asking[i].worker)).or_default();
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
        s.push(&format!(
            "WITH {batch} SELECT DISTINCT uid FROM (SELECT uid, b_most, \
             row_number() OVER (PARTITION BY holder ORDER BY held, given_at, uid) AS nth \
             FROM b CROSS JOIN places WHERE holder = b_holder AND held IN (0, 2)) own \
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

    /// Locks these rows and reads their places. Payloads are read once it is known who gets what.
    async fn lock_rows(&self, tx: &mut Tx, desk: &mut Desk<'_>, uids: &[Uid]) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "lease_lock");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let lock = self.dialect().lock("FOR UPDATE OF timers");
        s.push(&format!(
            "WITH {batch} SELECT {} FROM timers JOIN b ON uid = b_uid WHERE audience IS NOT NULL AND {MAY_FIRE} \
             ORDER BY uid {lock}",
            without_payload("timers", self.dialect())
        ));
        let rows = tx.fetch(s).await?;
        self.take_in(tx, desk, rows).await
    }

    /// Takes locked rows in hand, with their places.
    async fn take_in(
        &self,
        tx: &mut Tx,
        desk: &mut Desk<'_>,
        rows: Vec<super::sql::Row>,
    ) -> Result<(), Error> {
        let mut new: BTreeMap<Uid, TimerRow> = BTreeMap::new();
        for row in &rows {
            match TimerRow::read(row, false) {
                Ok(timer) => drop(new.insert(timer.uid, timer)),
                Err(why) => {
                    let uid = Uid(row.get(0)?);
                    tracing::error!(uid = %uid.0, %why, "a timer cannot be read by this version; it is not given out");
                }
            }
        }
        new.retain(|uid, timer| !desk.rows.contains_key(uid) && timer.target.queue() == Some(desk.queue));
        let had = new.values().filter(|row| row.life.tries > 0).map(|row| row.uid).collect();
        for (uid, places) in self.places_of(tx, had).await? {
            if let Some(row) = new.get_mut(&uid) {
                row.places = places;
                if self.planted.is(Defect::PlaceGivenTwice) {
                    let is_held = |place: &&mut Place| !matches!(place.held, Held::Returned | Held::Lost);
                    for place in row.places.iter_mut().filter(is_held) {
                        (place.held, place.until) = (Held::Lost, desk.now);
                    }
                }
            }
        }
        desk.rows.extend(new);
        Ok(())
    }

    /// Gives workers what is ready and new to them.
    async fn give_new(
        &self,
        tx: &mut Tx,
        desk: &mut Desk<'_>,
        asking: &[Asking],
        who: &[usize],
        turn: &mut Turn,
    ) -> Result<(), Error> {
        if who.is_empty() {
            return Ok(());
        }
        let mut wanted: BTreeMap<i64, usize> = BTreeMap::new();
        for &i in who {
            for audience in asking[i].audiences(desk.queue) {
                *wanted.entry(audience).or_default() += asking[i].most;
            }
        }
        let ready = self.lock_ready(tx, desk, &wanted, None, MAX_LOOKED_AT).await?;
        let mut ready = Ready::of(desk, ready);
        for &i in who {
            if desk.is_full() {
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
            .filter(|&i| ready.was_cut_for(&asking[i].audiences(desk.queue)))
            .collect();
        // Who has nothing goes first, and is served again if it is not its turn now.
        hidden.sort_by_key(|&i| !desk.given[i].is_empty());
        let later = hidden.split_off(hidden.len().min(MAX_SECOND_LOOKS));
        let rows = MAX_LOOKED_AT / hidden.len().max(1);
        for &i in &hidden {
            if desk.is_full() {
                desk.again.insert(i);
                continue;
            }
            let most = asking[i].most - desk.given[i].len();
            let wanted =
                asking[i].audiences(desk.queue).into_iter().map(|audience| (audience, most)).collect();
            let more = self.lock_ready(tx, desk, &wanted, Some(&asking[i]), rows).await?;
            let mut more = Ready::of(desk, more);
            desk.give_ready(i, &asking[i], &mut more, turn);
        }
        desk.again.extend(later);
        Ok(())
    }

    /// Locks what is ready for these audiences, at most so many of each and each priority, the longest ready first, and so many
    /// rows in all; with a worker, only what it may have.
    async fn lock_ready(
        &self,
        tx: &mut Tx,
        desk: &mut Desk<'_>,
        wanted: &BTreeMap<i64, usize>,
        of: Option<&Asking>,
        rows: usize,
    ) -> Result<Found, Error> {
        let limits: BTreeMap<i64, usize> =
            wanted.iter().map(|(audience, wanted)| (*audience, (*wanted).min(MAX_ITEMS))).collect();
        let most = limits.values().copied().max().unwrap_or(0);
        let mut s = Statement::new(self.dialect(), "lease_ready");
        let batch = s.batch(
            "b",
            vec![
                ("b_audience", Column::Int(limits.keys().copied().collect())),
                ("b_most", Column::Int(limits.values().map(|most| *most as i64).collect())),
            ],
        );
        let ranks = Priority::ALL.map(|priority| format!("SELECT {} AS b_rank", priority.code()));
        let each = format!("b CROSS JOIN ({}) r", ranks.join(" UNION ALL "));
        let (now, all) = (s.int(desk.now.get()), s.int(rows as i64));
        let mut which = format!(
            "t.audience = b_audience AND COALESCE(t.priority, 0) = b_rank AND t.ready_at IS NOT NULL \
             AND t.ready_at <= {now} AND {MAY_FIRE} AND {}",
            super::schedules::may_go(&now, "t")
        );
        if let Some(asking) = of {
            let worker = s.text(&asking.worker);
            which.push_str(&format!(
                " AND NOT EXISTS (SELECT 1 FROM places p WHERE p.uid = t.uid AND p.worker = {worker} \
                 AND (p.held = 0 OR (p.held IN (3, 4) AND COALESCE(t.dispatch, '') NOT LIKE '%\"repeat\":true%')))"
            ));
            // What this transaction has given out is not written yet, and its own locks do not keep it away.
            let mut taken = desk.taken_from(asking);
            taken.extend(&asking.exclude);
            if !taken.is_empty() {
                let none_of = s.none_of("t.uid", taken.iter().map(|uid| uid.0).collect());
                which.push_str(&format!(" AND {none_of}"));
            }
            let late =
                format!(" AND (t.expire_at IS NULL OR t.expire_at >= {now} OR COALESCE(t.fresh, 0) = 0)");
            which.push_str(&late);
        }
        let columns = |alias: &str| without_payload(alias, self.dialect());
        match self.dialect() {
            Dialect::Postgres => s.push(&format!(
                "WITH {batch} SELECT {} FROM {each} CROSS JOIN LATERAL (SELECT t.* FROM timers t WHERE {which} \
                 ORDER BY t.ready_at LIMIT b_most FOR UPDATE OF t SKIP LOCKED) d LIMIT {all}",
                columns("d")
            )),
            Dialect::Sqlite => {
                let limit = s.int(most as i64);
                let mut found =
                    format!("SELECT t.rowid AS id FROM timers t WHERE {which} ORDER BY t.ready_at LIMIT {limit}");
                // Its limit cannot differ by row.
                if limits.values().any(|one| *one != most) {
                    found = format!(
                        "SELECT id FROM (SELECT id, row_number() OVER () AS nth FROM ({found})) WHERE nth <= b_most"
                    );
                }
                s.push(&format!(
                    "WITH {batch} SELECT {} FROM {each} CROSS JOIN timers WHERE timers.rowid IN ({found}) LIMIT {all}",
                    columns("timers")
                ))
            }
        };
        let read = tx.fetch(s).await?;
        let mut found = Found { uids: Vec::with_capacity(read.len()), cut: HashSet::new() };
        let mut counts: BTreeMap<(i64, i16), usize> = BTreeMap::new();
        for row in &read {
            let audience: i64 = row.of(TimerColumn::Audience)?;
            let rank = row.of::<Option<i16>>(TimerColumn::Priority)?.unwrap_or(0);
            *counts.entry((audience, rank)).or_default() += 1;
            found.uids.push(Uid(row.get(0)?));
        }
        let is_cut =
            |(audience, count): (i64, usize)| limits.get(&audience).is_some_and(|most| count >= *most);
        let cut = counts.into_iter().map(|((audience, _), count)| (audience, count));
        found.cut.extend(cut.filter(|one| is_cut(*one)).map(|(audience, _)| audience));
        if read.len() >= rows {
            // Some were not come to.
            found.cut.extend(limits.keys());
        }
        self.take_in(tx, desk, read).await?;
        Ok(found)
    }

    /// Writes what was given out, and reads the payloads of it.
    async fn write_leases(&self, tx: &mut Tx, desk: Desk<'_>) -> Result<(Vec<Vec<Leased>>, Batch), Error> {
        let Desk { rows, changed, places, mut told, mut given, .. } = desk;
        let rows: Vec<&TimerRow> = rows.values().filter(|row| changed.contains(&row.uid)).collect();
        let mut payloads: BTreeMap<Uid, Option<Vec<u8>>> = BTreeMap::new();
        for rows in rows.chunks(MAX_BATCH) {
            let written = [LIFE, SEATS, &[TimerColumn::ClaimedAt, TimerColumn::Node]].concat();
            let mut s = self.update_statement("lease_update", &written, rows);
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
            s.push(&format!("WITH {batch} SELECT uid, data FROM b CROSS JOIN timers WHERE uid = b_uid"));
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
        self.write_places(tx, places).await?;
        if told.is_empty() {
            return Ok((given, Batch::default()));
        }
        let set = Box::pin(self.listeners(tx)).await?;
        let late = Box::pin(self.tell(tx, &set, Happened::of_places(&told))).await?;
        Ok((given, late))
    }

    /// Timers of queues that are due and wait for workers are not looked at any more until they would be too late.
    pub async fn park(&self, pointers: &[Pointer]) -> Result<(), Error> {
        let mut sorted: Vec<_> = pointers.to_vec();
        sorted.sort_by_key(|pointer| pointer.uid);
        let mut s = Statement::new(self.dialect(), "park");
        let of = |pick: fn(&Pointer) -> i64| Column::Int(sorted.iter().map(pick).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(sorted.iter().map(|pointer| pointer.uid.0).collect())),
                ("b_generation", of(|pointer| pointer.generation.0.into())),
            ],
        );
        let (now, last) = (s.now(self.bound_now()), s.int(LAST.get()));
        // Whoever is too late already is found again, and looked at.
        s.push(&format!(
            "WITH {batch} UPDATE timers SET wake_at = CASE WHEN expire_at IS NULL THEN {last} WHEN expire_at < {now} \
             THEN wake_at ELSE expire_at + 1 END FROM b WHERE uid = b_uid AND generation = b_generation \
             AND audience IS NOT NULL AND attempt = 0 AND state = 0 AND wake_at <= {now}"
        ));
        self.urgent.write(s).await.map(drop)
    }

    /// Which of these audiences have something ready.
    pub async fn ready_audiences(&self, audiences: &BTreeSet<i64>) -> Result<HashSet<i64>, Error> {
        let mut s = Statement::new(self.dialect(), "ready_audiences");
        let batch = s.batch("b", vec![("b_audience", Column::Int(audiences.iter().copied().collect()))]);
        let now = s.now(self.bound_now());
        let any = Priority::ALL.map(|priority| {
            format!(
                "EXISTS (SELECT 1 FROM timers WHERE audience = b_audience AND COALESCE(priority, 0) = {} \
                 AND ready_at IS NOT NULL AND ready_at <= {now})",
                priority.code()
            )
        });
        s.push(&format!("WITH {batch} SELECT b_audience FROM b WHERE {}", any.join(" OR ")));
        self.pool.read(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Timers of a queue of which these workers have places whose leases have ended, and nobody has looked since.
    pub async fn ended_leases(&self, queue: &str, workers: &[&str]) -> Result<Vec<Uid>, Error> {
        let mut s = Statement::new(self.dialect(), "ended_leases");
        let holders = workers.iter().map(|worker| holder(queue, worker)).collect();
        let batch = s.batch("b", vec![("b_holder", Column::Int(holders))]);
        let now = s.now(self.bound_now());
        let limit = s.int(MAX_BATCH as i64);
        s.push(&format!(
            "WITH {batch} SELECT DISTINCT uid FROM places WHERE holder IN (SELECT b_holder FROM b) AND held IN (0, 2) \
             AND held = 0 AND until_at <= {now} LIMIT {limit}"
        ));
        self.pool.read(s).await?.iter().map(|row| row.get(0).map(Uid)).collect()
    }

    /// The places of a timer that were given out, in order.
    pub async fn places(&self, uid: Uid) -> Result<Vec<Place>, Error> {
        let mut s = Statement::new(self.dialect(), "places");
        let uid = s.uuid(uid.0);
        s.push(&format!("SELECT {PLACE} FROM places WHERE uid = {uid} ORDER BY number"));
        self.pool.read(s).await?.iter().map(|row| place_of(row).map(|(_, place)| place)).collect()
    }
}

/// The select list of a row whose payload is left out.
fn without_payload(alias: &str, dialect: Dialect) -> String {
    let nothing = match dialect {
        Dialect::Postgres => "NULL::bytea",
        Dialect::Sqlite => "NULL",
    };
    let column = |one: &TimerColumn| match one {
        TimerColumn::Data => nothing.to_owned(),
        other => format!("{alias}.{}", other.name()),
    };
    TimerColumn::EACH.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// Whose turn it is among priorities: of 21 turns 16 are for high ones, 4 for normal ones, one for a low one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    credit: [i32; 3],
}

impl Turn {
    /// The next of these priorities, of which some have nothing (smooth weighted round-robin).
    fn next(&mut self, has: [bool; 3]) -> Option<usize> {
        let with: Vec<usize> = (0..3).filter(|&rank| has[rank]).collect();
        let total: i32 = with.iter().map(|&rank| Priority::ALL[rank].weight()).sum();
        for &rank in &with {
            self.credit[rank] += Priority::ALL[rank].weight();
        }
        let first = with.into_iter().max_by_key(|&rank| (self.credit[rank], -(rank as i32)))?;
        self.credit[first] -= total;
        Some(first)
    }
}

/// What a look has found.
struct Found {
    uids: Vec<Uid>,
    /// Audiences of which there may be more than was looked at.
    cut: HashSet<i64>,
}

/// What is ready, by priority, the longest ready first.
struct Ready {
    of: [Vec<Uid>; 3],
    /// Audiences of which there may be more than was looked at.
    cut: HashSet<i64>,
}

impl Ready {
    fn of(desk: &Desk<'_>, found: Found) -> Self {
        let mut ready = Self { of: Default::default(), cut: found.cut };
        let mut sorted: Vec<(UnixMs, UnixMs, Uid, usize)> = Vec::with_capacity(found.uids.len());
        for uid in found.uids {
            let Some(row) = desk.rows.get(&uid) else { continue };
            let rank = Priority::ALL.iter().position(|one| *one == row.priority).unwrap_or(1);
            let ready_at = row.seats.as_ref().and_then(|seats| seats.ready_at).unwrap_or_default();
            sorted.push((ready_at, row.life.due_at, uid, rank));
        }
        sorted.sort_unstable();
        for (_, _, uid, rank) in sorted {
            ready.of[rank].push(uid);
        }
        ready
    }

    fn was_cut_for(&self, audiences: &BTreeSet<i64>) -> bool {
        audiences.iter().any(|audience| self.cut.contains(audience))
    }
}

impl Desk<'_> {
    /// This transaction has given out enough.
    fn is_full(&self) -> bool {
        self.told.len() >= MAX_GIVEN
    }

    /// Gives a worker what is ready, in turn by priority, until it has what it asked for.
    fn give_ready(&mut self, i: usize, asking: &Asking, ready: &mut Ready, turn: &mut Turn) {
        let audiences = asking.audiences(self.queue);
        // Where each priority is looked at next: what this worker may not have is passed over, for this worker.
        let mut at = [0; 3];
        while self.given[i].len() < asking.most {
            for (at, of) in at.iter_mut().zip(&ready.of) {
                let may_have = |uid: &Uid| self.may_have(asking, &audiences, *uid);
                *at += of[*at..].iter().take_while(|uid| !may_have(uid)).count();
            }
            let has = [0, 1, 2].map(|rank| at[rank] < ready.of[rank].len());
            let Some(rank) = turn.next(has) else { return };
            let uid = ready.of[rank][at[rank]];
            self.give(i, asking, uid);
            at[rank] += 1;
        }
    }

    /// What was given out here, and this worker may have no place of.
    fn taken_from(&self, asking: &Asking) -> BTreeSet<Uid> {
        let audiences = asking.audiences(self.queue);
        self.changed.iter().copied().filter(|uid| !self.may_have(asking, &audiences, *uid)).collect()
    }

    fn may_have(&self, asking: &Asking, audiences: &BTreeSet<i64>, uid: Uid) -> bool {
        let Some(row) = self.rows.get(&uid) else { return false };
        let is_for = row.audience().is_some_and(|audience| audiences.contains(&audience));
        is_for && !asking.exclude.contains(&uid) && row.is_free_for(&asking.worker, self.now)
    }

    /// Gives a place of this timer out.
    fn give(&mut self, i: usize, asking: &Asking, uid: Uid) {
        let lease = asking.lease.or(self.terms.lease).unwrap_or(DEFAULT_LEASE);
        let until = self.now.plus(lease.get());
        let Some(row) = self.rows.get_mut(&uid) else { return };
        let ready_at = row.seats.as_ref().and_then(|seats| seats.ready_at);
        let is_lost = |place: &&Place| place.worker == asking.worker && place.held == Held::Lost;
        let lost: Vec<i32> = row.places.iter().filter(is_lost).map(|place| place.number).collect();
        let given = row.places().and_then(|mut places| places.give(&asking.worker, until, self.now));
        let Some(place) = given else { return };
        row.claimed_at = Some(self.now);
        row.node = Some(self.node.to_owned());
        self.changed.insert(uid);
        self.places.put(uid, self.queue, place.clone());
        let waited_ms = ready_at.map_or(0, |at| (self.now.get() - at.get()).max(0));
        let told = Told {
            kind: Lifecycle::QueueLeased,
            row: row.clone(),
            place: place.clone(),
            action: None,
            result: None,
            at: self.now,
        };
        let before = if lost.contains(&place.number) { Held::Lost } else { Held::Returned };
        self.given[i].push(leased(row, &place, waited_ms, Some(before)));
        self.told.push(told);
    }

    /// Gives a worker a place again that it has or had last.
    fn give_own(&mut self, i: usize, asking: &Asking, uid: Uid) {
        let Some(row) = self.rows.get(&uid) else { return };
        let own = row.places.iter().find(|place| place.worker == asking.worker && place.held == Held::Out);
        match own {
            Some(place) => self.given[i].push(leased(row, place, 0, None)),
            None if !self.terms.paused => self.give(i, asking, uid),
            None => {}
        }
    }
}

/// A place as its worker gets it, without the payload. `before` is what it was before this call gave it out; `None` if the
/// worker had it already.
fn leased(row: &TimerRow, place: &Place, waited_ms: i64, before: Option<Held>) -> Leased {
    Leased {
        delivery_id: place.delivery_id(row.uid, row.created_at),
        timer: row.id.clone(),
        due_at: row.life.due_at,
        attempt: place.attempt,
        data: Vec::new(),
        token: LeaseToken {
            uid: row.uid,
            created_at: row.created_at,
            given_at: place.given_at,
            generation: place.generation.0,
            place: place.number,
            giving: place.giving,
        },
        lease_until: place.until,
        waited_ms,
        before,
    }
}
