//! One Redis server, and connections to it.
//!
//! It repeats commands, so it is only for those that may be repeated. It does not know what is asked of it,
//! nor which keys are its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_redis::redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, FromRedisValue, Pipeline, RedisResult, cmd,
};
use deadpool_redis::{Connection, Manager, Pool, Runtime};

use super::topology::Topology;
use super::{Error, scripts};

/// How long one pipeline may take.
const ANSWER: Duration = Duration::from_secs(2);

/// How long connecting, or waiting for a free connection, may take.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a master of a cluster may take to say who it is, before the others go on without it.
const IDENTITY: Duration = Duration::from_millis(1500);

/// The same of one that did not say so last time: all wait for it each time.
const IDENTITY_AGAIN: Duration = Duration::from_millis(300);

/// Commands of one pipeline.
const PIPELINE: usize = 100;

/// One Redis server, with connections to it.
pub struct Server {
    address: String,
    connections: Pool,
    /// For reads that wait.
    waiting: Pool,
    /// It did not say who it is, last time: it is not asked for anything else meanwhile.
    away: AtomicBool,
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
        let (connections, waiting) = (pool(size, ANSWER)?, pool(1, wait + ANSWER)?);
        Ok(Arc::new(Self { address, connections, waiting, away: AtomicBool::new(false) }))
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Runs commands in pipelines on one connection; answers in order. It fails if one of them does.
    pub async fn run<T: FromRedisValue>(&self, commands: &[&Cmd]) -> Result<Vec<T>, Error> {
        Ok(self.run_each(commands).await?.into_iter().collect::<Result<_, _>>()?)
    }

    /// The same, each answer by itself. Scripts that the server does not know are loaded, and those commands
    /// are sent again.
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
                let again: Vec<usize> =
                    answered.iter().enumerate().filter(|(_, one)| unknown(one)).map(|(n, _)| n).collect();
                let anew = send(&mut connection, again.iter().map(|n| &chunk[*n])).await?;
                again.into_iter().zip(anew).for_each(|(n, answer)| answered[n] = answer);
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

    /// Waits for something to be in a list and takes it, up to so many; nothing if nothing comes in time.
    pub(super) async fn take_list(
        &self,
        list: &str,
        wait: Duration,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut connection = self.waiting.get().await?;
        let mut first = cmd("BLPOP");
        first.arg(list).arg(wait.as_secs());
        let first: Option<(String, Vec<u8>)> = first.query_async(&mut connection).await?;
        let Some((_, first)) = first else { return Ok(Vec::new()) };
        let mut rest = cmd("LPOP");
        rest.arg(list).arg(most);
        // What has come is not lost with the rest.
        let rest: Option<Vec<Vec<u8>>> = rest.query_async(&mut connection).await.unwrap_or_default();
        Ok(std::iter::once(first).chain(rest.unwrap_or_default()).collect())
    }

    /// Whether it said who it is, last time it was asked.
    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    /// Its `run_id`: another one means another server, or this one started again. A node of a cluster would
    /// send us away from most keys.
    pub(super) async fn identity(&self) -> Result<String, Error> {
        let text: String = self.ask(cmd("INFO").arg("server")).await?;
        match field(&text, "redis_mode") {
            Some("cluster") => Err(Error::IsCluster(self.address.clone())),
            _ => run_id(&text),
        }
    }

    /// The same of a master in a cluster, which shall say so soon; whether it does is noted. One that takes no
    /// commands, for it has lost the others or just found them again, is as good as away.
    pub(super) async fn identity_soon(&self) -> Result<String, Error> {
        let (mut info, mut cluster) = (cmd("INFO"), cmd("CLUSTER"));
        let asked = [&*info.arg("server"), &*cluster.arg("INFO")];
        let patience = if self.is_away() { IDENTITY_AGAIN } else { IDENTITY };
        let answered = match tokio::time::timeout(patience, self.run::<String>(&asked)).await {
            Err(_) => Err(Error::Away),
            Ok(Err(why)) => Err(why),
            Ok(Ok(texts)) => match &texts[..] {
                [server, cluster] if field(cluster, "cluster_state") == Some("ok") => run_id(server),
                _ => Err(Error::Answer("that it takes no commands now (cluster_state is not ok)".into())),
            },
        };
        self.away.store(answered.is_err(), Ordering::Relaxed);
        answered.map_err(|why| self.told(why))
    }

    /// Where this node of a cluster says that the slots are.
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

    /// An error of this master, by its address.
    pub(super) fn told(&self, why: Error) -> Error {
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

/// A line `name:value` of what Redis tells about itself.
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
