//! The one sentence that answers "is the clock right?".

use serde::{Deserialize, Serialize};

use crate::model::time::UnixMs;

/// How the service does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// On time.
    Ok,
    /// Timers are late, or may be.
    Late,
    /// Nothing fires.
    Bad,
}

/// A part of the service that does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Degraded {
    /// The cold store cannot be written.
    Store,
    /// The wheels of some or all shards do not answer.
    Redis,
    /// The node has not joined the store yet.
    Starting,
    /// The cold store was restored, and what fell due since is held.
    Restored,
    /// Redis has no room for the whole window.
    NoRoom,
}

/// The answer, and the page where its cause is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sentence {
    /// In words.
    pub text: String,
    /// In a word.
    pub level: Level,
    /// A path of the page.
    pub link: &'static str,
}

/// What the sentence is made from.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// What does not work.
    pub degraded: Vec<Degraded>,
    /// First attempts in the last minute.
    pub fired: u64,
    /// Their lateness at p99, in milliseconds.
    pub p99_ms: Option<f64>,
    /// When the oldest due timer was due that nobody has in hand.
    pub oldest_due: Option<UnixMs>,
    /// The receiver for which most waits, and how many.
    pub waiting: Option<(String, usize)>,
    /// Receivers whose last attempts failed.
    pub failing: usize,
    /// Now.
    pub now: UnixMs,
}

/// A due timer that waits for longer is late.
const LATE_AFTER_MS: i64 = 5000;

/// A p99 above it is late, in milliseconds.
const LATE_P99_MS: f64 = 1000.0;

/// The sentence for these facts.
pub fn sentence(facts: &Facts) -> Sentence {
    let say = |level, link, text: String| Sentence { text, level, link };
    if facts.degraded.contains(&Degraded::Starting) {
        return say(Level::Late, "/nodes", "Starting: this node has not joined the store yet.".into());
    }
    if facts.degraded.contains(&Degraded::Store) {
        let text =
            "Nothing fires: the database cannot be written. What falls due meanwhile fires when it is back.";
        return say(Level::Bad, "/nodes", text.into());
    }
    if facts.degraded.contains(&Degraded::Restored) {
        let text =
            "Held: the database was restored; what fell due since waits for `mainspring restore accept`.";
        return say(Level::Late, "/nodes", text.into());
    }
    let waits = facts.oldest_due.filter(|at| facts.now.get() - at.get() > LATE_AFTER_MS);
    if let Some(since) = waits {
        let since = clock_time(since, facts.now);
        return match &facts.waiting {
            Some((receiver, waiting)) if *waiting > 0 => {
                let text = format!(
                    "Late: {receiver} has {} waiting, the oldest since {since}.",
                    grouped(*waiting as u64)
                );
                say(Level::Late, "/receivers", text)
            }
            _ => say(Level::Late, "/late", format!("Late: the oldest due timer waits since {since}.")),
        };
    }
    if facts.degraded.contains(&Degraded::Redis) {
        let text = "Redis is away: timers fire from SQL, up to a second late.";
        return say(Level::Late, "/nodes", text.into());
    }
    let late = facts.p99_ms.filter(|ms| facts.fired > 0 && *ms > LATE_P99_MS);
    if let Some(ms) = late {
        return say(Level::Late, "/late", format!("Late: p99 {} in the last minute.", span(ms)));
    }
    let fired = match (facts.fired, facts.p99_ms) {
        (0, _) | (_, None) => "On time. Nothing fired in the last minute.".to_owned(),
        (fired, Some(ms)) => {
            format!("On time. {} fired in the last minute, p99 {} late.", grouped(fired), span(ms))
        }
    };
    match facts.failing {
        0 => say(Level::Ok, "/timers", fired),
        1 => say(Level::Ok, "/receivers", format!("{fired} One receiver is failing.")),
        n => say(Level::Ok, "/receivers", format!("{fired} {} receivers are failing.", grouped(n as u64))),
    }
}

/// A number in groups of three digits, with narrow spaces at which no line ends.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join("\u{202f}")
}

/// Milliseconds for people.
fn span(ms: f64) -> String {
    match ms {
        ms if ms >= 120_000.0 => format!("{:.0} min", ms / 60_000.0),
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

/// The time of day in UTC, with the date if that is another day's.
fn clock_time(at: UnixMs, now: UnixMs) -> String {
    let text = at.rfc3339();
    let (date, time) = text.split_once('T').unwrap_or((&text, ""));
    let time = time.get(..8).unwrap_or(time);
    let today = now.rfc3339();
    if today.starts_with(date) { format!("{time} UTC") } else { format!("{date} {time} UTC") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_said_first() {
        let now = UnixMs::parse_rfc3339("2026-11-22T14:05:00Z").expect("a time");
        let since = UnixMs::parse_rfc3339("2026-11-22T14:02:00Z").expect("a time");
        let facts = Facts { now, fired: 1204, p99_ms: Some(3.04), ..Facts::default() };
        let said = |facts: &Facts| {
            let Sentence { text, level, link } = sentence(facts);
            (text, level, link)
        };
        assert_eq!(
            said(&facts),
            ("On time. 1\u{202f}204 fired in the last minute, p99 3.0 ms late.".into(), Level::Ok, "/timers")
        );
        let failing = Facts { failing: 2, ..facts.clone() };
        assert!(said(&failing).0.ends_with("2 receivers are failing."));
        let slow = Facts { p99_ms: Some(2345.0), ..failing.clone() };
        assert_eq!(said(&slow), ("Late: p99 2.3 s in the last minute.".into(), Level::Late, "/late"));
        assert_eq!((span(119_900.0), span(1_776_000.0)), ("119.9 s".to_owned(), "30 min".to_owned()));
        let redis = Facts { degraded: vec![Degraded::Redis], ..slow.clone() };
        assert_eq!(said(&redis).1, Level::Late);
        assert!(said(&redis).0.starts_with("Redis is away"));
        let waits = Facts { oldest_due: Some(since), ..redis.clone() };
        assert_eq!(said(&waits).0, "Late: the oldest due timer waits since 14:02:00 UTC.");
        let receiver = Facts { waiting: Some(("https://shop.example".into(), 3120)), ..waits.clone() };
        assert_eq!(
            said(&receiver),
            (
                "Late: https://shop.example has 3\u{202f}120 waiting, the oldest since 14:02:00 UTC.".into(),
                Level::Late,
                "/receivers"
            )
        );
        let store = Facts { degraded: vec![Degraded::Redis, Degraded::Store], ..receiver };
        assert_eq!(said(&store).1, Level::Bad);
        assert_eq!(said(&Facts::default()).0, "On time. Nothing fired in the last minute.");
    }

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1 000"), (1_234_567, "1 234 567")] {
            assert_eq!(grouped(number), text.replace(' ', "\u{202f}"));
        }
    }
}
