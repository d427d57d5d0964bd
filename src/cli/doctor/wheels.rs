//! The check of the wheels: one Redis, or a Redis Cluster. It only reads. It never fails, only warns: without Redis
//! everything fires from SQL.

use deadpool_redis::redis::cmd;

use super::{Check, Found, TIMEOUT};
use crate::config::{Config, HotUrl, shown_url};
use crate::wheel::{Error, SLOTS, Server, Servers, field};

/// What to do when Redis does not answer.
const UNREACHED: &str =
    "is Redis running, and is `hot.url` right? Meanwhile timers fire from SQL, up to a second late";

/// Checks the server or servers of the wheels.
pub(super) async fn of_wheels(config: &Config) -> Check {
    let url = shown_url(&config.hot.url);
    let warn =
        |detail: String, cure: &str| Check::new("wheels", Found::Warn, format!("{url}: {detail}")).cure(cure);
    let opened = config.hot_url().map_err(|why| Error::Url(why.to_string()));
    let servers = match opened.and_then(|hot| Servers::open(&hot, 2, TIMEOUT).map(|open| (hot, open))) {
        Ok((_, None)) => return Check::new("wheels", Found::Ok, "in the server's own process"),
        Ok((hot, Some(servers))) => state(&hot, &servers).await,
        Err(why) => Err(why),
    };
    match servers {
        Ok((detail, None)) => Check::new("wheels", Found::Ok, format!("{url} answers: {detail}")),
        Ok((detail, Some(cure))) => warn(detail, &cure),
        Err(why @ (Error::NotCluster(_) | Error::IsCluster(_))) => {
            warn(why.to_string(), "meanwhile timers fire from SQL, up to a second late")
        }
        Err(why) => warn(why.to_string(), UNREACHED),
    }
}

/// The state of the servers, and what to do if something is wrong.
async fn state(hot: &HotUrl, servers: &Servers) -> Result<(String, Option<String>), Error> {
    let mut detail = String::new();
    if let Some(cluster) = servers.topology().await? {
        detail = format!("Redis Cluster of {} masters, ", cluster.masters());
        let (works, covered) = (cluster.works, cluster.covered());
        if !works || covered < usize::from(SLOTS) {
            let word = if works { "ok" } else { "fail" };
            let found = format!("{detail}cluster_state {word}, {covered} of {SLOTS} hash slots served");
            return Ok((found, Some("`redis-cli --cluster check HOST:PORT` says what is missing".into())));
        }
        detail += &format!("cluster_state ok, all {SLOTS} hash slots served, ");
    }
    let (mut silent, mut evicting, mut policies) = (Vec::new(), Vec::new(), Vec::new());
    for server in servers.masters().await? {
        match facts(&server).await {
            Ok((mode, _)) if mode == "cluster" && matches!(hot, HotUrl::Redis(_)) => {
                return Err(Error::IsCluster(server.address().to_owned()));
            }
            Ok((_, policy)) => {
                if policy != "noeviction" {
                    evicting.push(format!("{policy} at {}", server.address()));
                }
                policies.push(policy);
            }
            Err(why) if matches!(hot, HotUrl::Redis(_)) => return Err(why),
            Err(why) => silent.push(format!("{} ({why})", server.address())),
        }
    }
    if !silent.is_empty() {
        let cure = "start it, or let a replica take over; meanwhile its shards' timers fire from SQL";
        return Ok((format!("{detail}but no answer from {}", silent.join(", ")), Some(cure.into())));
    }
    if !evicting.is_empty() {
        let cure = "Redis then drops slots of the wheels without an error; set `maxmemory-policy noeviction`";
        return Ok((format!("{detail}maxmemory-policy {}", evicting.join(", ")), Some(cure.into())));
    }
    policies.dedup();
    Ok((format!("{detail}maxmemory-policy {}", policies.join(", ")), None))
}

/// Its mode (`standalone`, `cluster`, …) and its `maxmemory-policy`.
async fn facts(server: &Server) -> Result<(String, String), Error> {
    let text: String = server.ask(&cmd("INFO")).await?;
    let value = |name: &str| field(&text, name).unwrap_or("unknown").to_owned();
    Ok((value("redis_mode"), value("maxmemory_policy")))
}
