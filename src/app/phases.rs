//! The tasks of a node by the phase of a stop in which they end. The order in which a stop goes through the phases
//! stands in [`super::stop`] alone.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

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
    /// Connections and calls.
    pub doors: Phase,
    /// Loader, ticker, last mile, sweep, dispatch, housekeeping.
    pub loops: Phase,
    /// Results into the store.
    pub recording: Phase,
    /// What was written meanwhile into the wheels.
    pub promoting: Phase,
    /// Leases. Where other nodes share the store, shards are handed over before everything else.
    pub owning: Phase,
    /// Callers' writes. Their workers end by themselves when nobody is left who could ask them.
    pub intake: Phase,
}

impl Phases {
    /// No task runs yet. What is received first is why a task ended that should not have.
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

    /// Runs a task. One that fails or panics takes the process with it: a timer service that is half alive is worse
    /// than one that is restarted.
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
                Err(why) => anyhow::anyhow!("the {name} loop broke down: {why}"),
            };
            let _ = failed.send(why).await;
        });
    }

    /// Ends its tasks; tells whether all ended within `most`.
    pub async fn end_within(&self, most: Duration) -> bool {
        self.stop.cancel();
        self.ended_within(most).await
    }

    /// Waits for its tasks, which end by themselves; tells whether all did within `most`.
    pub async fn ended_within(&self, most: Duration) -> bool {
        self.tasks.close();
        tokio::time::timeout(most, self.tasks.wait()).await.is_ok()
    }

    /// Ends its tasks. One that hangs on a store that is away does not hold up the end of the process for long.
    pub async fn end(&self) {
        if !self.end_within(DRAIN).await {
            tracing::warn!("a loop did not end in time; what it held is picked up after the restart");
        }
    }
}
