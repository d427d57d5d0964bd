//! Sinks: one attempt to deliver a firing to its target.
//!
//! A sink takes a [`Delivery`] and returns an [`Outcome`]. It never sees a row, never retries and never decides what
//! follows; [`crate::dispatch`] does. One file for each kind of place, chosen in [`Sinks`]; what those for
//! brokers share is in `broker.rs`.

#[cfg(feature = "amqp")]
mod amqp;
mod broker;
mod dial;
pub mod event;
pub mod guard;
#[cfg(feature = "kafka")]
mod kafka;
mod lack;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "mqtt")]
mod mqtt3;
mod names;
#[cfg(feature = "nats")]
mod nats;
mod redis_stream;
pub mod webhook;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rustls_platform_verifier::ConfigVerifierExt;

use crate::clock::StoreClock;
use crate::config::Config;
use crate::model::destination::Destination;
use crate::model::id::{Epoch, Generation, Uid};
use crate::model::namespace::{Namespace, Sender};
use crate::model::place::Place;
use crate::model::pointer::Via;
use crate::model::subscription::Lifecycle;
use crate::model::target::Target;
use crate::model::time::{Span, UnixMs};
use crate::model::timer::{AttemptResult, Token};
use crate::model::trace::Trace;
use crate::traces::Onward;
pub use broker::{Broker, Message};
pub use lack::Lack;

/// One attempt to deliver one firing, or a merged set of them.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The namespace of the timer, or of whoever is told.
    pub namespace: Namespace,
    /// Its name, and where it may send to.
    pub sender: Arc<Sender>,
    /// What is told.
    pub event: Event,
    /// The delivery id: the same for all attempts of this firing, and of no other firing.
    pub id: String,
    /// What it is about: the timer's id, or the owner of a merged set.
    pub subject: String,
    /// When it should go out: the due time, or the moment of a merged set.
    pub due_at: UnixMs,
    /// The generation that fires; of a merged set that of the first member.
    pub generation: Generation,
    /// Which attempt of the generation this is, from 1.
    pub attempt: i32,
    /// The target.
    pub target: Target,
    /// The destination that the target names, if there is one of the name.
    pub destination: Option<Arc<Destination>>,
    /// How long the attempt may take, where it is not what every attempt may.
    pub timeout: Option<Duration>,
    /// The payload: JSON.
    pub data: Vec<u8>,
    /// The schedule that made the timer. Of a merged set none is told.
    pub schedule: Option<String>,
    /// The nominal time that it was made for.
    pub nominal: Option<UnixMs>,
    /// The trace of the call that registered the timer, or the first member.
    pub trace: Option<Trace>,
    /// The trace of this attempt.
    pub onward: Onward,
    /// The claim that this attempt is made under.
    pub claim: Claim,
    /// The timers of a merged set, each with its attempt; of others empty. Not sent: the simulation checks it.
    pub members: Vec<(Uid, Token)>,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A timer fires.
    Fired,
    /// Timers fire together.
    Merged,
    /// A lifecycle event is told: `due_at` of the delivery is when it became true.
    Told(Lifecycle),
    /// Somebody tries a destination.
    Test,
}

impl Event {
    /// The `ce-type`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Fired => "mainspring.timer.fired.v1",
            Self::Merged => "mainspring.timer.merged.v1",
            Self::Told(kind) => kind.ce_type(),
            Self::Test => "mainspring.test.v1",
        }
    }
}

/// The longest test of a destination, but for Kafka: who asked for it waits.
const LONGEST_TEST: Duration = Duration::from_secs(30);

impl Delivery {
    /// A test of a destination. Its subject is the destination's name.
    pub fn test(destination: Arc<Destination>, sender: Arc<Sender>, now: UnixMs) -> Self {
        let (name, timeout) = (destination.name.clone(), destination.limits.timeout.map(Span::get));
        // A connection to Kafka sends nothing that has less time than it was made for.
        let longest =
            if matches!(destination.place, Ok(Place::Kafka(_))) { Duration::MAX } else { LONGEST_TEST };
        let data = serde_json::json!({"destination": name}).to_string().into_bytes();
        Self {
            namespace: destination.namespace,
            sender,
            event: Event::Test,
            id: format!("tst_{}", uuid::Uuid::now_v7().simple()),
            subject: name.clone(),
            due_at: now,
            generation: Generation(1),
            attempt: 1,
            target: Target::Destination(name),
            destination: Some(destination),
            timeout: timeout.map(|timeout| timeout.min(longest)),
            data,
            schedule: None,
            nominal: None,
            trace: None,
            onward: Onward::default(),
            claim: Claim { shard: 0, epoch: Epoch(0), via: None },
            members: Vec::new(),
        }
    }
}

impl Delivery {
    /// A lifecycle event: its number, its subject, when it became true, and its body. It is sent by the owner of a shard,
    /// under an epoch.
    pub fn told(
        kind: Lifecycle,
        (id, subject, at, body): (uuid::Uuid, String, UnixMs, Vec<u8>),
        destination: Arc<Destination>,
        sender: Arc<Sender>,
        (shard, epoch): (i32, Epoch),
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            namespace: destination.namespace,
            sender,
            event: Event::Told(kind),
            id: format!("evt_{}", id.simple()),
            subject,
            due_at: at,
            generation: Generation(1),
            attempt: 1,
            target: Target::Destination(destination.name.clone()),
            destination: Some(destination),
            timeout,
            data: body,
            schedule: None,
            nominal: None,
            trace: None,
            onward: Onward::default(),
            claim: Claim { shard, epoch, via: None },
            members: Vec::new(),
        }
    }
}

/// The claim that an attempt is made under. It is not sent; the simulation checks it.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// The timer's shard.
    pub shard: i32,
    /// The shard's epoch at the claim.
    pub epoch: Epoch,
    /// How the due timer was noticed.
    pub via: Option<Via>,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The result.
    pub result: AttemptResult,
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
    /// The beginning of the body of the answer; of a Redis stream the id of the entry, of JetStream the
    /// stream and the event's number in it, of Kafka the partition and the offset, of other brokers nothing.
    pub reply: Option<String>,
    /// What failed, in words.
    pub detail: Option<String>,
    /// The wait that the receiver asked for.
    pub retry_after: Option<Duration>,
    /// The receiver will never accept it (410).
    pub gone: bool,
    /// There was no connection to the receiver, or no address for its name.
    pub not_reached: bool,
}

impl Outcome {
    /// An outcome without an answer from the receiver: this result, for this reason.
    pub fn without_answer(result: AttemptResult, detail: Option<String>) -> Self {
        Self { result, status: None, reply: None, detail, retry_after: None, gone: false, not_reached: false }
    }

    /// The same with no more of the receiver's words than are kept, as text that every database accepts.
    fn cut(mut self) -> Self {
        for text in [&mut self.reply, &mut self.detail].into_iter().flatten() {
            text.truncate(text.floor_char_boundary(REPLY_KEPT));
            if text.contains('\0') {
                *text = text.replace('\0', "\u{fffd}");
            }
        }
        self
    }
}

/// Bytes that are kept of a receiver's words.
const REPLY_KEPT: usize = 1024;

/// Makes attempts: [`Sinks`], or the receivers in the simulation.
pub trait Sink: Send + Sync {
    /// Makes one attempt. When the future is dropped, it is unknown whether the receiver got the delivery. An error is no
    /// attempt: nothing was sent, because this node lacks something.
    fn send<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a, Result<Outcome, Lack>>;
}

/// The sinks of this node, by kind of target.
pub struct Sinks {
    webhook: webhook::Webhooks,
    brokers: broker::Brokers,
}

impl Sinks {
    /// Sinks under these settings, which keep at most so many idle connections open.
    pub fn new(config: &Arc<Config>, clock: StoreClock, idle_connections: usize) -> anyhow::Result<Self> {
        // Made once: it reads the system's root certificates.
        let tls = rustls::ClientConfig::with_platform_verifier()?;
        let names = names::Names::new(guard::Guard::new(Arc::clone(config)))?;
        let dialer = dial::Dialer::new(config, names.clone(), tls.clone());
        Ok(Self {
            webhook: webhook::Webhooks::new(config, clock.clone(), (names, tls), idle_connections)?,
            brokers: broker::Brokers::new(config, clock, dialer, idle_connections),
        })
    }

    /// From now on so many idle connections are kept.
    pub fn keep_idle(&self, most: usize) {
        self.webhook.keep_idle(most);
        self.brokers.keep_open(most);
    }
}

/// A connection to the broker of a place, apart from any sink: for measurements.
pub async fn connection(config: &Arc<Config>, place: &Place) -> anyhow::Result<Arc<dyn Broker>> {
    let dialer = Arc::new(dialer(config)?);
    Ok(broker::connect(place.clone(), dialer, config.webhook.timeout.get()).await?)
}

/// A connection to the AMQP broker of a place, for who reads there.
#[cfg(feature = "amqp")]
pub async fn amqp_connection(config: &Arc<Config>, place: &Place) -> anyhow::Result<lapin::Connection> {
    let Place::Amqp(place) = place else { anyhow::bail!("{} is no AMQP", place.kind()) };
    Ok(amqp::log_in(place, &dialer(config)?).await?)
}

fn dialer(config: &Arc<Config>) -> anyhow::Result<dial::Dialer> {
    let tls = rustls::ClientConfig::with_platform_verifier()?;
    let names = names::Names::new(guard::Guard::new(Arc::clone(config)))?;
    Ok(dial::Dialer::new(config, names, tls))
}

impl Sink for Sinks {
    fn send<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a, Result<Outcome, Lack>> {
        match &delivery.target {
            Target::Webhook(hook) => self.webhook.send(delivery, hook).boxed(),
            Target::Destination(name) => match delivery.destination.as_deref() {
                Some(Destination { place: Ok(Place::Webhook(hook)), .. }) => {
                    self.webhook.send(delivery, hook).boxed()
                }
                Some(Destination { place: Ok(place), version, created_at, .. }) => {
                    let line = delivery.namespace.qualified(name).into_owned();
                    let send = async move {
                        let sent = self.brokers.send(delivery, &line, (*version, *created_at), place).await;
                        sent.map(Outcome::cut)
                    };
                    send.boxed()
                }
                Some(Destination { place: Err(_), kind, .. }) => {
                    refused(format!("this node cannot send to destinations of kind {kind}"))
                }
                None => refused(format!("there is no destination `{name}`")),
            },
            // Timers of these kinds are not claimed.
            Target::Queue(name) => refused(format!("what is for the queue `{name}` is fetched by workers")),
            Target::Unknown { kind } => refused(format!("this node does not know targets of kind {kind}")),
        }
    }
}

/// Nothing was sent, for this reason.
fn refused(detail: String) -> BoxFuture<'static, Result<Outcome, Lack>> {
    std::future::ready(Ok(Outcome::without_answer(AttemptResult::Refused, Some(detail)))).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_receivers_words_a_beginning_is_kept_that_every_database_takes() {
        let long = format!("\0{}", "ä".repeat(REPLY_KEPT));
        let sent = Outcome::without_answer(AttemptResult::Failed, Some(long.clone()));
        let cut = Outcome { reply: Some(long), ..sent }.cut();
        assert_eq!(cut.reply, cut.detail);
        let kept = cut.reply.expect("it is kept");
        assert!(kept.starts_with("\u{fffd}ä") && kept.ends_with('ä'), "{kept}");
        assert_eq!(kept.chars().count(), 1 + (REPLY_KEPT - 1) / 2);
    }
}
