//! What the doors hold: this node, and, once the cold store has answered, the service behind it.
//!
//! Plain handles to the rooms below; nothing here runs by itself. [`crate::app`] makes it and keeps it current.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::cold::ColdStore;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::ownership::Ownership;
use crate::positions::Positions;
use crate::wheel::HotWheel;
use crate::writer::Intake;

/// What the API works with once the store has answered.
pub struct Service {
    /// The cold store.
    pub store: ColdStore,
    /// The way of callers' registrations and changes into the store.
    pub intake: Intake,
    /// This node's shards.
    pub ownership: Arc<Ownership>,
    /// The wheels.
    pub hot: Arc<dyn HotWheel>,
    /// Where this node's wheels stand.
    pub positions: Arc<Positions>,
}

/// This node: settings, series and health, from the first moment on.
pub struct Node {
    /// The settings.
    pub config: Arc<Config>,
    /// The series.
    pub metrics: Metrics,
    service: OnceLock<Service>,
    recovered: AtomicBool,
    writable: AtomicBool,
    stop: CancellationToken,
}

impl Node {
    /// A node that has not reached its store yet; `stop` is cancelled when it is asked to stop.
    pub fn new(config: Arc<Config>, metrics: Metrics, stop: CancellationToken) -> Self {
        Self {
            config,
            metrics,
            service: OnceLock::new(),
            recovered: AtomicBool::new(false),
            writable: AtomicBool::new(false),
            stop,
        }
    }

    /// The service; `None` until the cold store has answered for the first time.
    pub fn service(&self) -> Option<&Service> {
        self.service.get()
    }

    /// Sets the service. Only the first call counts.
    pub fn set_service(&self, service: Service) {
        let _ = self.service.set(service);
    }

    /// Whether shards are owned and the first sweep is done.
    pub fn has_recovered(&self) -> bool {
        self.recovered.load(Ordering::SeqCst)
    }

    /// Notes that shards are owned and the first sweep is done.
    pub fn set_recovered(&self) {
        self.recovered.store(true, Ordering::SeqCst);
    }

    /// Whether the last renewal of leases, three times a lease, could be written.
    pub fn can_write(&self) -> bool {
        self.writable.load(Ordering::SeqCst)
    }

    /// Notes whether the renewal of leases could be written.
    pub fn set_can_write(&self, can_write: bool) {
        self.writable.store(can_write, Ordering::SeqCst);
    }

    /// Completes when a stop is asked for.
    pub async fn stop_asked(&self) {
        self.stop.cancelled().await;
    }

    /// Whether a stop was asked for.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }
}
