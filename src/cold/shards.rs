//! Ownership of shards, and the list of nodes. Leases expire by the store's clock.

use std::collections::BTreeMap;
use std::time::Duration;

use sea_orm::{EntityTrait, QueryOrder};

use super::claim::{POINTER, pointer_of};
use super::sql::{Column, Dialect, Row, Statement};
use super::{ColdStore, Error, columns, entity, notify};
use crate::clock::Monotonic;
use crate::config::{CLAIM_MARGIN, MAX_WEBHOOK_TIMEOUT};
use crate::model::id::{Epoch, Generation, Uid};
use crate::model::pointer::{Pointer, Via};
use crate::model::time::UnixMs;
use crate::model::timer::{MISSED, State, Token};

/// What lies so much further ahead of the store's clock, in milliseconds, than it can be is from the future: the clock
/// was set back since. Longer than any statement takes from its time to its snapshot.
pub const FUTURE_MS: i64 = 10_000;

/// The longest time, in milliseconds, for which a timer is postponed.
const POSTPONED_MS: i64 = 300_000;

/// A node as the store has it.
#[derive(Debug, Clone)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Where its API listens.
    pub address: String,
    /// Its version.
    pub version: String,
    /// When it started.
    pub started_at: UnixMs,
    /// Its last heartbeat.
    pub beat_at: UnixMs,
    /// The shards it owns.
    pub shards: Vec<i32>,
}

/// What a heartbeat returns.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// Whether another process has taken this node's name.
    pub superseded: bool,
    /// The incarnations of the nodes that are alive, this one included, by name.
    pub alive: BTreeMap<String, String>,
    /// How long, in milliseconds, until the next of the other nodes counts as dead if it sends no further
    /// heartbeat.
    pub next_dead_ms: Option<i64>,
    /// How much further ahead, in milliseconds, the furthest lease of any shard ends than a lease can that is renewed
    /// now. Not above 0 unless the store's clock was set back.
    pub lease_excess_ms: i64,
    /// The store went back in time: it shows an older incarnation than was seen. It was restored from a backup, or a
    /// replica that lacked the last transactions has become the primary.
    pub went_back: bool,
}

impl Heartbeat {
    /// The number of live nodes whose names sort before this one.
    pub fn rank(&self, name: &str) -> usize {
        self.alive.keys().take_while(|other| other.as_str() < name).count()
    }
}

/// The identity of this node.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// New at every start: it distinguishes two processes of one name.
    pub incarnation: String,
    /// Where its API listens.
    pub address: String,
}

impl ColdStore {
    /// Takes the node's name for this process. An older process of the same name is superseded: it finds that
    /// out at its next heartbeat and stops. Other nodes are notified ([`ColdStore::listen`]).
    pub async fn enter(&self, me: &Identity) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "enter");
        let now = s.now(self.bound_now());
        let (name, incarnation) = (s.text(&me.name), s.text(&me.incarnation));
        let (address, version) = (s.text(&me.address), s.text(env!("CARGO_PKG_VERSION")));
        let insert = format!(
            "INSERT INTO nodes (name, incarnation, address, version, started_at, beat_at, release) \
             VALUES ({name}, {incarnation}, {address}, {version}, {now}, {now}, {}) \
             ON CONFLICT (name) DO UPDATE SET incarnation = excluded.incarnation, address = excluded.address, \
             version = excluded.version, started_at = excluded.started_at, beat_at = excluded.beat_at, \
             release = excluded.release",
            mainspring_migrations::RELEASE
        );
        match self.dialect() {
            Dialect::Postgres => s.push(&format!(
                "WITH entered AS ({insert} RETURNING name) SELECT {} FROM entered",
                notify::notification(&incarnation)
            )),
            Dialect::Sqlite => s.push(&insert),
        };
        self.urgent.write(s).await.map(drop)
    }

    /// Sends a heartbeat. A node is alive if its last heartbeat came within `within_ms`.
    pub async fn heartbeat(&self, me: &Identity, within_ms: i64) -> Result<Heartbeat, Error> {
        let within = Duration::from_millis(u64::try_from(within_ms).unwrap_or(0));
        let alive_until = Monotonic::now().plus(within);
        // Nobody waits for a process without a row.
        let known_until = |mine: &[Row]| (!mine.is_empty()).then_some(alive_until);
        let (mine, rows, went_back);
        match self.dialect() {
            // One flush for all.
            Dialect::Sqlite => {
                let mut tx = self.urgent.begin().await?;
                mine = tx.fetch(self.own_beat(me)).await?;
                rows = tx.fetch(self.alive(within_ms)).await?;
                let raised = tx.fetch(self.beat()).await?;
                tx.commit().await?;
                went_back = self.note_beat(&raised, known_until(&mine))?;
            }
            // Nothing needs them in one transaction, and one costs two calls more. All nodes write the store's row: a node that
            // is paused in a transaction would keep it locked.
            Dialect::Postgres => {
                mine = self.urgent.write(self.own_beat(me)).await?;
                let asked = Monotonic::now();
                rows = self.urgent.read(self.alive(within_ms)).await?;
                // Nothing is flushed before it: no other answer comes as soon after the time that it tells.
                if let Some(row) = rows.first() {
                    self.clock.observe_us(asked, row.get(4)?);
                }
                went_back = self.note_beat(&self.urgent.write(self.beat()).await?, known_until(&mine))?;
            }
        }
        let mut alive = BTreeMap::from([(me.name.clone(), me.incarnation.clone())]);
        let (mut next_dead_ms, mut lease_excess_ms) = (None, i64::MIN);
        for row in &rows {
            lease_excess_ms = row.get(3)?;
            let (name, remaining): (String, i64) = (row.get(0)?, row.get(2)?);
            if name != me.name {
                next_dead_ms = Some(next_dead_ms.map_or(remaining, |least: i64| least.min(remaining)));
            }
            alive.insert(name, row.get(1)?);
        }
        Ok(Heartbeat { superseded: mine.is_empty(), alive, next_dead_ms, lease_excess_ms, went_back })
    }

    /// The statement that renews this node's own row. Without a result the process is superseded.
    fn own_beat(&self, me: &Identity) -> Statement {
        let mut s = Statement::new(self.dialect(), "heartbeat");
        let now = s.now(self.bound_now());
        let (name, incarnation) = (s.text(&me.name), s.text(&me.incarnation));
        s.push(&format!(
            "UPDATE nodes SET beat_at = {now} WHERE name = {name} AND incarnation = {incarnation} RETURNING name"
        ));
        s
    }

    /// The statement that looks for the nodes that are alive.
    fn alive(&self, within_ms: i64) -> Statement {
        let mut s = Statement::new(self.dialect(), "heartbeat_alive");
        let now = s.now(self.bound_now());
        let now_us = s.now_us(self.bound_now());
        let within = s.int(within_ms);
        s.push(&format!(
            "SELECT name, incarnation, beat_at + {within} - {now}, \
             (SELECT COALESCE(max(lease_until), 0) FROM shards) - {now} - {within}, {now_us} \
             FROM nodes WHERE beat_at > {now} - {within}"
        ));
        s
    }

    /// Replaces the beats and leases of all nodes that lie further ahead than they can, because the store's clock was
    /// set back, by such as are made now. A node that lives renews its own in time; the shards of one that is dead
    /// are free after one lease more.
    pub async fn bring_leases_back(&self, lease_ms: i64) -> Result<(), Error> {
        let mut tx = self.urgent.begin().await?;
        // Who has locked a row is renewing it.
        let lock = self.dialect().lock("FOR UPDATE SKIP LOCKED");
        let mut s = Statement::new(self.dialect(), "bring_beats_back");
        let (now, margin) = (s.now(self.bound_now()), s.int(FUTURE_MS));
        // A start that lies ahead of a claim would make it look like the claim of a process before.
        s.push(&format!(
            "UPDATE nodes SET beat_at = CASE WHEN beat_at > {now} THEN {now} ELSE beat_at END, \
               started_at = CASE WHEN started_at > {now} THEN {now} ELSE started_at END \
             WHERE name IN (SELECT name FROM nodes WHERE beat_at > {now} + {margin} OR started_at > {now} + {margin} \
               ORDER BY name {lock})"
        ));
        tx.execute(s).await?;
        let mut s = Statement::new(self.dialect(), "bring_leases_back");
        let (now, lease, margin) = (s.now(self.bound_now()), s.int(lease_ms), s.int(FUTURE_MS));
        s.push(&format!(
            "UPDATE shards SET lease_until = {now} + {lease} WHERE shard IN \
             (SELECT shard FROM shards WHERE lease_until > {now} + {lease} + {margin} ORDER BY shard {lock})"
        ));
        tx.execute(s).await?;
        tx.commit().await
    }

    /// Ends what this store's sessions, of all nodes, wait for since before the store's clock was set back: statements that
    /// wait for a lock are cancelled, and sessions that are idle in a transaction are ended. PostgreSQL keeps the ends of
    /// such waits (`lock_timeout`, `deadlock_timeout`) as points in time, so two transactions that wait for each other
    /// would do so for as long as the step. Returns how many it ended.
    pub async fn end_old_waits(&self) -> Result<usize, Error> {
        if !self.is_shared() {
            return Ok(0);
        }
        let mut s = Statement::new(self.dialect(), "end_old_waits");
        let (now, margin) = (s.now(self.bound_now()), s.int(FUTURE_MS));
        s.push(&format!(
            "SELECT CASE WHEN state = 'active' THEN pg_cancel_backend(pid) ELSE pg_terminate_backend(pid) END \
             FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user \
               AND application_name = current_setting('application_name') AND pid <> pg_backend_pid() \
               AND CASE WHEN state = 'active' AND wait_event_type = 'Lock' THEN extract(epoch FROM query_start) \
                 WHEN state = 'idle in transaction' THEN extract(epoch FROM state_change) END * 1000 > {now} + {margin}"
        ));
        Ok(self.urgent.write(s).await?.len())
    }

    /// Brings the timers of a shard back whose claims were made by a clock that was set back since: a claim expires as
    /// long from now as it would have from then, and a timer that was postponed or released wakes when it is due.
    /// `set_back_ms`: by how much it was set back, at most. Returns the pointers of those whose due time lies ahead: the
    /// wheels do not know them. What is due, the sweep finds.
    pub async fn bring_claims_back(&self, shard: i32, set_back_ms: i64) -> Result<Vec<Pointer>, Error> {
        let mut s = Statement::new(self.dialect(), "bring_claims_back");
        let now = s.now(self.bound_now());
        // The bound keeps the scan of the index short.
        let reach = s.int(set_back_ms.saturating_add(self.claim_ttl_ms.max(POSTPONED_MS)));
        let (shard, margin) = (s.int(i64::from(shard)), s.int(FUTURE_MS));
        let lock = self.dialect().lock("FOR UPDATE SKIP LOCKED");
        let which = format!(
            "SELECT uid FROM timers WHERE shard = {shard} AND audience IS NULL AND wake_at > {now} \
             AND wake_at <= {now} + {reach} \
             AND ((state = 1 AND claimed_at > {now} + {margin}) OR (state = 0 AND wake_at > due_at)) {lock}"
        );
        s.push(&format!(
            "UPDATE timers SET claimed_at = CASE WHEN claimed_at > {now} THEN {now} ELSE claimed_at END, \
               wake_at = CASE WHEN state = 1 THEN {now} + wake_at - claimed_at \
                 WHEN due_at > {now} THEN due_at ELSE {now} END \
             WHERE {} RETURNING {}, state",
            self.dialect().among("uid", &which),
            columns::list(POINTER)
        ));
        let mut waiting = Vec::new();
        let rows = self.urgent.write(s).await?;
        let now = self.clock.now();
        for row in rows {
            let pointer = pointer_of(&row, Via::Express)?;
            if row.get::<i16>(POINTER.len())? == State::Scheduled.code() && pointer.wake_at > now {
                waiting.push(pointer);
            }
        }
        Ok(waiting)
    }

    /// Brings retries back, of all shards, that were decided on by a clock that was set back since: each comes as long
    /// from now as it would have after its last claim. At most `most`, earliest due time first, from the due time
    /// `from` on. Returns their pointers, and the last due time: where to go on.
    pub async fn bring_retries_back(&self, from: i64, most: usize) -> Result<(Vec<Pointer>, i64), Error> {
        let mut s = Statement::new(self.dialect(), "bring_retries_back");
        let now = s.now(self.bound_now());
        let (from, margin, limit) = (s.int(from), s.int(FUTURE_MS), s.int(most as i64));
        let lock = self.dialect().lock("FOR UPDATE SKIP LOCKED");
        // The first condition is the one of the partial index that serves this.
        let which = format!(
            "SELECT uid FROM timers WHERE state IN (2, 3) AND state = 2 AND due_at >= {from} AND audience IS NULL \
             AND claimed_at > {now} + {margin} ORDER BY due_at LIMIT {limit} {lock}"
        );
        s.push(&format!(
            "UPDATE timers SET wake_at = CASE WHEN wake_at > claimed_at THEN {now} + wake_at - claimed_at ELSE {now} END, \
               claimed_at = {now} \
             WHERE {} RETURNING {}, due_at",
            self.dialect().among("uid", &which),
            columns::list(POINTER)
        ));
        let (mut pointers, mut last) = (Vec::new(), None);
        for row in self.urgent.write(s).await? {
            last = last.max(Some(row.get::<i64>(POINTER.len())?));
            pointers.push(pointer_of(&row, Via::Express)?);
        }
        Ok((pointers, last.unwrap_or(i64::MAX)))
    }

    /// Renews the leases of these shards and stores their cursors (`cursor_at`, which only rises, but comes back when
    /// the store's clock was set back). Returns the shards that are still this node's under these epochs.
    pub async fn renew(
        &self,
        me: &Identity,
        held: &[(i32, Epoch)],
        cursor: impl Fn(i32) -> i64,
        lease_ms: i64,
    ) -> Result<Vec<i32>, Error> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let mut s = Statement::new(self.dialect(), "renew");
        let held = sorted(held);
        let mut columns = held_columns(&held);
        columns.push(("b_cursor", Column::Int(held.iter().map(|(shard, _)| cursor(*shard)).collect())));
        let batch = s.batch("b", columns);
        let now = s.now(self.bound_now());
        let (name, lease, margin) = (s.text(&me.name), s.int(lease_ms), s.int(FUTURE_MS));
        let served = served(&now);
        s.push(&format!(
            "WITH {batch} UPDATE shards SET lease_until = {now} + {lease}, {served}, cursor_at = CASE \
               WHEN b_cursor > {now} + {margin} THEN CASE WHEN cursor_at > {now} + {margin} THEN 0 ELSE cursor_at END \
               WHEN b_cursor > cursor_at OR cursor_at > {now} + {margin} THEN b_cursor ELSE cursor_at END FROM b \
             WHERE shard = b_shard AND epoch = b_epoch AND owner = {name} RETURNING shard"
        ));
        self.urgent.write(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Takes over up to `most` shards that have no owner or whose lease has expired, and with `own_too` also
    /// those of this node's own name. Each gets a new epoch; from then on no claim under the old one succeeds.
    pub async fn take_over(
        &self,
        me: &Identity,
        most: usize,
        own_too: bool,
        lease_ms: i64,
    ) -> Result<Vec<(i32, Epoch)>, Error> {
        let mut s = Statement::new(self.dialect(), "take_over");
        let now = s.now(self.bound_now());
        let (name, lease, most) = (s.text(&me.name), s.int(lease_ms), s.int(most as i64));
        let own = if own_too { format!("OR owner = {name}") } else { String::new() };
        let lock = self.dialect().lock("FOR UPDATE SKIP LOCKED");
        let served = served(&now);
        s.push(&format!(
            "UPDATE shards SET owner = {name}, epoch = epoch + 1, lease_until = {now} + {lease}, {served} WHERE shard IN \
             (SELECT shard FROM shards WHERE owner IS NULL OR lease_until < {now} {own} \
              ORDER BY lease_until, shard LIMIT {most} {lock}) RETURNING shard, epoch"
        ));
        self.urgent.write(s).await?.iter().map(|row| Ok((row.get(0)?, Epoch(row.get(1)?)))).collect()
    }

    /// Recalls the claims of crashed owners in these shards: they are due again at once. Claims under the last
    /// epoch that was given up in order, or an older one, are spared, because their node still ends them;
    /// unless it has sent no heartbeat for `within_ms` or has been restarted since. Returns the attempts that
    /// were recalled.
    ///
    /// Claims of rows that are locked are left to their result or to expire: a recall is a part of the round that renews
    /// the leases, and must not wait. Nor may it take part in a deadlock with results, which lock rows in another order.
    pub async fn recall(&self, taken: &[(i32, Epoch)], within_ms: i64) -> Result<Vec<(Uid, Token)>, Error> {
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.urgent.begin().await?;
        let mut s = Statement::new(self.dialect(), "recall");
        let batch = s.batch("b", held_columns(&sorted(taken)));
        let now = s.now(self.bound_now());
        // A claim expires within this span, whatever the settings and the destinations said when it was made. The bound keeps
        // the scan of the index short.
        // What workers have outlives the node that gave it to them.
        let known = columns::is_sent_kind();
        let longest = MAX_WEBHOOK_TIMEOUT + CLAIM_MARGIN;
        let (reach, within) = (s.int(i64::try_from(longest.as_millis()).unwrap_or(70_000)), s.int(within_ms));
        let claimed = format!(
            "shard = b_shard AND epoch < b_epoch AND state = 1 AND {known} \
             AND wake_at > {now} AND wake_at <= {now} + {reach}"
        );
        let crashed = format!(
            "(epoch > spared OR EXISTS (SELECT 1 FROM nodes WHERE name = timers.node \
             AND (beat_at <= {now} - {within} OR started_at > timers.claimed_at)))"
        );
        let own = "own AS (SELECT b_shard, b_epoch, spared FROM b JOIN shards ON shard = b_shard AND epoch = b_epoch)";
        let returned = "RETURNING uid, generation, attempt";
        s.push(&match self.dialect() {
            // Locked once, before the update: as a condition of it, the rows were looked for again for each of them.
            Dialect::Postgres => format!(
                "WITH {batch}, {own}, free AS MATERIALIZED (SELECT uid AS free_uid, spared FROM timers JOIN own \
                   ON {claimed} FOR NO KEY UPDATE OF timers SKIP LOCKED) \
                 UPDATE timers SET wake_at = {now} FROM free WHERE {} AND {crashed} {returned}",
                self.dialect().keyed("uid", "free_uid")
            ),
            Dialect::Sqlite => format!(
                "WITH {batch}, {own} UPDATE timers SET wake_at = {now} FROM own WHERE {claimed} AND {crashed} {returned}"
            ),
        });
        let recalled = tx.fetch(s).await?;
        tx.commit().await?;
        let token = |row: &Row| {
            Ok((Uid(row.get(0)?), Token { generation: Generation(row.get(1)?), attempt: row.get(2)? }))
        };
        recalled.iter().map(token).collect()
    }

    /// Gives shards up in order: other nodes can take them over at once, and are notified
    /// ([`ColdStore::listen`]). The next [`ColdStore::recall`] spares the claims under these epochs and older
    /// ones, so the claims of crashed owners must have been recalled before. Returns the shards that were still
    /// this node's.
    pub async fn give_up(&self, me: &Identity, held: &[(i32, Epoch)]) -> Result<Vec<i32>, Error> {
        self.give_up_and(me, held, "b_epoch").await
    }

    /// The same as [`ColdStore::give_up`], but the next owner recalls the claims under these epochs.
    pub async fn give_up_sparing_nothing(
        &self,
        me: &Identity,
        held: &[(i32, Epoch)],
    ) -> Result<Vec<i32>, Error> {
        self.give_up_and(me, held, "spared").await
    }

    async fn give_up_and(
        &self,
        me: &Identity,
        held: &[(i32, Epoch)],
        spared: &str,
    ) -> Result<Vec<i32>, Error> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let mut s = Statement::new(self.dialect(), "give_up");
        let batch = s.batch("b", held_columns(&sorted(held)));
        let now = s.now(self.bound_now());
        let (name, sender) = (s.text(&me.name), s.text(&me.incarnation));
        let update = format!(
            "UPDATE shards SET owner = NULL, lease_until = 0, served_until = {now}, spared = {spared} FROM b \
             WHERE shard = b_shard AND epoch = b_epoch AND owner = {name} RETURNING shard"
        );
        match self.dialect() {
            // Delivered at the commit, and once for any number of shards.
            Dialect::Postgres => s.push(&format!(
                "WITH {batch}, given_up AS ({update}) SELECT shard, {} FROM given_up",
                notify::notification(&sender)
            )),
            // There are no notifications; but a bound value has to be used.
            Dialect::Sqlite => s.push(&format!("WITH {batch} {update}, {sender}")),
        };
        self.urgent.write(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Removes this process from the list of nodes.
    pub async fn leave(&self, me: &Identity) -> Result<(), Error> {
        self.doubt_subscriptions().await;
        let mut s = Statement::new(self.dialect(), "leave");
        let (name, incarnation) = (s.text(&me.name), s.text(&me.incarnation));
        s.push(&format!("DELETE FROM nodes WHERE name = {name} AND incarnation = {incarnation}"));
        self.urgent.write(s).await.map(drop)
    }

    /// All nodes of the store, by name, each with the shards that it owns.
    pub async fn nodes(&self) -> Result<Vec<NodeRow>, Error> {
        let nodes =
            entity::node::Entity::find().order_by_asc(entity::node::Column::Name).all(&self.db).await?;
        let shards =
            entity::shard::Entity::find().order_by_asc(entity::shard::Column::Shard).all(&self.db).await?;
        Ok(nodes
            .into_iter()
            .map(|node| NodeRow {
                shards: shards
                    .iter()
                    .filter(|shard| shard.owner.as_deref() == Some(&node.name))
                    .map(|shard| shard.shard)
                    .collect(),
                name: node.name,
                address: node.address,
                version: node.version,
                started_at: UnixMs::new(node.started_at),
                beat_at: UnixMs::new(node.beat_at),
            })
            .collect())
    }

    /// Removes nodes that have sent no heartbeat for a day, and their reports. One that has shards stays: it may have slept, as
    /// this one may have, and others take its shards first.
    pub async fn forget_nodes(&self) -> Result<(), Error> {
        let is_without = "AND name NOT IN (SELECT owner FROM shards WHERE owner IS NOT NULL)";
        for (table, column, which) in [("nodes", "beat_at", is_without), ("node_reports", "at", "")] {
            let mut s = Statement::new(self.dialect(), "forget_nodes");
            let now = s.now(self.bound_now());
            s.push(&format!("DELETE FROM {table} WHERE {column} < {now} - 86400000 {which}"));
            self.urgent.write(s).await?;
        }
        Ok(())
    }
}

/// The assignments that note that a shard is served at this moment. If nobody did so for longer than a nominal time may wait,
/// it is noted from when until when: what was due meanwhile was missed. A service in between that was as short does not
/// count.
fn served(now: &str) -> String {
    let most = MISSED.as_millis();
    let is_gap = format!("{now} - served_until > {most}");
    format!(
        "gap_from = CASE WHEN {is_gap} THEN \
           CASE WHEN gap_from IS NOT NULL AND served_until - served_since <= {most} THEN gap_from ELSE served_until END \
           ELSE gap_from END, \
         served_since = CASE WHEN {is_gap} OR served_since IS NULL THEN {now} ELSE served_since END, served_until = {now}"
    )
}

pub(super) fn sorted(held: &[(i32, Epoch)]) -> Vec<(i32, Epoch)> {
    let mut sorted = held.to_vec();
    sorted.sort_unstable();
    sorted
}

/// The batch columns of shards and epochs, in the order given.
pub(super) fn held_columns(held: &[(i32, Epoch)]) -> Vec<(&'static str, Column)> {
    vec![
        ("b_shard", Column::Int(held.iter().map(|(shard, _)| i64::from(*shard)).collect())),
        ("b_epoch", Column::Int(held.iter().map(|(_, epoch)| epoch.0).collect())),
    ]
}
