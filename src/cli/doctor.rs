//! `doctor`: looks at everything a server needs, one line each, with the cure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::Settings;
use super::exit::{self, Exit};
use super::{client, out, report, store};
use crate::cold::{ColdStore, Error};
use crate::config::{Config, shown_url};

mod wheels;

/// How long the database and the server may take for a sign of life.
const PATIENCE: Duration = Duration::from_secs(6);
/// From where on a clock that is off is worth a warning, in milliseconds.
const MAX_SKEW_MS: u64 = 500;

/// How one check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Result {
    Ok,
    Warn,
    Fail,
}

/// One line.
#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    result: Result,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

/// Prints checks as they are made, and remembers whether one failed.
struct Report {
    json: bool,
    failed: bool,
    /// The reader is gone; the exit code still counts.
    closed: bool,
}

impl Check {
    fn new(check: &'static str, result: Result, detail: impl Into<String>) -> Self {
        Self { check, result, detail: detail.into(), cure: None }
    }

    fn cure(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }

    fn line(&self) -> String {
        let result = match self.result {
            Result::Ok => "ok",
            Result::Warn => "warn",
            Result::Fail => "fail",
        };
        let cure = self.cure.as_ref().map_or_else(String::new, |cure| format!("; {cure}"));
        format!("{result:<4}  {:<8}  {}{cure}", self.check, self.detail)
    }
}

impl Report {
    fn add(&mut self, check: &Check) -> anyhow::Result<()> {
        self.failed |= check.result == Result::Fail;
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

/// Runs `doctor`.
pub async fn run(settings: &Settings, json: bool) -> anyhow::Result<Exit> {
    let mut report = Report { json, failed: false, closed: false };
    let config = match settings.load() {
        Ok(config) => config,
        Err(why) => {
            report.add(&Check::new("settings", Result::Fail, report::message(&why)))?;
            return Ok(exit::of(&why));
        }
    };
    report.add(&of_settings(&config))?;
    match store::missing_file(&config) {
        Some(path) => {
            let detail = format!("{} is not there yet", path.display());
            report.add(
                &Check::new("store", Result::Warn, detail).cure("the first `mainspring serve` makes it"),
            )?;
        }
        None => of_store(&config, &mut report).await?,
    }
    report.add(&wheels::of_wheels(&config).await)?;
    report.add(&of_server(config.server.listen).await)?;
    Ok(if report.failed { Exit::Failed } else { Exit::Ok })
}

fn of_settings(config: &Config) -> Check {
    let keys = match config.server.api_keys.len() {
        0 => "open to everyone on this machine".to_owned(),
        n => format!("API keys: {n}"),
    };
    Check::new("settings", Result::Ok, format!("node {}, {keys}", config.node.name))
}

/// Everything that takes a database.
async fn of_store(config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let url = shown_url(&config.cold.url);
    let store = match store::open(config) {
        Ok(store) => store,
        Err(why) => return report.add(&Check::new("store", Result::Fail, why.to_string())),
    };
    let answer = tokio::time::timeout(PATIENCE, store.ping()).await;
    let reached = match answer {
        Ok(Ok(())) => Check::new("store", Result::Ok, format!("{url} answers")),
        Ok(Err(why)) => {
            let check = Check::new("store", Result::Fail, format!("{url}: {why}"));
            match why {
                Error::Unavailable(_) => check.cure("is the database running, and is `cold.url` right?"),
                _ => check,
            }
        }
        Err(_) => Check::new(
            "store",
            Result::Fail,
            format!("{url} does not answer within {} s", PATIENCE.as_secs()),
        )
        .cure("is the database overloaded, or a firewall in between?"),
    };
    report.add(&reached)?;
    if reached.result == Result::Ok {
        report.add(&of_clock(&store))?;
        let schema = of_schema(&store).await;
        report.add(&schema)?;
        if schema.result == Result::Ok {
            report.add(&of_shards(config, &store).await)?;
            report.add(&of_ledger(&store).await)?;
        }
        report.add(&of_durability(&store).await)?;
    }
    store.close().await;
    Ok(())
}

fn of_clock(store: &ColdStore) -> Check {
    let skew = store.clock().skew_ms();
    let detail = match skew {
        _ if !store.is_shared() => "the store goes by this machine's clock".to_owned(),
        0.. => format!("{skew} ms ahead of the store's"),
        behind => format!("{} ms behind the store's", behind.unsigned_abs()),
    };
    if skew.unsigned_abs() > MAX_SKEW_MS {
        Check::new("clock", Result::Warn, detail)
            .cure("run NTP (chrony, systemd-timesyncd) here and on the database's machine")
    } else {
        Check::new("clock", Result::Ok, detail)
    }
}

async fn of_schema(store: &ColdStore) -> Check {
    match store.migration_state().await {
        Err(why) => Check::new("schema", Result::Fail, why.to_string()),
        Ok(state) if !state.unknown.is_empty() => {
            let detail = format!("migrated by a newer mainspring ({})", state.unknown.join(", "));
            Check::new("schema", Result::Fail, detail).cure("run that version, or a newer one")
        }
        Ok(state) if !state.pending.is_empty() => {
            let detail = format!("steps behind this version: {}", state.pending.len());
            Check::new("schema", Result::Warn, detail)
                .cure("`mainspring migrate up`, or the next `serve`, applies them")
        }
        Ok(_) => Check::new("schema", Result::Ok, "up to date"),
    }
}

/// The number of shards is fixed when the store is made.
async fn of_shards(config: &Config, store: &ColdStore) -> Check {
    match store.made_with().await {
        Ok(None) => Check::new("shards", Result::Ok, format!("{} when the store is made", config.shards)),
        Ok(Some(made)) if made == i32::from(config.shards) => {
            Check::new("shards", Result::Ok, made.to_string())
        }
        Ok(Some(made)) => {
            let detail = format!("`shards` is {}, the store was made with {made}", config.shards);
            Check::new("shards", Result::Fail, detail).cure(format!("set `shards = {made}`"))
        }
        Err(why) => Check::new("shards", Result::Fail, why.to_string()),
    }
}

/// A 2xx promises a flush, which PostgreSQL can be told to leave out.
async fn of_durability(store: &ColdStore) -> Check {
    match store.durability().await {
        Ok(settings) => {
            let off: Vec<_> =
                settings.iter().filter(|(_, value)| value == "off").map(|(name, _)| name.as_str()).collect();
            let told: Vec<_> = settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
            match (off.is_empty(), told.is_empty()) {
                (_, true) => Check::new("flush", Result::Ok, "synchronous FULL"),
                (true, false) => Check::new("flush", Result::Ok, told.join(", ")),
                (false, _) => Check::new("flush", Result::Fail, format!("{} off", off.join(", ")))
                    .cure("acknowledged timers can be lost in a power cut; switch it on"),
            }
        }
        Err(why) => Check::new("flush", Result::Warn, why.to_string()),
    }
}

async fn of_ledger(store: &ColdStore) -> Check {
    match store.verify().await {
        Err(why) => Check::new("ledger", Result::Fail, why.to_string()),
        Ok(found) if !store::lossless(&found) => {
            Check::new("ledger", Result::Fail, "does not close").cure("`mainspring verify` shows where")
        }
        Ok(found) if found.overdue > 0 => {
            let detail = format!("closes, but timers are more than a minute overdue: {}", found.overdue);
            Check::new("ledger", Result::Warn, detail)
                .cure("is a server running on this store, and has it any room?")
        }
        Ok(found) => {
            let ledger = found.ledger;
            Check::new(
                "ledger",
                Result::Ok,
                format!("{} registered, {} pending", ledger.registered, ledger.pending),
            )
        }
    }
}

#[derive(Deserialize)]
struct Ready {
    status: String,
}

async fn of_server(listen: SocketAddr) -> Check {
    let base = format!("http://{}", reachable(listen));
    let fail = |detail: String| Check::new("server", Result::Fail, detail);
    let http = match client::http(PATIENCE) {
        Ok(http) => http,
        Err(why) => return fail(report::message(&why)),
    };
    let answer = match http.get(format!("{base}/readyz")).send().await {
        Ok(answer) => answer,
        Err(why) if why.is_connect() => {
            return Check::new("server", Result::Warn, format!("not running at {base}"))
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
            Check::new("server", Result::Ok, format!("{base} is ready"))
        }
        Ok(_) if status.is_success() => Check::new(
            "server",
            Result::Warn,
            format!("{base} is ready with less: {}", out::short(&text, 500)),
        ),
        Ok(_) => fail(format!("{base} is not ready: {}", out::short(&text, 500))).cure("its log says why"),
        Err(_) => fail(format!("{base} answers {status}, but not as a Mainspring server would"))
            .cure("something else listens there; choose another `server.listen`"),
    }
}

/// Where a server that listens here is reached from this machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_result_check_and_cure() {
        let check = Check::new("server", Result::Warn, "not running").cure("start it");
        assert_eq!(check.line(), "warn  server    not running; start it");
        assert_eq!(
            serde_json::to_string(&check).unwrap(),
            r#"{"check":"server","result":"warn","detail":"not running","cure":"start it"}"#
        );
        assert_eq!(Check::new("store", Result::Ok, "answers").line(), "ok    store     answers");
    }

    #[test]
    fn a_server_on_all_addresses_is_reached_on_loopback() {
        for (listen, reached) in
            [("0.0.0.0:7600", "127.0.0.1:7600"), ("[::]:7600", "[::1]:7600"), ("127.0.0.1:1", "127.0.0.1:1")]
        {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), reached);
        }
    }
}
