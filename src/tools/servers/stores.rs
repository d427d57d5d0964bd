//! The stores of a run: a database and a namespace of its own, and their size.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use deadpool_redis::redis::{Cmd, cmd};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::config::{HotUrl, shown_url};
use crate::tools::proc::postmaster_of;
use crate::wheel::{Error, Server, Servers, field};

/// How long a store may take to answer a connection.
const REACH: Duration = Duration::from_secs(10);

/// Which stores a run shall use.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// `cold.url`; without one, an SQLite file in a directory that goes when the run ends.
    pub cold: Option<String>,
    /// `hot.url`; without one, the in-process wheel.
    pub hot: Option<String>,
    /// Use the cold store as it is, instead of an empty one beside it.
    pub reuse: bool,
}

/// The stores of one run.
pub struct Stores {
    /// The server's `cold.url`.
    pub cold: String,
    /// The server's `hot.url`.
    pub hot: String,
    /// The namespace.
    pub namespace: String,
    /// Whether the namespace is this run's own, and with it its keys in Redis.
    own_namespace: bool,
    /// A database that was made for this run: its name, and the URL of the one beside which it is.
    made: Option<(String, String)>,
    postgres: Option<PgConnection>,
    redis: Option<Servers>,
}

/// CPU and memory of Redis, by its `INFO`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RedisInfo {
    /// CPU seconds, user and system.
    pub cpu_s: Option<f64>,
    /// Bytes in use.
    pub memory: Option<f64>,
}

impl Choice {
    /// In words, without passwords.
    pub fn shown(&self) -> (String, String) {
        let cold = self.cold.as_deref().map_or_else(|| "sqlite (temporary)".to_owned(), shown_url);
        (cold, self.hot.as_deref().map_or_else(|| "memory://".to_owned(), shown_url))
    }
}

impl Stores {
    /// Makes the stores ready; `tag` is this run's own, `dir` its directory.
    pub async fn open(choice: &Choice, tag: &str, dir: &Path) -> anyhow::Result<Self> {
        let hot = choice.hot.clone().unwrap_or_else(|| "memory://".into());
        let cold = choice.cold.clone().unwrap_or_else(|| format!("sqlite://{}/bench.db", dir.display()));
        let mut stores = Self {
            cold,
            redis: connect_redis(&hot).await?,
            hot,
            namespace: format!("bench-{tag}"),
            own_namespace: true,
            made: None,
            postgres: None,
        };
        let prepared = stores.prepare(choice.reuse, tag).await;
        if let Err(why) = prepared {
            stores.close().await?;
            return Err(why);
        }
        Ok(stores)
    }

    async fn prepare(&mut self, reuse: bool, tag: &str) -> anyhow::Result<()> {
        let existing = if let Some(path) = self.file() {
            match (path.exists(), reuse) {
                (false, _) => None,
                (true, false) => bail!("{} is there already; --reuse benches on it", path.display()),
                (true, true) => {
                    let mut db = SqliteConnection::connect(&self.cold).await?;
                    sqlx::query_scalar("SELECT namespace FROM store")
                        .fetch_optional(&mut db)
                        .await
                        .ok()
                        .flatten()
                }
            }
        } else {
            if !reuse {
                self.make_database(tag).await?;
            }
            let db = self.postgres.insert(connect(&self.cold).await?);
            sqlx::query_scalar("SELECT namespace FROM store").fetch_optional(db).await.ok().flatten()
        };
        if let Some(namespace) = existing {
            self.namespace = namespace;
            self.own_namespace = false;
        }
        Ok(())
    }

    async fn make_database(&mut self, tag: &str) -> anyhow::Result<()> {
        let server = self.cold.clone();
        let name = format!("mainspring_bench_{tag}");
        let mut db = connect(&server).await?;
        let make = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(make).execute(&mut db).await.with_context(|| {
            format!(
                "database {name} cannot be made (the user needs CREATEDB); --reuse benches on the one given"
            )
        })?;
        let mut url = url::Url::parse(&server).context("the cold store's URL cannot be read")?;
        url.set_path(&name);
        self.cold = url.into();
        self.made = Some((name, server));
        Ok(())
    }

    /// The SQLite file; `None` on PostgreSQL.
    fn file(&self) -> Option<PathBuf> {
        Some(self.cold.strip_prefix("sqlite://")?.split('?').next()?.into())
    }

    /// What the live timers take in SQL, indexes included. On SQLite, the whole database.
    pub async fn sql_bytes(&mut self) -> Option<f64> {
        let bytes: i64 = if self.file().is_some() {
            let size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";
            let mut db = SqliteConnection::connect(&self.cold).await.ok()?;
            let bytes = sqlx::query_scalar(size).fetch_one(&mut db).await.ok();
            // As it was opened to read, nothing is lost if it does not close well.
            let _ = db.close().await;
            bytes?
        } else {
            let size = "SELECT pg_total_relation_size('timers')";
            sqlx::query_scalar(size).fetch_one(self.postgres.as_mut()?).await.ok()?
        };
        Some(bytes as f64)
    }

    /// Does at once what PostgreSQL would do in the next minutes: statistics, visibility, checkpoint.
    pub async fn tidy(&mut self) {
        if let (Some(db), Some(_)) = (&mut self.postgres, &self.made) {
            for statement in ["VACUUM (ANALYZE) timers", "CHECKPOINT"] {
                // It may be forbidden, and then takes its time as it would without a bench.
                let _ = sqlx::query(statement).execute(&mut *db).await;
            }
        }
    }

    /// The process id of PostgreSQL's postmaster, if it is on this machine.
    pub async fn postmaster(&mut self) -> Option<u32> {
        let db = self.postgres.as_mut()?;
        let backend: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(db).await.ok()?;
        postmaster_of(u32::try_from(backend).ok()?)
    }

    /// CPU and memory of Redis, of all masters of a cluster together; empty without one.
    pub async fn redis_info(&mut self) -> RedisInfo {
        let Some(redis) = &self.redis else { return RedisInfo::default() };
        let mut sum = RedisInfo { cpu_s: Some(0.0), memory: Some(0.0) };
        let Ok(servers) = redis.masters().await else { return RedisInfo::default() };
        for server in servers {
            let text: String = server.ask(&cmd("INFO")).await.unwrap_or_default();
            let one = read_info(&text);
            let add = |sum: Option<f64>, one: Option<f64>| Some(sum? + one?);
            sum = RedisInfo { cpu_s: add(sum.cpu_s, one.cpu_s), memory: add(sum.memory, one.memory) };
        }
        sum
    }

    /// Removes what was made for this run.
    pub async fn close(&mut self) -> anyhow::Result<()> {
        if let Some(db) = self.postgres.take() {
            let _ = db.close().await;
        }
        let own = self.own_namespace.then(|| format!("*{}*", self.namespace));
        if let (Some(redis), Some(pattern)) = (self.redis.take(), own) {
            for server in redis.masters().await.context("the keys of this run stay in Redis")? {
                forget(&server, &pattern).await.context("keys of this run stay in Redis")?;
            }
        }
        if let Some((name, server)) = self.made.take() {
            let mut db = connect(&server).await.with_context(|| format!("database {name} stays"))?;
            let drop = AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
            sqlx::query(drop).execute(&mut db).await.with_context(|| format!("database {name} stays"))?;
        }
        Ok(())
    }
}

async fn connect(url: &str) -> anyhow::Result<PgConnection> {
    let context = || format!("PostgreSQL at {} cannot be reached", shown_url(url));
    tokio::time::timeout(REACH, PgConnection::connect(url)).await.with_context(context)?.with_context(context)
}

/// The servers of `hot.url`, each of which answers; `None` for wheels in memory.
async fn connect_redis(url: &str) -> anyhow::Result<Option<Servers>> {
    let context = || format!("Redis at {} cannot be reached", shown_url(url));
    let hot = HotUrl::parse(url).map_err(|why| anyhow::anyhow!("--hot-url: {why}"))?;
    let Some(servers) = Servers::open(&hot, 2, REACH)? else { return Ok(None) };
    for server in servers.masters().await.with_context(context)? {
        let _: String = server.ask(&cmd("PING")).await.with_context(context)?;
    }
    Ok(Some(servers))
}

/// Removes all keys of a pattern from a server; nobody else has keys with this run's namespace.
async fn forget(server: &Server, pattern: &str) -> Result<(), Error> {
    let mut cursor = 0_u64;
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
        let (next, keys): (u64, Vec<Vec<u8>>) = server.ask(&scan).await?;
        let unlink = |key: &Vec<u8>| {
            let mut unlink = cmd("UNLINK");
            unlink.arg(key);
            unlink
        };
        // One key each: those of a cluster lie in many hash slots.
        let unlinks: Vec<Cmd> = keys.iter().map(unlink).collect();
        let _: Vec<i64> = server.run(&unlinks.iter().collect::<Vec<_>>()).await?;
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

fn read_info(text: &str) -> RedisInfo {
    let value = |name: &str| field(text, name)?.parse::<f64>().ok();
    let cpu_s = value("used_cpu_user").zip(value("used_cpu_sys")).map(|(user, system)| user + system);
    RedisInfo { cpu_s, memory: value("used_memory") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_by_whole_names() {
        let text = "# Memory\r\nused_memory:1048576\r\nused_memory_human:1.00M\r\nused_cpu_sys:1.5\r\nused_cpu_sys_children:9\r\nused_cpu_user:2.25\r\n";
        assert_eq!(read_info(text), RedisInfo { cpu_s: Some(3.75), memory: Some(1_048_576.0) });
        assert_eq!(read_info(""), RedisInfo::default());
    }
}
