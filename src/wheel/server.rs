//! One Redis server, and the connections to it.
//!
//! Commands are sent again after some failures, so they must be repeatable. This room knows neither the meaning
//! of the commands nor which keys the server has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_redis::redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, FromRedisValue, Pipeline, RedisResult, cmd,
};
use deadpool_redis::{Connection, Manager, Pool, Runtime};

use super::topology::Topology;
use super::{Error, scripts};
use crate::metrics::Connections;

/// How long one pipeline may take.
const ANSWER: Duration = Duration::from_secs(2);

/// How long connecting, or waiting for a free connection, may take.
const CONNECT: Duration = Duration::from_secs(1);

/// How long the answer of a cluster's master about its identity is waited for. Meanwhile the other masters wait
/// too.
const IDENTITY: Duration = Duration::from_millis(1500);

/// The same for a master that did not answer the last time.
const IDENTITY_AGAIN: Duration = Duration::from_millis(300);

/// The most commands of one pipeline.
const PIPELINE: usize = 100;

/// One Redis server, with its connections.
pub struct Server {
    address: String,
    connections: Pool,
    /// One connection, for blocking reads.
    blocking: Pool,
    /// It did not answer the last time its identity was asked for; until it does, no other command is sent to
    /// it.
    unreachable: AtomicBool,
}

impl Server {
    pub(super) fn open(info: ConnectionInfo, size: usize, wait: Duration) -> Result<Arc<Self>, Error> {
        let address = info.addr().to_string();
        let pool = |size: usize, answer: Duration| {
            let settings = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(CONNECT))
                .set_response_timeout(Some(answer));
            let manager = Manager::new_with_config(info.clone(), settings)?;
            Pool::builder(manager)
                .max_size(size)
                .runtime(Runtime::Tokio1)
                .wait_timeout(Some(CONNECT))
                .create_timeout(Some(CONNECT))
                .recycle_timeout(Some(CONNECT))
                .build()
                .map_err(|why| Error::Url(why.to_string()))
        };
        let (connections, blocking) = (pool(size, ANSWER)?, pool(1, wait + ANSWER)?);
        Ok(Arc::new(Self { address, connections, blocking, unreachable: AtomicBool::new(false) }))
    }

    /// Its connections, that for blocking reads left out.
    pub(super) fn connections(&self) -> Connections {
        let status = self.connections.status();
        Connections::new(status.size, status.available, status.max_size)
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Runs commands in pipelines on one connection; answers in order. Fails if one of them fails.
    pub async fn run<T: FromRedisValue>(&self, commands: &[&Cmd]) -> Result<Vec<T>, Error> {
        Ok(self.run_each(commands).await?.into_iter().collect::<Result<_, _>>()?)
    }

    /// The same, with a result for each command. Scripts that the server does not have are loaded, and their
    /// commands are sent again.
    pub(super) async fn run_each<T: FromRedisValue>(
        &self,
        commands: &[&Cmd],
    ) -> Result<Vec<RedisResult<T>>, Error> {
        let mut connection = self.connections.get().await?;
        let mut answers = Vec::with_capacity(commands.len());
        for chunk in commands.chunks(PIPELINE) {
            let mut answered = send(&mut connection, chunk.iter()).await?;
            let unknown =
                |answer: &RedisResult<T>| matches!(answer, Err(why) if why.code() == Some("NOSCRIPT"));
            if answered.iter().any(unknown) {
                load_scripts(&mut connection).await?;
                let repeated: Vec<usize> =
                    answered.iter().enumerate().filter(|(_, one)| unknown(one)).map(|(n, _)| n).collect();
                let second = send(&mut connection, repeated.iter().map(|n| &chunk[*n])).await?;
                repeated.into_iter().zip(second).for_each(|(n, answer)| answered[n] = answer);
            }
            answers.extend(answered);
        }
        Ok(answers)
    }

    /// Runs one command.
    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        let answer = self.run(&[command]).await?.pop();
        answer.ok_or_else(|| Error::Answer("with nothing".into()))
    }

    /// Waits for an entry of a list, then takes up to `most` of them, at least one. Empty if none arrives in
    /// time.
    pub(super) async fn take_list(
        &self,
        list: &str,
        wait: Duration,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut connection = self.blocking.get().await?;
        let mut first = cmd("BLPOP");
        first.arg(list).arg(wait.as_secs());
        let first: Option<(String, Vec<u8>)> = first.query_async(&mut connection).await?;
        let Some((_, first)) = first else { return Ok(Vec::new()) };
        let mut rest = cmd("LPOP");
        rest.arg(list).arg(most);
        // If this read fails, the first entry is still returned.
        let rest: Option<Vec<Vec<u8>>> = rest.query_async(&mut connection).await.unwrap_or_default();
        Ok(std::iter::once(first).chain(rest.unwrap_or_default()).collect())
    }

    /// Whether it did not answer the last time its identity was asked for.
    pub(super) fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Relaxed)
    }

    /// Its `run_id`, which changes when the server is restarted or replaced. Fails for a node of a cluster,
    /// which would redirect most keys.
    pub(super) async fn identity(&self) -> Result<String, Error> {
        let text: String = self.ask(cmd("INFO").arg("server")).await?;
        match field(&text, "redis_mode") {
            Some("cluster") => Err(Error::IsCluster(self.address.clone())),
            _ => run_id(&text),
        }
    }

    /// The `run_id` of a master of a cluster, within [`IDENTITY`]; whether it answered is noted. A master that
    /// takes no commands, because it cannot reach the other masters or has just found them again, counts as
    /// unreachable.
    pub(super) async fn master_identity(&self) -> Result<String, Error> {
        let (mut info, mut cluster) = (cmd("INFO"), cmd("CLUSTER"));
        let asked = [&*info.arg("server"), &*cluster.arg("INFO")];
        let timeout = if self.is_unreachable() { IDENTITY_AGAIN } else { IDENTITY };
        let answered = match tokio::time::timeout(timeout, self.run::<String>(&asked)).await {
            Err(_) => Err(Error::Unreachable),
            Ok(Err(why)) => Err(why),
            Ok(Ok(texts)) => match &texts[..] {
                [server, cluster] if field(cluster, "cluster_state") == Some("ok") => run_id(server),
                _ => Err(Error::Answer("that it takes no commands now (cluster_state is not ok)".into())),
            },
        };
        self.unreachable.store(answered.is_err(), Ordering::Relaxed);
        answered.map_err(|why| self.with_address(why))
    }

    /// The topology of the cluster, as this node of it sees it.
    pub(super) async fn topology(&self) -> Result<Topology, Error> {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        let mut connection = self.connections.get().await?;
        let mut both = Pipeline::new();
        both.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
        let answer: Result<(String, _), _> = both.query_async(&mut connection).await;
        match answer {
            Ok((info, slots)) => Topology::read(host, &info, slots),
            Err(why) if why.to_string().contains("cluster support disabled") => {
                Err(Error::NotCluster(self.address.clone()))
            }
            Err(why) => Err(why.into()),
        }
    }

    /// The share of its memory limit that it uses; 0 without a limit.
    pub(super) async fn used(&self) -> Result<f64, Error> {
        let text: String = self.ask(cmd("INFO").arg("memory")).await?;
        let bytes = |name| field(&text, name).and_then(|value| value.parse::<f64>().ok());
        match (bytes("used_memory"), bytes("maxmemory")) {
            (Some(_), Some(0.0)) => Ok(0.0),
            (Some(used), Some(limit)) => Ok(used / limit),
            _ => Err(Error::Answer("INFO without used_memory and maxmemory".into())),
        }
    }

    /// An error of this master, with its address.
    pub(super) fn with_address(&self, why: Error) -> Error {
        match why {
            why @ Error::NotCluster(_) => why,
            why => Error::Master { address: self.address.clone(), source: Box::new(why) },
        }
    }
}

fn run_id(info: &str) -> Result<String, Error> {
    let id = field(info, "run_id").ok_or_else(|| Error::Answer("INFO without run_id".into()))?;
    Ok(id.to_owned())
}

/// The value of a line `name:value` in an answer to `INFO` or `CLUSTER INFO`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

async fn send<'a, T: FromRedisValue>(
    connection: &mut Connection,
    commands: impl ExactSizeIterator<Item = &'a &'a Cmd>,
) -> RedisResult<Vec<RedisResult<T>>> {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        pipeline.add_command((*command).clone());
    }
    pipeline.ignore_errors().query_async(connection).await
}

async fn load_scripts(connection: &mut Connection) -> Result<(), Error> {
    for script in scripts::ALL {
        let () = cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await?;
    }
    Ok(())
}
