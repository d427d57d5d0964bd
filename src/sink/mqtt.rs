//! One attempt at a topic of an MQTT 5 broker: published with quality of service 1 or 2, and taken once the broker has
//! acknowledged it.
//!
//! Source: MQTT 5.0, and CloudEvents' binding for it in binary mode: attributes are user properties by their bare names,
//! the payload is the payload.

use std::future::Ready;
use std::io;
use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{
    ConnectReturnCode, Packet, PubAckReason, PubCompReason, PubRecReason, Publish, PublishProperties,
};
use rumqttc::{
    AsyncClient, Broker as Address, ConnectionError, Event, EventLoop, MqttOptions, PublishNoticeError,
    PublishOptions, PublishResult,
};
use tokio_util::task::AbortOnDropHandle;

use super::Outcome;
use super::broker::{Broker, Message, NotConnected};
use super::dial::{Dialer, Io};
use crate::model::place::Mqtt;
use crate::model::timer::AttemptResult;

/// How often the client asks a broker that is silent whether it is there, in seconds.
pub(super) const KEEP_ALIVE: u16 = 6;

/// The most events that wait for the client. How many are under way at once, the broker says.
pub(super) const WAITING: usize = 256;

/// A connection to a broker, for one topic.
pub struct Connection {
    client: AsyncClient,
    /// Reads and writes it; ends with it.
    driver: AbortOnDropHandle<()>,
    place: Mqtt,
    /// The largest packet that the broker takes, in bytes.
    largest: Option<u32>,
}

impl Connection {
    /// Connects and logs in.
    pub async fn open(place: &Mqtt, dialer: &Dialer) -> Result<Self, NotConnected> {
        let connect = only_this(dialer.open(&place.url).await?);
        let mut options = MqttOptions::new(client_id(), Address::tcp(place.url.host(), place.url.port()));
        options.set_keep_alive(KEEP_ALIVE).set_clean_start(true).set_socket_connector(move |_, _| connect());
        match (place.url.user(), place.url.password()) {
            (Some(user), Some(password)) => drop(options.set_credentials(user, password)),
            (Some(user), None) => drop(options.set_username(user)),
            (None, Some(password)) => drop(options.set_password(password)),
            (None, None) => {}
        }
        let built = AsyncClient::builder(options).capacity(WAITING).try_build();
        let (client, mut events) = built.map_err(|why| NotConnected::Refused(why.to_string()))?;
        let largest = greeted(&mut events).await?;
        Ok(Self {
            client,
            driver: AbortOnDropHandle::new(tokio::spawn(drive(events))),
            place: place.clone(),
            largest,
        })
    }

    /// Whether the broker would close the connection over an event of this size.
    fn is_too_large(&self, event: &Publish) -> Option<Outcome> {
        // The packet's number takes two bytes, its length may take three more.
        let (bytes, largest) = (event.size() + 5, self.largest? as usize);
        (bytes > largest).then(|| {
            let detail = format!("{bytes} bytes; the broker takes at most {largest} (maximum packet size)");
            Outcome { gone: true, ..Outcome::without_answer(AttemptResult::Failed, Some(detail)) }
        })
    }

    fn qos(&self) -> QoS {
        if self.place.qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce }
    }
}

/// The way to a connection that is made already. The client asks once: after an error it is left alone.
pub(super) fn only_this(io: Box<dyn Io>) -> impl Fn() -> Ready<io::Result<Box<dyn Io>>> {
    let io = Mutex::new(Some(io));
    move || {
        let io = io.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::future::ready(io.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    }
}

/// A name that no other client has.
pub(super) fn client_id() -> String {
    format!("mainspring-{}", uuid::Uuid::now_v7().simple())
}

impl Broker for Connection {
    fn publish<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Outcome> {
        async move {
            let (topic, body) = (self.place.topic.as_str(), message.body.clone());
            let properties = properties(message);
            let event = Publish::new(topic, self.qos(), body, Some(properties.clone()));
            if let Some(outcome) = self.is_too_large(&event) {
                return outcome;
            }
            let options = PublishOptions::new(self.qos()).properties(properties);
            match self.client.publish_tracked(topic, event.payload, options).await {
                Ok(notice) => answered(notice.wait_async().await, topic),
                Err(_) => {
                    let detail = "the connection has ended before the event was sent";
                    Outcome::without_answer(AttemptResult::Refused, Some(detail.into()))
                }
            }
        }
        .boxed()
    }

    fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }
}

/// Waits until the broker lets the client in. Returns the largest packet that it takes.
async fn greeted(events: &mut EventLoop) -> Result<Option<u32>, NotConnected> {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(answer))) => {
                return Ok(answer.properties.and_then(|properties| properties.max_packet_size));
            }
            Ok(_) => {}
            Err(why) => return Err(not_connected(&why)),
        }
    }
}

/// Moves what there is to send and to read. After an error it does not connect again: what was under way is then unknown.
async fn drive(mut events: EventLoop) {
    while events.poll().await.is_ok() {}
}

fn properties(message: &Message) -> PublishProperties {
    let attributes = message.attributes.iter();
    PublishProperties {
        content_type: Some("application/json".into()),
        user_properties: attributes.map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        ..PublishProperties::default()
    }
}

fn answered(answer: Result<PublishResult, PublishNoticeError>, topic: &str) -> Outcome {
    let reason = match answer {
        Ok(PublishResult::Qos1(ack)) if ack.reason == PubAckReason::Success => None,
        Ok(PublishResult::Qos2Completed(done)) if done.reason == PubCompReason::Success => None,
        Ok(PublishResult::Qos1(ack)) => Some(format!("{:?}", ack.reason)),
        Ok(PublishResult::Qos2PubRecRejected(rec)) => Some(format!("{:?}", rec.reason)),
        Err(PublishNoticeError::V5PubAck(reason)) => Some(format!("{reason:?}")),
        Err(PublishNoticeError::V5PubRec(reason)) => Some(format!("{reason:?}")),
        Ok(PublishResult::Qos2Completed(_) | PublishResult::Qos0Flushed) | Err(_) => {
            let detail = "the connection broke before an acknowledgement came";
            return Outcome::without_answer(AttemptResult::Unknown, Some(detail.into()));
        }
    };
    let Some(reason) = reason else { return Outcome::without_answer(AttemptResult::Ok, None) };
    let nobody = format!("{:?}", PubRecReason::NoMatchingSubscribers);
    let detail = match reason {
        reason if reason == nobody => format!("nobody subscribes to `{topic}`, and the broker dropped it"),
        reason => format!("the broker refused it: {reason}"),
    };
    Outcome::without_answer(AttemptResult::Failed, Some(detail))
}

fn not_connected(why: &ConnectionError) -> NotConnected {
    match why {
        ConnectionError::ConnectionRefused(
            ConnectReturnCode::ServerUnavailable
            | ConnectReturnCode::ServiceUnavailable
            | ConnectReturnCode::ServerBusy,
        ) => NotConnected::NotReached(format!("no connection: {why}")),
        ConnectionError::ConnectionRefused(code) => {
            NotConnected::NotAllowed(format!("the broker does not let this node in: {code:?}"))
        }
        _ => NotConnected::NotReached(format!("no connection: {why}")),
    }
}
