//! `destination …`: make, read, change, try, pause and remove destinations on a running server.

mod place;

use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde::Serialize;
use serde_json::{Map, Value};

use self::place::Place;
use super::client::Client;
use super::delivery::{Extras, Retry, Webhook};
use super::exit::{Exit, usage};
use super::show::{self, Fields};
use super::{input, operation, out};
use crate::clock::{Clock, SystemClock};

/// The time limit of a test. The server answers every call within a minute, and an attempt may take that long.
const TEST_TIMEOUT: Duration = Duration::from_secs(65);

/// The fields of a destination that are shown first, in this order; all others follow by name.
const FIRST: [&str; 15] = [
    "state",
    "webhook",
    "redis_stream",
    "amqp",
    "mqtt",
    "nats",
    "kafka",
    "concurrency",
    "rate_per_second",
    "retry",
    "timeout",
    "in_flight",
    "waiting",
    "last_error",
    "last_error_at",
];

/// The longest URL or error in a cell.
const MAX_CELL: usize = 60;

/// `destination …`
#[derive(Subcommand)]
pub enum Verb {
    /// Make a destination, or put another in its place, its secrets too
    Put(Box<Put>),
    /// Change parts of a destination; the rest, its secrets too, stays
    Set(Box<Set>),
    /// Show a destination
    Get(Named),
    /// List all destinations by name
    Ls,
    /// Send one mainspring.test.v1 event there and show what came back; exit code 1 if it was not taken
    Test(Named),
    /// Keep what falls due for a destination
    Pause(Named),
    /// Send what was kept, oldest first
    Resume(Named),
    /// Run its dead timers again, by when they died, at its rate
    Redrive(Redrive),
    /// Remove a destination; exit code 4 if live timers go there
    Rm(Named),
}

#[derive(Args)]
pub struct Named {
    /// The destination
    #[arg(value_parser = input::name)]
    name: String,
}

#[derive(Args, Serialize)]
pub struct Redrive {
    /// The destination
    #[arg(value_parser = input::name)]
    #[serde(skip)]
    name: String,
    /// Timers that died at this time or later
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    since: String,
    /// Timers that died before this time [default: now]
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    until: Option<String>,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring destination put shop-orders --webhook https://shop.example/hook --rate 100\n  \
    mainspring destination put viewings --redis rediss://redis.example --password-file p --stream shop:viewings\n  \
    mainspring destination put meetings --amqp amqps://shop@rabbit.example/ --password-file p --exchange meetings\n  \
    mainspring destination put events --nats tls://shop@nats.example --password-file p --subject shop.events --jetstream\n  \
    mainspring destination put facts --kafka k1:9093,k2:9093 --kafka-topic facts --kafka-user shop --password-file p --kafka-tls\n  \
    mainspring timer put order-1 --in 30m --destination shop-orders")]
pub struct Put {
    /// Its name, to which timers are sent
    #[arg(value_parser = input::name)]
    name: String,
    /// Deliver to this http or https URL
    #[arg(long, value_name = "URL", required_unless_present_any = ["redis", "amqp", "mqtt", "nats", "kafka"])]
    webhook: Option<String>,
    #[command(flatten)]
    wanted: Wanted,
}

#[derive(Args)]
pub struct Set {
    /// The destination
    #[arg(value_parser = input::name)]
    name: String,
    /// Deliver to this http or https URL
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    #[command(flatten)]
    wanted: Wanted,
    /// Any number of attempts a second
    #[arg(long, conflicts_with = "rate")]
    no_rate: bool,
}

/// What a destination bears, as far as it is given.
#[derive(Args)]
#[group(skip)]
struct Wanted {
    #[command(flatten)]
    extras: Extras,
    #[command(flatten)]
    place: Place,
    /// At most this many attempts at once, for each node; webhook.concurrency of the settings unless set
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// At most this many attempts a second, all nodes together; any number unless set
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    #[command(flatten)]
    retry: Retry,
    /// The time limit of one attempt; webhook.timeout of the settings unless set
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    timeout: Option<String>,
}

/// The request of a `put` or `set`. A part that is not given is left out.
#[derive(Serialize)]
struct Request<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<Webhook<'a>>,
    /// The place of a broker, by the word of its kind.
    #[serde(flatten)]
    place: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    /// `Some(None)` removes the rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_per_second: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<&'a Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<&'a str>,
}

impl Wanted {
    fn request<'a>(&'a self, url: Option<&'a str>) -> anyhow::Result<Request<'a>> {
        Ok(Request {
            webhook: self.extras.webhook(url)?,
            place: self.place.given()?,
            concurrency: self.concurrency,
            rate_per_second: self.rate.map(Some),
            retry: self.retry.given(),
            timeout: self.timeout.as_deref(),
        })
    }
}

impl Set {
    fn request(&self) -> anyhow::Result<Request<'_>> {
        let mut request = self.wanted.request(self.webhook.as_deref())?;
        if self.no_rate {
            request.rate_per_second = Some(None);
        }
        if serde_json::to_string(&request)? == "{}" {
            return Err(usage("nothing to change is given; `destination set --help` shows what there is"));
        }
        Ok(request)
    }
}

/// Runs one `destination` verb.
pub async fn run(client: Client, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    match verb {
        Verb::Put(put) => {
            let request = put.wanted.request(put.webhook.as_deref())?;
            let reply = client.call(Method::PUT, &path(&put.name, ""), &[], Some(&request)).await?;
            show::put(&reply, json, |shown| line("put", shown))?;
        }
        Verb::Set(set) => {
            let request = set.request()?;
            let reply = client.call(Method::PATCH, &path(&set.name, ""), &[], Some(&request)).await?;
            show::one(&reply, json, |shown| line("set", shown))?;
        }
        Verb::Get(Named { name }) => {
            let reply = client.ask(Method::GET, &path(name, ""), &[]).await?;
            show::one(&reply, json, block)?;
        }
        Verb::Ls => {
            let reply = client.ask(Method::GET, "/v1/destinations", &[]).await?;
            show::all(&reply, json, "no destination yet", table)?;
        }
        Verb::Test(Named { name }) => return test(client, name, json).await,
        Verb::Pause(Named { name }) => {
            let reply = client.ask(Method::POST, &path(name, "/pause"), &[]).await?;
            show::one(&reply, json, |shown| line("pause", shown))?;
        }
        Verb::Resume(Named { name }) => {
            let reply = client.ask(Method::POST, &path(name, "/resume"), &[]).await?;
            show::one(&reply, json, |shown| line("resume", shown))?;
        }
        Verb::Redrive(redrive) => {
            let path = path(&redrive.name, "/redrive");
            operation::begun(&client.call(Method::POST, &path, &[], Some(redrive)).await?, json)?;
        }
        Verb::Rm(Named { name }) => {
            let reply = client.ask(Method::DELETE, &path(name, ""), &[]).await?;
            show::removed(&reply, json, name)?;
        }
    }
    Ok(Exit::Ok)
}

fn path(name: &str, rest: &str) -> String {
    format!("/v1/destinations/{name}{rest}")
}

async fn test(client: Client, name: &str, json: bool) -> anyhow::Result<Exit> {
    let reply = client.with_timeout(TEST_TIMEOUT)?.ask(Method::POST, &path(name, "/test"), &[]).await?;
    let answer: Fields = reply.read()?;
    let exit = if show::text(&answer, "result") == "ok" { Exit::Ok } else { Exit::Failed };
    out::verdict(&if json { reply.json } else { tested(name, &answer) }, exit)
}

/// `put shop-orders: ok, https://shop.example/hook`, and how many wait if any do.
fn line(verb: &str, destination: &Fields) -> String {
    let [name, state, waiting] = ["name", "state", "waiting"].map(|field| show::text(destination, field));
    let waiting = if waiting == "0" { String::new() } else { format!(", {waiting} waiting") };
    format!("{verb} {name}: {state}, {}{waiting}", place(destination))
}

fn block(destination: &Fields) -> String {
    let name = show::text(destination, "name");
    show::fields(&name, &FIRST, &["name"], destination, SystemClock.now())
}

/// What came back from a test.
fn tested(name: &str, answer: &Fields) -> String {
    let [result, detail] = ["result", "detail"].map(|field| show::text(answer, field));
    let detail = if detail.is_empty() { detail } else { format!(" ({detail})") };
    let title = format!("test {name}: {result}{detail}");
    show::fields(&title, &["status", "reply"], &["result", "detail"], answer, SystemClock.now())
}

fn table(destinations: &[Fields]) -> String {
    let head = ["NAME", "STATE", "ATTEMPTS/S", "LIMIT/S", "IN FLIGHT", "WAITING", "TO", "LAST ERROR"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in destinations {
        let [name, state, rate, limit, in_flight, waiting] =
            ["name", "state", "rate", "rate_per_second", "in_flight", "waiting"]
                .map(|field| show::text(one, field));
        let rate = rate.parse().map_or(rate, |rate: f64| format!("{rate:.1}"));
        let (to, error) = (place(one), show::text(one, "last_error"));
        let (to, error) = (out::short(&to, MAX_CELL), out::short(&error, MAX_CELL));
        rows.push(vec![name, state, rate, limit, in_flight, waiting, to, error]);
    }
    out::table(&rows)
}

/// Where a destination is: its URL, or the kind of one that the server cannot send to.
fn place(destination: &Fields) -> String {
    let inner = |field: &str| {
        let raw = destination.get(field)?;
        serde_json::from_str::<Fields>(raw.get()).ok()
    };
    if let Some(hook) = inner("webhook") {
        return show::text(&hook, "url");
    }
    let brokers: [(&str, &[&str]); 5] = [
        ("redis_stream", &["url", "stream"]),
        ("amqp", &["url", "exchange", "routing_key"]),
        ("mqtt", &["url", "topic"]),
        ("nats", &["url", "subject"]),
        ("kafka", &["brokers", "topic"]),
    ];
    for (kind, fields) in brokers {
        if let Some(place) = inner(kind) {
            let parts = fields.iter().map(|field| show::text(&place, field)).filter(|part| !part.is_empty());
            return parts.collect::<Vec<_>>().join(" ");
        }
    }
    format!("{} (this node cannot send there)", show::text(destination, "kind"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(json: serde_json::Value) -> Fields {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn only_what_is_given_is_sent() {
        let body = |line: &str| serde_json::to_value(input::parsed::<Set>(line).request().unwrap()).unwrap();
        for (line, sent) in [
            ("a --webhook http://a/", json!({"webhook": {"url": "http://a/"}})),
            ("a --header X-Tenant:shop", json!({"webhook": {"headers": {"x-tenant": "shop"}}})),
            ("a --secret whsec_AAAA", json!({"webhook": {"secret": "whsec_AAAA"}})),
            ("a --redis redis://h --stream s", json!({"redis_stream": {"url": "redis://h", "stream": "s"}})),
            ("a --max-len 9", json!({"redis_stream": {"max_len": 9}})),
            ("a --amqp amqp://h --exchange x", json!({"amqp": {"url": "amqp://h", "exchange": "x"}})),
            ("a --mqtt mqtt://h --topic a/b", json!({"mqtt": {"url": "mqtt://h", "topic": "a/b"}})),
            ("a --nats nats://h --subject a.b", json!({"nats": {"url": "nats://h", "subject": "a.b"}})),
            ("a --mqtt-version 3", json!({"mqtt": {"version": 3}})),
            (
                "a --kafka h:1,i:1 --kafka-topic t --kafka-user u --kafka-mechanism scram-sha-512 --kafka-tls",
                json!({"kafka": {"brokers": "h:1,i:1", "topic": "t", "user": "u", "mechanism": "scram-sha-512", "tls": true}}),
            ),
            ("a --jetstream", json!({"nats": {"jetstream": true}})),
            ("a --jetstream false", json!({"nats": {"jetstream": false}})),
            ("a --qos 2", json!({"mqtt": {"qos": 2}})),
            ("a --routing-key q", json!({"amqp": {"routing_key": "q"}})),
            ("a --concurrency 7 --rate 5", json!({"concurrency": 7, "rate_per_second": 5})),
            ("a --no-rate", json!({"rate_per_second": null})),
            (
                "a --attempts 3 --retry-cap 1m --timeout 3s",
                json!({"retry": {"attempts": 3, "cap": "PT1M"}, "timeout": "PT3S"}),
            ),
        ] {
            assert_eq!(body(line), sent, "{line}");
        }
        assert!(input::parsed::<Set>("a").request().is_err(), "nothing is given");
        let put = input::parsed::<Put>("a --webhook http://a/ --header X-A:1 --retry-first 2s");
        assert_eq!(
            serde_json::to_value(put.wanted.request(put.webhook.as_deref()).unwrap()).unwrap(),
            json!({"webhook": {"url": "http://a/", "headers": {"x-a": "1"}}, "retry": {"first": "PT2S"}})
        );
        let twice = input::parsed::<Set>("a --header X-A:1 --header x-a:2");
        assert!(twice.request().is_err(), "one value would be lost");
    }

    #[test]
    fn flags_of_two_kinds_exclude_each_other() {
        let flags = [
            "--webhook http://h/",
            "--stream s",
            "--exchange x",
            "--topic t",
            "--subject s",
            "--kafka-topic t",
        ];
        let more =
            ["--header X-A:1", "--redis redis://h", "--routing-key k", "--qos 1", "--jetstream", "--kafka h"];
        for (n, one) in flags.iter().enumerate() {
            input::parsed::<Set>(&format!("a {one} {}", more[n]));
            for other in flags.iter().chain(&more).filter(|other| *other != one && **other != more[n]) {
                assert!(input::try_parsed::<Set>(&format!("a {one} {other}")).is_err(), "{one} {other}");
            }
        }
    }

    #[test]
    fn a_destination_is_a_line_and_a_row() {
        let one =
            fields(json!({"name": "a", "state": "paused", "webhook": {"url": "http://a/x"}, "rate": 1.25,
            "rate_per_second": null, "in_flight": 1, "waiting": 3, "last_error": "answered 500\u{1b}"}));
        assert_eq!(line("pause", &one), "pause a: paused, http://a/x, 3 waiting");
        let row = table(&[one]);
        let cells: Vec<_> = row.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells, ["a", "paused", "1.2", "1", "3", "http://a/x", "answered", "500\\u{1b}"]);
        let other = json!({"name": "b", "state": "ok", "kind": "kafka", "waiting": 0});
        assert_eq!(line("set", &fields(other)), "set b: ok, kafka (this node cannot send there)");
        let stream = json!({"name": "c", "state": "ok", "kind": "redis_stream", "waiting": 0,
            "redis_stream": {"url": "redis://u@h", "stream": "s", "authenticated": true, "max_len": null}});
        assert_eq!(line("put", &fields(stream)), "put c: ok, redis://u@h s");
        let queue = json!({"name": "d", "state": "ok", "kind": "amqp", "waiting": 0,
            "amqp": {"url": "amqp://u@h", "exchange": "", "routing_key": "q", "authenticated": true}});
        assert_eq!(line("put", &fields(queue)), "put d: ok, amqp://u@h q");
    }

    #[test]
    fn a_test_shows_what_came_back() {
        let answer = json!({"result": "failed", "status": 418, "reply": "a teapot", "detail": "answered 418",
            "delivery_id": "dlv_1"});
        assert_eq!(
            tested("a", &fields(answer)),
            "test a: failed (answered 418)\n  status       418\n  reply        a teapot\n  delivery_id  dlv_1"
        );
        let silent = json!({"result": "ok", "delivery_id": "dlv_1"});
        assert_eq!(tested("a", &fields(silent)), "test a: ok\n  delivery_id  dlv_1");
    }
}
