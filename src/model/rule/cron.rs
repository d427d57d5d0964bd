//! Reads a cron. The grammar is checked here, item by item, and what croner gets are numbers: left to itself it
//! takes `MON` for a minute and `1JAN` for 11, and leaves out what is empty between two commas.
//!
//! | field | values | more |
//! |---|---|---|
//! | second (may be left out) | 0–59 | |
//! | minute | 0–59 | |
//! | hour | 0–23 | |
//! | day of month | 1–31 | `L` the last day, `LW` the last from Monday to Friday, `15W` the one of these nearest to the 15th, within the month; `?` is `*` |
//! | month | 1–12, JAN–DEC | |
//! | day of week | 0–7, SUN–SAT; 0 and 7 are Sunday | `5#2` the second Friday of the month, `5L` or `5#L` the last; `+` in front: both day fields have to match; `?` is `*` |
//!
//! Each field is `*`, `*/n`, or a list of numbers, ranges `a-b` and steps `a-b/n`. Where both day fields are given, a day
//! that matches either is enough. Crons disagree about `*/n` in one of them, so that is refused. Ranges do not wrap
//! (`22-2` is `22-23,0-2`). `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly` and `@annually` stand for a cron.
//!
//! Croner is asked on a timeline without offsets, in the years from 2000: the calendar repeats every 400 years, days of
//! the week with it, and croner's own end in the year 5000 is not met.

use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime};
use croner::Weekday;
use croner::parser::{CronParser, Year};

use super::wall::{DAY_MS, Wall};
use super::{RuleError, quoted};

/// The longest cron; one with each minute, hour, day and month in words of its own is shorter.
pub(super) const CHARS_MAX: usize = 512;

/// 400 years: 146,097 days, 20,871 weeks.
const CYCLE_MS: i64 = 146_097 * DAY_MS;

/// 2000-01-01T00:00:00.
const CYCLE_BEGIN_MS: i64 = 946_684_800_000;

/// The days of 28 years without a century in between have all kinds of years: each day of the week as the first,
/// with and without 29 February.
const ALL_DAYS: usize = 28 * 365 + 7;

/// One field: its words, its values, and names of values from `first_named` on.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
    first_named: u32,
}

const fn plain(name: &'static str, min: u32, max: u32) -> Field {
    Field { name, min, max, names: &[], first_named: 0 }
}

const DAY_OF_MONTH: usize = 3;
const DAY_OF_WEEK: usize = 5;

const FIELDS: [Field; 6] = [
    plain("second", 0, 59),
    plain("minute", 0, 59),
    plain("hour", 0, 23),
    plain("day of month", 1, 31),
    Field {
        names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
        first_named: 1,
        ..plain("month", 1, 12)
    },
    Field { names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"], ..plain("day of week", 0, 7) },
];

const NICKNAMES: [(&str, &str); 6] = [
    ("@HOURLY", "0 * * * *"),
    ("@DAILY", "0 0 * * *"),
    ("@WEEKLY", "0 0 * * 0"),
    ("@MONTHLY", "0 0 1 * *"),
    ("@YEARLY", "0 0 1 1 *"),
    ("@ANNUALLY", "0 0 1 1 *"),
];

/// A cron whose readings do come.
#[derive(Debug, Clone)]
pub(super) struct Cron(croner::Cron);

impl Cron {
    /// Reads it; an error if it is not understood or no day ever matches.
    pub(super) fn read(text: &str) -> Result<Self, RuleError> {
        if text.chars().count() > CHARS_MAX {
            return Err(RuleError::CronLong);
        }
        let upper = text.trim().to_ascii_uppercase();
        let upper = match NICKNAMES.iter().find(|(nickname, _)| *nickname == upper) {
            Some((_, stands_for)) => *stands_for,
            None if upper.starts_with('@') => return Err(RuleError::CronName(quoted(text.trim()))),
            None => &upper,
        };
        let mut fields: Vec<&str> = upper.split_whitespace().collect();
        match fields.len() {
            5 => fields.insert(0, "0"),
            6 => {}
            other => return Err(RuleError::CronFields(other)),
        }
        let read: Vec<String> =
            FIELDS.iter().zip(&fields).map(|(field, text)| field.read(text)).collect::<Result<_, _>>()?;
        differing(&read[DAY_OF_MONTH], &read[DAY_OF_WEEK])?;
        let parser = CronParser::builder().year(Year::Disallowed).build();
        let cron =
            Self(parser.parse(&read.join(" ")).map_err(|error| RuleError::CronRefused(error.to_string()))?);
        if cron.comes() { Ok(cron) } else { Err(RuleError::CronNever) }
    }

    /// Whether it fires in each hour of a day, so that it follows the time that passes.
    pub(super) fn names_all_hours(&self) -> bool {
        self.0.pattern.hours.values().len() == 24
    }

    /// The first reading after this one that it names.
    pub(super) fn next(&self, after: Wall) -> Result<Wall, RuleError> {
        let cycles = (after.0 - CYCLE_BEGIN_MS).div_euclid(CYCLE_MS);
        let search = |text: String| RuleError::Search(text);
        let from: NaiveDateTime = DateTime::from_timestamp_millis(after.0 - cycles * CYCLE_MS)
            .ok_or_else(|| search(format!("{} ms is no date", after.0)))?
            .naive_utc();
        // Croner cuts milliseconds off, and looks from the next second on.
        let found = self.0.find_next_occurrence(&from, false).map_err(|error| search(error.to_string()))?;
        Ok(Wall(found.and_utc().timestamp_millis() + cycles * CYCLE_MS))
    }

    /// Whether any day of the calendar matches.
    fn comes(&self) -> bool {
        let pattern = &self.0.pattern;
        let matches = |day: NaiveDate| {
            let weekday = Weekday::from_days_from_sunday(day.weekday().num_days_from_sunday());
            pattern.month_match(day.month()).unwrap_or(false)
                && pattern.day_match(day.year(), day.month(), day.day(), weekday).unwrap_or(false)
        };
        let first = DateTime::from_timestamp_millis(CYCLE_BEGIN_MS).map(|at| at.date_naive());
        first.is_some_and(|first| first.iter_days().take(ALL_DAYS).any(matches))
    }
}

/// Refuses a step from `*` in one day field while the other is not `*`, unless both have to match.
fn differing(day_of_month: &str, day_of_week: &str) -> Result<(), RuleError> {
    let step = |field: &str| field.starts_with("*/");
    let either = day_of_month != "*" && day_of_week != "*" && !day_of_week.starts_with('+');
    if either && (step(day_of_month) || step(day_of_week)) { Err(RuleError::CronDays) } else { Ok(()) }
}

impl Field {
    /// The field with numbers for names.
    fn read(&self, text: &str) -> Result<String, RuleError> {
        let (both, text) = match text.strip_prefix('+') {
            Some(rest) if self.is(DAY_OF_WEEK) => ("+", rest),
            _ => ("", text),
        };
        match text {
            "*" => return Ok(format!("{both}*")),
            "?" if self.is(DAY_OF_MONTH) || self.is(DAY_OF_WEEK) => return Ok(format!("{both}*")),
            _ => {}
        }
        if let Some(step) = text.strip_prefix("*/") {
            return Ok(format!("{both}*/{}", self.step(step, text, self.min, self.max)?));
        }
        let items: Vec<String> = text.split(',').map(|item| self.item(item)).collect::<Result<_, _>>()?;
        // Croner keeps both of these in one place, and would forget the first.
        if items.iter().any(|item| item == "L") && items.iter().any(|item| item == "LW") {
            return Err(self.refuse(text, "write L or LW, or make two schedules".to_owned()));
        }
        Ok(format!("{both}{}", items.join(",")))
    }

    /// One item of a list.
    fn item(&self, item: &str) -> Result<String, RuleError> {
        if let Some(special) = self.special(item)? {
            return Ok(special);
        }
        let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(step)));
        let Some((from, to)) = range.split_once('-') else {
            return match step {
                None => Ok(self.value(range, item)?.to_string()),
                Some(step) => {
                    let from = self.value(range, item)?;
                    Err(self
                        .refuse(item, format!("a step needs a range, such as {from}-{}/{step}", self.max)))
                }
            };
        };
        let (first, last) = (self.value(from, item)?, self.value(to, item)?);
        // A week that ends on Sunday.
        let last = if self.is(DAY_OF_WEEK) && to == "SUN" { 7 } else { last };
        if first > last {
            let cure =
                format!("a range goes up; write two, such as {first}-{},{}-{last}", self.max, self.min);
            return Err(self.refuse(item, cure));
        }
        match step {
            None => Ok(format!("{first}-{last}")),
            Some(step) => Ok(format!("{first}-{last}/{}", self.step(step, item, first, last)?)),
        }
    }

    /// `L`, `LW`, `15W` of a day of month; `5L`, `5#L`, `5#2` of a day of week.
    fn special(&self, item: &str) -> Result<Option<String>, RuleError> {
        if self.is(DAY_OF_MONTH) {
            return match item.strip_suffix('W') {
                _ if item == "L" || item == "LW" => Ok(Some(item.to_owned())),
                Some(day) => Ok(Some(format!("{}W", self.value(day, item)?))),
                None => Ok(None),
            };
        }
        if !self.is(DAY_OF_WEEK) {
            return Ok(None);
        }
        let split = item.split_once('#').or_else(|| item.strip_suffix('L').map(|day| (day, "L")));
        let Some((day, nth)) = split else { return Ok(None) };
        let day = self.value(day, item)?;
        match nth {
            "L" | "1" | "2" | "3" | "4" | "5" => Ok(Some(format!("{day}#{nth}"))),
            _ => {
                Err(self.refuse(item, format!("the week of the month is from 1 to 5, such as {day}#2, or L")))
            }
        }
    }

    fn value(&self, text: &str, item: &str) -> Result<u32, RuleError> {
        let named = self.names.iter().zip(self.first_named..).find(|(name, _)| **name == text);
        let value = named.map(|(_, value)| value).or_else(|| number(text));
        value.filter(|value| (self.min..=self.max).contains(value)).ok_or_else(|| {
            let or_named = match self.names {
                [first, .., last] => format!(", or from {first} to {last}"),
                _ => String::new(),
            };
            self.refuse(item, format!("it is a number from {} to {}{or_named}", self.min, self.max))
        })
    }

    /// A step that stays inside its range.
    fn step(&self, text: &str, item: &str, first: u32, last: u32) -> Result<u32, RuleError> {
        number(text).filter(|step| (1..=(last - first).max(1)).contains(step)).ok_or_else(|| {
            self.refuse(item, format!("a step here is a number from 1 to {}", (last - first).max(1)))
        })
    }

    fn is(&self, place: usize) -> bool {
        self.name == FIELDS[place].name
    }

    fn refuse(&self, item: &str, cure: String) -> RuleError {
        RuleError::CronItem { field: self.name, item: quoted(item), cure }
    }
}

/// At most four digits.
fn number(text: &str) -> Option<u32> {
    let digits = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What croner gets: the numbers.
    fn read(text: &str) -> String {
        Cron::read(text).unwrap().0.pattern.to_string()
    }

    #[test]
    fn what_is_written_in_words_is_read_as_numbers() {
        for (text, numbers) in [
            ("0 9 * * 1-5", "0 0 9 * * 1-5"),
            ("  5 4  *\t* sun ", "0 5 4 * * 0"),
            ("0 9 * jan,Mar-MAY MON-fri/2", "0 0 9 * 1,3-5 1-5/2"),
            ("0 9 * * FRI-SUN", "0 0 9 * * 5-7"),
            ("0 9 * * SUN-TUE,7", "0 0 9 * * 0-2,7"),
            ("*/20 0-59/7 */23 ? * ?", "*/20 0-59/7 */23 * * *"),
            ("0 0 L,15w,1 * *", "0 0 0 L,15W,1 * *"),
            ("0 0 lw * *", "0 0 0 LW * *"),
            ("0 0 * * fri#2,mon#l,3L", "0 0 0 * * 5#2,1#L,3#L"),
            ("0 0 */2 * +mon", "0 0 0 */2 * +1"),
            ("0 0 1-31/2 * 1", "0 0 0 1-31/2 * 1"),
            ("@Daily", "0 0 0 * * *"),
            ("@weekly", "0 0 0 * * 0"),
            ("@monthly", "0 0 0 1 * *"),
            ("@yearly", "0 0 0 1 1 *"),
            ("@annually", "0 0 0 1 1 *"),
            ("@hourly", "0 0 * * * *"),
        ] {
            assert_eq!(read(text), numbers, "{text}");
        }
        assert!(Cron::read("0 0 13 * +5").unwrap().0.pattern.matches_dom_and_dow());
        assert!(!Cron::read("0 0 13 * 5").unwrap().0.pattern.matches_dom_and_dow());
    }

    #[test]
    fn a_cron_that_is_not_understood_says_what_to_write() {
        for (text, cure) in [
            ("", "5 fields"),
            ("0 9 * *", "this has 4"),
            ("0 0 9 * * 1 2026", "this has 7; there is no field for the year"),
            ("@reboot", "`@reboot` is not known"),
            ("@", "there are @hourly"),
            ("60 * * * *", "`60` is no minute of a cron: it is a number from 0 to 59"),
            ("60 * * * * *", "`60` is no second"),
            ("0 24 * * *", "`24` is no hour of a cron: it is a number from 0 to 23"),
            ("0 0 0 * *", "day of month of a cron: it is a number from 1 to 31"),
            ("0 0 * 13 *", "a number from 1 to 12, or from JAN to DEC"),
            ("0 0 * * 8", "a number from 0 to 7, or from SUN to SAT"),
            ("0 0 * * MONDAY", "`MONDAY` is no day of week"),
            ("MON * * * *", "`MON` is no minute"),
            ("0 0 1JAN * *", "`1JAN` is no day of month"),
            ("0 0 * MON *", "`MON` is no month"),
            ("0 0 * * JAN", "`JAN` is no day of week"),
            ("5/15 * * * *", "a step needs a range, such as 5-59/15"),
            ("/15 * * * *", "`/15` is no minute"),
            ("*/0 * * * *", "a step here is a number from 1 to 59"),
            ("*/60 * * * *", "a step here is a number from 1 to 59"),
            ("0 8-18/11 * * *", "a step here is a number from 1 to 10"),
            ("0 22-2 * * *", "write two, such as 22-23,0-2"),
            ("0 0 * * SAT-MON", "write two, such as 6-7,0-1"),
            ("0 1- * * *", "`1-` is no hour"),
            ("0 1-2-3 * * *", "`1-2-3` is no hour"),
            ("0 1,,2 * * *", "`` is no hour"),
            ("0 *,1 * * *", "`*` is no hour"),
            ("0 -1 * * *", "`-1` is no hour"),
            ("0 +1 * * *", "`+1` is no hour"),
            ("0 00001 * * *", "`00001` is no hour"),
            ("0 H * * *", "`H` is no hour"),
            ("0 ? * * *", "`?` is no hour"),
            ("0 L * * *", "`L` is no hour"),
            ("0 0 32W * *", "`32W` is no day of month"),
            ("0 0 W * *", "`W` is no day of month"),
            ("0 0 1-5W * *", "`1-5W` is no day of month"),
            ("0 0 L-3 * *", "`L-3` is no day of month"),
            ("0 0 L,LW * *", "write L or LW"),
            ("0 0 * * L", "`L` is no day of week"),
            ("0 0 * * 5#6", "the week of the month is from 1 to 5, such as 5#2, or L"),
            ("0 0 * * 1-5#2", "`1-5#2` is no day of week"),
            ("0 0 * * ++1", "`+1` is no day of week"),
            ("0 0 */2 * 1", "begin the day of week with `+`"),
            ("0 0 1 * */2", "write a range"),
            ("0 ９ * * *", "`９` is no hour"),
            ("0 99999999999 * * *", "`99999999999` is no hour"),
        ] {
            let error = Cron::read(text).map(|cron| cron.0.pattern.to_string()).unwrap_err();
            assert_eq!(error.field(), "cron");
            assert!(error.to_string().contains(cure), "{text}: {error}");
        }
        let long = format!("{} * * * *", ["59"; 200].join(","));
        assert_eq!(Cron::read(&long).map(|_| ()), Err(RuleError::CronLong));
    }

    #[test]
    fn a_cron_that_never_comes_is_refused() {
        for text in [
            "0 0 30 2 *",
            "0 0 31 4,6,9,11 *",
            "0 0 30W,31 2 ?",
            "0 0 30 2 +1",
            "0 0 1-7 * +MON#2",
            "0 0 29 2 +0#1",
            "0 0 1-21 * +5L",
            "* * * 31 2 *",
        ] {
            assert_eq!(Cron::read(text).map(|_| ()), Err(RuleError::CronNever), "{text}");
        }
        for text in ["0 0 29 2 *", "0 0 29 2 +6", "0 0 30 2 1", "0 0 29 2 +1#5", "0 0 L 2 +0", "0 0 1W 1 +2"]
        {
            assert!(Cron::read(text).is_ok(), "{text}");
        }
    }
}
