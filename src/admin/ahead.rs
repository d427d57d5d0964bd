//! What is due from now on: by the minute for an hour, by the hour for two days, by the day for thirty.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::words::{self, Zone};
use super::{Admin, html};
use crate::cold::Whose;
use crate::model::time::UnixMs;
use crate::observe::forecast::{Forecast, forecast};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// The height of a chart, and the width of one bar with its space, in the units of its view box.
const HEIGHT: f64 = 128.0;
const STEP: usize = 10;

#[derive(Template)]
#[template(path = "ahead.html", config = ".askama.toml")]
struct AheadPage {
    frame: Frame,
    from: String,
    until: String,
    charts: Vec<Chart>,
    is_empty: bool,
    counted: Option<String>,
    /// Not all nominal times of schedules were counted.
    is_cut: bool,
}

/// Bars side by side.
struct Chart {
    title: &'static str,
    says: String,
    width: usize,
    bars: Vec<Bar>,
    axis: Vec<String>,
}

/// What is due in one step.
struct Bar {
    x: usize,
    y: String,
    height: String,
    count: i64,
    href: String,
    label: String,
    from: String,
    peak: bool,
}

/// How steps are named.
#[derive(Clone, Copy)]
enum Names {
    Times,
    Days,
}

impl Names {
    fn of(self, zone: Zone, at: UnixMs) -> String {
        match self {
            Self::Times => zone.hour(at),
            Self::Days => zone.day(at),
        }
    }

    fn whole(self, zone: Zone, at: UnixMs) -> String {
        match self {
            Self::Times => format!("{} {}", zone.day(at), zone.hour(at)),
            Self::Days => zone.day(at),
        }
    }
}

/// `GET /ahead`.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let store = &service.store;
    let (now, zone) = (store.clock().now(), visit.zone);
    let later = |from: UnixMs, by: i64| UnixMs::new(from.get() + by);
    let minute = now.floor_minute();
    // The hours of some zones begin half an hour beside those of UTC.
    let beside = zone.offset_s(now) * 1000 % HOUR_MS;
    let hour = UnixMs::new((now.get() + beside).div_euclid(HOUR_MS) * HOUR_MS - beside);
    let midnight = zone.midnight(now);
    let hours = forecast(store, false, (minute, later(minute, HOUR_MS)), MINUTE_MS).await?;
    let days = forecast(store, false, (hour, later(hour, 2 * DAY_MS)), HOUR_MS).await?;
    // By the hour: a day of a zone may have 23 or 25 of them.
    let month = forecast(store, false, (midnight, later(midnight, 30 * DAY_MS)), HOUR_MS).await?;
    let charts = vec![
        Chart::new(
            "The next hour, by the minute",
            steps(&hours, minute, 60, MINUTE_MS),
            Names::Times,
            4,
            zone,
        ),
        Chart::new("The next two days, by the hour", steps(&days, hour, 48, HOUR_MS), Names::Times, 8, zone),
        Chart::new("The next thirty days", by_day(&month, midnight, zone), Names::Days, 6, zone),
    ];
    let title = charts[1].peak().map_or_else(
        || "Nothing is due in the next two days.".to_owned(),
        |peak| format!("Peak ahead: {} due in the hour from {}.", words::number(peak.count), peak.from),
    );
    let old = [&hours, &days, &month].into_iter().map(|one| one.counted_at).min().filter(|at| *at < minute);
    let page = AheadPage {
        frame: Frame::new(&admin, &visit, "/ahead", title),
        from: zone.input(later(midnight, DAY_MS + 9 * HOUR_MS)),
        until: zone.input(later(midnight, DAY_MS + 10 * HOUR_MS)),
        is_empty: store.ledger(Whose::One(store.namespace())).await?.pending == 0,
        counted: old
            .map(|at| format!("So many timers are counted from time to time, last at {}.", zone.clock(at))),
        is_cut: [&hours, &days, &month].into_iter().any(|one| one.is_cut),
        charts,
    };
    Ok(html(&page))
}

/// Each step of a forecast with its end and count, also the empty ones.
fn steps(found: &Forecast, from: UnixMs, count: i64, step_ms: i64) -> Vec<(UnixMs, UnixMs, i64)> {
    let counts: BTreeMap<i64, i64> = found.items.iter().map(|(at, count)| (at.get(), *count)).collect();
    let step = |index: i64| {
        let at = from.get() + index * step_ms;
        (UnixMs::new(at), UnixMs::new(at + step_ms), counts.get(&at).copied().unwrap_or_default())
    };
    (0..count).map(step).collect()
}

/// Hours put together to the days of a zone.
fn by_day(found: &Forecast, midnight: UnixMs, zone: Zone) -> Vec<(UnixMs, UnixMs, i64)> {
    let mut days = Vec::new();
    let mut from = midnight;
    for _ in 0..30 {
        // Twelve hours into the next day, whatever its length.
        let until = zone.midnight(UnixMs::new(from.get() + DAY_MS + DAY_MS / 2));
        let within = found.items.iter().filter(|(at, _)| (from..until).contains(at));
        days.push((from, until, within.map(|(_, count)| count).sum()));
        from = until;
    }
    days
}

impl Chart {
    /// A chart of steps, with so many parts between the labels of its axis.
    fn new(
        title: &'static str,
        steps: Vec<(UnixMs, UnixMs, i64)>,
        names: Names,
        parts: usize,
        zone: Zone,
    ) -> Self {
        let highest = steps.iter().map(|(_, _, count)| *count).max().unwrap_or(0);
        let total: i64 = steps.iter().map(|(_, _, count)| count).sum();
        // Of equal ones the first.
        let peak = steps.iter().position(|(_, _, count)| *count == highest && highest > 0);
        let axis = (0..=parts).map(|part| {
            let index = part * steps.len() / parts;
            let at = steps.get(index).map(|(from, _, _)| *from).or(steps.last().map(|(_, until, _)| *until));
            at.map(|at| names.of(zone, at)).unwrap_or_default()
        });
        let axis = axis.collect();
        let bar = |(index, (from, until, count)): (usize, &(UnixMs, UnixMs, i64))| {
            let height = match *count {
                0 => 0.0,
                n => (n as f64 / highest.max(1) as f64 * (HEIGHT - 8.0)).max(1.5),
            };
            let from_text = names.whole(zone, *from);
            Bar {
                x: index * STEP,
                y: format!("{:.1}", HEIGHT - height),
                height: format!("{height:.1}"),
                count: *count,
                href: format!("/timers?due_after={}&due_before={}", from.rfc3339(), until.rfc3339()),
                label: format!("{from_text}: {} due", words::number(*count)),
                from: from_text,
                peak: peak == Some(index),
            }
        };
        let bars: Vec<Bar> = steps.iter().enumerate().map(bar).collect();
        let mut chart = Self { title, says: String::new(), width: bars.len() * STEP, bars, axis };
        chart.says = match chart.peak() {
            None => "Nothing is due.".to_owned(),
            Some(peak) => format!(
                "{} in all; the peak is {} with {}.",
                words::number(total),
                peak.from,
                words::number(peak.count)
            ),
        };
        chart
    }

    fn peak(&self) -> Option<&Bar> {
        self.bars.iter().find(|bar| bar.peak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(items: &[(i64, i64)]) -> Forecast {
        let items = items.iter().map(|(at, count)| (UnixMs::new(*at), *count)).collect();
        Forecast { items, peak: None, counted_at: UnixMs::new(0), is_cut: false }
    }

    #[test]
    fn a_step_without_timers_is_a_bar_without_height_and_the_first_highest_is_the_peak() {
        let steps = steps(
            &found(&[(MINUTE_MS, 4), (3 * MINUTE_MS, 4), (4 * MINUTE_MS, 1)]),
            UnixMs::new(0),
            5,
            MINUTE_MS,
        );
        let chart = Chart::new("t", steps, Names::Times, 5, Zone::default());
        let bars: Vec<_> =
            chart.bars.iter().map(|bar| (bar.x, bar.count, bar.height.as_str(), bar.peak)).collect();
        assert_eq!(
            bars,
            [
                (0, 0, "0.0", false),
                (10, 4, "120.0", true),
                (20, 0, "0.0", false),
                (30, 4, "120.0", false),
                (40, 1, "30.0", false)
            ]
        );
        assert_eq!(chart.says, "9 in all; the peak is Thu 1 Jan 00:01 with 4.");
        assert_eq!(chart.axis, ["00:00", "00:01", "00:02", "00:03", "00:04", "00:05"]);
        assert_eq!(
            chart.bars[1].href,
            "/timers?due_after=1970-01-01T00:01:00.000Z&due_before=1970-01-01T00:02:00.000Z"
        );
    }

    #[test]
    fn days_are_those_of_the_zone_also_when_clocks_change() {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        // 2026-10-25 has 25 hours there.
        let midnight = UnixMs::parse_rfc3339("2026-10-23T22:00:00Z").unwrap();
        let at = |text: &str| UnixMs::parse_rfc3339(text).unwrap().get();
        let items = [
            (at("2026-10-24T22:00:00Z"), 1),
            (at("2026-10-25T22:00:00Z"), 2),
            (at("2026-10-25T23:00:00Z"), 4),
        ];
        let days = by_day(&found(&items), midnight, berlin);
        assert_eq!(days.len(), 30);
        let counts: Vec<i64> = days.iter().take(4).map(|(_, _, count)| *count).collect();
        assert_eq!(counts, [0, 3, 4, 0]);
    }
}
