//! The next nominal time of a schedule's rule: cron, every, daily. A pure function of the rule and an instant.
//!
//! Cron and daily name readings of the clocks on the wall of a zone. Such a reading fires at the first instant at
//! which the clocks show it or a later one: in the gap of spring that is the gap's end, in the overlap of autumn the
//! first of the two. Readings that fall on one instant are one nominal time.
//!
//! One kind of cron follows the time that passes instead: one that names all 24 hours, such as `*/15 * * * *` or
//! `30 * * * *`. In the overlap it fires in both passes, and in the gap nothing fires for the readings left out. Someone
//! who asks for every 15 minutes means the distance, and must not wait an hour and 15 minutes in an autumn night.
//! `0 */2 * * *` names hours, and is not of this kind: nobody wants 02:00 twice.
//!
//! What the clocks of a zone will show is known until 2099: there chrono-tz's data ends, and from then on no clock
//! changes.
//!
//! How a cron is read stands in `rule/cron.rs`, how readings become instants in `rule/wall.rs`; `scripts/nominal-times`
//! makes the table that both are held against.

mod cron;
#[cfg(test)]
mod nominal_times;
#[cfg(test)]
mod tests;
mod wall;

use chrono::{NaiveTime, Timelike};
use chrono_tz::{TZ_VARIANTS, Tz};

use self::cron::Cron;
use self::wall::{DAY_MS, Wall};
use super::time::{LAST, Span, UnixMs};

/// The shortest distance of a rule `every`, in milliseconds.
pub const EVERY_MS_MIN: u128 = 500;

/// The most days from one nominal time of a rule `daily` to the next.
pub const EVERY_DAYS_MAX: u32 = 3660;

/// The windows that one search looks at: far more than it ever needs.
const WINDOWS_MAX: u32 = 64;

/// What a rule says, as the caller wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// When the clocks show what the text names; see `rule/cron.rs` for what is read.
    Cron {
        /// 5 fields, or 6 with the seconds first, or a name such as `@daily`.
        text: String,
    },
    /// A fixed distance, counted from the start, which is the first nominal time.
    Every {
        /// At least half a second.
        every: Span,
    },
    /// A time of day, on days counted from the start's day.
    Daily {
        /// To the millisecond.
        at: NaiveTime,
        /// 1 is each day, 2 every other day.
        every_days: u32,
    },
}

/// Why a rule is refused, or has no next nominal time to tell; the message is for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A cron of endless length.
    #[error("a cron has at most {} characters; make several schedules of it", cron::CHARS_MAX)]
    CronLong,
    /// Neither 5 nor 6 fields.
    #[error(
        "a cron has 5 fields (minute, hour, day of month, month, day of week) or 6 (second first), and this has \
         {0}; there is no field for the year, use `start_at` and `end_at`"
    )]
    CronFields(usize),
    /// `@` and a word that is not known.
    #[error("`{0}` is not known; there are @hourly, @daily, @weekly, @monthly, @yearly and @annually")]
    CronName(String),
    /// A field, or an item of its list, that is not understood.
    #[error("`{item}` is no {field} of a cron: {cure}")]
    CronItem {
        /// The field's name in words.
        field: &'static str,
        /// What was found there.
        item: String,
        /// What to write instead.
        cure: String,
    },
    /// A step in one day field, and something in the other.
    #[error(
        "crons differ about a step from `*` in one day field with something in the other; begin the day of week \
         with `+` if both have to match (`0 0 */2 * +1`), or write a range if either is enough (`0 0 1-31/2 * 1`)"
    )]
    CronDays,
    /// No day ever matches.
    #[error(
        "no day ever matches this cron, such as 30 February; change its day of month, month or day of week"
    )]
    CronNever,
    /// The library refuses what the grammar here takes.
    #[error(
        "this cron is not understood ({0}); write numbers, lists, ranges and steps such as `0 9 * * 1-5`"
    )]
    CronRefused(String),
    /// A distance that is too short.
    #[error("`every` is at least PT0.5S; make it longer")]
    EveryShort,
    /// Not a time of day.
    #[error("`at` is a time of day to the millisecond, from 00:00 to 23:59:59.999, such as 09:00")]
    DailyAt,
    /// A number of days that is out of range.
    #[error("`every_days` is from 1 to {EVERY_DAYS_MAX}; 1 is each day")]
    DailyDays,
    /// Not an IANA time zone.
    #[error("`{name}` is not an IANA time zone; {cure}")]
    Zone {
        /// What was found.
        name: String,
        /// Zones with a name like this.
        cure: String,
    },
    /// A start that cannot be stored.
    #[error("`start_at` is from 0000-01-01 to 9999-12-31 in UTC")]
    StartAt,
    /// A search failed: a defect, never the end of a rule.
    #[error("the next nominal time could not be found: {0}")]
    Search(String),
}

impl RuleError {
    /// The field of a schedule that the error is about, as a JSON pointer without the first `/`.
    pub fn field(&self) -> &'static str {
        match self {
            Self::EveryShort => "every",
            Self::DailyAt => "daily/at",
            Self::DailyDays => "daily/every_days",
            Self::Zone { .. } => "zone",
            Self::StartAt => "start_at",
            Self::CronLong
            | Self::CronFields(_)
            | Self::CronName(_)
            | Self::CronItem { .. }
            | Self::CronDays
            | Self::CronNever
            | Self::CronRefused(_)
            | Self::Search(_) => "cron",
        }
    }
}

/// A rule that was read and checked. With a cron it takes about 5 KB; make it from its text when it is needed.
#[derive(Debug, Clone)]
pub struct Rule {
    form: Form,
    zone: Tz,
    start_at: UnixMs,
}

#[derive(Debug, Clone)]
enum Form {
    /// The readings of a cron, each once.
    Readings(Cron),
    /// The instants at which the clocks show what a cron names, in all passes.
    Passing(Cron),
    Every {
        ms: i64,
    },
    /// `origin` and each reading a multiple of `step_ms` later.
    Daily {
        origin: Wall,
        step_ms: i64,
    },
}

impl Rule {
    /// Reads and checks a rule. Nothing before `start_at` is a nominal time.
    pub fn new(kind: Kind, zone: Tz, start_at: UnixMs) -> Result<Self, RuleError> {
        let start_at = start_at.bounded().map_err(|_| RuleError::StartAt)?;
        let form = match kind {
            Kind::Cron { text } => match Cron::read(&text)? {
                cron if cron.names_all_hours() => Form::Passing(cron),
                cron => Form::Readings(cron),
            },
            Kind::Every { every } if every.get().as_millis() < EVERY_MS_MIN => {
                return Err(RuleError::EveryShort);
            }
            // A span is never longer than the last instant.
            Kind::Every { every } => {
                Form::Every { ms: i64::try_from(every.get().as_millis()).unwrap_or(i64::MAX) }
            }
            Kind::Daily { every_days, .. } if !(1..=EVERY_DAYS_MAX).contains(&every_days) => {
                return Err(RuleError::DailyDays);
            }
            Kind::Daily { at, every_days } => {
                let day = wall::wall(zone, start_at).0.div_euclid(DAY_MS);
                Form::Daily {
                    origin: Wall(day * DAY_MS + ms_of_day(at)?),
                    step_ms: i64::from(every_days) * DAY_MS,
                }
            }
        };
        Ok(Self { form, zone, start_at })
    }

    /// The first nominal time strictly after `after` and not before the start. None: never again, because the last
    /// instant that can be stored is reached. An error is a defect or a limit, and never means the end.
    pub fn next(&self, after: UnixMs) -> Result<Option<UnixMs>, RuleError> {
        if after >= LAST {
            return Ok(None);
        }
        let after = after.max(UnixMs::new(self.start_at.get() - 1));
        let found = match &self.form {
            Form::Readings(cron) => {
                let reading = cron.next(wall::latest(self.zone, after))?;
                wall::first(self.zone, reading)
            }
            Form::Passing(cron) => self.next_passing(cron, after)?,
            Form::Every { ms } => UnixMs::new(later(self.start_at.get(), *ms, after.get())),
            Form::Daily { origin, step_ms } => {
                let latest = wall::latest(self.zone, after);
                wall::first(self.zone, Wall(later(origin.0, *step_ms, latest.0)))
            }
        };
        Ok((found <= LAST).then_some(found))
    }

    /// The first instant after `after` at which the clocks show what the cron names.
    fn next_passing(&self, cron: &Cron, mut after: UnixMs) -> Result<UnixMs, RuleError> {
        for _ in 0..WINDOWS_MAX {
            // The offset from the next instant on; `after` may be the last one before a change.
            let begin = UnixMs::new(after.get() + 1);
            let offset_ms = wall::offset_ms(self.zone, begin);
            let reading = cron.next(Wall(after.get() + offset_ms))?;
            let found = UnixMs::new(reading.0 - offset_ms);
            let end = UnixMs::new(begin.get() + DAY_MS);
            match wall::change(self.zone, begin, found.min(end)) {
                // From the change on the clocks show something else: go on from there.
                Some(turned) => after = UnixMs::new(turned.get() - 1),
                None if found <= end => return Ok(found),
                // Nothing within a day, and nothing before the clocks of any zone come near to the reading.
                None => after = UnixMs::new(reading.0 - 2 * DAY_MS).max(end),
            }
        }
        Err(RuleError::Search(format!("not within {WINDOWS_MAX} windows")))
    }
}

/// The first of `origin`, `origin + step`, `origin + 2 step` … that is after `after`.
fn later(origin: i64, step: i64, after: i64) -> i64 {
    if after < origin {
        return origin;
    }
    let steps = (after - origin) / step + 1;
    steps.checked_mul(step).and_then(|ahead| origin.checked_add(ahead)).unwrap_or(i64::MAX)
}

fn ms_of_day(at: NaiveTime) -> Result<i64, RuleError> {
    // Chrono writes a leap second as a second with more nanoseconds.
    let (seconds, nanos) = (i64::from(at.num_seconds_from_midnight()), at.nanosecond());
    match nanos {
        0..1_000_000_000 if nanos.is_multiple_of(1_000_000) => {
            Ok(seconds * 1000 + i64::from(nanos / 1_000_000))
        }
        _ => Err(RuleError::DailyAt),
    }
}

/// Reads a time of day: `09:00`, `09:00:30` or `09:00:30.250`.
pub fn time_of_day(text: &str) -> Result<NaiveTime, RuleError> {
    let digits = |part: &str, count| part.len() == count && part.bytes().all(|b| b.is_ascii_digit());
    let (clock, fraction) = text.split_once('.').map_or((text, None), |(clock, rest)| (clock, Some(rest)));
    let parts: Vec<&str> = clock.split(':').collect();
    let well_formed = parts.iter().all(|part| digits(part, 2))
        && match fraction {
            None => (2..=3).contains(&parts.len()),
            Some(fraction) => parts.len() == 3 && (1..=3).any(|count| digits(fraction, count)),
        };
    let format = if parts.len() == 2 { "%H:%M" } else { "%H:%M:%S%.f" };
    let at =
        NaiveTime::parse_from_str(text, format).ok().filter(|_| well_formed).ok_or(RuleError::DailyAt)?;
    ms_of_day(at).map(|_| at)
}

/// Reads the name of an IANA time zone, exactly as the database writes it.
pub fn zone(name: &str) -> Result<Tz, RuleError> {
    name.parse().map_err(|_| {
        let last = |name: &str| name.rsplit('/').next().unwrap_or_default().replace(' ', "_");
        let city = last(name);
        let close: Vec<&str> = TZ_VARIANTS
            .iter()
            .map(|zone| zone.name())
            .filter(|known| last(known).eq_ignore_ascii_case(&city))
            .take(3)
            .collect();
        let cure = match close.is_empty() {
            true => "write one such as Asia/Shanghai or UTC".to_owned(),
            false => format!("did you mean {}?", close.join(", ")),
        };
        RuleError::Zone { name: quoted(name), cure }
    })
}

/// A caller's text for an error message, at most 40 characters of it.
fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(40).collect();
    if cut.len() < text.len() { format!("{cut}…") } else { cut }
}
