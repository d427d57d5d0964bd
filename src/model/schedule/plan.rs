//! What a schedule goes by: its rule with its bounds and its policies, as it is stored.

use serde::{Deserialize, Serialize};

use super::{Missed, Overlap};
use crate::model::rule::{self, Kind, Rule, RuleError};
use crate::model::time::{Span, UnixMs};

/// When a rule's nominal times are, as its caller wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// When the clocks show what the text names.
    Cron(String),
    /// A fixed distance.
    Every(Span),
    /// A time of day.
    Daily {
        /// Such as `09:00`.
        at: String,
        /// 1 is each day.
        every_days: u32,
    },
}

/// A rule: its nominal times follow from it alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// When they are.
    pub when: When,
    /// The IANA name of its time zone.
    pub zone: String,
    /// None is before this moment.
    pub start_at: UnixMs,
}

impl Timing {
    /// The rule, ready to be asked.
    pub fn rule(&self) -> Result<Rule, RuleError> {
        let kind = match &self.when {
            When::Cron(text) => Kind::Cron { text: text.clone() },
            When::Every(every) => Kind::Every { every: *every },
            When::Daily { at, every_days } => {
                Kind::Daily { at: rule::time_of_day(at)?, every_days: *every_days }
            }
        };
        Rule::new(kind, rule::zone(&self.zone)?, self.start_at)
    }
}

/// A rule with its bounds and its policies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The rule.
    #[serde(flatten)]
    pub timing: Timing,
    /// No nominal time is after this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<UnixMs>,
    /// The most occurrences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_occurrences: Option<i64>,
    /// What happens to nominal times that nobody could fire in time.
    pub missed: Missed,
    /// What happens while the occurrence before has not ended.
    pub overlap: Overlap,
}

impl Plan {
    /// Its nominal times after `after`.
    pub fn times(&self, after: UnixMs) -> Result<Times, RuleError> {
        Ok(Times { rule: self.timing.rule()?, at: after, end_at: self.end_at })
    }
}

/// Nominal times in order. An error is no end.
#[derive(Debug, Clone)]
pub struct Times {
    rule: Rule,
    at: UnixMs,
    end_at: Option<UnixMs>,
}

impl Times {
    /// The next one, without going on to it; `None` if there is none any more.
    pub fn peek(&self) -> Result<Option<UnixMs>, RuleError> {
        Ok(self.rule.next(self.at)?.filter(|at| self.end_at.is_none_or(|end| *at <= end)))
    }

    /// Goes on to a nominal time that [`Times::peek`] has told.
    pub const fn pass(&mut self, at: UnixMs) {
        self.at = at;
    }

    /// The last one that it has gone on to.
    pub const fn at(&self) -> UnixMs {
        self.at
    }

    /// Up to `most` of the next ones that are not after `until`, and whether there are more of them.
    pub fn take_until(&mut self, until: UnixMs, most: usize) -> Result<(Vec<UnixMs>, bool), RuleError> {
        let mut taken = Vec::new();
        while let Some(at) = self.peek()?.filter(|at| *at <= until) {
            if taken.len() == most {
                return Ok((taken, true));
            }
            self.pass(at);
            taken.push(at);
        }
        Ok((taken, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(when: When, end_at: Option<i64>) -> Plan {
        let timing = Timing { when, zone: "Asia/Shanghai".into(), start_at: UnixMs::new(10_000) };
        Plan {
            timing,
            end_at: end_at.map(UnixMs::new),
            max_occurrences: None,
            missed: Missed::default(),
            overlap: Overlap::Allow,
        }
    }

    #[test]
    fn times_go_on_up_to_the_end_which_is_one_of_them() {
        let plan = plan(When::Every(Span::parse("PT10S").unwrap()), Some(40_000));
        let mut times = plan.times(UnixMs::new(0)).unwrap();
        let ms = |times: Vec<UnixMs>| times.into_iter().map(UnixMs::get).collect::<Vec<_>>();
        let (first, more) = times.take_until(UnixMs::new(35_000), 2).unwrap();
        assert_eq!((ms(first), more), (vec![10_000, 20_000], true));
        let (rest, more) = times.take_until(UnixMs::new(35_000), 2).unwrap();
        assert_eq!((ms(rest), more), (vec![30_000], false));
        assert_eq!(times.peek().unwrap(), Some(UnixMs::new(40_000)));
        times.pass(UnixMs::new(40_000));
        assert_eq!(times.peek().unwrap(), None);
    }

    #[test]
    fn a_plan_is_read_back_as_it_was_written() {
        let daily = When::Daily { at: "09:00".into(), every_days: 2 };
        for when in [When::Cron("0 9 * * *".into()), When::Every(Span::parse("PT15M").unwrap()), daily] {
            let plan = Plan { max_occurrences: Some(3), ..plan(when, Some(50_000)) };
            let text = serde_json::to_string(&plan).unwrap();
            assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan, "{text}");
            assert!(plan.timing.rule().is_ok());
        }
        let nowhere = Timing { zone: "Nowhere".into(), ..plan(When::Cron("0 9 * * *".into()), None).timing };
        assert_eq!(nowhere.rule().unwrap_err().field(), "zone");
    }
}
