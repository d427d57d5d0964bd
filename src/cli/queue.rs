//! `queue …`: what workers fetch, and how they settle it, on a running server.

use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::client::Client;
use super::delivery::Retry;
use super::exit::{Exit, usage};
use super::show::{self, Fields};
use super::{input, out};
use crate::clock::{Clock, SystemClock};

/// The fields of a queue that are shown first, in this order; all others follow by name.
const FIRST: [&str; 7] = ["paused", "ready", "leased", "scheduled", "oldest_ready_at", "lease", "retry"];

/// The most of a payload in a cell.
const MAX_CELL: usize = 60;

/// How long a lease call may take: the longest wait, and what any call may.
const LONGEST_CALL: Duration = Duration::from_secs(90);

/// `queue …`
#[derive(Subcommand)]
pub enum Verb {
    /// Make a queue, or say anew what it says. It is not needed to begin
    Put(Put),
    /// Show a queue: what it says, and what waits in it
    Get(Named),
    /// List all queues by name
    Ls,
    /// Remove a queue that no live timer is for
    Rm(Named),
    /// Give nothing out; what is leased stays so
    Pause(Named),
    /// Give out what is ready
    Resume(Named),
    /// Fetch what is due, as a worker does
    Lease(Lease),
    /// Say that items are done
    Ack(Settle),
    /// Give items back
    Retry(GiveBack),
    /// Give items up: nobody gets them again
    Dead(Settle),
    /// Keep items for longer
    Extend(Extend),
}

#[derive(Args)]
pub struct Named {
    /// The queue
    #[arg(value_parser = input::name)]
    name: String,
}

#[derive(Args)]
pub struct Put {
    /// Its name
    #[arg(value_parser = input::name)]
    name: String,
    /// How long a lease lasts that does not say [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    lease: Option<String>,
    #[command(flatten)]
    retry: Retry,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring queue lease reports --worker w1 --wait 20s\n  \
    mainspring queue lease tasks --worker ann --group g7 --redo --lease 15m --json")]
pub struct Lease {
    /// The queue
    #[arg(value_parser = input::name)]
    name: String,
    /// Who asks
    #[arg(long, value_name = "NAME")]
    worker: String,
    /// A group that the worker is in; repeatable
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// How many items it takes [default: 1]
    #[arg(long, value_name = "N")]
    max: Option<u32>,
    /// How long it wants to have them [default: what the queue says]
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    lease: Option<String>,
    /// How long to wait for something, at most 60s [default: not at all]
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    wait: Option<String>,
    /// A timer that it does not take; repeatable
    #[arg(long, value_name = "ID", value_parser = input::id)]
    exclude: Vec<String>,
    /// While it has anything unsettled, it gets that and nothing else
    #[arg(long)]
    redo: bool,
}

#[derive(Args)]
pub struct Settle {
    /// The queue
    #[arg(value_parser = input::name)]
    name: String,
    /// The tokens of the items
    #[arg(required = true, value_name = "TOKEN")]
    token: Vec<String>,
    /// What is kept of it, and shown with its attempts: JSON
    #[arg(long, value_name = "JSON")]
    result: Option<String>,
}

#[derive(Args)]
pub struct GiveBack {
    #[command(flatten)]
    settle: Settle,
    /// After how long they may be given out again [default: the wait of their `retry`]
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    delay: Option<String>,
}

#[derive(Args)]
pub struct Extend {
    /// The queue
    #[arg(value_parser = input::name)]
    name: String,
    /// The tokens of the items
    #[arg(required = true, value_name = "TOKEN")]
    token: Vec<String>,
    /// For how long from now [default: what the queue says]
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    lease: Option<String>,
}

/// What is done with items.
#[derive(Clone, Copy)]
enum Action {
    Ack,
    Retry,
    Dead,
    Extend,
}

impl Action {
    const fn word(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Retry => "retry",
            Self::Dead => "dead",
            Self::Extend => "extend",
        }
    }
}

impl Put {
    fn request(&self) -> Value {
        let mut request = json!({});
        if let Some(lease) = &self.lease {
            request["lease"] = json!(lease);
        }
        if let Some(retry) = self.retry.given() {
            request["retry"] = json!(retry);
        }
        request
    }
}

impl Lease {
    fn request(&self) -> Value {
        let mut request = json!({"worker": self.worker});
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                request[name] = value;
            }
        };
        set("groups", (!self.group.is_empty()).then(|| json!(self.group)));
        set("exclude", (!self.exclude.is_empty()).then(|| json!(self.exclude)));
        set("max", self.max.map(|max| json!(max)));
        set("lease", self.lease.as_ref().map(|lease| json!(lease)));
        set("wait", self.wait.as_ref().map(|wait| json!(wait)));
        set("redo", self.redo.then_some(json!(true)));
        request
    }
}

/// Runs one `queue` verb.
pub async fn run(client: Client, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    match verb {
        Verb::Put(put) => {
            let reply = client.call(Method::PUT, &path(&put.name), &[], Some(&put.request())).await?;
            show::put(&reply, json, |queue| format!("put {}", show::text(queue, "name")))?;
        }
        Verb::Get(Named { name }) => {
            let reply = client.ask(Method::GET, &path(name), &[]).await?;
            show::one(&reply, json, block)?;
        }
        Verb::Ls => {
            let reply = client.ask(Method::GET, "/v1/queues", &[]).await?;
            show::all(&reply, json, "there is no queue yet", table)?;
        }
        Verb::Rm(Named { name }) => {
            let reply = client.ask(Method::DELETE, &path(name), &[]).await?;
            show::removed(&reply, json, name)?;
        }
        Verb::Pause(Named { name }) => act(&client, name, "pause", json).await?,
        Verb::Resume(Named { name }) => act(&client, name, "resume", json).await?,
        Verb::Lease(lease) => {
            let path = format!("{}/lease", path(&lease.name));
            let client = client.with_timeout(LONGEST_CALL)?;
            let reply = client.call(Method::POST, &path, &[], Some(&lease.request())).await?;
            show::all(&reply, json, "nothing is due", items)?;
        }
        Verb::Ack(settle) => return self::settle(&client, settle, Action::Ack, None, json).await,
        Verb::Dead(settle) => return self::settle(&client, settle, Action::Dead, None, json).await,
        Verb::Retry(GiveBack { settle, delay }) => {
            let delay = delay.as_ref().map(|delay| ("delay", delay));
            return self::settle(&client, settle, Action::Retry, delay, json).await;
        }
        Verb::Extend(Extend { name, token, lease }) => {
            let settle = Settle { name: name.clone(), token: token.clone(), result: None };
            let lease = lease.as_ref().map(|lease| ("lease", lease));
            return self::settle(&client, &settle, Action::Extend, lease, json).await;
        }
    }
    Ok(Exit::Ok)
}

async fn act(client: &Client, name: &str, verb: &str, json: bool) -> anyhow::Result<()> {
    let reply = client.ask(Method::POST, &format!("{}/{verb}", path(name)), &[]).await?;
    show::one(&reply, json, |queue| format!("{verb} {}", show::text(queue, "name")))
}

/// Settles items; exit code 4 if the token of one is not current.
async fn settle(
    client: &Client,
    settle: &Settle,
    action: Action,
    span: Option<(&str, &String)>,
    json: bool,
) -> anyhow::Result<Exit> {
    let result: Option<Value> =
        match &settle.result {
            Some(text) => Some(serde_json::from_str(text).map_err(|why| {
                usage(format!("--result is not JSON ({why}); text needs quotes: '\"text\"'"))
            })?),
            None => None,
        };
    let one = |token: &String| {
        let mut one = json!({"lease_token": token, "action": action.word()});
        if let Some((name, value)) = span {
            one[name] = json!(value);
        }
        if let Some(result) = &result {
            one["result"] = result.clone();
        }
        one
    };
    let request = json!({"settlements": settle.token.iter().map(one).collect::<Vec<_>>()});
    let path = format!("{}/settle", path(&settle.name));
    let reply = client.call(Method::POST, &path, &[], Some(&request)).await?;
    let answer: Settled = reply.read()?;
    if json {
        out::print(&reply.json)?;
    }
    let mut exit = Exit::Ok;
    for one in &answer.results {
        match one.status {
            200 if json => {}
            200 => out::print(&format!("{} {}", action.word(), one.lease_token))?,
            409 => {
                exit = Exit::Conflict;
                out::note(&format!(
                    "{}: its lease has ended, or it was settled before, or it is of another queue",
                    one.lease_token
                ));
            }
            _ => {
                exit = Exit::Unavailable;
                out::note(&format!("{}: the store did not take it; repeat it", one.lease_token));
            }
        }
    }
    Ok(exit)
}

#[derive(serde::Deserialize)]
struct Settled {
    results: Vec<One>,
}

#[derive(serde::Deserialize)]
struct One {
    lease_token: String,
    status: u16,
}

fn path(name: &str) -> String {
    format!("/v1/queues/{name}")
}

fn block(queue: &Fields) -> String {
    let name = show::text(queue, "name");
    show::fields(&name, &FIRST, &["name"], queue, SystemClock.now())
}

fn table(queues: &[Fields]) -> String {
    let head = ["NAME", "READY", "LEASED", "SCHEDULED", "OLDEST", "STATE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in queues {
        let [name, ready, leased, scheduled, oldest, paused] =
            ["name", "ready", "leased", "scheduled", "oldest_ready_at", "paused"]
                .map(|field| show::text(one, field));
        let state = if paused == "true" { "paused" } else { "ok" };
        rows.push(vec![name, ready, leased, scheduled, oldest, state.to_owned()]);
    }
    out::table(&rows)
}

fn items(items: &[Fields]) -> String {
    let head = ["TIMER", "ATTEMPT", "UNTIL", "DATA", "TOKEN"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in items {
        let [timer, attempt, until, token] =
            ["timer", "attempt", "lease_until", "lease_token"].map(|field| show::text(one, field));
        let data = one.get("data").map_or("", |raw| raw.get());
        rows.push(vec![timer, attempt, until, out::short(data, MAX_CELL), token]);
    }
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_what_is_given() {
        let plain: Lease = input::parsed("q --worker w1");
        assert_eq!(plain.request(), json!({"worker": "w1"}));
        let all: Lease = input::parsed(
            "q --worker w1 --group g7 --group g8 --max 10 --lease 15m --wait 20s --exclude a --exclude b --redo",
        );
        assert_eq!(
            all.request(),
            json!({"worker": "w1", "groups": ["g7", "g8"], "max": 10, "lease": "PT15M", "wait": "PT20S",
                "exclude": ["a", "b"], "redo": true})
        );
        let put: Put = input::parsed("q --lease 2m --attempts 3");
        assert_eq!(put.request(), json!({"lease": "PT2M", "retry": {"attempts": 3}}));
    }

    #[test]
    fn queues_and_items_are_shown() {
        let fields = |value: Value| -> Fields { serde_json::from_value(value).unwrap() };
        let queue = json!({"name": "q", "ready": 2, "leased": 1, "scheduled": 7, "oldest_ready_at": null, "paused": true});
        assert_eq!(
            table(&[fields(queue)]),
            "NAME  READY  LEASED  SCHEDULED  OLDEST  STATE\nq     2      1       7                  paused"
        );
        let item = json!({"timer": "t", "attempt": 1, "lease_until": "2026-12-01T09:00:00.000Z", "data": {"a": 1},
            "lease_token": "lse_x"});
        assert_eq!(
            items(&[fields(item)]),
            "TIMER  ATTEMPT  UNTIL                     DATA     TOKEN\n\
             t      1        2026-12-01T09:00:00.000Z  {\"a\":1}  lse_x"
        );
    }
}
