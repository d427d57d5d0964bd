//! What the service manager is told (systemd, `Type=notify`): `READY=1`, `STATUS=`, `WATCHDOG=1`, `STOPPING=1`.
//!
//! Without `NOTIFY_SOCKET` in the environment no task runs and nothing is sent.
//!
//! | message | sent |
//! |---|---|
//! | `READY=1` | once, when `/startupz` answers 200 |
//! | `EXTEND_TIMEOUT_USEC=` | until then, every ten seconds: a start waits as long as the database is away |
//! | `STATUS=` | when the words change |
//! | `WATCHDOG=1` | three times in `WatchdogSec`, while the node is alive |
//! | `STOPPING=1` | once, when a stop begins |
//!
//! # When the node is alive
//!
//! The runtime runs this task, and each periodic loop of the node (ownership, loader, ticker, last mile, sweep) has come
//! to a next `await` within [`MAX_SILENCE`]. A store that is away stops no loop: each of its calls ends by itself, the
//! loop notes the failure and goes on. So an outage of PostgreSQL or Redis never restarts a node; a deadlock, a lost
//! wake-up or a blocked runtime does. A loop that has ended does not count: one that fails ends the process anyway, and
//! during a stop they end in order.

use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::Monotonic;
use crate::service::Node;

/// A loop that has not been polled for so long is stuck. The longest waits of a loop that works are those of the
/// ownership between two rounds (a third of `lease`, 20 s at most), and of one call to the cold store (15 s).
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// How often it looks at the node; more often if the watchdog asks for it.
const LOOK: Duration = Duration::from_millis(250);

/// How much more time each extension of the start gives, and how often it is sent.
const EXTENSION: Duration = Duration::from_secs(60);
const EXTEND_EVERY: Duration = Duration::from_secs(10);

/// When each watched loop was last polled.
#[derive(Clone, Default)]
pub(super) struct Pulses(Arc<Mutex<Vec<Weak<Pulse>>>>);

struct Pulse {
    name: &'static str,
    /// The end of its last poll, in milliseconds of [`Monotonic`].
    polled_ms: AtomicI64,
}

impl Pulses {
    /// The same task, watched from now until it is dropped.
    pub fn watch<T>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = T> + Send + 'static {
        let pulse = Arc::new(Pulse { name, polled_ms: AtomicI64::new(Monotonic::now().as_ms()) });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&pulse));
        let mut task: Pin<Box<_>> = Box::pin(task);
        std::future::poll_fn(move |context| {
            let polled = task.as_mut().poll(context);
            pulse.polled_ms.store(Monotonic::now().as_ms(), Ordering::Relaxed);
            polled
        })
    }

    /// A loop that has been silent for longer than [`MAX_SILENCE`], if there is one.
    fn silent(&self, now: Monotonic) -> Option<&'static str> {
        let mut pulses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pulses.retain(|pulse| pulse.strong_count() > 0);
        let limit_ms = i64::try_from(MAX_SILENCE.as_millis()).unwrap_or(i64::MAX);
        let is_silent = |pulse: &Arc<Pulse>| {
            now.as_ms().saturating_sub(pulse.polled_ms.load(Ordering::Relaxed)) > limit_ms
        };
        pulses.iter().filter_map(Weak::upgrade).find(is_silent).map(|pulse| pulse.name)
    }
}

/// The task that tells the service manager how the node is.
pub(super) struct Supervised {
    task: JoinHandle<()>,
    /// The node has stopped.
    ended: CancellationToken,
}

/// Starts telling the service manager how the node is. `None` if there is no service manager that wants to know.
/// `stopping` is cancelled when the node stops, also when nobody asked for it.
pub(super) fn start(node: Arc<Node>, pulses: Pulses, stopping: CancellationToken) -> Option<Supervised> {
    std::env::var_os("NOTIFY_SOCKET")?;
    let reporter = Reporter::new(sd_notify::watchdog_enabled(), Monotonic::now());
    let ended = CancellationToken::new();
    let task = tokio::spawn(run(node, pulses, [stopping, ended.clone()], reporter));
    Some(Supervised { task, ended })
}

impl Supervised {
    /// Ends the task, after the stop was told. A service manager that does not read its socket delays the end of the
    /// process by a second.
    pub async fn end(self) {
        self.ended.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(1), self.task).await;
    }
}

async fn run(node: Arc<Node>, pulses: Pulses, stops: [CancellationToken; 2], mut reporter: Reporter) {
    let [stopping, ended] = stops;
    let look = reporter.beat_every.map_or(LOOK, |every| every.min(LOOK));
    let mut is_logged = false;
    loop {
        let has_ended = ended.is_cancelled();
        let is_stopping = has_ended || stopping.is_cancelled() || node.is_stopping();
        let now = Monotonic::now();
        let messages = reporter.messages(&Seen::of(&node, is_stopping, pulses.silent(now)), now);
        if !messages.is_empty() {
            // The socket blocks while the service manager does not read it, so this is not done on the runtime's threads.
            let sent = tokio::task::spawn_blocking(move || send(&messages)).await;
            if let (Ok(Err(why)), false) = (sent, is_logged) {
                tracing::warn!(%why, "the service manager cannot be told how the node is (NOTIFY_SOCKET)");
                is_logged = true;
            }
        }
        if has_ended {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(look) => {}
            () = ended.cancelled() => {}
            () = stopping.cancelled(), if !is_stopping => {}
            () = node.stop_asked(), if !is_stopping => {}
        }
    }
}

fn send(messages: &[String]) -> std::io::Result<()> {
    let states: Vec<NotifyState<'_>> = messages.iter().map(|line| NotifyState::Custom(line)).collect();
    sd_notify::notify(&states)
}

/// The node at one look.
struct Seen {
    recovered: bool,
    stopping: bool,
    /// A loop that is stuck.
    silent: Option<&'static str>,
    status: String,
}

impl Seen {
    fn of(node: &Node, stopping: bool, silent: Option<&'static str>) -> Self {
        Self { recovered: node.has_recovered(), stopping, silent, status: status(node, stopping) }
    }
}

/// One line for `systemctl status`.
fn status(node: &Node, stopping: bool) -> String {
    if stopping {
        return "Stopping: shards are handed over, attempts under way may end".to_owned();
    }
    let Some(service) = node.service() else {
        return "Starting: the database has not answered yet; trying again until it does".to_owned();
    };
    if !node.has_recovered() {
        return "Starting: looking for timers that are overdue".to_owned();
    }
    if !node.can_write() {
        return "Unavailable: the database cannot be written; nothing fires until it can".to_owned();
    }
    let owned = format!("{} of {} shards", service.ownership.count(), node.config.shards);
    match service.positions.unreachable().len() {
        _ if !node.config.wheel.enabled => format!("Ready, {owned}; without wheels, timers fire from SQL"),
        0 => format!("Ready, {owned}"),
        away => format!("Degraded, {owned}; the wheels of {away} do not answer, their timers fire from SQL"),
    }
}

/// Decides what is sent, and when.
struct Reporter {
    /// How often the watchdog is told; `None` if the service manager has none for this process.
    beat_every: Option<Duration>,
    /// When it was told last.
    beat_at: Option<Monotonic>,
    extended_at: Option<Monotonic>,
    ready: bool,
    stopping: bool,
    status: String,
    /// The loop that is known, and logged, to be stuck.
    silent: Option<&'static str>,
}

impl Reporter {
    fn new(watchdog: Option<Duration>, now: Monotonic) -> Self {
        Self {
            beat_every: watchdog.map(|limit| limit / 3),
            beat_at: Some(now),
            extended_at: None,
            ready: false,
            stopping: false,
            status: String::new(),
            silent: None,
        }
    }

    /// The lines of the next message; none if there is nothing to say.
    fn messages(&mut self, seen: &Seen, now: Monotonic) -> Vec<String> {
        let mut lines = Vec::new();
        if seen.stopping && !std::mem::replace(&mut self.stopping, true) {
            lines.push("STOPPING=1".to_owned());
        }
        if seen.recovered && !self.stopping && !std::mem::replace(&mut self.ready, true) {
            lines.push("READY=1".to_owned());
        }
        if self.status != seen.status {
            lines.push(format!("STATUS={}", seen.status));
            self.status.clone_from(&seen.status);
        }
        if seen.silent.is_some() && seen.silent != self.silent {
            tracing::error!(
                task = seen.silent,
                "a loop is stuck; the watchdog of the service manager will end this process"
            );
        }
        self.silent = seen.silent;
        if seen.silent.is_some() {
            return lines;
        }
        let is_due = |at: Option<Monotonic>, every| at.is_none_or(|at| now.since(at) >= every);
        if self.beat_every.is_some_and(|every| is_due(self.beat_at, every)) {
            lines.push("WATCHDOG=1".to_owned());
            self.beat_at = Some(now);
        }
        if !self.ready && !self.stopping && is_due(self.extended_at, EXTEND_EVERY) {
            lines.push(format!("EXTEND_TIMEOUT_USEC={}", EXTENSION.as_micros()));
            self.extended_at = Some(now);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seen(recovered: bool, stopping: bool, silent: Option<&'static str>) -> Seen {
        Seen { recovered, stopping, silent, status: "as before".to_owned() }
    }

    /// A reporter that has sent its first status, and the time.
    fn reporter(watchdog: Option<Duration>) -> (Reporter, Monotonic) {
        let now = Monotonic::now();
        let mut reporter = Reporter::new(watchdog, now);
        let first = reporter.messages(&seen(false, false, None), now);
        assert_eq!(first, ["STATUS=as before", "EXTEND_TIMEOUT_USEC=60000000"]);
        (reporter, now)
    }

    #[test]
    fn each_message_is_sent_when_it_is_due() {
        let (mut reporter, now) = reporter(Some(30 * SECOND));
        let quiet: [String; 0] = [];
        assert_eq!(reporter.messages(&seen(false, false, None), now.plus(9 * SECOND)), quiet);
        assert_eq!(
            reporter.messages(&seen(false, false, None), now.plus(10 * SECOND)),
            ["WATCHDOG=1", "EXTEND_TIMEOUT_USEC=60000000"],
            "a start that takes long"
        );
        assert_eq!(reporter.messages(&seen(true, false, None), now.plus(11 * SECOND)), ["READY=1"]);
        assert_eq!(reporter.messages(&seen(true, false, None), now.plus(12 * SECOND)), quiet, "once");
        assert_eq!(reporter.messages(&seen(true, false, None), now.plus(20 * SECOND)), ["WATCHDOG=1"]);
        assert_eq!(reporter.messages(&seen(true, true, None), now.plus(21 * SECOND)), ["STOPPING=1"]);
        assert_eq!(reporter.messages(&seen(true, true, None), now.plus(30 * SECOND)), ["WATCHDOG=1"]);
    }

    #[test]
    fn a_stuck_loop_silences_the_watchdog_and_the_extensions() {
        let (mut reporter, now) = reporter(Some(3 * SECOND));
        let stuck = seen(false, false, Some("sweep"));
        let quiet: [String; 0] = [];
        assert_eq!(reporter.messages(&stuck, now.plus(60 * SECOND)), quiet);
        assert_eq!(
            reporter.messages(&seen(false, false, None), now.plus(61 * SECOND)).len(),
            2,
            "it runs again"
        );
    }

    #[test]
    fn without_a_watchdog_none_is_told() {
        let (mut reporter, now) = reporter(None);
        let quiet: [String; 0] = [];
        assert_eq!(reporter.messages(&seen(true, false, None), now), ["READY=1"]);
        assert_eq!(reporter.messages(&seen(true, false, None), now.plus(3600 * SECOND)), quiet);
    }

    #[test]
    fn a_stop_before_the_node_is_ready_never_says_ready() {
        let (mut reporter, now) = reporter(None);
        let quiet: [String; 0] = [];
        assert_eq!(reporter.messages(&seen(false, true, None), now.plus(SECOND)), ["STOPPING=1"]);
        assert_eq!(reporter.messages(&seen(true, true, None), now.plus(60 * SECOND)), quiet);
    }

    #[tokio::test]
    async fn a_loop_that_is_not_polled_is_silent_until_it_is() {
        let pulses = Pulses::default();
        let (wake, woken) = tokio::sync::oneshot::channel::<()>();
        let mut task = Box::pin(pulses.watch("sweep", woken));
        let later = || Monotonic::now().plus(MAX_SILENCE + SECOND);
        assert_eq!(pulses.silent(Monotonic::now()), None);
        assert_eq!(pulses.silent(later()), Some("sweep"), "never polled");
        let began = Monotonic::now();
        assert!(futures::poll!(&mut task).is_pending());
        assert_eq!(pulses.silent(began.plus(MAX_SILENCE)), None, "polled");
        assert_eq!(pulses.silent(later()), Some("sweep"), "it waits for what never comes");
        assert!(wake.send(()).is_ok());
        assert!((&mut task).await.is_ok());
        drop(task);
        assert_eq!(pulses.silent(later()), None, "one that has ended does not count");
    }
}
