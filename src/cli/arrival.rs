//! One delivery as `receive` prints it: of a timer, or of timers that were merged.

use std::borrow::Cow;
use std::num::NonZeroUsize;

use axum::http::HeaderMap;
use lru::LruCache;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use standardwebhooks::Webhook;

use super::out;
use super::signature::{self, Verdict};
use crate::model::time::UnixMs;
use crate::sink::Event;

/// The longest body in a line for people, in characters.
const MAX_BODY: usize = 200;
/// The longest id in a line for people, in characters.
const MAX_ID: usize = 128;
/// The number of ids that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(100_000).expect("not zero");

/// The `ce-type` of a merged delivery.
const MERGED: &str = Event::Merged.kind();

/// The body of a merged delivery.
#[derive(Deserialize)]
struct Merged<'a> {
    #[serde(borrow)]
    merged: Vec<Member<'a>>,
}

/// One timer of a merged delivery.
#[derive(Deserialize)]
struct Member<'a> {
    #[serde(borrow)]
    timer: Cow<'a, str>,
    #[serde(borrow)]
    due_at: Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawValue,
}

/// The contents of one POST.
pub struct Arrival<'a> {
    at: UnixMs,
    path: &'a str,
    /// The timer's id; of a merged delivery the owner.
    subject: Option<&'a str>,
    /// The timers of a merged delivery.
    members: Option<Vec<Member<'a>>>,
    delivery: Option<&'a str>,
    kind: Option<&'a str>,
    attempt: Option<&'a str>,
    generation: Option<&'a str>,
    due_at: Option<UnixMs>,
    signature: Option<Verdict>,
    body: &'a [u8],
}

impl<'a> Arrival<'a> {
    /// Reads a delivery that arrived at `at`, just now; with a secret, its signature is checked.
    pub fn read(
        headers: &'a HeaderMap,
        path: &'a str,
        body: &'a [u8],
        at: UnixMs,
        secret: Option<&Webhook>,
    ) -> Self {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let kind = header("ce-type");
        // Anybody may post: a body of another shape is printed as it is.
        let merged = || serde_json::from_slice::<Merged<'_>>(body).ok().map(|set| set.merged);
        Self {
            at,
            path,
            subject: header("ce-subject"),
            members: kind.filter(|kind| *kind == MERGED).and_then(|_| merged()),
            delivery: header("ce-id").or_else(|| header("webhook-id")),
            kind,
            attempt: header("ce-attempt"),
            generation: header("ce-generation"),
            due_at: header("ce-dueat").and_then(|due| UnixMs::parse_rfc3339(due).ok()),
            signature: secret.map(|secret| signature::check(secret, headers, body)),
            body,
        }
    }

    /// The ids of its timers: one, or the members of a merged set. A POST that names no timer has one without a name.
    pub fn timers(&self) -> Vec<&str> {
        match &self.members {
            Some(members) => members.iter().map(|member| &*member.timer).collect(),
            None => vec![self.subject.unwrap_or_default()],
        }
    }

    /// The delivery id.
    pub const fn delivery(&self) -> Option<&str> {
        self.delivery
    }

    /// Arrival − due time, in milliseconds; negative if this machine's clock is behind.
    fn lateness_ms(&self) -> Option<i64> {
        self.due_at.map(|due| self.at.get() - due.get())
    }

    /// One line for people; of a merged delivery one more for each timer.
    pub fn line(&self, again: bool, answered: u16) -> String {
        let or_dash =
            |text: Option<&str>| text.map_or_else(|| "-".to_owned(), |text| out::short(text, MAX_ID));
        let mut parts = vec![self.at.rfc3339(), or_dash(self.subject), or_dash(self.delivery)];
        parts.push(format!("attempt {}", or_dash(self.attempt)));
        parts.push(match self.lateness_ms() {
            Some(late @ 0..) => format!("{late} ms late"),
            Some(early) => format!("{} ms early", early.unsigned_abs()),
            None => "due -".into(),
        });
        parts.extend(self.signature.map(|verdict| format!("signature {}", verdict.word())));
        if again {
            parts.push("again".into());
        }
        if !(200..300).contains(&answered) {
            parts.push(format!("answered {answered}"));
        }
        if self.path != "/" {
            parts.push(out::short(self.path, MAX_BODY));
        }
        let Some(members) = &self.members else {
            parts.push(out::short(&String::from_utf8_lossy(self.body), MAX_BODY));
            return parts.join("  ");
        };
        parts.push(format!("{} timers merged:", members.len()));
        let mut lines = vec![parts.join("  ")];
        lines.extend(members.iter().map(Member::line));
        lines.join("\n")
    }

    /// One line of JSON.
    pub fn json(&self, again: bool, answered: u16) -> String {
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
        let line = Line {
            arrived_at: self.at,
            timer: self.subject.filter(|_| self.members.is_none()),
            owner: self.subject.filter(|_| self.members.is_some()),
            timers: self.members.as_ref().map(|_| self.timers()),
            delivery_id: self.delivery,
            kind: self.kind,
            attempt: number(self.attempt),
            generation: number(self.generation),
            due_at: self.due_at,
            lateness_ms: self.lateness_ms(),
            signature: self.signature.map(Verdict::word),
            again,
            answered,
            path: self.path,
            body: Body::read(self.body),
        };
        // It holds text, numbers and JSON that was read before, so writing it cannot fail.
        out::compact(&serde_json::to_string(&line).unwrap_or_default())
    }
}

impl Member<'_> {
    /// One line for people, below that of its delivery.
    fn line(&self) -> String {
        let (timer, due_at) = (out::short(&self.timer, MAX_ID), out::short(&self.due_at, MAX_ID));
        format!("  {timer}  due {due_at}  {}", out::short(self.data.get(), MAX_BODY))
    }
}

#[derive(Serialize)]
struct Line<'a> {
    arrived_at: UnixMs,
    timer: Option<&'a str>,
    /// Of a merged delivery only.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    /// Of a merged delivery only.
    #[serde(skip_serializing_if = "Option::is_none")]
    timers: Option<Vec<&'a str>>,
    delivery_id: Option<&'a str>,
    #[serde(rename = "type")]
    kind: Option<&'a str>,
    attempt: Option<i64>,
    generation: Option<i64>,
    due_at: Option<UnixMs>,
    lateness_ms: Option<i64>,
    signature: Option<&'a str>,
    again: bool,
    answered: u16,
    path: &'a str,
    body: Body<'a>,
}

/// A body: JSON unchanged, anything else as text.
#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Json(&'a RawValue),
    Text(String),
}

impl<'a> Body<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        match serde_json::from_slice(bytes) {
            Ok(json) => Self::Json(json),
            Err(_) => Self::Text(String::from_utf8_lossy(bytes).into_owned()),
        }
    }
}

/// Counts how often each id has arrived, for the [`REMEMBERED`] ids that arrived last.
pub struct Tally(LruCache<String, u32>);

impl Default for Tally {
    fn default() -> Self {
        Self(LruCache::new(REMEMBERED))
    }
}

impl Tally {
    /// Counts one more arrival of `id` and returns their number, this one included.
    pub fn add(&mut self, id: &str) -> u32 {
        let count = self.0.get_or_insert_mut_ref(id, || 0);
        *count = count.saturating_add(1);
        *count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers() -> HeaderMap {
        let pairs = [
            ("ce-id", "dlv_1"),
            ("ce-subject", "order-1"),
            ("ce-type", "mainspring.timer.fired.v1"),
            ("ce-attempt", "2"),
            ("ce-generation", "1"),
            ("ce-dueat", "2026-12-01T01:00:00.000Z"),
        ];
        pairs.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn at(text: &str) -> UnixMs {
        UnixMs::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn a_line_has_time_ids_attempt_lateness_and_body() {
        let headers = headers();
        let arrival = Arrival::read(&headers, "/", br#"{"order":1}"#, at("2026-12-01T01:00:00.012Z"), None);
        assert_eq!(
            arrival.line(false, 204),
            "2026-12-01T01:00:00.012Z  order-1  dlv_1  attempt 2  12 ms late  {\"order\":1}"
        );
        let (early, secret) = (at("2026-12-01T00:59:59.997Z"), Webhook::new("whsec_AAAA").unwrap());
        let arrival = Arrival::read(&headers, "/hook", b"\x1b[2J", early, Some(&secret));
        assert_eq!(
            arrival.line(true, 500),
            "2026-12-01T00:59:59.997Z  order-1  dlv_1  attempt 2  3 ms early  signature missing  again  \
             answered 500  /hook  \\u{1b}[2J"
        );
    }

    #[test]
    fn a_post_without_cloudevents_headers_is_a_line_and_a_long_body_is_cut() {
        let headers = HeaderMap::new();
        let body = "x".repeat(300);
        let line = Arrival::read(&headers, "/", body.as_bytes(), UnixMs::new(0), None).line(false, 200);
        assert_eq!(line, format!("1970-01-01T00:00:00.000Z  -  -  attempt -  due -  {}…", &body[..200]));
    }

    /// A merged delivery of two timers.
    fn merged() -> (HeaderMap, &'static [u8]) {
        let mut headers = headers();
        headers.insert("ce-type", MERGED.parse().unwrap());
        headers.insert("ce-subject", "user:1".parse().unwrap());
        headers.remove("ce-generation");
        let body = br#"{"merged":[
            {"timer":"a","due_at":"2026-12-01T00:59:59.000Z","generation":1,"data":{"n": 1}},
            {"timer":"b","due_at":"2026-12-01T01:00:00.000Z","generation":2,"data":null}]}"#;
        (headers, body)
    }

    #[test]
    fn a_merged_delivery_has_a_line_for_each_of_its_timers() {
        let (headers, body) = merged();
        let arrival = Arrival::read(&headers, "/", body, at("2026-12-01T01:00:00.012Z"), None);
        assert_eq!(
            arrival.line(false, 204),
            "2026-12-01T01:00:00.012Z  user:1  dlv_1  attempt 2  12 ms late  2 timers merged:\n  \
             a  due 2026-12-01T00:59:59.000Z  {\"n\": 1}\n  \
             b  due 2026-12-01T01:00:00.000Z  null"
        );
        assert_eq!(arrival.timers(), ["a", "b"]);
        let value: serde_json::Value = serde_json::from_str(&arrival.json(false, 204)).unwrap();
        assert_eq!(value["timer"], serde_json::Value::Null);
        assert_eq!((&value["owner"], &value["timers"]), (&"user:1".into(), &serde_json::json!(["a", "b"])));
        assert_eq!(value["body"]["merged"][1]["generation"], 2);
    }

    #[test]
    fn a_body_that_is_no_merged_set_is_printed_as_it_is() {
        let (headers, _) = merged();
        let arrival = Arrival::read(&headers, "/", br#"{"merged":7}"#, at("2026-12-01T01:00:00.000Z"), None);
        assert!(
            arrival.line(false, 204).ends_with("0 ms late  {\"merged\":7}"),
            "{}",
            arrival.line(false, 204)
        );
        assert_eq!(arrival.timers(), ["user:1"]);
    }

    #[test]
    fn json_is_one_line_and_keeps_the_body() {
        let headers = headers();
        let read = |body| Arrival::read(&headers, "/", body, at("2026-12-01T01:00:00.012Z"), None);
        let line = read(b"{\n \"n\": 1.10 }").json(true, 204);
        assert!(line.ends_with(r#""again":true,"answered":204,"path":"/","body":{"n":1.10}}"#), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["lateness_ms"], &value["attempt"]), (&12.into(), &2.into()));
        let value: serde_json::Value = serde_json::from_str(&read(b"\xff\n").json(false, 204)).unwrap();
        assert_eq!(value["body"], "\u{fffd}\n");
    }

    #[test]
    fn ids_are_counted_and_those_not_seen_for_longest_are_dropped() {
        let mut tally = Tally::default();
        assert_eq!((tally.add("a"), tally.add("b"), tally.add("a")), (1, 1, 2));
        for n in 1..REMEMBERED.get() {
            tally.add(&n.to_string());
        }
        assert_eq!((tally.add("a"), tally.add("b")), (3, 1), "`a` arrived after `b`");
    }
}
