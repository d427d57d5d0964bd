//! A corner of the shared Redis for one test: a namespace of its own, which goes when the test ends.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::cluster::ClusterClient;
use deadpool_redis::redis::cluster_async::ClusterConnection;
use deadpool_redis::redis::{self, Client, Cmd, FromRedisValue, ToRedisArgs, cmd};
use mainspring::config::Config;
use mainspring::wheel::RedisWheel;

use crate::support::Cluster;

/// Where the wheels of the tests stand: Redis forgets slots by the machine's clock, and these lie far ahead.
pub const START_MS: i64 = 4_000_000_020_000;

/// How long an answer may take: half a second, the client's own limit, is too short on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A namespace in a Redis server, or in a Redis Cluster.
pub struct Space {
    pub namespace: String,
    pub url: String,
    raw: Raw,
}

/// A way in beside the wheel; to a cluster, redis-rs's own.
enum Raw {
    One(Box<(Client, MultiplexedConnection)>),
    /// Holds the cluster, so that it stays.
    Cluster(Box<ClusterConnection>, #[expect(dead_code, reason = "held only")] Arc<Cluster>),
}

/// What the keys of a namespace held: name, dump, expiry.
pub type Dumps = Vec<(String, Vec<u8>, i64)>;

/// The shared server's URL.
pub fn shared_redis() -> String {
    std::env::var("MAINSPRING_TEST_REDIS")
        .expect("MAINSPRING_TEST_REDIS is not set: run scripts/test, which starts the servers")
}

fn namespace() -> String {
    format!("t{}", uuid::Uuid::now_v7().simple())
}

impl Space {
    pub async fn new() -> Self {
        Self::at(&shared_redis()).await
    }

    pub async fn at(url: &str) -> Self {
        let client = Client::open(url).expect("a Redis URL");
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let raw = client.get_multiplexed_async_connection_with_config(&patient).await.expect("Redis answers");
        Self { namespace: namespace(), url: url.to_owned(), raw: Raw::One(Box::new((client, raw))) }
    }

    /// In the cluster that tests share.
    pub async fn in_cluster() -> Self {
        Self::of(Cluster::shared().await).await
    }

    pub async fn of(cluster: Arc<Cluster>) -> Self {
        let client =
            ClusterClient::builder(cluster.nodes()).response_timeout(PATIENCE).build().expect("nodes");
        let raw = client.get_async_connection().await.expect("the cluster answers");
        let (namespace, url) = (namespace(), cluster.url());
        Self { namespace, url, raw: Raw::Cluster(Box::new(raw), cluster) }
    }

    /// The settings that lead here.
    pub fn sets(&self) -> Vec<String> {
        vec![format!("hot.url={}", self.url), format!("namespace={}", self.namespace)]
    }

    pub fn wheel(&self) -> RedisWheel {
        let config = Config::load(Some(std::path::Path::new("/dev/null")), [], &self.sets());
        let url = config.expect("settings").hot_url().expect("a URL");
        RedisWheel::open(&url, 8, &self.namespace).expect("opens")
    }

    /// The name of a slot's list or a shard's standing, as this version writes it.
    pub fn key(&self, shard: i32, slot: &str) -> String {
        format!("mainspring:{{{}:{shard}}}{slot}", self.namespace)
    }

    /// Runs one command beside the wheel.
    pub async fn ask<T: FromRedisValue>(&self, name: &str, args: &[impl ToRedisArgs]) -> T {
        let mut command = cmd(name);
        command.arg(args);
        self.query(&command).await
    }

    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> T {
        let done = match &self.raw {
            Raw::One(one) => command.query_async(&mut one.1.clone()).await,
            Raw::Cluster(raw, _) => command.query_async(&mut ClusterConnection::clone(raw)).await,
        };
        done.expect("Redis does it")
    }

    pub async fn keys(&self) -> Vec<String> {
        self.ask("KEYS", &[format!("mainspring:{{{}:*", self.namespace)]).await
    }

    /// Removes everything, as a cache that was emptied.
    pub async fn flush(&self) {
        let keys = self.keys().await;
        if !keys.is_empty() {
            self.ask::<i64>("DEL", &keys).await;
        }
    }

    pub async fn snapshot(&self) -> Dumps {
        let mut dumps = Vec::new();
        for key in self.keys().await {
            let dump: Vec<u8> = self.ask("DUMP", &[&key]).await;
            let expiry: i64 = self.ask("PEXPIRETIME", &[&key]).await;
            dumps.push((key, dump, expiry.max(0)));
        }
        dumps
    }

    /// Holds again what it held then, as a server that was restored from a backup.
    pub async fn roll_back(&self, to: &Dumps) {
        self.flush().await;
        for (key, dump, expiry) in to {
            let mut restore = cmd("RESTORE");
            restore.arg(key).arg(expiry).arg(dump).arg("ABSTTL");
            self.query::<()>(&restore).await;
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // What is left would stay until its slots are forgotten, which is far ahead.
        let Raw::One(one) = &self.raw else { return };
        let Ok(mut connection) = one.0.get_connection() else { return };
        let pattern = format!("mainspring:{{{}:*", self.namespace);
        let keys: redis::RedisResult<Vec<String>> = cmd("KEYS").arg(pattern).query(&mut connection);
        if let Ok(keys) = keys
            && !keys.is_empty()
        {
            let _ = cmd("UNLINK").arg(keys).exec(&mut connection);
        }
    }
}
