//! The table that `scripts/nominal-times` makes with another cron and other code for time zones.

use std::collections::BTreeSet;
use std::thread;

use sha2::{Digest, Sha256};

use super::tests::{cron, daily, every, ms, rule, shown};
use super::*;

const TABLE: &str = include_str!("nominal_times.tsv");
const HALF_DAY_MS: i64 = DAY_MS / 2;

fn kind(text: &str) -> Kind {
    match text.split_once(' ') {
        Some(("cron", text)) => cron(text),
        Some(("every", text)) => every(text),
        Some(("daily", text)) => {
            let (at, days) = text.split_once(' ').unwrap();
            daily(at, days.parse().unwrap())
        }
        _ => panic!("no rule: {text}"),
    }
}

/// From a year, or 12 hours around a change.
fn span(text: &str) -> (UnixMs, UnixMs) {
    match text.strip_suffix('Z') {
        Some(minute) => {
            let change = ms(&format!("{minute}:00Z")).get();
            (UnixMs::new(change - HALF_DAY_MS), UnixMs::new(change + HALF_DAY_MS))
        }
        None => {
            let year: u32 = text.parse().unwrap();
            (ms(&format!("{year}-01-01T00:00:00Z")), ms(&format!("{}-01-01T00:00:00Z", year + 1)))
        }
    }
}

fn times(rule: &Rule, (from, to): (UnixMs, UnixMs)) -> Vec<UnixMs> {
    let mut after = UnixMs::new(from.get() - 1);
    let next = || {
        let next = rule.next(after).unwrap().filter(|next| *next < to)?;
        assert!(next > after);
        after = next;
        Some(next)
    };
    std::iter::from_fn(next).collect()
}

/// Compares a row; returns what differs.
fn differs(row: &str) -> Option<String> {
    let [text, zone_name, label, count, expected] = row.split('\t').collect::<Vec<_>>().try_into().unwrap();
    let zone = zone(zone_name).unwrap();
    let rule = rule(kind(text), zone, ms("2009-01-01T05:07:30Z"));
    let times = times(&rule, span(label));
    let (found_count, found) = if count == "=" {
        let shown: Vec<String> = times.iter().map(|at| shown(*at, zone)).collect();
        (count.to_owned(), shown.join(" "))
    } else {
        let digest =
            times.iter().fold(Sha256::new(), |hash, at| hash.chain_update(format!("{}\n", at.get())));
        let hash = digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        (times.len().to_string(), hash)
    };
    let same = (found_count.as_str(), found.as_str()) == (count, expected);
    (!same).then(|| {
        format!("{text} in {zone_name}, {label}: {found_count} {found}\n  table: {count} {expected}")
    })
}

#[test]
fn nominal_times_are_those_of_another_implementation() {
    let rows: Vec<&str> = TABLE.lines().filter(|line| !line.starts_with('#')).collect();
    let rules: BTreeSet<&str> = rows.iter().filter_map(|row| row.split('\t').next()).collect();
    assert!(rules.len() >= 60 && rows.len() > 6000, "{} rules, {} rows", rules.len(), rows.len());
    // In two threads: it is the longest of the tests without a server.
    let wrong: Vec<String> = thread::scope(|scope| {
        let halves: Vec<_> = rows.chunks(rows.len().div_ceil(2)).collect();
        let compare = |half: &[&str]| half.iter().filter_map(|row| differs(row)).collect::<Vec<_>>();
        let running: Vec<_> = halves.into_iter().map(|half| scope.spawn(move || compare(half))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let shown = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(
        wrong.is_empty(),
        "{} rows differ (zones here: {}):\n{shown}",
        wrong.len(),
        chrono_tz::IANA_TZDB_VERSION
    );
}
