//! Replay: what to do with a shard that is new on this node, or whose wheel was lost.
//!
//! The wheel is compared with what SQL knows of it: in which server it was, and which incarnation. If it is the same, its
//! slots still hold what was promoted. Then only rows that its last owner had taken, and may not have fired, are read
//! from SQL: from the oldest row up to the mark. If it is not the same (emptied, rolled back, restarted, replaced, or
//! another process's), it is built anew: empty slots, marks at now, and every row up to the watermark is read from SQL.
//!
//! A cursor found in Redis never proves that the timers before it have fired; live rows in SQL do. A cursor in Redis
//! behind the one in SQL is that of a wheel that was rolled back. A wheel that stood still for long is built anew too,
//! whether its owner is new or not: the timers in its slots are overdue, and are to be handed out in order and at the set
//! rate.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::promoter::Promoter;
use super::{AHEAD_MS, Error, everything_before, refused, window_end};
use crate::cold::{Range, ReplayNote, ShardRow};
use crate::model::id::Epoch;
use crate::model::time::UnixMs;
use crate::planted::Defect;
use crate::positions::Replay;
use crate::wheel::{Level, Marks, Slot, Standing, Tick};

/// Why a wheel is built anew that was last taken before [`oldest`].
pub(crate) const STOOD_STILL: &str = "it stood still for long";

/// The least time for which a wheel stands still for long: a busy node may be a few slots behind.
const LEAST_STILL: Duration = Duration::from_secs(2);

/// What was found out about a waiting shard.
struct Inspected {
    row: ShardRow,
    /// The wheel, if it is the one that was filled last.
    intact: Option<Standing>,
    /// Why the shard is replayed, in words.
    cause: String,
}

/// A shard that waits for its replay, and why its wheel was lost, if it was.
type Waiting = (i32, Epoch, Option<String>);

/// Begins the replay of every waiting shard; its wheel turns from then on. A shard whose server does not answer waits
/// on, and does not hold up the shards of other servers.
pub async fn run_once(promoter: &Promoter) -> Result<(), Error> {
    let mut waiting = promoter.positions.waiting();
    if !promoter.positions.reach.may_build(promoter.store.clock().now()) {
        let without_room = promoter.positions.without_room();
        waiting.retain(|(shard, ..)| !without_room.contains(shard));
    }
    if waiting.is_empty() {
        return Ok(());
    }
    let shards: Vec<i32> = waiting.iter().map(|(shard, ..)| *shard).collect();
    let mut by_server: BTreeMap<String, Vec<Waiting>> = BTreeMap::new();
    for (shard, server) in waiting.into_iter().zip(promoter.hot.servers(&shards).await?) {
        if let Ok(server) = server {
            by_server.entry(server).or_default().push(shard);
        }
    }
    let mut outcome = Ok(());
    for (server, waiting) in by_server {
        outcome = outcome.and(replay_server(promoter, &server, waiting).await);
    }
    outcome
}

/// Begins the replay of the waiting shards of one server.
async fn replay_server(promoter: &Promoter, server: &str, waiting: Vec<Waiting>) -> Result<(), Error> {
    let Promoter { store, positions, hot, near, .. } = promoter;
    let shards: Vec<i32> = waiting.iter().map(|(shard, ..)| *shard).collect();
    let full = |why: &_| refused(positions, store.clock(), &shards, why);
    // From here on the last owner takes no slot more, so the marks stand still. A wheel that was lost is not gone on with.
    let may_be_intact = waiting.iter().filter(|(_, _, lost)| lost.is_none());
    let epochs: Vec<(i32, Epoch)> = may_be_intact.map(|(shard, epoch, _)| (*shard, *epoch)).collect();
    hot.adopt(&epochs).await.inspect_err(full)?;
    let standings = hot.look(&shards).await?;
    let mut rows: HashMap<i32, ShardRow> =
        store.shard_rows(&shards).await?.into_iter().map(|row| (row.shard, row)).collect();
    let now = store.clock().now();
    let oldest = oldest(now, *near);
    let mut inspected: Vec<Inspected> = Vec::new();
    for ((shard, epoch, cause), standing) in waiting.into_iter().zip(standings) {
        // The row has another epoch: the shard is lost, and the next renewal finds that out.
        let Some(row) = rows.remove(&shard).filter(|row| row.epoch == epoch) else { continue };
        let mut shard = inspect(server, row, standing.clone(), cause, hot.is_shared(), oldest);
        if store.planted().is(Defect::CursorTrusted) {
            shard.intact = standing;
        }
        inspected.push(shard);
    }

    let target = window_end(now, positions.reach.get());
    let incarnation = uuid::Uuid::now_v7().simple().to_string();
    let fresh = |epoch| Standing {
        incarnation: incarnation.clone(),
        epoch,
        beat: 0,
        marks: Marks::starting(now, AHEAD_MS, ms(*near)),
        loaded: 0,
    };
    let is_lost = |shard: &&Inspected| shard.intact.is_none();
    let wheels = inspected.iter().filter(is_lost).map(|shard| (shard.row.shard, fresh(shard.row.epoch)));
    let wheels: Vec<(i32, Standing)> = wheels.collect();
    if !wheels.is_empty() {
        // Those before may have reached further.
        let until = window_end(now, positions.reach.full()).get();
        let mut built = hot.build(&wheels, until).await.inspect_err(full)?.into_iter();
        // A later owner has those that were not built.
        inspected.retain(|shard| !is_lost(&shard) || built.next() == Some(true));
    }
    let build = inspected.iter().filter(is_lost).map(|shard| (shard.row.shard, shard.row.epoch));
    let build: Vec<(i32, Epoch)> = build.collect();
    if !build.is_empty() {
        store.set_wheel(&build, &wheel_name(server, &incarnation)).await?;
    }
    // Committed before any scan: a timer that is written from here on is promoted by its writer. A watermark may come
    // back here, as after the store's clock was set back: what lies beyond it is scanned when it rises again.
    let raised = if build.is_empty() { Vec::new() } else { store.raise_watermarks(&build, target).await? };
    for Inspected { row, intact, cause } in inspected {
        let (shard, epoch) = (row.shard, row.epoch);
        let watermark = if raised.contains(&shard) { target } else { row.watermark };
        let mut replay = Replay {
            cause,
            at: now,
            cursor_at: row.cursor_at,
            rebuilt: intact.is_none(),
            overdue: 0,
            loaded: 0,
        };
        let (standing, mut ranges) = match intact {
            None => (fresh(epoch), vec![everything_before(shard, watermark)]),
            Some(standing) => resume(shard, epoch, standing, watermark),
        };
        if store.planted().is(Defect::CursorTrusted) {
            ranges.clear();
        }
        if row.wheel.is_empty() {
            "the shard's first owner".clone_into(&mut replay.cause);
        }
        positions.turn(shard, standing, watermark, ranges, Some(replay));
    }
    Ok(())
}

/// Compares the wheel of a shard with what SQL knows of it.
fn inspect(
    server: &str,
    row: ShardRow,
    standing: Option<Standing>,
    lost: Option<String>,
    shared: bool,
    oldest: UnixMs,
) -> Inspected {
    let same_server = row.wheel.split(' ').next() == Some(server);
    let (intact, cause) = match (standing, lost) {
        (_, Some(lost)) => (None, lost),
        _ if !shared && !same_server => (None, "this process started, and its wheels with it".to_owned()),
        // Timers that were written while another node owned the shard are not in these wheels.
        _ if !shared => (None, "another node had it meanwhile, whose wheels are its own".to_owned()),
        (Some(standing), None) if row.wheel == wheel_name(server, &standing.incarnation) => {
            let taken = Slot { level: Level::Second, tick: standing.marks.second }.ends_at();
            if taken < row.cursor_at {
                // Its owner had taken more slots, so the wheel has lost takes, and appends with them.
                (None, "it was rolled back".to_owned())
            } else if taken < oldest {
                (None, STOOD_STILL.to_owned())
            } else {
                (Some(standing), "taken over from another owner, with its wheel".to_owned())
            }
        }
        _ if !same_server => (None, "Redis was restarted or replaced by another".to_owned()),
        (None, None) => (None, "it was emptied".to_owned()),
        (Some(_), None) => (None, "it is not the one that was filled last".to_owned()),
    };
    Inspected { row, intact, cause }
}

/// Resumes a wheel as it is: rows of taken slots are read from SQL again, and so are rows that were not loaded to the
/// end; the last minute is cascaded once more.
fn resume(shard: i32, epoch: Epoch, mut standing: Standing, watermark: UnixMs) -> (Standing, Vec<Range>) {
    standing.epoch = epoch;
    let taken = Slot { level: Level::Second, tick: standing.marks.second }.ends_at();
    let whole = Slot { level: Level::WholeMinute, tick: standing.marks.whole }.starts_at();
    let taken = taken.max(UnixMs::new(whole.get() + 1));
    standing.marks.minute = Tick(standing.marks.minute.0 - 1);
    let mut ranges = vec![everything_before(shard, taken)];
    if standing.loaded < watermark.get() {
        ranges.push(Range::new(shard, standing.loaded, watermark));
    }
    (standing, ranges)
}

/// The note of a replay, for `explain`.
pub(crate) fn note(shard: i32, replay: Replay, node: &str) -> ReplayNote {
    let Replay { cause, at, cursor_at, rebuilt, overdue, loaded } = replay;
    let done = if rebuilt { "its wheel was built anew from SQL" } else { "its wheel went on turning" };
    let detail = format!("{done}: {overdue} timers were found past due, {loaded} put into slots");
    ReplayNote { at, shard, node: node.to_owned(), cause, cursor_at, detail }
}

/// The name of a wheel in SQL: its server and its incarnation.
fn wheel_name(server: &str, incarnation: &str) -> String {
    format!("{server} {incarnation}")
}

/// A wheel that was handed over up to an earlier moment has stood still for long.
pub(crate) fn oldest(now: UnixMs, near: Duration) -> UnixMs {
    UnixMs::new(now.get() - ms(near.max(LEAST_STILL)))
}

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
