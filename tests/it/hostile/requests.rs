//! Bodies of requests: read, or refused with the field, a word for programs and words for people.

use std::sync::Arc;

use mainspring::api::request::{self, Context, Naming, Refused};
use mainspring::config::Config;
use mainspring::model::namespace::{Quotas, Salt};
use mainspring::model::time::{LAST, Span, UnixMs};
use mainspring::model::timer::MAX_DATA;
use mainspring::sink::guard::Guard;
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::mutated;

/// The longest text of an error.
const LONGEST: usize = 2000;

fn now() -> UnixMs {
    UnixMs::parse_rfc3339("2026-11-27T12:00:00Z").expect("a time")
}

fn guard() -> Guard {
    Guard::new(Arc::new(Config::load(None, [], &[]).expect("the defaults")))
}

/// Who is refused is told what and where.
fn told<T>(answer: Result<T, Refused>) -> Result<Option<T>, TestCaseError> {
    match answer {
        Ok(read) => Ok(Some(read)),
        Err(Refused::NotJson(why)) => {
            prop_assert!(!why.is_empty() && why.len() < LONGEST);
            Ok(None)
        }
        Err(Refused::Fields(errors)) => {
            prop_assert!(!errors.is_empty());
            for error in errors {
                prop_assert!(
                    error.pointer.is_empty() || error.pointer.starts_with('/'),
                    "{:?}",
                    error.pointer
                );
                prop_assert!(
                    error.code.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                    "{}",
                    error.code
                );
                prop_assert!(!error.detail.is_empty() && error.detail.len() < LONGEST, "{}", error.detail);
            }
            Ok(None)
        }
    }
}

fn timers() -> Vec<Value> {
    let webhook = json!({"webhook": {"url": "http://127.0.0.1:9/x", "secret": "whsec_c2VjcmV0c2VjcmV0", "headers": {"x-shop": "a"}}});
    vec![
        json!({"id": "order-1", "fire_at": "2026-12-01T09:00:00.5+01:00", "target": webhook, "data": {"n": [1, 2.5, null]},
            "owner": "user-1", "labels": {"app": "shop"}, "priority": "high", "precision": "minute",
            "late": {"grace": "PT5M", "then": "expire"}, "retry": {"attempts": 3, "first": "PT1S", "cap": "PT1M"}}),
        json!({"delay": "PT30M", "target": {"queue": "tasks"},
            "dispatch": {"to": "group:day", "times": 3, "repeat": false}, "template": "task"}),
        json!({"local": "2026-12-24T18:00:00", "zone": "Europe/Berlin", "spread": "PT5M",
            "target": {"destination": "bus"}, "merge": {"window": "PT10S"}, "owner": "room-7"}),
    ]
}

fn schedules() -> Vec<Value> {
    let target = json!({"webhook": {"url": "http://127.0.0.1:9/x"}});
    vec![
        json!({"cron": "0 9 * * 1-5", "zone": "Europe/Berlin", "target": target, "overlap": "skip",
            "missed": {"policy": "fire_once", "within": "PT1H"}, "max_occurrences": 10}),
        json!({"every": "PT15M", "start_at": "2026-12-01T00:00:00Z", "end_at": "2027-12-01T00:00:00Z", "target": {"queue": "q"},
            "dispatch": {"times": 2}}),
        json!({"daily": {"at": "09:00", "every_days": 2}, "zone": "Australia/Lord_Howe", "target": target}),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_timer_is_read_within_its_bounds_or_refused(text in mutated(timers())) {
        let (salt, guard) = (Salt::own("default"), guard());
        let context = Context {
            now: now(), salt: &salt, quotas: Quotas::default(), guard: guard.clone(), fresh: Uuid::from_u128(7), trace: None,
        };
        if let Some(timer) = told(request::timer(&text, Naming::Body, false, &context))? {
            prop_assert!(timer.due_at <= LAST);
            prop_assert!(timer.data.as_ref().is_none_or(|data| data.len() <= MAX_DATA));
            // The order and the spacing of the fields make no other request.
            let value: Value = serde_json::from_slice(&text).expect("JSON, as it was read");
            let spaced = serde_json::to_vec_pretty(&value).expect("JSON");
            let again = request::timer(&spaced, Naming::Body, false, &context);
            prop_assert_eq!(told(again)?.map(|timer| timer.request_hash), Some(timer.request_hash));
        }
    }

    #[test]
    fn a_schedule_is_read_or_refused_and_a_change_of_it_too(text in mutated(schedules()), patch in mutated(schedules())) {
        let (salt, guard) = (Salt::own("default"), guard());
        let context = Context {
            now: now(), salt: &salt, quotas: Quotas::default(), guard: guard.clone(), fresh: Uuid::from_u128(7), trace: None,
        };
        told(request::schedule("daily", &text, &context))?;
        if let Some(whole) = told(request::patched(&schedules()[0].to_string(), &patch))? {
            told(request::schedule("daily", whole.as_bytes(), &context))?;
        }
    }
}

type Reader = fn(&[u8]) -> Result<(), Refused>;

/// Everything else that is sent, each with what reads it.
fn others() -> Vec<(Value, Reader)> {
    let destination: Reader = |text| request::destination(text, &guard()).map(drop);
    vec![
        (
            json!({"webhook": {"url": "http://127.0.0.1:9/", "secret": "whsec_c2VjcmV0c2VjcmV0"}, "concurrency": 3,
                "rate_per_second": 5, "retry": {"attempts": 3}, "timeout": "PT5S"}),
            destination,
        ),
        (
            json!({"amqp": {"url": "amqp://user:pass@127.0.0.1:5672/", "exchange": "e", "routing_key": "k"}}),
            destination,
        ),
        (json!({"mqtt": {"url": "mqtt://127.0.0.1:1883", "topic": "a/b", "qos": 1}}), destination),
        (json!({"nats": {"url": "nats://127.0.0.1:4222", "subject": "a.b"}}), destination),
        (json!({"redis_stream": {"url": "redis://127.0.0.1:6379", "stream": "s"}}), destination),
        (
            json!({"name": "k", "namespace": "*", "scopes": ["view", "admin"], "expires_at": "2027-01-01T00:00:00Z"}),
            |text| request::key(text, now()).map(drop),
        ),
        (
            json!({"quotas": {"requests_per_second": 5, "live_timers": 7, "payload_bytes": 9, "horizon": "P30D",
                "due_per_second": 3}, "networks": {"allow": ["public", "10.0.0.0/8"], "deny": ["fd00::1"]}}),
            |text| request::namespace(text).map(drop),
        ),
        (json!({"lease": "PT1M", "retry": {"attempts": 5}, "paused": true}), |text| {
            request::queue(text).map(drop)
        }),
        (
            json!({"worker": "w", "groups": ["a"], "max": 5, "wait": "PT10S", "lease": "PT1M", "exclude": ["x"],
                "redo": true}),
            |text| request::lease(text, &Salt::own("default")).map(drop),
        ),
        (
            json!({"settlements": [{"lease_token": "t", "result": {"ok": 1}, "action": "ack"},
                {"lease_token": "u", "action": "retry", "delay": "PT5S"}]}),
            |text| request::settle(text, Span::parse("PT1M").expect("a span")).map(drop),
        ),
        (
            json!({"events": ["timer.delivered", "timer.dead"], "destination": "bus", "include_data": true,
                "filter": {"owner": "a", "receiver": "http://127.0.0.1:9", "label.app": "shop"}}),
            |text| request::subscription(text).map(drop),
        ),
        (
            json!({"schema": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"pattern": "^a+$"}},
                "$defs": {"a": {"type": "array"}}}, "defaults": {"n": 1}}),
            |text| request::template(text).map(drop),
        ),
    ]
}

/// Or the changes of a document would only ever be refused for what was wrong before.
#[test]
fn the_documents_are_right_in_themselves() {
    let (salt, guard) = (Salt::own("default"), guard());
    let context = Context {
        now: now(),
        salt: &salt,
        quotas: Quotas::default(),
        guard: guard.clone(),
        fresh: Uuid::from_u128(7),
        trace: None,
    };
    for timer in timers() {
        let read = request::timer(timer.to_string().as_bytes(), Naming::Body, false, &context);
        assert!(read.is_ok(), "{timer}: {:?}", read.err());
    }
    for schedule in schedules() {
        let read = request::schedule("daily", schedule.to_string().as_bytes(), &context);
        assert!(read.is_ok(), "{schedule}: {:?}", read.err());
    }
    for (document, read) in others() {
        let read = read(document.to_string().as_bytes());
        assert!(read.is_ok(), "{document}: {:?}", read.err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8000))]

    #[test]
    fn what_else_is_sent_is_read_or_refused(
        (text, read) in (0..others().len()).prop_flat_map(|nth| {
            let (document, read) = others().swap_remove(nth);
            (mutated(vec![document]), Just(read))
        }),
    ) {
        told(read(&text))?;
    }
}
