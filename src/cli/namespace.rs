//! `namespace …`: which teams share the store, and what each may use, on a running server.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::exit::Exit;
use super::show::{self, Fields};
use super::{input, out};
use crate::clock::{Clock, SystemClock};

/// The fields of a namespace that are shown first, in this order; all others follow by name.
const FIRST: [&str; 3] = ["quotas", "networks", "number"];

/// The longest list of quotas in a cell.
const MAX_CELL: usize = 80;

/// `namespace …`
#[derive(Subcommand)]
pub enum Verb {
    /// Make a namespace, or say anew what one may use: what is left out has no limit
    Put(Put),
    /// Show a namespace
    Get(Named),
    /// List all namespaces by name
    Ls,
    /// Remove a namespace; exit code 4 if it has live timers, schedules, running operations or keys
    Rm(Named),
}

#[derive(Args)]
pub struct Named {
    /// The namespace
    #[arg(value_parser = input::name)]
    name: String,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring namespace put billing --live-timers 1000000 --horizon P90D\n  \
    mainspring key create billing-backend --scope register --namespace billing\n  \
    mainspring timer ls --in-namespace billing")]
pub struct Put {
    /// Its name
    #[arg(value_parser = input::name)]
    name: String,
    /// At most this many calls a second, all nodes together; each timer of a batch counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    requests_per_second: Option<u32>,
    /// At most this many live timers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    live_timers: Option<u64>,
    /// At most this many bytes of data in a timer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    payload_bytes: Option<u64>,
    /// No timer further ahead than this
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    horizon: Option<String>,
    /// At most this many timers due in one second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    due_per_second: Option<u32>,
    /// Sends only to this network, an address, or `public`; repeatable [default: wherever the settings allow]
    #[arg(long, value_name = "NETWORK")]
    allow_network: Vec<String>,
    /// Never sends to this one; repeatable
    #[arg(long, value_name = "NETWORK")]
    deny_network: Vec<String>,
}

impl Put {
    fn request(&self) -> Value {
        let mut quotas = Map::new();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                quotas.insert(name.to_owned(), value);
            }
        };
        set("requests_per_second", self.requests_per_second.map(Value::from));
        set("live_timers", self.live_timers.map(Value::from));
        set("payload_bytes", self.payload_bytes.map(Value::from));
        set("horizon", self.horizon.clone().map(Value::from));
        set("due_per_second", self.due_per_second.map(Value::from));
        let mut request = json!({ "quotas": quotas });
        if !(self.allow_network.is_empty() && self.deny_network.is_empty()) {
            request["networks"] = json!({"allow": self.allow_network, "deny": self.deny_network});
        }
        request
    }
}

/// Runs one `namespace` verb.
pub async fn run(client: Client, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    match verb {
        Verb::Put(put) => {
            let request = put.request();
            let reply = client.call(Method::PUT, &path(&put.name), &[], Some(&request)).await?;
            show::put(&reply, json, line)?;
        }
        Verb::Get(Named { name }) => {
            let reply = client.ask(Method::GET, &path(name), &[]).await?;
            show::one(&reply, json, block)?;
        }
        Verb::Ls => {
            let reply = client.ask(Method::GET, "/v1/namespaces", &[]).await?;
            show::all(&reply, json, "there are no namespaces", table)?;
        }
        Verb::Rm(Named { name }) => {
            let reply = client.ask(Method::DELETE, &path(name), &[]).await?;
            show::removed(&reply, json, name)?;
        }
    }
    Ok(Exit::Ok)
}

fn path(name: &str) -> String {
    format!("/v1/namespaces/{name}")
}

/// `put billing: live_timers 1000000, horizon P90D`.
fn line(namespace: &Fields) -> String {
    format!("put {}: {}", show::text(namespace, "name"), terms(namespace))
}

/// The quotas that are set and the networks, in words.
fn terms(namespace: &Fields) -> String {
    let field = |name: &str| -> Map<String, Value> {
        namespace.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
    };
    let (all, networks) = (field("quotas"), field("networks"));
    let set = all.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| match value {
        Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    });
    let listed = |(name, list): (&String, &Value)| {
        let list: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        (!list.is_empty()).then(|| format!("{name} {}", list.join(" ")))
    };
    let set: Vec<String> = set.chain(networks.iter().filter_map(listed)).collect();
    if set.is_empty() { "no limits of its own".to_owned() } else { set.join(", ") }
}

fn block(namespace: &Fields) -> String {
    let name = show::text(namespace, "name");
    show::fields(&name, &FIRST, &["name"], namespace, SystemClock.now())
}

fn table(namespaces: &[Fields]) -> String {
    let mut rows = vec![["NAME", "NUMBER", "TERMS", "CREATED"].map(str::to_owned).to_vec()];
    let now = SystemClock.now();
    for one in namespaces {
        let created = show::instant(&show::text(one, "created_at"), now);
        rows.push(vec![
            show::text(one, "name"),
            show::text(one, "number"),
            out::short(&terms(one), MAX_CELL),
            created,
        ]);
    }
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_what_is_given() {
        let plain: Put = input::parsed("billing");
        assert_eq!(plain.request(), json!({"quotas": {}}));
        let all: Put = input::parsed("billing --live-timers 5 --payload-bytes 100 --horizon 30d");
        assert_eq!(
            all.request(),
            json!({"quotas": {"live_timers": 5, "payload_bytes": 100, "horizon": all.horizon}})
        );
        let networks: Put =
            input::parsed("billing --allow-network public --deny-network 1.1.0.0/16 --deny-network fd00::/8");
        assert_eq!(
            networks.request()["networks"],
            json!({"allow": ["public"], "deny": ["1.1.0.0/16", "fd00::/8"]})
        );
    }

    #[test]
    fn what_has_no_limit_is_not_shown() {
        let one: Fields = serde_json::from_value(
            json!({"name": "billing", "number": 1, "created_at": "2026-12-01T01:00:00.000Z",
            "quotas": {"live_timers": 5, "payload_bytes": null, "horizon": "P30D"},
            "networks": {"allow": ["public", "10.7.0.0/16"], "deny": []}}),
        )
        .expect("fields");
        let text = line(&one);
        assert!(
            text.contains("live_timers 5") && text.contains("horizon P30D") && !text.contains("payload"),
            "{text}"
        );
        assert!(text.ends_with(", allow public 10.7.0.0/16"), "{text}");
        assert!(table(&[one]).lines().nth(1).expect("a line").starts_with("billing  1"));
    }
}
