//! Replay: what to do with a shard that is new here, or whose wheel was lost.
//!
//! The wheel is compared with what SQL knows of it: which server it was in, and which building of it. If it
//! is the same, its slots still hold what was promoted; then only what its last owner had taken, and may not
//! have fired, is read from SQL, from the oldest row on up to the mark. If it is not the same (emptied,
//! rolled back, restarted, replaced, or another process's), it is built anew: empty slots, marks at now, and
//! everything up to the watermark read from SQL. A cursor found in Redis is never trusted to mean that what
//! lies before it has fired; live rows tell. One that lies before the cursor kept in SQL is that of a wheel
//! that was rolled back. A wheel that stood still for long is built anew too: what its slots held is overdue,
//! and is to come back in order and at the set rate.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::promoter::Promoter;
use super::{AHEAD_MS, Error, everything_before, window_end};
use crate::cold::{Range, ReplayNote, ScanPlace, ShardRow};
use crate::model::id::Epoch;
use crate::model::time::UnixMs;
use crate::planted::Defect;
use crate::positions::Replay;
use crate::wheel::{Level, Marks, Slot, Standing, Tick};

/// What is known of a waiting shard.
struct Found {
    row: ShardRow,
    /// The wheel, if it is the one that was filled last.
    intact: Option<Standing>,
    cause: String,
}

/// A shard that waits to be looked at, and why if its wheel was lost.
type Waiting = (i32, Epoch, Option<String>);

/// Looks at every waiting shard, and lets its wheel turn. A shard whose server does not answer waits on; one
/// server's failure is not that of the others' shards.
pub async fn run_once(promoter: &Promoter, window: Duration) -> Result<(), Error> {
    let waiting = promoter.positions.waiting();
    if waiting.is_empty() {
        return Ok(());
    }
    let shards: Vec<i32> = waiting.iter().map(|(shard, ..)| *shard).collect();
    let mut by_server: BTreeMap<String, Vec<Waiting>> = BTreeMap::new();
    for (one, server) in waiting.into_iter().zip(promoter.hot.servers(&shards).await?) {
        if let Ok(server) = server {
            by_server.entry(server).or_default().push(one);
        }
    }
    let mut looked = Ok(());
    for (server, waiting) in by_server {
        looked = looked.and(look_at(promoter, window, &server, waiting).await);
    }
    looked
}

/// Looks at waiting shards of one server.
async fn look_at(
    promoter: &Promoter,
    window: Duration,
    server: &str,
    waiting: Vec<Waiting>,
) -> Result<(), Error> {
    let Promoter { store, positions, hot, near, .. } = promoter;
    let shards: Vec<i32> = waiting.iter().map(|(shard, ..)| *shard).collect();
    let epochs: Vec<(i32, Epoch)> = waiting.iter().map(|(shard, epoch, _)| (*shard, *epoch)).collect();
    // From here on the owner before takes nothing more, so the marks stand still.
    hot.adopt(&epochs).await?;
    let standings = hot.look(&shards).await?;
    let mut rows: HashMap<i32, ShardRow> =
        store.shard_rows(&shards).await?.into_iter().map(|row| (row.shard, row)).collect();
    let now = store.clock().now();
    let oldest = UnixMs::new(now.get() - ms(*near));
    let mut found: Vec<Found> = Vec::new();
    for ((shard, epoch, cause), standing) in waiting.into_iter().zip(standings) {
        // A row of another epoch: the shard is lost, and this round is not the one to find out.
        let Some(row) = rows.remove(&shard).filter(|row| row.epoch == epoch) else { continue };
        let mut one = judge(server, row, standing.clone(), cause, hot.is_shared(), oldest);
        if store.planted().is(Defect::CursorTrusted) {
            one.intact = standing;
        }
        found.push(one);
    }

    let target = window_end(now, window);
    let build: Vec<(i32, Epoch)> =
        found.iter().filter(|one| one.intact.is_none()).map(|one| (one.row.shard, one.row.epoch)).collect();
    let incarnation = uuid::Uuid::now_v7().simple().to_string();
    let fresh = |epoch| Standing {
        incarnation: incarnation.clone(),
        epoch,
        beat: 0,
        marks: Marks::starting(now, AHEAD_MS, ms(*near)),
        loaded: 0,
    };
    if !build.is_empty() {
        let wheels: Vec<(i32, Standing)> =
            build.iter().map(|(shard, epoch)| (*shard, fresh(*epoch))).collect();
        hot.build(&wheels, target.get()).await?;
        store.keep_wheel(&build, &name(server, &incarnation)).await?;
    }
    // Committed before any scan: whoever writes a timer from here on promotes it himself.
    let below: Vec<(i32, Epoch)> = found
        .iter()
        .filter(|one| one.intact.is_none() && one.row.watermark < target)
        .map(|one| (one.row.shard, one.row.epoch))
        .collect();
    let raised = if below.is_empty() { Vec::new() } else { store.raise_watermarks(&below, target).await? };
    for one in found {
        let (shard, epoch) = (one.row.shard, one.row.epoch);
        let watermark = if raised.contains(&shard) { target } else { one.row.watermark };
        let mut replay = Replay {
            cause: one.cause,
            at: now,
            cursor_at: one.row.cursor_at,
            rebuilt: one.intact.is_none(),
            overdue: 0,
            loaded: 0,
        };
        let (standing, mut ranges) = match one.intact {
            None => (fresh(epoch), vec![everything_before(shard, watermark)]),
            Some(standing) => resume(shard, epoch, standing, watermark),
        };
        if store.planted().is(Defect::CursorTrusted) {
            ranges.clear();
        }
        if one.row.wheel.is_empty() {
            "the shard's first owner".clone_into(&mut replay.cause);
        }
        positions.turn(shard, standing, watermark, ranges, Some(replay));
    }
    Ok(())
}

fn judge(
    server: &str,
    row: ShardRow,
    standing: Option<Standing>,
    lost: Option<String>,
    shared: bool,
    oldest: UnixMs,
) -> Found {
    let same_server = row.wheel.split(' ').next() == Some(server);
    let (intact, cause) = match (standing, lost) {
        (_, Some(lost)) => (None, lost),
        _ if !shared && !same_server => (None, "this process started, and its wheels with it".to_owned()),
        // What was written while the shard was another's went past these wheels.
        _ if !shared => (None, "another node had it meanwhile, whose wheels are its own".to_owned()),
        (Some(standing), None) if row.wheel == name(server, &standing.incarnation) => {
            let taken = Slot { level: Level::Second, tick: standing.marks.second }.ends_at();
            if taken < row.cursor_at {
                // Its owner had taken more, so it has forgotten takes, and appends with them.
                (None, "it went back in time".to_owned())
            } else if taken < oldest {
                (None, "it stood still for long".to_owned())
            } else {
                (Some(standing), "taken over from another owner, with its wheel".to_owned())
            }
        }
        _ if !same_server => (None, "Redis was restarted or replaced by another".to_owned()),
        (None, None) => (None, "it was emptied".to_owned()),
        (Some(_), None) => (None, "it is not the one that was filled last".to_owned()),
    };
    Found { row, intact, cause }
}

/// Goes on with a wheel as it is: what was taken is read from SQL again, so is what was not loaded to the
/// end, and the last minute is cascaded once more.
fn resume(shard: i32, epoch: Epoch, mut standing: Standing, watermark: UnixMs) -> (Standing, Vec<Range>) {
    standing.epoch = epoch;
    let taken = Slot { level: Level::Second, tick: standing.marks.second }.ends_at();
    let whole = Slot { level: Level::WholeMinute, tick: standing.marks.whole }.starts_at();
    let taken = taken.max(UnixMs::new(whole.get() + 1));
    standing.marks.minute = Tick(standing.marks.minute.0 - 1);
    let mut ranges = vec![everything_before(shard, taken)];
    if standing.loaded < watermark.get() {
        let after = ScanPlace::before(standing.loaded);
        ranges.push(Range { shard, after, until: watermark.get() });
    }
    (standing, ranges)
}

/// What is kept of a replay.
pub(crate) fn note(shard: i32, replay: Replay, node: &str) -> ReplayNote {
    let Replay { cause, at, cursor_at, rebuilt, overdue, loaded } = replay;
    let done = if rebuilt { "its wheel was built anew from SQL" } else { "its wheel went on turning" };
    let detail = format!("{done}: {overdue} timers were found past due, {loaded} put into slots");
    ReplayNote { at, shard, node: node.to_owned(), cause, cursor_at, detail }
}

fn name(server: &str, incarnation: &str) -> String {
    format!("{server} {incarnation}")
}

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
