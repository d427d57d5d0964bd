//! What the sinks of brokers share: one connection to each destination, made when an attempt needs it, shared by all
//! attempts, made anew when it breaks, and closed when it has nothing to do.
//!
//! A connection is made by a task of its own, so that an attempt that gives up does not end it. After a failure the next
//! one waits, longer each time; an attempt that comes meanwhile is refused at once, for the same reason.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

#[cfg(feature = "amqp")]
use super::amqp;
use super::dial::Dialer;
#[cfg(feature = "kafka")]
use super::kafka;
#[cfg(feature = "nats")]
use super::nats;
use super::redis_stream;
use super::webhook::{CONNECT_WAIT, connect_wait};
use super::{Delivery, Lack, Outcome, event};
#[cfg(feature = "mqtt")]
use super::{mqtt, mqtt3};
use crate::clock::{Monotonic, StoreClock};
use crate::config::Config;
use crate::model::networks::Networks;
use crate::model::place::Place;
use crate::model::time::UnixMs;
use crate::model::timer::AttemptResult;
use crate::planted::{Defect, Planted};

/// A connection without an attempt for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// The wait after the first failure to connect, which doubles with each further one, up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// One event, as a broker gets it.
#[derive(Debug, Clone)]
pub struct Message {
    /// The CloudEvents attributes by their bare names.
    pub attributes: Vec<(&'static str, String)>,
    /// The payload: JSON.
    pub body: Vec<u8>,
    /// When the attempt is over.
    pub until: Monotonic,
}

/// A connection to a broker. Many events are under way on it at once.
///
/// It does not connect again by itself: once it is closed, it stays so.
pub trait Broker: Send + Sync {
    /// Publishes one event; returns when the broker has confirmed or refused it. Dropping the future harms no other.
    fn publish<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Outcome>;

    /// Whether it can no longer be used.
    fn is_closed(&self) -> bool;

    /// Why the broker takes nothing now, if it has said so: then it is not gone, though it confirms nothing.
    fn held_back(&self) -> Option<&'static str> {
        None
    }
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotConnected {
    /// The address is not delivered to.
    #[error("{0}")]
    Refused(String),
    /// Nobody answers there, not in time, or not with the right certificate.
    #[error("{0}")]
    NotReached(String),
    /// The broker answers and does not let this node in.
    #[error("{0}")]
    NotAllowed(String),
    /// This node lacks something.
    #[error("{}", .0.cure())]
    Lack(Lack),
}

impl NotConnected {
    /// The attempt that found no connection: nothing was sent.
    fn outcome(self) -> Result<Outcome, Lack> {
        if let Self::Lack(lack) = self {
            return Err(lack);
        }
        let not_reached = !matches!(self, Self::Refused(_));
        let outcome = Outcome::without_answer(AttemptResult::Refused, Some(self.to_string()));
        Ok(Outcome { not_reached, ..outcome })
    }
}

type Connected = Result<Arc<dyn Broker>, NotConnected>;

/// Sends to brokers.
pub struct Brokers {
    dialer: Arc<Dialer>,
    clock: StoreClock,
    timeout: Duration,
    lines: Mutex<HashMap<String, Arc<Line>>>,
    /// The most connections.
    most: AtomicUsize,
    planted: Planted,
}

impl Brokers {
    /// A sink under these settings, with at most so many connections.
    pub fn new(config: &Config, clock: StoreClock, dialer: Dialer, most: usize) -> Self {
        Self {
            dialer: Arc::new(dialer),
            clock,
            timeout: config.webhook.timeout.get(),
            lines: Mutex::default(),
            most: AtomicUsize::new(most.max(1)),
            planted: config.planted(),
        }
    }

    /// From now on there are at most so many connections.
    pub fn keep_open(&self, most: usize) {
        self.most.store(most.max(1), Ordering::Relaxed);
    }

    /// Makes one attempt at the broker of a destination, which has this qualified name.
    pub async fn send(
        &self,
        delivery: &Delivery,
        name: &str,
        version: (i32, UnixMs),
        place: &Place,
    ) -> Result<Outcome, Lack> {
        let (began, limit) = (Monotonic::now(), delivery.timeout.unwrap_or(self.timeout));
        let networks = delivery.sender.networks.as_ref();
        let line = self.line(name, Version { of: version, networks: networks.cloned() });
        let _used = line.used();
        let connection = line.connection(|| {
            self.room()?;
            let dialer = match networks {
                Some(networks) => Arc::new(self.dialer.within(networks)),
                None => Arc::clone(&self.dialer),
            };
            Ok(connect(place.clone(), dialer, limit))
        });
        let wait = connect_wait(limit);
        let connection = match tokio::time::timeout(wait, connection).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(why)) => return why.outcome(),
            Err(_) => return no_connection_within(wait).outcome(),
        };
        let attributes = event::attributes(delivery, self.clock.now());
        let attributes = attributes.into_iter().map(|one| (one.name, one.value.into_owned())).collect();
        let message = Message { attributes, body: delivery.data.clone(), until: began.plus(limit) };
        let rest = limit.saturating_sub(began.elapsed());
        if self.planted.is(Defect::ConfirmNotAwaited) {
            tokio::spawn(async move { connection.publish(&message).await });
            return Ok(Outcome::without_answer(AttemptResult::Ok, None));
        }
        match tokio::time::timeout(rest, connection.publish(&message)).await {
            Ok(outcome) => {
                if matches!(outcome.result, AttemptResult::Ok | AttemptResult::Failed) {
                    line.heard();
                }
                Ok(outcome)
            }
            Err(_) => {
                let mut detail = format!("no confirmation within {} s", limit.as_secs_f64());
                match connection.held_back() {
                    Some(why) => detail = format!("{detail}: {why}"),
                    None => line.silent_since(began, &connection),
                }
                Ok(Outcome::without_answer(AttemptResult::Timeout, Some(detail)))
            }
        }
    }

    /// The line to a destination as it is now. One that was changed gets a new line; attempts under way end on the old one.
    fn line(&self, name: &str, version: Version) -> Arc<Line> {
        let mut lines = self.lines();
        match lines.get(name) {
            Some(line) if line.version == version => Arc::clone(line),
            _ => {
                let line = Arc::new(Line::new(version));
                lines.insert(name.to_owned(), Arc::clone(&line));
                line
            }
        }
    }

    /// Makes room for one more connection: the one that has been idle for the longest time is closed, if need be.
    fn room(&self) -> Result<(), NotConnected> {
        let mut lines = self.lines();
        // One that failed keeps its wait.
        lines.retain(|_, line| Arc::strong_count(line) > 1 || !line.is_over());
        let up: Vec<&Arc<Line>> = lines.values().filter(|line| line.is_up()).collect();
        if up.len() < self.most.load(Ordering::Relaxed) {
            return Ok(());
        }
        let idle = up.into_iter().filter(|line| line.under_way.load(Ordering::Relaxed) == 0);
        match idle.min_by_key(|line| line.last_used.load(Ordering::Relaxed)) {
            Some(line) => line.hang_up(),
            None => return Err(NotConnected::Lack(Lack::Files)),
        }
        Ok(())
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<String, Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client that sends an event by itself gives it up before an attempt of `limit` is over.
#[cfg_attr(not(feature = "kafka"), expect(unused_variables, reason = "only Kafka's does"))]
pub(super) fn connect(place: Place, dialer: Arc<Dialer>, limit: Duration) -> BoxFuture<'static, Connected> {
    async move {
        match &place {
            Place::RedisStream(place) => {
                Ok(Arc::new(redis_stream::Connection::open(place, &dialer).await?) as Arc<dyn Broker>)
            }
            #[cfg(feature = "amqp")]
            Place::Amqp(place) => {
                Ok(Arc::new(amqp::Connection::open(place, &dialer).await?) as Arc<dyn Broker>)
            }
            #[cfg(feature = "mqtt")]
            Place::Mqtt(place) if place.version == 3 => {
                Ok(Arc::new(mqtt3::Connection::open(place, &dialer).await?) as Arc<dyn Broker>)
            }
            #[cfg(feature = "mqtt")]
            Place::Mqtt(place) => {
                Ok(Arc::new(mqtt::Connection::open(place, &dialer).await?) as Arc<dyn Broker>)
            }
            #[cfg(feature = "nats")]
            Place::Nats(place) => {
                Ok(Arc::new(nats::Connection::open(place, &dialer).await?) as Arc<dyn Broker>)
            }
            #[cfg(feature = "kafka")]
            Place::Kafka(place) => {
                Ok(Arc::new(kafka::Connection::open(place, &dialer, limit).await?) as Arc<dyn Broker>)
            }
            // Webhooks have a sink of their own; a kind that this build lacks is closed (`Destination::place`).
            other => Err(NotConnected::Refused(format!("{} is no broker to this node", other.kind()))),
        }
    }
    .boxed()
}

fn no_connection_within(wait: Duration) -> NotConnected {
    NotConnected::NotReached(format!("no connection within {} s", wait.as_secs_f64()))
}

/// What a connection was made by: after a change of it, another one is made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    /// Of the destination: its version, and when it was made.
    of: (i32, UnixMs),
    /// The networks of its namespace.
    networks: Option<Arc<Networks>>,
}

/// The connection to one destination, or the way to it.
struct Line {
    version: Version,
    state: Mutex<State>,
    under_way: AtomicUsize,
    /// In milliseconds of this process's clock.
    last_used: AtomicI64,
    /// When the broker last answered an attempt.
    last_heard: AtomicI64,
}

enum State {
    /// There is none, and there was no failure.
    Closed,
    Connecting(Shared<BoxFuture<'static, Connected>>),
    Up(Arc<dyn Broker>),
    /// The last try failed. The next one is made after `until_ms`, and if that fails, too, waits for `wait`.
    Down {
        until_ms: i64,
        wait: Duration,
        why: NotConnected,
    },
}

/// An attempt uses the line.
struct Used<'a>(&'a Line);

impl Drop for Used<'_> {
    fn drop(&mut self) {
        self.0.last_used.store(Monotonic::now().as_ms(), Ordering::Relaxed);
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Line {
    fn new(version: Version) -> Self {
        Self {
            version,
            state: Mutex::new(State::Closed),
            under_way: AtomicUsize::new(0),
            last_used: AtomicI64::new(Monotonic::now().as_ms()),
            last_heard: AtomicI64::new(i64::MIN),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used(&self) -> Used<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Used(self)
    }

    fn is_up(&self) -> bool {
        matches!(&*self.state(), State::Up(_) | State::Connecting(_))
    }

    /// Whether there is nothing to remember: no connection, and no failure of which somebody might still hear.
    fn is_over(&self) -> bool {
        match &*self.state() {
            State::Closed => true,
            State::Down { until_ms, .. } => Monotonic::now().as_ms() - until_ms > in_ms(IDLE),
            State::Connecting(_) | State::Up(_) => false,
        }
    }

    fn hang_up(&self) {
        *self.state() = State::Closed;
    }

    fn heard(&self) {
        self.last_heard.store(Monotonic::now().as_ms(), Ordering::Relaxed);
    }

    /// An attempt that began then had no answer. If no other had one since, the connection is given up: a broker that is
    /// gone without a word would hold it for long.
    fn silent_since(&self, began: Monotonic, connection: &Arc<dyn Broker>) {
        if self.last_heard.load(Ordering::Relaxed) >= began.as_ms() {
            return;
        }
        let mut state = self.state();
        if matches!(&*state, State::Up(up) if Arc::ptr_eq(up, connection)) {
            *state = State::Closed;
        }
    }

    /// The connection; made by `connect` where there is none.
    async fn connection(
        self: &Arc<Self>,
        connect: impl FnOnce() -> Result<BoxFuture<'static, Connected>, NotConnected>,
    ) -> Connected {
        // Not under this line's lock: it looks at all lines.
        let wait = match self.ready() {
            Ok(found) => return found,
            Err(Way::Join(connecting)) => return connecting.await,
            Err(Way::Connect(wait)) => wait,
        };
        let connecting = connect()?;
        let connecting = {
            let mut state = self.state();
            match &*state {
                // Another attempt was quicker.
                State::Connecting(other) => other.clone(),
                State::Up(up) if !up.is_closed() => return Ok(Arc::clone(up)),
                _ => {
                    let task = tokio::spawn(Arc::clone(self).connected(connecting, wait));
                    let joined =
                        task.map(|done| done.unwrap_or_else(|_| Err(no_connection_within(CONNECT_WAIT))));
                    let joined = joined.boxed().shared();
                    *state = State::Connecting(joined.clone());
                    joined
                }
            }
        };
        connecting.await
    }

    /// What there is to connect with now.
    fn ready(&self) -> Result<Connected, Way> {
        match &*self.state() {
            State::Up(up) if !up.is_closed() => Ok(Ok(Arc::clone(up))),
            State::Connecting(connecting) => Err(Way::Join(connecting.clone())),
            State::Down { until_ms, why, .. } if Monotonic::now().as_ms() < *until_ms => Ok(Err(why.clone())),
            State::Down { wait, .. } => Err(Way::Connect(*wait)),
            State::Up(_) | State::Closed => Err(Way::Connect(FIRST_WAIT)),
        }
    }

    /// Waits for a new connection and keeps it, or why there is none: then none is tried for `wait`.
    async fn connected(
        self: Arc<Self>,
        connecting: BoxFuture<'static, Connected>,
        wait: Duration,
    ) -> Connected {
        let connected = tokio::time::timeout(CONNECT_WAIT, connecting).await;
        let connected = connected.unwrap_or_else(|_| Err(no_connection_within(CONNECT_WAIT)));
        *self.state() = match &connected {
            Ok(up) => State::Up(Arc::clone(up)),
            Err(why) => State::Down {
                until_ms: Monotonic::now().as_ms() + in_ms(wait),
                wait: (2 * wait).min(LONGEST_WAIT),
                why: why.clone(),
            },
        };
        if let Ok(up) = &connected {
            tokio::spawn(close_when_idle(Arc::downgrade(&self), Arc::downgrade(up)));
        }
        connected
    }
}

fn in_ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// How a line comes to a connection.
enum Way {
    /// Another attempt has begun to connect.
    Join(Shared<BoxFuture<'static, Connected>>),
    /// By connecting, and after a failure waiting for so long.
    Connect(Duration),
}

/// Closes this connection of a line once no attempt has used it for a while.
async fn close_when_idle(line: Weak<Line>, connection: Weak<dyn Broker>) {
    loop {
        tokio::time::sleep(IDLE / 4).await;
        let Some(line) = line.upgrade() else { return };
        let idle_ms = Monotonic::now().as_ms() - line.last_used.load(Ordering::Relaxed);
        let is_used = line.under_way.load(Ordering::Relaxed) > 0 || idle_ms < in_ms(IDLE);
        let mut state = line.state();
        match &*state {
            // A later connection has a task of its own.
            State::Up(up) if !Weak::ptr_eq(&Arc::downgrade(up), &connection) => return,
            State::Up(up) if is_used && !up.is_closed() => {}
            State::Up(_) => {
                *state = State::Closed;
                return;
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A broker that is there until it is told otherwise.
    #[derive(Default)]
    struct Fake {
        closed: AtomicBool,
    }

    impl Broker for Fake {
        fn publish<'a>(&'a self, _: &'a Message) -> BoxFuture<'a, Outcome> {
            std::future::ready(Outcome::without_answer(AttemptResult::Ok, None)).boxed()
        }

        fn is_closed(&self) -> bool {
            self.closed.load(Ordering::Relaxed)
        }
    }

    fn version(number: i32) -> Version {
        Version { of: (number, UnixMs::new(0)), networks: None }
    }

    fn line() -> Arc<Line> {
        Arc::new(Line::new(version(1)))
    }

    fn up(fake: &Arc<Fake>) -> BoxFuture<'static, Connected> {
        let fake = Arc::clone(fake);
        async move {
            tokio::task::yield_now().await;
            Ok(fake as Arc<dyn Broker>)
        }
        .boxed()
    }

    #[tokio::test]
    async fn attempts_share_a_connection_until_it_closes() {
        let (line, made, fake) = (line(), AtomicUsize::new(0), Arc::new(Fake::default()));
        let get = || {
            line.connection(|| {
                made.fetch_add(1, Ordering::Relaxed);
                Ok(up(&fake))
            })
        };
        let all = futures::future::join_all((0..50).map(|_| get())).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(made.load(Ordering::Relaxed), 1);
        fake.closed.store(true, Ordering::Relaxed);
        assert!(get().await.is_ok());
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn each_connection_is_watched_by_one_task_until_it_is_another() {
        let (line, fakes) = (line(), [0; 3].map(|_| Arc::new(Fake::default())));
        for fake in &fakes {
            assert!(line.connection(|| Ok(up(fake))).await.is_ok());
            fake.closed.store(true, Ordering::Relaxed);
        }
        fakes[2].closed.store(false, Ordering::Relaxed);
        assert_eq!(Arc::weak_count(&line), 3);
        tokio::time::sleep(IDLE / 4 + Duration::from_millis(1)).await;
        assert_eq!(Arc::weak_count(&line), 1);
    }

    #[tokio::test]
    async fn after_a_failure_nobody_connects_for_a_while() {
        let (line, made) = (line(), AtomicUsize::new(0));
        let why = NotConnected::NotReached("nobody there".into());
        let get = || {
            line.connection(|| {
                made.fetch_add(1, Ordering::Relaxed);
                Ok(std::future::ready(Err(why.clone())).boxed())
            })
        };
        for _ in 0..3 {
            assert_eq!(get().await.err(), Some(why.clone()));
        }
        assert_eq!(made.load(Ordering::Relaxed), 1);
        let waits = async || {
            if let State::Down { until_ms, .. } = &mut *line.state() {
                *until_ms = 0;
            }
            let _ = get().await;
            match &*line.state() {
                State::Down { wait, .. } => *wait,
                _ => panic!("it is not down"),
            }
        };
        let mut seen = Vec::new();
        for _ in 0..8 {
            seen.push(waits().await);
        }
        assert_eq!((seen[0], seen[7]), (FIRST_WAIT * 4, LONGEST_WAIT), "{seen:?}");
    }

    #[tokio::test]
    async fn one_that_gives_up_does_not_end_the_connecting() {
        let (line, fake) = (line(), Arc::new(Fake::default()));
        let waiting = line.connection(|| Ok(up(&fake)));
        assert!(waiting.now_or_never().is_none());
        let found = line.connection(|| panic!("somebody connects already")).await;
        assert!(found.is_ok());
    }

    #[tokio::test]
    async fn a_silent_connection_is_given_up_unless_another_attempt_had_an_answer() {
        let (line, fake) = (line(), Arc::new(Fake::default()));
        let connection = line.connection(|| Ok(up(&fake))).await.expect("a connection");
        let began = Monotonic::now();
        line.heard();
        line.silent_since(began, &connection);
        assert!(line.is_up());
        line.last_heard.store(i64::MIN, Ordering::Relaxed);
        line.silent_since(began, &connection);
        assert!(!line.is_up());
    }

    fn brokers(most: usize) -> Brokers {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config =
            Arc::new(Config::load(Some(std::path::Path::new("/dev/null")), [], &[]).expect("settings"));
        let tls = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let names = super::super::names::Names::new(super::super::guard::Guard::new(Arc::clone(&config)));
        let dialer = Dialer::new(&config, names.expect("a resolver"), tls);
        Brokers::new(&config, StoreClock::local(Arc::new(crate::clock::SystemClock)), dialer, most)
    }

    #[tokio::test]
    async fn a_line_that_failed_long_ago_is_forgotten() {
        let brokers = brokers(2);
        for (name, ago) in [("long ago", 2 * IDLE), ("just now", Duration::ZERO)] {
            *brokers.line(name, version(1)).state() = State::Down {
                until_ms: Monotonic::now().as_ms() - in_ms(ago),
                wait: FIRST_WAIT,
                why: NotConnected::NotReached("nobody there".into()),
            };
        }
        assert_eq!(brokers.room(), Ok(()));
        assert_eq!(brokers.lines().keys().collect::<Vec<_>>(), ["just now"]);
    }

    #[tokio::test]
    async fn connections_are_bounded_and_the_idle_ones_go_first() {
        let (brokers, fake) = (brokers(2), Arc::new(Fake::default()));
        let connect = async |name: &str| {
            let line = brokers.line(name, version(1));
            let found = line.connection(|| brokers.room().map(|()| up(&fake))).await;
            (line, found.err())
        };
        let (busy, none) = connect("busy").await;
        assert_eq!(none, None);
        let used = busy.used();
        let (idle, _) = connect("idle").await;
        assert_eq!(connect("third").await.1, None, "the idle one goes");
        assert!(busy.is_up() && !idle.is_up());
        let third = brokers.line("third", version(1));
        let _also = third.used();
        assert_eq!(connect("fourth").await.1, Some(NotConnected::Lack(Lack::Files)));
        drop(used);
        assert_eq!(connect("fourth").await.1, None);
        let changed = brokers.line("fourth", version(2));
        assert!(!changed.is_up(), "a destination that was changed is another line");
        let networks = Some(Arc::new(Networks {
            allow: Vec::new(),
            deny: vec!["10.0.0.0/8".parse().expect("a network")],
        }));
        let kept = brokers.line("fourth", version(2));
        assert!(Arc::ptr_eq(&changed, &kept));
        let restricted = brokers.line("fourth", Version { networks, ..version(2) });
        assert!(!Arc::ptr_eq(&changed, &restricted), "so is one whose namespace has other networks");
    }
}
