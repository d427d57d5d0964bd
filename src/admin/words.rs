//! Numbers, times and spans as the page writes them: one style everywhere.

use std::borrow::Borrow;
use std::fmt::{self, Display};
use std::time::Duration;

use chrono::{Offset, TimeZone, Utc};
use chrono_tz::Tz;

use crate::config::{Config, HotUrl, shown_url};
use crate::model::time::{self, UnixMs};
use crate::observe::sentence::grouped;

/// A whole number that a page shows. Templates pass references.
pub trait Whole {
    /// Its value.
    fn whole(self) -> i128;
}

macro_rules! whole {
    ($($kind:ty),*) => {$(
        impl Whole for $kind {
            fn whole(self) -> i128 {
                self as i128
            }
        }
        impl Whole for &$kind {
            fn whole(self) -> i128 {
                *self as i128
            }
        }
    )*};
}

whole!(i32, i64, u64, usize);

/// A count, in groups of three digits.
pub fn number(n: impl Whole) -> String {
    let n = n.whole();
    let sign = if n < 0 { "-" } else { "" };
    format!("{sign}{}", grouped(u64::try_from(n.unsigned_abs()).unwrap_or(u64::MAX)))
}

/// A count and its noun: `1 timer`, `214 timers`.
pub fn count(n: impl Whole, noun: &str) -> String {
    let n = n.whole();
    let ending = if n == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", number(i64::try_from(n).unwrap_or(i64::MAX)))
}

/// A rate: `0`, `0.4`, `12.3`, and from 100 on whole numbers.
pub fn rate(per_second: impl Borrow<f64>) -> String {
    match *per_second.borrow() {
        r if r < 0.05 => "0".into(),
        r if r < 99.95 => format!("{r:.1}"),
        r => number(r.round() as i64),
    }
}

/// Lateness at p99, as the hub of the picture has it.
pub fn p99(ms: Option<f64>) -> String {
    match ms {
        None => "p99 –".into(),
        Some(ms) if ms < 10.0 => format!("p99 {ms:.1} ms"),
        Some(ms) if ms < 1000.0 => format!("p99 {ms:.0} ms"),
        Some(ms) => format!("p99 {:.1} s", ms / 1000.0),
    }
}

/// A span in its two largest units: `29m 59s`, `250ms`.
pub fn span(span: Duration) -> String {
    time::human(span)
}

/// Where the wheels are, in words.
pub fn wheels(config: &Config) -> String {
    match config.hot_url() {
        _ if !config.wheel.enabled => "off".to_owned(),
        Ok(HotUrl::Memory) => "in this process, without Redis".to_owned(),
        _ => format!("in {}", shown_url(&config.hot.url)),
    }
}

/// The time zone in which the reader sees times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone(Tz);

impl Default for Zone {
    fn default() -> Self {
        Self(Tz::UTC)
    }
}

impl Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

/// A moment, as a page shows it in a `<time>` element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// RFC 3339 in UTC, for programs.
    pub utc: String,
    /// In the reader's zone, to the millisecond if it is not a whole second.
    pub text: String,
    /// Relative to now: `in 3h 2m`, `12s ago`.
    pub distance: String,
}

impl Zone {
    /// The zone of this IANA name.
    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok().map(Self)
    }

    fn format(self, at: UnixMs, format: &str) -> String {
        match self.0.timestamp_millis_opt(at.get()).single() {
            Some(local) => local.format(format).to_string(),
            None => at.rfc3339(),
        }
    }

    fn text(self, at: UnixMs) -> String {
        let whole = at.get().rem_euclid(1000) == 0;
        self.format(at, if whole { "%Y-%m-%d %H:%M:%S" } else { "%Y-%m-%d %H:%M:%S%.3f" })
    }

    /// A moment, relative to `now`.
    pub fn moment(self, at: UnixMs, now: UnixMs) -> Moment {
        Moment { utc: at.rfc3339(), text: self.text(at), distance: time::from_now(at, now) }
    }

    /// A sentence of the service, its RFC 3339 times as all others of the page.
    pub fn retell(self, sentence: &str) -> String {
        let word = |word: &str| {
            let bare = word.trim_end_matches(['.', ',', ';', ':', ')']);
            match UnixMs::parse_rfc3339(bare) {
                Ok(at) => self.text(at) + &word[bare.len()..],
                Err(_) => word.to_owned(),
            }
        };
        sentence.split(' ').map(word).collect::<Vec<_>>().join(" ")
    }

    /// `09:00:05`.
    pub fn clock(self, at: UnixMs) -> String {
        self.format(at, "%H:%M:%S")
    }

    /// `09:00`.
    pub fn hour(self, at: UnixMs) -> String {
        self.format(at, "%H:%M")
    }

    /// `Tue 1 Dec`.
    pub fn day(self, at: UnixMs) -> String {
        self.format(at, "%a %-d %b")
    }

    /// `2026-12-01T09:00:00`, as an input of a local time has it.
    pub fn input(self, at: UnixMs) -> String {
        self.format(at, "%Y-%m-%dT%H:%M:%S")
    }

    /// What is ahead of UTC at this moment, in seconds.
    pub fn offset_s(self, at: UnixMs) -> i64 {
        let utc = Utc.timestamp_millis_opt(at.get()).single().unwrap_or_default();
        i64::from(self.0.offset_from_utc_datetime(&utc.naive_utc()).fix().local_minus_utc())
    }

    /// Reads a time with an offset, or a wall time of this zone.
    pub fn read(self, text: &str) -> Result<UnixMs, time::Error> {
        UnixMs::parse_rfc3339(text)
            .or_else(|why| UnixMs::from_local(&text.replace(' ', "T"), self.0.name()).map_err(|_| why))
    }

    /// The beginning of the day of this moment.
    pub fn midnight(self, at: UnixMs) -> UnixMs {
        let local = at.get() + self.offset_s(at) * 1000;
        let midnight = local.div_euclid(86_400_000) * 86_400_000;
        let text = Utc.timestamp_millis_opt(midnight).single().unwrap_or_default();
        UnixMs::from_local(&text.format("%Y-%m-%dT%H:%M:%S").to_string(), self.0.name()).unwrap_or(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!(number(-12_345), format!("-{}", grouped(12_345)));
        assert_eq!((count(1, "timer"), count(2, "timer")), ("1 timer".into(), "2 timers".into()));
        for (r, text) in [
            (0.0, "0"),
            (0.04, "0"),
            (0.05, "0.1"),
            (12.34, "12.3"),
            (99.96, "100"),
            (1203.6, &grouped(1204)),
        ] {
            assert_eq!(rate(r), text, "{r}");
        }
    }

    #[test]
    fn times_are_shown_and_read_in_the_readers_zone() {
        let shanghai = Zone::parse("Asia/Shanghai").unwrap();
        let at = UnixMs::parse_rfc3339("2026-12-01T01:00:00.000Z").unwrap();
        let shown = shanghai.moment(at, UnixMs::new(at.get() - 90_000));
        assert_eq!(
            (shown.text.as_str(), shown.utc.as_str(), shown.distance.as_str()),
            ("2026-12-01 09:00:00", "2026-12-01T01:00:00.000Z", "in 1m 30s")
        );
        assert_eq!(
            shanghai.retell("It waits for attempt 2 of 6, at 2026-12-01T01:00:00.000Z."),
            "It waits for attempt 2 of 6, at 2026-12-01 09:00:00."
        );
        assert_eq!(Zone::default().moment(UnixMs::new(1), at).text, "1970-01-01 00:00:00.001");
        for text in ["2026-12-01T09:00", "2026-12-01 09:00:00", "2026-12-01T01:00:00Z"] {
            assert_eq!(shanghai.read(text), Ok(at), "{text}");
        }
        assert!(shanghai.read("tomorrow").is_err());
        assert_eq!(Zone::parse("Mars/Olympus"), None);
    }

    #[test]
    fn a_day_begins_at_its_midnight_also_when_clocks_change() {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        for (at, midnight) in [
            ("2026-12-01T12:00:00Z", "2026-11-30T23:00:00.000Z"),
            // 2026-03-29 has 23 hours, 2026-10-25 has 25.
            ("2026-03-29T12:00:00Z", "2026-03-28T23:00:00.000Z"),
            ("2026-10-25T22:30:00Z", "2026-10-24T22:00:00.000Z"),
        ] {
            let at = UnixMs::parse_rfc3339(at).unwrap();
            assert_eq!(berlin.midnight(at).rfc3339(), midnight);
        }
    }
}
