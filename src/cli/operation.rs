//! `operation …`: one action on every timer that a filter matches, on a running server.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::client::{Client, Reply};
use super::exit::{Exit, usage};
use super::show::{self, Fields};
use super::which::Which;
use super::{input, out};
use crate::clock::{Clock, SystemClock};
use crate::model::operation::{Action, OperationId};

/// The fields of an operation that are shown first, in this order; all others follow by name.
const FIRST: [&str; 8] = ["state", "filter", "by", "since", "until", "matched", "done", "refused"];

/// `operation …`
#[derive(Subcommand)]
pub enum Verb {
    /// Cancel timers
    #[command(after_help = "Examples:\n  \
        mainspring operation cancel --owner user:123 --dry-run\n    \
          counts the timers that would be cancelled\n  \
        mainspring operation cancel --owner user:123")]
    Cancel(Many),
    /// Move due times, all by the same duration
    #[command(after_help = "Examples:\n  \
        mainspring operation shift --by 1h --label app=shop --due-before 2026-12-02T00:00:00Z\n    \
          an hour later\n  \
        mainspring operation shift --by=-15m --destination shop-orders\n    \
          a quarter of an hour earlier")]
    Shift(Shift),
    /// Make timers due now, paused ones too
    Fire(Many),
    /// Keep timers from firing until they are resumed
    Pause(Many),
    /// Let paused timers fire; those that are overdue by more than their grace do what their `late` says
    Resume(Many),
    /// Run dead timers again, each as a new generation
    #[command(after_help = "Examples:\n  \
        mainspring operation redrive --destination shop-orders --label app=shop --dry-run\n    \
          counts the dead timers that would run again\n  \
        mainspring operation redrive --destination shop-orders --label app=shop\n  \
        mainspring destination redrive shop-orders --since 2026-12-01T09:00:00+08:00\n    \
          those of one destination, by when they died")]
    Redrive(Many),
    /// Remove what is kept of ended timers, payloads and attempts too; their ids stay taken
    #[command(after_help = "Examples:\n  \
        mainspring operation purge --owner user:123\n    \
          all that ended of one person's; `operation cancel` ends what is live before")]
    Purge(Many),
    /// Show an operation
    Get(Named),
    /// List the operations, the last one first
    Ls,
    /// End an operation early; what it has done stays. Exit code 4 if it has ended by itself
    Stop(Named),
}

#[derive(Args)]
pub struct Named {
    /// The operation
    #[arg(value_parser = id)]
    id: String,
}

/// Which timers, and whether to change them.
#[derive(Args)]
pub struct Many {
    #[command(flatten)]
    which: Which,
    /// Count, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct Shift {
    /// How much later: 30s, 5m, 2h30m, 1d, or ISO 8601; earlier with a minus before it
    #[arg(long, value_name = "DURATION", value_parser = shift, allow_hyphen_values = true)]
    by: String,
    #[command(flatten)]
    many: Many,
}

#[derive(Serialize)]
struct Request<'a> {
    action: &'static str,
    filter: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    dry_run: bool,
}

/// A duration with its sign, as the server reads it.
fn shift(text: &str) -> Result<String, String> {
    match text.strip_prefix('-') {
        Some(length) => input::span(length).map(|span| format!("-{span}")),
        None => input::span(text),
    }
}

fn id(text: &str) -> Result<String, String> {
    OperationId::parse(text).map(|_| text.to_owned()).ok_or_else(|| "op_ and 32 hex digits".to_owned())
}

/// The filter of a request.
fn filter(which: &Which) -> anyhow::Result<Map<String, Value>> {
    let mut filter = Map::new();
    let mut ids = Vec::new();
    for (name, value) in which.fields() {
        match name.as_str() {
            "id" => ids.push(json!(value)),
            _ if filter.contains_key(&name) => {
                let label = name.strip_prefix("label.").unwrap_or(&name);
                return Err(usage(format!("--label {label} is given twice")));
            }
            _ => drop(filter.insert(name, json!(value))),
        }
    }
    if !ids.is_empty() {
        filter.insert("id".into(), Value::Array(ids));
    }
    if filter.is_empty() {
        return Err(usage("which timers? give at least one filter, such as --destination NAME"));
    }
    Ok(filter)
}

/// Runs one `operation` verb.
pub async fn run(client: Client, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    match verb {
        Verb::Cancel(many) => begin(&client, Action::Cancel, many, None, json).await?,
        Verb::Shift(Shift { by, many }) => begin(&client, Action::Shift, many, Some(by), json).await?,
        Verb::Fire(many) => begin(&client, Action::Fire, many, None, json).await?,
        Verb::Pause(many) => begin(&client, Action::Pause, many, None, json).await?,
        Verb::Resume(many) => begin(&client, Action::Resume, many, None, json).await?,
        Verb::Redrive(many) => begin(&client, Action::Redrive, many, None, json).await?,
        Verb::Purge(many) => begin(&client, Action::Purge, many, None, json).await?,
        Verb::Get(Named { id }) => {
            let reply = client.ask(Method::GET, &format!("/v1/operations/{id}"), &[]).await?;
            show::one(&reply, json, block)?;
        }
        Verb::Ls => {
            let reply = client.ask(Method::GET, "/v1/operations", &[]).await?;
            show::all(&reply, json, "no operation yet", table)?;
        }
        Verb::Stop(Named { id }) => {
            let reply = client.ask(Method::POST, &format!("/v1/operations/{id}/stop"), &[]).await?;
            show::one(&reply, json, line)?;
        }
    }
    Ok(Exit::Ok)
}

/// Begins an operation, and prints it.
async fn begin(
    client: &Client,
    action: Action,
    many: &Many,
    by: Option<&str>,
    json: bool,
) -> anyhow::Result<()> {
    let (filter, dry_run) = (filter(&many.which)?, many.dry_run);
    let request = Request { action: action.word(), filter, by, dry_run };
    let reply = client.call(Method::POST, "/v1/operations", &[], Some(&request)).await?;
    begun(&reply, json)
}

/// Prints an operation that has begun.
pub fn begun(reply: &Reply, json: bool) -> anyhow::Result<()> {
    if json {
        return out::print(&reply.json);
    }
    let operation: Fields = reply.read()?;
    out::print(&line(&operation))?;
    out::note(&format!("(operation get {} shows how far it is)", show::text(&operation, "id")));
    Ok(())
}

/// `redrive op_…: running, 12 matched, 10 done, 2 refused`.
fn line(operation: &Fields) -> String {
    let [id, action, state, matched, done] =
        ["id", "action", "state", "matched", "done"].map(|field| show::text(operation, field));
    let dry = if show::text(operation, "dry_run") == "true" { " (dry run)" } else { "" };
    format!("{action} {id}: {state}{dry}, {matched} matched, {done} done, {} refused", refused(operation))
}

/// How many were refused, whatever the reason.
fn refused(operation: &Fields) -> u64 {
    let counts = operation.get("refused").and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    let counts = counts.as_ref().and_then(Value::as_object);
    counts.into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

fn block(operation: &Fields) -> String {
    let [id, action] = ["id", "action"].map(|field| show::text(operation, field));
    show::fields(&format!("{action} {id}"), &FIRST, &["id", "action"], operation, SystemClock.now())
}

fn table(operations: &[Fields]) -> String {
    let head = ["ID", "ACTION", "STATE", "MATCHED", "DONE", "REFUSED", "BEGAN", "FILTER"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in operations {
        let [id, action, state, matched, done, began, filter] =
            ["id", "action", "state", "matched", "done", "created_at", "filter"]
                .map(|field| show::text(one, field));
        let filter = out::short(&filter, 60);
        rows.push(vec![id, action, state, matched, done, refused(one).to_string(), began, filter]);
    }
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_is_what_is_given() {
        let sent = |line: &str| filter(&input::parsed::<Many>(line).which);
        assert_eq!(
            Value::Object(sent("--id a --id b --label app=shop --destination d").unwrap()),
            json!({"id": ["a", "b"], "label.app": "shop", "destination": "d"})
        );
        let labels = sent("--label app=shop --label kind=x").unwrap();
        assert_eq!(Value::Object(labels), json!({"label.app": "shop", "label.kind": "x"}));
        assert!(sent("--label app=shop --label app=desk").is_err(), "no timer has both");
        assert!(sent("--dry-run").is_err(), "every timer");
    }

    #[test]
    fn a_shift_has_a_sign() {
        let by = |line: &str| input::parsed::<Shift>(line).by;
        assert_eq!(by("--by 1h --owner a"), "PT1H");
        assert_eq!(by("--by=-15m --owner a"), "-PT15M");
        assert_eq!(by("--by -PT1S --owner a"), "-PT1S");
        assert!(shift("--1h").is_err() && shift("soon").is_err());
    }

    #[test]
    fn an_operation_is_a_line_and_a_row() {
        let one: Fields =
            serde_json::from_value(json!({"id": "op_1", "action": "redrive", "state": "running",
            "dry_run": true, "matched": 5, "done": 2, "refused": {"id_taken": 2, "superseded": 1},
            "filter": {"destination": "d"}, "created_at": "2026-12-01T01:00:00.000Z"}))
            .unwrap();
        assert_eq!(line(&one), "redrive op_1: running (dry run), 5 matched, 2 done, 3 refused");
        let row = table(&[one]);
        let cells: Vec<_> = row.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "op_1",
                "redrive",
                "running",
                "5",
                "2",
                "3",
                "2026-12-01T01:00:00.000Z",
                "{\"destination\":\"d\"}"
            ]
        );
    }
}
