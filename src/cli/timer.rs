//! `timer …`: register, read, change and cancel timers on a running server.

use clap::{ArgGroup, Args, Subcommand};
use reqwest::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::client::{Client, Reply};
use super::exit::Exit;
use super::put::Put;
use super::show::{self, Fields, Items};
use super::which::Which;
use super::{input, out};
use crate::clock::{Clock, SystemClock};

/// The most timers that the server lists at once.
const PAGE: usize = 1000;

/// `timer …`
#[derive(Subcommand)]
pub enum Verb {
    /// Register a timer
    Put(Box<Put>),
    /// Show a timer
    Get {
        /// The timer
        #[arg(value_parser = input::id)]
        id: String,
        /// Show its attempts too
        #[arg(long)]
        attempts: bool,
    },
    /// Show a timer's life in order, and what it waits for
    Explain {
        /// The timer
        #[arg(value_parser = input::id)]
        id: String,
    },
    /// List timers in order of due time
    Ls(Ls),
    /// Cancel a timer; exit code 4 if it is too late for that
    Cancel {
        /// The timer
        #[arg(value_parser = input::id)]
        id: String,
    },
    /// Give a timer another due time
    Move(Move),
    /// Make a timer due now
    Fire {
        /// The timer
        #[arg(value_parser = input::id)]
        id: String,
    },
    /// Keep a timer from firing until it is resumed
    Pause {
        /// The timer
        #[arg(value_parser = input::id)]
        id: String,
    },
    /// Let a paused timer fire; one that is overdue by more than its grace does what its `late` says
    Resume {
        /// The timer
        #[arg(value_parser = input::id)]
        id: String,
    },
}

#[derive(Args)]
pub struct Ls {
    #[command(flatten)]
    which: Which,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

#[derive(Args)]
#[command(group(ArgGroup::new("time").required(true)))]
pub struct Move {
    /// The timer
    #[arg(value_parser = input::id)]
    id: String,
    #[command(flatten)]
    when: When,
}

/// When a timer is due, also as a part of a request. What is not given is left out.
#[derive(Args, Serialize)]
#[group(skip)]
pub struct When {
    /// Due at this time, such as 2026-12-01T09:00:00+08:00
    #[arg(long, value_name = "RFC3339", group = "time", value_parser = input::instant)]
    #[serde(rename = "fire_at", skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    /// Due this long from now: 30s, 5m, 2h30m, 1d, or ISO 8601
    #[arg(long = "in", value_name = "DURATION", group = "time", value_parser = input::span)]
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<String>,
    /// Due at this wall time, such as 2026-12-01T09:00:00, in --zone
    #[arg(long, value_name = "TIME", group = "time", requires = "zone")]
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<String>,
    /// The IANA time zone of --local, such as Asia/Shanghai
    #[arg(long, value_name = "ZONE", requires = "local", conflicts_with_all = ["at", "delay"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
}

/// Runs one `timer` verb.
pub async fn run(client: Client, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    match verb {
        Verb::Put(put) => register(&client, put, json).await?,
        Verb::Get { id, attempts } => get(&client, id, *attempts, json).await?,
        Verb::Explain { id } => explain(&client, id, json).await?,
        Verb::Ls(ls) => list(&client, ls, json).await?,
        Verb::Cancel { id } => cancel(&client, id, json).await?,
        Verb::Move(change) => {
            let path = format!("/v1/timers/{}", change.id);
            let reply = client.call(Method::PATCH, &path, &[], Some(&change.when)).await?;
            changed("move", &reply, json)?;
        }
        Verb::Fire { id } => act(&client, "fire", id, json).await?,
        Verb::Pause { id } => act(&client, "pause", id, json).await?,
        Verb::Resume { id } => act(&client, "resume", id, json).await?,
    }
    Ok(Exit::Ok)
}

/// One call without a body: fire, pause, resume.
async fn act(client: &Client, verb: &str, id: &str, json: bool) -> anyhow::Result<()> {
    let reply = client.ask(Method::POST, &format!("/v1/timers/{id}/{verb}"), &[]).await?;
    changed(verb, &reply, json)
}

fn changed(verb: &str, reply: &Reply, json: bool) -> anyhow::Result<()> {
    show::one(reply, json, |timer| show::line(verb, timer, SystemClock.now()))
}

async fn register(client: &Client, put: &Put, json: bool) -> anyhow::Result<()> {
    let body = put.request()?;
    let reply = match &put.id {
        Some(id) => {
            let again = put.again.then(|| ("again".to_owned(), "true".to_owned()));
            let query: Vec<_> = again.into_iter().collect();
            client.call(Method::PUT, &format!("/v1/timers/{id}"), &query, Some(&body)).await?
        }
        None => client.call(Method::POST, "/v1/timers", &[], Some(&body)).await?,
    };
    changed("put", &reply, json)?;
    if reply.status == StatusCode::OK {
        out::note("(it was registered before, with the same content)");
    }
    Ok(())
}

async fn get(client: &Client, id: &str, attempts: bool, json: bool) -> anyhow::Result<()> {
    let timer = client.ask(Method::GET, &format!("/v1/timers/{id}"), &[]).await?;
    let attempts = match attempts {
        true => Some(client.ask(Method::GET, &format!("/v1/timers/{id}/attempts"), &[]).await?),
        false => None,
    };
    let Some(attempts) = attempts else {
        return show::one(&timer, json, |timer| show::block(timer, SystemClock.now()));
    };
    let items: Items = attempts.read()?;
    if json {
        let both = Both { timer: timer.read()?, attempts: &items.items };
        return out::print(&serde_json::to_string(&both)?);
    }
    let shown = show::block(&timer.read()?, SystemClock.now());
    out::print(&format!("{shown}\n\n{}", show::attempts(&items.read()?)))
}

async fn explain(client: &Client, id: &str, json: bool) -> anyhow::Result<()> {
    let reply = client.ask(Method::GET, &format!("/v1/timers/{id}/explain"), &[]).await?;
    if json {
        return out::print(&reply.json);
    }
    let Explanation { timer, events, waiting_for } = reply.read()?;
    out::print(&show::events(&timer, &events, waiting_for.as_deref(), SystemClock.now()))
}

async fn list(client: &Client, ls: &Ls, json: bool) -> anyhow::Result<()> {
    let filter = ls.which.fields();
    let mut found = Vec::new();
    let mut count = 0;
    let mut cursor: Option<String> = None;
    let more = loop {
        let wanted = (ls.limit - count).min(PAGE);
        if wanted == 0 {
            break cursor.is_some();
        }
        let mut query = filter.clone();
        query.push(("limit".into(), wanted.to_string()));
        query.extend(cursor.take().map(|cursor| ("cursor".into(), cursor)));
        let reply = client.ask(Method::GET, "/v1/timers", &query).await?;
        let page: Items = reply.read()?;
        // A page may be short, even empty, and still have a next one.
        count += page.items.len().min(wanted);
        if json {
            page.items.iter().try_for_each(|item| out::print(item.get()))?;
        } else {
            found.extend(page.read()?);
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => break false,
        }
    };
    if !json && found.is_empty() {
        out::note("no such timers");
    } else if !json {
        out::print(&show::list(&found, SystemClock.now()))?;
    }
    if more {
        out::note(&format!("the first {count}; there may be more, --limit shows them"));
    }
    Ok(())
}

async fn cancel(client: &Client, id: &str, json: bool) -> anyhow::Result<()> {
    let reply = client.ask(Method::DELETE, &format!("/v1/timers/{id}"), &[]).await?;
    if json {
        return out::print(&reply.json);
    }
    let Cancelled { outcome } = reply.read()?;
    let meaning = match outcome.as_str() {
        "cancelled" => " (nothing was sent, nothing will be)",
        "stopped" => " (earlier attempts failed, nothing more will be sent)",
        _ => "",
    };
    out::print(&format!("cancel {id}: {}{meaning}", out::plain(&outcome)))
}

#[derive(Deserialize)]
struct Explanation {
    timer: Fields,
    events: Vec<Fields>,
    waiting_for: Option<String>,
}

#[derive(Deserialize)]
struct Cancelled {
    outcome: String,
}

/// A timer and its attempts, each as the server wrote it.
#[derive(Serialize)]
struct Both<'a> {
    timer: &'a RawValue,
    attempts: &'a [&'a RawValue],
}
