//! The shared wheels: those in memory, seen by every node as if they were Redis, behind the same gate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use mainspring::model::id::Epoch;
use mainspring::model::pointer::Pointer;
use mainspring::wheel::{
    Append, Appended, Error, HotWheel, MemoryWheel, Slot, Snapshot, Standing, Take, Taken, Unreachable,
};

use super::world::World;

/// The server that keeps the wheels.
#[derive(Default)]
pub struct Server {
    wheel: MemoryWheel,
    express: Mutex<BTreeMap<String, Vec<Pointer>>>,
    generation: Mutex<u32>,
}

impl Server {
    pub fn flush(&self) {
        self.wheel.flush();
        self.express.lock().expect("plain").clear();
    }

    /// Another server, with nothing in it.
    pub fn replace(&self) {
        self.flush();
        *self.generation.lock().expect("plain") += 1;
    }

    pub fn snapshot(&self) -> Snapshot {
        self.wheel.snapshot()
    }

    pub fn roll_back(&self, to: &Snapshot) {
        self.wheel.roll_back(to);
        self.express.lock().expect("plain").clear();
    }

    /// Incarnation and beat of each shard's wheel.
    pub async fn beats(&self, shards: u16) -> Vec<Option<(String, i64)>> {
        let all: Vec<i32> = (0..i32::from(shards)).collect();
        let standings = self.wheel.look(&all).await.expect("in memory");
        standings.into_iter().map(|one| one.map(|one| (one.incarnation, one.beat))).collect()
    }

    /// What others gave to this node.
    pub fn take_express(&self, node: &str) -> Vec<Pointer> {
        self.express.lock().expect("plain").remove(node).unwrap_or_default()
    }
}

/// The wheels as one process reaches them.
pub struct Reached {
    pub server: Arc<Server>,
    pub world: Arc<World>,
    pub process: usize,
}

impl Reached {
    async fn call<T, W: Future<Output = Result<T, Error>> + Send>(
        &self,
        name: &'static str,
        work: impl Fn() -> W + Send + Sync,
    ) -> Result<T, Error> {
        if self.world.before_wheels(self.process, name).await {
            return Err(Error::Answer("nothing".into()));
        }
        if self.world.repeats_wheels() {
            work().await?;
        }
        let done = work().await?;
        if self.world.after_wheels(self.process, name).await {
            return Err(Error::Answer("too late".into()));
        }
        Ok(done)
    }
}

#[async_trait::async_trait]
impl HotWheel for Reached {
    async fn servers(&self, shards: &[i32]) -> Result<Vec<Result<String, Unreachable>>, Error> {
        self.call("wheel servers", || async {
            let name = format!("server-{}", self.server.generation.lock().expect("plain"));
            Ok(shards.iter().map(|_| Ok(name.clone())).collect())
        })
        .await
    }

    async fn look(&self, shards: &[i32]) -> Result<Vec<Option<Standing>>, Error> {
        self.call("wheel look", || self.server.wheel.look(shards)).await
    }

    async fn build(&self, wheels: &[(i32, Standing)], until: i64) -> Result<Vec<bool>, Error> {
        self.call("wheel build", || self.server.wheel.build(wheels, until)).await
    }

    async fn adopt(&self, shards: &[(i32, Epoch)]) -> Result<(), Error> {
        self.call("wheel adopt", || self.server.wheel.adopt(shards)).await
    }

    async fn set_loaded(&self, shards: &[(i32, Epoch, i64)]) -> Result<(), Error> {
        self.call("wheel set_loaded", || self.server.wheel.set_loaded(shards)).await
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        if appends.is_empty() {
            return Ok(Vec::new());
        }
        self.call("wheel append", || self.server.wheel.append(appends)).await
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Taken>, Error> {
        self.call("wheel take", || self.server.wheel.take(takes)).await
    }

    async fn hand_over(&self, slots: &[(i32, Slot)]) -> Result<(), Error> {
        if slots.is_empty() {
            return Ok(());
        }
        self.call("wheel hand_over", || self.server.wheel.hand_over(slots)).await
    }

    async fn counts(&self, slots: &[(i32, Slot)]) -> Result<Vec<usize>, Error> {
        self.server.wheel.counts(slots).await
    }

    async fn send_express(&self, node: &str, pointers: &[Pointer]) -> Result<bool, Error> {
        self.call("wheel send_express", || async {
            let mut express = self.server.express.lock().expect("plain");
            express.entry(node.to_owned()).or_default().extend(pointers);
            Ok(true)
        })
        .await
    }

    async fn receive_express(&self, node: &str) -> Result<Vec<Pointer>, Error> {
        Ok(self.server.take_express(node))
    }

    fn is_shared(&self) -> bool {
        true
    }
}
