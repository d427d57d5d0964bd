//! `timer put`: its flags, and the request they make.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use serde::Serialize;
use serde_json::value::RawValue;

use super::delivery::{Dispatch, Extras, Retry, Webhook, unique};
use super::input;
use super::timer::When;

/// `timer put`
#[derive(Args)]
#[command(
    group(ArgGroup::new("time").required(true)),
    group(ArgGroup::new("place").required(true)),
    after_help = "Examples:\n  \
        mainspring timer put order-1 --in 30m --webhook https://shop.example/hook --data '{\"order\":1}'\n  \
        mainspring timer put order-1 --in 30m --destination shop-orders --priority high\n  \
        mainspring timer put --local 2026-12-01T09:00 --zone Asia/Shanghai --webhook https://shop.example"
)]
pub struct Put {
    /// Your own id for the timer: the same command again changes nothing. Without it the server makes an id
    #[arg(value_parser = input::id)]
    pub id: Option<String>,
    #[command(flatten)]
    when: When,
    /// Deliver to this http or https URL
    #[arg(long, value_name = "URL", group = "place")]
    webhook: Option<String>,
    /// Deliver to this destination, with its secret, headers and limits
    #[arg(long, value_name = "NAME", group = "place", value_parser = input::name,
        conflicts_with_all = ["secret", "secret_file", "header"])]
    destination: Option<String>,
    /// Leave it in this queue, where workers fetch it
    #[arg(long, value_name = "NAME", group = "place", value_parser = input::name,
        conflicts_with_all = ["secret", "secret_file", "header", "merge"])]
    queue: Option<String>,
    #[command(flatten)]
    dispatch: Dispatch,
    #[command(flatten)]
    extras: Extras,
    /// The data to send, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "data_file")]
    data: Option<String>,
    /// The data to send, from a file with JSON; - is stdin
    #[arg(long, value_name = "FILE")]
    data_file: Option<PathBuf>,
    /// The template that the data is merged over and checked against
    #[arg(long, value_name = "NAME", value_parser = input::name)]
    template: Option<String>,
    /// Whom the timer is about, such as user:123 [default: the id]
    #[arg(long)]
    owner: Option<String>,
    /// A label, by which `timer ls` finds it; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = input::label)]
    label: Vec<(String, String)>,
    /// Deliver up to this long past due; --then says what happens after that
    #[arg(long, value_name = "DURATION", value_parser = input::span, requires = "then")]
    grace: Option<String>,
    /// What happens later than --grace past due, as after an outage
    #[arg(long, requires = "grace")]
    then: Option<Then>,
    #[command(flatten)]
    retry: Retry,
    /// Who goes first when more is due than can be sent at once; low still moves [default: normal]
    #[arg(long)]
    priority: Option<Priority>,
    /// Fire at the due millisecond, or within the first seconds of the due minute [default: second]
    #[arg(long)]
    precision: Option<Precision>,
    /// Go out together with timers of the same owner and target that have the same window and are due within it
    #[arg(long, value_name = "WINDOW", value_parser = input::span)]
    merge: Option<String>,
    /// Fire at a moment that the server chooses, from the due time to this long after it, by what is due around it
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    spread: Option<String>,
    /// If timer ID has ended, start it again
    #[arg(long, requires = "id")]
    pub again: bool,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Then {
    Deliver,
    Expire,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Priority {
    High,
    Normal,
    Low,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Precision {
    Second,
    Minute,
}

/// The request. For an absent field the server's default holds.
#[derive(Serialize)]
pub struct Request<'a> {
    #[serde(flatten)]
    when: &'a When,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    target: Target<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    #[serde(skip_serializing_if = "Option::is_none")]
    precision: Option<Precision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Late<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<&'a Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    merge: Option<Merge<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dispatch: Option<&'a Dispatch>,
}

/// Where it goes. It has one of the three.
#[derive(Serialize)]
struct Target<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<Webhook<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
}

#[derive(Serialize)]
struct Merge<'a> {
    window: &'a str,
}

#[derive(Serialize)]
struct Late<'a> {
    grace: &'a str,
    then: Then,
}

impl Put {
    /// The request that the flags describe.
    pub fn request(&self) -> anyhow::Result<Request<'_>> {
        Ok(Request {
            when: &self.when,
            owner: self.owner.as_deref(),
            target: Target {
                webhook: self.extras.webhook(self.webhook.as_deref())?,
                destination: self.destination.as_deref(),
                queue: self.queue.as_deref(),
            },
            data: input::json("data", self.data.as_deref(), self.data_file.as_deref())?,
            template: self.template.as_deref(),
            labels: unique("--label", &self.label)?,
            priority: self.priority,
            precision: self.precision,
            spread: self.spread.as_deref(),
            late: self.grace.as_deref().zip(self.then).map(|(grace, then)| Late { grace, then }),
            retry: self.retry.given(),
            merge: self.merge.as_deref().map(|window| Merge { window }),
            dispatch: self.dispatch.given(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_given_is_sent() {
        for (line, sent) in [
            ("--webhook http://a/", json!({"target": {"webhook": {"url": "http://a/"}}})),
            ("--destination a", json!({"target": {"destination": "a"}})),
            ("--destination a --template t", json!({"target": {"destination": "a"}, "template": "t"})),
            ("--destination a --spread 5m", json!({"target": {"destination": "a"}, "spread": "PT5M"})),
            (
                "--destination a --priority high --retry-first 2h",
                json!({"target": {"destination": "a"}, "priority": "high", "retry": {"first": "PT2H"}}),
            ),
            (
                "--destination a --owner u --merge 1s",
                json!({"target": {"destination": "a"}, "owner": "u", "merge": {"window": "PT1S"}}),
            ),
            ("--queue q", json!({"target": {"queue": "q"}})),
            (
                "--queue q --to group:g7 --times 6 --repeat",
                json!({"target": {"queue": "q"}, "dispatch": {"to": "group:g7", "times": 6, "repeat": true}}),
            ),
        ] {
            let put: Put = input::parsed(&format!("a --in 5s {line}"));
            let mut sent = sent;
            sent["delay"] = json!("PT5S");
            assert_eq!(serde_json::to_value(put.request().unwrap()).unwrap(), sent, "{line}");
        }
    }
}
