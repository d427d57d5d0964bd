//! Spans of calls and attempts as a collector gets them, from a real node (docs/operations.md#traces).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Api, Node, NodeBuilder, Received, Receiver, Reply, eventually, free_port, in_state, to,
};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// A caller's span, sampled and not.
const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const NOT_SAMPLED: &str = "00-1f7651916cd43dd8448eb211c80319c5-b7ad6b7169203331-00";

/// A collector: a receiver that takes spans.
struct Collector(Receiver);

impl Collector {
    async fn start() -> Self {
        let receiver = Receiver::start().await;
        receiver.on("/v1/traces", |_| Reply::ok());
        Self(receiver)
    }

    /// A node that exports to it, a moment after each span.
    fn node(&self) -> NodeBuilder {
        exporting_to(&self.0.url("")).env("OTEL_BSP_SCHEDULE_DELAY", "50")
    }

    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let decoded = |one: &Received| {
            assert_eq!((one.path.as_str(), &one.headers["content-type"]), ("/v1/traces", &PROTOBUF));
            ExportTraceServiceRequest::decode(one.body.clone()).expect("an export")
        };
        self.0.received().iter().map(decoded).collect()
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Span> {
        let resources = self.requests().into_iter().flat_map(|request| request.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// The spans about one timer, once there are so many of them.
    async fn about(&self, timer: &str, count: usize) -> Vec<Span> {
        eventually(&format!("{count} spans about {timer}"), LONG, async || {
            let about = |span: &Span| text(span, "mainspring.timer.id").as_deref() == Some(timer);
            let found: Vec<Span> = self.spans().into_iter().filter(about).collect();
            if found.len() == count { Ok(found) } else { Err(found) }
        })
        .await
    }
}

const PROTOBUF: http::HeaderValue = http::HeaderValue::from_static("application/x-protobuf");

fn exporting_to(endpoint: &str) -> NodeBuilder {
    Node::builder().env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("NO_PROXY", "127.0.0.1")
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<Any> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.clone().and_then(|AnyValue { value }| value)
}

fn text(span: &Span, key: &str) -> Option<String> {
    match attribute(&span.attributes, key) {
        Some(Any::StringValue(text)) => Some(text),
        None => None,
        other => panic!("{key} is {other:?}"),
    }
}

fn number(span: &Span, key: &str) -> Option<i64> {
    match attribute(&span.attributes, key) {
        Some(Any::IntValue(number)) => Some(number),
        None => None,
        other => panic!("{key} is {other:?}"),
    }
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code == 2)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Trace and span of a `traceparent`.
fn ids(traceparent: &str) -> (&str, &str) {
    (&traceparent[3..35], &traceparent[36..52])
}

fn header<'a>(one: &'a Received, name: &str) -> Option<&'a str> {
    one.headers.get(name).map(|value| value.to_str().expect("ASCII"))
}

fn timer(url: impl AsRef<str>) -> Value {
    json!({"delay": "PT0S", "target": to(url), "retry": {"attempts": 3, "first": "PT0.05S", "cap": "PT0.05S"}})
}

/// Registers a timer that is due at once, by a call within this trace.
async fn put(api: &Api, id: &str, traceparent: &str, url: impl AsRef<str>) {
    let path = format!("/v1/timers/{id}");
    let answer = api.send(Method::PUT, &path, &[("traceparent", traceparent)], Some(&timer(url))).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
}

#[tokio::test]
async fn a_call_within_a_trace_is_a_span_below_its_callers() {
    let (collector, receiver) = (Collector::start().await, Receiver::start().await);
    let node = collector
        .node()
        .name("a1")
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.name=overruled")
        .env("OTEL_SERVICE_NAME", "alarms")
        .env("OTEL_TRACES_SAMPLER", "parentbased_always_off")
        .start_ready()
        .await;
    let api = node.api();
    let later = json!({"delay": "PT1H", "target": to(receiver.url("/ok"))});
    let within = [("traceparent", SAMPLED)];
    // Nothing of these: not sampled, no trace, no call of the API.
    api.send(Method::PUT, "/v1/timers/a:b", &[("traceparent", NOT_SAMPLED)], Some(&later)).await;
    api.put("a:b", &later).await;
    for path in ["/readyz", "/metrics", "/", "/v1/nothing"] {
        api.send(Method::GET, path, &within, None).await;
    }
    assert_eq!(api.send(Method::PUT, "/v1/timers/a%3Ab", &within, Some(&later)).await.status, 200);
    assert_eq!(api.send(Method::GET, "/v1/timers/gone", &within, None).await.status, 404);
    let made = api.send(Method::POST, "/v1/timers", &within, Some(&later)).await;
    let made = made.body["id"].as_str().expect("an id").to_owned();
    let many: Vec<Value> = (0..3).map(|_| later.clone()).collect();
    api.send(Method::POST, "/v1/timers/batch", &within, Some(&json!({"timers": many}))).await;

    let spans = eventually("four spans", LONG, async || {
        let spans = collector.spans();
        if spans.len() == 4 { Ok(spans) } else { Err(spans) }
    })
    .await;
    for span in &spans {
        assert_eq!((hex(&span.trace_id).as_str(), hex(&span.parent_span_id).as_str()), ids(SAMPLED));
        assert_eq!((span.kind(), is_error(span)), (SpanKind::Server, false), "{span:?}");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{span:?}");
    }
    let told = |span: &Span| {
        let code = number(span, "http.response.status_code");
        (
            span.name.clone(),
            text(span, "http.request.method"),
            text(span, "http.route"),
            code,
            text(span, "mainspring.timer.id"),
        )
    };
    let call = |method: &str, route: &str, code: i64, timer: Option<&str>| {
        let name = format!("{method} {route}");
        (name, Some(method.to_owned()), Some(route.to_owned()), Some(code), timer.map(str::to_owned))
    };
    let mut all: Vec<_> = spans.iter().map(told).collect();
    all.sort();
    assert_eq!(
        all,
        [
            call("GET", "/v1/timers/{id}", 404, Some("gone")),
            call("POST", "/v1/timers", 201, Some(&made)),
            call("POST", "/v1/timers/batch", 200, None),
            call("PUT", "/v1/timers/{id}", 200, Some("a:b")),
        ]
    );
    let request = collector.requests().remove(0);
    let resource = request.resource_spans[0].resource.clone().expect("a resource").attributes;
    for (key, value) in
        [("service.name", "alarms"), ("service.instance.id", "a1"), ("deployment.environment", "test")]
    {
        assert_eq!(attribute(&resource, key), Some(Any::StringValue(value.to_owned())), "{key}");
    }
}

#[tokio::test]
async fn each_attempt_is_a_trace_that_links_to_the_registration_and_goes_on_at_the_receiver() {
    let (collector, receiver) = (Collector::start().await, Receiver::start().await);
    let node = collector.node().env("OTEL_TRACES_SAMPLER", "parentbased_always_off").start_ready().await;
    let api = node.api();
    put(&api, "twice", SAMPLED, receiver.url("/flaky/1")).await;
    let timer = in_state(&api, "twice", "delivered").await;
    let mut spans = collector.about("twice", 3).await;
    spans.retain(|span| span.kind() == SpanKind::Client);
    spans.sort_by_key(|span| number(span, "mainspring.attempt"));
    let attempts = receiver.of("twice");
    assert_eq!((spans.len(), attempts.len()), (2, 2), "a span for each: {spans:?}");
    for (place, (span, attempt)) in spans.iter().zip(&attempts).enumerate() {
        let (trace, id) = (hex(&span.trace_id), hex(&span.span_id));
        assert_eq!(header(attempt, "traceparent"), Some(format!("00-{trace}-{id}-01").as_str()));
        assert_eq!(header(attempt, "ce-traceparent"), Some(SAMPLED));
        assert_eq!((span.parent_span_id.len(), span.links.len()), (0, 1), "{span:?}");
        let link = &span.links[0];
        assert_eq!((hex(&link.trace_id).as_str(), hex(&link.span_id).as_str()), ids(SAMPLED));
        assert_ne!(trace, ids(SAMPLED).0);
        assert_eq!(span.name, "deliver webhook");
        let is_first = place == 0;
        let told: HashMap<&str, Option<String>> =
            ["mainspring.delivery.id", "mainspring.due_at", "mainspring.result"]
                .into_iter()
                .chain(["error.type", "http.request.method", "url.scheme", "server.address"])
                .map(|key| (key, text(span, key)))
                .collect();
        let expected = HashMap::from([
            ("mainspring.delivery.id", timer["delivery_id"].as_str().map(str::to_owned)),
            ("mainspring.due_at", header(attempt, "ce-dueat").map(str::to_owned)),
            ("mainspring.result", Some(if is_first { "failed" } else { "ok" }.to_owned())),
            ("error.type", is_first.then(|| "500".to_owned())),
            ("http.request.method", Some("POST".to_owned())),
            ("url.scheme", Some("http".to_owned())),
            ("server.address", Some("127.0.0.1".to_owned())),
        ]);
        assert_eq!(told, expected);
        assert_eq!(number(span, "mainspring.generation"), Some(attempt.generation.into()));
        assert_eq!(number(span, "mainspring.attempt"), Some(attempt.attempt.into()));
        assert_eq!(number(span, "http.response.status_code"), Some(if is_first { 500 } else { 200 }));
        assert_eq!(number(span, "server.port"), Some(receiver.port().into()));
        let late = number(span, "mainspring.lateness_ms").expect("a number");
        assert!((0..30_000).contains(&late), "{late} ms");
        assert_eq!(is_error(span), is_first);
        assert!(span.end_time_unix_nano > span.start_time_unix_nano, "{span:?}");
    }
    assert_ne!(spans[0].trace_id, spans[1].trace_id);

    put(&api, "nobody", SAMPLED, format!("http://127.0.0.1:{}/x", free_port())).await;
    in_state(&api, "nobody", "dead").await;
    let refused = collector.about("nobody", 4).await;
    for span in refused.iter().filter(|span| span.kind() == SpanKind::Client) {
        assert!(is_error(span), "{span:?}");
        assert_eq!(text(span, "error.type").as_deref(), Some("refused"));
        assert_eq!(number(span, "http.response.status_code"), None);
    }
}

#[tokio::test]
async fn the_sampler_decides_about_an_attempt_as_about_the_call_that_registered_its_timer() {
    let (collector, receiver) = (Collector::start().await, Receiver::start().await);
    for (sampler, with_spans) in [
        ("parentbased_always_on", ["sampled", "without"]),
        ("parentbased_always_off", ["sampled", "sampled"]),
    ] {
        let node = collector.node().env("OTEL_TRACES_SAMPLER", sampler).start_ready().await;
        let api = node.api();
        let name = |id: &str| format!("{sampler}.{id}");
        put(&api, &name("sampled"), SAMPLED, receiver.url("/ok")).await;
        put(&api, &name("not-sampled"), NOT_SAMPLED, receiver.url("/ok")).await;
        assert_eq!(api.put(&name("without"), &timer(receiver.url("/ok"))).await.0, 201);
        for id in ["sampled", "not-sampled", "without"] {
            receiver.wait_until(|all| all.iter().any(|one| one.timer == name(id)), LONG).await;
            let flags = if with_spans.contains(&id) { "-01" } else { "-00" };
            let sent = receiver.of(&name(id));
            let traceparent = header(&sent[0], "traceparent").expect("one");
            assert!(traceparent.ends_with(flags), "{}: {traceparent}", name(id));
        }
        assert!(node.sigterm().await.0.success());
        let attempts = collector.spans().into_iter().filter(|span| span.kind() == SpanKind::Client);
        let timers = attempts.filter_map(|span| text(&span, "mainspring.timer.id"));
        let mut timers: Vec<String> = timers.filter(|id| id.starts_with(sampler)).collect();
        timers.sort();
        let mut expected: Vec<String> = with_spans.map(name).to_vec();
        expected.dedup();
        assert_eq!(timers, expected);
    }
}

#[tokio::test]
async fn no_span_has_a_payload_a_secret_or_the_path_of_a_url() {
    let (collector, receiver) = (Collector::start().await, Receiver::start().await);
    let key = "key-0123456789abcdef";
    let node = collector
        .node()
        .env("MAINSPRING__SERVER__API_KEYS", key)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=of-the-collector")
        .start_ready()
        .await;
    let api = node.api().with_key(key);
    receiver.on("/told-of-it", |_| Reply::ok().body("reply-of-it"));
    receiver.on("/failed-of-it", |_| Reply::status(500).body("reply-of-it"));
    for (id, path, end) in [
        ("told", "/told-of-it?query-of-it=1", "delivered"),
        ("failed", "/failed-of-it?query-of-it=1", "dead"),
        ("broken", "/close?query-of-it=1", "dead"),
    ] {
        let timer = json!({"delay": "PT0S", "owner": "owner-of-it", "data": {"card": "payload-4111"},
            "labels": {"label-name": "label-value"},
            "target": {"webhook": {"url": receiver.url(path), "secret": "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LQ==",
                "headers": {"x-token": "header-token"}}},
            "retry": {"attempts": 2, "first": "PT0.1S", "cap": "PT0.1S"}});
        let call = format!("/v1/timers/{id}?again=true");
        let within = [("traceparent", SAMPLED)];
        assert_eq!(api.send(Method::PUT, &call, &within, Some(&timer)).await.status, 201);
        in_state(&api, id, end).await;
    }
    api.send(Method::GET, "/v1/timers?owner=owner-of-it&label=label-name%3Dlabel-value", &[], None).await;
    api.send(Method::PUT, "/v1/timers/bad", &[], Some(&json!({"data": "payload-4111"}))).await;
    assert!(node.sigterm().await.0.success());
    let exports = collector.0.received();
    let names: Vec<String> = collector.spans().into_iter().map(|span| span.name).collect();
    assert!(names.iter().filter(|name| *name == "deliver webhook").count() >= 5, "{names:?}");
    for export in &exports {
        assert_eq!(header(export, "x-collector-key"), Some("of-the-collector"));
        let body = String::from_utf8_lossy(&export.body);
        for secret in [
            "payload-4111",
            "whsec",
            "c2Vj",
            "header-token",
            "x-token",
            "-of-it",
            "again",
            "/close",
            "label-",
            key,
            "of-the-collector",
        ] {
            assert!(!body.contains(secret), "{secret} is in {body}");
        }
    }
}

/// Registers 100 timers at once at a node whose collector takes nothing, and has it stop.
async fn delays_nothing(builder: NodeBuilder) -> Node {
    let receiver = Receiver::start().await;
    let began = Instant::now();
    let node = builder
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "8")
        // Whatever waited for an export would be seen.
        .env("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")
        .start_ready()
        .await;
    assert!(began.elapsed() < Duration::from_secs(50), "ready after {:?}", began.elapsed());
    let api = node.api();
    let timer = json!({"delay": "PT1S", "target": to(receiver.url("/ok"))});
    let many: Vec<Value> = (0..100).map(|_| timer.clone()).collect();
    let body = json!({"timers": many});
    assert_eq!(api.post("/v1/timers/batch", &body).await.0, 200);
    for one in receiver.wait_for(100, LONG).await {
        assert!((0..5000).contains(&one.lateness_ms()), "{} ms late", one.lateness_ms());
    }
    let (status, took) = node.sigterm().await;
    assert!(status.success() && took < Duration::from_secs(10), "{status} after {took:?}");
    node
}

#[tokio::test]
async fn a_collector_that_is_away_delays_nothing_and_is_one_line() {
    let node = delays_nothing(exporting_to(&format!("http://127.0.0.1:{}", free_port()))).await;
    let log = node.log();
    assert_eq!(log.matches("spans cannot be exported").count(), 1, "{log}");
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
}

#[tokio::test]
async fn a_collector_that_never_answers_delays_nothing() {
    let receiver = Receiver::start().await;
    receiver.on("/v1/traces", |_| Reply::hang());
    delays_nothing(exporting_to(&receiver.url(""))).await;
    assert!(!receiver.received().is_empty(), "it was asked");
}

#[tokio::test]
async fn a_collector_that_comes_back_gets_the_next_spans() {
    let (collector, receiver) = (Collector::start().await, Receiver::start().await);
    collector.0.on("/v1/traces", |_| Reply::status(401));
    let node = collector.node().start_ready().await;
    let api = node.api();
    assert_eq!(api.get("/v1/ledger").await.0, 200);
    let logged = async |line: &str| {
        eventually(line, LONG, async || if node.log().contains(line) { Ok(()) } else { Err(node.log()) })
            .await;
    };
    logged("the collector answered 401").await;
    collector.0.on("/v1/traces", |_| Reply::ok());
    put(&api, "next", SAMPLED, receiver.url("/ok")).await;
    collector.about("next", 2).await;
    logged("spans are exported again").await;
}

#[tokio::test]
async fn the_last_spans_are_exported_at_the_stop() {
    let (collector, receiver) = (Collector::start().await, Receiver::start().await);
    let node = collector
        .node()
        .env("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        .env("OTEL_TRACES_SAMPLER", "parentbased_always_off")
        .start_ready()
        .await;
    let api = node.api();
    put(&api, "last", SAMPLED, receiver.url("/ok")).await;
    in_state(&api, "last", "delivered").await;
    assert!(collector.spans().is_empty(), "not before");
    assert!(node.sigterm().await.0.success());
    assert!(collector.about("last", 2).await.iter().all(|span| span.end_time_unix_nano > 0));
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_read_is_one_error_that_names_the_variable() {
    let node = exporting_to("http://name:hunter2@collector:4318").start();
    assert!(node.wait_exit(LONG).await.is_some_and(|exit| !exit.success()));
    let log = node.log();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("`OTEL_EXPORTER_OTLP_ENDPOINT`") && !log.contains("hunter2"), "{log}");
}

#[tokio::test]
async fn without_an_endpoint_receivers_get_no_traceparent() {
    let receiver = Receiver::start().await;
    let node = Node::builder().env("OTEL_TRACES_SAMPLER", "always_on").start_ready().await;
    put(&node.api(), "plain", SAMPLED, receiver.url("/ok")).await;
    let all = receiver.wait_for(1, LONG).await;
    assert_eq!((header(&all[0], "traceparent"), header(&all[0], "ce-traceparent")), (None, Some(SAMPLED)));
    assert!(!node.log().contains("exported"), "{}", node.log());
}
