//! Times, spans, rules and settings.

use chrono_tz::Tz;
use mainspring::config::Config;
use mainspring::model::rule::{Kind, Rule};
use mainspring::model::time::{LAST, Span, UnixMs};
use proptest::prelude::*;
use proptest::sample::select;

use super::TEXTS;

/// A text much like one of these: some of its characters are others, left out or there twice.
fn like(texts: Vec<&'static str>, characters: &'static str) -> impl Strategy<Value = String> {
    let all: Vec<char> = characters.chars().collect();
    let changes = proptest::collection::vec((any::<proptest::sample::Index>(), 0_u8..3, select(all)), 0..4);
    (select(texts), changes).prop_map(|(text, changes)| {
        let mut text: Vec<char> = text.chars().collect();
        for (at, what, with) in changes {
            if text.is_empty() {
                break;
            }
            let at = at.index(text.len());
            match what {
                0 => text[at] = with,
                1 => drop(text.remove(at)),
                _ => text.insert(at, with),
            }
        }
        text.into_iter().collect()
    })
}

/// Every setting that config.toml names.
fn settings() -> Vec<String> {
    let text = include_str!("../../../config.toml");
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.lines().map(|line| line.trim_start_matches(['#', ' '])) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{name}.");
        } else if let Some((name, _)) = line.split_once(" = ")
            && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        {
            found.push(format!("{section}{name}"));
        }
    }
    found
}

#[test]
fn the_settings_are_found() {
    let found = settings();
    assert!(found.len() > 30 && found.contains(&"webhook.timeout".to_owned()), "{found:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn an_instant_that_is_read_is_the_one_that_is_written(
        text in prop_oneof![
            like(vec!["2026-12-01T09:00:00Z", "2026-12-01t09:00:00.123456+05:30", "9999-12-31T23:59:59.999Z", "0000-01-01T00:00:00-00:00"],
                "0123456789-+:.TZtz "),
            any::<String>(),
        ],
    ) {
        if let Ok(at) = UnixMs::parse_rfc3339(&text) {
            prop_assert!(at <= LAST);
            prop_assert_eq!(UnixMs::parse_rfc3339(&at.to_string()), Ok(at), "{}", text);
        }
    }

    #[test]
    fn a_span_that_is_read_is_the_one_that_is_written(
        text in prop_oneof![like(vec!["P3DT4H5M6.789S", "PT0.001S", "P1W", "PT36H"], "0123456789PTDHMSW.-+, "), any::<String>()],
    ) {
        if let Ok(span) = Span::parse(&text) {
            prop_assert_eq!(Span::parse(&span.to_string()), Ok(span), "{}", text);
        }
    }

    #[test]
    fn a_cron_expression_that_is_taken_has_nominal_times_that_rise(
        text in prop_oneof![
            like(vec!["0 9 * * 1-5", "*/15 * * * *", "0 0 29 2 *", "30 0 9 L * *", "0 0 * * FRI#2", "5,10-20/3 1 1 JAN *"],
                "0123456789*/,-L#W? SUNMOFRIJAN"),
            select(TEXTS.to_vec()).prop_map(str::to_owned),
        ],
        zone in select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"]),
        after in 0_i64..4_000_000_000_000,
    ) {
        let zone: Tz = zone.parse().expect("a zone");
        let Ok(rule) = Rule::new(Kind::Cron { text }, zone, UnixMs::new(0)) else { return Ok(()) };
        let mut before = UnixMs::new(after);
        for _ in 0..3 {
            match rule.next(before) {
                Ok(Some(next)) => {
                    prop_assert!(next > before && next <= LAST);
                    before = next;
                }
                Ok(None) | Err(_) => break,
            }
        }
    }

    #[test]
    fn a_setting_is_taken_or_refused_by_its_name(
        name in select(settings()),
        value in prop_oneof![
            select(TEXTS.to_vec()).prop_map(str::to_owned),
            select(vec!["0", "-1", "18446744073709551616", "1e400", "true", "[]", "[1,\"a\"]", "{a=1}", "\"", "5s", "0s", "99999d", "1.5"])
                .prop_map(str::to_owned),
            any::<String>(),
        ],
    ) {
        if let Err(why) = Config::load(None, [], &[format!("{name}={value}")]) {
            let told = format!("{why:#}");
            let (section, field) = name.split_once('.').unwrap_or(("", &name));
            prop_assert!(told.contains(field) || told.contains(section), "{name}={value:?}: {told}");
        }
    }
}
