//! One attempt at a topic of an MQTT 3.1.1 broker: published with quality of service 1 or 2, and taken once the broker has
//! acknowledged it. One structured CloudEvent is the payload, because a message has no room for attributes.
//!
//! The acknowledgements of this version refuse nothing. A broker that does not take an event closes the connection, or
//! acknowledges the event and drops it.
//!
//! Source: MQTT 3.1.1, and CloudEvents' binding for it in structured mode.

use futures::FutureExt;
use futures::future::BoxFuture;
use rumqttc3::mqttbytes::QoS;
use rumqttc3::mqttbytes::v4::Packet;
use rumqttc3::{
    AsyncClient, Broker as Address, ConnectReturnCode, ConnectionError, Event, EventLoop, MqttOptions,
    PublishOptions,
};
use tokio::task::JoinHandle;

use super::broker::{Broker, Message, NotConnected};
use super::dial::Dialer;
use super::mqtt::{KEEP_ALIVE, WAITING, client_id, only_this};
use super::{Outcome, event};
use crate::model::place::Mqtt;
use crate::model::timer::AttemptResult;

/// The largest packet of the protocol, in bytes. What a broker takes, this version does not say.
const LARGEST: usize = 268_435_455;

/// The same for what the broker sends: it is asked for nothing.
const LARGEST_ANSWER: usize = 64 * 1024;

/// The most events that are under way at once: this version says nothing of that, either.
const IN_FLIGHT: u16 = 256;

/// A connection to a broker, for one topic.
pub struct Connection {
    client: AsyncClient,
    /// Reads and writes it; ends with it.
    driver: JoinHandle<()>,
    topic: String,
    qos: QoS,
}

impl Connection {
    /// Connects and logs in.
    pub async fn open(place: &Mqtt, dialer: &Dialer) -> Result<Self, NotConnected> {
        let connect = only_this(dialer.open(&place.url).await?);
        let mut options = MqttOptions::new(client_id(), Address::tcp(place.url.host(), place.url.port()));
        options.set_keep_alive(KEEP_ALIVE).set_clean_session(true).set_inflight(IN_FLIGHT);
        options.set_max_packet_size(LARGEST_ANSWER, LARGEST).set_socket_connector(move |_, _| connect());
        match (place.url.user(), place.url.password()) {
            (Some(user), Some(password)) => drop(options.set_credentials(user, password)),
            (Some(user), None) => drop(options.set_username(user)),
            // The protocol has no password without a user.
            (None, Some(password)) => drop(options.set_credentials("", password)),
            (None, None) => {}
        }
        let built = AsyncClient::builder(options).capacity(WAITING).try_build();
        let (client, mut events) = built.map_err(|why| NotConnected::Refused(why.to_string()))?;
        greeted(&mut events).await?;
        // After an error it does not connect again: what was under way is then unknown.
        let driver = tokio::spawn(async move { while events.poll().await.is_ok() {} });
        let qos = if place.qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        Ok(Self { client, driver, topic: place.topic.clone(), qos })
    }
}

impl Broker for Connection {
    fn publish<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Outcome> {
        async move {
            let body = event::structured(&message.attributes, &message.body);
            let options = PublishOptions::new(self.qos);
            let Ok(notice) = self.client.publish_tracked(self.topic.as_str(), body, options).await else {
                let detail = "the connection has ended before the event was sent";
                return Outcome::without_answer(AttemptResult::Refused, Some(detail.into()));
            };
            match notice.wait_async().await {
                Ok(_) => Outcome::without_answer(AttemptResult::Ok, None),
                Err(_) => {
                    let detail = "the connection broke before an acknowledgement came (as when the event is too large for \
                                  the broker, or may not be published: MQTT 3.1.1 does not say)";
                    Outcome::without_answer(AttemptResult::Unknown, Some(detail.into()))
                }
            }
        }
        .boxed()
    }

    fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Waits until the broker lets the client in.
async fn greeted(events: &mut EventLoop) -> Result<(), NotConnected> {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => return Ok(()),
            Ok(_) => {}
            Err(ConnectionError::ConnectionRefused(code))
                if code != ConnectReturnCode::ServiceUnavailable =>
            {
                let detail = format!("the broker does not let this node in: {code:?}");
                return Err(NotConnected::NotAllowed(detail));
            }
            Err(why) => return Err(NotConnected::NotReached(format!("no connection: {why}"))),
        }
    }
}
