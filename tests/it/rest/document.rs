//! The OpenAPI document against the service: every answer has a status, a content type, headers and a body that the
//! document knows for its call, and every status that the document knows is given.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use jsonschema::Validator;
use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, NOWHERE, later, now, quick, with};
use crate::support::{Answer, Api, Node, Receiver, in_state, run_sql, to};

const KEY: &str = "document-key-0123456789";

/// The document as a server gives it, with all objects closed: a field that it does not know is an error here.
pub struct Document {
    json: Value,
    /// The schemas that were asked for, by pointer: to make one takes a tenth of a second.
    validators: Mutex<HashMap<String, Arc<Validator>>>,
    /// Calls and the statuses they have given.
    seen: BTreeSet<String>,
}

impl Document {
    pub async fn of(api: &Api) -> Self {
        let (status, mut json) = api.get("/openapi.json").await;
        assert_eq!(status, 200, "{json}");
        for schema in json["components"]["schemas"].as_object_mut().expect("schemas").values_mut() {
            if schema["properties"].is_object() && schema["additionalProperties"].is_null() {
                schema["additionalProperties"] = json!(false);
            }
        }
        Self { json, validators: Mutex::default(), seen: BTreeSet::new() }
    }

    /// What is wrong with `value` by the schema at `pointer`.
    fn faults(&self, pointer: &str, value: &Value) -> Vec<String> {
        let make = || {
            let mut schema = self.json.clone();
            schema["$ref"] = json!(format!("#{pointer}"));
            let options = jsonschema::options()
                .with_draft(jsonschema::Draft::Draft202012)
                .should_validate_formats(true);
            Arc::new(options.build(&schema).expect("the document holds sound schemas"))
        };
        let mut validators = self.validators.lock().expect("nothing panics while it holds this lock");
        let validator = Arc::clone(validators.entry(pointer.to_owned()).or_insert_with(make));
        drop(validators);
        validator.iter_errors(value).map(|fault| format!("{}: {fault}", fault.instance_path())).collect()
    }

    /// Whether the document allows this body of a `PUT`.
    pub fn allows_put(&self, timer: &Value) -> bool {
        self.faults("/components/schemas/Timer", timer).is_empty()
    }

    /// Whether the document allows this body of a `PATCH`.
    pub fn allows_patch(&self, change: &Value) -> bool {
        self.faults("/components/schemas/Patch", change).is_empty()
    }

    /// Every call: method and path with its parameter.
    pub fn calls(&self) -> Vec<(Method, String)> {
        let paths = self.json["paths"].as_object().expect("paths");
        let methods = |path: &Value| path.as_object().expect("methods").keys().cloned().collect::<Vec<_>>();
        let calls = paths.iter().flat_map(|(path, of)| {
            methods(of)
                .into_iter()
                .map(|method| (method.to_uppercase().parse().expect("a method"), path.clone()))
        });
        calls.collect()
    }

    /// The parameters of a call: names, and whether they stand in the path, the query or a header.
    pub fn parameters(&self, method: &Method, path: &str) -> Vec<(String, String)> {
        let all = self.operation(method, path)["parameters"].as_array().cloned().unwrap_or_default();
        let text = |one: &Value, field: &str| one[field].as_str().expect("a text").to_owned();
        all.iter().map(|one| (text(one, "name"), text(one, "in"))).collect()
    }

    fn takes_json(&self, method: &Method, path: &str) -> bool {
        self.operation(method, path)["requestBody"]["content"]["application/json"].is_object()
    }

    fn operation(&self, method: &Method, path: &str) -> &Value {
        &self.json["paths"][path][method.as_str().to_lowercase()]
    }

    /// Demands that the answer is one that the document knows for this call.
    fn check(&mut self, method: &Method, path: &str, answer: &Answer) {
        let called = format!("{method} {path} {}", answer.status);
        if let Err(why) = self.knows(method, path, answer) {
            panic!("{called}: {why} in {:#}", answer.body);
        }
        self.seen.insert(called);
    }

    /// Whether the document knows this answer to a call; if not, why.
    pub fn knows(&self, method: &Method, path: &str, answer: &Answer) -> Result<(), String> {
        let response = &self.operation(method, path)["responses"][answer.status.to_string()];
        if !response.is_object() {
            return Err("this status is not in the document".to_owned());
        }
        for name in response["headers"].as_object().expect("headers").keys() {
            answer.header(name).ok_or_else(|| format!("{name} is missing: {:?}", answer.headers))?;
        }
        let kind = answer.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default();
        if !response["content"][kind].is_object() {
            return Err(format!("the content type {kind:?} is not in the document"));
        }
        let schema = format!(
            "/paths/{}/{}/responses/{}/content/{}/schema",
            escaped(path),
            method.as_str().to_lowercase(),
            answer.status,
            escaped(kind)
        );
        let values: Vec<Value> = match (kind, &answer.body) {
            ("application/x-ndjson", Value::String(text)) => {
                text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
            }
            (_, body) => vec![body.clone()],
        };
        let faults: Vec<_> = values.iter().flat_map(|value| self.faults(&schema, value)).collect();
        if faults.is_empty() { Ok(()) } else { Err(format!("{faults:#?}")) }
    }

    /// Every status of every call that the document knows.
    fn known(&self) -> BTreeSet<String> {
        let calls = self.calls();
        let statuses = |method: &Method, path: &str| {
            let responses = self.operation(method, path)["responses"].as_object().expect("responses");
            responses.keys().map(|status| format!("{method} {path} {status}")).collect::<Vec<_>>()
        };
        calls.iter().flat_map(|(method, path)| statuses(method, path)).collect()
    }
}

/// As a part of a JSON pointer.
fn escaped(text: &str) -> String {
    text.replace('~', "~0").replace('/', "~1").replace('{', "%7B").replace('}', "%7D")
}

/// Calls, and checks each answer against the document.
struct Checked<'a> {
    document: &'a mut Document,
    api: Api,
}

impl Checked<'_> {
    async fn call(&mut self, method: Method, path: &str, id: &str, body: Option<&Value>) -> Answer {
        let bytes = body.map(|body| body.to_string());
        self.call_with(method, path, id, &[], bytes.as_deref()).await
    }

    async fn call_with(
        &mut self,
        method: Method,
        path: &str,
        id: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> Answer {
        let url = path.replace("{id}", id).replace("{name}", id);
        let answer = self.api.send_bytes(method.clone(), &url, headers, body.unwrap_or_default()).await;
        self.document.check(&method, path.split('?').next().unwrap_or_default(), &answer);
        answer
    }

    /// Makes each of these calls with a body that it takes; all give this status.
    async fn all_give(
        &mut self,
        status: u16,
        calls: &[(Method, String)],
        id: &str,
        headers: &[(&str, &str)],
    ) {
        for (method, path) in calls {
            let (kind, body) = body_for(method, path);
            let headers = [&[("content-type", kind)], headers].concat();
            let answer = self.call_with(method.clone(), path, id, &headers, body.as_deref()).await;
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        }
    }
}

/// A body that is right for a call, and its content type.
pub fn body_for(method: &Method, path: &str) -> (&'static str, Option<String>) {
    let body = match (method.as_str(), path.rsplit('/').next()) {
        ("POST", Some("fire" | "test" | "pause" | "resume" | "stop" | "run")) => None,
        ("POST", Some("redrive")) => Some(json!({"since": "2026-01-01T00:00:00Z"})),
        ("POST", Some("backfill")) => {
            Some(json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}))
        }
        ("PUT", Some("{id}")) if path.starts_with("/v1/schedules") => Some(yearly()),
        ("POST", Some("operations")) => Some(redrive()),
        ("POST", Some("keys")) => Some(json!({"name": "k", "scopes": ["view"]})),
        ("POST", Some("lease")) => Some(json!({"worker": "w"})),
        ("POST", Some("settle")) => {
            Some(json!({"settlements": [{"lease_token": "lse_none", "action": "ack"}]}))
        }
        ("PUT", Some("{name}")) if path.starts_with("/v1/queues") => Some(json!({"lease": "PT1M"})),
        ("PUT", Some("{name}")) if path.starts_with("/v1/subscriptions") => {
            Some(json!({"destination": "full", "events": ["*"]}))
        }
        ("PUT", Some("{name}")) if path.starts_with("/v1/namespaces") => Some(json!({"quotas": {}})),
        ("PUT", Some("{name}")) if path.starts_with("/v1/templates") => Some(json!({"schema": true})),
        ("PUT", Some("{name}")) => Some(json!({"webhook": {"url": NOWHERE}})),
        ("PATCH", Some("{name}")) => Some(json!({"concurrency": 5})),
        ("POST", Some("batch")) => Some(json!({"timers": [later()]})),
        ("POST", Some("stream")) => return ("application/x-ndjson", Some(format!("{}\n", later()))),
        ("POST" | "PUT", _) => Some(later()),
        ("PATCH", _) => Some(json!({"delay": "PT1H"})),
        _ => None,
    };
    ("application/json", body.map(|body| body.to_string()))
}

const TIMER: &str = "/v1/timers/{id}";

fn yearly() -> Value {
    json!({"cron": "0 0 1 1 *", "target": to(NOWHERE)})
}

#[tokio::test]
async fn every_answer_is_in_the_document_and_every_status_of_the_document_is_given() {
    let node = Node::builder().start_ready().await;
    let mut document = Document::of(&node.api()).await;
    let known = document.known();
    let calls = document.calls();
    let under_v1: Vec<_> = calls.iter().filter(|(_, path)| path.starts_with("/v1/")).cloned().collect();
    let health: Vec<_> = calls.iter().filter(|(_, path)| !path.starts_with("/v1/")).cloned().collect();
    let on_one: Vec<_> = calls.iter().filter(|(_, path)| path.contains('{')).cloned().collect();
    let with_json: Vec<_> = calls.iter().filter(|(m, path)| document.takes_json(m, path)).cloned().collect();
    let writes: Vec<_> = under_v1.iter().filter(|(method, _)| method != Method::GET).cloned().collect();
    assert_eq!((health.len(), on_one.len(), with_json.len()), (4, 46, 18));
    assert!(under_v1.len() >= 24);

    let mut checked = Checked { document: &mut document, api: node.api() };
    checked.all_give(200, &health, "", &[]).await;
    one_timer_in_each_state(&mut checked).await;
    many_timers(&mut checked).await;
    destinations(&mut checked).await;
    operations(&mut checked, &node).await;
    subscriptions(&mut checked).await;
    schedules(&mut checked).await;
    queues(&mut checked).await;
    templates(&mut checked).await;
    namespaces(&mut checked, &node).await;
    for path in ["/v1/ledger", "/v1/nodes", "/v1/wheels", "/v1/receivers", "/v1/forecast"] {
        assert_eq!(checked.call(Method::GET, path, "", None).await.status, 200);
    }
    assert_eq!(checked.call(Method::GET, "/v1/forecast?step=soon", "", None).await.status, 422);
    // Events come until the node stops.
    let ending = Node::builder().start_ready().await;
    checked.api = ending.api();
    let stops = async {
        let watched =
            "mainspring_http_requests_total{method=\"GET\",route=\"/v1/wheels/stream\",status=\"200\"";
        crate::support::eventually("it is watched", LONG, async || {
            let (_, text) = ending.api().get("/metrics").await;
            if text.as_str().is_some_and(|text| text.contains(watched)) { Ok(()) } else { Err(text) }
        })
        .await;
        ending.sigterm().await
    };
    let (stream, _) = tokio::join!(checked.call(Method::GET, "/v1/wheels/stream", "", None), stops);
    assert_eq!(stream.status, 200);
    checked.api = node.api();
    checked.all_give(403, &under_v1, "t", &[("origin", "https://evil.example")]).await;
    checked.all_give(400, &on_one, "%FF", &[]).await;
    checked.all_give(422, &on_one, "a%20b", &[]).await;
    // A queue comes into being when somebody asks for it.
    let makes = |path: &str| path.ends_with("/lease") || path.ends_with("/settle");
    let not_put = on_one.iter().filter(|(method, path)| method != Method::PUT && !makes(path)).cloned();
    let (of_operations, others): (Vec<_>, Vec<_>) =
        not_put.partition(|(_, path)| path.starts_with("/v1/operations/"));
    let (of_keys, others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|(_, path)| path.starts_with("/v1/keys/"));
    checked.all_give(404, &of_keys, &format!("key_{}", "0".repeat(16)), &[]).await;
    checked.all_give(404, &others, "none", &[]).await;
    checked.all_give(404, &of_operations, &format!("op_{}", "0".repeat(32)), &[]).await;
    let too_large = " ".repeat(16 * 1024 * 1024 + 1);
    for (method, path) in &with_json {
        for (body, status) in [("{", 400), ("[]", 422), (too_large.as_str(), 413)] {
            let answer = checked.call_with(method.clone(), path, "t", &[], Some(body)).await;
            assert_eq!(answer.status, status, "{method} {path}");
        }
    }

    let with_keys = Node::builder().start_ready().await;
    keys(&mut checked, &with_keys).await;
    let keyed = Node::builder()
        .env("MAINSPRING__SERVER__API_KEYS", KEY)
        .env("MAINSPRING__SERVER__RATE_PER_SECOND", "1")
        .start_ready()
        .await;
    checked.api = keyed.api();
    checked.all_give(401, &under_v1, "t", &[]).await;
    checked.api = keyed.api().with_key(KEY);
    // Each is charged a call: once the quota of a second is spent, the next one is refused.
    for call in &writes {
        let (kind, body) = body_for(&call.0, &call.1);
        while checked
            .call_with(call.0.clone(), &call.1, "t", &[("content-type", kind)], body.as_deref())
            .await
            .status
            != 429
        {}
    }

    // Reads are calls of a namespace, but for those about all of them.
    let (node_with_quota, admin) = super::keys::keyed().await;
    let terms = json!({"quotas": {"requests_per_second": 1}});
    let put = admin.send(Method::PUT, "/v1/namespaces/busy", &[], Some(&terms)).await;
    assert_eq!(put.status, 201, "{}", put.body);
    let busy = super::keys::made(&admin, &super::keys::key("busy", "admin", "busy")).await.1;
    checked.api = node_with_quota.api().with_key(busy);
    for (method, path) in under_v1.iter().filter(|(method, _)| method == Method::GET) {
        let responses = &checked.document.operation(method, path)["responses"];
        if responses["429"].is_object() {
            let until = std::time::Instant::now() + LONG;
            while checked.call(method.clone(), path, "t", None).await.status != 429 {
                assert!(std::time::Instant::now() < until, "{method} {path} is never 429");
            }
        }
    }

    // Nobody listens there: the node never reaches its store.
    let starting = Node::builder().cold("postgres://nobody@127.0.0.1:9/none").start();
    checked.api = starting.api();
    let livez = format!("{}/livez", starting.base());
    let client = crate::support::http_client(LONG);
    crate::support::eventually("it listens", LONG, async || client.get(&livez).send().await).await;
    checked.all_give(503, &under_v1, "t", &[]).await;
    let waiting: Vec<_> =
        health.iter().filter(|(_, path)| path.ends_with("yz") || path.ends_with("pz")).cloned().collect();
    checked.all_give(503, &waiting, "", &[]).await;

    let never: BTreeSet<_> = known.difference(&document.seen).cloned().collect();
    // A body that takes 30 s.
    let slow = with_json.iter().map(|(method, path)| format!("{method} {path} 408"));
    assert_eq!(never, slow.collect(), "in the document, and never given");
}

/// Namespaces with quotas and without, and what keeps one from being made or removed.
async fn namespaces(checked: &mut Checked<'_>, node: &Node) {
    const ONE: &str = "/v1/namespaces/{name}";
    let full = json!({"quotas": {"requests_per_second": 100, "live_timers": 5, "payload_bytes": 100, "horizon": "P30D", "due_per_second": 50},
        "networks": {"allow": ["public", "10.0.0.0/8"], "deny": ["192.0.2.1"]}});
    for (body, status) in [(&full, 201), (&json!({}), 200)] {
        assert!(checked.document.faults("/components/schemas/NamespaceTerms", body).is_empty(), "{body}");
        let answer = checked.call(Method::PUT, ONE, "billing", Some(body)).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    for (path, status) in [(ONE, 200), ("/v1/namespaces", 200)] {
        assert_eq!(checked.call(Method::GET, path, "billing", None).await.status, status);
    }
    for bad in [
        json!({"quotas": {"live_timers": 0}}),
        json!({"quotas": {"payload_bytes": 65537}}),
        json!({"limits": {}}),
    ] {
        assert!(!checked.document.faults("/components/schemas/NamespaceTerms", &bad).is_empty(), "{bad}");
        assert_eq!(checked.call(Method::PUT, ONE, "billing", Some(&bad)).await.status, 422);
    }
    assert_eq!(checked.call(Method::DELETE, ONE, "default", None).await.status, 409);
    assert_eq!(checked.call(Method::DELETE, ONE, "billing", None).await.status, 200);
    // A node of the version before is alive.
    let url = format!("sqlite://{}/mainspring.db", node.dir().display());
    let old = "INSERT INTO nodes (name, incarnation, address, version, started_at, beat_at, release) \
               VALUES ('old', 'old-1', '127.0.0.1:1', '0.1.0', 1, 9000000000000, 2)";
    crate::support::run_sql(&url, old).await;
    assert_eq!(checked.call(Method::PUT, ONE, "billing", Some(&full)).await.status, 409);
    crate::support::run_sql(&url, "DELETE FROM nodes WHERE name = 'old'").await;
}

/// Keys with everything and with little; what is refused, and what a key does not see.
async fn keys(checked: &mut Checked<'_>, node: &Node) {
    const ONE: &str = "/v1/keys/{id}";
    let text = |answer: &Answer, field: &str| answer.body[field].as_str().expect("a text").to_owned();
    let full = json!({"name": "ops", "namespace": "*", "scopes": ["view", "admin"], "expires_at": "2100-01-01T00:00:00Z"});
    let little = json!({"name": "shop", "scopes": ["view"]});
    checked.api = node.api();
    let mut made = Vec::new();
    for body in [&full, &little] {
        assert!(checked.document.faults("/components/schemas/Key", body).is_empty(), "{body}");
        let answer = checked.call(Method::POST, "/v1/keys", "", Some(body)).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        made.push((text(&answer, "id"), text(&answer, "key")));
        checked.api = node.api().with_key(&made[0].1);
    }
    let pem = rcgen::generate_simple_self_signed(["shop".to_owned()]).expect("a certificate").cert.pem();
    let certificate = json!({"name": "tls", "scopes": ["view"], "certificate": pem});
    assert!(checked.document.faults("/components/schemas/Key", &certificate).is_empty());
    for status in [201, 409] {
        assert_eq!(checked.call(Method::POST, "/v1/keys", "", Some(&certificate)).await.status, status);
    }
    assert_eq!(checked.call(Method::GET, "/v1/keys", "", None).await.status, 200);
    for (query, status) in [("?limit=1", 200), ("?since=soon", 422)] {
        assert_eq!(checked.call(Method::GET, &format!("/v1/audit{query}"), "", None).await.status, status);
    }
    checked.api = node.api().with_key(&made[1].1);
    for (method, path) in [
        (Method::GET, "/v1/keys"),
        (Method::POST, "/v1/keys"),
        (Method::DELETE, ONE),
        (Method::GET, "/v1/audit"),
        (Method::GET, "/v1/nodes"),
        (Method::GET, "/v1/receivers"),
        (Method::GET, "/v1/wheels"),
        (Method::GET, "/v1/wheels/stream"),
        (Method::GET, "/v1/namespaces"),
        (Method::PUT, "/v1/namespaces/{name}"),
    ] {
        assert_eq!(checked.call(method, path, &made[0].0, None).await.status, 404, "{path}");
    }
    assert_eq!(checked.call(Method::PUT, TIMER, "t", Some(&later())).await.status, 403);
    checked.api = node.api().with_key(&made[0].1);
    for (id, status) in [(&made[1].0, 200), (&made[0].0, 409)] {
        assert_eq!(checked.call(Method::DELETE, ONE, id, None).await.status, status);
    }
    for bad in [
        json!({"scopes": ["view"]}),
        json!({"name": "a b", "scopes": ["view"]}),
        json!({"name": "a", "scopes": []}),
        json!({"name": "a", "scopes": ["root"]}),
        json!({"name": "a", "scopes": ["view"], "namespace": "a b"}),
        json!({"name": "a", "scopes": ["view"], "expires_at": "soon"}),
        json!({"name": "a", "scopes": ["view"], "colour": 1}),
    ] {
        assert!(!checked.document.faults("/components/schemas/Key", &bad).is_empty(), "{bad}");
        assert_eq!(checked.call(Method::POST, "/v1/keys", "", Some(&bad)).await.status, 422);
    }
}

async fn queues(checked: &mut Checked<'_>) {
    let one = "/v1/queues/{name}";
    let settings = json!({"lease": "PT1M", "retry": {"attempts": 2}});
    assert_eq!(checked.call(Method::PUT, one, "reports", Some(&settings)).await.status, 201);
    assert_eq!(checked.call(Method::PUT, one, "reports", Some(&json!({}))).await.status, 200);
    let timer = json!({"delay": "PT0S", "target": {"queue": "reports"}, "data": {"n": 1},
        "dispatch": {"to": "group:g7", "times": 2, "repeat": true}});
    assert!(
        checked.document.allows_put(&timer)
            && checked.document.allows_patch(&json!({"dispatch": {"times": 3}}))
    );
    assert_eq!(checked.call(Method::PUT, TIMER, "for-workers", Some(&timer)).await.status, 201);
    assert_eq!(checked.call(Method::DELETE, one, "reports", None).await.status, 409);
    let lease = json!({"worker": "w1", "groups": ["g7"], "wait": "PT10S", "max": 2, "lease": "PT30S",
        "exclude": ["other"], "redo": true});
    let leased = checked.call(Method::POST, "/v1/queues/{name}/lease", "reports", Some(&lease)).await;
    assert_eq!(
        (leased.status, &leased.body["items"][0]["timer"]),
        (200, &json!("for-workers")),
        "{}",
        leased.body
    );
    let token = &leased.body["items"][0]["lease_token"];
    let settle = json!({"settlements": [{"lease_token": token, "action": "extend", "lease": "PT1M"},
        {"lease_token": token, "action": "ack", "result": {"seen": true}}, {"lease_token": token, "action": "dead"}]});
    let settled = checked.call(Method::POST, "/v1/queues/{name}/settle", "reports", Some(&settle)).await;
    let statuses: Vec<_> =
        settled.body["results"].as_array().expect("results").iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, [&json!(200), &json!(200), &json!(409)]);
    for what in ["pause", "resume"] {
        assert_eq!(checked.call(Method::POST, &format!("{one}/{what}"), "reports", None).await.status, 200);
    }
    for (path, status) in
        [(one, 200), ("/v1/queues", 200), ("/v1/queues?limit=0", 422), ("/v1/queues?limit=1", 200)]
    {
        assert_eq!(checked.call(Method::GET, path, "reports", None).await.status, status, "{path}");
    }
    for path in [TIMER, "/v1/timers/{id}/attempts", "/v1/timers/{id}/explain"] {
        assert_eq!(checked.call(Method::GET, path, "for-workers", None).await.status, 200);
    }
    for query in ["queue=reports", "to=group:g7", "worker=w1"] {
        assert_eq!(checked.call(Method::GET, &format!("/v1/timers?{query}"), "", None).await.status, 200);
    }
    let cancelled = checked.call(Method::DELETE, TIMER, "for-workers", None).await;
    assert_eq!((cancelled.status, cancelled.body), (200, json!({"outcome": "stopped", "acked": 1})));
    assert_eq!(checked.call(Method::DELETE, one, "reports", None).await.status, 200);
}

/// Timers of every state, with all fields and with none.
async fn one_timer_in_each_state(checked: &mut Checked<'_>) {
    let receiver = Receiver::start().await;
    let full = json!({"fire_at": "2030-01-01T09:00:00+08:00", "owner": "user:1", "data": {"n": 1.50},
        "target": {"webhook": {"url": NOWHERE, "secret": "whsec_c2VjcmV0", "headers": {"X-Tenant": "shop"}}},
        "labels": {"app": "shop"}, "priority": "normal", "precision": "minute", "spread": "PT5M",
        "late": {"grace": "P1D", "then": "expire"}, "retry": {"attempts": 3, "first": "PT1S", "cap": "PT1M"}});
    let expired = json!({"fire_at": "2020-01-01T00:00:00Z", "target": to(NOWHERE),
        "late": {"grace": "PT1M", "then": "expire"}});
    let local = json!({"local": "2030-01-01T09:00", "zone": "Etc/GMT+1", "target": to(NOWHERE)});
    let dead = with(now(receiver.url("/status/500")), "retry", quick(2));
    let retrying = with(now(receiver.url("/status/500")), "retry", json!({"attempts": 2, "first": "PT1H"}));
    for (id, timer) in [
        ("full", full),
        ("local", local),
        ("scheduled", later()),
        ("cancelled", later()),
        ("delivered", now(receiver.url("/ok"))),
        ("dead", dead),
        ("expired", expired),
        ("retrying", retrying),
        ("refused", with(now(NOWHERE), "retry", quick(1))),
        ("hanging", now(receiver.url("/hang"))),
    ] {
        assert!(checked.document.allows_put(&timer), "{timer}");
        let put =
            async |checked: &mut Checked<'_>| checked.call(Method::PUT, TIMER, id, Some(&timer)).await.status;
        assert_eq!((put(checked).await, put(checked).await), (201, 200), "{id}");
    }
    let other = with(later(), "data", json!(1));
    assert_eq!(checked.call(Method::PUT, TIMER, "scheduled", Some(&other)).await.status, 409);
    assert_eq!(checked.call(Method::DELETE, TIMER, "cancelled", None).await.status, 200);
    for state in ["scheduled", "cancelled", "delivered", "dead", "expired", "retrying"] {
        in_state(&checked.api, state, state).await;
    }
    in_state(&checked.api, "refused", "dead").await;
    receiver.wait_until(|all| all.iter().any(|one| one.timer == "hanging"), LONG).await;
    assert_eq!(checked.call(Method::DELETE, TIMER, "hanging", None).await.status, 409);
    let hanging = checked.call(Method::GET, TIMER, "hanging", None).await;
    assert_eq!(hanging.body["cancel_requested"], true, "{}", hanging.body);
    for id in [
        "full",
        "local",
        "scheduled",
        "cancelled",
        "delivered",
        "dead",
        "expired",
        "retrying",
        "refused",
        "hanging",
    ] {
        for path in [TIMER, "/v1/timers/{id}/attempts", "/v1/timers/{id}/explain"] {
            assert_eq!(checked.call(Method::GET, path, id, None).await.status, 200);
        }
    }
    let change = json!({"fire_at": "2031-01-01T00:00:00Z", "data": null, "labels": {}, "priority": "normal"});
    assert!(checked.document.allows_patch(&change));
    let change = change.to_string();
    for (id, tag, status) in [("full", "*", 200), ("full", "\"1\"", 412), ("delivered", "*", 409)] {
        let answer = checked.call_with(Method::PATCH, TIMER, id, &[("if-match", tag)], Some(&change)).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    for (id, status) in [("full", 202), ("cancelled", 409)] {
        assert_eq!(checked.call(Method::POST, "/v1/timers/{id}/fire", id, None).await.status, status);
    }
    for (id, status) in [("local", 200), ("cancelled", 409)] {
        for path in ["/v1/timers/{id}/pause", "/v1/timers/{id}/resume"] {
            assert_eq!(checked.call(Method::POST, path, id, None).await.status, status);
        }
    }
}

/// Schedules of every form, with all fields and with none; and what is refused.
async fn schedules(checked: &mut Checked<'_>) {
    const ONE: &str = "/v1/schedules/{id}";
    let full = json!({"daily": {"at": "09:00:30.5", "every_days": 2}, "zone": "Asia/Shanghai",
        "start_at": "2030-01-01T09:00:00+08:00", "end_at": "2031-01-01T00:00:00Z", "max_occurrences": 5,
        "missed": {"policy": "fire_once", "within": "P1D"}, "overlap": "queue_one", "owner": "user:1", "data": {"n": 1.50},
        "target": {"webhook": {"url": NOWHERE, "secret": "whsec_c2VjcmV0", "headers": {"X-Tenant": "shop"}}},
        "labels": {"app": "shop"}, "priority": "high", "precision": "minute", "spread": "PT5M",
        "late": {"grace": "P1D", "then": "expire"}, "retry": {"attempts": 3, "first": "PT1S", "cap": "PT1M"},
        "merge": {"window": "PT1S"}});
    let every = json!({"every": "PT1H", "target": {"destination": "full"}});
    for (id, body, status) in
        [("full", &full, 201), ("full", &full, 200), ("every", &every, 201), ("t", &yearly(), 201)]
    {
        assert!(checked.document.faults("/components/schemas/Schedule", body).is_empty(), "{body}");
        assert_eq!(checked.call(Method::PUT, ONE, id, Some(body)).await.status, status, "{id}");
        assert_eq!(checked.call(Method::GET, ONE, id, None).await.status, 200);
    }
    for (method, tag, status) in
        [(Method::PATCH, "*", 200), (Method::PATCH, "\"99\"", 412), (Method::PUT, "\"99\"", 412)]
    {
        let body = json!({"labels": {"a": "b"}, "cron": "@daily", "target": to(NOWHERE)}).to_string();
        let answer = checked.call_with(method, ONE, "every", &[("if-match", tag)], Some(&body)).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    for (verb, status) in [("pause", 200), ("resume", 200), ("run", 201)] {
        assert_eq!(checked.call(Method::POST, &format!("{ONE}/{verb}"), "t", None).await.status, status);
    }
    let range = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"});
    assert_eq!(checked.call(Method::POST, &format!("{ONE}/backfill"), "t", Some(&range)).await.status, 200);
    for (path, status) in [
        ("/v1/schedules?state=active&limit=1", 200),
        ("/v1/schedules?state=asleep", 422),
        ("/v1/schedules/upcoming?to=2040-01-01T00:00:00Z", 200),
        ("/v1/schedules/upcoming?from=soon", 422),
        ("/v1/schedules/{id}/next?count=2", 200),
        ("/v1/schedules/{id}/skipped?limit=2", 200),
    ] {
        assert_eq!(checked.call(Method::GET, path, "t", None).await.status, status, "{path}");
    }
    assert_eq!(checked.call(Method::DELETE, ONE, "every", None).await.status, 200);
}

/// A destination with everything, and one that fails; and what is refused.
async fn destinations(checked: &mut Checked<'_>) {
    const ONE: &str = "/v1/destinations/{name}";
    let receiver = Receiver::start().await;
    let hook = json!({"url": receiver.url("/ok"), "secret": "whsec_c2VjcmV0",
        "headers": {"X-Tenant": "shop", "authorization": "x"}});
    let full = json!({"webhook": hook, "concurrency": 3, "rate_per_second": 9, "timeout": "PT1S",
        "retry": {"attempts": 2, "first": "PT1S", "cap": "PT1M"}});
    for (name, body, status) in [
        ("full", &full, 201),
        ("full", &full, 200),
        ("failing", &json!({"webhook": {"url": receiver.url("/status/500")}}), 201),
        ("unused", &json!({"webhook": {"url": receiver.url("/ok")}}), 201),
        (
            "stream",
            &json!({"redis_stream": {"url": "redis://u:p@127.0.0.1:9/0", "stream": "s", "max_len": 9}}),
            201,
        ),
        (
            "topic",
            &json!({"mqtt": {"url": "mqtts://u:p@127.0.0.1:9", "topic": "a/b", "qos": 2, "version": 5}}),
            201,
        ),
        ("old", &json!({"mqtt": {"url": "mqtt://127.0.0.1:9", "topic": "a", "version": 3}}), 201),
        (
            "records",
            &json!({"kafka": {"brokers": "127.0.0.1:9,[::1]:9", "topic": "a.b", "user": "u", "password": "p",
                "mechanism": "scram-sha-256", "tls": true}}),
            201,
        ),
        (
            "subject",
            &json!({"nats": {"url": "tls://u:p@127.0.0.1:9", "subject": "a.b", "jetstream": true}}),
            201,
        ),
        (
            "exchange",
            &json!({"amqp": {"url": "amqps://u:p@127.0.0.1:9/v", "exchange": "x", "routing_key": "k"}}),
            201,
        ),
    ] {
        assert!(checked.document.faults("/components/schemas/Destination", body).is_empty(), "{body}");
        assert_eq!(checked.call(Method::PUT, ONE, name, Some(body)).await.status, status);
    }
    for (id, name) in [("to-full", "full"), ("to-failing", "failing")] {
        let timer = json!({"delay": "PT0S", "target": {"destination": name}, "retry": {"attempts": 5, "first": "PT1H"}});
        assert!(checked.document.allows_put(&timer), "{timer}");
        assert_eq!(checked.call(Method::PUT, TIMER, id, Some(&timer)).await.status, 201);
    }
    in_state(&checked.api, "to-full", "delivered").await;
    in_state(&checked.api, "to-failing", "retrying").await;
    for name in ["full", "failing"] {
        for verb in ["test", "pause", "resume"] {
            assert_eq!(checked.call(Method::POST, &format!("{ONE}/{verb}"), name, None).await.status, 200);
        }
        assert_eq!(checked.call(Method::GET, ONE, name, None).await.status, 200);
    }
    assert_eq!(checked.call(Method::GET, "/v1/destinations", "", None).await.status, 200);
    let part = json!({"webhook": {"secret": null}}).to_string();
    for (tag, status) in [("*", 200), ("\"99\"", 412)] {
        let tag = [("if-match", tag)];
        assert_eq!(checked.call_with(Method::PATCH, ONE, "full", &tag, Some(&part)).await.status, status);
    }
    let stale =
        checked.call_with(Method::PUT, ONE, "full", &[("if-match", "\"99\"")], Some(&full.to_string())).await;
    assert_eq!(stale.status, 412);
    for (name, status) in [("unused", 200), ("failing", 409)] {
        assert_eq!(checked.call(Method::DELETE, ONE, name, None).await.status, status);
    }
    for bad in [
        json!({"webhook": {"url": NOWHERE}, "concurrency": 0}),
        json!({"webhook": {"url": NOWHERE}, "rate_per_second": 0}),
        json!({"webhook": {"url": NOWHERE}, "timeout": "soon"}),
        json!({"webhook": {"url": "ftp://a/"}}),
        json!({"redis_stream": {"url": "http://a/", "stream": "s"}}),
        json!({"redis_stream": {"url": "redis://a/", "stream": ""}}),
        json!({"amqp": {"url": "redis://a/", "exchange": "x"}}),
        json!({"mqtt": {"url": "mqtt://a/", "topic": "a/#"}}),
        json!({"mqtt": {"url": "mqtt://a/", "topic": "a", "qos": 0}}),
        json!({"mqtt": {"url": "mqtt://a/", "topic": "a", "version": 4}}),
        json!({"kafka": {"brokers": "http://a", "topic": "t"}}),
        json!({"kafka": {"brokers": "a", "topic": "a b"}}),
        json!({"kafka": {"brokers": "a", "topic": "t", "mechanism": "gssapi"}}),
        json!({"nats": {"url": "mqtt://a/", "subject": "a"}}),
        json!({"nats": {"url": "nats://a/", "subject": "a..b"}}),
        json!({}),
    ] {
        assert!(!checked.document.faults("/components/schemas/Destination", &bad).is_empty(), "{bad}");
        assert_eq!(checked.call(Method::PUT, ONE, "bad", Some(&bad)).await.status, 422);
    }
}

/// An operation on nothing much: dead timers of a destination that there is not.
fn redrive() -> Value {
    json!({"action": "redrive", "filter": {"destination": "nobody", "label.app": "shop"}, "dry_run": true})
}

/// Operations that run, have ended and are stopped; and as many as there may be.
async fn operations(checked: &mut Checked<'_>, node: &Node) {
    const ONE: &str = "/v1/operations/{id}";
    assert!(checked.document.faults("/components/schemas/Operation", &redrive()).is_empty());
    let begun = checked.call(Method::POST, "/v1/operations", "", Some(&redrive())).await;
    assert_eq!(begun.status, 202, "{}", begun.body);
    let id = begun.body["id"].as_str().expect("an id").to_owned();
    crate::support::eventually("it ends", LONG, async || {
        let one = checked.call(Method::GET, ONE, &id, None).await;
        if one.body["state"] == "done" { Ok(()) } else { Err(one.body) }
    })
    .await;
    assert_eq!(checked.call(Method::POST, &format!("{ONE}/stop"), &id, None).await.status, 409);
    let since = json!({"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"});
    let of_one = "/v1/destinations/{name}/redrive";
    assert_eq!(checked.call(Method::POST, of_one, "full", Some(&since)).await.status, 202);
    // A node that never lets go works on a hundred.
    let store = format!("sqlite://{}/mainspring.db", node.dir().display());
    run_sql(
        &store,
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 100) \
         INSERT INTO operations (namespace, id, action, filter, selection, dry_run, state, matched, done, refused, \
         created_at, lease_until) SELECT 0, unhex(printf('%032x', n)), 'redrive', '{\"owner\":\"me\"}', '{}', false, 0, \
         0, 0, '{\"id_taken\":1}', 1, 9000000000000 FROM n",
    )
    .await;
    assert_eq!(checked.call(Method::POST, "/v1/operations", "", Some(&redrive())).await.status, 409);
    assert_eq!(checked.call(Method::POST, of_one, "full", Some(&since)).await.status, 409);
    assert_eq!(checked.call(Method::GET, "/v1/operations", "", None).await.status, 200);
    for n in 1..=100 {
        let stop = format!("{ONE}/stop");
        let stopped = checked.call(Method::POST, &stop, &format!("op_{n:032x}"), None).await;
        assert_eq!((stopped.status, &stopped.body["state"]), (200, &json!("stopped")), "{}", stopped.body);
    }
    for bad in [
        json!({"action": "explode", "filter": {"owner": "me"}}),
        json!({"action": "redrive", "filter": {}}),
        json!({"action": "redrive"}),
    ] {
        assert!(!checked.document.faults("/components/schemas/Operation", &bad).is_empty(), "{bad}");
        assert_eq!(checked.call(Method::POST, "/v1/operations", "", Some(&bad)).await.status, 422);
    }
}

/// Subscriptions with everything and with little; and what is refused.
async fn subscriptions(checked: &mut Checked<'_>) {
    const ONE: &str = "/v1/subscriptions/{name}";
    let little = json!({"destination": "full", "events": ["*"]});
    let full = json!({"destination": "full", "events": ["timer.dead", "queue.leased"], "include_data": true,
        "filter": {"id": ["a", "b"], "owner": "me", "label.app": "shop", "state": "dead"}});
    for (name, body, status) in [("full", &full, 201), ("full", &full, 200), ("little", &little, 201)] {
        assert!(checked.document.faults("/components/schemas/Subscription", body).is_empty(), "{body}");
        assert_eq!(checked.call(Method::PUT, ONE, name, Some(body)).await.status, status);
        assert_eq!(checked.call(Method::GET, ONE, name, None).await.status, 200);
    }
    assert_eq!(checked.call(Method::GET, "/v1/subscriptions", "", None).await.status, 200);
    for name in ["full", "little"] {
        assert_eq!(checked.call(Method::DELETE, ONE, name, None).await.status, 200);
    }
    for bad in [
        json!({"destination": "full", "events": []}),
        json!({"destination": "full", "events": ["timer.eaten"]}),
        json!({"destination": "full", "events": ["timer.dead", "timer.dead"]}),
        json!({"destination": "", "events": ["*"]}),
        json!({"destination": "full", "events": ["*"], "filter": []}),
        json!({"destination": "full"}),
        json!({"events": ["*"]}),
        json!({"destination": "full", "events": ["*"], "colour": 1}),
    ] {
        assert!(!checked.document.faults("/components/schemas/Subscription", &bad).is_empty(), "{bad}");
        assert_eq!(checked.call(Method::PUT, ONE, "bad", Some(&bad)).await.status, 422);
    }
}

/// Templates with everything and with little, a timer by one; and what is refused.
async fn templates(checked: &mut Checked<'_>) {
    const ONE: &str = "/v1/templates/{name}";
    let full = json!({"schema": {"type": "object", "required": ["a"]}, "defaults": {"b": 1}});
    for (name, body, status) in
        [("full", &full, 201), ("full", &full, 200), ("little", &json!({"schema": true}), 201)]
    {
        assert!(checked.document.faults("/components/schemas/Template", body).is_empty(), "{body}");
        assert_eq!(checked.call(Method::PUT, ONE, name, Some(body)).await.status, status);
        assert_eq!(checked.call(Method::GET, ONE, name, None).await.status, 200);
    }
    assert_eq!(checked.call(Method::GET, "/v1/templates", "", None).await.status, 200);
    let timer = with(with(later(), "template", json!("full")), "data", json!({"a": 1}));
    assert!(checked.document.allows_put(&timer));
    assert_eq!(checked.call(Method::PUT, TIMER, "by-template", Some(&timer)).await.status, 201);
    assert_eq!(checked.call(Method::DELETE, ONE, "full", None).await.status, 409);
    assert_eq!(checked.call(Method::DELETE, ONE, "little", None).await.status, 200);
    for bad in [
        json!({}),
        json!({"schema": 7}),
        json!({"schema": true, "defaults": []}),
        json!({"schema": true, "colour": 1}),
    ] {
        assert!(!checked.document.faults("/components/schemas/Template", &bad).is_empty(), "{bad}");
        assert_eq!(checked.call(Method::PUT, ONE, "bad", Some(&bad)).await.status, 422);
    }
}

/// Registered by POST, in a batch and in a stream, with refused ones among them; and listed.
async fn many_timers(checked: &mut Checked<'_>) {
    let post = "/v1/timers";
    for status in [201, 200] {
        let body = later().to_string();
        let key = [("idempotency-key", "k")];
        assert_eq!(checked.call_with(Method::POST, post, "", &key, Some(&body)).await.status, status);
    }
    let items = [
        with(later(), "id", json!("many")),
        with(later(), "id", json!("many")),
        json!({"id": "many", "delay": "PT2H", "target": to(NOWHERE)}),
        json!({"id": "bad", "delay": "soon", "labels": {"": 1}}),
        json!(7),
    ];
    let batch = checked.call(Method::POST, "/v1/timers/batch", "", Some(&json!({"timers": items}))).await;
    let statuses = |results: &[Value]| results.iter().map(|one| one["status"].clone()).collect::<Vec<_>>();
    assert_eq!(statuses(batch.body["results"].as_array().expect("results")), [201, 200, 409, 422, 422]);
    let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
    for (kind, status) in [("application/x-ndjson", 200), ("text/plain", 415)] {
        let headers = [("content-type", kind)];
        let answer = checked.call_with(Method::POST, "/v1/timers/stream", "", &headers, Some(&lines)).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    let page = async |checked: &mut Checked<'_>, query: &str| {
        checked.call(Method::GET, &format!("/v1/timers{query}"), "", None).await
    };
    let all = page(checked, "").await;
    assert!(all.body["items"].as_array().is_some_and(|items| items.len() >= 12), "{}", all.body);
    assert_eq!(all.body["next"], Value::Null);
    let first = page(checked, "?limit=1").await;
    let cursor = first.body["next"].as_str().expect("a next page");
    assert_eq!(page(checked, &format!("?limit=1&cursor={cursor}")).await.status, 200);
    assert_eq!(page(checked, "?limit=0").await.status, 422);
}

/// The check itself: whatever is taken out of the document is missed.
#[tokio::test]
async fn an_answer_that_the_document_does_not_know_is_found() {
    let node = Node::builder().start_ready().await;
    let api = node.api();
    let document = Document::of(&api).await;
    assert_eq!(api.put("t", &later()).await.0, 201);
    let answer = async |id: &str| api.send(Method::GET, &format!("/v1/timers/{id}"), &[], None).await;
    let (found, missing) = (answer("t").await, answer("none").await);
    let without = |pointer: &str, name: &str| {
        let mut json = document.json.clone();
        let fields = json.pointer_mut(pointer).and_then(Value::as_object_mut).expect("it is there");
        assert!(fields.remove(name).is_some(), "{pointer} has {name}");
        Document { json, validators: Mutex::default(), seen: BTreeSet::new() }
    };
    for (status, answer) in [(200, &found), (404, &missing)] {
        assert_eq!(answer.status, status);
        assert_eq!(document.knows(&Method::GET, TIMER, answer), Ok(()));
    }
    for (answer, pointer, name) in [
        (&found, "/components/schemas/TimerView/properties", "owner"),
        (&found, "/components/schemas/WebhookView/properties", "signed"),
        (&found, "/components/schemas/RetryView/properties", "cap"),
        (&missing, "/components/schemas/Problem/properties", "code"),
        (&missing, "/paths/~1v1~1timers~1{id}/get/responses", "404"),
        (&missing, "/paths/~1v1~1timers~1{id}/get/responses/404/content", "application/problem+json"),
    ] {
        let document = without(pointer, name);
        assert!(document.knows(&Method::GET, TIMER, answer).is_err(), "without {pointer}/{name}");
    }
    for name in ["owner", "template", "priority", "spread", "late", "tier", "schedule", "next_attempt_at"] {
        let mut short = found.clone();
        short.body.as_object_mut().expect("a timer").remove(name);
        assert!(document.knows(&Method::GET, TIMER, &short).is_err(), "an answer without {name}");
    }
}
