//! Wheels whose calls are measured.

use std::sync::Arc;

use super::slot::Slot;
use super::{Append, Appended, Error, HotWheel, Standing, Take, Taken, Unreachable};
use crate::clock::Monotonic;
use crate::metrics::{Connections, Metrics};
use crate::model::id::Epoch;
use crate::model::pointer::Pointer;

/// Wheels whose calls are counted and timed (`mainspring_store_seconds`, `mainspring_store_errors_total`).
pub struct Measured {
    wheels: Arc<dyn HotWheel>,
    metrics: Metrics,
}

impl Measured {
    /// Measures these wheels.
    pub fn new(wheels: Arc<dyn HotWheel>, metrics: Metrics) -> Self {
        Self { wheels, metrics }
    }

    async fn run<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let began = Monotonic::now();
        let answer = call.await;
        self.metrics.stored("hot", operation, began.elapsed(), answer.is_err());
        answer
    }
}

#[async_trait::async_trait]
impl HotWheel for Measured {
    async fn servers(&self, shards: &[i32]) -> Result<Vec<Result<String, Unreachable>>, Error> {
        self.run("servers", self.wheels.servers(shards)).await
    }

    async fn look(&self, shards: &[i32]) -> Result<Vec<Option<Standing>>, Error> {
        self.run("look", self.wheels.look(shards)).await
    }

    async fn build(&self, wheels: &[(i32, Standing)], until: i64) -> Result<Vec<bool>, Error> {
        self.run("build", self.wheels.build(wheels, until)).await
    }

    async fn adopt(&self, shards: &[(i32, Epoch)]) -> Result<(), Error> {
        self.run("adopt", self.wheels.adopt(shards)).await
    }

    async fn set_loaded(&self, shards: &[(i32, Epoch, i64)]) -> Result<(), Error> {
        self.run("loaded", self.wheels.set_loaded(shards)).await
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        self.run("append", self.wheels.append(appends)).await
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Taken>, Error> {
        self.run("take", self.wheels.take(takes)).await
    }

    async fn hand_over(&self, slots: &[(i32, Slot)]) -> Result<(), Error> {
        self.run("hand_over", self.wheels.hand_over(slots)).await
    }

    async fn counts(&self, slots: &[(i32, Slot)]) -> Result<Vec<usize>, Error> {
        self.run("counts", self.wheels.counts(slots)).await
    }

    async fn send_express(&self, node: &str, pointers: &[Pointer]) -> Result<bool, Error> {
        self.run("express", self.wheels.send_express(node, pointers)).await
    }

    /// Not timed: it waits for pointers to arrive.
    async fn receive_express(&self, node: &str) -> Result<Vec<Pointer>, Error> {
        let received = self.wheels.receive_express(node).await;
        if received.is_err() {
            self.metrics.store_errors.with_label_values(&["hot", "express"]).inc();
        }
        received
    }

    async fn witness(&self, incarnation: i64) -> Result<i64, Error> {
        self.run("witness", self.wheels.witness(incarnation)).await
    }

    async fn used(&self) -> Result<f64, Error> {
        self.run("used", self.wheels.used()).await
    }

    fn is_shared(&self) -> bool {
        self.wheels.is_shared()
    }

    fn connections(&self) -> Option<Connections> {
        self.wheels.connections()
    }
}
