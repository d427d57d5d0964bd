//! Reads a stream of Redis, entry by entry.

use std::collections::HashMap;
use std::net::SocketAddr;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, AsyncConnectionConfig, Client};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Event, Reader};
use crate::tools::brokers::NAME;

/// The most entries that are read at once.
const ENTRIES: usize = 1000;

pub struct Stream {
    client: Client,
    connection: Option<MultiplexedConnection>,
    /// The last entry that was read.
    last: String,
}

impl Stream {
    pub fn of(address: SocketAddr) -> anyhow::Result<Self> {
        let client = Client::open(format!("redis://{address}"))?;
        Ok(Self { client, connection: None, last: "0-0".to_owned() })
    }
}

impl Reader for Stream {
    fn read<'a>(&'a mut self, into: &'a mut Vec<Event>) -> BoxFuture<'a, anyhow::Result<()>> {
        async move {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => {
                    let config = AsyncConnectionConfig::new().set_response_timeout(None);
                    self.client.get_multiplexed_async_connection_with_config(&config).await?
                }
            };
            let mut command = redis::cmd("XRANGE");
            command.arg(NAME).arg(format!("({}", self.last)).arg("+").arg("COUNT").arg(ENTRIES);
            let entries: Vec<(String, HashMap<String, String>)> =
                command.query_async(&mut connection).await?;
            for (entry, attributes) in entries {
                self.last = entry;
                into.push(Event { attributes, again: false });
            }
            self.connection = Some(connection);
            Ok(())
        }
        .boxed()
    }
}
