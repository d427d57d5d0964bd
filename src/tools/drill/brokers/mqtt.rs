//! Reads a topic of an MQTT broker, as a subscriber whose session outlives its connection.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::Packet;
use rumqttc::{AsyncClient, Broker as Address, Event as Said, EventLoop, MqttOptions};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{Event, Reader};
use crate::tools::brokers::NAME;
use crate::tools::servers::Mosquitto;

/// Longer than a broker stands still, in seconds.
const KEEP_ALIVE: u16 = 60;
/// How long its session is kept without a connection, in seconds.
const SESSION: u32 = 600;
/// The wait before it connects again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the broker may take to let it subscribe.
const START: Duration = Duration::from_secs(10);

pub struct Topic {
    came: mpsc::UnboundedReceiver<Event>,
    _client: AsyncClient,
    _driver: AbortOnDropHandle<()>,
}

impl Topic {
    /// Subscribes.
    pub async fn of(address: SocketAddr) -> anyhow::Result<Self> {
        let mut options = MqttOptions::new("drill", Address::tcp(address.ip().to_string(), address.port()));
        options.set_keep_alive(KEEP_ALIVE).set_clean_start(false);
        options.set_session_expiry_interval(Some(SESSION));
        options.set_credentials(Mosquitto::USER, Mosquitto::PASSWORD);
        let (client, mut events) = AsyncClient::builder(options).capacity(16).try_build()?;
        client.subscribe(NAME, QoS::AtLeastOnce).await?;
        let subscribed = async {
            while !matches!(events.poll().await?, Said::Incoming(Packet::SubAck(_))) {}
            anyhow::Ok(())
        };
        tokio::time::timeout(START, subscribed).await.context("no answer to the subscription")??;
        let (to, came) = mpsc::unbounded_channel();
        let driver = AbortOnDropHandle::new(tokio::spawn(drive(events, to)));
        Ok(Self { came, _client: client, _driver: driver })
    }
}

async fn drive(mut events: EventLoop, to: mpsc::UnboundedSender<Event>) {
    loop {
        match events.poll().await {
            Ok(Said::Incoming(Packet::Publish(publish))) => {
                let properties = publish.properties.map(|properties| properties.user_properties);
                let attributes = properties.unwrap_or_default().into_iter().collect();
                if to.send(Event { attributes, again: publish.dup }).is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

impl Reader for Topic {
    fn read<'a>(&'a mut self, into: &'a mut Vec<Event>) -> BoxFuture<'a, anyhow::Result<()>> {
        async move {
            while let Ok(event) = self.came.try_recv() {
                into.push(event);
            }
            Ok(())
        }
        .boxed()
    }
}
