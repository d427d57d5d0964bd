//! The look for due rows, and the claim: the one SQL transition that decides that a generation fires now.

use std::collections::HashSet;

use super::columns::{self, AFTER, ALL, TimerColumn};
use super::merge::{ClaimedSet, Doubtful};
use super::restore::{IS_ACCEPTED, MAY_FIRE};
use super::row::{TimerRow, priority_of};
use super::sql::{Column, Dialect, Row, Statement};
use super::{ColdStore, Error};
use crate::clock::Monotonic;
use crate::model::id::{Epoch, Generation, Uid, Version};
use crate::model::namespace::Namespace;
use crate::model::pointer::{Pointer, Via};
use crate::model::priority::Priority;
use crate::model::target::Kind;
use crate::model::time::UnixMs;
use crate::model::timer::State;
use crate::planted::Defect;

/// The most timers one statement claims.
pub const MAX_BATCH: usize = 256;

/// A row that became claimable longer before it was looked at than this, in milliseconds, was not claimed for another
/// reason than its time.
const SINCE_CLAIM_MS: i64 = 100;

/// The wait, in milliseconds, after which timers come again that merge and could not be claimed.
const FAILED_WAIT_MS: i64 = 200;

/// The columns of a pointer.
pub(super) const POINTER: &[TimerColumn] = &[
    TimerColumn::Uid,
    TimerColumn::Shard,
    TimerColumn::Generation,
    TimerColumn::Attempt,
    TimerColumn::WakeAt,
    TimerColumn::Lane,
    TimerColumn::Minute,
    TimerColumn::Priority,
    TimerColumn::Version,
    TimerColumn::Kind,
    TimerColumn::Namespace,
];

/// Reads a pointer from a row that begins with the columns of [`POINTER`].
pub(super) fn pointer_of(row: &Row, via: Via) -> Result<Pointer, Error> {
    macro_rules! at {
        ($column:ident) => {
            row.get(const { columns::position(POINTER, TimerColumn::$column) })?
        };
    }
    Ok(Pointer {
        uid: Uid(at!(Uid)),
        shard: at!(Shard),
        namespace: Namespace::of_stored(at!(Namespace)),
        generation: Generation(at!(Generation)),
        attempt: at!(Attempt),
        wake_at: UnixMs::new(at!(WakeAt)),
        lane: at!(Lane),
        minute: at!(Minute),
        is_for_queue: row.get::<Option<i16>>(const { columns::position(POINTER, TimerColumn::Kind) })?
            == Some(Kind::Queue.code()),
        priority: priority_of(at!(Priority)),
        change: Version(at!(Version)).change(),
        overdue: false,
        via,
    })
}

/// A row whose `wake_at` has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueRow {
    /// The pointer to it.
    pub pointer: Pointer,
    /// `scheduled`, `retrying`, or `delivering` when its claim has expired.
    pub state: State,
    /// Whether it is overdue by more than its grace and must end as `expired`.
    pub too_late: bool,
    /// Whether this build knows the kind of its target; a row of an unknown kind is not claimed.
    pub is_known_kind: bool,
    /// Whether it was held since the store was restored, and an operator has not accepted it: it must end as `expired`.
    pub is_discarded: bool,
}

/// The result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The claimed rows as they are now.
    pub rows: Vec<TimerRow>,
    /// Claimed rows that this version cannot read.
    pub unreadable: Vec<Uid>,
    /// Claimed timers that merge and had company.
    pub sets: Vec<ClaimedSet>,
    /// Timers that may be claimed later.
    pub early: Vec<Early>,
    /// Timers that merge and may be claimed, because an answer was lost.
    pub doubtful: Vec<Doubtful>,
}

/// A timer whose claim came too early by the store's clock, or whose pointer came up in place of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Early {
    /// The pointer that it needs.
    pub pointer: Pointer,
    /// In how many milliseconds it may be claimed; 0 is at once.
    pub wait_ms: i64,
    /// It was moved to a later moment, and no other pointer leads to it.
    pub is_moved: bool,
}

/// A look for due rows in one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The shard.
    pub shard: i32,
    /// The lowest `wake_at` to look at; `i64::MIN` for full depth. During a long transaction the index keeps
    /// dead entries, and a probe without a lower bound reads all of them.
    pub floor: i64,
    /// How long, in milliseconds, a row must have been due. Until then the wheels are expected to bring it.
    pub grace_ms: i64,
}

/// Lanes with a backlog: so many attempts of one priority are queued in them on this node that their rows are skipped.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Backlogged {
    /// Lanes with a backlog of first attempts, and its priority.
    pub first: Vec<(i64, Priority)>,
    /// Lanes with a backlog of further attempts.
    pub retry: Vec<(i64, Priority)>,
    /// Lanes of destinations that are paused. Their rows are not found too late, either: that is judged at the resume.
    pub held: Vec<i64>,
}

impl Backlogged {
    /// Whether no lane has a backlog; some may be held.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.retry.is_empty()
    }
}

/// The result of a look for due rows.
#[derive(Debug, Default)]
pub struct DueRows {
    /// The rows, earliest `wake_at` first.
    pub rows: Vec<DueRow>,
    /// The store's time of the look; `None` when no row was found.
    pub store_now: Option<UnixMs>,
}

/// The condition that the lane of a row has a backlog of its priority.
fn skipped(s: &mut Statement, backlogged: &Backlogged) -> String {
    let mut of = |lanes: &[(i64, Priority)], priority| {
        let lanes: Vec<i64> =
            lanes.iter().filter(|(_, one)| *one == priority).map(|(lane, _)| *lane).collect();
        s.among(&lanes)
    };
    let mut condition = |priority| {
        let (first, retry) = (of(&backlogged.first, priority), of(&backlogged.retry, priority));
        format!("CASE WHEN t.attempt = 0 THEN t.lane {first} ELSE t.lane {retry} END")
    };
    let plain = condition(Priority::Normal);
    let is_plain = |(_, priority): &(i64, Priority)| *priority == Priority::Normal;
    if backlogged.first.iter().chain(&backlogged.retry).all(is_plain) {
        return format!("(t.priority IS NULL AND {plain})");
    }
    let (high, low) = (condition(Priority::High), condition(Priority::Low));
    format!("CASE COALESCE(t.priority, 0) WHEN 0 THEN {plain} WHEN 1 THEN {high} ELSE {low} END")
}

impl ColdStore {
    /// Rows of these shards whose `wake_at` has passed by more than the probe's grace: at most `limit`, at most
    /// `per_shard` of each shard, earliest first. Attempts to be sent in lanes with a backlog are skipped; expired
    /// claims, and rows that have to end as `expired`, are not.
    pub async fn due(
        &self,
        probes: &[Probe],
        backlogged: &Backlogged,
        limit: usize,
        per_shard: usize,
    ) -> Result<DueRows, Error> {
        self.due_where("", probes, backlogged, limit, per_shard).await
    }

    /// The same of timers whose priority is high. They have an index of their own, so that nothing is read past.
    pub async fn due_high(
        &self,
        probes: &[Probe],
        backlogged: &Backlogged,
        limit: usize,
        per_shard: usize,
    ) -> Result<DueRows, Error> {
        self.due_where("AND t.priority = 1", probes, backlogged, limit, per_shard).await
    }

    async fn due_where(
        &self,
        which: &str,
        probes: &[Probe],
        backlogged: &Backlogged,
        limit: usize,
        per_shard: usize,
    ) -> Result<DueRows, Error> {
        let mut s = Statement::new(self.dialect(), "due");
        let of = |pick: fn(&Probe) -> i64| Column::Int(probes.iter().map(pick).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_shard", of(|probe| i64::from(probe.shard))),
                ("b_floor", of(|probe| probe.floor)),
                ("b_grace", of(|probe| probe.grace_ms)),
            ],
        );
        let now = s.now(self.bound_now());
        let (limit, per_shard) = (s.int(limit as i64), s.int(per_shard as i64));
        let skipped = skipped(&mut s, backlogged);
        // The condition is there only where a destination is held.
        let held = match backlogged.held.as_slice() {
            [] => String::new(),
            held => format!("AND (t.state = 1 OR NOT t.lane {})", s.among(held)),
        };
        let (pointer, known) = (columns::list(POINTER), columns::is_known_kind());
        // A timer that merges may wait for others, and is judged by their moment: its claim is, first.
        let columns = format!(
            "{pointer}, state, CASE WHEN expire_at < {now} AND attempt = 0 AND (merge_key IS NULL OR wake_at > due_at) \
             THEN true ELSE false END, {known}, \
             COALESCE({MAY_FIRE}, false)"
        );
        let probe = format!(
            "FROM timers t WHERE t.shard = b_shard AND t.wake_at >= b_floor AND t.wake_at <= {now} - b_grace {which} \
             AND t.state <> 3 AND (t.state = 1 OR {MAY_FIRE} OR {IS_ACCEPTED}) AND (t.state <> 1 OR {known}) AND (t.state = 1 OR (t.attempt = 0 AND t.expire_at < {now}) \
             OR NOT {skipped}) {held} ORDER BY t.wake_at LIMIT {per_shard}"
        );
        match self.dialect() {
            Dialect::Postgres => s.push(&format!(
                "WITH {batch} SELECT d.*, {now} FROM b CROSS JOIN LATERAL (SELECT {columns} {probe}) d \
                 ORDER BY wake_at LIMIT {limit}"
            )),
            Dialect::Sqlite => s.push(&format!(
                "WITH {batch} SELECT {columns}, {now} FROM b CROSS JOIN timers \
                 WHERE timers.rowid IN (SELECT t.rowid {probe}) ORDER BY wake_at LIMIT {limit}"
            )),
        };
        let mut due = DueRows::default();
        for row in self.pool.read(s).await? {
            let pointer = pointer_of(&row, Via::Sweep)?;
            let after = POINTER.len();
            let state =
                State::from_code(row.get(after)?).ok_or_else(|| Error::Corrupt("an unknown state".into()))?;
            let too_late = row.get::<bool>(after + 1)? && state == State::Scheduled;
            let (is_known_kind, may_fire) = (row.get(after + 2)?, row.get::<bool>(after + 3)?);
            due.rows.push(DueRow { pointer, state, too_late, is_known_kind, is_discarded: !may_fire });
            due.store_now = Some(UnixMs::new(row.get(after + 4)?));
        }
        Ok(due)
    }

    /// Claims the timers of these pointers, each under the epoch beside it. Returns the rows as they are now:
    /// `delivering`, one attempt more, `wake_at` at the claim's expiry.
    ///
    /// A pointer claims nothing, and is missing from the answer, when its generation or attempt is no longer
    /// the row's, when it is due later than `lead_ms` from now by the store's clock, when the epoch is no
    /// longer the shard's, when a first attempt would come later than the timer's grace, when this build
    /// does not know the kind of its target, when the store was restored and the timer is held, or when its schedule has
    /// to judge it first. Told apart are
    /// those that came too early, and those of timers that were moved and rely on this pointer ([`Claimed::early`]).
    ///
    /// The shard's row is locked `FOR KEY SHARE`, so a take-over, which changes the epoch, waits for running
    /// claims.
    ///
    /// The claim may come up to `lead_ms` before the due time; the caller must not send before it.
    ///
    /// A row that a stranger has locked does not hold up the others: it is missing from the answer too.
    pub async fn claim(
        &self,
        pointers: &[(Pointer, Epoch)],
        node: &str,
        lead_ms: i64,
    ) -> Result<Claimed, Error> {
        self.unblocked(|skip_locked| self.claim_once(pointers, node, lead_ms, skip_locked)).await
    }

    async fn claim_once(
        &self,
        pointers: &[(Pointer, Epoch)],
        node: &str,
        lead_ms: i64,
        skip_locked: bool,
    ) -> Result<Claimed, Error> {
        let mut sorted: Vec<_> = pointers.to_vec();
        sorted.sort_by_key(|(pointer, _)| pointer.uid);
        let mut s = Statement::new(self.dialect(), "claim");
        let of = |pick: fn(&(Pointer, Epoch)) -> i64| Column::Int(sorted.iter().map(pick).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(sorted.iter().map(|(pointer, _)| pointer.uid.0).collect())),
                ("b_generation", of(|(pointer, _)| i64::from(pointer.generation.0))),
                ("b_attempt", of(|(pointer, _)| i64::from(pointer.attempt))),
                ("b_shard", of(|(pointer, _)| i64::from(pointer.shard))),
                ("b_epoch", of(|(_, epoch)| epoch.0)),
                ("b_via", of(|(pointer, _)| i64::from(pointer.via.code()))),
            ],
        );
        let now = s.now(self.bound_now());
        let ttl = s.int(self.claim_ttl_ms());
        let by = s.text(node);
        let lead = s.int(lead_ms);
        let seen = s.int(self.seen());
        let lock = self.dialect().lock("FOR KEY SHARE");
        let mut same_epoch = "AND own_epoch = b_epoch";
        if self.planted.is(Defect::ClaimWithoutEpoch) {
            same_epoch = "";
        }
        let mut same_attempt = format!(
            "AND generation = b_generation AND attempt = b_attempt \
             AND wake_at <= {now} + {lead} AND due_at <= {now} + {lead}"
        );
        if self.planted.is(Defect::ClaimWithoutGeneration) {
            same_attempt.clear();
        }
        let known = columns::is_sent_kind();
        let goes_alone = super::merge::goes_alone();
        let may_go = super::schedules::may_go(&now, "timers", self.held());
        let is_it = self.dialect().keyed("uid", "b_uid");
        let (free, those) = match (self.dialect(), skip_locked) {
            (Dialect::Postgres, true) => (
                format!(
                    ", free AS (SELECT b.* FROM timers JOIN b ON {is_it} FOR NO KEY UPDATE OF timers SKIP LOCKED)"
                ),
                "free AS b",
            ),
            _ => (String::new(), "b"),
        };
        s.push(&format!(
            "WITH {batch}, own AS (SELECT shard AS own_shard, epoch AS own_epoch FROM shards \
               WHERE shard IN (SELECT b_shard FROM b) ORDER BY shard {lock}){free} \
             UPDATE timers SET state = 1, attempt = attempt + 1, tries = tries + 1, epoch = own_epoch, \
               wake_at = {now} + {ttl}, claimed_at = {now}, node = {by}, via = b_via \
             FROM {those}, own WHERE own_shard = b_shard {same_epoch} \
               AND {is_it} AND COALESCE(shard = b_shard {same_attempt} AND state IN (0, 2) AND {goes_alone} AND {known} \
               AND {may_go} AND (expire_at IS NULL OR attempt > 0 OR expire_at >= {now}) \
               AND (SELECT incarnation FROM store) >= {seen} AND {MAY_FIRE}, false) \
             RETURNING {ALL}, {now}"
        ));
        let sent = Monotonic::now();
        let rows = self.urgent.write(s).await?;
        if let Some(row) = rows.first() {
            self.clock.observe(sent, UnixMs::new(row.get(AFTER)?));
        }
        let mut claimed = Claimed::default();
        for row in &rows {
            match TimerRow::read(row, false) {
                Ok(row) => claimed.rows.push(row),
                Err(why) => {
                    let uid = Uid(row.get(0)?);
                    tracing::error!(uid = %uid.0, %why, "a timer was claimed and cannot be read by this version; it is not sent");
                    claimed.unreadable.push(uid);
                }
            }
        }
        let got: HashSet<Uid> =
            claimed.rows.iter().map(|row| row.uid).chain(claimed.unreadable.iter().copied()).collect();
        sorted.retain(|(pointer, _)| !got.contains(&pointer.uid));
        if !sorted.is_empty() {
            // Without an answer they are dropped like any other, and the sweep finds them.
            let (early, merging) = self.early(&sorted, lead_ms).await.unwrap_or_default();
            claimed.early = early;
            sorted.retain(|(pointer, _)| merging.contains(&pointer.uid));
        }
        if !sorted.is_empty() {
            self.merge_into(&mut claimed, &sorted, node, lead_ms, skip_locked).await;
        }
        Ok(claimed)
    }

    /// Claims timers that merge, beside those that are claimed already. A failure is not the whole claim's: what was not
    /// claimed comes again.
    async fn merge_into(
        &self,
        claimed: &mut Claimed,
        pointers: &[(Pointer, Epoch)],
        node: &str,
        lead_ms: i64,
        skip_locked: bool,
    ) {
        let claim = |skip| self.claim_merging(pointers, node, lead_ms, skip || skip_locked);
        match self.unblocked(claim).await {
            Ok(merging) => {
                claimed.sets = merging.sets;
                claimed.unreadable.extend(merging.unreadable);
                claimed.early.extend(merging.early);
                claimed.doubtful = merging.doubtful;
            }
            Err(why) => {
                tracing::debug!(%why, batch = pointers.len(), "timers that merge cannot be claimed");
                let again = |(pointer, _): &(Pointer, Epoch)| Early {
                    pointer: *pointer,
                    wait_ms: FAILED_WAIT_MS,
                    is_moved: true,
                };
                claimed.early.extend(pointers.iter().map(again));
            }
        }
    }

    /// Which of these pointers, whose claim got nothing, came too early, and when they may be claimed. Rows that have
    /// become claimable since, within [`SINCE_CLAIM_MS`], are among them. So are timers that were moved and rely on one
    /// of these pointers, each until it was found once. The second list are timers that merge, and whose time has come.
    async fn early(
        &self,
        pointers: &[(Pointer, Epoch)],
        lead_ms: i64,
    ) -> Result<(Vec<Early>, HashSet<Uid>), Error> {
        let mut s = Statement::new(self.dialect(), "early");
        let of = |pick: fn(&Pointer) -> i64| Column::Int(pointers.iter().map(|(p, _)| pick(p)).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(pointers.iter().map(|(pointer, _)| pointer.uid.0).collect())),
                ("b_generation", of(|pointer| i64::from(pointer.generation.0))),
                ("b_attempt", of(|pointer| i64::from(pointer.attempt))),
                ("b_wake", of(|pointer| pointer.wake_at.get())),
            ],
        );
        let now = s.now(self.bound_now());
        let (lead, since) = (s.int(lead_ms), s.int(SINCE_CLAIM_MS));
        let (pointer, known) = (columns::list(POINTER), columns::is_sent_kind());
        let is_it = self.dialect().keyed("uid", "b_uid");
        s.push(&format!(
            "WITH {batch}, waiting AS (SELECT {pointer}, CASE WHEN due_at > wake_at THEN due_at ELSE wake_at END - {lead} \
               AS claimable_at, CASE WHEN merge_key IS NULL THEN false ELSE true END AS merges, \
               CASE WHEN generation = b_generation AND attempt = b_attempt THEN true ELSE false END \
               AS is_same, CASE WHEN pointed_at = b_wake AND wake_at <> b_wake THEN true ELSE false END AS is_moved \
               FROM b CROSS JOIN timers WHERE {is_it} AND COALESCE(state IN (0, 2) AND {known} \
               AND (pointed_at = b_wake OR (generation = b_generation AND attempt = b_attempt)), false)) \
             SELECT {pointer}, claimable_at, {now}, is_moved, \
               CASE WHEN merges AND is_same AND claimable_at <= {now} THEN true ELSE false END FROM waiting \
             WHERE merges OR NOT is_same OR claimable_at > {now} - {since}"
        ));
        let sent = Monotonic::now();
        let rows = self.urgent.read(s).await?;
        let after = POINTER.len();
        if let Some(row) = rows.first() {
            self.clock.observe(sent, UnixMs::new(row.get(after + 1)?));
        }
        let (mut early, mut merging) = (Vec::new(), HashSet::new());
        for row in &rows {
            let pointer = pointer_of(row, Via::Express)?;
            if row.get(after + 3)? {
                merging.insert(pointer.uid);
                continue;
            }
            let wait_ms = (row.get::<i64>(after)? - row.get::<i64>(after + 1)?).max(0);
            early.push(Early { pointer, wait_ms, is_moved: row.get(after + 2)? });
        }
        Ok((early, merging))
    }

    /// Postpones due rows that cannot be sent now, so that they do not hide others from the sweep: `wake_at`
    /// becomes the store's time plus the milliseconds beside the pointer. The due time stays.
    pub async fn postpone(&self, pointers: &[(Pointer, i64)]) -> Result<(), Error> {
        let mut sorted: Vec<_> = pointers.to_vec();
        sorted.sort_by_key(|(pointer, _)| pointer.uid);
        let mut s = Statement::new(self.dialect(), "postpone");
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(sorted.iter().map(|(p, _)| p.uid.0).collect())),
                (
                    "b_generation",
                    Column::Int(sorted.iter().map(|(p, _)| i64::from(p.generation.0)).collect()),
                ),
                ("b_attempt", Column::Int(sorted.iter().map(|(p, _)| i64::from(p.attempt)).collect())),
                ("b_by", Column::Int(sorted.iter().map(|(_, by)| *by).collect())),
            ],
        );
        let now = s.now(self.bound_now());
        s.push(&format!(
            "WITH {batch} UPDATE timers SET wake_at = {now} + b_by FROM b WHERE {} \
             AND COALESCE(generation = b_generation AND attempt = b_attempt AND state IN (0, 2) AND wake_at <= {now}, false)",
            self.dialect().keyed("uid", "b_uid")
        ));
        self.pool.write(s).await.map(drop)
    }
}
