//! What a receiver gets, checked by other people's libraries: CloudEvents, Standard Webhooks.

use std::collections::HashMap;

use cloudevents::message::{
    BinaryDeserializer, BinarySerializer, MessageAttributeValue, Result as EventResult,
};
use cloudevents::{AttributesReader, Data, Event, event::SpecVersion};
use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, later, now, with};
use crate::support::{
    Node, NodeBuilder, Received, Receiver, Watch, eventually, in_state, on_both, to, wall_ms,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request in the binary mode of the HTTP binding: `ce-` headers and the body.
struct Binary<'a>(&'a Received);

impl BinaryDeserializer for Binary<'_> {
    fn deserialize_binary<R: Sized, V: BinarySerializer<R>>(self, mut visitor: V) -> EventResult<R> {
        let text = |name: &str| self.0.headers.get(name).and_then(|value| value.to_str().ok());
        let version = SpecVersion::try_from(text("ce-specversion").unwrap_or_default())?;
        let standard = version.attribute_names();
        visitor = visitor.set_spec_version(version)?;
        let names = self.0.headers.keys().filter_map(|name| name.as_str().strip_prefix("ce-"));
        for name in names.filter(|name| *name != "specversion") {
            let value = MessageAttributeValue::String(text(&format!("ce-{name}")).unwrap_or_default().into());
            visitor = if standard.contains(&name) {
                visitor.set_attribute(name, value)?
            } else {
                visitor.set_extension(name, value)?
            };
        }
        let kind = MessageAttributeValue::String(text("content-type").unwrap_or_default().into());
        visitor.set_attribute("datacontenttype", kind)?.end_with_data(self.0.body.to_vec())
    }
}

fn header<'a>(one: &'a Received, name: &str) -> Option<&'a str> {
    one.headers.get(name).map(|value| value.to_str().expect("ASCII"))
}

async fn a_delivery_is_a_cloud_event(builder: NodeBuilder) {
    let node = builder.env("MAINSPRING__NAMESPACE", "shop-1").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    assert_eq!(api.put("order-1:review", &later()).await.0, 201);
    let timer = json!({"delay": "PT0.2S", "target": to(receiver.url("/flaky/1")), "data": {"order": 8841},
        "retry": super::quick(3)});
    let (_, kept) = api.put("t.A_b:c-9", &timer).await;
    let all = receiver.wait_for(2, LONG).await;
    for (place, one) in all.iter().enumerate() {
        let event: Event = BinaryDeserializer::into_event(Binary(one)).expect("a CloudEvent");
        assert_eq!(event.specversion(), SpecVersion::V10);
        assert_eq!(event.ty(), "mainspring.timer.fired.v1");
        assert_eq!(event.source(), "/mainspring/shop-1");
        assert_eq!(event.id(), kept["delivery_id"]);
        assert_eq!(event.subject(), Some("t.A_b:c-9"));
        assert_eq!(event.datacontenttype(), Some("application/json"));
        let time = event.time().expect("a time").timestamp_millis();
        let due = one.due_at_ms.expect("a due time");
        assert!(due <= time && time <= one.at_ms + 1, "due {due}, attempt {time}, arrival {}", one.at_ms);
        let extensions: HashMap<_, _> =
            event.iter_extensions().map(|(name, value)| (name, value.to_string())).collect();
        let wanted = [
            ("dueat", kept["due_at"].as_str().expect("a time").to_owned()),
            ("attempt", (place + 1).to_string()),
            ("generation", "1".to_owned()),
        ];
        assert_eq!(extensions, wanted.iter().map(|(name, value)| (*name, value.clone())).collect());
        assert!(matches!(event.data(), Some(Data::Binary(body)) if body == br#"{"order":8841}"#));
        assert_eq!(header(one, "webhook-signature"), None, "no secret, no signature");
    }
}

/// The subject of a merged set is the owner, which may be any text.
async fn an_attribute_that_no_header_may_hold_is_percent_encoded(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = |id: &str| {
        json!({"id": id, "delay": "PT0.5S", "owner": "Zoë \"1\" 100%", "merge": {"window": "PT1S"},
            "target": to(receiver.url("/ok"))})
    };
    let (status, answer) = api.post("/v1/timers/batch", &json!({"timers": [timer("a"), timer("b")]})).await;
    assert_eq!(status, 200, "{answer}");
    let all = receiver.wait_for(1, LONG).await;
    let event: Event = BinaryDeserializer::into_event(Binary(&all[0])).expect("a CloudEvent");
    assert_eq!(event.ty(), "mainspring.timer.merged.v1");
    assert_eq!(event.subject(), Some("Zo%C3%AB%20%221%22%20100%25"));
}

/// All of this arrives as it was written, and is shown as it was written.
async fn the_body_is_the_data_byte_for_byte(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let written = [
        r#"{"b":1,"a":2}"#,
        "{ \"spaced\" :\t[ 1 ,\n 2 ] }",
        "12345678901234567890123",
        "1.50",
        "-0.0",
        "1e400",
        r#""nul \u0000 and \ud83d\ude00 and 😀 and \/""#,
        "\"\u{7f}\u{e9}\u{4e2d}\"",
        "[]",
        "{}",
        "false",
        "null",
        r#"{"twice":1,"twice":2}"#,
    ];
    for (n, data) in written.iter().enumerate() {
        let body = format!(r#"{{"delay":"PT0S","target":{},"data":{data}}}"#, to(receiver.url("/ok")));
        let answer = api.send_bytes(Method::PUT, &format!("/v1/timers/t{n}"), &[], body).await;
        assert_eq!(answer.status, 201, "{data}: {}", answer.body);
    }
    assert_eq!(api.put("absent", &now(receiver.url("/ok"))).await.0, 201);
    let large = format!("\"{}\"", "é".repeat(32 * 1024 - 1));
    let body = format!(r#"{{"delay":"PT0S","target":{},"data":{large}}}"#, to(receiver.url("/ok")));
    assert_eq!(api.send_bytes(Method::PUT, "/v1/timers/large", &[], body).await.status, 201);
    receiver.wait_for(written.len() + 2, LONG).await;
    let arrived = |id: &str| {
        let all = receiver.of(id);
        assert_eq!(all.len(), 1, "{id}");
        String::from_utf8(all[0].body.to_vec()).expect("UTF-8")
    };
    assert_eq!((arrived("absent").as_str(), arrived("large").len()), ("null", large.len()));
    assert_eq!(arrived("large"), large);
    for (n, data) in written.iter().enumerate() {
        assert_eq!(arrived(&format!("t{n}")), *data);
        let shown = api.client.get(format!("{}/v1/timers/t{n}", api.base)).send().await.expect("answers");
        let shown = shown.text().await.expect("text");
        assert!(shown.contains(&format!("\"data\":{data},")), "{data} in {shown}");
    }
    let list = api.client.get(format!("{}/v1/timers", api.base)).send().await.expect("answers");
    assert!(list.text().await.expect("text").contains("\"data\":12345678901234567890123,"));
}

async fn a_signature_is_what_standard_webhooks_asks_for(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let hook = |secret: &str| json!({"webhook": {"url": receiver.url("/flaky/1"), "secret": secret}});
    for (id, secret) in [("prefixed", SECRET), ("bare", &SECRET["whsec_".len()..])] {
        let timer = json!({"delay": "PT0S", "target": hook(secret), "data": {"a": [1, "ü"]},
            "retry": super::quick(3)});
        let (status, body) = api.put(id, &timer).await;
        assert_eq!((status, &body["target"]["webhook"]["signed"]), (201, &json!(true)));
        assert!(!body.to_string().contains("MfKQ"), "a secret is write-only: {body}");
    }
    let all = receiver.wait_for(4, LONG).await;
    let ours = standardwebhooks::Webhook::new(SECRET).expect("a secret");
    let other = standardwebhooks::Webhook::new("whsec_c2VjcmV0").expect("a secret");
    for one in &all {
        ours.verify(&one.body, &one.headers).expect("signed with the secret");
        other.verify(&one.body, &one.headers).expect_err("and with no other");
        ours.verify(b"{}", &one.headers).expect_err("nor for another body");
        assert_eq!(header(one, "webhook-id"), Some(one.delivery_id.as_str()));
    }
    assert!(!node.log().contains("MfKQ"), "secrets never reach the log");
}

#[tokio::test]
async fn static_headers_arrive_and_the_secret_ones_are_not_logged() {
    let node = Node::builder().env("MAINSPRING__LOG__FILTER", "debug").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let headers = json!({"Authorization": "Bearer s3cret-t0ken", "X-Shop": "a, b; c=\"d\"", "x-empty": ""});
    let hook = json!({"webhook": {"url": receiver.url("/ok?key=s3cret-query"), "headers": headers}});
    let timer = json!({"delay": "PT0S", "target": hook, "data": "s3cret-data"});
    assert_eq!(api.put("t", &timer).await.0, 201);
    let all = receiver.wait_for(1, LONG).await;
    assert_eq!(header(&all[0], "authorization"), Some("Bearer s3cret-t0ken"));
    assert_eq!(header(&all[0], "x-shop"), Some("a, b; c=\"d\""));
    assert_eq!(header(&all[0], "x-empty"), Some(""));
    assert!(header(&all[0], "user-agent").is_some_and(|agent| agent.starts_with("mainspring/")));
    in_state(&api, "t", "delivered").await;
    assert!(!node.log().contains("s3cret"), "payloads and secrets never reach a log");
}

async fn nothing_arrives_early_and_nothing_much_late(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let watch = Watch::start(std::slice::from_ref(&api));
    let timers: Vec<Value> = (0..200)
        .map(|n| json!({"delay": format!("PT{}.{:03}S", 1 + n / 100, n % 100 * 10), "target": to(receiver.url("/ok"))}))
        .collect();
    let (status, _) = api.post("/v1/timers/batch", &json!({"timers": timers})).await;
    assert_eq!(status, 200);
    let all = receiver.wait_for(200, LONG).await;
    let stalls = watch.end().await;
    // As much as a busy machine adds, beside the time that it stands still.
    let is_off = |one: &&Received| {
        let late = one.lateness_ms();
        !(0..3000 + stalls.within(one.at_ms - late..one.at_ms)).contains(&late)
    };
    let off: Vec<_> = all.iter().filter(is_off).map(Received::lateness_ms).collect();
    assert!(off.is_empty(), "{off:?}; {stalls:?}");
    eventually("all are delivered", LONG, async || {
        let ledger = api.ledger().await;
        if ledger.delivered == 200 { Ok(()) } else { Err(ledger) }
    })
    .await;
    assert_eq!(receiver.received().len(), 200, "each once");
}

async fn the_attempts_tell_what_happened(builder: NodeBuilder) {
    let node = builder.name("teller").start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let long = "ä".repeat(2000);
    let reply = long.clone();
    receiver.on("/verbose", move |one| {
        let status = if one.attempt == 1 { 500 } else { 202 };
        crate::support::Reply::status(status).body(if status == 500 { reply.clone() } else { "a\0b".into() })
    });
    let before = wall_ms();
    assert_eq!(api.put("t", &with(now(receiver.url("/verbose")), "retry", super::quick(3))).await.0, 201);
    let ended = in_state(&api, "t", "delivered").await;
    let (status, body) = api.get("/v1/timers/t/attempts").await;
    let items = body["items"].as_array().expect("items");
    assert_eq!((status, items.len()), (200, 2), "{body}");
    let ms = |value: &Value| {
        chrono::DateTime::parse_from_rfc3339(value.as_str().expect("a time"))
            .expect("a time")
            .timestamp_millis()
    };
    for (item, (attempt, result, status)) in items.iter().zip([(1, "failed", 500), (2, "ok", 202)]) {
        assert_eq!((&item["attempt"], &item["generation"]), (&json!(attempt), &json!(1)));
        assert_eq!((&item["result"], &item["status"]), (&json!(result), &json!(status)));
        assert_eq!((&item["delivery_id"], &item["node"]), (&ended["delivery_id"], &json!("teller")));
        let (started, over) = (ms(&item["started_at"]), ms(&item["ended_at"]));
        assert!(before - 1 <= started && started <= over && over <= wall_ms(), "{item}");
    }
    assert!(ms(&items[0]["ended_at"]) <= ms(&items[1]["started_at"]));
    let kept = items[0]["reply"].as_str().expect("a reply");
    assert!(
        (1022..=1027).contains(&kept.len()) && long.starts_with(&kept[..1000]),
        "the first KiB: {}",
        kept.len()
    );
    assert!(items[0]["detail"].as_str().is_some_and(|detail| detail.contains("500")), "{}", items[0]);
    assert_eq!(items[1]["reply"], "a\u{fffd}b", "what no database takes is replaced");
    assert_eq!(ms(&ended["ended_at"]), ms(&ended["ended_at"]).max(ms(&items[1]["ended_at"])));
}

async fn the_trace_of_the_registering_call_goes_with_its_deliveries(builder: NodeBuilder) {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let node = builder.start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    let timer = |id: &str| with(now(receiver.url("/flaky/1")), "id", json!(id));
    let retried = |id: &str| with(timer(id), "retry", super::quick(3));
    let put = api.send(Method::PUT, "/v1/timers/put", &[("traceparent", TRACE)], Some(&retried("put"))).await;
    assert_eq!(put.status, 201);
    let batch = json!({"timers": [retried("in-batch")]});
    let batch = api.send(Method::POST, "/v1/timers/batch", &[("traceparent", TRACE)], Some(&batch)).await;
    assert_eq!((batch.status, &batch.body["results"][0]["status"]), (200, &json!(201)));
    let line = format!("{}\n", retried("in-stream"));
    let call = api.client.post(format!("{}/v1/timers/stream", api.base)).header("traceparent", TRACE);
    let stream =
        call.header("content-type", "application/x-ndjson").body(line).send().await.expect("an answer");
    assert_eq!(
        (stream.status().as_u16(), stream.text().await.expect("results").contains("201")),
        (200, true)
    );
    assert_eq!(api.put("without", &retried("without")).await.0, 201);
    let bad = [("traceparent", "00-0-0-00")];
    assert_eq!(api.send(Method::PUT, "/v1/timers/bad", &bad, Some(&retried("bad"))).await.status, 201);
    for (id, trace) in [
        ("put", Some(TRACE)),
        ("in-batch", Some(TRACE)),
        ("in-stream", Some(TRACE)),
        ("without", None),
        ("bad", None),
    ] {
        in_state(&api, id, "delivered").await;
        let all = receiver.of(id);
        assert!(!all.is_empty());
        all.iter().for_each(|one| assert_eq!(header(one, "ce-traceparent"), trace, "{id}"));
    }
    // The same request within another trace is the same request.
    let other = [("traceparent", "00-11111111111111111111111111111111-00f067aa0ba902b7-00")];
    let again = api.send(Method::PUT, "/v1/timers/put", &other, Some(&retried("put"))).await;
    assert_eq!(again.status, 200);
}

on_both!(
    the_trace_of_the_registering_call_goes_with_its_deliveries,
    a_delivery_is_a_cloud_event,
    an_attribute_that_no_header_may_hold_is_percent_encoded,
    the_body_is_the_data_byte_for_byte,
    a_signature_is_what_standard_webhooks_asks_for,
    nothing_arrives_early_and_nothing_much_late,
    the_attempts_tell_what_happened,
);
