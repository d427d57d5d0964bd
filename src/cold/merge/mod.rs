//! Claims of timers that merge ([`crate::model::merge`]), in one transaction: which timers go out together is read, their
//! rows are locked, and then they are claimed as a set, or wait for the last of them.
//!
//! A timer that merges is claimed by the ordinary statement only if it has nobody to go out with ([`goes_alone`]). Else a
//! pointer to it that comes up stands for all timers of its key: it claims the earliest set of them, or the set that it
//! belongs to already.

mod choose;

use std::collections::{BTreeMap, BTreeSet};

use choose::{Group, Member, Written, claim_again, claim_fresh, come_again};

use super::claim::{Early, POINTER, pointer_of};
use super::columns::{self, AFTER, ALL, stored_merged};
use super::restore::MAY_FIRE;
use super::row::{TimerRow, merge_key_of, merged_of};
use super::schedules::may_go;
use super::sql::{Column, Dialect, Row, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::id::{Epoch, Uid};
use crate::model::merge::{MAX_MEMBERS, MAX_WINDOW, MergeKey, Merged};
use crate::model::pointer::{Pointer, Via};
use crate::model::policy::Policies;
use crate::model::time::UnixMs;
use crate::model::timer::State;
use crate::planted::Defect;

/// Timers that were claimed to go out together: one, or a merged set.
#[derive(Debug)]
pub struct ClaimedSet {
    /// The timer whose pointer came up.
    pub pointer: Uid,
    /// Its members as they are now, in order of their due times. All have the same `merged`.
    pub rows: Vec<TimerRow>,
}

/// The result of a claim of timers that merge.
#[derive(Debug, Default)]
pub(super) struct Merging {
    pub sets: Vec<ClaimedSet>,
    pub unreadable: Vec<Uid>,
    /// Pointers that are to come again.
    pub early: Vec<Early>,
    /// Timers that may be claimed: the answer to the commit was lost. Nothing is sent for them.
    pub doubtful: Vec<Doubtful>,
}

/// A timer that is claimed, or may be, and for which nothing is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubtful {
    /// The timer, and its state before the claim.
    pub pointer: Pointer,
    /// The claim's epoch.
    pub epoch: Epoch,
}

/// The condition that a timer is claimed by itself: it does not merge, it went out alone before, or no other of its key that
/// has had no attempt is due before it or within the longest window after it. Who is registered at the same moment goes out
/// by itself, as after any claim.
pub(super) fn goes_alone() -> String {
    let window = MAX_WINDOW.as_millis();
    format!(
        "(merge_key IS NULL OR (merged IS NULL AND (attempt > 0 OR NOT EXISTS (SELECT 1 FROM timers o \
           WHERE o.merge_key = timers.merge_key AND o.merge_key IS NOT NULL AND o.due_at <= timers.due_at + {window} \
           AND o.state = 0 AND o.attempt = 0 AND o.uid <> timers.uid))))"
    )
}

/// The columns of [`Member`] after those of its pointer.
const MEMBER: &str = "state, due_at, merge_key, merged, policies, \
                      CAST(COALESCE(length(data), 4) + length(id) AS BIGINT)";

impl Member {
    fn read(row: &Row) -> Result<Self, Error> {
        let after = POINTER.len();
        let bad = |what: &str| Error::Corrupt(format!("a timer's {what} cannot be read back"));
        let policies: Option<String> = row.get(after + 4)?;
        Ok(Self {
            pointer: pointer_of(row, Via::Express)?,
            state: State::from_code(row.get(after)?).ok_or_else(|| bad("state"))?,
            due_at: UnixMs::new(row.get(after + 1)?),
            key: merge_key_of(row.get(after + 2)?)?.ok_or_else(|| bad("merge key"))?,
            merged: merged_of(row.get(after + 3)?)?,
            policies: match policies {
                Some(text) => serde_json::from_str(&text).map_err(|_| bad("policies"))?,
                None => Policies::default(),
            },
            bytes: usize::try_from(row.get::<i64>(after + 5)?).unwrap_or_default(),
            may_fire: row.get(after + 6)?,
        })
    }
}

/// Reads a row, or notes that this version cannot: it does not keep the others from going out.
fn readable(row: &Row, unreadable: &mut Vec<Uid>) -> Result<Option<Member>, Error> {
    match Member::read(row) {
        Ok(member) => Ok(Some(member)),
        Err(why) => {
            let uid = Uid(row.get(0)?);
            tracing::error!(uid = %uid.0, %why, "a timer cannot be read by this version; it is not sent");
            unreadable.push(uid);
            Ok(None)
        }
    }
}

impl ColdStore {
    /// Claims what these pointers, whose timers merge and have come up, stand for: each a set, or one timer, or nothing
    /// yet. Conditions and effects are those of [`ColdStore::claim`], for each member.
    pub(super) async fn claim_merging(
        &self,
        pointers: &[(Pointer, Epoch)],
        node: &str,
        lead_ms: i64,
        skip_locked: bool,
    ) -> Result<Merging, Error> {
        for _ in 0..2 {
            match self.claim_merging_once(pointers, node, lead_ms, skip_locked).await {
                Err(why) if why.is_deadlock() => {}
                done => return done,
            }
        }
        self.claim_merging_once(pointers, node, lead_ms, skip_locked).await
    }

    async fn claim_merging_once(
        &self,
        pointers: &[(Pointer, Epoch)],
        node: &str,
        lead_ms: i64,
        skip_locked: bool,
    ) -> Result<Merging, Error> {
        let mut tx = self.urgent.begin().await?;
        let mut unreadable = Vec::new();
        let (came, now) = self.came_up(&mut tx, pointers, &mut unreadable).await?;
        let mut groups: BTreeMap<Group, Vec<&(Member, Pointer, Epoch)>> = BTreeMap::new();
        for one in &came {
            groups.entry(Group::of(&one.0)).or_default().push(one);
        }
        let (uids, sizes) = self.candidates(&mut tx, &groups).await?;
        let mut members: BTreeMap<Group, Vec<Member>> = BTreeMap::new();
        for member in self.lock_members(&mut tx, uids, skip_locked, &mut unreadable).await? {
            members.entry(Group::of(&member)).or_default().push(member);
        }
        let horizon = UnixMs::new(now.get() + lead_ms);
        let mut written =
            Written { forgets_sets: self.planted.is(Defect::SetNotFrozen), ..Written::default() };
        for (group, came) in &groups {
            let members = members.remove(group).unwrap_or_default();
            match group {
                Group::Fresh(_) => claim_fresh(came, members, now, horizon, &mut written),
                // Without those that somebody has locked, or that cannot be read, it would be another set.
                Group::Set(_, id) if sizes.get(id) != Some(&members.len()) => come_again(came, &mut written),
                Group::Set(..) | Group::Alone(_) => claim_again(came, &members, horizon, &mut written),
            }
        }
        self.write_waits(&mut tx, &written.waits).await?;
        let may_be_claimed = |(_, epoch, members, _): &(Pointer, Epoch, Vec<Pointer>, Option<Merged>)| {
            let epoch = *epoch;
            members.iter().map(|pointer| Doubtful { pointer: *pointer, epoch }).collect::<Vec<_>>()
        };
        let doubtful: Vec<Doubtful> = written.claims.iter().flat_map(may_be_claimed).collect();
        let mut merging = self.write_claims(&mut tx, written, node).await?;
        merging.unreadable.extend(unreadable);
        match tx.commit().await.map_err(Error::at_commit) {
            Ok(()) => Ok(merging),
            Err(why) if why.is_ambiguous() => Ok(Merging { doubtful, ..Merging::default() }),
            Err(why) => Err(why),
        }
    }

    /// The timers that these pointers still stand for, and the store's time. Their shards' rows are locked, so a take-over
    /// waits.
    async fn came_up(
        &self,
        tx: &mut Tx,
        pointers: &[(Pointer, Epoch)],
        unreadable: &mut Vec<Uid>,
    ) -> Result<(Vec<(Member, Pointer, Epoch)>, UnixMs), Error> {
        let mut s = Statement::new(self.dialect(), "merge_came_up");
        let of = |pick: fn(&(Pointer, Epoch)) -> i64| Column::Int(pointers.iter().map(pick).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(pointers.iter().map(|(pointer, _)| pointer.uid.0).collect())),
                ("b_generation", of(|(pointer, _)| i64::from(pointer.generation.0))),
                ("b_attempt", of(|(pointer, _)| i64::from(pointer.attempt))),
                ("b_shard", of(|(pointer, _)| i64::from(pointer.shard))),
                ("b_epoch", of(|(_, epoch)| epoch.0)),
            ],
        );
        let now = s.now(self.bound_now());
        let seen = s.int(self.seen());
        let lock = self.dialect().lock("FOR KEY SHARE");
        let (pointer, known) = (columns::list(POINTER), columns::is_sent_kind());
        let may_go = may_go(&now, "timers", self.held());
        s.push(&format!(
            "WITH {batch}, own AS (SELECT shard AS own_shard, epoch AS own_epoch FROM shards \
               WHERE shard IN (SELECT b_shard FROM b) ORDER BY shard {lock}) \
             SELECT {pointer}, {MEMBER}, COALESCE({MAY_FIRE}, false), {now} FROM b CROSS JOIN own CROSS JOIN timers \
             WHERE own_shard = b_shard AND own_epoch = b_epoch AND {} AND COALESCE(shard = b_shard \
               AND generation = b_generation AND attempt = b_attempt AND state IN (0, 2) \
               AND merge_key IS NOT NULL AND {known} AND (SELECT incarnation FROM store) >= {seen} AND {MAY_FIRE} \
               AND {may_go}, false)",
            self.dialect().keyed("uid", "b_uid")
        ));
        let by_uid: BTreeMap<Uid, (Pointer, Epoch)> =
            pointers.iter().map(|(pointer, epoch)| (pointer.uid, (*pointer, *epoch))).collect();
        let (mut came, mut store_now) = (Vec::new(), self.clock.now());
        for row in tx.fetch(s).await? {
            store_now = UnixMs::new(row.get(POINTER.len() + 7)?);
            let Some(member) = readable(&row, unreadable)? else { continue };
            if let Some((pointer, epoch)) = by_uid.get(&member.pointer.uid) {
                came.push((member, *pointer, *epoch));
            }
        }
        Ok((came, store_now))
    }

    /// The timers that may go out with those that came up, and how many members the sets of theirs have that were claimed
    /// before.
    async fn candidates(
        &self,
        tx: &mut Tx,
        groups: &BTreeMap<Group, Vec<&(Member, Pointer, Epoch)>>,
    ) -> Result<(BTreeSet<Uid>, BTreeMap<String, usize>), Error> {
        let (mut uids, mut sizes) = (BTreeSet::new(), BTreeMap::new());
        let (mut fresh, mut sets) = (Vec::new(), Vec::new());
        for (group, came) in groups {
            let latest = came.iter().map(|(member, ..)| member.due_at.plus(member.window())).max();
            match group {
                Group::Fresh(key) => fresh.push((key.0.to_vec(), latest.unwrap_or_default().get())),
                Group::Set(key, _) => {
                    let Some(merged) = came.first().and_then(|(member, ..)| member.merged.as_ref()) else {
                        continue;
                    };
                    sets.push((key.0.to_vec(), merged.at, stored_merged(Some(merged)).unwrap_or_default()));
                }
                Group::Alone(uid) => drop(uids.insert(*uid)),
            }
        }
        if !fresh.is_empty() {
            let mut s = Statement::new(self.dialect(), "merge_fresh");
            let (keys, until): (Vec<_>, Vec<_>) = fresh.into_iter().unzip();
            let batch = s.batch("b", vec![("b_key", Column::Bytes(keys)), ("b_until", Column::Int(until))]);
            let now = s.now(self.bound_now());
            let (most, known) = (s.int(MAX_MEMBERS as i64), columns::is_sent_kind());
            let may_go = may_go(&now, "t", self.held());
            let fresh = format!(
                "FROM timers t WHERE t.merge_key = b_key AND t.merge_key IS NOT NULL AND t.due_at <= b_until \
                 AND t.state = 0 AND t.attempt = 0 AND {known} AND {MAY_FIRE} AND {may_go} ORDER BY t.due_at, t.uid LIMIT {most}"
            );
            match self.dialect() {
                Dialect::Postgres => s.push(&format!(
                    "WITH {batch} SELECT c.uid FROM b CROSS JOIN LATERAL (SELECT t.uid {fresh}) c"
                )),
                Dialect::Sqlite => s.push(&format!(
                    "WITH {batch} SELECT timers.uid FROM b CROSS JOIN timers \
                     WHERE timers.rowid IN (SELECT t.rowid {fresh})"
                )),
            };
            for row in tx.fetch(s).await? {
                uids.insert(Uid(row.get(0)?));
            }
        }
        if !sets.is_empty() {
            let mut s = Statement::new(self.dialect(), "merge_set");
            let batch = s.batch(
                "b",
                vec![
                    ("b_key", Column::Bytes(sets.iter().map(|(key, ..)| key.clone()).collect())),
                    ("b_at", Column::Int(sets.iter().map(|(_, at, _)| *at).collect())),
                    ("b_merged", Column::Text(sets.into_iter().map(|(.., merged)| merged).collect())),
                ],
            );
            let window = s.int(i64::try_from(MAX_WINDOW.as_millis()).unwrap_or_default());
            let of_key = format!(
                "merge_key = b_key AND merge_key IS NOT NULL AND due_at <= b_at AND due_at >= b_at - {window}"
            );
            let timers = self.dialect().each("timers", &of_key, "");
            s.push(&format!("WITH {batch} SELECT uid, merged FROM b {timers} WHERE merged = b_merged"));
            for row in tx.fetch(s).await? {
                uids.insert(Uid(row.get(0)?));
                if let Some(merged) = merged_of(row.get(1)?)? {
                    *sizes.entry(merged.id).or_default() += 1;
                }
            }
        }
        Ok((uids, sizes))
    }

    /// Locks timers and reads what decides about them, in order of their due times.
    async fn lock_members(
        &self,
        tx: &mut Tx,
        uids: BTreeSet<Uid>,
        skip_locked: bool,
        unreadable: &mut Vec<Uid>,
    ) -> Result<Vec<Member>, Error> {
        if uids.is_empty() {
            return Ok(Vec::new());
        }
        let mut s = Statement::new(self.dialect(), "merge_lock");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let lock = match skip_locked {
            true => "FOR NO KEY UPDATE OF timers SKIP LOCKED",
            false => "FOR NO KEY UPDATE OF timers",
        };
        let now = s.now(self.bound_now());
        let (lock, pointer) = (self.dialect().lock(lock), columns::list(POINTER));
        let may_go = may_go(&now, "timers", self.held());
        s.push(&format!(
            "WITH {batch} SELECT {pointer}, {MEMBER}, COALESCE({MAY_FIRE} AND {may_go}, false) FROM b CROSS JOIN timers WHERE {} \
             AND COALESCE(merge_key IS NOT NULL, false) ORDER BY b_uid {lock}",
            self.dialect().keyed("uid", "b_uid")
        ));
        let mut members = Vec::new();
        for row in tx.fetch(s).await? {
            members.extend(readable(&row, unreadable)?);
        }
        members.sort_by_key(|member| (member.due_at, member.pointer.uid));
        Ok(members)
    }

    async fn write_waits(&self, tx: &mut Tx, waits: &[(Uid, UnixMs, Option<UnixMs>)]) -> Result<(), Error> {
        if waits.is_empty() {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "merge_wait");
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(waits.iter().map(|(uid, ..)| uid.0).collect())),
                ("b_wake", Column::Int(waits.iter().map(|(_, at, _)| at.get()).collect())),
                (
                    "b_expire",
                    Column::IntOrNull(waits.iter().map(|(.., expire)| expire.map(UnixMs::get)).collect()),
                ),
            ],
        );
        s.push(&format!(
            "WITH {batch} UPDATE timers SET wake_at = b_wake, expire_at = b_expire FROM b WHERE {}",
            self.dialect().keyed("uid", "b_uid")
        ));
        tx.execute(s).await.map(drop)
    }

    async fn write_claims(&self, tx: &mut Tx, written: Written, node: &str) -> Result<Merging, Error> {
        let Written { claims, early, .. } = written;
        let mut merging = Merging { early, ..Merging::default() };
        if claims.is_empty() {
            return Ok(merging);
        }
        let (mut uids, mut epochs, mut vias, mut sets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (pointer, epoch, members, merged) in &claims {
            for member in members {
                uids.push(member.uid.0);
                epochs.push(epoch.0);
                vias.push(i64::from(pointer.via.code()));
                sets.push(stored_merged(merged.as_ref()));
            }
        }
        let mut s = Statement::new(self.dialect(), "merge_claim");
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(uids)),
                ("b_epoch", Column::Int(epochs)),
                ("b_via", Column::Int(vias)),
                ("b_merged", Column::TextOrNull(sets)),
            ],
        );
        let now = s.now(self.bound_now());
        let (ttl, node) = (s.int(self.claim_ttl_ms()), s.text(node));
        s.push(&format!(
            "WITH {batch} UPDATE timers SET state = 1, attempt = attempt + 1, tries = tries + 1, epoch = b_epoch, \
               wake_at = {now} + {ttl}, claimed_at = {now}, node = {node}, via = b_via, merged = b_merged \
             FROM b WHERE {} RETURNING {ALL}, {now}",
            self.dialect().keyed("uid", "b_uid")
        ));
        let sent = crate::clock::Monotonic::now();
        let mut rows: BTreeMap<Uid, TimerRow> = BTreeMap::new();
        for row in tx.fetch(s).await? {
            self.clock.observe(sent, UnixMs::new(row.get(AFTER)?));
            match TimerRow::read(&row, false) {
                Ok(row) => drop(rows.insert(row.uid, row)),
                Err(why) => {
                    let uid = Uid(row.get(0)?);
                    tracing::error!(uid = %uid.0, %why, "a timer was claimed and cannot be read by this version; it is not sent");
                    merging.unreadable.push(uid);
                }
            }
        }
        for (pointer, _, members, _) in claims {
            let rows: Vec<TimerRow> = members.iter().filter_map(|member| rows.remove(&member.uid)).collect();
            if !rows.is_empty() {
                merging.sets.push(ClaimedSet { pointer: pointer.uid, rows });
            }
        }
        Ok(merging)
    }

    /// Has timers of these keys that wait for others looked at again: one that they waited for has gone. Returns their
    /// pointers.
    pub async fn regroup(&self, keys: &[MergeKey]) -> Result<Vec<Pointer>, Error> {
        let mut s = Statement::new(self.dialect(), "regroup");
        let batch =
            s.batch("b", vec![("b_key", Column::Bytes(keys.iter().map(|key| key.0.to_vec()).collect()))]);
        let now = s.now(self.bound_now());
        let ahead = s.int(i64::try_from(MAX_WINDOW.as_millis()).unwrap_or_default() * 2);
        let pointer = columns::list(POINTER);
        // Joined with `FROM w`, SQLite would read all timers to find those of the key.
        // One that is locked is being claimed, and its claim sees who has gone; or a stranger has it, for whom nobody waits.
        let lock = self.dialect().lock("FOR NO KEY UPDATE SKIP LOCKED");
        let waiting = format!(
            "merge_key = b_key AND merge_key IS NOT NULL AND due_at <= {now} + {ahead} \
             AND state = 0 AND attempt = 0 AND wake_at > due_at AND wake_at > {now}"
        );
        let timers = self.dialect().each("timers", &waiting, lock);
        s.push(&format!(
            "WITH {batch}, w AS (SELECT uid AS w_uid FROM b {timers}) \
             UPDATE timers SET wake_at = CASE WHEN due_at > {now} THEN due_at ELSE {now} END \
             WHERE {} RETURNING {pointer}",
            self.dialect().among("uid", "SELECT w_uid FROM w")
        ));
        self.pool.write(s).await?.iter().map(|row| pointer_of(row, Via::Express)).collect()
    }
}
