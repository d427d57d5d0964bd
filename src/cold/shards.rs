//! Who owns which shard, and which nodes there are. Leases run by the store's clock.

use std::collections::BTreeMap;

use sea_orm::{EntityTrait, QueryOrder};

use super::sql::{Column, Dialect, Row, Statement};
use super::{ColdStore, Error, columns, entity, notify};
use crate::model::id::{Epoch, Generation, Uid};
use crate::model::time::UnixMs;
use crate::model::timer::Token;

/// A node as the store knows it.
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
    /// Its last sign of life.
    pub beat_at: UnixMs,
    /// The shards it owns.
    pub shards: Vec<i32>,
}

/// What a heartbeat learned.
#[derive(Debug, Clone)]
pub struct Beat {
    /// Whether another process beats under this name.
    pub superseded: bool,
    /// Nodes alive, this one included: the incarnation of each, by name.
    pub alive: BTreeMap<String, String>,
    /// How long until the one of the others that was heard of least lately counts as dead, in milliseconds.
    pub next_dead_ms: Option<i64>,
}

impl Beat {
    /// How many nodes that are alive come before one of this name in the order of names.
    pub fn rank(&self, name: &str) -> usize {
        self.alive.keys().take_while(|other| other.as_str() < name).count()
    }
}

/// Who this node is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Made anew at every start: tells two processes of one name apart.
    pub incarnation: String,
    /// Where its API listens.
    pub address: String,
}

impl ColdStore {
    /// Takes the node's name for this process: from here on an older process of the same name sees itself
    /// superseded and stops.
    pub async fn enter(&self, me: &Identity) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "enter");
        let now = s.now(self.given());
        let (name, incarnation) = (s.text(&me.name), s.text(&me.incarnation));
        let (address, version) = (s.text(&me.address), s.text(env!("CARGO_PKG_VERSION")));
        let insert = format!(
            "INSERT INTO nodes (name, incarnation, address, version, started_at, beat_at) \
             VALUES ({name}, {incarnation}, {address}, {version}, {now}, {now}) \
             ON CONFLICT (name) DO UPDATE SET incarnation = excluded.incarnation, address = excluded.address, \
             version = excluded.version, started_at = excluded.started_at, beat_at = excluded.beat_at"
        );
        match self.dialect() {
            Dialect::Postgres => s.push(&format!(
                "WITH entered AS ({insert} RETURNING name) SELECT {} FROM entered",
                notify::tell(&incarnation)
            )),
            Dialect::Sqlite => s.push(&insert),
        };
        self.urgent.write(s).await.map(drop)
    }

    /// A sign of life; tells which nodes have given one within `within_ms`.
    pub async fn beat(&self, me: &Identity, within_ms: i64) -> Result<Beat, Error> {
        let mut tx = self.urgent.begin().await?;
        let mut s = Statement::new(self.dialect(), "beat");
        let now = s.now(self.given());
        let (name, incarnation) = (s.text(&me.name), s.text(&me.incarnation));
        s.push(&format!(
            "UPDATE nodes SET beat_at = {now} WHERE name = {name} AND incarnation = {incarnation} RETURNING {now}"
        ));
        let mine = tx.fetch(s).await?;
        let mut s = Statement::new(self.dialect(), "beat_alive");
        let now = s.now(self.given());
        let within = s.int(within_ms);
        s.push(&format!(
            "SELECT name, incarnation, beat_at + {within} - {now} FROM nodes WHERE beat_at > {now} - {within}"
        ));
        let rows = tx.fetch(s).await?;
        tx.commit().await?;
        let mut alive = BTreeMap::from([(me.name.clone(), me.incarnation.clone())]);
        let mut next_dead_ms = None;
        for row in &rows {
            let (name, left): (String, i64) = (row.get(0)?, row.get(2)?);
            if name != me.name {
                next_dead_ms = Some(next_dead_ms.map_or(left, |least: i64| least.min(left)));
            }
            alive.insert(name, row.get(1)?);
        }
        if let Some(row) = mine.first() {
            self.clock.observe(UnixMs::new(row.get(0)?));
        }
        Ok(Beat { superseded: mine.is_empty(), alive, next_dead_ms })
    }

    /// Renews the leases of these shards and keeps how far each has come (`cursor_at`, which only rises);
    /// returns those that are still this node's under these epochs.
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
        let now = s.now(self.given());
        let (name, lease) = (s.text(&me.name), s.int(lease_ms));
        s.push(&format!(
            "WITH {batch} UPDATE shards SET lease_until = {now} + {lease}, \
             cursor_at = CASE WHEN b_cursor > cursor_at THEN b_cursor ELSE cursor_at END FROM b \
             WHERE shard = b_shard AND epoch = b_epoch AND owner = {name} RETURNING shard"
        ));
        self.urgent.write(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Takes up to `most` shards that nobody owns or whose lease has run out, and with `own_too` those that
    /// stand under this node's own name. Each gets a new epoch; from then on nobody can claim under the old.
    pub async fn take(
        &self,
        me: &Identity,
        most: usize,
        own_too: bool,
        lease_ms: i64,
    ) -> Result<Vec<(i32, Epoch)>, Error> {
        let mut s = Statement::new(self.dialect(), "take");
        let now = s.now(self.given());
        let (name, lease, most) = (s.text(&me.name), s.int(lease_ms), s.int(most as i64));
        let own = if own_too { format!("OR owner = {name}") } else { String::new() };
        let lock = self.dialect().lock("FOR UPDATE SKIP LOCKED");
        s.push(&format!(
            "UPDATE shards SET owner = {name}, epoch = epoch + 1, lease_until = {now} + {lease} WHERE shard IN \
             (SELECT shard FROM shards WHERE owner IS NULL OR lease_until < {now} {own} \
              ORDER BY lease_until, shard LIMIT {most} {lock}) RETURNING shard, epoch"
        ));
        self.urgent.write(s).await?.iter().map(|row| Ok((row.get(0)?, Epoch(row.get(1)?)))).collect()
    }

    /// Makes what crashed owners had claimed in these shards due again at once. What was claimed up to the epoch
    /// that was last given up in order is spared, for its claims end by themselves, unless its node has given no
    /// sign of life for `within_ms`, or has been started anew since. Returns the attempts that were recalled.
    pub async fn recall(&self, taken: &[(i32, Epoch)], within_ms: i64) -> Result<Vec<(Uid, Token)>, Error> {
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.urgent.begin().await?;
        let mut s = Statement::new(self.dialect(), "recall");
        let batch = s.batch("b", held_columns(&sorted(taken)));
        let now = s.now(self.given());
        // A claim's expiry lies at most this far ahead, if its node had the same settings; that keeps the look
        // within the index's near end.
        let known = columns::is_known_kind();
        let (reach, within) = (s.int(self.claim_ttl_ms), s.int(within_ms));
        s.push(&format!(
            "WITH {batch}, own AS (SELECT b_shard, b_epoch, spared FROM b JOIN shards ON shard = b_shard \
               AND epoch = b_epoch) \
             UPDATE timers SET wake_at = {now} FROM own WHERE shard = b_shard AND epoch < b_epoch \
             AND state = 1 AND {known} AND wake_at > {now} AND wake_at <= {now} + {reach} \
             AND (epoch > spared OR EXISTS (SELECT 1 FROM nodes WHERE name = timers.node \
               AND (beat_at <= {now} - {within} OR started_at > timers.claimed_at))) \
             RETURNING uid, generation, attempt"
        ));
        let recalled = tx.fetch(s).await?;
        tx.commit().await?;
        let token = |row: &Row| {
            Ok((Uid(row.get(0)?), Token { generation: Generation(row.get(1)?), attempt: row.get(2)? }))
        };
        recalled.iter().map(token).collect()
    }

    /// Gives shards up in order, so that others can take them at once, and learn of it at once
    /// ([`ColdStore::hear`]). What is claimed under these epochs or older ones is spared by the next
    /// [`ColdStore::recall`], so what crashed owners had left must have been recalled. Returns what was still
    /// this owner's.
    pub async fn give_up(&self, me: &Identity, held: &[(i32, Epoch)]) -> Result<Vec<i32>, Error> {
        self.give_up_and(me, held, "b_epoch").await
    }

    /// As [`ColdStore::give_up`], but what is claimed is recalled by the next owner.
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
        let (name, teller) = (s.text(&me.name), s.text(&me.incarnation));
        let update = format!(
            "UPDATE shards SET owner = NULL, lease_until = 0, spared = {spared} FROM b \
             WHERE shard = b_shard AND epoch = b_epoch AND owner = {name} RETURNING shard"
        );
        match self.dialect() {
            // Told at the commit, and once however many they are.
            Dialect::Postgres => s.push(&format!(
                "WITH {batch}, given_up AS ({update}) SELECT shard, {} FROM given_up",
                notify::tell(&teller)
            )),
            // Nobody listens; but what is bound has to be used.
            Dialect::Sqlite => s.push(&format!("WITH {batch} {update}, {teller}")),
        };
        self.urgent.write(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Takes this process off the list of nodes.
    pub async fn leave(&self, me: &Identity) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "leave");
        let (name, incarnation) = (s.text(&me.name), s.text(&me.incarnation));
        s.push(&format!("DELETE FROM nodes WHERE name = {name} AND incarnation = {incarnation}"));
        self.urgent.write(s).await.map(drop)
    }

    /// The nodes that the store knows, by name, with the shards each owns.
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

    /// Drops nodes that gave no sign of life for a day.
    pub async fn forget_nodes(&self) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "forget_nodes");
        let now = s.now(self.given());
        s.push(&format!("DELETE FROM nodes WHERE beat_at < {now} - 86400000"));
        self.urgent.write(s).await.map(drop)
    }
}

pub(super) fn sorted(held: &[(i32, Epoch)]) -> Vec<(i32, Epoch)> {
    let mut sorted = held.to_vec();
    sorted.sort_unstable();
    sorted
}

/// Columns that name shards and epochs, in the order given.
pub(super) fn held_columns(held: &[(i32, Epoch)]) -> Vec<(&'static str, Column)> {
    vec![
        ("b_shard", Column::Int(held.iter().map(|(shard, _)| i64::from(*shard)).collect())),
        ("b_epoch", Column::Int(held.iter().map(|(_, epoch)| epoch.0).collect())),
    ]
}
