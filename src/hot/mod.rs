//! From SQL into the wheels, and from the wheels to the due millisecond.
//!
//! | part | what it does |
//! |---|---|
//! | [`loader`] | raises watermarks, scans slices of SQL into slots, cascades minutes into seconds |
//! | [`promoter`] | promotes timers that were just written ([`crate::promotion`]) |
//! | [`replay`] | decides what to do with a shard that is new here, or whose wheel was lost |
//! | [`ticker`] | takes each slot as its time comes |
//! | [`last_mile`] | holds taken pointers in order of their milliseconds, and offers them to the dispatcher |

pub mod last_mile;
pub mod loader;
pub mod promoter;
pub mod replay;
pub mod ticker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::StoreClock;
use crate::cold::Range;
use crate::model::pointer::Pointer;
use crate::model::time::{Span, UnixMs};
use crate::positions::Positions;
use crate::wheel::{self, HotWheel, PAGE, Take, Taken, Unreachable};

/// How long before its beginning a slot is taken, in milliseconds.
pub const AHEAD_MS: i64 = 500;

/// Shards whose wheels did not answer, while those of others did, and why.
pub type UnreachableShards = BTreeMap<i32, Unreachable>;

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// In the cold store.
    #[error(transparent)]
    Cold(#[from] crate::cold::Error),
    /// In the wheels.
    #[error(transparent)]
    Hot(#[from] wheel::Error),
}

/// If the server of these shards' wheels refused because it has no room, all of them are to be built anew, and not to reach
/// as far.
pub(crate) fn refused(positions: &Positions, clock: &StoreClock, shards: &[i32], why: &wheel::Error) {
    if why.is_no_room() {
        no_room(positions, clock, shards, why);
    }
}

/// Those of some shards of a batch were refused, of which some may have a server without room.
pub(crate) fn some_refused<'a>(
    positions: &Positions,
    clock: &StoreClock,
    failed: impl Iterator<Item = (i32, &'a Unreachable)>,
) {
    let full: Vec<(i32, &Unreachable)> = failed.filter(|(_, why)| why.is_no_room()).collect();
    if let Some((_, why)) = full.first() {
        let shards: Vec<i32> = full.iter().map(|(shard, _)| *shard).collect();
        no_room(positions, clock, &shards, why);
    }
}

fn no_room(positions: &Positions, clock: &StoreClock, shards: &[i32], why: &dyn std::fmt::Display) {
    if let Some(reach) = positions.no_room(shards, clock.now()) {
        let (reach, full) = (Span::from_duration(reach), Span::from_duration(positions.reach.full()));
        tracing::warn!(
            %why,
            "Redis has no room for the wheels, so they reach {reach} ahead from now on, not {full}: give it more memory, \
             or shorten `wheel.window`"
        );
    }
}

/// Takes slots, page by page. `on_page` gets every page, and with the last page of a slot also its take. A wheel that is
/// not the one that was filled is lost. Returns the shards whose wheels did not answer.
pub(crate) async fn take_all(
    hot: &Arc<dyn HotWheel>,
    positions: &Positions,
    clock: &StoreClock,
    mut takes: Vec<Take>,
    mut on_page: impl FnMut(Option<&Take>, Vec<Pointer>),
) -> Result<UnreachableShards, wheel::Error> {
    let mut unreachable = UnreachableShards::new();
    while !takes.is_empty() {
        let answers = hot.take(&takes).await;
        let answers = answers.inspect_err(|why| refused(positions, clock, &positions.owned(), why))?;
        let mut next = Vec::new();
        for (mut take, taken) in takes.into_iter().zip(answers) {
            match taken {
                Taken::Page { pointers, beat, more: false } => {
                    positions.beat(take.shard, &take.incarnation, beat);
                    on_page(Some(&take), pointers);
                }
                Taken::Page { pointers, beat, more: true } => {
                    positions.beat(take.shard, &take.incarnation, beat);
                    take.skip += PAGE;
                    take.beat = beat;
                    on_page(None, pointers);
                    next.push(take);
                }
                Taken::NotMine => positions.lose(&[take.shard], "another node took it over meanwhile"),
                Taken::Lost(why) => positions.lose(&[take.shard], why),
                Taken::Unreachable(why) => drop(unreachable.insert(take.shard, why)),
            }
        }
        takes = next;
    }
    some_refused(positions, clock, unreachable.iter().map(|(shard, why)| (*shard, why)));
    Ok(unreachable)
}

/// The range of all rows of a shard that wake before a moment.
pub(crate) fn everything_before(shard: i32, until: UnixMs) -> Range {
    Range::new(shard, i64::MIN, until)
}

/// The moment up to which the loader promotes: the end of the window, rounded up to a step of the watermark.
pub(crate) fn window_end(now: UnixMs, window: Duration) -> UnixMs {
    let step = step_ms(window);
    let end = now.plus(window).get();
    UnixMs::new((end.div_euclid(step) + 1) * step)
}

/// The step of the watermark, in milliseconds: a minute, or a tenth of a short window.
fn step_ms(window: Duration) -> i64 {
    i64::try_from(window.as_millis() / 10).unwrap_or(i64::MAX).clamp(100, 60_000)
}
