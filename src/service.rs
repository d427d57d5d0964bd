//! The handles that the doors (API, CLI) work with: the node, and the service once the cold store has answered.
//!
//! Nothing here runs by itself. [`crate::app`] makes the handles and keeps them current.

pub mod answer;
pub mod density;
pub mod explain;
pub mod keys;
pub mod namespaces;
pub mod origin;
pub mod quotas;
pub mod tier;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::cold::ColdStore;
use crate::config::Config;
use crate::destinations::Destinations;
use crate::metrics::Metrics;
use crate::model::namespace::Namespace;
use crate::observe::Observer;
use crate::operations::Operations;
use crate::outbox::Subscriptions;
use crate::ownership::Ownership;
use crate::positions::Positions;
use crate::queue::Queues;
use crate::sink::Sink;
use crate::templates::Templates;
use crate::wheel::HotWheel;
use crate::writer::Intake;
use keys::Keys;
use namespaces::Namespaces;

/// The rooms that the API works with, once the store has answered.
#[derive(Clone)]
pub struct Service {
    /// The cold store.
    pub store: ColdStore,
    /// The queue of callers' registrations and changes.
    pub intake: Intake,
    /// This node's shards.
    pub ownership: Arc<Ownership>,
    /// The wheels.
    pub hot: Arc<dyn HotWheel>,
    /// The positions of this node's wheels.
    pub positions: Arc<Positions>,
    /// What people look at.
    pub observer: Arc<Observer>,
    /// The destinations.
    pub destinations: Arc<Destinations>,
    /// Actions on many timers.
    pub operations: Arc<Operations>,
    /// The queues.
    pub queues: Arc<Queues>,
    /// The subscriptions to lifecycle events.
    pub subscriptions: Arc<Subscriptions>,
    /// The templates.
    pub templates: Arc<Templates>,
    /// Makes attempts: the test of a destination.
    pub sink: Arc<dyn Sink>,
}

impl Service {
    /// The same for calls about this namespace.
    #[must_use]
    pub fn within(&self, namespace: Namespace) -> Self {
        Self { store: self.store.within(namespace), intake: self.intake.within(namespace), ..self.clone() }
    }

    /// The namespace that this is about.
    pub const fn namespace(&self) -> Namespace {
        self.store.namespace()
    }
}

/// This node: settings, metrics and health. It exists from the start of the process.
pub struct Node {
    /// The settings.
    pub config: Arc<Config>,
    /// The series.
    pub metrics: Metrics,
    /// The keys of callers.
    pub keys: Arc<Keys>,
    /// The namespaces.
    pub namespaces: Arc<Namespaces>,
    service: OnceLock<Service>,
    recovered: AtomicBool,
    writable: AtomicBool,
    stop: CancellationToken,
}

impl Node {
    /// A node whose store has not answered yet. `stop` is cancelled when a stop is requested.
    pub fn new(config: Arc<Config>, metrics: Metrics, stop: CancellationToken) -> Self {
        Self {
            keys: Arc::new(Keys::new(&config.server)),
            namespaces: Arc::default(),
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

    /// Whether the node has recovered: it owns its shards and the first sweep is done.
    pub fn has_recovered(&self) -> bool {
        self.recovered.load(Ordering::SeqCst)
    }

    /// Notes that the node has recovered.
    pub fn set_recovered(&self) {
        self.recovered.store(true, Ordering::SeqCst);
    }

    /// Whether the last renewal of the leases was written. Renewals run three times a lease.
    pub fn can_write(&self) -> bool {
        self.writable.load(Ordering::SeqCst)
    }

    /// Notes whether the renewal of the leases was written.
    pub fn set_can_write(&self, can_write: bool) {
        self.writable.store(can_write, Ordering::SeqCst);
    }

    /// Completes when a stop is requested.
    pub async fn stop_asked(&self) {
        self.stop.cancelled().await;
    }

    /// Whether a stop was requested.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }
}
