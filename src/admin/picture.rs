//! The picture of the wheels: slots by second inside slots by minute, drawn once by the server. The script of the page
//! goes on with the same geometry (`assets/page.js`).
//!
//! The slots stand and the hands move: a tick is drawn at the angle tick mod ring, so nothing jumps when time goes on.
//! A slot is as long as the cube root of its count is to that of the fullest one of its ring: twice as many are seen to
//! be more, and one of ten thousand is still seen. (Under a logarithm, minutes of 100 and 300 timers look the same.) A
//! ring with more ticks than it can show draws several in one slot. What lies behind the hand is late. A minute that was
//! cascaded into its seconds is drawn hollow, as long as what these still hold, timers of `precision: minute` included;
//! so seconds that lie further ahead than the inner ring reaches are seen too.

use std::f64::consts::TAU;

use super::live::Full;
use super::words::{self, Zone};
use crate::model::time::UnixMs;

const CENTRE: f64 = 200.0;

/// The most slots that a ring draws.
const MOST_SLOTS: i64 = 180;

/// How long after its time a slot may still hold pointers without being late: frames are a quarter second apart.
const MARGIN_MS: i64 = 500;

/// Where a ring is: its base line, and from where to where its bars reach.
struct Place {
    base: f64,
    from: f64,
    to: f64,
    numbers: f64,
}

const SECONDS: Place = Place { base: 75.0, from: 76.0, to: 116.0, numbers: 67.0 };
const MINUTES: Place = Place { base: 131.0, from: 132.0, to: 186.0, numbers: 193.0 };

/// The picture at one moment.
pub struct Picture {
    /// The time of day in the reader's zone.
    pub clock: String,
    /// How far the reader's zone is ahead of UTC, in seconds.
    pub offset_s: i64,
    /// The inner ring and the outer one.
    pub rings: Vec<Ring>,
    /// Their hands.
    pub hands: Vec<Hand>,
    /// Pointers in slots of a second.
    pub seconds: u64,
    /// Pointers in slots of a minute.
    pub minutes: u64,
}

/// One ring.
pub struct Ring {
    /// For its table.
    pub title: &'static str,
    /// Radius of the base line.
    pub base: f64,
    /// Where its bars begin.
    pub from: f64,
    /// Where its longest bar ends.
    pub to: f64,
    /// The length of a tick.
    pub tick_ms: i64,
    /// Ticks of one slot.
    pub per: i64,
    /// Marks at every fifth slot.
    pub ticks: Vec<Mark>,
    /// In the order of their angles, clockwise from the top.
    pub slots: Vec<Slot>,
}

/// A mark of a ring: a line or a number.
pub struct Mark {
    pub d: String,
    pub label: Option<String>,
    pub x: String,
    pub y: String,
}

/// One slot.
#[derive(Default)]
pub struct Slot {
    /// Pointers in it.
    pub count: u64,
    /// `late`, `hollow`, or nothing.
    pub class: &'static str,
    /// The list of its timers.
    pub href: String,
    /// What a reader hears of it.
    pub label: String,
    /// When it begins, in the reader's zone.
    pub starts: String,
    /// The path of the whole slot.
    pub hit: String,
    /// The path of its bar.
    pub bar: String,
    starts_at: i64,
}

impl Slot {
    /// Its standing in words.
    pub fn standing(&self) -> &'static str {
        match self.class {
            "late" => "late: its time has come and it is not handed over",
            "hollow" => "cascaded into seconds",
            _ => "waits for its time",
        }
    }
}

/// A hand.
pub struct Hand {
    pub y1: f64,
    pub y2: f64,
    /// How long a turn takes.
    pub turn_ms: i64,
    pub angle: String,
}

impl Picture {
    /// The picture of a frame.
    pub fn new(full: &Full, zone: Zone) -> Self {
        let now = UnixMs::new(full.now);
        let offset_s = zone.offset_s(now);
        let seconds = Ticks {
            title: "The second wheel",
            tick_ms: 1000,
            ticks: full.near,
            late_after_ms: 1000 + MARGIN_MS,
            counts: &full.seconds,
            cascaded: None,
        };
        let minutes = Ticks {
            title: "The minute wheel",
            tick_ms: 60_000,
            ticks: full.window.div_euclid(60),
            late_after_ms: 1000 + MARGIN_MS,
            counts: &full.minutes,
            cascaded: full.taken.minute.map(|until| (until, &*full.seconds)),
        };
        let rings = vec![seconds.draw(&SECONDS, full.now, zone), minutes.draw(&MINUTES, full.now, zone)];
        let hand = |ring: &Ring, y1: f64, y2: f64| {
            let turn_ms = ring.tick_ms * ring.per * ring.slots.len() as i64;
            let angle = full.now.rem_euclid(turn_ms) as f64 / turn_ms as f64 * 360.0;
            Hand { y1, y2, turn_ms, angle: format!("{angle:.2}") }
        };
        let hands = vec![
            hand(&rings[0], CENTRE - 61.0, CENTRE - 120.0),
            hand(&rings[1], CENTRE - 126.0, CENTRE - 190.0),
        ];
        let sum = |counts: &[(i64, u64)]| counts.iter().map(|(_, count)| count).sum();
        Self {
            clock: zone.clock(now),
            offset_s,
            rings,
            hands,
            seconds: sum(&full.seconds),
            minutes: sum(&full.minutes),
        }
    }

    /// Whether no slot holds anything.
    pub fn is_empty(&self) -> bool {
        self.seconds == 0 && self.minutes == 0
    }
}

impl Ring {
    /// The slots that hold something, in order of time.
    pub fn filled(&self) -> Vec<&Slot> {
        let mut filled: Vec<&Slot> = self.slots.iter().filter(|slot| slot.count > 0).collect();
        filled.sort_by_key(|slot| slot.starts_at);
        filled
    }
}

/// What a ring shows.
struct Ticks<'a> {
    title: &'static str,
    tick_ms: i64,
    /// How many ticks the wheel reaches.
    ticks: i64,
    /// How long after its beginning a slot that still holds pointers is late.
    late_after_ms: i64,
    counts: &'a [(i64, u64)],
    /// The last tick that was cascaded, and the seconds that they went into.
    cascaded: Option<(i64, &'a [(i64, u64)])>,
}

/// What one slot of a ring shows.
#[derive(Clone, Copy, Default)]
struct Shown {
    waiting: u64,
    late: u64,
    hollow: u64,
    slot: Option<i64>,
}

impl Shown {
    const fn count(&self) -> u64 {
        match (self.late, self.waiting) {
            (0, 0) => self.hollow,
            (0, waiting) => waiting,
            (late, _) => late,
        }
    }

    const fn class(&self) -> &'static str {
        match (self.late, self.waiting) {
            (0, 0) => "hollow",
            (0, _) => "",
            _ => "late",
        }
    }
}

impl Ticks<'_> {
    fn draw(&self, place: &Place, now: i64, zone: Zone) -> Ring {
        let ticks = self.ticks.max(1);
        let per = (ticks + MOST_SLOTS - 1).div_euclid(MOST_SLOTS);
        let slots = (ticks + per - 1).div_euclid(per);
        let shown = self.shown(slots, per, now);
        let fullest = shown.iter().map(Shown::count).max().unwrap_or(0).max(1);
        let longest = (fullest as f64).cbrt();
        let draw = |(index, one): (usize, &Shown)| {
            let sector = |to: f64, trim: f64| sector(index as f64, slots as f64, place.from, to, trim);
            let count = one.count();
            let length = match count {
                0 => 0.0,
                n => ((n as f64).cbrt() / longest * (place.to - place.from)).max(1.0),
            };
            let starts_at = one.slot.unwrap_or_default() * per * self.tick_ms;
            let ends_at = UnixMs::new(starts_at + per * self.tick_ms);
            let starts = UnixMs::new(starts_at);
            let late = if one.late > 0 { ", late" } else { "" };
            Slot {
                count,
                class: one.class(),
                href: format!("/timers?due_after={}&due_before={}", starts.rfc3339(), ends_at.rfc3339()),
                label: format!("{}, {}{late}", zone.clock(starts), words::count(count, "timer")),
                starts: zone.clock(starts),
                hit: sector(place.to, 0.0),
                bar: if count == 0 { String::new() } else { sector(place.from + length, 0.1) },
                starts_at,
            }
        };
        Ring {
            title: self.title,
            base: place.base,
            from: place.from,
            to: place.to,
            tick_ms: self.tick_ms,
            per,
            ticks: self.marks(place, slots, per, zone.offset_s(UnixMs::new(now))),
            slots: shown.iter().enumerate().map(draw).collect(),
        }
    }

    /// What each slot shows. Ticks further ahead than the ring are left out, and those more than half a ring behind.
    fn shown(&self, slots: i64, per: i64, now: i64) -> Vec<Shown> {
        let mut shown = vec![Shown::default(); usize::try_from(slots).unwrap_or_default()];
        let here = now.div_euclid(self.tick_ms * per);
        let mut at = |tick: i64, add: &dyn Fn(&mut Shown)| {
            let slot = tick.div_euclid(per);
            let index = usize::try_from(slot.rem_euclid(slots)).unwrap_or_default();
            if slot < here + slots && slot > here - (slots + 1) / 2 {
                let one = &mut shown[index];
                add(one);
                one.slot.get_or_insert(slot);
            }
        };
        for (tick, count) in self.counts {
            if tick * self.tick_ms + self.late_after_ms <= now {
                at(*tick, &|one| {
                    one.late += count;
                    one.slot = None;
                });
            } else if self.cascaded.is_some_and(|(until, _)| *tick <= until) {
                at(*tick, &|one| one.hollow += count);
            } else {
                at(*tick, &|one| one.waiting += count);
            }
        }
        if let Some((until, seconds)) = self.cascaded {
            for (second, count) in seconds.iter().filter(|(second, _)| second * 1000 + 1500 > now) {
                let minute = (second * 1000).div_euclid(self.tick_ms);
                if minute <= until {
                    at(minute, &|one| one.hollow += count);
                }
            }
        }
        shown
    }

    /// A mark at every fifth slot, and a number at every fifteenth if it means the same at each turn.
    fn marks(&self, place: &Place, slots: i64, per: i64, offset_s: i64) -> Vec<Mark> {
        let outwards = place.numbers > place.to;
        let (near, far) =
            if outwards { (place.to + 1.0, place.to + 5.0) } else { (place.base - 3.0, place.base) };
        let turn_ms = slots * per * self.tick_ms;
        let unit_ms = if self.tick_ms < 60_000 { 60_000 } else { 3_600_000 };
        let has_numbers = turn_ms % unit_ms == 0 && per == 1;
        let mark = |index: i64| {
            let (x1, y1) = point(index as f64, slots as f64, near);
            let (x2, y2) = point(index as f64, slots as f64, far);
            let (x, y) = point(index as f64, slots as f64, place.numbers);
            let has_label = has_numbers && index % 15 == 0;
            let value = (index * self.tick_ms + offset_s * 1000).rem_euclid(unit_ms) / self.tick_ms;
            let label = has_label.then(|| format!("{value:02}"));
            let d = if has_label { String::new() } else { format!("M{x1} {y1}L{x2} {y2}") };
            Mark { d, label, x, y }
        };
        (0..slots).step_by(5).map(mark).collect()
    }
}

/// The point at `at` of `n` parts of a turn, clockwise from the top.
fn point(at: f64, n: f64, radius: f64) -> (String, String) {
    let (sin, cos) = (at / n * TAU).sin_cos();
    (format!("{:.1}", CENTRE + radius * sin), format!("{:.1}", CENTRE - radius * cos))
}

/// A sector of a ring, from one radius to another. `trim` is left off on either side, as a part of its width.
fn sector(index: f64, n: f64, from: f64, to: f64, trim: f64) -> String {
    let at = |radius: f64, share: f64| {
        let (x, y) = point(index + share, n, radius);
        format!("{x} {y}")
    };
    let to_text = format!("{to:.1}");
    format!(
        "M{}L{}A{to_text} {to_text} 0 0 1 {}L{}A{from} {from} 0 0 0 {}Z",
        at(from, trim),
        at(to, trim),
        at(to, 1.0 - trim),
        at(from, 1.0 - trim),
        at(from, trim)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::live::{Overview, Taken};

    /// 2026-11-22T10:00:30Z.
    const NOW: i64 = 1_795_341_630_000;

    fn picture(seconds: &[(i64, u64)], minutes: &[(i64, u64)], taken: Option<i64>) -> Picture {
        let overview = Overview {
            sentence: String::new(),
            level: String::new(),
            link: String::new(),
            fired: 0.0,
            p99: None,
            rates: Default::default(),
            cold: 0,
            bins: [0; 5],
            last_mile: 0,
            in_flight: 0,
            waiting: 0,
            retrying: 0,
            dead: 0,
            redis: true,
        };
        let full = Full {
            now: NOW,
            near: 120,
            window: 3600,
            seconds: seconds.to_vec(),
            minutes: minutes.to_vec(),
            taken: Taken { minute: taken },
            overview,
        };
        Picture::new(&full, Zone::default())
    }

    /// Index, count and class of the slots of a ring that hold something.
    fn filled(ring: &Ring) -> Vec<(usize, u64, &'static str)> {
        let slots = ring.slots.iter().enumerate().filter(|(_, slot)| slot.count > 0);
        slots.map(|(index, slot)| (index, slot.count, slot.class)).collect()
    }

    #[test]
    fn a_tick_stands_at_its_angle_and_is_late_behind_the_hand() {
        let second = NOW / 1000;
        let drawn = picture(&[(second - 2, 3), (second, 4), (second + 119, 5), (second + 120, 6)], &[], None);
        let at = |tick: i64| usize::try_from(tick.rem_euclid(120)).unwrap();
        // `second + 120` lies beyond the ring.
        let mut expected = vec![(at(second - 2), 3, "late"), (at(second), 4, ""), (at(second + 119), 5, "")];
        expected.sort_unstable();
        assert_eq!(filled(&drawn.rings[0]), expected);
        assert_eq!(drawn.rings[0].slots.len(), 120);
        let slot = &drawn.rings[0].slots[at(second)];
        assert_eq!(
            slot.href,
            "/timers?due_after=2026-11-22T10:00:30.000Z&due_before=2026-11-22T10:00:31.000Z"
        );
        assert_eq!((slot.label.as_str(), slot.starts.as_str()), ("10:00:30, 4 timers", "10:00:30"));
        assert_eq!(drawn.hands[0].angle, "90.00", "30 s of 120");
        assert_eq!(drawn.hands[1].angle, "3.00", "half a minute of an hour");
    }

    #[test]
    fn a_cascaded_minute_is_hollow_and_shows_what_its_seconds_hold() {
        let minute = NOW / 60_000;
        let seconds = [(NOW / 1000 + 5, 2), ((minute + 2) * 60, 7)];
        let drawn = picture(&seconds, &[(minute + 3, 11)], Some(minute + 2));
        let at = |tick: i64| usize::try_from(tick.rem_euclid(60)).unwrap();
        assert_eq!(
            filled(&drawn.rings[1]),
            [(at(minute), 2, "hollow"), (at(minute + 2), 7, "hollow"), (at(minute + 3), 11, "")]
        );
        assert_eq!((drawn.seconds, drawn.minutes), (9, 11));
    }

    #[test]
    fn the_fullest_bar_is_the_longest_and_one_timer_is_seen() {
        let second = NOW / 1000;
        let drawn = picture(&[(second + 1, 1_000_000), (second + 2, 1)], &[], None);
        let bar = |ahead: i64| &drawn.rings[0].slots[usize::try_from((second + ahead) % 120).unwrap()].bar;
        assert!(bar(1).contains("A116.0 116.0"), "{}", bar(1));
        assert!(bar(2).contains("A77.0 77.0"), "{}", bar(2));
    }

    #[test]
    fn a_wheel_of_a_day_draws_several_minutes_in_a_slot() {
        let minutes = Ticks {
            title: "",
            tick_ms: 60_000,
            ticks: 1440,
            late_after_ms: 0,
            counts: &[(8, 1), (15, 2)],
            cascaded: None,
        };
        let ring = minutes.draw(&MINUTES, 0, Zone::default());
        assert_eq!((ring.per, ring.slots.len()), (8, 180));
        assert_eq!(filled(&ring), [(1, 3, "")]);
        assert!(
            ring.slots[1]
                .href
                .ends_with("due_after=1970-01-01T00:08:00.000Z&due_before=1970-01-01T00:16:00.000Z")
        );
        assert!(ring.ticks.iter().all(|mark| mark.label.is_none()));
    }

    #[test]
    fn numbers_are_those_of_the_readers_clock() {
        let kolkata = Zone::parse("Asia/Kolkata").unwrap();
        let minutes =
            Ticks { title: "", tick_ms: 60_000, ticks: 60, late_after_ms: 0, counts: &[], cascaded: None };
        let ring = minutes.draw(&MINUTES, NOW, kolkata);
        let labels: Vec<_> = ring.ticks.iter().filter_map(|mark| mark.label.as_deref()).collect();
        assert_eq!(labels, ["30", "45", "00", "15"], "half an hour beside UTC's");
    }
}
