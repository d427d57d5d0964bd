//! Settings: typed, with units, checked as a whole before anything starts.
//!
//! `config.toml` < environment (`MAINSPRING__SECTION__KEY`, or `…_FILE` to read it from a file) < flags.
//! A key that nobody knows is an error, wherever it comes from.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Value};
use ipnet::IpNet;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize};

mod hot;

pub use hot::HotUrl;

use crate::model::time::Span;
use crate::planted::Planted;

/// The prefix of environment variables that set a key.
const ENV_PREFIX: &str = "MAINSPRING__";

/// The longest attempt that may be configured.
pub const MAX_WEBHOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// What is wrong with the settings; every variant names the key or file and the cure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value cannot be read, or a key is unknown.
    #[error("settings: {}", told(.0))]
    Read(Box<figment::Error>),
    /// A file named by `--config` or a `_FILE` variable cannot be read.
    #[error("settings: {what} names {path}, which cannot be read: {source}")]
    File {
        /// The flag or variable.
        what: String,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A flag is not of the form KEY=VALUE.
    #[error("settings: `--set {0}`: give it as section.key=value")]
    Flag(String),
    /// Values that do not fit, alone or together.
    #[error("settings: `{key}`: {detail}")]
    Check {
        /// The key.
        key: &'static str,
        /// What is wrong and what would be right.
        detail: String,
    },
}

/// All settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Stands in `ce-source`; fixed when the store is made.
    pub namespace: String,
    /// Parallel partitions of all timers; fixed when the store is made.
    pub shards: u16,
    /// How long the ownership of a shard lasts without renewal.
    pub lease: Span,
    /// The defect to build in, in test builds.
    #[cfg(feature = "planted")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted: Option<crate::planted::Defect>,
    /// The API.
    pub server: Server,
    /// The SQL database.
    pub cold: Cold,
    /// The wheels.
    pub hot: Hot,
    /// This process among several.
    pub node: Node,
    /// The reach of the wheels.
    pub wheel: Wheel,
    /// Ended timers.
    pub history: History,
    /// Delivery over HTTP.
    pub webhook: Webhook,
    /// Delivery in general.
    pub dispatch: Dispatch,
    /// Logging.
    pub log: Log,
}

/// `server.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Address and port of API, page and metrics.
    pub listen: SocketAddr,
    /// The keys that callers may present as `Authorization: Bearer`; none means open, on loopback only.
    #[serde(deserialize_with = "list", serialize_with = "hidden")]
    pub api_keys: Vec<SecretString>,
    /// Timers' calls a second each key may make; 0 is no limit.
    pub rate_per_second: u32,
    /// Connections held at once; more wait to be accepted.
    pub max_connections: usize,
}

/// `cold.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cold {
    /// `sqlite://FILE` or `postgres://…`.
    pub url: String,
    /// Connections to PostgreSQL.
    pub connections: u32,
}

/// `hot.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hot {
    /// `memory://`, `redis://…` or `redis+cluster://…`.
    pub url: String,
    /// Connections to Redis, or to each master of a Redis Cluster.
    pub connections: usize,
}

/// `node.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The node's name; empty stands for host name and listen port.
    pub name: String,
}

/// `wheel.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// Reach of the minute wheel.
    pub window: Span,
    /// Reach of the second wheel.
    pub near: Span,
    /// How long before its due time a timer is claimed; it is sent at its due time.
    pub lead: Span,
    /// Timers a second that loader and replay move into the wheels at most.
    pub load_per_second: u32,
    /// Overdue timers a second that a replay sends at most.
    pub catch_up_per_second: u32,
    /// Whether the wheels turn; without them the sweep fires everything, at one-second grain.
    pub enabled: bool,
}

/// `history.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// How long ended timers stay readable and their ids taken.
    pub retention: Span,
}

/// `webhook.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// Networks that are delivered to although they are loopback, private or link-local.
    #[serde(deserialize_with = "list")]
    pub allow_networks: Vec<IpNet>,
    /// The address that deliveries come from, on a machine that has several; without one, the system's choice.
    pub source_address: Option<IpAddr>,
    /// How long one attempt may take, connecting included.
    pub timeout: Span,
    /// Attempts under way at once to one receiver (scheme, host and port).
    pub concurrency: usize,
}

/// `dispatch.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispatch {
    /// Attempts under way at once on this node.
    pub concurrency: usize,
}

/// `log.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// What to log, as `tracing` filters read it.
    pub filter: String,
    /// How a line looks.
    pub format: LogFormat,
}

/// The look of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        let span = |secs| Span::from_duration(Duration::from_secs(secs));
        Self {
            namespace: "default".into(),
            shards: 64,
            lease: span(3),
            #[cfg(feature = "planted")]
            planted: None,
            server: Server {
                listen: SocketAddr::from(([127, 0, 0, 1], 7600)),
                api_keys: Vec::new(),
                rate_per_second: 0,
                max_connections: 4096,
            },
            cold: Cold { url: "sqlite://mainspring.db".into(), connections: 16 },
            hot: Hot { url: "memory://".into(), connections: 8 },
            node: Node { name: String::new() },
            wheel: Wheel {
                window: span(3600),
                near: span(120),
                lead: Span::from_duration(Duration::from_millis(50)),
                load_per_second: 50_000,
                catch_up_per_second: 10_000,
                enabled: true,
            },
            history: History { retention: span(7 * 86_400) },
            webhook: Webhook {
                allow_networks: Vec::new(),
                source_address: None,
                timeout: span(10),
                concurrency: 128,
            },
            dispatch: Dispatch { concurrency: 2048 },
            log: Log { filter: "info".into(), format: LogFormat::Text },
        }
    }
}

/// Which database the cold store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColdKind {
    /// One file, one node.
    Sqlite,
    /// A server, any number of nodes.
    Postgres,
}

impl Config {
    /// Reads and checks the settings: `file` (or `config.toml` here, if there is one), then `env`
    /// (names and values), then `sets` (`section.key=value`).
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
        sets: &[String],
    ) -> Result<Self, Error> {
        let defaults = Figment::from(Serialized::defaults(Self::default()));
        let mut figment = defaults.clone();
        match file {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|source| Error::File {
                    what: "--config".into(),
                    path: path.into(),
                    source,
                })?;
                figment = figment.merge(Toml::string(&text));
            }
            None if Path::new("config.toml").exists() => {
                figment = figment.merge(Toml::file_exact("config.toml"))
            }
            None => {}
        }
        for (name, value) in env {
            let Some(path) = name.strip_prefix(ENV_PREFIX) else {
                continue;
            };
            let (path, value) = match path.strip_suffix("_FILE") {
                Some(path) => {
                    let text = std::fs::read_to_string(&value).map_err(|source| Error::File {
                        what: name.clone(),
                        path: PathBuf::from(&value),
                        source,
                    })?;
                    (path, text.trim_end_matches(['\r', '\n']).to_owned())
                }
                None => (path, value),
            };
            figment =
                figment.merge(one(&path.to_ascii_lowercase().replace("__", "."), &value, &name, &defaults));
        }
        for set in sets {
            let (key, value) = set.split_once('=').ok_or_else(|| Error::Flag(set.clone()))?;
            figment = figment.merge(one(key.trim(), value, "--set", &defaults));
        }
        let config: Self = figment.extract().map_err(|why| Error::Read(Box::new(why)))?;
        config.checked()
    }

    /// Checks the values against each other.
    fn checked(mut self) -> Result<Self, Error> {
        let wrong = |key, detail: &str| Err(Error::Check { key, detail: detail.into() });
        if !(1..=1024).contains(&self.shards) {
            return wrong("shards", "from 1 to 1024");
        }
        if !(1..=64).contains(&self.namespace.len())
            || !self.namespace.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        {
            return wrong("namespace", "1 to 64 of A-Z a-z 0-9 . _ -");
        }
        if !(Duration::from_millis(500)..=Duration::from_secs(60)).contains(&self.lease.get()) {
            return wrong("lease", "from PT0.5S to PT60S");
        }
        if self.server.api_keys.iter().any(|key| key.expose_secret().len() < 16) {
            return wrong(
                "server.api_keys",
                "a key has fewer than 16 characters; make one with `openssl rand -hex 24`",
            );
        }
        if self.server.api_keys.is_empty() && !self.server.listen.ip().is_loopback() {
            return wrong(
                "server.listen",
                "without any key in `server.api_keys` the server is open to everyone and listens on loopback only; \
                 set a key, or listen on 127.0.0.1",
            );
        }
        if self.server.max_connections == 0 {
            return wrong("server.max_connections", "at least 1");
        }
        let kind = self.cold_kind()?;
        if !(2..=500).contains(&self.cold.connections) && kind == ColdKind::Postgres {
            return wrong("cold.connections", "from 2 to 500");
        }
        self.hot_url()?;
        if !(2..=500).contains(&self.hot.connections) {
            return wrong("hot.connections", "from 2 to 500");
        }
        if self.wheel.near > self.wheel.window || self.wheel.near.get() < Duration::from_secs(1) {
            return wrong("wheel.near", "at least PT1S and not longer than `wheel.window`");
        }
        if self.wheel.window.get() > Duration::from_secs(86_400) {
            return wrong("wheel.window", "at most P1D");
        }
        if self.wheel.lead.get() > Duration::from_secs(1) {
            return wrong("wheel.lead", "at most PT1S");
        }
        if self.wheel.load_per_second < 100 {
            return wrong("wheel.load_per_second", "at least 100");
        }
        if self.wheel.catch_up_per_second == 0 {
            return wrong("wheel.catch_up_per_second", "at least 1");
        }
        if self.history.retention.get() < Duration::from_secs(1) {
            return wrong("history.retention", "at least PT1S");
        }
        if !(Duration::from_millis(100)..=MAX_WEBHOOK_TIMEOUT).contains(&self.webhook.timeout.get()) {
            return wrong("webhook.timeout", "from PT0.1S to PT60S");
        }
        if self.webhook.concurrency == 0 {
            return wrong("webhook.concurrency", "at least 1");
        }
        if self.dispatch.concurrency == 0 {
            return wrong("dispatch.concurrency", "at least 1");
        }
        if self.node.name.is_empty() {
            let uname = rustix::system::uname();
            let host = uname.nodename().to_string_lossy().into_owned();
            self.node.name = format!("{host}:{}", self.server.listen.port());
        }
        if self.node.name.len() > 128 || self.node.name.chars().any(char::is_control) {
            return wrong("node.name", "at most 128 characters, none of them control characters");
        }
        Ok(self)
    }

    /// The settings in force as TOML, without secrets.
    pub fn shown(&self) -> String {
        let mut copy = self.clone();
        copy.cold.url = shown_url(&copy.cold.url);
        copy.hot.url = shown_url(&copy.hot.url);
        toml::to_string(&copy).unwrap_or_else(|why| format!("# cannot be shown: {why}\n"))
    }

    /// Which database `cold.url` names.
    pub fn cold_kind(&self) -> Result<ColdKind, Error> {
        match self.cold.url.split_once("://") {
            Some(("sqlite", path)) if !path.is_empty() => Ok(ColdKind::Sqlite),
            Some(("postgres" | "postgresql", rest)) if !rest.is_empty() => Ok(ColdKind::Postgres),
            _ => Err(Error::Check {
                key: "cold.url",
                detail: "give sqlite://FILE or postgres://USER:PASSWORD@HOST/DATABASE".into(),
            }),
        }
    }

    /// Where `hot.url` puts the wheels.
    pub fn hot_url(&self) -> Result<HotUrl, Error> {
        HotUrl::parse(&self.hot.url).map_err(|detail| Error::Check { key: "hot.url", detail })
    }

    /// Whether webhooks to this address are allowed although it is not public.
    pub fn allows_network(&self, ip: IpAddr) -> bool {
        (ip.is_loopback() && self.server.listen.ip().is_loopback())
            || self.webhook.allow_networks.iter().any(|net| net.contains(&ip))
    }

    /// The defect that is built in: none, except in test builds.
    pub fn planted(&self) -> Planted {
        #[cfg(feature = "planted")]
        return Planted::new(self.planted);
        #[cfg(not(feature = "planted"))]
        return Planted::default();
    }

    /// How long a claim lasts before others may take the attempt for lost.
    pub fn claim_ttl(&self) -> Duration {
        self.webhook.timeout.get() + CLAIM_MARGIN
    }
}

/// What a claim lasts beyond the attempt's own timeout: time to record the result.
const CLAIM_MARGIN: Duration = Duration::from_secs(10);

/// What could not be read, by key and source; one clause for each.
fn told(why: &figment::Error) -> String {
    let one = |why: figment::Error| {
        // The first step of a path is figment's own profile name.
        let steps = why.path.iter().skip_while(|step| *step == "default");
        let key = steps.map(String::as_str).collect::<Vec<_>>().join(".");
        let at = if key.is_empty() { String::new() } else { format!("`{key}`: ") };
        let file = |from: &figment::Metadata| from.source.as_ref().map(|file| format!(" {file}"));
        let source = why.metadata.as_ref();
        let source = source.map(|from| format!(" (from {}{})", from.name, file(from).unwrap_or_default()));
        let source = source.unwrap_or_default();
        format!("{at}{}{source}", why.kind)
    };
    why.clone().into_iter().map(one).collect::<Vec<_>>().join("; ")
}

/// One key from the environment or a flag, under the name of what set it.
struct One {
    key: String,
    value: Value,
    source: String,
}

/// Reads the text as what the key's default is: text stays text, numbers and lists are read as TOML.
fn one(key: &str, value: &str, source: &str, defaults: &Figment) -> One {
    let text = match defaults.find_value(key) {
        Ok(Value::Num(..) | Value::Bool(..)) => false,
        Ok(Value::Array(..)) => !value.trim_start().starts_with('['),
        _ => true,
    };
    let parsed = if text { None } else { toml::from_str::<Dict>(&format!("v = {value}")).ok() };
    let value = parsed.and_then(|mut dict| dict.remove("v")).unwrap_or_else(|| Value::from(value));
    One { key: key.into(), value, source: source.into() }
}

impl figment::Provider for One {
    fn metadata(&self) -> figment::Metadata {
        figment::Metadata::named(self.source.clone())
    }

    fn data(&self) -> Result<figment::value::Map<figment::Profile, Dict>, figment::Error> {
        let dict = figment::util::nest(&self.key, self.value.clone()).into_dict().unwrap_or_default();
        Ok(figment::value::Map::from([(figment::Profile::Default, dict)]))
    }
}

/// A list, or text with commas or line breaks between the items.
fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Text(String),
        Items(Vec<String>),
    }
    let items = match Given::deserialize(deserializer)? {
        Given::Items(items) => items,
        Given::Text(text) => text
            .split([',', '\n'])
            .map(|item| item.trim().to_owned())
            .filter(|item| !item.is_empty())
            .collect(),
    };
    let read = |item: String| T::deserialize(serde::de::value::StringDeserializer::<D::Error>::new(item));
    items.into_iter().map(read).collect()
}

fn hidden<S: serde::Serializer>(keys: &[SecretString], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(keys.iter().map(|_| "(hidden)"))
}

/// A database URL with its password replaced, for logs and `config show`.
pub fn shown_url(text: &str) -> String {
    let Ok(mut url) = url::Url::parse(text) else { return without_password(text) };
    if url.password().is_some() {
        // Fails only for URLs that cannot have a password, and this one has.
        let _ = url.set_password(Some("hidden"));
    }
    if url.query_pairs().any(|(name, _)| name == "password") {
        let kept: Vec<(String, String)> =
            url.query_pairs().into_owned().filter(|(name, _)| name != "password").collect();
        url.query_pairs_mut().clear().extend_pairs(kept).append_pair("password", "hidden");
    }
    url.to_string()
}

/// The same for what is no URL as the standard has it: several hosts with ports, or a mistake.
fn without_password(text: &str) -> String {
    let Some((before, hosts)) = text.rsplit_once('@') else { return text.to_owned() };
    let (scheme, user) = before.split_once("://").map_or(("", before), |(scheme, user)| (scheme, user));
    match user.split_once(':') {
        Some((name, _)) => format!("{scheme}://{name}:hidden@{hosts}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
