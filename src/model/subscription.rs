//! Subscriptions: which lifecycle events go to which destination, and what an event says.
//!
//! Everything here is pure: whether a subscription wants an event, and the body that is sent for it. Which events there
//! are, and their words, is fixed by the public contract.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::destination::{is_name, lane};
use super::id::{Generation, TimerId, Uid, delivery_id, digest16};
use super::namespace::Namespace;
use super::queue::Place;
use super::schedule::{Skipped, is_schedule_id};
use super::target::Webhook;
use super::time::UnixMs;
use super::timer::{AttemptResult, State};

/// The most ids that one filter may name.
pub const MAX_FILTER_IDS: usize = 100;

/// The most labels that one filter may name.
pub const MAX_FILTER_LABELS: usize = 16;

macro_rules! lifecycle {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $word:literal;)*) => {
        /// A kind of lifecycle event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Lifecycle {
            $($(#[$doc])* $name,)*
        }

        impl Lifecycle {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its number in SQL.
            pub const fn code(self) -> i16 {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// Its word in a subscription.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            /// Its `ce-type`.
            pub const fn ce_type(self) -> &'static str {
                match self {
                    $(Self::$name => concat!("mainspring.", $word, ".v1"),)*
                }
            }
        }
    };
}

lifecycle! {
    /// A timer was registered.
    TimerRegistered = 0, "timer.registered";
    /// Its caller changed it.
    TimerChanged = 1, "timer.changed";
    /// It was cancelled.
    TimerCancelled = 2, "timer.cancelled";
    /// A receiver accepted it.
    TimerDelivered = 3, "timer.delivered";
    /// It was found too late.
    TimerExpired = 4, "timer.expired";
    /// It is out of attempts.
    TimerDead = 5, "timer.dead";
    /// A worker got it.
    QueueLeased = 6, "queue.leased";
    /// A worker settled it.
    QueueSettled = 7, "queue.settled";
    /// A worker did not settle it in time.
    QueueLeaseLost = 8, "queue.lease_lost";
    /// A nominal time did not fire, or a range of them.
    ScheduleSkipped = 9, "schedule.skipped";
    /// The last attempts at a destination failed.
    DestinationFailing = 10, "destination.failing";
    /// A destination that was failing took a delivery.
    DestinationRecovered = 11, "destination.recovered";
    /// Events of a subscription were dropped, because too many waited. It goes to that subscription, whatever it asks for.
    SubscriptionDropped = 12, "subscription.dropped";
}

impl Lifecycle {
    /// The kind with this word, of those that may be asked for.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::asked_for().find(|kind| kind.word() == word)
    }

    /// The kind with this number in SQL.
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.code() == code)
    }

    /// The kinds that a subscription may ask for.
    pub fn asked_for() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|kind| *kind != Self::SubscriptionDropped)
    }

    /// The end of a timer; `None` for a state that is none.
    pub const fn of_end(state: State) -> Option<Self> {
        Some(match state {
            State::Delivered => Self::TimerDelivered,
            State::Cancelled => Self::TimerCancelled,
            State::Expired => Self::TimerExpired,
            State::Dead => Self::TimerDead,
            State::Scheduled | State::Delivering | State::Retrying | State::Paused => return None,
        })
    }

    const fn bit(self) -> u32 {
        1 << self.code()
    }
}

/// What a subscription asks for, as it is stored and shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The words of kinds; `*` is all.
    #[serde(default)]
    pub events: Vec<String>,
    /// The filter as it was given; `None` matches everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Map<String, Value>>,
    /// Whether the payload goes with the event.
    #[serde(default)]
    pub include_data: bool,
    /// What a later version has written and this one does not know.
    #[serde(flatten)]
    pub of_later: Map<String, Value>,
}

/// A field of a filter that is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadField {
    /// Its name.
    pub name: String,
    /// A stable word.
    pub code: &'static str,
    /// What would be right.
    pub detail: String,
}

/// Which timers a subscription is about: those that match every field given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    ids: Vec<String>,
    owner: Option<String>,
    destination: Option<String>,
    /// The lanes of a receiver.
    lanes: Option<[i64; 2]>,
    state: Option<State>,
    labels: Vec<(String, String)>,
    due_after: Option<UnixMs>,
    due_before: Option<UnixMs>,
    /// The name of a queue.
    queue: Option<String>,
    /// Made by this schedule.
    schedule: Option<String>,
}

impl Filter {
    /// Reads a filter of a namespace; all that is wrong with it is told at once.
    pub fn read(fields: &Map<String, Value>, namespace: Namespace) -> Result<Self, Vec<BadField>> {
        let (mut filter, mut errors) = (Self::default(), Vec::new());
        for (name, value) in fields {
            if let Err((code, detail)) = filter.read_one(name, value, namespace) {
                errors.push(BadField { name: name.clone(), code, detail });
            }
        }
        if errors.is_empty() { Ok(filter) } else { Err(errors) }
    }

    fn read_one(
        &mut self,
        name: &str,
        value: &Value,
        namespace: Namespace,
    ) -> Result<(), (&'static str, String)> {
        let text = || match value {
            Value::String(text) if text.is_empty() => {
                Err(("empty", "an empty text matches nothing; leave the field out".to_owned()))
            }
            Value::String(text) if text.contains('\0') => Err(("bad_text", "no NUL characters".to_owned())),
            Value::String(text) => Ok(text.clone()),
            _ => Err(("wrong_type", "give a text".to_owned())),
        };
        let moment = || UnixMs::parse_rfc3339(&text()?).map_err(|why| ("bad_time", why.to_string()));
        match name {
            "id" => self.ids = ids(value)?,
            "owner" => self.owner = Some(text()?),
            "state" => {
                let words = State::ALL.map(State::word).join(", ");
                self.state = Some(State::from_word(&text()?).ok_or(("unknown_state", words))?);
            }
            "destination" => {
                let bad = ("bad_name", "1 to 64 of A-Z a-z 0-9 . _ -, not a dot first".to_owned());
                self.destination = Some(Some(text()?).filter(|name| is_name(name)).ok_or(bad)?);
            }
            "receiver" => {
                let hook = Webhook::new(&text()?, None, BTreeMap::new());
                let bad = |why| ("bad_receiver", format!("{why}; give scheme, host and port"));
                self.lanes = Some(hook.map_err(bad)?.lanes(namespace));
            }
            "due_after" => self.due_after = Some(moment()?),
            "due_before" => self.due_before = Some(moment()?),
            "queue" => {
                let bad = ("bad_name", "1 to 64 of A-Z a-z 0-9 . _ -, not a dot first".to_owned());
                let name = Some(text()?).filter(|name| is_name(name)).ok_or(bad)?;
                self.queue = Some(name);
            }
            "schedule" => {
                let bad = ("bad_id", "1 to 100 characters of A-Z a-z 0-9 . _ : -".to_owned());
                self.schedule = Some(Some(text()?).filter(|id| is_schedule_id(id)).ok_or(bad)?);
            }
            _ => {
                let label = name.strip_prefix("label.").filter(|label| !label.is_empty());
                let unknown = || {
                    let detail = "no such filter; there are id, state, owner, receiver, destination, queue, schedule, \
                                  label.NAME, due_after and due_before";
                    ("unknown_field", detail.to_owned())
                };
                let label = label.ok_or_else(unknown)?.to_owned();
                if self.labels.len() == MAX_FILTER_LABELS {
                    return Err(("range", format!("at most {MAX_FILTER_LABELS} labels")));
                }
                match value {
                    // A label may have an empty value.
                    Value::String(value) => self.labels.push((label, value.clone())),
                    _ => return Err(("wrong_type", "give a text".to_owned())),
                }
            }
        }
        Ok(())
    }

    fn matches(&self, subject: &Subject<'_>) -> bool {
        let due_at = subject.due_at;
        (self.ids.is_empty() || self.ids.iter().any(|id| id == subject.id))
            && self.owner.as_deref().is_none_or(|owner| owner == subject.owner())
            && self.state.is_none_or(|state| state == subject.state)
            && self.schedule.as_deref().is_none_or(|id| subject.schedule == Some(id))
            && self.destination.as_deref().is_none_or(|name| {
                subject.is_for_destination && subject.lane == lane(subject.namespace, name)
            })
            && self
                .queue
                .as_deref()
                .is_none_or(|name| subject.lane == super::queue::lane(subject.namespace, name))
            && self.lanes.is_none_or(|lanes| !subject.is_for_destination && lanes.contains(&subject.lane))
            && self.due_after.is_none_or(|at| due_at >= at)
            && self.due_before.is_none_or(|at| due_at < at)
            && self.matches_labels(subject.labels)
    }

    fn matches_labels(&self, labels: Option<&str>) -> bool {
        if self.labels.is_empty() {
            return true;
        }
        let has: BTreeMap<String, String> =
            labels.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        self.labels.iter().all(|(name, value)| has.get(name) == Some(value))
    }

    /// Whether it is about this schedule itself: nominal times that became no timer.
    fn matches_schedule(&self, of: &ScheduleSubject<'_>) -> bool {
        let others = Self {
            destination: None,
            lanes: None,
            owner: None,
            schedule: None,
            labels: Vec::new(),
            ..self.clone()
        };
        others == Self::default()
            && self.schedule.as_deref().is_none_or(|id| id == of.id)
            && self.owner.as_deref().is_none_or(|owner| of.owner == Some(owner))
            && self
                .destination
                .as_deref()
                .is_none_or(|name| of.is_for_destination && of.lane == lane(of.namespace, name))
            && self.lanes.is_none_or(|lanes| !of.is_for_destination && lanes.contains(&of.lane))
            && self.matches_labels(of.labels)
    }

    /// Whether it is about this destination itself.
    fn matches_destination(&self, name: &str) -> bool {
        let others = Self { destination: None, ..self.clone() };
        others == Self::default() && self.destination.as_deref().is_none_or(|wanted| wanted == name)
    }
}

fn ids(value: &Value) -> Result<Vec<String>, (&'static str, String)> {
    let one = |value: &Value| match value {
        Value::String(text) => match TimerId::parse(text) {
            Ok(id) => Ok(id.as_str().to_owned()),
            Err(why) => Err(("bad_id", why.to_string())),
        },
        _ => Err(("wrong_type", "give an id, or a list of ids".to_owned())),
    };
    match value {
        Value::Array(items) if items.is_empty() => {
            Err(("empty", "an empty list matches nothing; leave the field out".to_owned()))
        }
        Value::Array(items) if items.len() > MAX_FILTER_IDS => {
            Err(("range", format!("at most {MAX_FILTER_IDS} ids")))
        }
        Value::Array(items) => items.iter().map(one).collect(),
        one_id => Ok(vec![one(one_id)?]),
    }
}

/// A subscription as a node writes events for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Its number, never given twice.
    pub id: i64,
    /// Its namespace: it is told of nothing else.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// Where its events go.
    pub destination: String,
    kinds: u32,
    filter: Filter,
    include_data: bool,
    is_whole: bool,
}

impl Subscription {
    /// A stored subscription; `asked` is `None` where it could not be read at all.
    ///
    /// A later version may ask for what this one does not know ([`Subscription::is_whole`]). Kinds that it knows are wanted
    /// all the same. With a filter or anything else that it does not know nothing is: its subscriber would be told what it
    /// must not be told.
    pub fn new(
        id: i64,
        namespace: Namespace,
        name: String,
        destination: String,
        asked: Option<&Asked>,
    ) -> Self {
        let none = Self {
            id,
            namespace,
            name,
            destination,
            kinds: 0,
            filter: Filter::default(),
            include_data: false,
            is_whole: false,
        };
        let Some(asked) = asked.filter(|asked| asked.of_later.is_empty()) else { return none };
        let read = |fields| Filter::read(fields, namespace);
        let Ok(filter) = asked.filter.as_ref().map(read).transpose() else { return none };
        let bit = |word: &String| match word.as_str() {
            "*" => Some(u32::MAX),
            word => Lifecycle::from_word(word).map(Lifecycle::bit),
        };
        Self {
            kinds: asked.events.iter().filter_map(bit).fold(0, |all, one| all | one),
            filter: filter.unwrap_or_default(),
            include_data: asked.include_data,
            is_whole: asked.events.iter().all(|word| bit(word).is_some()),
            ..none
        }
    }

    /// Whether this version knows everything that it asks for. If not, a node of this version does not write all of its
    /// events, and must not say that it does.
    pub const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether it asks for this kind at all.
    pub const fn asks_for(&self, kind: Lifecycle) -> bool {
        self.kinds & kind.bit() != 0
    }

    /// Whether its events have the payload.
    pub const fn includes_data(&self) -> bool {
        self.include_data
    }

    /// Whether it wants an event of a timer.
    pub fn wants(&self, kind: Lifecycle, subject: &Subject<'_>) -> bool {
        self.asks_for(kind) && self.filter.matches(subject)
    }

    /// Whether it wants an event of nominal times that became no timer.
    pub fn wants_schedule(&self, kind: Lifecycle, subject: &ScheduleSubject<'_>) -> bool {
        self.asks_for(kind) && self.filter.matches_schedule(subject)
    }

    /// Whether it wants an event of a destination.
    pub fn wants_destination(&self, kind: Lifecycle, name: &str) -> bool {
        self.asks_for(kind) && self.filter.matches_destination(name)
    }
}

/// A schedule as an event tells it, of nominal times that became no timer.
#[derive(Debug, Clone, Copy)]
pub struct ScheduleSubject<'a> {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its id.
    pub id: &'a str,
    /// The owner of its occurrences, if one was given.
    pub owner: Option<&'a str>,
    /// The lane of their target.
    pub lane: i64,
    /// Whether their target is a destination.
    pub is_for_destination: bool,
    /// Their labels, a JSON object.
    pub labels: Option<&'a str>,
}

impl ScheduleSubject<'_> {
    /// The body of the event that so many nominal times, from the first to the last of them, did not fire.
    pub fn body(&self, why: Skipped, (first, last, count): (UnixMs, UnixMs, i64), at: UnixMs) -> Value {
        let labels: Value = self
            .labels
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_else(|| Value::Object(Map::new()));
        serde_json::json!({
            "schedule": self.id, "owner": self.owner, "skipped": why.word(), "first": first.rfc3339(),
            "last": last.rfc3339(), "count": count, "labels": labels, "at": at.rfc3339(),
        })
    }
}

/// A timer as an event tells it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its primary key.
    pub uid: Uid,
    /// Its id.
    pub id: &'a str,
    /// The owner, if one was given.
    pub owner: Option<&'a str>,
    /// Its state after what happened.
    pub state: State,
    /// When it should fire.
    pub due_at: UnixMs,
    /// The generation.
    pub generation: Generation,
    /// Attempts of this generation so far.
    pub attempt: i32,
    /// The lane of its target.
    pub lane: i64,
    /// Whether its target is a destination.
    pub is_for_destination: bool,
    /// The queue that it is for.
    pub queue: Option<&'a str>,
    /// Its labels, a JSON object.
    pub labels: Option<&'a str>,
    /// Its payload, JSON.
    pub data: Option<&'a [u8]>,
    /// When it was registered.
    pub created_at: UnixMs,
    /// How the attempt that ended it came out.
    pub result: Option<AttemptResult>,
    /// The delivery id of the merged set that it is part of.
    pub set: Option<&'a str>,
    /// The schedule that made it.
    pub schedule: Option<&'a str>,
    /// The nominal time that it was made for.
    pub nominal: Option<UnixMs>,
    /// Why its schedule skipped it.
    pub skipped: Option<Skipped>,
}

/// The place of a timer for a queue that something happened to.
#[derive(Debug, Clone)]
pub struct PlaceTold<'a> {
    /// The place: who has it, or had it.
    pub place: &'a Place,
    /// The id of its delivery.
    pub delivery_id: String,
    /// What its worker did.
    pub action: Option<&'static str>,
    /// What its worker said: JSON.
    pub result: Option<&'a str>,
}

impl Subject<'_> {
    fn owner(&self) -> &str {
        self.owner.unwrap_or(self.id)
    }

    /// The body of an event, JSON.
    pub fn body(&self, told: Option<&PlaceTold<'_>>, at: UnixMs, include_data: bool) -> Vec<u8> {
        let own = || delivery_id(self.uid, self.created_at.get(), self.generation);
        let delivery = match told {
            Some(told) => Some(told.delivery_id.clone()),
            // Of a timer for a queue each place has a delivery of its own.
            None if self.queue.is_some() => None,
            None => (self.attempt > 0).then(|| self.set.map_or_else(own, str::to_owned)),
        };
        let attempt = told.map_or(self.attempt, |told| told.place.attempt);
        let raw = |bytes: &[u8]| serde_json::from_slice::<Box<RawValue>>(bytes).ok();
        let body = Body {
            timer: self.id,
            owner: self.owner(),
            state: self.state.word(),
            due_at: self.due_at.rfc3339(),
            generation: self.generation.0,
            attempt: (attempt > 0).then_some(attempt),
            delivery_id: delivery,
            worker: told.map(|told| told.place.worker.as_str()),
            action: told.and_then(|told| told.action),
            result: match told {
                Some(told) => told.result.and_then(|result| serde_json::from_str(result).ok()),
                None => self.result.map(|result| Value::from(result.word())),
            },
            queue: self.queue,
            schedule: self.schedule,
            nominal: self.nominal.map(UnixMs::rfc3339),
            skipped: self.skipped.and_then(Skipped::word),
            labels: self.labels.and_then(|text| raw(text.as_bytes())).or_else(|| raw(b"{}")),
            data: include_data.then(|| self.data.and_then(raw)),
            at: at.rfc3339(),
        };
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Body<'a> {
    timer: &'a str,
    owner: &'a str,
    state: &'static str,
    due_at: String,
    generation: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nominal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<&'static str>,
    labels: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Option<Box<RawValue>>>,
    at: String,
}

/// The number of an event: the same for all tries to send it, and of no other event. It depends on the moment, so that a
/// store which was restored does not give it again.
pub fn event_id(subscription: i64, kind: Lifecycle, of: &[&[u8]], at: UnixMs) -> uuid::Uuid {
    let (subscription, at) = (subscription.to_be_bytes(), at.get().to_be_bytes());
    let first: [&[u8]; 4] = [b"event", &subscription, kind.word().as_bytes(), &at];
    uuid::Uuid::from_bytes(digest16(&[&first[..], of].concat()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn subject<'a>() -> Subject<'a> {
        Subject {
            namespace: Namespace::OWN,
            uid: Uid(uuid::Uuid::from_u128(7)),
            id: "tea",
            owner: None,
            state: State::Delivered,
            due_at: UnixMs::new(1000),
            generation: Generation(2),
            attempt: 1,
            lane: lane(Namespace::OWN, "shop"),
            is_for_destination: true,
            queue: None,
            labels: Some(r#"{"app":"shop","n":""}"#),
            data: Some(br#"{"order": 1}"#),
            created_at: UnixMs::new(1),
            result: Some(AttemptResult::Ok),
            set: None,
            schedule: None,
            nominal: None,
            skipped: None,
        }
    }

    fn filter(fields: Value) -> Result<Filter, Vec<BadField>> {
        Filter::read(fields.as_object().expect("an object"), Namespace::OWN)
    }

    #[test]
    fn a_filter_matches_by_every_field_given() {
        for (fields, is_match) in [
            (json!({}), true),
            (json!({"id": "tea"}), true),
            (json!({"id": ["milk", "tea"]}), true),
            (json!({"id": ["milk"]}), false),
            (json!({"owner": "tea"}), true),
            (json!({"owner": "user:1"}), false),
            (json!({"state": "delivered"}), true),
            (json!({"state": "dead"}), false),
            (json!({"destination": "shop"}), true),
            (json!({"destination": "other"}), false),
            (json!({"receiver": "http://a:81"}), false),
            (json!({"label.app": "shop"}), true),
            (json!({"label.app": "shop", "label.n": ""}), true),
            (json!({"label.app": "shop", "label.m": ""}), false),
            (json!({"due_after": "1970-01-01T00:00:01Z"}), true),
            (json!({"due_before": "1970-01-01T00:00:01Z"}), false),
            (json!({"queue": "q"}), false),
            (json!({"schedule": "s"}), false),
        ] {
            assert_eq!(filter(fields.clone()).expect("reads").matches(&subject()), is_match, "{fields}");
        }
    }

    #[test]
    fn a_filter_that_is_not_valid_names_its_fields() {
        for (fields, name, code) in [
            (json!({"colour": "red"}), "colour", "unknown_field"),
            (json!({"label.": "x"}), "label.", "unknown_field"),
            (json!({"owner": ""}), "owner", "empty"),
            (json!({"owner": 7}), "owner", "wrong_type"),
            (json!({"queue": ""}), "queue", "empty"),
            (json!({"id": []}), "id", "empty"),
            (json!({"id": "a b"}), "id", "bad_id"),
            (json!({"id": [7]}), "id", "wrong_type"),
            (json!({"state": "asleep"}), "state", "unknown_state"),
            (json!({"destination": ".."}), "destination", "bad_name"),
            (json!({"receiver": "ftp://a"}), "receiver", "bad_receiver"),
            (json!({"due_after": "soon"}), "due_after", "bad_time"),
            (json!({"label.a": 1}), "label.a", "wrong_type"),
        ] {
            let found = filter(fields.clone()).expect_err("not valid");
            assert_eq!(found.len(), 1, "{fields}: {found:?}");
            assert_eq!((found[0].name.as_str(), found[0].code), (name, code), "{fields}");
        }
    }

    #[test]
    fn a_subscription_wants_the_kinds_it_asks_for() {
        let asked = |events: &[&str], filter: Option<Value>| Asked {
            events: events.iter().map(|word| (*word).to_owned()).collect(),
            filter: filter.and_then(|filter| filter.as_object().cloned()),
            ..Asked::default()
        };
        let new = |asked: &Asked| Subscription::new(1, Namespace::OWN, "s".into(), "d".into(), Some(asked));
        let all = new(&asked(&["*"], None));
        let some = new(&asked(&["timer.dead", "queue.leased"], None));
        assert!(all.is_whole() && some.is_whole());
        assert!(Lifecycle::asked_for().all(|kind| all.asks_for(kind)));
        assert!(some.asks_for(Lifecycle::TimerDead) && some.asks_for(Lifecycle::QueueLeased));
        assert!(!some.wants(Lifecycle::TimerDelivered, &subject()));
        // An event of a destination has no timer.
        let failing = Lifecycle::DestinationFailing;
        assert!(all.wants_destination(failing, "shop") && !some.wants_destination(failing, "shop"));
        let shop = new(&asked(&["*"], Some(json!({"destination": "shop"}))));
        assert!(shop.wants_destination(failing, "shop") && !shop.wants_destination(failing, "other"));
        let owner = new(&asked(&["*"], Some(json!({"owner": "tea"}))));
        assert!(!owner.wants_destination(failing, "shop"));
    }

    #[test]
    fn of_a_subscription_of_a_later_version_what_is_known_is_wanted_and_no_more() {
        for (settings, wanted) in [
            (r#"{"events":["timer.delivered","timer.eaten"]}"#, true),
            (r#"{"events":["timer.eaten"]}"#, false),
            // Sent to its subscriber without being asked for.
            (r#"{"events":["subscription.dropped"]}"#, false),
            (r#"{"events":["*"],"filter":{"colour":"red"}}"#, false),
            (r#"{"events":["*"],"filter":{"state":"asleep"}}"#, false),
            (r#"{"events":["*"],"include_data":true,"without":["labels"]}"#, false),
            (r#"{"kinds":["timer.delivered"]}"#, false),
            ("7", false),
        ] {
            let asked: Option<Asked> = serde_json::from_str(settings).ok();
            let one = Subscription::new(1, Namespace::OWN, "s".into(), "d".into(), asked.as_ref());
            assert!(!one.is_whole(), "{settings}");
            assert_eq!(one.wants(Lifecycle::TimerDelivered, &subject()), wanted, "{settings}");
        }
    }

    #[test]
    fn the_body_is_that_of_the_contract() {
        let read = |include| {
            serde_json::from_slice::<Value>(&subject().body(None, UnixMs::new(5), include)).unwrap()
        };
        let id = delivery_id(subject().uid, 1, Generation(2));
        let mut expected = json!({"timer": "tea", "owner": "tea", "state": "delivered", "generation": 2, "attempt": 1,
            "due_at": "1970-01-01T00:00:01.000Z", "delivery_id": id, "result": "ok",
            "labels": {"app": "shop", "n": ""}, "at": "1970-01-01T00:00:00.005Z"});
        assert_eq!(read(false), expected);
        expected["data"] = json!({"order": 1});
        assert_eq!(read(true), expected);
        let new = Subject { attempt: 0, labels: None, data: None, result: None, ..subject() };
        let body: Value = serde_json::from_slice(&new.body(None, UnixMs::new(5), true)).unwrap();
        assert_eq!((&body["labels"], &body["data"]), (&json!({}), &Value::Null));
        assert!(body.get("attempt").is_none() && body.get("delivery_id").is_none(), "{body}");
    }

    #[test]
    fn kinds_have_words_and_numbers_of_their_own() {
        for (n, kind) in Lifecycle::ALL.iter().enumerate() {
            assert_eq!(kind.code(), n as i16);
            assert_eq!(Lifecycle::from_code(kind.code()), Some(*kind));
            assert_eq!(kind.ce_type(), format!("mainspring.{}.v1", kind.word()));
        }
        assert_eq!(Lifecycle::from_word("timer.dead"), Some(Lifecycle::TimerDead));
        assert_eq!(Lifecycle::from_word("*"), None);
    }
}
