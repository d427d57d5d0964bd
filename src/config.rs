//! Settings: typed, with units, all checked before anything starts.
//!
//! `config.toml` < environment (`MAINSPRING__SECTION__KEY`, or `…_FILE` to read it from a file) < flags.
//! An unknown key is an error, in each of the three.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::url::Url;
use base64::Engine;
use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Value};
use ipnet::IpNet;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize};

mod hot;
mod url;

pub use hot::HotUrl;
pub use url::shown_url;

use crate::model::time::Span;
use crate::planted::Planted;

/// The prefix of environment variables that set a key.
const ENV_PREFIX: &str = "MAINSPRING__";

/// How many bytes a key of `server.secrets_key` has.
pub const SECRETS_KEY_LEN: usize = 32;

/// The longest attempt that may be configured.
pub const MAX_WEBHOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// Why the settings cannot be used. Each variant names the key or file, and how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value cannot be read, or a key is unknown.
    #[error("settings: {}", described(.0))]
    Read(Box<figment::Error>),
    /// A file named by `--config` or a `_FILE` variable cannot be read.
    #[error("settings: {path}, named by {named_by}, cannot be read: {source}")]
    File {
        /// The flag or variable that names the file.
        named_by: String,
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        source: std::io::Error,
    },
    /// The value of `--set` is not of the form KEY=VALUE.
    #[error("settings: `--set {0}`: write it as section.key=value")]
    Flag(String),
    /// A value that is not valid, or not valid together with another.
    #[error("settings: `{key}`: {detail}")]
    Check {
        /// The key.
        key: &'static str,
        /// What would be valid.
        detail: String,
    },
}

/// The keys that a running node takes over when it reads its settings again: its capacity.
pub const CAPACITY: [&str; 4] =
    ["dispatch.concurrency", "webhook.concurrency", "wheel.load_per_second", "wheel.catch_up_per_second"];

/// All settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The namespace in `ce-source`. Fixed when the store is made.
    pub namespace: String,
    /// The number of parallel partitions of all timers. Fixed when the store is made.
    pub shards: u16,
    /// How long the ownership of a shard lasts without renewal.
    pub lease: Span,
    /// In test builds, the defect to enable.
    #[cfg(feature = "planted")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted: Option<crate::planted::Defect>,
    /// The API.
    pub server: Server,
    /// The SQL database.
    pub cold: Cold,
    /// The wheels.
    pub hot: Hot,
    /// This process as one of several nodes.
    pub node: Node,
    /// The reach of the wheels.
    pub wheel: Wheel,
    /// Ended timers.
    pub history: History,
    /// Delivery over HTTP.
    pub webhook: Webhook,
    /// Delivery in general.
    pub dispatch: Dispatch,
    /// Lifecycle events.
    pub outbox: Outbox,
    /// Operations on many timers.
    pub operations: Operations,
    /// The audit.
    pub audit: Audit,
    /// Logging.
    pub log: Log,
}

/// `server.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Address and port of API, page and metrics.
    pub listen: SocketAddr,
    /// Keys that callers send as `Authorization: Bearer` and that may do everything, beside the keys of the store. Without
    /// any key the server is open and listens on loopback only ([`Server::without_keys`]).
    #[serde(deserialize_with = "list", serialize_with = "hidden")]
    pub api_keys: Vec<SecretString>,
    /// Encrypts the secrets of destinations at rest: base64 of 32 bytes. The first one encrypts; the others decrypt what was
    /// encrypted before they were replaced.
    #[serde(deserialize_with = "list", serialize_with = "hidden")]
    pub secrets_key: Vec<SecretString>,
    /// Timers a second that each key may register or change; 0 is no limit.
    pub rate_per_second: u32,
    /// The number of open connections; a further one takes the place of the one that is idle for longest.
    pub max_connections: usize,
    /// A proxy on this machine stands in front of the server: what comes from loopback need not be of this machine.
    pub behind_proxy: bool,
    /// The file with the certificate of the listener and those between it and its authority, in PEM. `None`: plain HTTP.
    pub tls_certificate: Option<PathBuf>,
    /// The file with its private key, in PEM.
    pub tls_key: Option<PathBuf>,
    /// The file with the authorities whose certificates clients may show, in PEM. `None`: clients are asked for none.
    pub tls_client_ca: Option<PathBuf>,
}

/// `cold.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cold {
    /// `sqlite://FILE` or `postgres://…`.
    pub url: String,
    /// Connections to PostgreSQL for callers; the node's own work has connections of its own.
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
    /// The node's name; an empty one is replaced by host name and listen port.
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
    /// How long before its due time a timer is claimed. It is sent at its due time.
    pub lead: Span,
    /// The highest rate, in timers a second, at which loader and replay fill the wheels.
    pub load_per_second: u32,
    /// The highest rate, in timers a second, at which a replay hands out overdue timers.
    pub catch_up_per_second: u32,
    /// Whether the wheels are used. Without them the sweep fires everything, up to a second late.
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
    /// Networks to which webhooks may go although they are loopback, private or link-local.
    #[serde(deserialize_with = "list")]
    pub allow_networks: Vec<IpNet>,
    /// The source address of deliveries, on a machine that has several. `None`: the system chooses.
    pub source_address: Option<IpAddr>,
    /// The HTTP proxy through which webhooks leave. `None`: they leave directly.
    pub proxy: Option<Url>,
    /// The time limit of one attempt, connecting included.
    pub timeout: Span,
    /// Concurrent attempts of one namespace to one receiver (scheme, host and port).
    pub concurrency: usize,
}

/// `dispatch.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispatch {
    /// Concurrent attempts on this node.
    pub concurrency: usize,
}

/// `outbox.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outbox {
    /// Lifecycle events of one subscription that wait at most; of more, the oldest are dropped.
    pub max_events: u64,
}

/// `operations.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operations {
    /// Timers a second that the operations of this node change, all together.
    pub per_second: u32,
}

/// `audit.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// How long it is kept who did what.
    pub retention: Span,
}

/// `log.*`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Which events are logged: a filter of `tracing-subscriber`.
    pub filter: String,
    /// The format of a line.
    pub format: LogFormat,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Server {
    /// The scheme of the listener.
    pub const fn scheme(&self) -> &'static str {
        if self.tls_certificate.is_some() { "https" } else { "http" }
    }

    /// Why a server that has no key cannot be started with these settings, if it cannot. Whether it has one is known once
    /// the store was read.
    pub fn without_keys(&self) -> Option<Error> {
        let detail = "without any key the server is open to everyone and listens on loopback only; make a key with \
                      `mainspring key create`, or listen on 127.0.0.1";
        (!self.listen.ip().is_loopback())
            .then(|| Error::Check { key: "server.listen", detail: detail.into() })
    }
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
                secrets_key: Vec::new(),
                rate_per_second: 0,
                max_connections: 4096,
                behind_proxy: false,
                tls_certificate: None,
                tls_key: None,
                tls_client_ca: None,
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
                proxy: None,
                timeout: span(10),
                concurrency: 128,
            },
            dispatch: Dispatch { concurrency: 2048 },
            outbox: Outbox { max_events: 1_000_000 },
            operations: Operations { per_second: 1000 },
            audit: Audit { retention: span(400 * 86_400) },
            log: Log { filter: "info".into(), format: LogFormat::Text },
        }
    }
}

/// Which database the cold store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColdKind {
    /// One file, one node.
    Sqlite,
    /// A database server, any number of nodes.
    Postgres,
}

impl Config {
    /// Reads and checks the settings: `file` (or `config.toml` in this directory, if there is one), over it `env`
    /// (names and values), over that `sets` (`section.key=value`).
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
                    named_by: "--config".into(),
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
                        named_by: name.clone(),
                        path: PathBuf::from(&value),
                        source,
                    })?;
                    (path, text.trim_end_matches(['\r', '\n']).to_owned())
                }
                None => (path, value),
            };
            figment = figment.merge(setting(
                &path.to_ascii_lowercase().replace("__", "."),
                &value,
                &name,
                &defaults,
            ));
        }
        for set in sets {
            let (key, value) = set.split_once('=').ok_or_else(|| Error::Flag(set.clone()))?;
            figment = figment.merge(setting(key.trim(), value, "--set", &defaults));
        }
        let config: Self = figment.extract().map_err(|why| Error::Read(Box::new(why)))?;
        config.checked()
    }

    /// The keys whose values differ in `other`, each with its values here and there. The values of secrets are told by
    /// nobody, so of `server.api_keys` only the number counts.
    pub fn differing(&self, other: &Self) -> Vec<(String, String, String)> {
        let (here, there) = (self.leaves(), other.leaves());
        let value = |of: &BTreeMap<String, serde_json::Value>, key: &String| {
            of.get(key).map_or_else(|| "none".to_owned(), ToString::to_string)
        };
        let keys: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
        let differs = keys.into_iter().filter(|key| here.get(*key) != there.get(*key));
        differs.map(|key| (key.clone(), value(&here, key), value(&there, key))).collect()
    }

    /// Every key with its value.
    fn leaves(&self) -> BTreeMap<String, serde_json::Value> {
        fn add(key: String, value: serde_json::Value, to: &mut BTreeMap<String, serde_json::Value>) {
            match value {
                serde_json::Value::Object(fields) => {
                    let within = |name: String| if key.is_empty() { name } else { format!("{key}.{name}") };
                    fields.into_iter().for_each(|(name, value)| add(within(name), value, to));
                }
                leaf => drop(to.insert(key, leaf)),
            }
        }
        let mut leaves = BTreeMap::new();
        add(String::new(), serde_json::to_value(self).unwrap_or_default(), &mut leaves);
        leaves
    }

    /// Checks each value, and those that depend on each other; fills in the node's name.
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
        let is_key = |key: &SecretString| {
            let bytes = base64::engine::general_purpose::STANDARD.decode(key.expose_secret().trim());
            bytes.is_ok_and(|bytes| bytes.len() == SECRETS_KEY_LEN)
        };
        if !self.server.secrets_key.iter().all(is_key) {
            return wrong(
                "server.secrets_key",
                "a key is not base64 of 32 bytes; make one with `openssl rand -base64 32`",
            );
        }
        match (&self.server.tls_certificate, &self.server.tls_key, &self.server.tls_client_ca) {
            (Some(_), None, _) => return wrong("server.tls_key", "`server.tls_certificate` needs it"),
            (None, Some(_), _) => return wrong("server.tls_certificate", "`server.tls_key` needs it"),
            (None, None, Some(_)) => {
                return wrong(
                    "server.tls_client_ca",
                    "it needs `server.tls_certificate` and `server.tls_key`",
                );
            }
            _ => {}
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
        if self.audit.retention.get() < Duration::from_secs(86_400) {
            return wrong("audit.retention", "at least P1D");
        }
        if !(Duration::from_millis(100)..=MAX_WEBHOOK_TIMEOUT).contains(&self.webhook.timeout.get()) {
            return wrong("webhook.timeout", "from PT0.1S to PT60S");
        }
        if self.webhook.proxy.as_ref().is_some_and(|url| !is_proxy(url)) {
            return wrong(
                "webhook.proxy",
                "give http://HOST:PORT or https://HOST:PORT, without user and path",
            );
        }
        if self.webhook.concurrency == 0 {
            return wrong("webhook.concurrency", "at least 1");
        }
        if self.dispatch.concurrency == 0 {
            return wrong("dispatch.concurrency", "at least 1");
        }
        if !(1..=100_000).contains(&self.operations.per_second) {
            return wrong("operations.per_second", "from 1 to 100000");
        }
        if !(1000..=100_000_000).contains(&self.outbox.max_events) {
            return wrong("outbox.max_events", "from 1000 to 100000000");
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
        let wrong = |detail| Err(Error::Check { key: "cold.url", detail });
        match self.cold.url.split_once("://") {
            Some(("sqlite", path)) if !path.is_empty() => Ok(ColdKind::Sqlite),
            Some(("postgres" | "postgresql", rest)) if !rest.is_empty() => {
                match url::store_url(&self.cold.url) {
                    Ok(_) => Ok(ColdKind::Postgres),
                    Err(why) => wrong(format!("{why}; give postgres://USER:PASSWORD@HOST/DATABASE")),
                }
            }
            _ => wrong("give sqlite://FILE or postgres://USER:PASSWORD@HOST/DATABASE".into()),
        }
    }

    /// Where `hot.url` puts the wheels.
    pub fn hot_url(&self) -> Result<HotUrl, Error> {
        HotUrl::parse(&self.hot.url).map_err(|detail| Error::Check { key: "hot.url", detail })
    }

    /// Whether webhooks to this address are allowed although it is not public. Loopback needs no listing while the server
    /// listens there, unless a proxy lets others reach it.
    pub fn allows_network(&self, ip: IpAddr) -> bool {
        (ip.is_loopback() && self.server.listen.ip().is_loopback() && !self.server.behind_proxy)
            || self.webhook.allow_networks.iter().any(|net| net.contains(&ip))
    }

    /// Whether this very address is listed in `webhook.allow_networks`, by itself.
    pub fn allows_address(&self, ip: IpAddr) -> bool {
        self.webhook.allow_networks.contains(&IpNet::from(ip))
    }

    /// The defect that is enabled: none, except in test builds.
    pub fn planted(&self) -> Planted {
        #[cfg(feature = "planted")]
        return Planted::new(self.planted);
        #[cfg(not(feature = "planted"))]
        return Planted::default();
    }

    /// How long a claim lasts. After that the attempt counts as lost, and the timer may be claimed again.
    pub fn claim_ttl(&self) -> Duration {
        self.webhook.timeout.get() + CLAIM_MARGIN
    }
}

/// The time to record the result, by which a claim lasts longer than its attempt may take.
pub const CLAIM_MARGIN: Duration = Duration::from_secs(10);

fn is_proxy(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && (url.username(), url.password(), url.path()) == ("", None, "/")
        && url.query().is_none()
        && url.fragment().is_none()
}

/// What could not be read, by key and source; one clause for each.
fn described(why: &figment::Error) -> String {
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

/// The value of one key from the environment or a flag. `source` is the variable or the flag.
struct Setting {
    key: String,
    value: Value,
    source: String,
}

/// Reads a value by the type of the key's default: text stays text, numbers and lists are read as TOML.
fn setting(key: &str, value: &str, source: &str, defaults: &Figment) -> Setting {
    let text = match defaults.find_value(key) {
        Ok(Value::Num(..) | Value::Bool(..)) => false,
        Ok(Value::Array(..)) => !value.trim_start().starts_with('['),
        _ => true,
    };
    let parsed = if text { None } else { toml::from_str::<Dict>(&format!("v = {value}")).ok() };
    let value = parsed.and_then(|mut dict| dict.remove("v")).unwrap_or_else(|| Value::from(value));
    Setting { key: key.into(), value, source: source.into() }
}

impl figment::Provider for Setting {
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
    enum TextOrItems {
        Text(String),
        Items(Vec<String>),
    }
    let items = match TextOrItems::deserialize(deserializer)? {
        TextOrItems::Items(items) => items,
        TextOrItems::Text(text) => text
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

#[cfg(test)]
mod tests;
