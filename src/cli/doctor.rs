//! `doctor`: checks everything that a server needs. Each check is one line, with what to do if it is not well.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::config::Settings;
use super::exit::{self, Exit};
use super::{client, out, report, store};
use crate::cold::{ColdStore, Error};
use crate::config::{Config, Server, shown_url};
use crate::limits::{self, FileLimits};

mod exposure;
mod wheels;

/// The time limit for an answer of the database, of Redis and of the server.
const TIMEOUT: Duration = Duration::from_secs(6);
/// The difference between the clocks, in milliseconds, above which `doctor` warns.
const MAX_SKEW_MS: u64 = 500;

/// `doctor …`
#[derive(Args)]
pub struct Doctor {
    /// Make these checks only; with `server` alone, a server that does not run is a failure, as a health check wants it
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    only: Vec<Subject>,
    #[command(flatten)]
    settings: Settings,
}

/// What can be checked by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// The settings
    Settings,
    /// The limit on open files
    Files,
    /// Database, clock, schema and ledger
    Store,
    /// Redis
    Wheels,
    /// What has to be set before the server leaves loopback
    Exposure,
    /// The server that runs with these settings: can it serve?
    Server,
}

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Found {
    Ok,
    Warn,
    Fail,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    result: Found,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

/// Prints checks as they are made, and records whether one failed.
struct Checks {
    json: bool,
    failed: bool,
    /// The reader of stdout is gone. The checks go on for the exit code.
    closed: bool,
}

impl Check {
    fn new(check: &'static str, result: Found, detail: impl Into<String>) -> Self {
        Self { check, result, detail: detail.into(), cure: None }
    }

    fn cure(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }

    fn line(&self) -> String {
        let result = match self.result {
            Found::Ok => "ok",
            Found::Warn => "warn",
            Found::Fail => "fail",
        };
        let cure = self.cure.as_ref().map_or_else(String::new, |cure| format!("; {cure}"));
        format!("{result:<4}  {:<8}  {}{cure}", self.check, self.detail)
    }
}

impl Checks {
    fn add(&mut self, check: &Check) -> anyhow::Result<()> {
        self.failed |= check.result == Found::Fail;
        let text = if self.json { serde_json::to_string(check)? } else { check.line() };
        match out::print(&text) {
            _ if self.closed => Ok(()),
            Err(why) if why.is::<out::PipeClosed>() => {
                self.closed = true;
                Ok(())
            }
            done => done,
        }
    }
}

/// Runs `doctor`. `before` are the settings before the verb.
pub async fn run(doctor: &Doctor, before: &Settings, json: bool) -> anyhow::Result<Exit> {
    let mut checks = Checks { json, failed: false, closed: false };
    let wants = |subject| doctor.only.is_empty() || doctor.only.contains(&subject);
    let config = match before.and(&doctor.settings).load() {
        Ok(config) => config,
        Err(why) => {
            checks.add(&Check::new("settings", Found::Fail, report::message(&why)))?;
            return Ok(exit::of(&why));
        }
    };
    if wants(Subject::Settings) {
        checks.add(&of_settings(&config))?;
    }
    if wants(Subject::Files) {
        checks.add(&of_files(&config))?;
    }
    match store::missing_file(&config) {
        _ if !wants(Subject::Store) => {}
        Some(path) => {
            let detail = format!("{} does not exist yet", path.display());
            checks.add(
                &Check::new("store", Found::Warn, detail).cure("the first `mainspring serve` makes it"),
            )?;
            checks.add(&of_keys(&config, Ok(0)))?;
        }
        None => of_store(&config, &mut checks).await?,
    }
    if wants(Subject::Wheels) {
        checks.add(&wheels::of_wheels(&config).await)?;
    }
    if wants(Subject::Exposure) {
        for check in exposure::of_exposure(&config) {
            checks.add(&check)?;
        }
    }
    if wants(Subject::Server) {
        // Before a first start, all else may be checked while no server runs.
        let absent = if doctor.only == [Subject::Server] { Found::Fail } else { Found::Warn };
        checks.add(&of_server(&config.server, absent).await)?;
    }
    Ok(if checks.failed { Exit::Failed } else { Exit::Ok })
}

fn of_settings(config: &Config) -> Check {
    Check::new("settings", Found::Ok, format!("node {}", config.node.name))
}

/// Whether the connections of the settings fit into the limit on open files. It is that of a server which is started
/// like this process.
fn of_files(config: &Config) -> Check {
    let files = FileLimits::of(config, limits::highest());
    if files.fits() {
        Check::new("files", Found::Ok, files.told())
    } else {
        Check::new("files", Found::Warn, files.told()).cure(files.cure())
    }
}

/// The checks that need the database.
async fn of_store(config: &Config, checks: &mut Checks) -> anyhow::Result<()> {
    let url = shown_url(&config.cold.url);
    let store = match store::open(config) {
        Ok(store) => store,
        Err(why) => return checks.add(&Check::new("store", Found::Fail, why.to_string())),
    };
    let answer = tokio::time::timeout(TIMEOUT, store.ping()).await;
    let reached = match answer {
        Ok(Ok(())) => Check::new("store", Found::Ok, format!("{url} answers")),
        Ok(Err(why)) => {
            let check = Check::new("store", Found::Fail, format!("{url}: {why}"));
            match why {
                Error::Unavailable(_) => check.cure("is the database running, and is `cold.url` right?"),
                _ => check,
            }
        }
        Err(_) => {
            Check::new("store", Found::Fail, format!("{url} does not answer within {} s", TIMEOUT.as_secs()))
                .cure("is the database overloaded, or is a firewall in between?")
        }
    };
    checks.add(&reached)?;
    if reached.result == Found::Ok {
        checks.add(&of_clock(&store))?;
        let schema = of_schema(&store).await;
        checks.add(&schema)?;
        if schema.result == Found::Ok {
            checks.add(&of_shards(config, &store).await)?;
            checks.add(&of_keys(config, store.keys_mark().await.map(|mark| mark.count)))?;
            checks.add(&of_ledger(&store).await)?;
        }
        checks.add(&of_durability(&store).await)?;
    }
    store.close().await;
    Ok(())
}

fn of_clock(store: &ColdStore) -> Check {
    let skew = store.clock().skew_ms();
    let detail = match skew {
        _ if !store.is_shared() => "the store uses this machine's clock".to_owned(),
        0.. => format!("{skew} ms ahead of the store's"),
        behind => format!("{} ms behind the store's", behind.unsigned_abs()),
    };
    if skew.unsigned_abs() > MAX_SKEW_MS {
        Check::new("clock", Found::Warn, detail)
            .cure("run NTP (chrony, systemd-timesyncd) here and on the database's machine")
    } else {
        Check::new("clock", Found::Ok, detail)
    }
}

async fn of_schema(store: &ColdStore) -> Check {
    match store.migration_state().await {
        Err(why) => Check::new("schema", Found::Fail, why.to_string()),
        Ok(state) if !state.is_borne => {
            let detail = format!("migrated by a newer mainspring ({})", state.unknown.join(", "));
            Check::new("schema", Found::Fail, detail).cure("run that version, or a newer one")
        }
        Ok(state) if !state.pending.is_empty() => {
            let detail = format!("steps behind this version: {}", state.pending.len());
            Check::new("schema", Found::Warn, detail)
                .cure("`mainspring migrate up`, or the next `serve`, applies them")
        }
        Ok(_) => Check::new("schema", Found::Ok, "up to date"),
    }
}

/// Who may call: nobody beyond this machine while there is no key.
fn of_keys(config: &Config, stored: Result<i64, Error>) -> Check {
    let (stored, set) = match stored {
        Ok(stored) => (stored, config.server.api_keys.len()),
        Err(why) => return Check::new("keys", Found::Fail, why.to_string()),
    };
    let create = "`mainspring key create NAME --scope SCOPE` makes one";
    match (stored, set, config.server.without_keys()) {
        (0, 0, Some(why)) => Check::new("keys", Found::Fail, why.to_string()).cure(create),
        (0, 0, None) if config.server.behind_proxy => {
            let detail = "none, and a proxy stands in front: whoever reaches it may do everything";
            Check::new("keys", Found::Warn, detail).cure(create)
        }
        (0, 0, None) => Check::new("keys", Found::Ok, "none: open to everyone on this machine"),
        (_, 0, _) => Check::new("keys", Found::Ok, format!("{stored} in the store")),
        _ => {
            let detail =
                format!("{stored} in the store, {set} in `server.api_keys`, which may do everything");
            Check::new("keys", Found::Ok, detail)
        }
    }
}

/// The number of shards is fixed when the store is made.
async fn of_shards(config: &Config, store: &ColdStore) -> Check {
    match store.made_with().await {
        Ok(None) => Check::new("shards", Found::Ok, format!("{} when the store is made", config.shards)),
        Ok(Some(made)) if made == i32::from(config.shards) => {
            Check::new("shards", Found::Ok, made.to_string())
        }
        Ok(Some(made)) => {
            let detail = format!("`shards` is {}, the store was made with {made}", config.shards);
            Check::new("shards", Found::Fail, detail).cure(format!("set `shards = {made}`"))
        }
        Err(why) => Check::new("shards", Found::Fail, why.to_string()),
    }
}

/// A 2xx promises a flush; settings of PostgreSQL can switch the flush off.
async fn of_durability(store: &ColdStore) -> Check {
    match store.durability().await {
        Ok(settings) => {
            let off: Vec<_> =
                settings.iter().filter(|(_, value)| value == "off").map(|(name, _)| name.as_str()).collect();
            let all: Vec<_> = settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
            match (off.is_empty(), all.is_empty()) {
                (_, true) => Check::new("flush", Found::Ok, "synchronous FULL"),
                (true, false) => Check::new("flush", Found::Ok, all.join(", ")),
                (false, _) => Check::new("flush", Found::Fail, format!("{} off", off.join(", ")))
                    .cure("acknowledged timers can be lost in a power cut; switch it on"),
            }
        }
        Err(why) => Check::new("flush", Found::Warn, why.to_string()),
    }
}

async fn of_ledger(store: &ColdStore) -> Check {
    match store.verify().await {
        Err(why) => Check::new("ledger", Found::Fail, why.to_string()),
        Ok(found) if !store::lossless(&found) => {
            Check::new("ledger", Found::Fail, "does not close").cure("`mainspring verify` shows where")
        }
        Ok(found) if found.overdue > 0 => {
            let detail = format!("closes, but timers are more than a minute overdue: {}", found.overdue);
            Check::new("ledger", Found::Warn, detail)
                .cure("is a server running on this store, and has it free capacity?")
        }
        Ok(found) => {
            let ledger = found.ledger;
            Check::new(
                "ledger",
                Found::Ok,
                format!("{} registered, {} pending", ledger.registered, ledger.pending),
            )
        }
    }
}

#[derive(Deserialize)]
struct Ready {
    status: String,
}

/// Whether a server runs with these settings and can serve. `absent` is the result if none runs.
async fn of_server(server: &Server, absent: Found) -> Check {
    let base = format!("{}://{}", server.scheme(), client::reachable(server.listen));
    let fail = |detail: String| Check::new("server", Found::Fail, detail);
    let http = match client::http_of_this_machine(TIMEOUT) {
        Ok(http) => http,
        Err(why) => return fail(report::message(&why)),
    };
    let answer = match http.get(format!("{base}/readyz")).send().await {
        Ok(answer) => answer,
        Err(why) if why.is_connect() => {
            return Check::new("server", absent, format!("not running at {base}"))
                .cure("`mainspring serve` starts it");
        }
        Err(why) => {
            return fail(format!("{base} does not answer: {}", client::root_cause(&why)))
                .cure("does something else listen there?");
        }
    };
    let status = answer.status();
    let text = out::compact(&answer.text().await.unwrap_or_default());
    match serde_json::from_str::<Ready>(&text) {
        Ok(ready) if status.is_success() && ready.status == "ok" => {
            Check::new("server", Found::Ok, format!("{base} is ready"))
        }
        Ok(_) if status.is_success() => Check::new(
            "server",
            Found::Warn,
            format!("{base} is ready, but degraded: {}", out::short(&text, 500)),
        ),
        Ok(_) => fail(format!("{base} is not ready: {}", out::short(&text, 500))).cure("its log says why"),
        Err(_) => fail(format!("{base} answers {status}, but is not a Mainspring server"))
            .cure("something else listens there; choose another `server.listen`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_result_check_and_cure() {
        let check = Check::new("server", Found::Warn, "not running").cure("start it");
        assert_eq!(check.line(), "warn  server    not running; start it");
        assert_eq!(
            serde_json::to_string(&check).unwrap(),
            r#"{"check":"server","result":"warn","detail":"not running","cure":"start it"}"#
        );
        assert_eq!(Check::new("store", Found::Ok, "answers").line(), "ok    store     answers");
    }
}
