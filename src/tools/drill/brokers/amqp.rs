//! Reads a queue of RabbitMQ, and takes from it what was read.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use lapin::options::{BasicAckOptions, BasicGetOptions};
use lapin::types::AMQPValue;
use lapin::{BasicProperties, Channel, Connection};
use serde_json::Value;

use super::{Event, Reader};
use crate::config::Config;
use crate::model::place::Place;
use crate::sink;
use crate::tools::brokers::NAME;

pub struct Queue {
    config: Arc<Config>,
    place: Place,
    connection: Option<(Connection, Channel)>,
    /// How many connections there were: after the first, what comes may have come before.
    connections: u32,
}

impl Queue {
    pub fn of(place: &Value) -> anyhow::Result<Self> {
        let place = serde_json::from_value(place.clone()).context("the place")?;
        Ok(Self { config: Arc::default(), place, connection: None, connections: 0 })
    }
}

impl Reader for Queue {
    fn read<'a>(&'a mut self, into: &'a mut Vec<Event>) -> BoxFuture<'a, anyhow::Result<()>> {
        async move {
            let (connection, channel) = match self.connection.take() {
                Some(there) => there,
                None => {
                    let connection = sink::amqp_connection(&self.config, &self.place).await?;
                    let channel = connection.create_channel().await?;
                    self.connections += 1;
                    (connection, channel)
                }
            };
            while let Some(got) = channel.basic_get(NAME.into(), BasicGetOptions::default()).await? {
                let again = got.delivery.redelivered || self.connections > 1;
                into.push(Event { attributes: attributes(&got.delivery.properties), again });
                got.delivery.acker.ack(BasicAckOptions::default()).await?;
            }
            self.connection = Some((connection, channel));
            Ok(())
        }
        .boxed()
    }
}

fn attributes(properties: &BasicProperties) -> HashMap<String, String> {
    let one = |(name, value): (&lapin::types::ShortString, &AMQPValue)| match value {
        AMQPValue::LongString(text) => {
            Some((name.as_str().strip_prefix("cloudEvents:")?.to_owned(), text.to_string()))
        }
        _ => None,
    };
    properties.headers().iter().flat_map(|headers| headers.inner().iter()).filter_map(one).collect()
}
