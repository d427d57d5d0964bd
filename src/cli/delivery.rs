//! The flags that `timer put` and `destination` share, and what they become in a request: what goes with each delivery
//! to a webhook, and how failed ones are repeated.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::exit::usage;
use super::input;

/// What goes with each delivery to a webhook.
#[derive(Args)]
#[group(skip)]
pub struct Extras {
    /// Sign with this secret (Standard Webhooks, whsec_ and base64)
    #[arg(long, value_name = "SECRET", conflicts_with = "secret_file")]
    secret: Option<String>,
    /// Sign with the secret in this file
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Send this header too; repeatable
    #[arg(long, value_name = "'Name: value'", value_parser = input::header)]
    header: Vec<(String, String)>,
}

/// How failed attempts are repeated. A part that is not given is left out of the request.
#[derive(Args, Serialize)]
#[group(skip)]
pub struct Retry {
    /// The number of attempts; 8 unless set
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    /// The wait after the first attempt, doubling from then on; 1s unless set
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    #[serde(rename = "first", skip_serializing_if = "Option::is_none")]
    retry_first: Option<String>,
    /// The longest wait between two attempts; 1h unless set, or --retry-first if that is longer
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    #[serde(rename = "cap", skip_serializing_if = "Option::is_none")]
    retry_cap: Option<String>,
}

/// How what is for a queue is given out. A part that is not given is left out of the request.
#[derive(Args, Serialize)]
#[group(skip)]
pub struct Dispatch {
    /// Who may fetch it: any, worker:NAME or group:NAME [default: any]
    #[arg(long, value_name = "TO", requires = "queue")]
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    /// How often it is given out in all [default: 1]
    #[arg(long, value_name = "N", requires = "queue")]
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
    /// A worker that has settled it may get it again
    #[arg(long, requires = "queue")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    repeat: bool,
}

/// A webhook in a request. A part that is not given is left out.
#[derive(Serialize)]
pub struct Webhook<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'a str, &'a str>,
}

impl Extras {
    /// The webhook at `url`; `None` if neither the URL nor anything that goes with it is given.
    pub fn webhook<'a>(&'a self, url: Option<&'a str>) -> anyhow::Result<Option<Webhook<'a>>> {
        let secret = input::secret(self.secret.as_ref(), self.secret_file.as_deref())?;
        let hook = Webhook { url, secret, headers: unique("--header", &self.header)? };
        let is_empty = hook.url.is_none() && hook.secret.is_none() && hook.headers.is_empty();
        Ok((!is_empty).then_some(hook))
    }
}

impl Dispatch {
    /// `None` if no part is given.
    pub fn given(&self) -> Option<&Self> {
        (self.to.is_some() || self.times.is_some() || self.repeat).then_some(self)
    }
}

impl Retry {
    /// `None` if no part is given.
    pub fn given(&self) -> Option<&Self> {
        let any = self.attempts.is_some() || self.retry_first.is_some() || self.retry_cap.is_some();
        any.then_some(self)
    }
}

/// Names to values. A name that stands twice is refused, for one value would be lost.
pub fn unique<'a>(flag: &str, pairs: &'a [(String, String)]) -> anyhow::Result<BTreeMap<&'a str, &'a str>> {
    let mut map = BTreeMap::new();
    for (name, value) in pairs {
        if map.insert(name.as_str(), value.as_str()).is_some() {
            return Err(usage(format!("{flag} names `{name}` twice")));
        }
    }
    Ok(map)
}
