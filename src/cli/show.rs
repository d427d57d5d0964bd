//! Timers and attempts as text for people; the fields of any answer.
//!
//! Answers are read field by field, so that the additional fields of a newer server are shown too, and numbers keep
//! their digits.

use std::collections::BTreeMap;

use anyhow::Context;
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::client::Reply;
use super::out;
use crate::model::time::UnixMs;

/// One object of an answer; its values are JSON text.
pub type Fields = BTreeMap<String, Box<RawValue>>;

/// One page of a list, each item as the server wrote it.
#[derive(Deserialize)]
pub struct Items<'a> {
    /// May be empty, also if there is a next page.
    #[serde(borrow)]
    pub items: Vec<&'a RawValue>,
    /// The cursor of the next page, if there may be one.
    pub next: Option<String>,
}

impl Items<'_> {
    /// The fields of each item.
    pub fn read(&self) -> anyhow::Result<Vec<Fields>> {
        let read =
            |item: &&RawValue| serde_json::from_str(item.get()).context("the server's answer cannot be read");
        self.items.iter().map(read).collect()
    }
}

/// Prints an answer: as it is, or as the text of its fields.
pub fn one(reply: &Reply, json: bool, text: impl FnOnce(&Fields) -> String) -> anyhow::Result<()> {
    if json {
        return out::print(&reply.json);
    }
    out::print(&text(&reply.read()?))
}

/// The same after a thing was put under a name, which may have had another.
pub fn put(reply: &Reply, json: bool, text: impl FnOnce(&Fields) -> String) -> anyhow::Result<()> {
    one(reply, json, text)?;
    if reply.status == StatusCode::OK {
        out::note("(it took the place of the former one)");
    }
    Ok(())
}

/// The same after what has this name was removed.
pub fn removed(reply: &Reply, json: bool, name: &str) -> anyhow::Result<()> {
    one(reply, json, |answer| format!("rm {name}: {}", text(answer, "outcome")))
}

/// Prints all items of an answer: as they are, or as a table; without any, a note.
pub fn all(reply: &Reply, json: bool, none: &str, table: fn(&[Fields]) -> String) -> anyhow::Result<()> {
    let all: Items = reply.read()?;
    if json {
        return all.items.iter().try_for_each(|item| out::print(item.get()));
    }
    if all.items.is_empty() {
        out::note(none);
        return Ok(());
    }
    out::print(&table(&all.read()?))
}

/// The fields of a timer that are shown first, in this order; all others follow by name.
const FIRST: [&str; 10] = [
    "state",
    "due_at",
    "next_attempt_at",
    "attempts",
    "owner",
    "target",
    "data",
    "labels",
    "created_at",
    "generation",
];
/// The longest value in a block or cell.
const MAX_VALUE: usize = 2000;
const MAX_CELL: usize = 60;

/// `put order-1: scheduled, due 2026-12-01T01:00:00.000Z (in 29m 59s)`.
pub fn line(verb: &str, timer: &Fields, now: UnixMs) -> String {
    let (id, state) = (text(timer, "id"), text(timer, "state"));
    format!("{verb} {id}: {state}, due {}", instant(&text(timer, "due_at"), now))
}

/// All fields of a timer, one a line.
pub fn block(timer: &Fields, now: UnixMs) -> String {
    fields(&text(timer, "id"), &FIRST, &["id"], timer, now)
}

/// A title, and below it the fields `of` an object, one a line: those of `first` in this order, then all others by name
/// but the `hidden` ones. Absent and empty ones are left out.
pub fn fields(title: &str, first: &[&str], hidden: &[&str], of: &Fields, now: UnixMs) -> String {
    let is_rest = |name: &&str| !hidden.contains(name) && !first.contains(name);
    let mut rows = Vec::new();
    for name in first.iter().copied().chain(of.keys().map(String::as_str).filter(is_rest)) {
        let empty = of.get(name).is_none_or(|value| matches!(value.get(), "null" | "{}" | "[]"));
        if !empty {
            let value = out::short(&text(of, name), MAX_VALUE);
            let value = if name.ends_with("_at") { instant(&value, now) } else { value };
            rows.push(vec![format!("  {name}"), value]);
        }
    }
    format!("{title}\n{}", out::table(&rows))
}

/// A table of timers, one a line.
pub fn list(timers: &[Fields], now: UnixMs) -> String {
    let mut rows = vec![cells(&["ID", "STATE", "DUE", "", "ATTEMPTS", "OWNER", "TARGET"])];
    for timer in timers {
        let due = text(timer, "due_at");
        let distance =
            UnixMs::parse_rfc3339(&due).map_or_else(|_| String::new(), |at| out::from_now(at, now));
        let (attempts, target) = (text(timer, "attempts"), out::short(&target(timer), MAX_CELL));
        let owner = out::short(&text(timer, "owner"), MAX_CELL);
        rows.push(vec![text(timer, "id"), text(timer, "state"), due, distance, attempts, owner, target]);
    }
    out::table(&rows)
}

/// A timer's life, one event a line, and what it waits for.
pub fn events(timer: &Fields, events: &[Fields], waiting_for: Option<&str>, now: UnixMs) -> String {
    let rows: Vec<_> = events
        .iter()
        .map(|event| {
            let detail = out::short(&text(event, "detail"), MAX_VALUE);
            vec![format!("  {}", text(event, "at")), text(event, "event"), text(event, "node"), detail]
        })
        .collect();
    let ending = waiting_for.map_or_else(String::new, |cause| format!("\nwaits for {}", out::plain(cause)));
    format!("{}\n{}{ending}", line("explain", timer, now), out::table(&rows))
}

/// A table of attempts, oldest first.
pub fn attempts(items: &[Fields]) -> String {
    let mut rows =
        vec![cells(&["ATTEMPT", "DELIVERY", "STARTED", "TOOK", "RESULT", "STATUS", "NODE", "DETAIL"])];
    for item in items {
        let at = |name| UnixMs::parse_rfc3339(&text(item, name)).ok();
        let took = at("started_at").zip(at("ended_at")).map(|(start, end)| out::human(end.since(start)));
        let detail = match text(item, "detail") {
            empty if empty.is_empty() => text(item, "reply"),
            detail => detail,
        };
        let detail = match (text(item, "worker"), detail) {
            (worker, detail) if worker.is_empty() => detail,
            (worker, detail) if detail.is_empty() => format!("worker {worker}"),
            (worker, detail) => format!("worker {worker}: {detail}"),
        };
        rows.push(vec![
            text(item, "attempt"),
            text(item, "delivery_id"),
            text(item, "started_at"),
            took.unwrap_or_default(),
            text(item, "result"),
            text(item, "status"),
            text(item, "node"),
            out::short(&detail, MAX_CELL),
        ]);
    }
    if items.is_empty() { "no attempt yet".to_owned() } else { out::table(&rows) }
}

fn cells(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// A field as text, safe for a terminal; empty if absent or null. A string is shown without quotes, all else as JSON.
pub fn text(fields: &Fields, name: &str) -> String {
    let Some(value) = fields.get(name).map(|value| value.get()).filter(|value| *value != "null") else {
        return String::new();
    };
    out::plain(&serde_json::from_str::<String>(value).unwrap_or_else(|_| value.to_owned()))
}

/// A timer's target in short: its URL or name.
fn target(timer: &Fields) -> String {
    let value = timer.get("target").and_then(|raw| serde_json::from_str::<serde_json::Value>(raw.get()).ok());
    let short = value.as_ref().and_then(|value| {
        let names = [&value["webhook"]["url"], &value["destination"], &value["queue"]];
        names.into_iter().find_map(|name| name.as_str().map(str::to_owned))
    });
    short.unwrap_or_else(|| text(timer, "target"))
}

/// A time of an answer, and its distance from now.
pub fn instant(text: &str, now: UnixMs) -> String {
    match UnixMs::parse_rfc3339(text) {
        Ok(at) => format!("{text} ({})", out::from_now(at, now)),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMER: &str = r#"{"id":"order-1","state":"scheduled","due_at":"2026-12-01T01:00:00.000Z","attempts":0,
        "target":{"webhook":{"url":"http://a/x"}},"data":{"n":12345678901234567890123},"labels":{},"owner":null,
        "version":1,"brand_new":"\u001b[2J"}"#;

    fn timer() -> (Fields, UnixMs) {
        let fields = serde_json::from_str(&out::compact(TIMER)).unwrap();
        (fields, UnixMs::parse_rfc3339("2026-12-01T00:30:00.001Z").unwrap())
    }

    #[test]
    fn a_change_is_one_line() {
        let (timer, now) = timer();
        assert_eq!(
            line("put", &timer, now),
            "put order-1: scheduled, due 2026-12-01T01:00:00.000Z (in 29m 59s)"
        );
    }

    #[test]
    fn a_block_shows_every_field() {
        let (timer, now) = timer();
        assert_eq!(
            block(&timer, now),
            "order-1\n  state      scheduled\n  due_at     2026-12-01T01:00:00.000Z (in 29m 59s)\n  attempts   0\n  \
             target     {\"webhook\":{\"url\":\"http://a/x\"}}\n  data       {\"n\":12345678901234567890123}\n  \
             brand_new  \\u{1b}[2J\n  version    1"
        );
    }

    #[test]
    fn a_list_is_a_table() {
        let (timer, now) = timer();
        let text = list(&[timer], now);
        let columns = |line: &str| line.split("  ").map(str::trim).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            columns(text.lines().nth(1).unwrap())
                .into_iter()
                .filter(|cell| !cell.is_empty())
                .collect::<Vec<_>>(),
            ["order-1", "scheduled", "2026-12-01T01:00:00.000Z", "in 29m 59s", "0", "http://a/x"]
        );
    }

    #[test]
    fn a_destination_is_shown_as_the_target() {
        let (mut timer, now) = timer();
        let target = RawValue::from_string(r#"{"destination":"shop-orders"}"#.into()).unwrap();
        timer.insert("target".into(), target);
        assert!(list(&[timer.clone()], now).ends_with("  shop-orders"));
        assert!(block(&timer, now).contains("\n  target     {\"destination\":\"shop-orders\"}\n"));
    }

    #[test]
    fn attempts_show_how_long_they_took() {
        let item = r#"{"attempt":1,"delivery_id":"dlv_1","started_at":"2026-12-01T01:00:00.000Z",
            "ended_at":"2026-12-01T01:00:01.500Z","result":"failed","status":500,"node":"n1","reply":"oops"}"#;
        let text = attempts(&[serde_json::from_str(item).unwrap()]);
        assert!(text.ends_with("1s    failed  500     n1    oops"), "{text}");
        assert_eq!(attempts(&[]), "no attempt yet");
    }
}
