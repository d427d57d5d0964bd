//! One attempt at a topic of Kafka: produced by an idempotent producer, and taken once all replicas in sync have it.
//!
//! librdkafka makes its connections by itself, also to those brokers that the first ones name. Every address is checked
//! before anything is produced, and those that turn up later once its statistics tell of them. The check may come too
//! late: it resolves names once more, and it connects at once to a broker that names itself otherwise than it was called.
//!
//! Source: CloudEvents' binding for Kafka in binary mode: attributes are headers `ce_NAME`, the payload is the value. The
//! key is the subject, so that what concerns one timer stays in order.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::future_producer::Delivery;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::statistics::Statistics;
use tokio::sync::{OnceCell, Semaphore, mpsc, watch};

use super::Outcome;
use super::broker::{Broker, Message, NotConnected};
use super::dial::Dialer;
use super::webhook::CONNECT_WAIT;
use crate::clock::Monotonic;
use crate::model::place::{Address, Kafka};
use crate::model::timer::AttemptResult;

/// The most events that are under way on one connection.
const IN_FLIGHT: usize = 4096;

/// The largest event that is given to librdkafka, in bytes. What a topic takes, its brokers say.
const LARGEST: usize = 16 * 1024 * 1024;

/// The most events that wait in a producer, in bytes: in the one that all go through, and in the one that sends them alone.
const QUEUED: usize = 48 * 1024 * 1024;
const QUEUED_ALONE: usize = 16 * 1024 * 1024;

/// How often the names of brokers are looked through, in milliseconds.
const LOOK_MS: usize = 1000;

/// Producers for one topic.
pub struct Connection {
    producer: Producer,
    /// Sends one event at a time: a batch may be too large where none of its events is.
    alone: OnceCell<Producer>,
    permits: Semaphore,
    told: Told,
    /// An event is given up by its producer after so long. An attempt that has less time left sends nothing.
    limit: Duration,
    place: Kafka,
}

/// How long a producer may keep an event of an attempt of this length: what connecting may take is not its own.
fn kept(attempt: Duration) -> Duration {
    attempt - CONNECT_WAIT.min(attempt / 4)
}

impl Connection {
    /// Connects, logs in, and looks whether there is such a topic. An event is given up before an attempt of this length
    /// is over.
    pub async fn open(place: &Kafka, dialer: &Arc<Dialer>, attempt: Duration) -> Result<Self, NotConnected> {
        let limit = kept(attempt);
        for address in place.brokers.addresses() {
            dialer.check(address).await?;
        }
        let (ended, mut end) = watch::channel(None);
        let (names, named) = mpsc::unbounded_channel();
        let told = Told { ended, names, known: Arc::default(), last: Arc::default() };
        let producer = Producer::new(place, limit, &told, false)?;
        tokio::spawn(guard(named, Arc::clone(dialer), told.clone()));
        let (alone, permits) = (OnceCell::new(), Semaphore::new(IN_FLIGHT));
        let connection = Self { producer, alone, permits, told, limit, place: place.clone() };
        connection.look(&mut end, dialer).await?;
        Ok(connection)
    }

    /// Whether brokers can be reached and are delivered to, and whether there is such a topic.
    async fn look(
        &self,
        end: &mut watch::Receiver<Option<NotConnected>>,
        dialer: &Dialer,
    ) -> Result<(), NotConnected> {
        let looked = {
            let (producer, topic) = (self.producer.clone(), self.place.topic.clone());
            // It waits for an answer, and keeps a thread meanwhile.
            tokio::task::spawn_blocking(move || look(&producer, &topic))
        };
        let found = tokio::select! {
            biased;
            found = looked => found.unwrap_or_else(|_| Err("the look at the topic was cut short".into())),
            why = the_end(end) => return Err(why),
        };
        // The reason is often known better than that there was no answer.
        let known = || self.told.ended.borrow().clone();
        let not_found = |why| known().unwrap_or(NotConnected::NotReached(format!("no connection: {why}")));
        let found = found.map_err(not_found)?;
        for broker in &found.brokers {
            check(broker, dialer).await?;
        }
        match found.refused {
            Some(why) => {
                Err(NotConnected::NotAllowed(format!("{} `{}`", topic_trouble(why), self.place.topic)))
            }
            None => Ok(()),
        }
    }

    async fn produce(&self, producer: &Producer, message: &Message) -> Result<Delivery, KafkaError> {
        let attributes = message.attributes.iter();
        let headers = attributes.fold(OwnedHeaders::new_with_capacity(16), |headers, (name, value)| {
            headers.insert(Header { key: &format!("ce_{name}"), value: Some(value) })
        });
        let headers = headers.insert(Header { key: "content-type", value: Some("application/json") });
        let subject = message.attributes.iter().find(|(name, _)| *name == "subject");
        let key = subject.map(|(_, subject)| subject.as_str()).unwrap_or_default();
        let record = FutureRecord::to(&self.place.topic).key(key).payload(&message.body).headers(headers);
        let delivered = producer.send_result(record).map_err(|(why, _)| why)?;
        match delivered.await {
            Ok(Ok(delivery)) => Ok(delivery),
            Ok(Err((why, _))) => Err(why),
            Err(_) => Err(KafkaError::Canceled),
        }
    }

    /// Whether its producer could still send this event after its attempt is over.
    fn is_too_late(&self, message: &Message) -> bool {
        message.until.since(Monotonic::now()) < self.limit
    }

    /// The producer that sends nothing together.
    async fn alone(&self) -> Result<&Producer, NotConnected> {
        self.alone.get_or_try_init(async || Producer::new(&self.place, self.limit, &self.told, true)).await
    }

    /// An idempotent producer goes on under another epoch after it lost an event, and not every broker lets it; what a user
    /// may not do it remembers. So it is made anew, unless the event alone was at fault.
    fn replace_after(&self, why: &KafkaError) {
        use RDKafkaErrorCode as Code;
        let code = why.rdkafka_error_code();
        if !matches!(code, Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::QueueFull)) {
            self.told.end(NotConnected::NotReached("the producer has lost an event".into()));
        }
    }

    fn failed(&self, why: &KafkaError) -> Outcome {
        use RDKafkaErrorCode as Code;
        let outcome = |result, detail: String| Outcome::without_answer(result, Some(detail));
        let topic = &self.place.topic;
        match why.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize) => {
                let detail = "it is larger than the topic takes (max.message.bytes)".to_owned();
                Outcome { gone: true, ..outcome(AttemptResult::Failed, detail) }
            }
            Some(Code::QueueFull) => {
                outcome(AttemptResult::Refused, "too many events wait for this broker".into())
            }
            Some(Code::MessageTimedOut | Code::RequestTimedOut | Code::OperationTimedOut) => {
                let detail = format!("no acknowledgement within {} s", self.limit.as_secs_f64());
                let why = self.told.ended.borrow().as_ref().map(|why| format!(": {why}"));
                outcome(AttemptResult::Timeout, detail + &why.unwrap_or_default())
            }
            Some(
                code @ (Code::UnknownTopicOrPartition
                | Code::UnknownTopic
                | Code::UnknownPartition
                | Code::TopicAuthorizationFailed
                | Code::ClusterAuthorizationFailed),
            ) => outcome(AttemptResult::Failed, format!("{} `{topic}`", topic_trouble(code))),
            Some(
                code @ (Code::NotEnoughReplicas
                | Code::InvalidMessage
                | Code::InvalidRecord
                | Code::PolicyViolation
                | Code::InvalidTimestamp
                | Code::UnsupportedForMessageFormat),
            ) => outcome(AttemptResult::Failed, format!("the broker refused it: {code}")),
            _ => outcome(AttemptResult::Unknown, format!("no acknowledgement: {}", short(&why.to_string()))),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Whoever watches it stops.
        self.told.end(NotConnected::NotReached("the connection is closed".into()));
    }
}

impl Broker for Connection {
    fn publish<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Outcome> {
        async move {
            // Never closed.
            let _permit = self.permits.acquire().await.expect("it is open");
            if self.is_too_late(message) {
                let detail = "connecting, or waiting for others, took too much of the attempt's time; nothing was sent";
                return Outcome::without_answer(AttemptResult::Refused, Some(detail.into()));
            }
            let mut delivered = self.produce(&self.producer, message).await;
            if let Err(why) = &delivered
                && why.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge)
            {
                delivered = match self.alone().await {
                    // Nothing is known of the event by itself.
                    Ok(_) if self.is_too_late(message) => {
                        let detail = "the batch that it was in is larger than the topic takes, and no time is left to send it alone";
                        return Outcome::without_answer(AttemptResult::Failed, Some(detail.into()));
                    }
                    Ok(alone) => self.produce(alone, message).await,
                    Err(why) => {
                        return Outcome::without_answer(AttemptResult::Refused, Some(why.to_string()));
                    }
                };
            }
            match delivered {
                Ok(Delivery { partition, offset, .. }) => {
                    let reply = Some(format!("{partition} {offset}"));
                    Outcome { reply, ..Outcome::without_answer(AttemptResult::Ok, None) }
                }
                Err(why) => {
                    self.replace_after(&why);
                    self.failed(&why)
                }
            }
        }
        .boxed()
    }

    fn is_closed(&self) -> bool {
        self.told.ended.borrow().is_some()
    }
}

/// A producer of librdkafka. It has threads of its own, which end when the last clone is dropped.
#[derive(Clone)]
struct Producer(Option<FutureProducer<Told>>);

impl Producer {
    fn new(place: &Kafka, limit: Duration, told: &Told, alone: bool) -> Result<Self, NotConnected> {
        let config = config(place, limit, alone);
        let made = config.create_with_context(told.clone());
        let made = made.map_err(|why| NotConnected::NotReached(short(&why.to_string())))?;
        Ok(Self(Some(made)))
    }
}

impl std::ops::Deref for Producer {
    type Target = FutureProducer<Told>;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect("it is taken only by the drop")
    }
}

impl Drop for Producer {
    /// It waits until its threads have ended.
    fn drop(&mut self) {
        let producer = self.0.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(move || drop(producer)));
        }
    }
}

fn config(place: &Kafka, limit: Duration, alone: bool) -> ClientConfig {
    let mut config = ClientConfig::new();
    let ms = limit.as_millis().saturating_sub(20).max(50).to_string();
    let connect_ms = CONNECT_WAIT.as_millis().to_string();
    let queued = (2 * IN_FLIGHT).to_string();
    config
        .set("client.id", "mainspring")
        .set("bootstrap.servers", place.brokers.to_string())
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("allow.auto.create.topics", "false")
        // What has no answer by then is not sent later.
        .set("message.timeout.ms", &ms)
        .set("request.timeout.ms", &ms)
        .set("socket.timeout.ms", ms.parse().unwrap_or(10_000_u64).max(1000).to_string())
        .set("socket.connection.setup.timeout.ms", connect_ms)
        .set("socket.nagle.disable", "true")
        .set("socket.keepalive.enable", "true")
        .set("message.max.bytes", LARGEST.to_string())
        // Events go at once. What comes while others are under way goes together.
        .set("linger.ms", "0")
        .set("queue.buffering.max.messages", queued)
        .set("statistics.interval.ms", LOOK_MS.to_string())
        .set(
            "security.protocol",
            match (place.user.is_some(), place.tls) {
                (false, false) => "plaintext",
                (false, true) => "ssl",
                (true, false) => "sasl_plaintext",
                (true, true) => "sasl_ssl",
            },
        )
        .set_log_level(RDKafkaLogLevel::Emerg);
    let queued = if alone { QUEUED_ALONE } else { QUEUED };
    config.set("queue.buffering.max.kbytes", (queued / 1024).to_string());
    if alone {
        config.set("batch.num.messages", "1");
    }
    if let Some(user) = &place.user {
        config.set("sasl.mechanism", place.mechanism.word().to_uppercase());
        config.set("sasl.username", user).set("sasl.password", place.password.as_deref().unwrap_or_default());
    }
    config
}

/// What there is at the brokers.
struct Found {
    brokers: Vec<String>,
    /// Why the topic cannot be used.
    refused: Option<RDKafkaErrorCode>,
}

fn look(producer: &Producer, topic: &str) -> Result<Found, String> {
    let found = producer.client().fetch_metadata(Some(topic), CONNECT_WAIT);
    let found = found.map_err(|why| short(&why.to_string()))?;
    let brokers = found.brokers().iter().map(|broker| format!("{}:{}", broker.host(), broker.port()));
    let refused = found.topics().iter().find_map(|topic| topic.error()).map(RDKafkaErrorCode::from);
    Ok(Found { brokers: brokers.collect(), refused })
}

fn topic_trouble(code: RDKafkaErrorCode) -> String {
    match code {
        RDKafkaErrorCode::UnknownTopicOrPartition
        | RDKafkaErrorCode::UnknownTopic
        | RDKafkaErrorCode::UnknownPartition => "there is no topic".into(),
        RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::ClusterAuthorizationFailed => {
            "the user may not write to the topic".into()
        }
        code => format!("the brokers say \"{code}\" of the topic"),
    }
}

/// Checks the address of a broker that others name.
async fn check(broker: &str, dialer: &Dialer) -> Result<(), NotConnected> {
    let refused = |why: &dyn std::fmt::Display| NotConnected::Refused(format!("the broker {broker}: {why}"));
    let address = Address::of_kafka(broker).map_err(|why| refused(&why.detail))?;
    match dialer.check(&address).await {
        Err(NotConnected::Refused(why)) => Err(refused(&why)),
        // Whether it can be reached shows when something is sent there.
        _ => Ok(()),
    }
}

/// Checks brokers as they turn up. One that is refused ends the connection.
async fn guard(mut named: mpsc::UnboundedReceiver<String>, dialer: Arc<Dialer>, told: Told) {
    let mut end = told.ended.subscribe();
    loop {
        let broker = tokio::select! {
            Some(broker) = named.recv() => broker,
            _ = the_end(&mut end) => return,
            else => return,
        };
        if let Err(why) = check(&broker, &dialer).await {
            told.end(why);
        }
    }
}

async fn the_end(end: &mut watch::Receiver<Option<NotConnected>>) -> NotConnected {
    let why = end.wait_for(Option::is_some).await.ok().and_then(|why| (*why).clone());
    match why {
        Some(why) => why,
        // Nobody is left who could end it.
        None => std::future::pending().await,
    }
}

/// What librdkafka tells. It logs nothing.
#[derive(Clone)]
struct Told {
    /// Why the connection is of no use any more.
    ended: watch::Sender<Option<NotConnected>>,
    /// Brokers that are named for the first time.
    names: mpsc::UnboundedSender<String>,
    known: Arc<Mutex<HashSet<String>>>,
    /// What was wrong with the last connection that broke or was not made.
    last: Arc<Mutex<String>>,
}

impl Told {
    /// The first reason stays.
    fn end(&self, why: NotConnected) {
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(why);
            is_first
        });
    }
}

impl ClientContext for Told {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = short(reason);
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Authentication) => {
                self.end(NotConnected::NotAllowed(format!("the broker does not let this node in: {reason}")));
            }
            Some(RDKafkaErrorCode::SSL) => {
                self.end(NotConnected::NotReached(format!("no connection with TLS: {reason}")));
            }
            Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::Resolve) => {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = reason;
            }
            // It says so, too, when a broker names itself otherwise than it was called, and is then connected to again.
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let with = if last.contains("SSL") { " with TLS" } else { "" };
                if !last.is_empty() {
                    self.end(NotConnected::NotReached(format!("no connection{with}: {last}")));
                }
            }
            // The producer takes nothing more.
            Some(RDKafkaErrorCode::Fatal) => {
                self.end(NotConnected::NotReached(format!("the producer has failed: {reason}")));
            }
            _ => {}
        }
    }

    fn stats(&self, statistics: Statistics) {
        let brokers = statistics.brokers.into_values().map(|broker| broker.nodename);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for name in brokers.filter(|name| !name.is_empty()) {
            if known.insert(name.clone()) {
                // Nobody listens once the connection has ended.
                let _ = self.names.send(name);
            }
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(200).collect()
}
