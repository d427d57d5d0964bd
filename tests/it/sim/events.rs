//! Lifecycle events of a run: somebody subscribes to all that happens to timers, and at the end they must tell what the
//! store says has become of each timer: as they were written, or, in runs whose nodes send them, as they were taken.

use std::collections::HashMap;

use mainspring::cold::{ColdStore, DestinationEdit, Identity, LeftOut, Subscribed, TimerRow};
use mainspring::model::id::Uid;
use mainspring::model::subscription::{Asked, Lifecycle};

use super::receiver::Behaviour;
use super::world::World;

/// Events that are read at once.
const AT_ONCE: usize = 10_000;

/// An event, as it was written or taken.
#[derive(Debug, Clone)]
pub struct Event {
    pub kind: Lifecycle,
    pub body: Vec<u8>,
}

/// One arrival of a lifecycle event.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// The event's number.
    pub id: String,
    pub event: Event,
    pub at: i64,
    pub process: usize,
    pub epoch: i64,
    pub how: Behaviour,
    /// The node knows how it came out.
    pub known: bool,
}

/// Events by their timer's id, in order.
pub type Events = HashMap<String, Vec<Event>>;

/// Subscribes to everything of timers and schedules, before any process starts; returns the subscription's number.
pub async fn subscribe(store: &ColdStore) -> i64 {
    let edit = DestinationEdit {
        name: "log".into(),
        kind: "webhook".into(),
        settings: r#"{"webhook":{"url":"http://127.0.0.1:9/"},"concurrency":2}"#.into(),
        secrets: None,
        if_version: None,
    };
    store.put_destination(&edit).await.expect("writes");
    // Not of destinations: what is told of those is written beside the run's own order.
    let of_timers = Lifecycle::asked_for()
        .map(Lifecycle::word)
        .filter(|word| !word.starts_with("destination.") && !word.starts_with("queue."));
    let asked = Asked { events: of_timers.map(str::to_owned).collect(), ..Asked::default() };
    let settings = serde_json::to_string(&asked).expect("JSON");
    let Subscribed::Done(row, ..) = store.put_subscription("log", "log", &settings).await.expect("writes")
    else {
        panic!("it is made")
    };
    let me = Identity { name: "run".into(), incarnation: "run".into(), address: "127.0.0.1:1".into() };
    store.take_subscriptions(&me).await.expect("takes");
    row.id
}

/// What was written and waits.
pub async fn written(store: &ColdStore, subscription: i64) -> Events {
    let shards: Vec<i32> = store.shards().collect();
    let rows =
        store.outbox(subscription, &shards, &LeftOut::default(), AT_ONCE, AT_ONCE).await.expect("reads");
    let mut events = Events::new();
    for row in rows {
        let kind = Lifecycle::from_code(row.kind).expect("a kind");
        events.entry(row.subject).or_default().push(Event { kind, body: row.body });
    }
    events
}

/// Compares what was told with what the store says of these timers.
pub fn audit(mut of: Events, rows: &HashMap<Uid, TimerRow>, world: &World) {
    let mut rows: Vec<&TimerRow> = rows.values().collect();
    rows.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    for row in rows {
        let mut told = of.remove(row.id.as_str()).unwrap_or_default();
        let all = told.len();
        told.retain(|event| event.kind != Lifecycle::ScheduleSkipped);
        let is_skipped = row.skipped().is_some_and(|why| why.word().is_some());
        if all - told.len() != usize::from(is_skipped) {
            world.wrong(format!("{}: {} times told that it was skipped; {row:?}", row.id, all - told.len()));
        }
        if let Err(why) = tells(&told, row) {
            let kinds: Vec<_> = told.iter().map(|event| event.kind).collect();
            world.wrong(format!("{}: its events {kinds:?} {why}; {row:?}", row.id));
        }
    }
}

/// Registered, changed or not, ended; and that again for each further registration. The last tells its end as it is.
fn tells(told: &[Event], row: &TimerRow) -> Result<(), &'static str> {
    let mut is_live = false;
    for event in told {
        match (event.kind, is_live) {
            (Lifecycle::TimerRegistered, false) => is_live = true,
            (Lifecycle::TimerChanged, true) => {}
            (
                Lifecycle::TimerDelivered
                | Lifecycle::TimerCancelled
                | Lifecycle::TimerExpired
                | Lifecycle::TimerDead,
                true,
            ) => is_live = false,
            _ => return Err("come in an order that cannot be"),
        }
    }
    let Some(last) = told.last() else { return Err("are missing") };
    if Some(last.kind) != Lifecycle::of_end(row.life.state) {
        return Err("do not end as it did");
    }
    let body: serde_json::Value = serde_json::from_slice(&last.body).expect("JSON");
    if body["generation"] != row.life.generation.0 {
        return Err("end as another generation");
    }
    let registered = told.iter().rposition(|event| event.kind == Lifecycle::TimerRegistered).unwrap_or(0);
    // A change of the due time makes the next generation; a pause or a resume leaves it as it is.
    let as_of = |event: &Event| {
        let body: serde_json::Value = serde_json::from_slice(&event.body).expect("JSON");
        (body["generation"].as_i64().unwrap_or(0), body["state"] == "paused")
    };
    let mut before = as_of(&told[registered]);
    for event in told[registered..].iter().filter(|event| event.kind == Lifecycle::TimerChanged) {
        let now = as_of(event);
        let is_turned = now.0 == before.0 && now.1 != before.1;
        if !is_turned && now.0 != before.0 + 1 {
            return Err("lack a change, or have one too many");
        }
        before = now;
    }
    match before.0 == i64::from(row.life.generation.0) {
        true => Ok(()),
        false => Err("lack a change"),
    }
}
