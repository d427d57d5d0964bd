mod laws;

use chrono::{TimeZone, Utc};

use super::*;

pub(super) fn ms(text: &str) -> UnixMs {
    UnixMs::parse_rfc3339(text).unwrap()
}

pub(super) fn cron(text: &str) -> Kind {
    Kind::Cron { text: text.to_owned() }
}

pub(super) fn daily(at: &str, every_days: u32) -> Kind {
    Kind::Daily { at: time_of_day(at).unwrap(), every_days }
}

pub(super) fn every(text: &str) -> Kind {
    Kind::Every { every: Span::parse(text).unwrap() }
}

pub(super) fn rule(kind: Kind, zone: Tz, start_at: UnixMs) -> Rule {
    Rule::new(kind, zone, start_at).unwrap()
}

/// A local time in a zone, with its offset so that an overlap's two are told apart.
pub(super) fn shown(at: UnixMs, zone: Tz) -> String {
    let at = Utc.timestamp_millis_opt(at.get()).unwrap().with_timezone(&zone);
    at.format("%Y-%m-%dT%H:%M:%S%.f%:z").to_string()
}

/// The nominal times from `from` until before `to`, in local time; the rule starts at `from`.
fn between(kind: Kind, zone: Tz, from: &str, to: &str) -> Vec<String> {
    let rule = rule(kind, zone, ms(from));
    let mut after = UnixMs::new(ms(from).get() - 1);
    let mut found = Vec::new();
    while let Some(next) = rule.next(after).unwrap().filter(|next| *next < ms(to)) {
        assert!(next > after, "{next} after {after}");
        found.push(shown(next, zone));
        after = next;
    }
    found
}

const BERLIN: Tz = Tz::Europe__Berlin;
const LONDON: Tz = Tz::Europe__London;
const STOCKHOLM: Tz = Tz::Europe__Stockholm;
const NEW_YORK: Tz = Tz::America__New_York;
const LORD_HOWE: Tz = Tz::Australia__Lord_Howe;
const SAO_PAULO: Tz = Tz::America__Sao_Paulo;
const APIA: Tz = Tz::Pacific__Apia;

/// A rule, its zone, a local day from midnight to midnight, and the nominal times in it.
type Day = (Kind, Tz, &'static str, &'static str, &'static [&'static str]);

fn check(days: &[Day]) {
    for (kind, zone, from, to, expected) in days {
        assert_eq!(between(kind.clone(), *zone, from, to), *expected, "{kind:?} in {zone} from {from}");
    }
}

#[test]
fn in_spring_a_time_that_is_left_out_fires_once_when_the_gap_ends() {
    let (from, to) = ("2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00");
    check(&[
        (cron("30 2 * * *"), BERLIN, from, to, &["2026-03-29T03:00:00+02:00"]),
        (cron("0 2 * * *"), STOCKHOLM, from, to, &["2026-03-29T03:00:00+02:00"]),
        (
            cron("30 2,14 * * *"),
            BERLIN,
            from,
            to,
            &["2026-03-29T03:00:00+02:00", "2026-03-29T14:30:00+02:00"],
        ),
        // All four of 02:00 to 02:45, and 03:00 itself, are one.
        (
            cron("*/15 2,3 * * *"),
            BERLIN,
            from,
            to,
            &[
                "2026-03-29T03:00:00+02:00",
                "2026-03-29T03:15:00+02:00",
                "2026-03-29T03:30:00+02:00",
                "2026-03-29T03:45:00+02:00",
            ],
        ),
        (cron("59 59 1 * * *"), BERLIN, from, to, &["2026-03-29T01:59:59+01:00"]),
        (cron("0 3 * * *"), BERLIN, from, to, &["2026-03-29T03:00:00+02:00"]),
        (cron("0 0 * * *"), BERLIN, from, to, &["2026-03-29T00:00:00+01:00"]),
        (
            cron("0 */6 * * *"),
            BERLIN,
            from,
            to,
            &[
                "2026-03-29T00:00:00+01:00",
                "2026-03-29T06:00:00+02:00",
                "2026-03-29T12:00:00+02:00",
                "2026-03-29T18:00:00+02:00",
            ],
        ),
        (daily("02:30", 1), BERLIN, from, to, &["2026-03-29T03:00:00+02:00"]),
        (
            cron("30 1 * * *"),
            LONDON,
            "2026-03-29T00:00:00Z",
            "2026-03-30T00:00:00+01:00",
            &["2026-03-29T02:00:00+01:00"],
        ),
        (
            cron("30 2 * * *"),
            NEW_YORK,
            "2026-03-08T00:00:00-05:00",
            "2026-03-09T00:00:00-04:00",
            &["2026-03-08T03:00:00-04:00"],
        ),
        // Lord Howe goes from 02:00 to 02:30.
        (
            cron("15,45 2 * * *"),
            LORD_HOWE,
            "2026-10-04T00:00:00+10:30",
            "2026-10-05T00:00:00+11:00",
            &["2026-10-04T02:30:00+11:00", "2026-10-04T02:45:00+11:00"],
        ),
    ]);
}

#[test]
fn in_autumn_a_time_that_comes_twice_fires_the_first_time() {
    let (from, to) = ("2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00");
    check(&[
        (cron("30 2 * * *"), BERLIN, from, to, &["2026-10-25T02:30:00+02:00"]),
        (cron("0 2 * * *"), STOCKHOLM, from, to, &["2026-10-25T02:00:00+02:00"]),
        (cron("0 3 * * *"), BERLIN, from, to, &["2026-10-25T03:00:00+01:00"]),
        (
            cron("30 2,14 * * *"),
            BERLIN,
            from,
            to,
            &["2026-10-25T02:30:00+02:00", "2026-10-25T14:30:00+01:00"],
        ),
        (
            cron("0 */2 * * *"),
            BERLIN,
            from,
            "2026-10-25T06:00:00+01:00",
            &["2026-10-25T00:00:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T04:00:00+01:00"],
        ),
        (daily("02:30:00.250", 1), BERLIN, from, to, &["2026-10-25T02:30:00.250+02:00"]),
        (
            cron("30 1 * * *"),
            LONDON,
            "2026-10-25T00:00:00+01:00",
            "2026-10-26T00:00:00Z",
            &["2026-10-25T01:30:00+01:00"],
        ),
        (
            cron("30 1 * * *"),
            NEW_YORK,
            "2026-11-01T00:00:00-04:00",
            "2026-11-02T00:00:00-05:00",
            &["2026-11-01T01:30:00-04:00"],
        ),
        // Lord Howe goes from 02:00 back to 01:30.
        (
            cron("15,45 1 * * *"),
            LORD_HOWE,
            "2026-04-05T00:00:00+11:00",
            "2026-04-06T00:00:00+10:30",
            &["2026-04-05T01:15:00+11:00", "2026-04-05T01:45:00+11:00"],
        ),
    ]);
}

#[test]
fn a_rule_for_all_hours_follows_the_time_that_passes() {
    check(&[
        (
            cron("*/30 * * * *"),
            BERLIN,
            "2026-10-25T01:30:00+02:00",
            "2026-10-25T03:30:00+01:00",
            &[
                "2026-10-25T01:30:00+02:00",
                "2026-10-25T02:00:00+02:00",
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30:00+01:00",
                "2026-10-25T03:00:00+01:00",
            ],
        ),
        (
            cron("30 0-23 * * *"),
            BERLIN,
            "2026-03-29T00:00:00+01:00",
            "2026-03-29T04:00:00+02:00",
            &["2026-03-29T00:30:00+01:00", "2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"],
        ),
        // Half an hour back: 01:45 comes twice, 01:15 does not.
        (
            cron("15,45 * * * *"),
            LORD_HOWE,
            "2026-04-05T01:00:00+11:00",
            "2026-04-05T03:00:00+10:30",
            &[
                "2026-04-05T01:15:00+11:00",
                "2026-04-05T01:45:00+11:00",
                "2026-04-05T01:45:00+10:30",
                "2026-04-05T02:15:00+10:30",
                "2026-04-05T02:45:00+10:30",
            ],
        ),
        // And half an hour forward: 02:15 is left out.
        (
            cron("15,45 * * * *"),
            LORD_HOWE,
            "2026-10-04T01:30:00+10:30",
            "2026-10-04T03:30:00+11:00",
            &["2026-10-04T01:45:00+10:30", "2026-10-04T02:45:00+11:00", "2026-10-04T03:15:00+11:00"],
        ),
        (
            cron("@hourly"),
            Tz::UTC,
            "2026-10-25T00:00:00.001Z",
            "2026-10-25T03:00:00Z",
            &["2026-10-25T01:00:00+00:00", "2026-10-25T02:00:00+00:00"],
        ),
        // The one day that it names repeats its last hour.
        (
            cron("0 * 19 2 *"),
            SAO_PAULO,
            "2006-02-18T21:30:00-02:00",
            "2006-02-19T01:30:00-03:00",
            &["2006-02-19T00:00:00-03:00", "2006-02-19T01:00:00-03:00"],
        ),
        (
            cron("0 * 18 2 *"),
            SAO_PAULO,
            "2006-02-18T21:30:00-02:00",
            "2006-02-20T00:00:00-03:00",
            &["2006-02-18T22:00:00-02:00", "2006-02-18T23:00:00-02:00", "2006-02-18T23:00:00-03:00"],
        ),
    ]);
}

#[test]
fn a_midnight_that_is_left_out_fires_when_its_day_begins() {
    check(&[
        (
            cron("0 0 * * *"),
            SAO_PAULO,
            "2017-10-14T00:00:00-03:00",
            "2017-10-17T00:00:00-02:00",
            &["2017-10-14T00:00:00-03:00", "2017-10-15T01:00:00-02:00", "2017-10-16T00:00:00-02:00"],
        ),
        (
            daily("00:30", 1),
            SAO_PAULO,
            "2017-10-14T12:00:00-03:00",
            "2017-10-16T12:00:00-02:00",
            &["2017-10-15T01:00:00-02:00", "2017-10-16T00:30:00-02:00"],
        ),
        // 23:30 comes twice on the day before.
        (
            cron("30 23 * * *"),
            SAO_PAULO,
            "2018-02-17T00:00:00-02:00",
            "2018-02-19T00:00:00-03:00",
            &["2018-02-17T23:30:00-02:00", "2018-02-18T23:30:00-03:00"],
        ),
    ]);
}

#[test]
fn a_day_that_is_left_out_fires_once_at_the_begin_of_the_next() {
    // Samoa had no 30 December 2011.
    let (from, to) = ("2011-12-29T00:00:00-10:00", "2012-01-01T12:00:00+14:00");
    check(&[
        (
            cron("0 9 * * *"),
            APIA,
            from,
            to,
            &[
                "2011-12-29T09:00:00-10:00",
                "2011-12-31T00:00:00+14:00",
                "2011-12-31T09:00:00+14:00",
                "2012-01-01T09:00:00+14:00",
            ],
        ),
        (
            cron("0 0,6,12,18 30,31 * *"),
            APIA,
            from,
            to,
            &[
                "2011-12-31T00:00:00+14:00",
                "2011-12-31T06:00:00+14:00",
                "2011-12-31T12:00:00+14:00",
                "2011-12-31T18:00:00+14:00",
            ],
        ),
        (
            daily("09:00", 2),
            APIA,
            "2011-12-28T00:00:00-10:00",
            to,
            &["2011-12-28T09:00:00-10:00", "2011-12-31T00:00:00+14:00", "2012-01-01T09:00:00+14:00"],
        ),
        (
            cron("0 * 30 12 *"),
            APIA,
            from,
            "2012-12-30T01:30:00+14:00",
            &["2012-12-30T00:00:00+14:00", "2012-12-30T01:00:00+14:00"],
        ),
        // Kwajalein had 24 hours less in August 1993, and Alaska had its 19 October 1867 twice from afternoon to afternoon.
        (
            cron("0 12 20-22 8 *"),
            Tz::Pacific__Kwajalein,
            "1993-08-20T00:00:00-12:00",
            "1993-08-23T00:00:00+12:00",
            &["1993-08-20T12:00:00-12:00", "1993-08-22T00:00:00+12:00", "1993-08-22T12:00:00+12:00"],
        ),
        (
            cron("0 12 * * *"),
            Tz::America__Juneau,
            "1867-10-17T12:00:00Z",
            "1867-10-20T23:00:00Z",
            &["1867-10-18T12:00:00+15:02", "1867-10-19T12:00:00+15:02", "1867-10-20T12:00:00-08:58"],
        ),
    ]);
}

#[test]
fn every_counts_from_the_start_whatever_the_clocks_do() {
    check(&[
        (
            every("PT1H"),
            BERLIN,
            "2026-10-25T01:10:00+02:00",
            "2026-10-25T03:20:00+01:00",
            &[
                "2026-10-25T01:10:00+02:00",
                "2026-10-25T02:10:00+02:00",
                "2026-10-25T02:10:00+01:00",
                "2026-10-25T03:10:00+01:00",
            ],
        ),
        (
            every("P1D"),
            BERLIN,
            "2026-03-28T12:00:00+01:00",
            "2026-03-30T14:00:00+02:00",
            &["2026-03-28T12:00:00+01:00", "2026-03-29T13:00:00+02:00", "2026-03-30T13:00:00+02:00"],
        ),
        (
            every("PT0.5S"),
            Tz::UTC,
            "2026-01-01T00:00:00.100Z",
            "2026-01-01T00:00:01.100Z",
            &["2026-01-01T00:00:00.100+00:00", "2026-01-01T00:00:00.600+00:00"],
        ),
    ]);
}

#[test]
fn daily_counts_local_days_from_the_starts_day() {
    check(&[
        // 09:00 has passed on the first day, which counts all the same.
        (
            daily("09:00", 2),
            BERLIN,
            "2026-03-27T10:00:00+01:00",
            "2026-04-02T10:00:00+02:00",
            &["2026-03-29T09:00:00+02:00", "2026-03-31T09:00:00+02:00", "2026-04-02T09:00:00+02:00"],
        ),
        // The start itself is one.
        (
            daily("09:00", 3),
            BERLIN,
            "2026-10-23T09:00:00+02:00",
            "2026-10-30T00:00:00+01:00",
            &["2026-10-23T09:00:00+02:00", "2026-10-26T09:00:00+01:00", "2026-10-29T09:00:00+01:00"],
        ),
        // The zone's day, not that of UTC: it is the 2nd in Samoa.
        (
            daily("08:00", 10),
            APIA,
            "2026-01-01T20:00:00Z",
            "2026-01-13T00:00:00Z",
            &["2026-01-12T08:00:00+13:00"],
        ),
        // At the start the first of the two has passed.
        (
            daily("02:30", 1),
            BERLIN,
            "2026-10-25T02:15:00+01:00",
            "2026-10-27T00:00:00+01:00",
            &["2026-10-26T02:30:00+01:00"],
        ),
    ]);
}
