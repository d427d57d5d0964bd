//! `timer put`: its flags, and the request they make.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use serde::Serialize;
use serde_json::value::RawValue;

use super::exit::usage;
use super::input;
use super::timer::When;
use crate::model::policy::Retry;

/// `timer put`
#[derive(Args)]
#[command(
    group(ArgGroup::new("time").required(true)),
    after_help = "Examples:\n  \
        mainspring timer put order-1 --in 30m --webhook https://shop.example/hook --data '{\"order\":1}'\n  \
        mainspring timer put --local 2026-12-01T09:00 --zone Asia/Shanghai --webhook https://shop.example"
)]
pub struct Put {
    /// Your own id for the timer: the same command again changes nothing. Without it the server makes an id
    #[arg(value_parser = input::id)]
    pub id: Option<String>,
    #[command(flatten)]
    when: When,
    /// Deliver to this http or https URL
    #[arg(long, value_name = "URL")]
    webhook: String,
    /// Sign with this secret (Standard Webhooks, whsec_ and base64)
    #[arg(long, value_name = "SECRET", conflicts_with = "secret_file")]
    secret: Option<String>,
    /// Sign with the secret in this file
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Send this header too; repeatable
    #[arg(long, value_name = "'Name: value'", value_parser = input::header)]
    header: Vec<(String, String)>,
    /// The data to send, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "data_file")]
    data: Option<String>,
    /// The data to send, from a file with JSON; - is stdin
    #[arg(long, value_name = "FILE")]
    data_file: Option<PathBuf>,
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
    /// The number of attempts [default: 8]
    #[arg(long, value_name = "N")]
    attempts: Option<u32>,
    /// The wait after the first attempt, doubling from then on [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    retry_first: Option<String>,
    /// The longest wait between two attempts [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    retry_cap: Option<String>,
    /// Fire at the due millisecond, or within the first seconds of the due minute [default: second]
    #[arg(long)]
    precision: Option<Precision>,
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
enum Precision {
    Second,
    Minute,
}

/// The request. For an absent field the server's default holds.
#[derive(Serialize)]
pub struct Request<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    fire_at: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    target: Target<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    precision: Option<Precision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Late<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retries>,
}

#[derive(Serialize)]
struct Target<'a> {
    webhook: Webhook<'a>,
}

#[derive(Serialize)]
struct Webhook<'a> {
    url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct Late<'a> {
    grace: &'a str,
    then: Then,
}

#[derive(Serialize)]
struct Retries {
    attempts: u32,
    first: String,
    cap: String,
}

impl Put {
    /// The request that the flags describe.
    pub fn request(&self) -> anyhow::Result<Request<'_>> {
        let secret = match &self.secret_file {
            Some(path) => Some(input::secret_file("--secret-file", path)?),
            None => self.secret.clone(),
        };
        Ok(Request {
            fire_at: self.when.at.as_deref(),
            delay: self.when.delay.as_deref(),
            local: self.when.local.as_deref(),
            zone: self.when.zone.as_deref(),
            owner: self.owner.as_deref(),
            target: Target {
                webhook: Webhook { url: &self.webhook, secret, headers: unique("--header", &self.header)? },
            },
            data: self.data()?,
            labels: unique("--label", &self.label)?,
            precision: self.precision,
            late: self.grace.as_deref().zip(self.then).map(|(grace, then)| Late { grace, then }),
            retry: self.retry(),
        })
    }

    fn data(&self) -> anyhow::Result<Option<Box<RawValue>>> {
        let (flag, text) = match (&self.data, &self.data_file) {
            (Some(text), _) => ("--data", text.clone()),
            (None, Some(path)) => ("--data-file", input::file("--data-file", path)?),
            (None, None) => return Ok(None),
        };
        match serde_json::from_str(&text) {
            Ok(data) => Ok(Some(data)),
            Err(why) => Err(usage(format!("{flag} is not JSON ({why}); text needs quotes: '\"text\"'"))),
        }
    }

    /// With one retry flag the others are sent with their defaults: the server takes all three or none.
    fn retry(&self) -> Option<Retries> {
        let default = Retry::default();
        let any = self.attempts.is_some() || self.retry_first.is_some() || self.retry_cap.is_some();
        any.then(|| Retries {
            attempts: self.attempts.unwrap_or(default.attempts),
            first: self.retry_first.clone().unwrap_or_else(|| default.first.to_string()),
            cap: self.retry_cap.clone().unwrap_or_else(|| default.cap.to_string()),
        })
    }
}

/// Names to values. A name that stands twice is refused, for one value would be lost.
fn unique<'a>(flag: &str, pairs: &'a [(String, String)]) -> anyhow::Result<BTreeMap<&'a str, &'a str>> {
    let mut map = BTreeMap::new();
    for (name, value) in pairs {
        let twice = map.keys().any(|other: &&str| other.eq_ignore_ascii_case(name));
        if twice && flag == "--header" || map.insert(name.as_str(), value.as_str()).is_some() {
            return Err(usage(format!("{flag} names `{name}` twice")));
        }
    }
    Ok(map)
}
