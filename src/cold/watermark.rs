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
use super::decide::COMING_UP_MS;
use super::hook::Call;
use super::restore::MAY_FIRE;
use super::shards::{held_columns, sorted};
use super::sql::{Column, Dialect, Row, Statement};
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
    /// Where it begins: pointers to before this `wake_at` are in the wheel already.
    pub from: i64,
    /// Where the scan continues.
    pub after: ScanPosition,
    /// The range ends before this `wake_at`.
    pub until: i64,
}

impl Range {
    /// A range of which nothing is scanned yet.
    pub const fn new(shard: i32, from: i64, until: UnixMs) -> Self {
        Self { shard, from, after: ScanPosition::before(from), until: until.get() }
    }
}

/// A row that a scan found.
#[derive(Debug, Clone, Copy)]
pub struct Scanned {
    /// The pointer to promote. It comes up before its timer wakes if the timer was moved, and its first pointer is to
    /// lie in this range.
    pub pointer: Pointer,
    /// The position of the row.
    pub position: ScanPosition,
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

    /// Sets the watermark of these shards, each under its epoch. Returns the shards that are still this owner's. A
    /// watermark only rises while its wheel turns: after the window was shortened a shard keeps its watermark until
    /// time has caught up. When its wheel is built anew it may come back.
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

    /// The waiting timers of these ranges: at most `per_range` of each, each in order of (`wake_at`, uid).
    ///
    /// A timer that was moved relies on a pointer that comes up before it wakes (`timers.pointed_at`). If that one
    /// would lie in the range, it is to be put there (again): the wheel may have been built anew since. If it lies
    /// before the range it is there, but the timer gets a pointer of its own.
    pub async fn scan(&self, ranges: &[Range], per_range: usize) -> Result<Vec<Scanned>, Error> {
        let mut s = Statement::new(self.dialect(), "scan");
        let of = |pick: fn(&Range) -> i64| Column::Int(ranges.iter().map(pick).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_shard", of(|range| i64::from(range.shard))),
                ("b_from", of(|range| range.from)),
                ("b_wake", of(|range| range.after.wake_at)),
                ("b_uid", Column::Uuid(ranges.iter().map(|range| range.after.uid).collect())),
                ("b_until", of(|range| range.until)),
            ],
        );
        let now = s.now(self.bound_now());
        let (limit, coming_up) = (s.int(per_range as i64), s.int(COMING_UP_MS));
        let known = columns::is_known_kind();
        let pointer = format!(
            "{}, CASE WHEN pointed_at >= b_from AND pointed_at > {now} + {coming_up} AND pointed_at < wake_at \
             THEN pointed_at ELSE wake_at END AS pointer_at",
            columns::list(POINTER)
        );
        let probe = format!(
            "FROM timers t WHERE t.shard = b_shard AND t.wake_at >= b_wake AND t.wake_at < b_until \
             AND (t.wake_at, t.uid) > (b_wake, b_uid) AND t.state IN (0, 2) AND {known} AND {MAY_FIRE} \
             ORDER BY t.wake_at, t.uid LIMIT {limit}"
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
        let scanned = |row: &Row| {
            let own = pointer_of(row, Via::Loader)?;
            let pointer = Pointer { wake_at: UnixMs::new(row.get(POINTER.len())?), ..own };
            Ok(Scanned { pointer, position: ScanPosition { wake_at: own.wake_at.get(), uid: own.uid.0 } })
        };
        self.urgent.read(s).await?.iter().map(scanned).collect()
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
