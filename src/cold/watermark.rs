//! Watermarks: how far each shard is promoted, the scan of the slice below, and the notes of replays.
//!
//! The watermark cures the race between a writer of timers and the loader. The loader commits the new watermark
//! *before* it scans the slice below it. A writer commits its timer and *then* reads the watermark. So either
//! the writer reads the new watermark and promotes the timer itself, or the loader's scan, which begins later,
//! finds the timer.

use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect};
use uuid::Uuid;

use super::claim::{POINTER, pointer_of};
use super::columns;
use super::hook::Call;
use super::shards::{held_columns, sorted};
use super::sql::{Column, Dialect, Statement};
use super::{ColdStore, Error, entity};
use crate::model::id::Epoch;
use crate::model::pointer::{Pointer, Via};
use crate::model::time::UnixMs;

/// A shard: its owner, and how far it is promoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRow {
    /// The shard.
    pub shard: i32,
    /// Its epoch.
    pub epoch: Epoch,
    /// Claims under this epoch or an older one are not recalled: their owner gave the shard up in order and
    /// ends them.
    pub spared: Epoch,
    /// The node that owns it.
    pub owner: Option<String>,
    /// Timers with a `wake_at` before this were promoted by the loader, or are promoted by their writers.
    pub watermark: UnixMs,
    /// The wheels were handed over at least up to here.
    pub cursor_at: UnixMs,
    /// Server and incarnation of the wheel that holds its window; empty for none.
    pub wheel: String,
}

/// A position in a scan of a shard in order of (`wake_at`, uid): strictly after these two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanPosition {
    /// `wake_at` of the last row scanned.
    pub wake_at: i64,
    /// Its uid.
    pub uid: Uuid,
}

impl ScanPosition {
    /// The position before all rows of this `wake_at`.
    pub const fn before(wake_at: i64) -> Self {
        Self { wake_at, uid: Uuid::nil() }
    }
}

/// A range of a shard's rows, by `wake_at`, that is to be scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The shard.
    pub shard: i32,
    /// Where the scan continues.
    pub after: ScanPosition,
    /// The range ends before this `wake_at`.
    pub until: i64,
}

/// The note of one replay: a shard was taken over, or its wheel was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayNote {
    /// When.
    pub at: UnixMs,
    /// The shard.
    pub shard: i32,
    /// The node that replayed it.
    pub node: String,
    /// Why, in words.
    pub cause: String,
    /// How far the wheels had been handed over before it.
    pub cursor_at: UnixMs,
    /// What was done, in words.
    pub detail: String,
}

impl ColdStore {
    /// The rows of these shards; of all shards when none is given.
    pub async fn shard_rows(&self, shards: &[i32]) -> Result<Vec<ShardRow>, Error> {
        let mut find = entity::shard::Entity::find().order_by_asc(entity::shard::Column::Shard);
        if !shards.is_empty() {
            find = find.filter(entity::shard::Column::Shard.is_in(shards.iter().copied()));
        }
        let find = async { Ok(find.all(&self.db).await?) };
        let rows = self.pool.hook.run(Call::Read, "shard_rows", find).await?;
        Ok(rows
            .into_iter()
            .map(|row| ShardRow {
                shard: row.shard,
                epoch: Epoch(row.epoch),
                spared: Epoch(row.spared),
                owner: row.owner,
                watermark: UnixMs::new(row.watermark),
                cursor_at: UnixMs::new(row.cursor_at),
                wheel: row.wheel,
            })
            .collect())
    }

    /// Raises the watermark of these shards, each under its epoch. Returns the shards that are still this
    /// owner's. A watermark must only rise: after the window was shortened a shard keeps its watermark until
    /// time has caught up.
    pub async fn raise_watermarks(
        &self,
        held: &[(i32, Epoch)],
        watermark: UnixMs,
    ) -> Result<Vec<i32>, Error> {
        let mut s = Statement::new(self.dialect(), "raise_watermarks");
        let batch = s.batch("b", held_columns(&sorted(held)));
        let watermark = s.int(watermark.get());
        s.push(&format!(
            "WITH {batch} UPDATE shards SET watermark = {watermark} FROM b \
             WHERE shard = b_shard AND epoch = b_epoch RETURNING shard"
        ));
        self.urgent.write(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Stores which wheel holds the window of these shards, each under its epoch.
    pub async fn set_wheel(&self, held: &[(i32, Epoch)], wheel: &str) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "set_wheel");
        let batch = s.batch("b", held_columns(&sorted(held)));
        let wheel = s.text(wheel);
        s.push(&format!(
            "WITH {batch} UPDATE shards SET wheel = {wheel} FROM b WHERE shard = b_shard AND epoch = b_epoch"
        ));
        self.urgent.write(s).await.map(drop)
    }

    /// Pointers to the waiting timers of these ranges: at most `per_range` of each, each in order of
    /// (`wake_at`, uid).
    pub async fn scan(&self, ranges: &[Range], per_range: usize) -> Result<Vec<Pointer>, Error> {
        let mut s = Statement::new(self.dialect(), "scan");
        let of = |pick: fn(&Range) -> i64| Column::Int(ranges.iter().map(pick).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_shard", of(|range| i64::from(range.shard))),
                ("b_wake", of(|range| range.after.wake_at)),
                ("b_uid", Column::Uuid(ranges.iter().map(|range| range.after.uid).collect())),
                ("b_until", of(|range| range.until)),
            ],
        );
        let limit = s.int(per_range as i64);
        let (pointer, known) = (columns::list(POINTER), columns::is_known_kind());
        let probe = format!(
            "FROM timers t WHERE t.shard = b_shard AND t.wake_at >= b_wake AND t.wake_at < b_until \
             AND (t.wake_at, t.uid) > (b_wake, b_uid) AND t.state IN (0, 2) AND {known} ORDER BY t.wake_at, t.uid LIMIT {limit}"
        );
        match self.dialect() {
            Dialect::Postgres => s.push(&format!(
                "WITH {batch} SELECT d.* FROM b CROSS JOIN LATERAL (SELECT {pointer} {probe}) d \
                 ORDER BY shard, wake_at, uid"
            )),
            Dialect::Sqlite => s.push(&format!(
                "WITH {batch} SELECT {pointer} FROM b CROSS JOIN timers \
                 WHERE timers.rowid IN (SELECT t.rowid {probe}) ORDER BY shard, wake_at, uid"
            )),
        };
        self.urgent.read(s).await?.iter().map(|row| pointer_of(row, Via::Loader)).collect()
    }

    /// Stores notes of replays, for `explain`.
    pub async fn note_replays(&self, notes: &[ReplayNote]) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "note_replays");
        let text = |pick: fn(&ReplayNote) -> &str| {
            Column::Text(notes.iter().map(|note| pick(note).to_owned()).collect())
        };
        let of = |pick: fn(&ReplayNote) -> i64| Column::Int(notes.iter().map(pick).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_at", of(|note| note.at.get())),
                ("b_shard", of(|note| i64::from(note.shard))),
                ("b_node", text(|note| &note.node)),
                ("b_cause", text(|note| &note.cause)),
                ("b_cursor", of(|note| note.cursor_at.get())),
                ("b_detail", text(|note| &note.detail)),
            ],
        );
        s.push(&format!(
            "WITH {batch} INSERT INTO replays (at, shard, node, cause, cursor_at, detail) \
             SELECT b_at, b_shard, b_node, b_cause, b_cursor, b_detail FROM b WHERE true"
        ));
        self.pool.write(s).await.map(drop)
    }

    /// Notes of a shard's replays between two moments: the latest 100, oldest first.
    pub async fn replays(&self, shard: i32, from: UnixMs, to: UnixMs) -> Result<Vec<ReplayNote>, Error> {
        let rows = entity::replay::Entity::find()
            .filter(entity::replay::Column::Shard.eq(shard))
            .filter(entity::replay::Column::At.between(from.get(), to.get()))
            .order_by_desc(entity::replay::Column::At)
            .limit(100)
            .all(&self.db)
            .await?;
        Ok(rows.into_iter().rev().map(replay_note).collect())
    }
}

pub(super) fn replay_note(row: entity::replay::Model) -> ReplayNote {
    ReplayNote {
        at: UnixMs::new(row.at),
        shard: row.shard,
        node: row.node,
        cause: row.cause,
        cursor_at: UnixMs::new(row.cursor_at),
        detail: row.detail,
    }
}
