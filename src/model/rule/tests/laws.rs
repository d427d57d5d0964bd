//! The calendar's long periods, the ends of time, and laws that hold for all rules.

use proptest::prelude::*;

use super::*;
use crate::model::time::FIRST;

/// The first nominal times after an instant, in UTC.
fn following(rule: &Rule, after: &str, count: usize) -> Vec<String> {
    let mut after = ms(after);
    let next = || {
        after = rule.next(after).unwrap()?;
        Some(after.rfc3339().replace(":00.000Z", "Z"))
    };
    std::iter::from_fn(next).take(count).collect()
}

/// A cron in UTC, from year 1 on.
fn utc(text: &str) -> Rule {
    rule(cron(text), Tz::UTC, ms("0001-01-01T00:00:00Z"))
}

#[test]
fn leap_days_and_ends_of_months_are_those_of_the_calendar() {
    for (text, after, expected) in [
        // 2100 is no leap year, 2400 is one.
        ("0 0 29 2 *", "2095-01-01T00:00:00Z", vec!["2096-02-29T00:00Z", "2104-02-29T00:00Z"]),
        ("0 0 29 2 *", "2396-03-01T00:00:00Z", vec!["2400-02-29T00:00Z", "2404-02-29T00:00Z"]),
        ("0 0 29 2 *", "1896-03-01T00:00:00Z", vec!["1904-02-29T00:00Z"]),
        // 29 February is a Monday each 28 years, and once in 40.
        (
            "0 0 29 2 +1",
            "2044-01-01T00:00:00Z",
            vec!["2044-02-29T00:00Z", "2072-02-29T00:00Z", "2112-02-29T00:00Z"],
        ),
        (
            "0 12 31 * *",
            "2026-01-31T12:00:00Z",
            vec!["2026-03-31T12:00Z", "2026-05-31T12:00Z", "2026-07-31T12:00Z", "2026-08-31T12:00Z"],
        ),
        (
            "0 12 L * *",
            "2028-01-31T12:00:00Z",
            vec!["2028-02-29T12:00Z", "2028-03-31T12:00Z", "2028-04-30T12:00Z"],
        ),
        // 31 January 2026 is a Saturday, 28 February too, 31 May a Sunday.
        (
            "0 0 LW 1,2,5 *",
            "2026-01-01T00:00:00Z",
            vec!["2026-01-30T00:00Z", "2026-02-27T00:00Z", "2026-05-29T00:00Z"],
        ),
        // Not into another month: 1 August 2026 is a Saturday, 31 May a Sunday.
        ("0 0 1W 8 *", "2026-01-01T00:00:00Z", vec!["2026-08-03T00:00Z"]),
        ("0 0 31W 5 *", "2026-01-01T00:00:00Z", vec!["2026-05-29T00:00Z"]),
        (
            "0 0 13 * +FRI",
            "2026-01-01T00:00:00Z",
            vec!["2026-02-13T00:00Z", "2026-03-13T00:00Z", "2026-11-13T00:00Z"],
        ),
        // Either is enough: 13 January, and its Fridays.
        (
            "0 0 13 1 5",
            "2026-01-05T00:00:00Z",
            vec!["2026-01-09T00:00Z", "2026-01-13T00:00Z", "2026-01-16T00:00Z"],
        ),
        ("0 0 * * 5#5", "2026-01-01T00:00:00Z", vec!["2026-01-30T00:00Z", "2026-05-29T00:00Z"]),
        ("59 23 31 12 *", "2026-12-31T23:58:59.999Z", vec!["2026-12-31T23:59Z", "2027-12-31T23:59Z"]),
    ] {
        assert_eq!(following(&utc(text), after, expected.len()), expected, "{text} after {after}");
    }
}

#[test]
fn four_hundred_years_later_it_is_the_same_day() {
    const CYCLE: i64 = 146_097 * DAY_MS;
    for text in ["0 0 29 2 *", "30 12 * * 1#1", "0 0 15W * *", "0 * 29 2 *", "0 0 1 1 +6"] {
        let rule = utc(text);
        let mut after = ms("1999-12-01T00:00:00Z");
        for _ in 0..20 {
            let next = rule.next(after).unwrap().unwrap();
            // Far beyond the years that croner searches: before 1, after 5000.
            for cycles in [-4, -1, 1, 7, 19] {
                let moved = |at: UnixMs| UnixMs::new(at.get() + cycles * CYCLE);
                assert_eq!(rule.next(moved(after)), Ok(Some(moved(next))), "{text} {after} {cycles}");
            }
            after = next;
        }
    }
}

#[test]
fn the_end_is_the_last_instant_and_nothing_else() {
    for kind in
        [cron("0 0 29 2 *"), cron("* * * * * *"), cron("0 9 * * *"), daily("09:00", 3660), every("PT1H")]
    {
        for zone in [Tz::UTC, APIA, NEW_YORK] {
            let rule = rule(kind.clone(), zone, FIRST);
            let from = UnixMs::new(LAST.get() - 400 * 366 * DAY_MS);
            let mut after = from;
            let mut found = 0;
            while let Some(next) = rule.next(after).unwrap() {
                assert!(next > after && next <= LAST);
                found += 1;
                // In few steps to the end, and then each.
                after =
                    if found < 50 { next.max(UnixMs::new(after.get() / 2 + LAST.get() / 2)) } else { next };
            }
            assert!(found > 4, "{kind:?} {found}");
            for at in [i64::MIN, FIRST.get() - 1, FIRST.get()] {
                assert!(rule.next(UnixMs::new(at)).unwrap().is_some_and(|next| next >= FIRST), "{kind:?}");
            }
            for at in [LAST.get(), i64::MAX] {
                assert_eq!(rule.next(UnixMs::new(at)), Ok(None), "{kind:?}");
            }
        }
    }
    // Longer than the time that is left.
    let rule = rule(every("P2920000D"), Tz::UTC, ms("2026-01-01T00:00:00Z"));
    assert_eq!(rule.next(FIRST), Ok(Some(ms("2026-01-01T00:00:00Z"))));
    assert_eq!(rule.next(ms("2026-01-01T00:00:00Z")), Ok(None));
}

#[test]
fn a_rule_that_cannot_hold_names_its_field() {
    let refused = |kind: Kind, start_at: UnixMs| {
        let error = Rule::new(kind, Tz::UTC, start_at).unwrap_err();
        (error.field(), error.to_string())
    };
    let now = ms("2026-01-01T00:00:00Z");
    assert_eq!(refused(cron("0 0 30 2 *"), now).0, "cron");
    assert_eq!(refused(every("PT0.499S"), now), ("every", RuleError::EveryShort.to_string()));
    let noon = time_of_day("12:00").unwrap();
    for every_days in [0, 3661, u32::MAX] {
        assert_eq!(refused(Kind::Daily { at: noon, every_days }, now).0, "daily/every_days");
    }
    for nanos in [1, 999_999, 1_500_000, 1_000_000_000] {
        let at = NaiveTime::from_hms_nano_opt(23, 59, 59, nanos).unwrap();
        assert_eq!(refused(Kind::Daily { at, every_days: 1 }, now).0, "daily/at");
    }
    for start_at in [FIRST.get() - 1, LAST.get() + 1, i64::MIN, i64::MAX] {
        assert_eq!(refused(every("PT1S"), UnixMs::new(start_at)).0, "start_at");
    }
    for text in [
        "9:00",
        "24:00",
        "09:60",
        "09:00:60",
        "09:00:00.1234",
        "09:00.5",
        "09:00:00.",
        "",
        "09",
        "+9:00",
        "09:00 ",
    ] {
        assert_eq!(time_of_day(text), Err(RuleError::DailyAt), "{text}");
    }
    assert_eq!(time_of_day("23:59:59.25").unwrap().format("%H:%M:%S%.3f").to_string(), "23:59:59.250");
    assert_eq!(time_of_day("00:00:30").unwrap().format("%H:%M:%S").to_string(), "00:00:30");
    let unknown = |name| zone(name).unwrap_err().to_string();
    assert_eq!(zone("Asia/Shanghai"), Ok(Tz::Asia__Shanghai));
    assert_eq!(
        unknown("europe/berlin"),
        "`europe/berlin` is not an IANA time zone; did you mean Europe/Berlin?"
    );
    assert!(unknown("new york").contains("America/New_York"), "{}", unknown("new york"));
    assert!(unknown("Mars/Olympus").contains("write one such as Asia/Shanghai"));
    assert_eq!(zone("x").unwrap_err().field(), "zone");
}

/// Zones, a change of their clocks, and the hours around it that are worth a look.
const CHANGES: [(Tz, &str, i64); 14] = [
    (BERLIN, "2026-03-29T01:00:00Z", 3),
    (BERLIN, "2026-10-25T01:00:00Z", 3),
    (LONDON, "2026-10-25T01:00:00Z", 3),
    (STOCKHOLM, "2018-10-28T01:00:00Z", 3),
    (NEW_YORK, "2026-03-08T07:00:00Z", 3),
    (NEW_YORK, "2026-11-01T06:00:00Z", 3),
    (LORD_HOWE, "2026-04-04T15:00:00Z", 2),
    (LORD_HOWE, "2026-10-03T15:30:00Z", 2),
    (SAO_PAULO, "2017-10-15T03:00:00Z", 3),
    (SAO_PAULO, "2018-02-18T02:00:00Z", 3),
    (APIA, "2011-12-30T10:00:00Z", 30),
    (Tz::Africa__Casablanca, "2018-06-14T02:00:00Z", 3),
    (Tz::America__St_Johns, "2011-11-06T02:31:00Z", 3),
    // A whole day twice.
    (Tz::America__Juneau, "1867-10-19T00:31:13Z", 30),
];

fn kinds() -> impl Strategy<Value = Kind> {
    let texts = [
        "0 0 * * *",
        "30 2 * * *",
        "30 1,2,14 * * *",
        "*/7 0-3,12 * * *",
        "*/20 * 0-3,23 * * *",
        "*/15 * * * *",
        "30 * * * *",
        "0 */2 * * *",
        "*/20 * * * * *",
        "0 9 L * *",
        "0 0 29 2 *",
        "0 * 30 12 *",
        "30 23 * * 6",
        "1 0 * * 0",
        "0 0 1-7 * +0",
    ];
    let crons = prop::sample::select(texts.to_vec()).prop_map(cron);
    let dailies = (0..1440_u32, 1..12_u32).prop_map(|(minute, every_days)| Kind::Daily {
        at: NaiveTime::from_hms_opt(minute / 60, minute % 60, 0).unwrap(),
        every_days,
    });
    let distances = (500..200_000_000_u64)
        .prop_map(|ms| Kind::Every { every: Span::from_duration(std::time::Duration::from_millis(ms)) });
    prop_oneof![8 => crons, 2 => dailies, 1 => distances]
}

/// A rule, and an instant close to a change of its zone's clocks or anywhere from 1950 to 2050.
fn cases() -> impl Strategy<Value = (Rule, UnixMs)> {
    let near =
        |(at, hours): (&str, i64), part: f64| ms(at).shifted((part * (hours * 3_600_000) as f64) as i64);
    let far = -631_152_000_000..2_524_608_000_000_i64;
    let parts = (-1.0..1.0_f64, -1.0..1.0_f64);
    (kinds(), prop::sample::select(CHANGES.to_vec()), parts, far, 0..4_u8).prop_map(
        move |(kind, (zone, at, hours), (first, second), far, which)| {
            let (start_at, after) = match which {
                0 => (near((at, hours), first), near((at, hours), second)),
                1 => (FIRST, UnixMs::new(far)),
                _ => (FIRST, near((at, hours), second)),
            };
            (rule(kind, zone, start_at), after)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn the_next_is_later_and_nothing_is_between((rule, after) in cases(), part in 0.0..1.0_f64) {
        let next = rule.next(after).unwrap().unwrap();
        prop_assert!(next > after && next >= rule.start_at, "{next} after {after}");
        // From anywhere before it, the same one comes next.
        let inside = UnixMs::new(after.get() + ((next.get() - after.get() - 1) as f64 * part) as i64);
        prop_assert_eq!(rule.next(inside).unwrap(), Some(next));
        prop_assert_eq!(rule.next(UnixMs::new(next.get() - 1)).unwrap(), Some(next));
        prop_assert!(rule.next(next).unwrap().unwrap() > next);
    }
}
