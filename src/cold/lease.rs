//! The lease: what is ready is given out to workers that ask.
//!
//! One transaction serves all workers of a queue that wait on a node. It locks the rows that it may give out, passing by
//! those that others have locked, decides in memory who gets what ([`crate::model::queue::Places`]), and writes that. A
//! timer's places change under the lock of its row alone, so of two nodes exactly one gives each of them out.
//!
//! Which node leads a shard does not matter here: leases outlive the node that gave them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::apply::MAX_BATCH;
use super::columns::{ALL, LIFE, SEATS, TimerColumn};
use super::outbox::{Batch, Happened};
use super::places::{PLACE, PlaceWrites, QueueTerms, Told, place_of};
use super::restore::MAY_FIRE;
use super::row::TimerRow;
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

/// The most workers of them for which a second look is taken, past what they may not have.
const MAX_SECOND_LOOKS: usize = 16;

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
    /// It was given out by this call; otherwise its worker had it already, and asked for that.
    pub is_new: bool,
}

/// The outcome of a lease.
#[derive(Debug, Default)]
pub struct LeaseAnswer {
    /// For each worker what it got, in the order asked.
    pub given: Vec<Vec<Leased>>,
    /// The queue is paused.
    pub is_paused: bool,
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
        };
        if may_give {
            let has_own = self.give_again(&mut tx, &mut desk, asking).await?;
            if !desk.terms.paused {
                let new: Vec<usize> = (0..asking.len()).filter(|i| !has_own.contains(i)).collect();
                self.give_new(&mut tx, &mut desk, asking, &new, turn).await?;
            }
        }
        let is_paused = desk.terms.paused;
        let (given, late) = Box::pin(self.write_leases(&mut tx, desk)).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Box::pin(self.tell_late(late)).await?;
        Ok(LeaseAnswer { given, is_paused })
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
        let mut s = Statement::new(self.dialect(), "lease_own");
        let holders = redo.iter().map(|&i| holder(desk.queue, &asking[i].worker)).collect();
        let batch = s.batch("b", vec![("b_holder", Column::Int(holders))]);
        let limit = s.int(MAX_ITEMS as i64);
        s.push(&format!(
            "WITH {batch} SELECT DISTINCT uid FROM places WHERE holder IN (SELECT b_holder FROM b) AND held IN (0, 2) \
             ORDER BY uid LIMIT {limit}"
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
            for (uid, row) in &desk.rows {
                let is_own = |place: &Place| {
                    place.worker == *worker
                        && (place.held == Held::Out
                            || (place.held == Held::Lost && row.is_free_for(worker, desk.now)))
                };
                own.extend(
                    row.places.iter().filter(|place| is_own(place)).map(|place| (place.given_at, *uid)),
                );
            }
            if own.is_empty() {
                continue;
            }
            has_own.insert(i);
            own.sort_unstable();
            for (_, uid) in own.into_iter().take(most) {
                desk.give_own(i, &asking[i], uid);
            }
        }
        Ok(has_own)
    }

    /// Locks these rows and reads their places.
    async fn lock_rows(&self, tx: &mut Tx, desk: &mut Desk<'_>, uids: &[Uid]) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "lease_lock");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let lock = self.dialect().lock("FOR UPDATE OF timers");
        s.push(&format!(
            "WITH {batch} SELECT {ALL} FROM timers JOIN b ON uid = b_uid WHERE audience IS NOT NULL AND {MAY_FIRE} \
             ORDER BY uid {lock}"
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
        let mut wanted: BTreeMap<i64, usize> = BTreeMap::new();
        for &i in who {
            for audience in asking[i].audiences(desk.queue) {
                *wanted.entry(audience).or_default() += asking[i].most;
            }
        }
        let ready = self.lock_ready(tx, desk, &wanted, None).await?;
        let mut ready = Ready::of(desk, ready);
        for &i in who {
            desk.give_ready(i, &asking[i], &mut ready, turn);
        }
        // What a worker may not have may hide what it may have: one of them, and nothing else, was looked at.
        let is_short = |desk: &Desk<'_>, i: usize| desk.given[i].len() < asking[i].most;
        let hidden: Vec<usize> = who
            .iter()
            .copied()
            .filter(|&i| is_short(desk, i) && ready.was_cut_for(&asking[i].audiences(desk.queue)))
            .take(MAX_SECOND_LOOKS)
            .collect();
        for i in hidden {
            let most = asking[i].most - desk.given[i].len();
            let wanted =
                asking[i].audiences(desk.queue).into_iter().map(|audience| (audience, most)).collect();
            let more = self.lock_ready(tx, desk, &wanted, Some(&asking[i])).await?;
            let mut more = Ready::of(desk, more);
            desk.give_ready(i, &asking[i], &mut more, turn);
        }
        Ok(())
    }

    /// Locks what is ready for these audiences, at most so many of each and each priority, the longest ready first; with a
    /// worker, only what it may have. Returns which, with whether there may be more.
    async fn lock_ready(
        &self,
        tx: &mut Tx,
        desk: &mut Desk<'_>,
        wanted: &BTreeMap<i64, usize>,
        of: Option<&Asking>,
    ) -> Result<Vec<(Uid, bool)>, Error> {
        let each: Vec<(i64, i64)> = wanted
            .keys()
            .flat_map(|audience| Priority::ALL.map(|priority| (*audience, i64::from(priority.code()))))
            .collect();
        // One limit for all: it cannot differ by row.
        let most = wanted.values().copied().max().unwrap_or(0).min(MAX_ITEMS);
        let mut s = Statement::new(self.dialect(), "lease_ready");
        let batch = s.batch(
            "b",
            vec![
                ("b_audience", Column::Int(each.iter().map(|one| one.0).collect())),
                ("b_rank", Column::Int(each.iter().map(|one| one.1).collect())),
            ],
        );
        let (now, limit) = (s.int(desk.now.get()), s.int(most as i64));
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
            if !asking.exclude.is_empty() {
                let excluded: Vec<String> = asking.exclude.iter().map(|uid| s.uuid(uid.0)).collect();
                which.push_str(&format!(" AND t.uid NOT IN ({})", excluded.join(", ")));
            }
            let late =
                format!(" AND (t.expire_at IS NULL OR t.expire_at >= {now} OR COALESCE(t.fresh, 0) = 0)");
            which.push_str(&late);
        }
        let columns = |alias: &str| {
            TimerColumn::EACH
                .iter()
                .map(|one| format!("{alias}.{}", one.name()))
                .collect::<Vec<_>>()
                .join(", ")
        };
        match self.dialect() {
            Dialect::Postgres => s.push(&format!(
                "WITH {batch} SELECT {} FROM b CROSS JOIN LATERAL (SELECT t.* FROM timers t WHERE {which} \
                 ORDER BY t.ready_at LIMIT {limit} FOR UPDATE OF t SKIP LOCKED) d",
                columns("d")
            )),
            Dialect::Sqlite => s.push(&format!(
                "WITH {batch} SELECT {} FROM b CROSS JOIN timers WHERE timers.rowid IN \
                 (SELECT t.rowid FROM timers t WHERE {which} ORDER BY t.ready_at LIMIT {limit})",
                columns("timers")
            )),
        };
        let rows = tx.fetch(s).await?;
        let mut found: Vec<(Uid, (i64, i16))> = Vec::with_capacity(rows.len());
        let mut counts: BTreeMap<(i64, i16), usize> = BTreeMap::new();
        for row in &rows {
            let group =
                (row.of(TimerColumn::Audience)?, row.of::<Option<i16>>(TimerColumn::Priority)?.unwrap_or(0));
            *counts.entry(group).or_default() += 1;
            found.push((Uid(row.get(0)?), group));
        }
        self.take_in(tx, desk, rows).await?;
        Ok(found.into_iter().map(|(uid, group)| (uid, counts[&group] >= most)).collect())
    }

    /// Writes what was given out.
    async fn write_leases(&self, tx: &mut Tx, desk: Desk<'_>) -> Result<(Vec<Vec<Leased>>, Batch), Error> {
        let Desk { rows, changed, places, told, given, .. } = desk;
        let rows: Vec<&TimerRow> = rows.values().filter(|row| changed.contains(&row.uid)).collect();
        for rows in rows.chunks(MAX_BATCH) {
            let written = [LIFE, SEATS, &[TimerColumn::ClaimedAt, TimerColumn::Node]].concat();
            tx.execute(self.update_statement("lease_update", &written, rows)).await?;
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

/// What is ready, by priority, the longest ready first.
struct Ready {
    of: [Vec<Uid>; 3],
    /// Audiences of which there may be more than was looked at.
    cut: HashSet<i64>,
}

impl Ready {
    fn of(desk: &Desk<'_>, found: Vec<(Uid, bool)>) -> Self {
        let mut ready = Self { of: Default::default(), cut: HashSet::new() };
        let mut sorted: Vec<(UnixMs, UnixMs, Uid, usize)> = Vec::with_capacity(found.len());
        for (uid, is_cut) in found {
            let Some(row) = desk.rows.get(&uid) else { continue };
            let rank = Priority::ALL.iter().position(|one| *one == row.priority).unwrap_or(1);
            let ready_at = row.seats.as_ref().and_then(|seats| seats.ready_at).unwrap_or_default();
            sorted.push((ready_at, row.life.due_at, uid, rank));
            if is_cut {
                ready.cut.extend(row.audience());
            }
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
        self.given[i].push(leased(row, &place, waited_ms, true));
        self.told.push(told);
    }

    /// Gives a worker a place again that it has or had last.
    fn give_own(&mut self, i: usize, asking: &Asking, uid: Uid) {
        let Some(row) = self.rows.get(&uid) else { return };
        let own = row.places.iter().find(|place| place.worker == asking.worker && place.held == Held::Out);
        match own {
            Some(place) => self.given[i].push(leased(row, place, 0, false)),
            None if !self.terms.paused => self.give(i, asking, uid),
            None => {}
        }
    }
}

fn leased(row: &TimerRow, place: &Place, waited_ms: i64, is_new: bool) -> Leased {
    Leased {
        delivery_id: place.delivery_id(row.uid, row.created_at),
        timer: row.id.clone(),
        due_at: row.life.due_at,
        attempt: place.attempt,
        data: row.body(),
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
        is_new,
    }
}
