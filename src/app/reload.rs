//! SIGHUP: the settings are read again, and a node takes its capacity over while it works ([`CAPACITY`]).
//!
//! Other keys are fixed from the start: a log line names those that differ. Settings that are not valid change nothing.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{CAPACITY, Config};
use crate::dispatch::Dispatcher;
use crate::hot::loader::Rates;
use crate::limits::{self, FileLimits};
use crate::sink::Sinks;

/// Reads the settings, as at the start.
pub type Read = Box<dyn Fn() -> anyhow::Result<Config> + Send + Sync>;

/// Waits for SIGHUP.
pub(super) struct Reload {
    signals: Signal,
    read: Read,
    /// The settings as they were read last and taken over.
    current: Config,
}

/// What works with the settings that may change.
pub(super) struct Capacity {
    pub dispatcher: Arc<Dispatcher>,
    pub sinks: Arc<Sinks>,
    pub rates: Arc<Rates>,
}

impl Reload {
    /// From here on the signal does not end the process. `current` are the settings at the start.
    pub fn new(current: Config, read: Read) -> std::io::Result<Self> {
        Ok(Self { signals: signal(SignalKind::hangup())?, read, current })
    }

    /// Takes settings over, as often as it is told to.
    pub async fn run(mut self, capacity: Capacity) {
        while self.signals.recv().await.is_some() {
            match (self.read)() {
                Ok(read) => self.take_over(read, &capacity),
                Err(why) => tracing::error!("{why:#}; the settings in force stay as they are"),
            }
        }
    }

    fn take_over(&mut self, read: Config, capacity: &Capacity) {
        let differing = self.current.differing(&read);
        let (taken, fixed): (Vec<_>, Vec<_>) =
            differing.into_iter().partition(|(key, ..)| CAPACITY.contains(&key.as_str()));
        if !fixed.is_empty() {
            let keys: Vec<&str> = fixed.iter().map(|(key, ..)| key.as_str()).collect();
            let keys = keys.join(", ");
            tracing::warn!(
                keys,
                "these settings are taken over by a restart only; restart one node after another"
            );
        }
        if taken.is_empty() {
            return tracing::info!("the settings were read again; the capacity is as it was");
        }
        // What else was changed is not in force until a restart.
        let mut next = self.current.clone();
        next.dispatch.concurrency = read.dispatch.concurrency;
        next.webhook.concurrency = read.webhook.concurrency;
        next.wheel.load_per_second = read.wheel.load_per_second;
        next.wheel.catch_up_per_second = read.wheel.catch_up_per_second;
        let files = FileLimits::of(&next, limits::in_force());
        let (total, per_receiver) = (files.attempts(&next), next.webhook.concurrency);
        // These begin anew with what is known of receivers, and with connections.
        if taken.iter().any(|(key, ..)| key.ends_with(".concurrency")) {
            capacity.dispatcher.set_limits(total, per_receiver);
            capacity.sinks.keep_idle(files.kept_open(&next));
        }
        capacity.rates.set(next.wheel.load_per_second, next.wheel.catch_up_per_second);
        for (key, before, now) in taken {
            tracing::info!(key, before, now, "changed while it runs");
        }
        if total < next.dispatch.concurrency {
            tracing::warn!(total, "fewer attempts at once than `dispatch.concurrency`: {}", files.cure());
        }
        self.current = next;
    }
}
