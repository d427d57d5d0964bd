//! Destinations that are brokers: what holds for each kind, and of each kind what is its own.
//!
//! What arrived is read by another client than the one that sent it.

mod kafka;
mod mosquitto;
mod nats;
mod rabbitmq;
mod redis;

use std::collections::BTreeSet;
use std::path::PathBuf;

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{LONG, call, get, made, now, put};
use crate::support::{Api, Node, Receiver, ask_sql, eventually, fresh_database, in_state};

/// A broker, and one place on it that nobody else has.
trait TestBroker: Sized {
    /// The word of its kind.
    const KIND: &'static str;
    /// What it says to a wrong password.
    const NOT_LET_IN: &'static str;

    /// A broker that listens with TLS, too, and that other tests may have at the same time.
    async fn any() -> Self;

    /// One of the test's own.
    async fn own() -> Self;

    /// The place, reached this way.
    fn place(&self, via: &Via) -> Value;

    /// Its events so far, the oldest first: attributes by their bare names, the payload as `data`.
    async fn arrived(&mut self) -> Vec<Value>;

    /// The certificate of its host `localhost`, which signs itself.
    fn certificate(&self) -> PathBuf;

    async fn kill(&self);
    async fn start_again(&mut self);
    /// Stops it in its tracks, and lets it go on.
    fn freeze(&self);
    fn thaw(&self);
}

/// How a place is reached.
#[derive(Clone, Copy)]
struct Via {
    host: &'static str,
    tls: bool,
    /// `user:password`; either may be missing.
    credentials: &'static str,
}

/// Without TLS, with the right password.
const PLAIN: Via = Via { host: "127.0.0.1", tls: false, credentials: RIGHT };
const RIGHT: &str = "shop:t0p%2Fsecret";

/// A port of this machine that nobody listens on.
const NOBODY: u16 = 9;

/// `scheme://user:password@host:port/`
fn url(scheme: &str, via: &Via, port: u16) -> String {
    let tls = if via.tls { "s" } else { "" };
    format!("{scheme}{tls}://{}@{}:{port}/", via.credentials, via.host)
}

/// A certificate of `localhost` that signs itself, and its key, in PEM files of a directory of their own.
struct Certificate(TempDir);

impl Certificate {
    fn new() -> Self {
        let certificate = Self(tempfile::tempdir().expect("a directory"));
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        std::fs::write(certificate.path(), key.cert.pem()).expect("written");
        std::fs::write(certificate.key(), key.signing_key.serialize_pem()).expect("written");
        certificate
    }

    /// The certificate.
    fn path(&self) -> PathBuf {
        self.0.path().join("cert.pem")
    }

    /// Its key.
    fn key(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }
}

async fn test(api: &Api, name: &str) -> Value {
    let answer = call(api, Method::POST, name, "/test", None).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.body
}

/// Tries a destination that does not take it; the words are in the reason, and no secret is.
async fn refused(api: &Api, name: &str, result: &str, words: &str) {
    let tried = test(api, name).await;
    assert_eq!(tried["result"], result, "{tried}");
    assert!(tried["detail"].as_str().expect("a text").contains(words), "{words}: {tried}");
    assert!(!tried.to_string().contains("t0p"), "{tried}");
}

/// Tries a destination until it takes it.
async fn taken_in_the_end(api: &Api, name: &str, what: &str) {
    eventually(what, LONG, async || {
        let tried = test(api, name).await;
        if tried["result"] == "ok" { Ok(()) } else { Err(tried.to_string()) }
    })
    .await;
}

/// A timer for this destination, due at once, whose data has this many bytes.
fn sized(name: &str, bytes: usize) -> Value {
    let mut timer = now(name);
    timer["data"] = json!("x".repeat(bytes));
    timer
}

/// Registers a timer whose first attempt is its last one; the words are in the reason.
async fn dead_at_once(api: &Api, id: &str, timer: &Value, words: &str) {
    assert_eq!(api.put(id, timer).await.0, 201);
    let dead = in_state(api, id, "dead").await;
    assert_eq!(dead["attempts"], 1, "{dead}");
    let (_, attempts) = api.get(&format!("/v1/timers/{id}/attempts")).await;
    assert!(attempts.to_string().contains(words), "{words}: {attempts}");
}

/// An event of this many bytes, `large`, is more than the broker takes: dead at once. One that `fits` is delivered after
/// it, and does not suffer for it.
async fn what_is_too_large_is_dead_at_once(api: &Api, name: &str, bytes: usize, words: &str) {
    dead_at_once(api, "large", &sized(name, bytes), words).await;
    assert_eq!(api.put("fits", &sized(name, bytes - 1000)).await.0, 201);
    in_state(api, "fits", "delivered").await;
}

/// A test and a firing, with all that is told; then many at once, each one time.
async fn events_arrive<B: TestBroker>() {
    let node = Node::builder().start_ready().await;
    let (api, mut broker) = (node.api(), B::any().await);
    let shown = made(&api, "there", &broker.place(&PLAIN)).await;
    assert_eq!((&shown["kind"], &shown["state"]), (&json!(B::KIND), &json!("ok")));
    let tried = test(&api, "there").await;
    assert_eq!(tried["result"], "ok", "{tried}");
    let timer = json!({"delay": "PT0S", "target": {"destination": "there"}, "data": {"house": "a ü\n\"b\""}, "owner": "user:1"});
    assert_eq!(api.put("one", &timer).await.0, 201);
    let one = in_state(&api, "one", "delivered").await;
    let got = broker.arrived().await;
    let [first, second] = &got[..] else { panic!("{got:?}") };
    for (field, value) in [
        ("type", json!("mainspring.test.v1")),
        ("subject", json!("there")),
        ("id", tried["delivery_id"].clone()),
    ] {
        assert_eq!(first[field], value, "{field}: {first}");
    }
    let (_, attempts) = api.get("/v1/timers/one/attempts").await;
    for (field, value) in [
        ("id", attempts["items"][0]["delivery_id"].as_str().expect("a text")),
        ("specversion", "1.0"),
        ("type", "mainspring.timer.fired.v1"),
        ("source", "/mainspring/default"),
        ("subject", "one"),
        ("dueat", one["due_at"].as_str().expect("a time")),
        ("attempt", "1"),
        ("generation", "1"),
        ("datacontenttype", "application/json"),
    ] {
        assert_eq!(second[field], value, "{field}: {second}");
    }
    let data: Value = serde_json::from_str(second["data"].as_str().expect("a text")).expect("JSON");
    assert_eq!(data, timer["data"]);

    let timers: Vec<Value> = (0..500)
        .map(|n| {
            let mut timer = now("there");
            timer["id"] = json!(format!("m{n}"));
            timer
        })
        .collect();
    let (status, _) = api.post("/v1/timers/batch", &json!({"timers": timers})).await;
    assert_eq!(status, 200);
    eventually("all are delivered", LONG, async || {
        let delivered = api.ledger().await.delivered;
        if delivered == 501 { Ok(()) } else { Err(format!("{delivered}")) }
    })
    .await;
    let got = broker.arrived().await;
    let subjects: BTreeSet<_> = got.iter().map(|one| one["subject"].to_string()).collect();
    assert_eq!((got.len(), subjects.len()), (502, 502));
}

/// Nobody there, a wrong password, no password.
async fn who_is_not_let_in_is_told<B: TestBroker>() {
    let node = Node::builder().start_ready().await;
    let (api, mut broker) = (node.api(), B::any().await);
    for credentials in ["shop:t0p-wrong", "nobody:t0p-wrong"] {
        put(&api, "there", &broker.place(&Via { credentials, ..PLAIN })).await;
        refused(&api, "there", "refused", B::NOT_LET_IN).await;
    }
    let mut nowhere = broker.place(&PLAIN);
    let at = &mut nowhere[B::KIND]["url"];
    let mut there: url::Url = at.as_str().expect("a text").parse().expect("a URL");
    there.set_port(Some(NOBODY)).expect("a port");
    *at = json!(there.as_str());
    put(&api, "there", &nowhere).await;
    refused(&api, "there", "refused", "no connection").await;
    assert!(broker.arrived().await.is_empty());
}

/// Frozen and killed with attempts under way: everything arrives, nothing is told to have arrived that has not, and other
/// destinations go on.
async fn one_that_goes_and_comes_back_loses_nothing<B: TestBroker>() {
    let node = Node::builder().start_ready().await;
    let (api, mut broker, receiver) = (node.api(), B::own().await, Receiver::start().await);
    let retry = json!({"attempts": 100, "first": "PT0.1S", "cap": "PT0.5S"});
    let mut place = broker.place(&PLAIN);
    // Long enough for a connection on a busy machine.
    (place["retry"], place["timeout"]) = (retry, json!("PT3S"));
    made(&api, "there", &place).await;
    made(&api, "hook", &json!({"webhook": {"url": receiver.url("/ok")}})).await;
    let tried = test(&api, "there").await;
    assert_eq!(tried["result"], "ok", "{tried}");

    broker.freeze();
    assert_eq!(api.put("frozen", &now("there")).await.0, 201);
    assert_eq!(api.put("beside", &now("hook")).await.0, 201);
    in_state(&api, "beside", "delivered").await;
    let first = async || api.get("/v1/timers/frozen/attempts").await.1["items"][0].clone();
    eventually(
        "an attempt has ended",
        LONG,
        async || {
            if first().await.is_null() { Err("not yet") } else { Ok(()) }
        },
    )
    .await;
    assert_eq!(first().await["result"], "timeout");
    broker.thaw();
    in_state(&api, "frozen", "delivered").await;

    broker.kill().await;
    eventually("the node knows", LONG, async || {
        let tried = test(&api, "there").await;
        if tried["result"] == "refused" { Ok(()) } else { Err(tried.to_string()) }
    })
    .await;
    assert_eq!(api.put("killed", &now("there")).await.0, 201);
    in_state(&api, "killed", "retrying").await;
    let (_, attempts) = api.get("/v1/timers/killed/attempts").await;
    assert_eq!(attempts["items"][0]["result"], "refused", "nothing was sent: {attempts}");
    broker.start_again().await;
    in_state(&api, "killed", "delivered").await;
    let (_, attempts) = api.get("/v1/timers/killed/attempts").await;
    let attempts = attempts["items"].as_array().expect("a list");
    let sent = attempts.iter().filter(|attempt| attempt["result"] != "refused").count();
    let got = broker.arrived().await;
    for id in ["frozen", "killed"] {
        let of: Vec<_> = got.iter().filter(|one| one["subject"] == id).collect();
        assert!(!of.is_empty() && of.iter().all(|one| one["id"] == of[0]["id"]), "one delivery id: {of:?}");
    }
    // One, but where a broker that had just started was too slow to confirm it in time.
    let killed = got.iter().filter(|one| one["subject"] == "killed").count();
    assert!(killed <= sent, "{killed} came of {sent} that were sent: {attempts:?}");
    assert_eq!(get(&api, "there").await["state"], "ok");
}

/// The certificate has to be of the host, and trusted.
async fn connections_are_encrypted_and_the_certificate_is_of_the_host<B: TestBroker>() {
    only_the_host_of_its_certificate_is_reached(B::any().await).await;
}

/// The same for this broker.
async fn only_the_host_of_its_certificate_is_reached(mut broker: impl TestBroker) {
    let place = |host| broker.place(&Via { host, tls: true, ..PLAIN });
    let trusted = broker.certificate();
    let trusting =
        Node::builder().env("SSL_CERT_FILE", trusted.to_str().expect("text").to_owned()).start_ready().await;
    made(&trusting.api(), "named", &place("localhost")).await;
    let tried = test(&trusting.api(), "named").await;
    assert_eq!(tried["result"], "ok", "{tried}");
    made(&trusting.api(), "other", &place("127.0.0.1")).await;
    refused(&trusting.api(), "other", "refused", "TLS").await;
    let strange = Node::builder().start_ready().await;
    made(&strange.api(), "named", &place("localhost")).await;
    refused(&strange.api(), "named", "refused", "TLS").await;
    assert_eq!(broker.arrived().await.len(), 1);
}

/// Sealed in the store, never shown, kept by a change that leaves the place where it is, and taken nowhere else.
async fn the_password_is_sealed_kept_and_not_taken_elsewhere<B: TestBroker>() {
    let store = fresh_database().await;
    let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    let node = Node::builder().cold(&store).env("MAINSPRING__SERVER__SECRETS_KEY", key).start_ready().await;
    let (api, mut broker) = (node.api(), B::any().await);
    let body = broker.place(&PLAIN);
    let given = body[B::KIND]["url"].as_str().expect("a text");
    let without = given.replace("shop:t0p%2Fsecret@", "shop@");
    let shown = made(&api, "there", &body).await;
    let place = &shown[B::KIND];
    assert_eq!((&place["url"], &place["authenticated"]), (&json!(without), &json!(true)), "{shown}");
    assert!(!shown.to_string().contains("t0p"), "{shown}");
    assert_eq!(test(&api, "there").await["result"], "ok");
    let stored = ask_sql(&store, "SELECT settings || encode(secrets, 'escape') FROM destinations").await;
    assert!(stored.contains(B::KIND) && !stored.contains("t0p"), "{stored}");

    // The URL as it is shown is the same place: the password stays. Another host gets none; for NATS, where a user alone
    // may be a token, it is to be given.
    let patch = async |url: &str| {
        let part = json!({B::KIND: {"url": url}, "timeout": "PT5S"});
        call(&api, Method::PATCH, "there", "", Some(&part)).await.body
    };
    assert_eq!(patch(&without).await[B::KIND]["authenticated"], true);
    assert_eq!(test(&api, "there").await["result"], "ok");
    assert_eq!(broker.arrived().await.len(), 2);
    let elsewhere = without.replace("127.0.0.1", "127.0.0.2");
    let moved = patch(&elsewhere).await;
    match B::KIND {
        "nats" => assert_eq!(moved["errors"][0]["code"], "password_needed", "{moved}"),
        kind => assert_eq!(moved[kind]["authenticated"], false, "{moved}"),
    }

    // One kind takes the place of another.
    let part = json!({B::KIND: null, "webhook": {"url": "http://127.0.0.1:9/"}});
    let changed = call(&api, Method::PATCH, "there", "", Some(&part)).await;
    assert_eq!((changed.status, &changed.body["kind"]), (200, &json!("webhook")), "{:?}", changed.body);
    assert!(changed.body.get(B::KIND).is_none());
}

/// Makes a test of each, for one kind.
macro_rules! conforms {
    ($broker:ty: $($test:ident),+ $(,)?) => {
        $(#[tokio::test]
        async fn $test() {
            $crate::places::brokers::$test::<$broker>().await;
        })+
    };
    ($broker:ty) => {
        $crate::places::brokers::conforms!($broker:
            events_arrive,
            who_is_not_let_in_is_told,
            one_that_goes_and_comes_back_loses_nothing,
            connections_are_encrypted_and_the_certificate_is_of_the_host,
            the_password_is_sealed_kept_and_not_taken_elsewhere,
        );
    };
}
use conforms;
