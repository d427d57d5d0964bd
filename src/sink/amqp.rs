//! One attempt at an exchange of an AMQP 0-9-1 broker: published as `mandatory`, and taken once the broker has confirmed it.
//!
//! A channel carries one event at a time, for two reasons: a broker closes a channel to refuse an event, and the client
//! hands a returned event to whichever confirmation comes next on its channel. So there are many channels.
//!
//! Source: the AMQP 0-9-1 specification, and RabbitMQ's extension for publisher confirms. The names of the headers are
//! those of CloudEvents' binding for AMQP 1.0.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures::FutureExt;
use futures::future::BoxFuture;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{
    AsyncTcpStream, BasicProperties, Channel, Confirmation, ConnectionProperties, ErrorKind, ExchangeKind,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

use super::Outcome;
use super::broker::{Broker, Message, NotConnected};
use super::dial::{Dialer, Io};
use crate::model::place::Amqp;
use crate::model::timer::AttemptResult;

/// The most channels of a connection, and so the most events that are under way on it.
const CHANNELS: u16 = 256;

/// The longest wait for a confirmation. The attempt has ended long before; its channel waits, so that a late answer is not
/// taken for that of another event.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How often each side says that it is there, in seconds, and after which silence the connection is given up.
const HEARTBEAT: u16 = 6;
const SILENCE: Duration = Duration::from_secs(15);

/// The largest frame, in bytes. The client keeps room for 64 of them.
const FRAME: u32 = 32 * 1024;

/// The event outlives a restart of the broker, in a queue that does.
const PERSISTENT: u8 = 2;

/// A connection to a broker, for one exchange and routing key.
pub struct Connection {
    broker: lapin::Connection,
    channels: Arc<Channels>,
    exchange: ShortString,
    routing_key: ShortString,
}

/// The channels that are open and carry nothing.
struct Channels {
    idle: Mutex<Vec<Channel>>,
    /// One permit for each channel that there may be.
    permits: Arc<Semaphore>,
}

impl Channels {
    fn take(&self) -> Option<Channel> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|channel| channel.status().connected())
    }

    fn give_back(&self, channel: Channel) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
    }
}

impl Connection {
    /// Connects, logs in, and looks whether there is such an exchange.
    pub async fn open(place: &Amqp, dialer: &Dialer) -> Result<Self, NotConnected> {
        let broker = log_in(place, dialer).await?;
        let most = broker.configuration().channel_max().min(CHANNELS);
        let connection = Self {
            broker,
            channels: Arc::new(Channels {
                idle: Mutex::default(),
                permits: Arc::new(Semaphore::new(most.max(1).into())),
            }),
            exchange: short(&place.exchange)?,
            routing_key: short(&place.routing_key)?,
        };
        connection.look(place).await.map_err(|why| not_connected(place, &why))?;
        Ok(connection)
    }

    /// Whether there is such an exchange. The default one is always there, and cannot be looked for.
    async fn look(&self, place: &Amqp) -> lapin::Result<()> {
        let channel = self.new_channel().await?;
        if !place.exchange.is_empty() {
            let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            let exchange = self.exchange.clone();
            // Its type does not matter, as nothing is declared.
            channel.exchange_declare(exchange, ExchangeKind::Direct, passive, FieldTable::default()).await?;
        }
        self.channels.give_back(channel);
        Ok(())
    }

    async fn new_channel(&self) -> lapin::Result<Channel> {
        let channel = self.broker.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// A channel that carries nothing, and the permit for it.
    async fn channel(&self) -> Result<(Channel, OwnedSemaphorePermit), Outcome> {
        // Never closed.
        let permit = Arc::clone(&self.channels.permits).acquire_owned().await.expect("it is open");
        if let Some(why) = self.held_back() {
            return Err(not_taken(why.into()));
        }
        if let Some(channel) = self.channels.take() {
            return Ok((channel, permit));
        }
        match self.new_channel().await {
            Ok(channel) => Ok((channel, permit)),
            Err(why) => Err(not_taken(format!("no channel: {}", told(&why)))),
        }
    }
}

/// Nothing was sent, as if there were no connection: what waits behind it keeps its attempts.
fn not_taken(why: String) -> Outcome {
    Outcome { not_reached: true, ..Outcome::without_answer(AttemptResult::Refused, Some(why)) }
}

/// Connects and logs in. The connection is not made again when it breaks.
pub async fn log_in(place: &Amqp, dialer: &Dialer) -> Result<lapin::Connection, NotConnected> {
    let mut stream = TimeoutStream::new(dialer.open(&place.url).await?);
    // Heartbeats come more often; without this a silent broker would keep a thread of the client for long.
    stream.set_read_timeout(Some(SILENCE));
    let stream: Stream = Box::pin(stream).compat();
    // The client asks once: it is told not to connect again by itself.
    let stream = Mutex::new(Some(stream));
    let connect = async move |_, _| {
        let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        stream.map(AsyncTcpStream::Plain).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
    };
    let runtime = Runtime::new(RuntimeParts::new(Tokio::current(), Ready(Tokio::current())));
    let properties = ConnectionProperties::default().with_connection_name("mainspring".into());
    let opened = lapin::Connection::connector(uri(place), runtime, connect, properties).await;
    opened.map_err(|why| not_connected(place, &why))
}

impl Broker for Connection {
    fn publish<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Outcome> {
        async move {
            let (channel, permit) = match self.channel().await {
                Ok(found) => found,
                Err(outcome) => return outcome,
            };
            let (exchange, routing_key) = (self.exchange.clone(), self.routing_key.clone());
            let (body, properties) = (message.body.clone(), properties(message));
            let channels = Arc::clone(&self.channels);
            // A task of its own, so that the channel is not used for another event before this one has its answer.
            let task = tokio::spawn(async move {
                let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                let confirmed = async {
                    channel.basic_publish(exchange, routing_key, options, &body, properties).await?.await
                };
                let confirmed = tokio::time::timeout(LONGEST_WAIT, confirmed).await.ok()?;
                if confirmed.is_ok() {
                    channels.give_back(channel);
                }
                drop(permit);
                Some(confirmed)
            });
            match task.await {
                Ok(Some(Ok(confirmation))) => self.confirmed(confirmation),
                Ok(Some(Err(why))) => self.failed(&why),
                Ok(None) | Err(_) => unknown("no confirmation"),
            }
        }
        .boxed()
    }

    fn is_closed(&self) -> bool {
        !self.broker.status().connected()
    }

    fn held_back(&self) -> Option<&'static str> {
        let said = self.broker.status().blocked();
        said.then_some("the broker takes nothing now: it is short of memory or disk (an alarm of RabbitMQ)")
    }
}

impl Connection {
    fn confirmed(&self, confirmation: Confirmation) -> Outcome {
        let (exchange, key) = (&self.exchange, &self.routing_key);
        let detail = match confirmation {
            Confirmation::Ack(None) => return Outcome::without_answer(AttemptResult::Ok, None),
            Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => format!(
                "no queue: the exchange `{exchange}` leads `{key}` nowhere ({} {})",
                returned.reply_code, returned.reply_text
            ),
            Confirmation::Nack(None) => {
                "the broker refused it (basic.nack): a queue is full, or the broker failed".into()
            }
            Confirmation::NotRequested => "the broker confirms nothing on this channel".into(),
        };
        Outcome::without_answer(AttemptResult::Failed, Some(detail))
    }

    /// An event without a confirmation.
    fn failed(&self, why: &lapin::Error) -> Outcome {
        let ErrorKind::ProtocolError(said) = why.kind() else {
            return unknown(&format!("the connection broke before a confirmation came: {}", told(why)));
        };
        // Only what ends the channel is about this event: it had the channel to itself.
        let AMQPErrorKind::Soft(kind) = said.kind() else {
            return unknown(&format!("the broker closed the connection: {}", told(why)));
        };
        let exchange = &self.exchange;
        let detail = match kind {
            AMQPSoftError::NOTFOUND => format!("there is no exchange `{exchange}`: {}", told(why)),
            AMQPSoftError::ACCESSREFUSED => {
                format!("the user of the URL may not publish to `{exchange}`: {}", told(why))
            }
            _ => format!("the broker refused it: {}", told(why)),
        };
        // It will not become smaller.
        let gone = *kind == AMQPSoftError::PRECONDITIONFAILED && is_too_large(said);
        Outcome { gone, ..Outcome::without_answer(AttemptResult::Failed, Some(detail)) }
    }
}

/// RabbitMQ: "message size 200000 is larger than configured max size 100000".
fn is_too_large(said: &AMQPError) -> bool {
    said.get_message().as_str().contains("message size")
}

fn unknown(detail: &str) -> Outcome {
    Outcome::without_answer(AttemptResult::Unknown, Some(detail.to_owned()))
}

fn properties(message: &Message) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in &message.attributes {
        let value = AMQPValue::LongString(LongString::from(value.as_str()));
        headers.insert(format!("cloudEvents:{name}").into(), value);
    }
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers);
    let id = message.attributes.iter().find(|(name, _)| *name == "id");
    match id.map(|(_, id)| ShortString::try_new(id.as_str())) {
        Some(Ok(id)) => properties.with_message_id(id),
        _ => properties,
    }
}

/// Where to log in. The host and the port are for the client's own words only.
fn uri(place: &Amqp) -> AMQPUri {
    let guest = || "guest".to_owned();
    AMQPUri {
        // Encrypted already, where the URL says so.
        scheme: AMQPScheme::AMQP,
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: place.url.user().unwrap_or_else(guest),
                password: place.url.password().unwrap_or_else(guest),
            },
            host: place.url.host().to_owned(),
            port: place.url.port(),
        },
        vhost: place.virtual_host(),
        query: AMQPQueryString {
            frame_max: Some(FRAME),
            channel_max: Some(CHANNELS),
            heartbeat: Some(HEARTBEAT),
            ..AMQPQueryString::default()
        },
    }
}

fn short(text: &str) -> Result<ShortString, NotConnected> {
    ShortString::try_new(text).map_err(|why| NotConnected::Refused(why.to_string()))
}

fn not_connected(place: &Amqp, why: &lapin::Error) -> NotConnected {
    let ErrorKind::ProtocolError(said) = why.kind() else {
        return NotConnected::NotReached(format!("no connection: {}", told(why)));
    };
    NotConnected::NotAllowed(match said.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => {
            format!("there is no exchange `{}`: {}", place.exchange, told(why))
        }
        AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => {
            format!("the broker does not let this node into `{}`: {}", place.virtual_host(), told(why))
        }
        _ => format!("the broker does not let this node in: {}", told(why)),
    })
}

/// What a broker said, or what broke.
fn told(why: &lapin::Error) -> String {
    let text = match why.kind() {
        ErrorKind::ProtocolError(said) => said.get_message().to_string(),
        ErrorKind::IOError(why) => why.to_string(),
        _ => why.to_string(),
    };
    text.chars().take(200).collect()
}

/// A connection as the client takes it.
type Stream = Compat<Pin<Box<TimeoutStream<Box<dyn Io>>>>>;

/// The client's view of the runtime: Tokio, but that connections are made elsewhere.
#[derive(Debug, Clone)]
struct Ready(Tokio);

impl Reactor for Ready {
    type TcpStream = Stream;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl futures::AsyncRead + futures::AsyncWrite + Send + Unpin + 'static> {
        // The client has its connection already.
        Err::<Stream, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, wait: Duration) -> Self::Sleep {
        self.0.sleep(wait)
    }

    fn interval(&self, every: Duration) -> impl futures::Stream<Item = Instant> + Send + 'static {
        self.0.interval(every)
    }

    fn tcp_connect_addr(
        &self,
        _: std::net::SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
