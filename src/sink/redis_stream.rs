//! One attempt at a Redis stream: `XADD`, with an attribute a field and the payload in `data`.
//!
//! Source of the field names: CloudEvents has no binding for Redis; these are its attributes by their bare names.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, ready};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    self, AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError, ServerErrorKind,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::task::AbortOnDropHandle;

use super::Outcome;
use super::broker::{Broker, Message, NotConnected};
use super::dial::Dialer;
use crate::model::place::RedisStream;
use crate::model::timer::AttemptResult;

/// Bytes that an answer to one command may have. The right ones have 30, errors seldom more than 200.
const MOST_OF_ONE: i64 = 1024;

/// Bytes that may come before the first command, and at most in one go: the client would take an answer of gigabytes into memory.
const MOST_AT_FIRST: i64 = 64 * 1024;
const MOST_AT_ONCE: i64 = 4 * 1024 * 1024;

/// A connection to a Redis, for one stream.
pub struct Connection {
    redis: MultiplexedConnection,
    /// How many bytes may come yet.
    room: Arc<AtomicI64>,
    /// Reads and writes it; ends with it.
    driver: AbortOnDropHandle<()>,
    place: RedisStream,
}

impl Connection {
    /// Connects and logs in.
    pub async fn open(place: &RedisStream, dialer: &Dialer) -> Result<Self, NotConnected> {
        let room = Arc::new(AtomicI64::new(MOST_AT_FIRST));
        let io = Bounded { io: dialer.open(&place.url).await?, room: Arc::clone(&room) };
        let mut info = RedisConnectionInfo::default().set_db(place.database()).set_skip_set_lib_name();
        if let Some(user) = place.url.user() {
            info = info.set_username(user);
        }
        if let Some(password) = place.url.password() {
            info = info.set_password(password);
        }
        // The attempt has a time limit of its own. With one here an entry that was added would be taken for a failure.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let opened = MultiplexedConnection::new_with_config(&info, io, config).await;
        let (redis, driver) = opened.map_err(|why| not_connected(&why))?;
        let driver = AbortOnDropHandle::new(tokio::spawn(driver));
        let mut connection = Self { redis, room, driver, place: place.clone() };
        connection.greet().await?;
        Ok(connection)
    }

    /// Asks whether it is let in. Without a password nothing was asked yet, and a long command of somebody who should
    /// have given one is answered as if it were garbled.
    async fn greet(&mut self) -> Result<(), NotConnected> {
        match redis::cmd("PING").query_async::<()>(&mut self.redis).await {
            Err(why) if !matches!(why.kind(), ErrorKind::Server(ServerErrorKind::NoPerm)) => {
                Err(not_connected(&why))
            }
            _ => Ok(()),
        }
    }

    fn command(&self, message: &Message) -> redis::Cmd {
        let mut command = redis::cmd("XADD");
        command.arg(&self.place.stream);
        if let Some(max_len) = self.place.max_len {
            command.arg("MAXLEN").arg("~").arg(max_len);
        }
        command.arg("*");
        for (name, value) in &message.attributes {
            command.arg(name).arg(value);
        }
        command.arg("datacontenttype").arg("application/json").arg("data").arg(&message.body);
        command
    }

    fn failed(&self, why: &RedisError) -> Outcome {
        let stream = &self.place.stream;
        let detail = match (why.kind(), why.code()) {
            (_, Some("WRONGTYPE")) => format!("the key `{stream}` holds something else than a stream"),
            (_, Some("OOM")) => "Redis has no memory left for it (maxmemory)".to_owned(),
            (ErrorKind::Server(ServerErrorKind::NoPerm), _) => {
                format!("the user of the URL may not XADD to `{stream}`: {}", told(why))
            }
            (ErrorKind::Server(ServerErrorKind::ReadOnly), _) => {
                "this Redis is a replica; give the address of its master".to_owned()
            }
            (ErrorKind::Server(ServerErrorKind::Moved), _) => format!(
                "the stream `{stream}` is on another node of the cluster; give that node's address ({})",
                told(why)
            ),
            _ => format!("Redis answered: {}", told(why)),
        };
        Outcome::without_answer(AttemptResult::Failed, Some(detail))
    }
}

impl Broker for Connection {
    fn publish<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Outcome> {
        let (mut redis, command) = (self.redis.clone(), self.command(message));
        let one_more = |room: i64| Some((room + MOST_OF_ONE).min(MOST_AT_ONCE));
        let _ = self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        async move {
            match command.query_async::<String>(&mut redis).await {
                Ok(entry) => {
                    Outcome { reply: Some(entry), ..Outcome::without_answer(AttemptResult::Ok, None) }
                }
                Err(why) if matches!(why.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
                    self.failed(&why)
                }
                Err(why) => {
                    let detail = format!("the connection broke before an answer came: {why}");
                    Outcome::without_answer(AttemptResult::Unknown, Some(detail))
                }
            }
        }
        .boxed()
    }

    fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }
}

/// A connection on which only so many bytes may come. It breaks at more.
struct Bounded<I> {
    io: I,
    room: Arc<AtomicI64>,
}

impl<I: AsyncRead + Unpin> AsyncRead for Bounded<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        let came = i64::try_from(buffer.filled().len() - before).unwrap_or(i64::MAX);
        match self.room.fetch_sub(came, Ordering::Relaxed) < came {
            true => Poll::Ready(Err(io::Error::other("it answers more than it was asked"))),
            false => Poll::Ready(Ok(())),
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Bounded<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

fn not_connected(why: &RedisError) -> NotConnected {
    match why.is_io_error() || why.is_connection_dropped() {
        true => NotConnected::NotReached(format!("no connection: {why}")),
        false => NotConnected::NotAllowed(format!("Redis does not let this node in: {}", told(why))),
    }
}

/// What Redis said, without the client's own words around it.
fn told(why: &RedisError) -> String {
    let text = match (why.code(), why.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => why.to_string(),
    };
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_connection_breaks_at_more_bytes_than_there_may_be() {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let mut bounded = Bounded { io: ours, room: Arc::new(AtomicI64::new(10_000)) };
        let sends = tokio::spawn(async move { while theirs.write_all(&[b'x'; 100]).await.is_ok() {} });
        let (mut read, mut buffer) = (0, [0; 1000]);
        let why = loop {
            match bounded.read(&mut buffer).await {
                Ok(bytes) => read += bytes,
                Err(why) => break why,
            }
        };
        assert!((9_000..=10_000).contains(&read), "{read}");
        assert!(why.to_string().contains("more than it was asked"), "{why}");
        drop(bounded);
        sends.await.expect("ends");
    }
}
