//! `subscription …`: who gets lifecycle events, on a running server.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::exit::{Exit, usage};
use super::show::{self, Fields};
use super::{input, out};
use crate::clock::{Clock, SystemClock};

/// The fields of a subscription that are shown first, in this order; all others follow by name.
const FIRST: [&str; 6] = ["destination", "events", "filter", "include_data", "waiting", "oldest_at"];

/// The longest filter or list of events in a cell.
const MAX_CELL: usize = 60;

/// `subscription …`
#[derive(Subcommand)]
pub enum Verb {
    /// Subscribe, or put another subscription in the place of the one of this name
    Put(Put),
    /// Show a subscription
    Get(Named),
    /// List all subscriptions by name
    Ls,
    /// Remove a subscription, with its events that wait
    Rm(Named),
}

#[derive(Args)]
pub struct Named {
    /// The subscription
    #[arg(value_parser = input::name)]
    name: String,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring subscription put task-log --destination log\n    \
      every event of every timer\n  \
    mainspring subscription put failures --destination log --event timer.dead --event timer.expired --label app=shop")]
pub struct Put {
    /// Its name
    #[arg(value_parser = input::name)]
    name: String,
    /// Send the events to this destination
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    destination: String,
    /// An event that is sent, such as timer.delivered; repeatable; all unless set
    #[arg(long, value_name = "EVENT")]
    event: Vec<String>,
    /// Only of this timer; repeatable
    #[arg(long, value_name = "ID", value_parser = input::id)]
    id: Vec<String>,
    /// Only of timers of this owner
    #[arg(long)]
    owner: Option<String>,
    /// Only of timers for this destination
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    of_destination: Option<String>,
    /// Only of timers for this receiver: scheme, host and port of a webhook
    #[arg(long, value_name = "URL")]
    of_receiver: Option<String>,
    /// Only of timers made by this schedule
    #[arg(long, value_name = "ID", value_parser = input::schedule)]
    of_schedule: Option<String>,
    /// Only of timers with this label; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = input::label)]
    label: Vec<(String, String)>,
    /// Send the payload, too
    #[arg(long)]
    include_data: bool,
}

impl Put {
    fn request(&self) -> anyhow::Result<Value> {
        let mut filter = Map::new();
        if !self.id.is_empty() {
            filter.insert("id".into(), json!(self.id));
        }
        let texts = [
            ("owner", &self.owner),
            ("destination", &self.of_destination),
            ("receiver", &self.of_receiver),
            ("schedule", &self.of_schedule),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                filter.insert(name.into(), json!(value));
            }
        }
        for (name, value) in &self.label {
            if filter.insert(format!("label.{name}"), json!(value)).is_some() {
                return Err(usage(format!("--label {name} is given twice")));
            }
        }
        let events = if self.event.is_empty() { vec!["*".to_owned()] } else { self.event.clone() };
        let mut request = json!({
            "destination": self.destination, "events": events, "include_data": self.include_data,
        });
        if !filter.is_empty() {
            request["filter"] = Value::Object(filter);
        }
        Ok(request)
    }
}

/// Runs one `subscription` verb.
pub async fn run(client: Client, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    match verb {
        Verb::Put(put) => {
            let request = put.request()?;
            let reply = client.call(Method::PUT, &path(&put.name), &[], Some(&request)).await?;
            show::put(&reply, json, line)?;
        }
        Verb::Get(Named { name }) => {
            let reply = client.ask(Method::GET, &path(name), &[]).await?;
            show::one(&reply, json, block)?;
        }
        Verb::Ls => {
            let reply = client.ask(Method::GET, "/v1/subscriptions", &[]).await?;
            show::all(&reply, json, "nobody subscribes yet", table)?;
        }
        Verb::Rm(Named { name }) => {
            let reply = client.ask(Method::DELETE, &path(name), &[]).await?;
            show::removed(&reply, json, name)?;
        }
    }
    Ok(Exit::Ok)
}

fn path(name: &str) -> String {
    format!("/v1/subscriptions/{name}")
}

/// `put task-log: all events to log`.
fn line(subscription: &Fields) -> String {
    let [name, destination] = ["name", "destination"].map(|field| show::text(subscription, field));
    format!("put {name}: {} to {destination}", events(subscription))
}

fn events(subscription: &Fields) -> String {
    let words: Vec<String> =
        subscription.get("events").and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    if words == ["*"] { "all events".to_owned() } else { words.join(", ") }
}

fn block(subscription: &Fields) -> String {
    let name = show::text(subscription, "name");
    show::fields(&name, &FIRST, &["name"], subscription, SystemClock.now())
}

fn table(subscriptions: &[Fields]) -> String {
    let head = ["NAME", "DESTINATION", "WAITING", "EVENTS", "FILTER"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in subscriptions {
        let [name, destination, waiting] =
            ["name", "destination", "waiting"].map(|field| show::text(one, field));
        let filter = one.get("filter").map_or("", |raw| raw.get());
        let filter = if filter == "null" { String::new() } else { out::short(filter, MAX_CELL) };
        rows.push(vec![name, destination, waiting, out::short(&events(one), MAX_CELL), filter]);
    }
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> Fields {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_request_has_what_is_given() {
        let plain: Put = input::parsed("a --destination log");
        assert_eq!(
            plain.request().unwrap(),
            json!({"destination": "log", "events": ["*"], "include_data": false})
        );
        let all: Put = input::parsed(
            "a --destination log --event timer.dead --event timer.expired --id x --id y --owner me \
             --of-destination shop --of-receiver http://a:81 --label app=shop --include-data",
        );
        assert_eq!(
            all.request().unwrap(),
            json!({"destination": "log", "events": ["timer.dead", "timer.expired"], "include_data": true,
                "filter": {"id": ["x", "y"], "owner": "me", "destination": "shop", "receiver": "http://a:81",
                    "label.app": "shop"}})
        );
        let twice: Put = input::parsed("a --destination log --label a=1 --label a=2");
        assert!(twice.request().is_err());
    }

    #[test]
    fn subscriptions_are_shown() {
        let one = json!({"name": "a", "destination": "log", "events": ["*"], "filter": null, "include_data": false,
            "waiting": 7, "oldest_at": null, "version": 1});
        assert_eq!(line(&fields(one.clone())), "put a: all events to log");
        let other = json!({"name": "b", "destination": "log", "events": ["timer.dead"], "filter": {"owner": "me"},
            "waiting": 0});
        assert_eq!(
            table(&[fields(one), fields(other)]),
            "NAME  DESTINATION  WAITING  EVENTS      FILTER\n\
             a     log          7        all events\n\
             b     log          0        timer.dead  {\"owner\":\"me\"}"
        );
    }
}
