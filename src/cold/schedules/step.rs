//! A look at schedules: some of them in one transaction, each under its lock. What is decided ([`super::judge`]) is written
//! by [`super::carry`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::judge::{self, Decided, Live, Lost};
use super::turn::Ended;
use super::{AFTER, COLUMNS, ROW_BY_ROW, SOON_MS, ScheduleRow, of_batch, waits};
use crate::cold::apply::{Applied, Change};
use crate::cold::columns;
use crate::cold::register::{NewTimer, Registered};
use crate::cold::restore::MAY_FIRE;
use crate::cold::row::TimerRow;
use crate::cold::sql::{Column, Dialect, Row, Statement, Tx};
use crate::cold::{ColdStore, Error};
use crate::model::id::{Epoch, Generation, Uid};
use crate::model::namespace::Namespace;
use crate::model::rule::RuleError;
use crate::model::schedule::{MissedPolicy, Overlap, Skipped, Turn};
use crate::model::time::{LAST, UnixMs};
use crate::model::timer::{MISSED, State};
use crate::planted::Defect;

/// The most schedules that one look takes.
const MOST_SCHEDULES: i64 = 200;

/// The most live occurrences that are read at once.
const MOST_LIVE: usize = 20_000;

/// The pause after a nominal time was not found, in milliseconds; it doubles up to an hour.
const FAILED_MS: i64 = 60_000;

/// What a look at schedules did.
#[derive(Debug, Default)]
pub struct Made {
    /// Occurrences that it made.
    pub rows: Vec<TimerRow>,
    /// Changes of occurrences, and how each was answered.
    pub changes: Vec<Change>,
    /// The answers.
    pub answers: Vec<Applied>,
    /// Nominal times that became no occurrence, by reason.
    pub skips: BTreeMap<&'static str, i64>,
    /// Schedules whose next nominal time was not found, and why.
    pub failures: Vec<(String, RuleError)>,
    /// Schedules that this version cannot read.
    pub unreadable: Vec<String>,
    /// How many schedules it looked at.
    pub looked_at: usize,
    /// There is more to do at once.
    pub is_cut: bool,
    /// Timers as they were asked for, to be counted where they are spread.
    pub(super) timers: Vec<NewTimer>,
}

impl Made {
    pub(super) fn skipped(&mut self, why: Skipped, count: i64) {
        if let Some(word) = why.word() {
            *self.skips.entry(word).or_default() += count;
        }
    }

    /// Adds what another transaction did.
    pub fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.changes.extend(other.changes);
        self.answers.extend(other.answers);
        other.skips.into_iter().for_each(|(why, count)| *self.skips.entry(why).or_default() += count);
        self.failures.extend(other.failures);
        self.unreadable.extend(other.unreadable);
        self.looked_at += other.looked_at;
        self.is_cut |= other.is_cut;
        self.timers.extend(other.timers);
    }
}

/// What the store knows beside the schedules at the time of a look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Present {
    pub now: UnixMs,
    pub lost: Option<Lost>,
}

/// The columns of [`Present`].
pub(super) fn present(now: &str) -> String {
    format!(
        "{now}, (SELECT held_from FROM store), (SELECT held_until FROM store), (SELECT accepted_from FROM store)"
    )
}

impl Present {
    /// Reads [`present`] at this position.
    pub fn read(row: &Row, at: usize) -> Result<Self, Error> {
        let (from, until): (Option<i64>, Option<i64>) = (row.get(at + 1)?, row.get(at + 2)?);
        let accepted_from = row.get::<Option<i64>>(at + 3)?.map(UnixMs::new);
        let lost = from.zip(until).map(|(from, until)| Lost {
            from: UnixMs::new(from),
            until: UnixMs::new(until),
            accepted_from,
        });
        Ok(Self { now: UnixMs::new(row.get(at)?), lost })
    }
}

impl ColdStore {
    /// One look at the schedules of these shards, each under the epoch beside it: occurrences are made ahead, as far as
    /// `reach`, and what waits for a judgement is judged. Which ones need a look is found first; another maker may have
    /// looked at them since. One that is locked is left to the next look. A store in which this node knows of no schedule
    /// is asked nothing ([`ColdStore::watch_marks`]).
    pub async fn make_occurrences(&self, owned: &[(i32, Epoch)], reach: Duration) -> Result<Made, Error> {
        if owned.is_empty() {
            return Ok(Made::default());
        }
        if !self.may_have_schedules() {
            return Ok(Made::default());
        }
        let found = self.schedules_to_look_at(owned).await?;
        let is_cut = found.values().map(BTreeMap::len).sum::<usize>() as i64 >= MOST_SCHEDULES;
        let mut made = Made { is_cut, ..Made::default() };
        // A transaction for each namespace: none waits for another's locks.
        let (mut is_any_made, mut failure) = (false, None);
        for (namespace, found) in found {
            let within = self.within(namespace);
            let one = match Box::pin(within.look_at(&found, reach)).await {
                Err(why) if !why.is_passing() => Box::pin(within.look_at_each(&found, reach)).await,
                made => made,
            };
            match one {
                Ok(one) => {
                    is_any_made = true;
                    made.add(one);
                }
                Err(why) => failure = failure.or(Some(why)),
            }
        }
        match failure {
            // What others have made is told, and the next look tries the rest again.
            Some(why) if is_any_made => {
                tracing::warn!(%why, "the schedules of a namespace could not be looked at; they are tried again");
                Ok(made)
            }
            Some(why) => Err(why),
            None => Ok(made),
        }
    }

    /// Each by itself: one that the database refuses is put off, and does not hold up the others.
    async fn look_at_each(
        &self,
        found: &BTreeMap<String, (i32, Epoch)>,
        reach: Duration,
    ) -> Result<Made, Error> {
        let mut made = Made::default();
        for (id, under) in found {
            match Box::pin(self.look_at(&BTreeMap::from([(id.clone(), *under)]), reach)).await {
                Ok(one) => made.add(one),
                Err(why) if why.is_passing() => return Err(why),
                Err(why) => {
                    tracing::error!(schedule = id, %why, "a schedule makes nothing; it is tried again in a minute");
                    self.put_off(std::slice::from_ref(id)).await?;
                }
            }
        }
        Ok(made)
    }

    /// Has these schedules looked at again in a minute.
    async fn put_off(&self, ids: &[String]) -> Result<(), Error> {
        let mut tx = self.pool.begin().await?;
        self.put_off_within(&mut tx, ids).await?;
        tx.commit().await
    }

    async fn put_off_within(&self, tx: &mut Tx, ids: &[String]) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "schedule_put_off");
        let here = self.here(&mut s);
        let (now, ids) = (s.now(self.bound_now()), s.among_texts(ids));
        s.push(&format!(
            "UPDATE schedules SET make_at = {now} + {FAILED_MS} WHERE namespace = {here} AND id {ids}"
        ));
        tx.execute(s).await.map(drop)
    }

    /// Schedules to look at, each with the shard and the epoch under which it was found.
    async fn schedules_to_look_at(
        &self,
        owned: &[(i32, Epoch)],
    ) -> Result<BTreeMap<Namespace, BTreeMap<String, (i32, Epoch)>>, Error> {
        let mut s = Statement::new(self.dialect(), "schedule_look");
        let shards = owned.iter().map(|(shard, _)| i64::from(*shard)).collect();
        let batch = s.batch("b", vec![("b_shard", Column::Int(shards))]);
        let now = s.now(self.bound_now());
        let (waits, last) = (waits(&now, self.held()), s.int(LAST.get()));
        let judged = format!(
            "shard = b_shard AND judge_after IS NOT NULL AND state = 0 AND judge_after <= {now} \
             AND (judge_after >= due_at OR due_at <= {now}) AND {MAY_FIRE}"
        );
        let refused = format!(
            "shard = b_shard AND overlap IS NOT NULL AND state = 0 AND due_at <= {now} \
             AND (judge_after IS NULL OR judge_after < {last}) AND {MAY_FIRE} AND {waits}"
        );
        let [judged, refused] = [judged, refused].map(|which| self.dialect().each("timers", &which, ""));
        let of_schedule = "schedule AS found, min(shard) AS in_shard, \
             CAST(COALESCE(min(namespace), 0) AS SMALLINT) AS of_namespace";
        // Each part reads one of the partial indexes.
        s.push(&format!(
            "WITH {batch}, due AS (SELECT id AS found, shard AS in_shard, namespace AS of_namespace FROM b CROSS JOIN schedules \
                 WHERE shard = b_shard AND make_at IS NOT NULL AND make_at <= {now} ORDER BY make_at LIMIT {MOST_SCHEDULES}), \
               judged AS (SELECT {of_schedule} FROM b {judged} GROUP BY schedule LIMIT {MOST_SCHEDULES}), \
               refused AS (SELECT {of_schedule} FROM b {refused} GROUP BY schedule LIMIT {MOST_SCHEDULES}) \
             SELECT found, in_shard, of_namespace, true FROM due UNION SELECT found, in_shard, of_namespace, false FROM judged \
             UNION SELECT found, in_shard, of_namespace, false FROM refused"
        ));
        let (mut found, mut count) = (BTreeMap::<Namespace, BTreeMap<_, _>>::new(), 0);
        for row in self.pool.read(s).await? {
            let (id, shard, namespace): (String, i32, i16) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let namespace = Namespace(namespace);
            // A timer has it with its namespace.
            let id = if row.get(3)? { id } else { namespace.plain(id) };
            if let Some((shard, epoch)) = owned.iter().find(|(one, _)| *one == shard)
                && found.entry(namespace).or_default().insert(id, (*shard, *epoch)).is_none()
            {
                count += 1;
            }
            if count >= MOST_SCHEDULES {
                break;
            }
        }
        Ok(found)
    }

    async fn look_at(&self, found: &BTreeMap<String, (i32, Epoch)>, reach: Duration) -> Result<Made, Error> {
        let mut tx = self.pool.begin().await?;
        let (mut made, rows, present) = self.lock_schedules(&mut tx, found).await?;
        let known: BTreeSet<&str> = rows
            .iter()
            .map(|row| row.id.as_str())
            .chain(made.unreadable.iter().map(String::as_str))
            .collect();
        let missing: Vec<String> = found.keys().filter(|id| !known.contains(id.as_str())).cloned().collect();
        if !missing.is_empty() {
            self.let_orphans_go(&mut tx, &missing).await?;
        }
        let Some(present) = present else {
            tx.commit().await?;
            return Ok(made);
        };
        let (mut steps, mut left) = (Vec::with_capacity(rows.len()), rows);
        while !left.is_empty() && makes_of(&steps) < judge::MOST {
            let (live, cut_at) = self.live_occurrences(&mut tx, &left).await?;
            let beyond = not_read_whole(&left, &live, cut_at);
            let (seen, later) = left.into_iter().partition(|row| !beyond.contains(&row.id));
            left = later;
            self.decide_each(&mut tx, seen, live, present, reach, (&mut steps, &mut made)).await?;
        }
        // The rest has its turn in the next look.
        made.is_cut |= !left.is_empty();
        made.looked_at = steps.len();
        let late = Box::pin(self.carry_out(&mut tx, steps, present.now, true, &mut made)).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        self.tell_all_late(late).await?;
        self.note_made(&made);
        Ok(made)
    }

    /// Decides about schedules of which all live occurrences are known, until enough is to be made.
    async fn decide_each(
        &self,
        tx: &mut Tx,
        rows: Vec<ScheduleRow>,
        mut live: HashMap<String, Vec<Live>>,
        present: Present,
        reach: Duration,
        (steps, made): (&mut Vec<(ScheduleRow, Decided)>, &mut Made),
    ) -> Result<(), Error> {
        let locked = self.locked_missed(tx, &rows, &live, present.now).await?;
        let ended = self.ended_occurrences(tx, &live).await?;
        for mut row in rows {
            let live = live.remove(&row.id).unwrap_or_default();
            let ended = ended.get(&row.id).map(Vec::as_slice).unwrap_or_default();
            if locked.contains(&row.id) {
                continue;
            }
            if makes_of(steps) >= judge::MOST {
                made.is_cut = true;
                break;
            }
            let before = row.clone();
            if self.planted.is(Defect::OccurrenceMadeTwice) && is_late(&row, present.now) {
                row.last_nominal = row.last_nominal.min(present.now);
            }
            match decide(&mut row, &live, ended, present, reach) {
                Ok(decided) => {
                    row.failures = 0;
                    made.is_cut |= decided.is_cut;
                    steps.push((row, decided));
                }
                Err(why) => {
                    let failures = before.failures.saturating_add(1);
                    let pause = (FAILED_MS << failures.clamp(1, 6)).min(3_600_000);
                    let make_at = Some(UnixMs::new(present.now.get() + pause));
                    steps.push((ScheduleRow { failures, make_at, ..before.clone() }, Decided::default()));
                    made.failures.push((before.id, why));
                }
            }
        }
        Ok(())
    }

    /// Counts what was made, where it is spread.
    pub(super) fn note_made(&self, made: &Made) {
        let rows: HashMap<Uid, &TimerRow> = made.rows.iter().map(|row| (row.uid, row)).collect();
        let answer = |timer: &NewTimer| match rows.get(&timer.uid) {
            Some(row) => Ok(Registered::New(Box::new((*row).clone()))),
            None => Ok(Registered::Taken),
        };
        if made.timers.iter().any(|timer| timer.spread.is_some()) {
            let answers: Vec<Result<Registered, Error>> = made.timers.iter().map(answer).collect();
            self.note_registered(&made.timers, &answers);
        }
    }

    /// Locks schedules that nobody else has locked, each under the epoch of the shard by which it was found.
    async fn lock_schedules(
        &self,
        tx: &mut Tx,
        found: &BTreeMap<String, (i32, Epoch)>,
    ) -> Result<(Made, Vec<ScheduleRow>, Option<Present>), Error> {
        let mut s = Statement::new(self.dialect(), "schedule_lock");
        let batch = s.batch(
            "b",
            vec![
                ("b_id", Column::Text(found.keys().cloned().collect())),
                of_batch(self.namespace(), found.len()),
                ("b_shard", Column::Int(found.values().map(|(shard, _)| i64::from(*shard)).collect())),
                ("b_epoch", Column::Int(found.values().map(|(_, epoch)| epoch.0).collect())),
            ],
        );
        let now = s.now(self.bound_now());
        let seen = s.int(self.seen());
        let (share, lock) = (
            self.dialect().lock("FOR KEY SHARE"),
            self.dialect().lock("FOR UPDATE OF schedules SKIP LOCKED"),
        );
        let (known, present) = (columns::is_known_kind(), present(&now));
        s.push(&format!(
            "WITH {batch}, own AS (SELECT shard AS own_shard, epoch AS own_epoch FROM shards \
               WHERE shard IN (SELECT b_shard FROM b) ORDER BY shard {share}) \
             SELECT {COLUMNS}, {present} FROM {ROW_BY_ROW} CROSS JOIN own CROSS JOIN schedules \
             WHERE own_shard = b_shard AND own_epoch = b_epoch AND namespace = b_namespace AND id = b_id \
               AND {known} AND (SELECT incarnation FROM store) >= {seen} ORDER BY id {lock}"
        ));
        let (mut made, mut rows, mut at) = (Made::default(), Vec::new(), None);
        for row in tx.fetch(s).await? {
            at = Some(Present::read(&row, AFTER)?);
            match ScheduleRow::read(&row) {
                Ok(row) => rows.push(row),
                Err(_) => made.unreadable.push(row.get(0)?),
            }
        }
        if !made.unreadable.is_empty() {
            self.put_off_within(tx, &made.unreadable).await?;
        }
        Ok((made, rows, at))
    }

    /// Of these schedules, those that there are not: nobody will judge their occurrences.
    async fn let_orphans_go(&self, tx: &mut Tx, ids: &[String]) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "schedule_orphans");
        let batch = s.batch("b", vec![("b_id", Column::Text(ids.to_vec()))]);
        let here = self.here(&mut s);
        s.push(&format!(
            "WITH {batch} SELECT b_id FROM b WHERE NOT EXISTS (SELECT 1 FROM schedules \
             WHERE namespace = {here} AND id = b_id)"
        ));
        for row in tx.fetch(s).await? {
            self.let_go(tx, &row.get::<String>(0)?).await?;
        }
        Ok(())
    }

    /// Makes the occurrences of a schedule timers like any other. Returns those that waited.
    pub(super) async fn let_go(
        &self,
        tx: &mut Tx,
        id: &str,
    ) -> Result<Vec<crate::model::pointer::Pointer>, Error> {
        use crate::cold::claim::{POINTER, pointer_of};
        let mut s = Statement::new(self.dialect(), "schedule_let_go");
        let (now, id) = (s.now(self.bound_now()), s.text(&self.namespace().qualified(id)));
        let last = s.int(LAST.get());
        let (pointer, lock) = (columns::list(POINTER), self.dialect().lock("FOR UPDATE"));
        s.push(&format!(
            "WITH own AS (SELECT uid AS own_uid FROM timers WHERE schedule = {id} AND schedule IS NOT NULL \
               AND (judge_after IS NOT NULL OR overlap IS NOT NULL) ORDER BY uid {lock}) \
             UPDATE timers SET judge_after = NULL, overlap = NULL, \
               wake_at = CASE WHEN state = 0 AND judge_after = {last} THEN {now} ELSE wake_at END \
             WHERE {} RETURNING {pointer}",
            self.dialect().among("uid", "SELECT own_uid FROM own")
        ));
        let rows = tx.fetch(s).await?;
        rows.iter().map(|row| pointer_of(row, crate::model::pointer::Via::Express)).collect()
    }

    /// Schedules that fire once for all that was missed, and of whose missed occurrences somebody has locked one: which of them
    /// fires is decided about all of them together. The others are locked.
    async fn locked_missed(
        &self,
        tx: &mut Tx,
        rows: &[ScheduleRow],
        live: &HashMap<String, Vec<Live>>,
        now: UnixMs,
    ) -> Result<BTreeSet<String>, Error> {
        let is_one_of = |row: &&ScheduleRow| row.plan.missed.policy == MissedPolicy::FireOnce;
        let to_judge = rows.iter().filter(is_one_of).flat_map(|row| live.get(&row.id).into_iter().flatten());
        let is_judged = |one: &&Live| one.is_scheduled && one.judge_after.is_some_and(|at| at <= now);
        let uids: Vec<Uid> = to_judge.filter(is_judged).map(|one| one.uid).collect();
        if self.dialect() == Dialect::Sqlite || uids.is_empty() {
            return Ok(BTreeSet::new());
        }
        let mut s = Statement::new(self.dialect(), "schedule_lock_missed");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        s.push(&format!(
            "WITH {batch} SELECT uid FROM timers WHERE {} ORDER BY uid FOR UPDATE SKIP LOCKED",
            self.dialect().among("uid", "SELECT b_uid FROM b")
        ));
        let free: HashSet<Uid> =
            tx.fetch(s).await?.iter().map(|row| Ok(Uid(row.get(0)?))).collect::<Result<_, Error>>()?;
        let is_taken = |one: &Live| uids.contains(&one.uid) && !free.contains(&one.uid);
        Ok(live.iter().filter(|(_, all)| all.iter().any(is_taken)).map(|(id, _)| id.clone()).collect())
    }

    /// The live occurrences of these schedules that run or are due soon, in order of their nominal times; where all may run at
    /// once, those that have to be judged. At most [`MOST_LIVE`]; if there may be more, of which schedule the last one is.
    pub(super) async fn live_occurrences(
        &self,
        tx: &mut Tx,
        rows: &[ScheduleRow],
    ) -> Result<(HashMap<String, Vec<Live>>, Option<String>), Error> {
        let mut s = Statement::new(self.dialect(), "schedule_live");
        let ids = rows.iter().map(|row| self.namespace().qualified(&row.id).into_owned()).collect();
        let one_by_one = rows.iter().map(|row| row.plan.overlap != Overlap::Allow).collect();
        let columns = vec![("b_id", Column::Text(ids)), ("b_one_by_one", Column::Bool(one_by_one))];
        let batch = s.batch("b", columns);
        let now = s.now(self.bound_now());
        let missed = MISSED.as_millis();
        // The gap that is noted, or one that has not ended. One that is judged sooner is judged for something else.
        let unserved = format!(
            "CASE WHEN judge_after < due_at + {missed} THEN false WHEN (g.gap_from <= judge_after - {missed} AND judge_after < g.served_since) \
             OR (g.served_until <= judge_after - {missed} AND judge_after < {now}) THEN true ELSE false END"
        );
        let which = format!(
            "schedule = b_id AND schedule IS NOT NULL AND nominal IS NOT NULL \
             AND (state <> 0 OR due_at <= {now} + {SOON_MS}) AND (state <> 0 OR {MAY_FIRE}) \
             AND (b_one_by_one OR overlap IS NOT NULL OR judge_after IS NOT NULL)"
        );
        let timers = self.dialect().each("timers", &which, "");
        s.push(&format!(
            "WITH {batch} SELECT schedule, uid, nominal, generation, state, due_at, overlap, judge_after, {unserved}, attempt \
             FROM b {timers} JOIN shards g ON g.shard = timers.shard \
             ORDER BY schedule, nominal LIMIT {MOST_LIVE}"
        ));
        let mut live: HashMap<String, Vec<Live>> = HashMap::new();
        let rows = tx.fetch(s).await?;
        let last = rows.last().filter(|_| rows.len() >= MOST_LIVE);
        let cut_at = last.map(|row| row.get(0).map(|id| self.namespace().plain(id))).transpose()?;
        for row in &rows {
            let (state, attempt): (i16, i32) = (row.get(4)?, row.get(9)?);
            let is_scheduled = state == State::Scheduled.code();
            let one = Live {
                uid: Uid(row.get(1)?),
                nominal: UnixMs::new(row.get(2)?),
                generation: Generation(row.get(3)?),
                is_scheduled,
                is_under_way: !is_scheduled && (state != State::Paused.code() || attempt > 0),
                due_at: UnixMs::new(row.get(5)?),
                turn: row.get::<Option<i16>>(6)?.and_then(Turn::from_code),
                judge_after: row.get::<Option<i64>>(7)?.map(UnixMs::new),
                is_unserved: row.get(8)?,
            };
            live.entry(self.namespace().plain(row.get(0)?)).or_default().push(one);
        }
        Ok((live, cut_at))
    }

    /// Occurrences that were claimed and have ended since one of these was due that is skipped then.
    pub(super) async fn ended_occurrences(
        &self,
        tx: &mut Tx,
        live: &HashMap<String, Vec<Live>>,
    ) -> Result<HashMap<String, Vec<Ended>>, Error> {
        let since = |all: &Vec<Live>| {
            let skipped = all.iter().filter(|one| one.is_scheduled && one.turn == Some(Turn::Skip));
            skipped.map(|one| one.due_at.get()).min()
        };
        let (ids, since): (Vec<String>, Vec<i64>) = live
            .iter()
            .filter_map(|(id, all)| Some((self.namespace().qualified(id).into_owned(), since(all)?)))
            .unzip();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let mut s = Statement::new(self.dialect(), "schedule_ended");
        let batch = s.batch("b", vec![("b_id", Column::Text(ids)), ("b_since", Column::Int(since))]);
        s.push(&format!(
            "WITH {batch} SELECT schedule, nominal, ended_at FROM b CROSS JOIN history WHERE schedule = b_id \
             AND schedule IS NOT NULL AND ended_at > b_since AND nominal IS NOT NULL AND claimed_at IS NOT NULL \
             ORDER BY ended_at DESC LIMIT {MOST_LIVE}"
        ));
        let mut ended: HashMap<String, Vec<Ended>> = HashMap::new();
        for row in tx.fetch(s).await? {
            let one = Ended { nominal: UnixMs::new(row.get(1)?), ended_at: UnixMs::new(row.get(2)?) };
            ended.entry(self.namespace().plain(row.get(0)?)).or_default().push(one);
        }
        Ok(ended)
    }
}

/// How many occurrences these steps make.
fn makes_of(steps: &[(ScheduleRow, Decided)]) -> usize {
    steps.iter().map(|(_, decided)| decided.makes.len()).sum()
}

/// Schedules whose live occurrences were not all read, because so many are read at once. They are read after the others.
fn not_read_whole(
    rows: &[ScheduleRow],
    live: &HashMap<String, Vec<Live>>,
    cut_at: Option<String>,
) -> BTreeSet<String> {
    let Some(cut_at) = cut_at else { return BTreeSet::new() };
    // It is decided about alone, by its first ones; what has no occurrences may come after it.
    let is_beyond = |id: &String| (*id == cut_at && live.len() > 1) || !live.contains_key(id);
    rows.iter().map(|row| &row.id).filter(|id| is_beyond(id)).cloned().collect()
}

/// Whether this look comes seconds after it should, by a planted defect's account.
fn is_late(row: &ScheduleRow, now: UnixMs) -> bool {
    row.make_at.is_some_and(|at| now.get() > at.get() + 2000)
}

/// Decides about the past, and if nothing of it is left, about what lies ahead.
pub(super) fn decide(
    row: &mut ScheduleRow,
    live: &[Live],
    ended: &[Ended],
    present: Present,
    reach: Duration,
) -> Result<Decided, RuleError> {
    let mut decided = judge::past(row, live, ended, present.lost, present.now)?;
    if !decided.is_cut {
        judge::ahead(row, &mut decided, reach, present.now)?;
    }
    Ok(decided)
}
