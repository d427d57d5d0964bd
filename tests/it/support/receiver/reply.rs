//! What the receiver answers, well or badly.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::stream;
use http::Response;
use tokio::sync::watch;

use super::Received;

const MIB: usize = 1 << 20;
const GIANT_MIB: usize = 50;
const DRIP_BYTES: u32 = 600;

/// Tells the HTTP server to close the connection; the sender sees no answer.
#[derive(Debug)]
pub struct ConnectionClosed;

impl fmt::Display for ConnectionClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("closed on purpose")
    }
}

impl std::error::Error for ConnectionClosed {}

/// One answer, or the refusal to give one.
#[derive(Clone, Debug)]
pub struct Reply {
    kind: Kind,
    after: Duration,
    until: Option<watch::Receiver<bool>>,
}

#[derive(Clone, Debug)]
enum Kind {
    Answer { status: u16, headers: Vec<(String, String)>, body: Bytes },
    Drip,
    Giant,
    Hang,
    Close,
}

impl Reply {
    /// An empty answer with this status.
    pub fn status(status: u16) -> Self {
        Self::kind(Kind::Answer { status, headers: Vec::new(), body: Bytes::new() })
    }

    pub fn ok() -> Self {
        Self::status(200)
    }

    /// 200 at once, then a byte a second.
    pub fn drip() -> Self {
        Self::kind(Kind::Drip)
    }

    /// 200 and a body of 50 MiB.
    pub fn giant() -> Self {
        Self::kind(Kind::Giant)
    }

    /// No answer until the receiver goes or the sender gives up.
    pub fn hang() -> Self {
        Self::kind(Kind::Hang)
    }

    /// Closes the connection instead of answering.
    pub fn close() -> Self {
        Self::kind(Kind::Close)
    }

    /// One more header; only for an answer made with a status.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match &mut self.kind {
            Kind::Answer { headers, .. } => headers.push((name.to_owned(), value.to_owned())),
            other => panic!("{other:?} has no headers to set"),
        }
        self
    }

    /// The body; only for an answer made with a status.
    pub fn body(mut self, bytes: impl Into<Bytes>) -> Self {
        match &mut self.kind {
            Kind::Answer { body, .. } => *body = bytes.into(),
            other => panic!("{other:?} has no body to set"),
        }
        self
    }

    /// The same, after a pause.
    pub fn after(mut self, pause: Duration) -> Self {
        self.after = pause;
        self
    }

    /// The same, once `released` shows true.
    pub fn until(mut self, released: watch::Receiver<bool>) -> Self {
        self.until = Some(released);
        self
    }

    fn kind(kind: Kind) -> Self {
        Self { kind, after: Duration::ZERO, until: None }
    }

    pub(super) async fn send(self) -> Result<Response<Body>, ConnectionClosed> {
        if !self.after.is_zero() {
            tokio::time::sleep(self.after).await;
        }
        if let Some(mut released) = self.until {
            // A test that is over releases nothing any more.
            released.wait_for(|released| *released).await.map_err(|_| ConnectionClosed)?;
        }
        match self.kind {
            Kind::Answer { status, headers, body } => {
                let mut response = Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(name, value);
                }
                Ok(response.body(Body::from(body)).expect("the test gave a valid status and headers"))
            }
            Kind::Drip => Ok(Response::new(Body::from_stream(stream::unfold(0, drop_of)))),
            Kind::Giant => {
                let block = Bytes::from(vec![b'x'; MIB]);
                let blocks = (0..GIANT_MIB).map(move |_| Ok::<_, Infallible>(block.clone()));
                Ok(Response::new(Body::from_stream(stream::iter(blocks))))
            }
            Kind::Hang => std::future::pending().await,
            Kind::Close => Err(ConnectionClosed),
        }
    }
}

async fn drop_of(sent: u32) -> Option<(Result<Bytes, Infallible>, u32)> {
    if sent == DRIP_BYTES {
        return None;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    Some((Ok(Bytes::from_static(b".")), sent + 1))
}

/// What the receiver's own paths do. `flaky` counts requests by path and timer.
pub(super) fn built_in(
    received: &Received,
    query: &str,
    flaky: &Mutex<HashMap<(String, String), u32>>,
) -> Reply {
    let mut parts = received.path.trim_start_matches('/').splitn(2, '/');
    let name = parts.next().unwrap_or_default();
    let number = parts.next().and_then(|part| part.parse::<u32>().ok());
    match (name, number) {
        ("ok", None) => Reply::ok(),
        ("slow", Some(ms)) => Reply::ok().after(Duration::from_millis(ms.into())),
        ("status", Some(code)) => {
            let reply = Reply::status(u16::try_from(code).expect("an HTTP status"));
            match query.split('&').find_map(|pair| pair.strip_prefix("retry_after=")) {
                Some(value) => reply.header("retry-after", value),
                None => reply,
            }
        }
        ("hang", None) => Reply::hang(),
        ("drip", None) => Reply::drip(),
        ("giant", None) => Reply::giant(),
        ("redirect", None) => Reply::status(302).header("location", "/ok"),
        ("flaky", Some(failures)) => {
            let mut counts = flaky.lock().expect("nothing panics while it holds this lock");
            let count = counts.entry((received.path.clone(), received.timer.clone())).or_default();
            *count += 1;
            Reply::status(if *count <= failures { 500 } else { 200 })
        }
        ("close", None) => Reply::close(),
        _ => Reply::status(404),
    }
}
