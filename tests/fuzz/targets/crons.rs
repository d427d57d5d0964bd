//! Cron expressions: nominal times of one that is taken rise. The first byte chooses the zone.

#![no_main]

use chrono_tz::Tz;
use libfuzzer_sys::fuzz_target;
use mainspring::model::rule::{self, Kind, Rule};
use mainspring::model::time::{LAST, UnixMs};

const ZONES: [Tz; 4] = [Tz::UTC, Tz::Europe__Berlin, Tz::Australia__Lord_Howe, Tz::Pacific__Apia];

fuzz_target!(|text: &str| {
    let Some(first) = text.chars().next() else { return };
    let text = &text[first.len_utf8()..];
    let _ = (rule::time_of_day(text), rule::zone(text));
    let zone = ZONES[first as usize % ZONES.len()];
    let Ok(rule) = Rule::new(Kind::Cron { text: text.to_owned() }, zone, UnixMs::new(0)) else { return };
    let mut before = UnixMs::new(1_795_780_800_000);
    for _ in 0..3 {
        match rule.next(before) {
            Ok(Some(next)) => {
                assert!(next > before && next <= LAST);
                before = next;
            }
            Ok(None) | Err(_) => break,
        }
    }
});
