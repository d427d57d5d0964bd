//! The tasks of a node, by the phase of a stop in which they end. The order of the phases is in [`super::stop`] alone.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::supervisor::Pulses;

/// How long one phase of a stop may take.
pub(super) const DRAIN: Duration = Duration::from_secs(5);

/// Tasks that end together.
pub(super) struct Phase {
    tasks: TaskTracker,
    /// Cancelled when the tasks are to end.
    pub stop: CancellationToken,
    failed: mpsc::Sender<anyhow::Error>,
}

/// All phases, in the order in which they end.
pub(super) struct Phases {
    /// Connections and calls of the API.
    pub doors: Phase,
    /// Loader, ticker, last mile, sweep, dispatch, housekeeping.
    pub loops: Phase,
    /// The recorder of results.
    pub recording: Phase,
    /// The promotion of timers that were just written.
    pub promoting: Phase,
    /// The loop of leases. Where other nodes share the store, it ends first.
    pub owning: Phase,
    /// The workers of callers' writes. They end by themselves when the last call has ended.
    pub intake: Phase,
    /// The loops that are watched: one that is stuck ends the process, if a service manager watches it.
    pub pulses: Pulses,
}

impl Phases {
    /// No task runs yet. The first error received is why a task failed.
    pub fn new() -> (Self, mpsc::Receiver<anyhow::Error>) {
        let (failed, failure) = mpsc::channel(4);
        let phase =
            || Phase { tasks: TaskTracker::new(), stop: CancellationToken::new(), failed: failed.clone() };
        let phases = Self {
            doors: phase(),
            loops: phase(),
            recording: phase(),
            promoting: phase(),
            owning: phase(),
            intake: phase(),
            pulses: Pulses::default(),
        };
        (phases, failure)
    }
}

impl Phase {
    /// Runs a task that cannot fail.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_fallible(name, async {
            task.await;
            Ok(())
        });
    }

    /// Runs a task. When it fails or panics the process ends: a timer service that runs in part is worse than one that is
    /// restarted.
    pub fn spawn_fallible(
        &self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let failed = self.failed.clone();
        let running = self.tasks.spawn(task);
        self.tasks.spawn(async move {
            let why = match running.await {
                Ok(Ok(())) => return tracing::debug!("the {name} loop ended"),
                Ok(Err(why)) => why,
                Err(why) => anyhow::anyhow!("the {name} loop panicked: {why}"),
            };
            let _ = failed.send(why).await;
        });
    }

    /// Ends its tasks; returns whether all ended within `most`.
    pub async fn end_within(&self, most: Duration) -> bool {
        self.stop.cancel();
        self.ended_within(most).await
    }

    /// Waits for its tasks, which end by themselves; returns whether all did within `most`.
    pub async fn ended_within(&self, most: Duration) -> bool {
        self.tasks.close();
        tokio::time::timeout(most, self.tasks.wait()).await.is_ok()
    }

    /// Ends its tasks. A task that waits for a store that is away delays the end of the process by [`DRAIN`] at most.
    pub async fn end(&self) {
        if !self.end_within(DRAIN).await {
            tracing::warn!("a loop did not end in time; its work is taken up after the restart");
        }
    }
}
