//! The frames of the live picture (`GET /v1/wheels/stream`): counts of slots as integers, and what changed since.
//!
//! | event | data |
//! |---|---|
//! | `full` | `{"now","near","window","s":[[tick,count]…],"m":[…],"taken":{"s","m"},"x":{…}}` |
//! | `delta` | the same without `near` and `window`, with the counts that changed (0: empty now); `x` once a second |
//!
//! `s` are slots of a second, `m` slots of a minute (timers of `precision: minute` among them); ticks count from the Unix
//! epoch, `now` is in milliseconds. `taken` are the last slots that every shard has taken. `x` is the overview
//! (`Extra`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::slots::Slots;
use super::{Overview, Rates};
use crate::config::Wheel;
use crate::model::time::UnixMs;
use crate::observe::sentence::Degraded;
use crate::wheel::Level;

/// One event for those who watch.
#[derive(Debug, Clone)]
pub struct Frame {
    /// `full` or `delta`.
    pub event: &'static str,
    /// JSON.
    pub data: Arc<str>,
}

/// The two rings of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ring {
    Second,
    Minute,
}

#[derive(Serialize)]
struct Body<'a> {
    now: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    near: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
    s: Vec<(i64, usize)>,
    m: Vec<(i64, usize)>,
    taken: Taken,
    #[serde(skip_serializing_if = "Option::is_none")]
    x: Option<Extra<'a>>,
}

#[derive(Serialize)]
struct Taken {
    s: Option<i64>,
    m: Option<i64>,
}

/// The overview in a frame.
#[derive(Serialize)]
struct Extra<'a> {
    sentence: &'a str,
    level: super::sentence::Level,
    link: &'a str,
    degraded: &'a [Degraded],
    /// First attempts a second.
    fired: f64,
    /// Lateness of the last ten seconds at p99, in milliseconds.
    p99: Option<f64>,
    rates: Rates,
    /// Live timers, and when they wake: next hour, day, week, 30 days, later.
    cold: i64,
    bins: [i64; 5],
    last_mile: i64,
    in_flight: usize,
    waiting: usize,
    retrying: i64,
    dead: i64,
    /// Whether all wheels answer.
    redis: bool,
}

impl<'a> Extra<'a> {
    fn of(overview: &'a Overview) -> Self {
        Self {
            sentence: &overview.sentence.text,
            level: overview.sentence.level,
            link: overview.sentence.link,
            degraded: &overview.degraded,
            fired: overview.rates.fired,
            p99: overview.p99_ms.map(|ms| (ms * 10.0).round() / 10.0),
            rates: overview.rates,
            cold: overview.live,
            bins: overview.bins,
            last_mile: overview.last_mile,
            in_flight: overview.in_flight,
            waiting: overview.waiting,
            retrying: overview.retrying,
            dead: overview.dead,
            redis: !overview.degraded.contains(&Degraded::Redis),
        }
    }
}

/// Makes frames.
#[derive(Debug, Default)]
pub struct Frames {
    /// The counts that those who watch have.
    sent: BTreeMap<(Ring, i64), usize>,
}

impl Frames {
    /// The next frame for those who watch: everything, or what changed.
    pub fn next(
        &mut self,
        slots: &Slots,
        now: UnixMs,
        overview: Option<&Overview>,
        wheel: Option<&Wheel>,
    ) -> Frame {
        let before = std::mem::replace(&mut self.sent, merged(slots));
        if wheel.is_some() {
            return self.frame(self.sent.clone(), slots, now, overview, wheel);
        }
        let gone = before.keys().filter(|key| !self.sent.contains_key(key)).map(|key| (*key, 0));
        let changed = self.sent.iter().filter(|(key, count)| before.get(key) != Some(count));
        let changed = changed.map(|(key, count)| (*key, *count)).chain(gone).collect();
        self.frame(changed, slots, now, overview, None)
    }

    /// Everything, for one who begins to watch. `alone`: nobody else does.
    pub fn first(&mut self, alone: bool, slots: &Slots, overview: &Overview, wheel: &Wheel) -> Frame {
        if alone {
            self.sent = merged(slots);
        }
        self.frame(self.sent.clone(), slots, overview.now, Some(overview), Some(wheel))
    }

    fn frame(
        &self,
        counts: BTreeMap<(Ring, i64), usize>,
        slots: &Slots,
        now: UnixMs,
        overview: Option<&Overview>,
        wheel: Option<&Wheel>,
    ) -> Frame {
        let of = |ring: Ring| {
            let of_ring = counts.iter().filter(|((of, _), _)| *of == ring);
            of_ring.map(|((_, tick), count)| (*tick, *count)).collect()
        };
        let taken = |level| slots.taken(level).map(|tick| tick.0);
        let body = Body {
            now: now.get(),
            near: wheel.map(|wheel| wheel.near.get().as_secs()),
            window: wheel.map(|wheel| wheel.window.get().as_secs()),
            s: of(Ring::Second),
            m: of(Ring::Minute),
            taken: Taken { s: taken(Level::Second), m: taken(Level::Minute) },
            x: overview.map(Extra::of),
        };
        Frame {
            event: if wheel.is_some() { "full" } else { "delta" },
            data: serde_json::to_string(&body).unwrap_or_default().into(),
        }
    }
}

fn merged(slots: &Slots) -> BTreeMap<(Ring, i64), usize> {
    let mut merged = BTreeMap::new();
    for (slot, count) in slots.counts() {
        let ring = if slot.level == Level::Second { Ring::Second } else { Ring::Minute };
        *merged.entry((ring, slot.tick.0)).or_default() += count.all;
    }
    merged
}
