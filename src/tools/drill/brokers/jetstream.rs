//! Reads a stream of JetStream, message by message.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{Event, Reader};
use crate::tools::brokers::{ApiError, NatsClient};

pub struct Stream {
    address: SocketAddr,
    client: Option<NatsClient>,
    /// The number of the message to read next.
    next: u64,
}

impl Stream {
    pub const fn of(address: SocketAddr) -> Self {
        Self { address, client: None, next: 1 }
    }
}

impl Reader for Stream {
    fn read<'a>(&'a mut self, into: &'a mut Vec<Event>) -> BoxFuture<'a, anyhow::Result<()>> {
        async move {
            let mut client = match self.client.take() {
                Some(client) => client,
                None => NatsClient::connect(self.address).await?,
            };
            loop {
                match client.api("STREAM.MSG.GET", &json!({"seq": self.next})).await {
                    Ok(answer) => into.push(Event { attributes: attributes(&answer)?, again: false }),
                    Err(why) if why.downcast_ref().is_some_and(ApiError::is_not_found) => break,
                    Err(why) => return Err(why),
                }
                self.next += 1;
            }
            self.client = Some(client);
            Ok(())
        }
        .boxed()
    }
}

/// The attributes of a stored message: it is an event in JSON.
fn attributes(answer: &Value) -> anyhow::Result<HashMap<String, String>> {
    let event = answer["message"]["data"].as_str().context("a message without data")?;
    let event: HashMap<String, Value> = serde_json::from_slice(&STANDARD.decode(event)?)?;
    let one = |(name, value): (String, Value)| Some((name, value.as_str()?.to_owned()));
    Ok(event.into_iter().filter_map(one).collect())
}
