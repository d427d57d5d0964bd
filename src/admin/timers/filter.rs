//! The search of a list, in its address: the fields of `GET /v1/timers`, and what a form sends instead.
//!
//! A form has an empty field where nothing is asked for, several ids in one field, `label` as `name=value`, and times
//! without an offset. [`Search::canonical`] gives the address that asks for the same in the fields of the API.

use std::collections::BTreeMap;

use super::list_of;
use crate::admin::words::Zone;
use crate::cold::{Filter, ListCursor};
use crate::model::destination::is_name;
use crate::model::id::TimerId;
use crate::model::namespace::Salt;
use crate::model::queue::To;
use crate::model::schedule::is_schedule_id;
use crate::model::target::Webhook;
use crate::model::timer::{State, is_label_name};

/// The most ids that one search may name.
const MAX_IDS: usize = 100;

/// What is asked for, as the form shows it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Asked {
    pub id: String,
    pub owner: String,
    pub label: String,
    pub state: String,
    pub schedule: String,
    pub receiver: String,
    pub queue: String,
    pub to: String,
    pub worker: String,
    pub due_after: String,
    pub due_before: String,
    /// Something is asked for.
    pub any: bool,
}

impl Asked {
    /// Whether something is asked for that the form folds away.
    pub fn more(&self) -> bool {
        let Self { owner, label, schedule, queue, to, worker, due_after, due_before, .. } = self;
        ![owner, label, schedule, queue, to, worker, due_after, due_before]
            .iter()
            .all(|field| field.is_empty())
    }
}

/// One search.
pub struct Search {
    pub asked: Asked,
    pub filter: Filter,
    pub cursor: Option<ListCursor>,
    /// What is wrong with it, in words.
    pub wrongs: Vec<String>,
    /// The fields of its address, without a cursor.
    fields: Vec<(String, String)>,
    cursor_text: String,
}

impl Search {
    /// Reads the query of an address. Times without an offset are those of `zone`.
    pub fn read(query: &str, zone: Zone, salt: &Salt) -> Self {
        let mut this = Self {
            asked: Asked::default(),
            filter: Filter::default(),
            cursor: None,
            wrongs: Vec::new(),
            fields: Vec::new(),
            cursor_text: String::new(),
        };
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let value = value.trim();
            if !value.is_empty() {
                this.field(&name, value, zone, salt);
            }
        }
        this.asked.any = !this.fields.is_empty();
        this
    }

    fn field(&mut self, name: &str, value: &str, zone: Zone, salt: &Salt) {
        match name {
            "id" => {
                for id in value.split([' ', ',']).filter(|id| !id.is_empty()) {
                    self.id(id, salt);
                }
            }
            "owner" => {
                self.asked.owner = value.to_owned();
                self.filter.owner = Some(value.replace('\0', "\u{fffd}"));
                self.keep("owner", value);
            }
            "state" => {
                self.asked.state = value.to_owned();
                self.filter.state = State::from_word(value);
                if self.filter.state.is_none() {
                    self.wrongs.push(format!("{value} is no state of a timer."));
                }
                self.keep("state", value);
            }
            "schedule" => {
                self.asked.schedule = value.to_owned();
                match is_schedule_id(value) {
                    true => self.filter.schedule = Some(value.to_owned()),
                    false => self.wrongs.push(format!("{value} is no id of a schedule.")),
                }
                self.keep("schedule", value);
            }
            // One field of the form takes both: no URL is a name.
            "receiver" | "destination" if is_name(value) => {
                self.asked.receiver = value.to_owned();
                self.filter.destination = Some(value.to_owned());
                self.keep("destination", value);
            }
            "destination" => self.wrongs.push(format!("{value} is no name of a destination.")),
            "receiver" => {
                self.asked.receiver = value.to_owned();
                match Webhook::new(value, None, BTreeMap::new()) {
                    Ok(hook) => self.filter.lanes = Some(hook.lanes(salt.namespace)),
                    Err(_) => self.wrongs.push(format!(
                        "{value} is no receiver: give scheme, host and port, such as https://shop.example, or the name of a \
                         destination."
                    )),
                }
                self.keep("receiver", value);
            }
            "queue" => {
                self.asked.queue = value.to_owned();
                match is_name(value) {
                    true => self.filter.queue = Some(value.to_owned()),
                    false => self.wrongs.push(format!("{value} is no name of a queue.")),
                }
                self.keep("queue", value);
            }
            "to" => {
                self.asked.to = value.to_owned();
                match To::try_from(value.to_owned()) {
                    Ok(to) => self.filter.to = Some(to),
                    Err(why) => self.wrongs.push(format!("{value} does not say for whom: give {why}.")),
                }
                self.keep("to", value);
            }
            "worker" => {
                self.asked.worker = value.to_owned();
                match TimerId::parse(value) {
                    Ok(_) => self.filter.worker = Some(value.to_owned()),
                    Err(_) => self.wrongs.push(format!("{value} is no name of a worker.")),
                }
                self.keep("worker", value);
            }
            "due_after" | "due_before" => self.due(name, value, zone),
            "cursor" => match value.parse() {
                Ok(cursor) => {
                    self.cursor = Some(cursor);
                    self.cursor_text = value.to_owned();
                }
                Err(_) => self.wrongs.push("This page of the list is not there any more.".to_owned()),
            },
            "label" => match value.split_once('=') {
                Some((name, value)) => self.label(name.trim(), value.trim()),
                None => {
                    self.asked.label = value.to_owned();
                    self.wrongs.push("Give a label as name=value.".to_owned());
                }
            },
            label if label.starts_with("label.") => self.label(&label["label.".len()..], value),
            other => self.wrongs.push(format!("There is no filter {other}.")),
        }
    }

    fn id(&mut self, id: &str, salt: &Salt) {
        if self.filter.uids.len() == MAX_IDS {
            self.wrongs.push(format!("At most {MAX_IDS} ids can be searched for at once."));
            return;
        }
        if !self.asked.id.is_empty() {
            self.asked.id.push(' ');
        }
        self.asked.id.push_str(id);
        match TimerId::parse(id) {
            Ok(parsed) => self.filter.uids.push(parsed.uid(salt)),
            Err(why) => self.wrongs.push(format!("{id} is no id of a timer: {why}.")),
        }
        self.keep("id", id);
    }

    fn label(&mut self, name: &str, value: &str) {
        let separator = if self.asked.label.is_empty() { "" } else { " " };
        self.asked.label.push_str(&format!("{separator}{name}={value}"));
        match is_label_name(name) {
            true => self.filter.labels.push((name.to_owned(), value.replace('\0', "\u{fffd}"))),
            false => self.wrongs.push(format!("{name} is no name of a label.")),
        }
        self.keep(&format!("label.{name}"), value);
    }

    fn due(&mut self, name: &str, value: &str, zone: Zone) {
        let read = zone.read(value);
        let (shown, kept) = match &read {
            Ok(at) => (zone.input(*at), at.rfc3339()),
            Err(_) => (String::new(), value.to_owned()),
        };
        if read.is_err() {
            self.wrongs.push(format!("{value} is no time: write it as 2026-12-01T09:00."));
        }
        let (field, filter) = match name {
            "due_after" => (&mut self.asked.due_after, &mut self.filter.due_after),
            _ => (&mut self.asked.due_before, &mut self.filter.due_before),
        };
        *field = shown;
        *filter = read.ok();
        self.keep(name, &kept);
    }

    fn keep(&mut self, name: &str, value: &str) {
        self.fields.push((name.to_owned(), value.to_owned()));
    }

    /// The address of this search in the fields of the API, if the query has others. A search with something wrong
    /// stays as it is, to be mended.
    pub fn canonical(&self, query: &str) -> Option<String> {
        let mut wanted = self.fields.clone();
        if !self.cursor_text.is_empty() {
            wanted.push(("cursor".to_owned(), self.cursor_text.clone()));
        }
        let given: Vec<(String, String)> =
            url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        (self.wrongs.is_empty() && given != wanted).then(|| address(&wanted))
    }

    /// The first page.
    pub fn first(&self) -> String {
        address(&self.fields)
    }

    /// The page that begins after this cursor.
    pub fn page(&self, cursor: &str) -> String {
        let mut fields = self.fields.clone();
        fields.push(("cursor".to_owned(), cursor.to_owned()));
        address(&fields)
    }

    /// The filter as the API takes it.
    pub fn json(&self) -> String {
        let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::Map::new();
        let mut ids = Vec::new();
        for (name, value) in &self.fields {
            match name.as_str() {
                "id" => ids.push(serde_json::json!(value)),
                _ => drop(fields.insert(name.clone(), serde_json::json!(value))),
            }
        }
        if !ids.is_empty() {
            fields.insert("id".to_owned(), serde_json::Value::Array(ids));
        }
        serde_json::Value::Object(fields).to_string()
    }

    /// What is searched for, in words.
    pub fn title(&self) -> String {
        let Asked {
            id,
            owner,
            label,
            state,
            schedule,
            receiver,
            queue,
            to,
            worker,
            due_after,
            due_before,
            any,
        } = &self.asked;
        if !any {
            return "Timers".to_owned();
        }
        let parts = [
            (state.as_str(), ""),
            (id.as_str(), ""),
            (owner.as_str(), "of "),
            (label.as_str(), "with "),
            (schedule.as_str(), "made by "),
            (receiver.as_str(), "for "),
            (queue.as_str(), "in queue "),
            (to.as_str(), "for "),
            (worker.as_str(), "with worker "),
            (due_after.as_str(), "due from "),
            (due_before.as_str(), if due_after.is_empty() { "due before " } else { "until " }),
        ];
        let said: Vec<String> = parts
            .into_iter()
            .filter(|(value, _)| !value.is_empty())
            .map(|(value, before)| {
                format!(
                    "{before}{}",
                    value.replacen('T', " ", usize::from(before.starts_with("due") || before == "until "))
                )
            })
            .collect();
        format!("Timers: {}", said.join(" "))
    }
}

fn address(fields: &[(String, String)]) -> String {
    let fields: Vec<(&str, &str)> =
        fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    list_of(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::UnixMs;

    fn search(query: &str) -> Search {
        Search::read(query, Zone::parse("Asia/Shanghai").unwrap(), &Salt::own("default"))
    }

    #[test]
    fn what_a_form_sends_becomes_the_address_of_the_same_search() {
        let form = "id=a%2C+b&owner=&label=app%3Dshop&state=&receiver=https%3A%2F%2Fshop.example\
                    &due_after=2026-12-01T09%3A00&due_before=";
        let canonical = search(form).canonical(form).unwrap();
        assert_eq!(
            canonical,
            "/timers?id=a&id=b&label.app=shop&receiver=https%3A%2F%2Fshop.example\
             &due_after=2026-12-01T01%3A00%3A00.000Z"
        );
        let query = canonical.split_once('?').unwrap().1;
        let again = search(query);
        assert_eq!(again.canonical(query), None, "it is one already");
        assert_eq!(again.filter.uids.len(), 2);
        assert_eq!(again.filter.labels, [("app".into(), "shop".into())]);
        assert_eq!(again.filter.due_after.map(UnixMs::rfc3339).as_deref(), Some("2026-12-01T01:00:00.000Z"));
        assert!(again.filter.lanes.is_some());
        assert_eq!(
            again.json(),
            r#"{"due_after":"2026-12-01T01:00:00.000Z","id":["a","b"],"label.app":"shop","receiver":"https://shop.example"}"#
        );
        assert_eq!(again.asked.due_after, "2026-12-01T09:00:00");
        assert_eq!(
            again.title(),
            "Timers: a b with app=shop for https://shop.example due from 2026-12-01 09:00:00"
        );
        // Links of the page are not encoded in the same way.
        assert_eq!(
            search("due_after=2026-12-01T01:00:00.000Z").canonical("due_after=2026-12-01T01:00:00.000Z"),
            None
        );
    }

    #[test]
    fn one_field_takes_receivers_and_destinations() {
        let found = search("receiver=shop-orders");
        assert_eq!(
            found.canonical("receiver=shop-orders").as_deref(),
            Some("/timers?destination=shop-orders")
        );
        assert_eq!(found.filter.destination.as_deref(), Some("shop-orders"));
        assert_eq!(found.asked.receiver, "shop-orders");
        let direct = search("destination=shop-orders");
        assert_eq!((direct.canonical("destination=shop-orders"), direct.asked), (None, found.asked));
    }

    #[test]
    fn the_timers_of_a_schedule_are_an_address() {
        let found = search("schedule=daily");
        assert_eq!(found.canonical("schedule=daily"), None);
        assert_eq!(
            (found.filter.schedule.as_deref(), found.title().as_str()),
            (Some("daily"), "Timers: made by daily")
        );
        assert!(found.asked.more());
    }

    #[test]
    fn nothing_asked_for_is_every_timer() {
        let empty = "id=&owner=&label=&state=&receiver=&due_after=&due_before=";
        let search = search(empty);
        assert_eq!(search.canonical(empty).as_deref(), Some("/timers"));
        assert!(!search.asked.any && search.wrongs.is_empty());
        assert_eq!(search.title(), "Timers");
    }

    #[test]
    fn what_is_wrong_is_said_and_stays_to_be_mended() {
        for query in [
            "id=a/b",
            "state=lost",
            "receiver=shop/x",
            "destination=a b",
            "schedule=a b",
            "due_after=tomorrow",
            "label=app",
            "label=a%22b=1",
            "label.a%5C=1",
            "cursor=1",
            "kind=x",
        ] {
            let search = search(query);
            assert_eq!(search.wrongs.len(), 1, "{query}");
            assert_eq!(search.canonical(query), None, "{query}");
        }
        let many = (0..=MAX_IDS).map(|n| format!("id={n}")).collect::<Vec<_>>().join("&");
        assert_eq!(search(&many).wrongs.len(), 1);
    }

    #[test]
    fn a_page_goes_on_where_the_last_one_ended() {
        let cursor = "5.00000000000000000000000000000001.1";
        let query = format!("state=dead&cursor={cursor}");
        let found = search(&query);
        assert_eq!(found.cursor.map(|cursor| cursor.due_at), Some(5));
        assert_eq!(found.canonical(&query), None);
        assert_eq!(
            (found.first().as_str(), found.page(cursor)),
            ("/timers?state=dead", format!("/timers?{query}"))
        );
    }
}
