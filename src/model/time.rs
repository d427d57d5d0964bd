//! Instants as RFC 3339 and durations as ISO 8601, in whole milliseconds, as the contract writes them.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, LocalResult, NaiveDateTime, SecondsFormat, TimeZone, Utc};
use chrono_tz::Tz;
use jiff::fmt::temporal::SpanParser;
use jiff::{RoundMode, SpanRelativeTo, SpanRound, Unit};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 0000-01-01T00:00:00.000Z, the first instant that RFC 3339 can write.
pub const FIRST: UnixMs = UnixMs(-62_167_219_200_000);

/// 9999-12-31T23:59:59.999Z, the last instant that RFC 3339 can write.
pub const LAST: UnixMs = UnixMs(253_402_300_799_999);

/// An instant: milliseconds since the Unix epoch, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct UnixMs(i64);

/// Why a text is not a time or a duration; the message is for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not an RFC 3339 instant with an offset.
    #[error("`{0}` is not an RFC 3339 time with an offset, such as 2026-12-01T09:00:00+08:00")]
    Instant(String),
    /// Not an ISO 8601 duration.
    #[error(
        "`{0}` is not an ISO 8601 duration of weeks, days, hours, minutes and seconds, such as PT48H or PT0.5S"
    )]
    Duration(String),
    /// Years and months have no fixed length.
    #[error(
        "`{0}` counts in years or months, which have no fixed length; say days (P30D), or give `fire_at`"
    )]
    Calendar(String),
    /// The instant is before the year 0.
    #[error("the time is before 0000-01-01 in UTC, the first day that can be stored")]
    TooEarly,
    /// The instant is after the year 9999.
    #[error("the time is after 9999-12-31, the last day that can be stored")]
    TooFar,
    /// Not an IANA time zone.
    #[error("`{0}` is not an IANA time zone, such as Asia/Shanghai")]
    Zone(String),
    /// Not a local date and time.
    #[error("`{0}` is not a local time without offset, such as 2026-12-01T09:00:00")]
    Local(String),
}

impl UnixMs {
    /// From milliseconds since the Unix epoch.
    pub const fn new(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Reads RFC 3339 with an offset. A fraction finer than a millisecond is rounded up, so that nothing fires early.
    pub fn parse_rfc3339(text: &str) -> Result<Self, Error> {
        let at = DateTime::parse_from_rfc3339(text).map_err(|_| Error::Instant(quoted(text)))?;
        Self::from_datetime(at.with_timezone(&Utc))
    }

    /// The instant of a wall time in a zone. A time in a gap gives the first valid instant after it, one in an
    /// overlap the first of the two.
    pub fn from_local(local: &str, zone: &str) -> Result<Self, Error> {
        let tz: Tz = zone.parse().map_err(|_| Error::Zone(quoted(zone)))?;
        let at = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M"]
            .iter()
            .find_map(|format| NaiveDateTime::parse_from_str(local, format).ok())
            .ok_or_else(|| Error::Local(quoted(local)))?;
        Self::from_datetime(first_valid(tz, at).ok_or_else(|| Error::Local(quoted(local)))?)
    }

    fn from_datetime(at: DateTime<Utc>) -> Result<Self, Error> {
        let ms = at.timestamp_millis();
        let rounded = if at.timestamp_subsec_nanos().is_multiple_of(1_000_000) { ms } else { ms + 1 };
        Self(rounded).bounded()
    }

    /// This instant; an error if RFC 3339 cannot write it.
    pub fn bounded(self) -> Result<Self, Error> {
        match self {
            _ if self < FIRST => Err(Error::TooEarly),
            _ if self > LAST => Err(Error::TooFar),
            _ => Ok(self),
        }
    }

    /// The instant `by` later. It saturates far beyond [`LAST`].
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The instant so many milliseconds later, or earlier; never before [`FIRST`] nor after [`LAST`].
    #[must_use]
    pub fn shifted(self, by_ms: i64) -> Self {
        Self(self.0.saturating_add(by_ms).clamp(FIRST.0, LAST.0))
    }

    /// The time from `earlier` to this; zero if this is before it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Rounded down to the whole minute.
    pub const fn floor_minute(self) -> Self {
        Self(self.0.div_euclid(60_000) * 60_000)
    }

    /// Rounded up to the whole minute, at most to the last one before [`LAST`].
    #[must_use]
    pub fn ceil_minute(self) -> Self {
        Self(-(-self.0).div_euclid(60_000) * 60_000).min(LAST.floor_minute())
    }

    /// RFC 3339 in UTC with milliseconds, as in answers.
    pub fn rfc3339(self) -> String {
        match Utc.timestamp_millis_opt(self.0) {
            LocalResult::Single(at) => at.to_rfc3339_opts(SecondsFormat::Millis, true),
            _ => format!("{} ms since 1970", self.0),
        }
    }
}

impl fmt::Display for UnixMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

impl Serialize for UnixMs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.rfc3339())
    }
}

impl<'de> Deserialize<'de> for UnixMs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse_rfc3339(&text).map_err(serde::de::Error::custom)
    }
}

/// The first valid instant at or after a wall time. Zones skip whole minutes, and at most a day.
fn first_valid(tz: Tz, at: NaiveDateTime) -> Option<DateTime<Utc>> {
    match tz.from_local_datetime(&at) {
        LocalResult::Single(one) => Some(one.with_timezone(&Utc)),
        LocalResult::Ambiguous(first, _) => Some(first.with_timezone(&Utc)),
        LocalResult::None => {
            // In a gap: go on minute by minute to the first wall time that exists, the end of the gap.
            let minute = chrono::TimeDelta::minutes(1);
            let floor =
                at - chrono::TimeDelta::nanoseconds(at.and_utc().timestamp_nanos_opt()? % 60_000_000_000);
            let mut probe = floor;
            for _ in 0..=1440 {
                probe += minute;
                if let Some(found) = tz.from_local_datetime(&probe).earliest() {
                    return Some(found.with_timezone(&Utc));
                }
            }
            None
        }
    }
}

/// A span of time as ISO 8601, without months or years: whole milliseconds, never longer than [`LAST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

impl Span {
    /// From a [`Duration`]; finer than a millisecond is cut off, and longer than [`LAST`] is cut down to it.
    pub const fn from_duration(span: Duration) -> Self {
        let (ms, last) = (span.as_millis(), LAST.0 as u64);
        Self(Duration::from_millis(if ms < last as u128 { ms as u64 } else { last }))
    }

    /// As a [`Duration`].
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Reads `P[nW][nD][T[nH][nM][n[.n]S]]`; a fraction finer than a millisecond is rounded up.
    ///
    /// `jiff` reads more: signs, small letters, and fractions of hours and minutes. These are refused here. A fraction
    /// has at most nine digits.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let malformed = || Error::Duration(quoted(text));
        let used = |c: char| c.is_ascii_digit() || "PYMWDTHS.,".contains(c);
        let no_fraction = |rest: &str| !rest.ends_with('S') || rest.len() > "123456789S".len();
        if !text.chars().all(used) || text.split_once(['.', ',']).is_some_and(|(_, rest)| no_fraction(rest)) {
            return Err(malformed());
        }
        let read = |text: &str| SpanParser::new().parse_span(text);
        let span = read(text).map_err(|_| {
            // With zero for every number it fails only if its form is wrong, not if a number is too large.
            let mut zeros = text.replace(|c: char| c.is_ascii_digit(), "0");
            while zeros.contains("00") {
                zeros = zeros.replace("00", "0");
            }
            if read(&zeros).is_ok() { Error::TooFar } else { malformed() }
        })?;
        if span.get_years() != 0 || span.get_months() != 0 {
            return Err(Error::Calendar(quoted(text)));
        }
        let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| Error::TooFar)?;
        let ms = length.as_nanos().unsigned_abs().div_ceil(1_000_000);
        match u64::try_from(ms) {
            // Longer than the last instant is too far, whatever instant it is added to.
            Ok(ms) if ms <= LAST.0.unsigned_abs() => Ok(Self(Duration::from_millis(ms))),
            _ => Err(Error::TooFar),
        }
    }

    /// In days of 24 hours, hours, minutes and so on down to `smallest`; what is finer is cut off.
    pub fn in_units(self, smallest: Unit) -> Result<jiff::Span, jiff::Error> {
        let days = SpanRound::new().largest(Unit::Day).days_are_24_hours();
        jiff::Span::try_from(self.0)?.round(days.smallest(smallest).mode(RoundMode::Trunc))
    }
}

impl fmt::Display for Span {
    /// Canonical: the largest units first, weeks as days; `PT48H` becomes `P2D`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.in_units(Unit::Millisecond).map_err(|_| fmt::Error)?;
        write!(f, "{units}")
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// A span of time in its two largest units, cut off: `29m 59s`, `3d 4h`, `250ms`.
pub fn human(span: Duration) -> String {
    let smallest = match span.as_secs() {
        0 => Unit::Millisecond,
        1..3600 => Unit::Second,
        3600..86_400 => Unit::Minute,
        _ => Unit::Hour,
    };
    let units = Span::from_duration(span).in_units(smallest);
    units.map_or_else(|_| format!("{span:?}"), |units| format!("{units:#}"))
}

/// An instant relative to `now`: `in 29m 59s`, `12s ago`.
pub fn from_now(at: UnixMs, now: UnixMs) -> String {
    if at > now { format!("in {}", human(at.since(now))) } else { format!("{} ago", human(now.since(at))) }
}

/// A caller's text for an error message, at most 60 characters of it.
fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(60).collect();
    if cut.len() < text.len() { format!("{cut}…") } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, ms, written) in [
            ("PT0S", 0, "PT0S"),
            ("PT48H", 172_800_000, "P2D"),
            ("PT0.5S", 500, "PT0.5S"),
            ("PT0,25S", 250, "PT0.25S"),
            ("P1W", 604_800_000, "P7D"),
            ("P1DT2H3M4.005S", 93_784_005, "P1DT2H3M4.005S"),
            ("PT90M", 5_400_000, "PT1H30M"),
            ("PT0.0001S", 1, "PT0.001S"),
            ("PT0.000000001S", 1, "PT0.001S"),
            ("P1W2DT1S", 777_601_000, "P9DT1S"),
        ] {
            let span = Span::parse(text).unwrap();
            assert_eq!(span.get().as_millis(), ms, "{text}");
            assert_eq!(span.to_string(), written, "{text}");
        }
    }

    #[test]
    fn bad_durations_are_named() {
        for text in [
            "",
            "P",
            "PT",
            "48H",
            "P1H",
            "PT1H1H",
            "PT1M1H",
            "PT-5S",
            "-PT5S",
            "PT1.5H",
            "PT.5S",
            "PT5",
            "PT1.S",
            "P1D T1H",
            "pt5s",
            "+PT5S",
            "PT1.5M",
            "PT1.5H1S",
            "PT0.5M1.5S",
            "PT5s",
            "PT٣S",
            "PT0.1234567890S",
        ] {
            assert_eq!(Span::parse(text), Err(Error::Duration(text.into())), "{text}");
        }
        for text in ["P1Y", "P1M", "P1Y2M3D"] {
            assert_eq!(Span::parse(text), Err(Error::Calendar(text.into())), "{text}");
        }
        for text in
            ["P3650000D", "PT9999999999999S", "P9999999DT0.5S", "P99999999999999999999999999999999999999D"]
        {
            assert_eq!(Span::parse(text), Err(Error::TooFar), "{text}");
        }
    }

    #[test]
    fn instants_round_up_never_early() {
        let at = |text| UnixMs::parse_rfc3339(text).map(UnixMs::get);
        assert_eq!(at("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(at("1970-01-01T08:00:00.0001+08:00"), Ok(1));
        assert_eq!(at("1969-12-31T23:59:59.9995Z"), Ok(0));
        assert_eq!(at("0000-01-01T00:00:00Z"), Ok(FIRST.get()));
        assert_eq!(at("0000-01-01T00:00:00+01:00"), Err(Error::TooEarly));
        assert!(at("2026-12-01T09:00:00").is_err());
        assert!(at("2026-13-01T09:00:00Z").is_err());
        assert_eq!(UnixMs::new(60_001).ceil_minute().get(), 120_000);
        assert_eq!(UnixMs::new(60_000).ceil_minute().get(), 60_000);
        assert_eq!(LAST.ceil_minute().rfc3339(), "9999-12-31T23:59:00.000Z", "no later one can be written");
        assert_eq!(
            UnixMs::parse_rfc3339("2026-12-01T09:00:00+08:00").unwrap().rfc3339(),
            "2026-12-01T01:00:00.000Z"
        );
    }

    #[test]
    fn a_gap_gives_its_end_and_an_overlap_its_first() {
        let at = |local, zone| UnixMs::from_local(local, zone).map(UnixMs::rfc3339);
        assert_eq!(at("2026-12-01T09:00:00", "Asia/Shanghai").unwrap(), "2026-12-01T01:00:00.000Z");
        // Berlin skips 02:00–03:00 on 2026-03-29 and repeats 02:00–03:00 on 2026-10-25.
        assert_eq!(at("2026-03-29T02:30:30", "Europe/Berlin").unwrap(), "2026-03-29T01:00:00.000Z");
        assert_eq!(at("2026-10-25T02:30", "Europe/Berlin").unwrap(), "2026-10-25T00:30:00.000Z");
        assert_eq!(at("2026-10-25T02:30", "Mars/Olympus"), Err(Error::Zone("Mars/Olympus".into())));
        assert!(at("2026-10-25 02:30", "Europe/Berlin").is_err());
    }

    #[test]
    fn spans_read_in_two_units() {
        for (ms, text) in [
            (0, "0s"),
            (999, "999ms"),
            (1000, "1s"),
            (1_799_999, "29m 59s"),
            (3_600_000, "1h"),
            (3_605_000, "1h"),
            (90_061_000, "1d 1h"),
            (86_400_000, "1d"),
        ] {
            assert_eq!(human(Duration::from_millis(ms)), text);
        }
        let (early, late) = (UnixMs::new(0), UnixMs::new(60_000));
        assert_eq!((from_now(late, early), from_now(early, late)), ("in 1m".into(), "1m ago".into()));
    }

    proptest::proptest! {
        #[test]
        fn a_written_duration_reads_back(ms in 0_u64..400_000_000_000) {
            let span = Span::from_duration(Duration::from_millis(ms));
            proptest::prop_assert_eq!(Span::parse(&span.to_string()), Ok(span));
        }
    }
}
