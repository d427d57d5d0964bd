//! Reads a topic of Kafka from its beginning. It belongs to no group, so nothing is given back or taken over.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use super::{Event, Reader};
use crate::tools::brokers::{NAME, PARTITIONS};

/// Nothing came for so long: there is nothing more.
const SILENCE: Duration = Duration::from_millis(20);

pub struct Topic {
    // It connects anew by itself.
    consumer: StreamConsumer,
}

impl Topic {
    pub fn of(address: SocketAddr) -> anyhow::Result<Self> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", address.to_string()).set("group.id", "drill");
        config.set("enable.auto.commit", "false").set("reconnect.backoff.max.ms", "500");
        let consumer: StreamConsumer = config.create()?;
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            all.add_partition_offset(NAME, i32::try_from(partition)?, Offset::Beginning)?;
        }
        consumer.assign(&all)?;
        Ok(Self { consumer })
    }
}

impl Reader for Topic {
    fn read<'a>(&'a mut self, into: &'a mut Vec<Event>) -> BoxFuture<'a, anyhow::Result<()>> {
        async move {
            while let Ok(message) = tokio::time::timeout(SILENCE, self.consumer.recv()).await {
                into.push(Event { attributes: attributes(&message?), again: false });
            }
            Ok(())
        }
        .boxed()
    }
}

fn attributes(message: &BorrowedMessage<'_>) -> HashMap<String, String> {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    let one = |header: rdkafka::message::Header<'_, &[u8]>| {
        let value = String::from_utf8_lossy(header.value?).into_owned();
        Some((header.key.strip_prefix("ce_")?.to_owned(), value))
    };
    headers.filter_map(one).collect()
}
