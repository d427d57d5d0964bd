//! The brokers of a drill: one of each kind, a destination at each, and somebody who reads what comes there.
//!
//! What a broker has counts as accepted: it is read with the attributes that came, whoever sent it and however late it is
//! read. A reader connects anew for as long as it takes.

#[cfg(feature = "amqp")]
mod amqp;
mod jetstream;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "mqtt")]
mod mqtt;
mod redis_stream;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::future::{BoxFuture, try_join_all};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::history::{Arrival, Recorder};
use super::receiver::arrival;
use crate::clock::wall_us;
use crate::tools::brokers::{Broker, Kind};

/// Those that a drill can have, in the order of its faults: the one that takes longest to start comes last.
pub const KINDS: [Kind; 5] = [Kind::RedisStream, Kind::Jetstream, Kind::Mqtt, Kind::Kafka, Kind::Amqp];

/// How long an attempt at a broker may take: not as long as a broker stands still.
pub const TIMEOUT_MS: i64 = 3000;

/// How often is looked for what has come.
const LOOK: Duration = Duration::from_millis(20);
/// How long one look may take; a broker that stands still answers nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// What stands for a receiver's answer: it has come.
const TAKEN: u16 = 204;

/// Brokers, their destinations and their readers. They end when dropped.
#[derive(Default)]
pub struct Brokers {
    reading: Vec<AbortOnDropHandle<()>>,
    all: Vec<Broker>,
}

impl Brokers {
    /// Starts one of each kind, all at once, in directories within `dir`.
    pub async fn start(kinds: &[Kind], dir: &Path) -> anyhow::Result<Self> {
        let start = |kind: &Kind| {
            let (kind, dir) = (*kind, dir.join(kind.word()));
            async move { Broker::start(kind, &dir).await.with_context(|| format!("a broker for {}", kind.word())) }
        };
        Ok(Self { reading: Vec::new(), all: try_join_all(kinds.iter().map(start)).await? })
    }

    /// The names and the bodies of their destinations.
    pub fn destinations(&self) -> Vec<(String, Value)> {
        let one = |broker: &Broker| {
            let mut body = broker.place.clone();
            body["timeout"] = json!(format!("PT{}S", TIMEOUT_MS as f64 / 1000.0));
            (format!("drill-{}", broker.kind.word()), body)
        };
        self.all.iter().map(one).collect()
    }

    /// Notes what comes from now on in `recorder`.
    pub async fn read(&mut self, recorder: &Arc<Recorder>) -> anyhow::Result<()> {
        for broker in &self.all {
            let reader =
                reader(broker).await.with_context(|| format!("{} is not read", broker.kind.word()))?;
            let task = read_on(reader, broker.kind, Arc::clone(recorder));
            self.reading.push(AbortOnDropHandle::new(tokio::spawn(task)));
        }
        Ok(())
    }

    /// The one of a kind. Fails when there is none.
    pub fn of(&mut self, kind: Kind) -> anyhow::Result<&mut Broker> {
        let found = self.all.iter_mut().find(|broker| broker.kind == kind);
        found.with_context(|| format!("there is no broker for {}", kind.word()))
    }
}

/// One event as it came.
struct Event {
    /// The CloudEvents attributes by their bare names.
    attributes: HashMap<String, String>,
    /// It may have been read before: the broker did not learn that it was, or says so.
    again: bool,
}

/// Reads the place of one broker.
trait Reader: Send {
    /// Adds what is there and was not read yet. After an error, or when the future is dropped, the next call connects anew.
    fn read<'a>(&'a mut self, into: &'a mut Vec<Event>) -> BoxFuture<'a, anyhow::Result<()>>;
}

async fn reader(broker: &Broker) -> anyhow::Result<Box<dyn Reader>> {
    Ok(match broker.kind {
        Kind::RedisStream => Box::new(redis_stream::Stream::of(broker.address()?)?),
        Kind::Jetstream => Box::new(jetstream::Stream::of(broker.address()?)),
        #[cfg(feature = "amqp")]
        Kind::Amqp => Box::new(amqp::Queue::of(&broker.place)?),
        #[cfg(feature = "mqtt")]
        Kind::Mqtt => Box::new(mqtt::Topic::of(broker.address()?).await?),
        #[cfg(feature = "kafka")]
        Kind::Kafka => Box::new(kafka::Topic::of(broker.address()?)?),
        kind => bail!("a drill cannot read {}", kind.word()),
    })
}

async fn read_on(mut reader: Box<dyn Reader>, kind: Kind, recorder: Arc<Recorder>) {
    let (mut events, mut seen) = (Vec::new(), HashSet::new());
    loop {
        // What fails is tried again.
        let _ = tokio::time::timeout(PATIENCE, reader.read(&mut events)).await;
        let at_us = wall_us();
        for event in events.drain(..) {
            let text = |name: &str| event.attributes.get(name).map(String::as_str).unwrap_or_default();
            let came = Arrival { broker: Some(kind), replied: Some(TAKEN), ..arrival(text, at_us) };
            let is_new = seen.insert((came.timer, came.delivery, came.attempt));
            if is_new || !event.again {
                recorder.arrived(vec![came]);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
