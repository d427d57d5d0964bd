//! The receivers of a drill: they stamp what comes, note it, and answer as their mood is.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::stream;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::history::{Arrival, Book, node_of};
use super::plan::{Mood, TIMEOUT_MS};
use crate::clock::wall_us;
use crate::model::time::UnixMs;

/// How long slow receivers take.
const SLOW: Duration = Duration::from_millis(300);
/// How long a grudging one takes for its refusal, and for its consent: a node that stood still wakes to the one
/// while another waits for the other.
const GRUDGE: [Duration; 2] = [Duration::from_millis(2000), Duration::from_millis(4000)];
/// What a giant answers with, in chunks of 64 KiB.
const GIANT: usize = 256;

/// Receivers on two loopback ports: the fine ones, and the others, so that the ones have a lane of their own.
/// They end when dropped.
pub struct Receivers {
    fine: SocketAddr,
    others: SocketAddr,
    serving: [JoinHandle<()>; 2],
}

impl Receivers {
    /// Listens, and writes into `book`.
    pub async fn start(book: Arc<Book>) -> anyhow::Result<Self> {
        let (fine, one) = serve(Arc::clone(&book)).await?;
        let (others, two) = serve(book).await?;
        Ok(Self { fine, others, serving: [one, two] })
    }

    /// Where a timer is to be delivered.
    pub fn url(&self, timer: u32, mood: Mood) -> String {
        let address = if mood == Mood::Fine { self.fine } else { self.others };
        format!("http://{address}/{}/{timer}", mood.letter())
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

async fn serve(book: Arc<Book>) -> anyhow::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port is free")?;
    let address = listener.local_addr()?;
    let app = Router::new()
        .route("/{mood}/{timer}", post(receive))
        .with_state(book)
        .into_make_service_with_connect_info::<SocketAddr>();
    let serving = tokio::spawn(async move {
        // It ends only with its task.
        let _ = axum::serve(listener, app).await;
    });
    Ok((address, serving))
}

async fn receive(
    State(book): State<Arc<Book>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    Path((mood, timer)): Path<(String, u32)>,
    headers: HeaderMap,
    _body: Bytes,
) -> Response {
    let at_us = wall_us();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    text("ce-id").hash(&mut hasher);
    let attempt = text("ce-attempt").parse().unwrap_or(0);
    let number = book.arrival(Arrival {
        timer,
        generation: text("ce-generation").parse().unwrap_or(0),
        attempt,
        delivery: hasher.finish(),
        due_ms: UnixMs::parse_rfc3339(text("ce-dueat")).map_or(0, UnixMs::get),
        node: node_of(from.ip()),
        at_us,
        replied: None,
        took_us: 0,
    });
    let first = attempt <= 1;
    let (wait, status) = match Mood::of(&mood).unwrap_or(Mood::Gone) {
        Mood::Slow => (SLOW, StatusCode::NO_CONTENT),
        Mood::Grudging if first => (GRUDGE[0], StatusCode::SERVICE_UNAVAILABLE),
        Mood::Grudging => (GRUDGE[1], StatusCode::NO_CONTENT),
        Mood::Moody if first => (Duration::ZERO, StatusCode::INTERNAL_SERVER_ERROR),
        Mood::Silent if first => {
            // Longer than anybody waits; the connection is closed from the other side.
            tokio::time::sleep(Duration::from_millis(TIMEOUT_MS * 4)).await;
            return StatusCode::NO_CONTENT.into_response();
        }
        Mood::Redirecting if first => (Duration::ZERO, StatusCode::FOUND),
        Mood::Refusing => (Duration::ZERO, StatusCode::INTERNAL_SERVER_ERROR),
        Mood::Gone => (Duration::ZERO, StatusCode::GONE),
        Mood::Dripping | Mood::Giant => (Duration::ZERO, StatusCode::OK),
        _ => (Duration::ZERO, StatusCode::NO_CONTENT),
    };
    tokio::time::sleep(wait).await;
    book.replied(number, status.as_u16(), wall_us() - at_us);
    match Mood::of(&mood) {
        Some(Mood::Dripping) => (status, Body::from_stream(drip())).into_response(),
        Some(Mood::Giant) => (status, Body::from_stream(flood())).into_response(),
        Some(Mood::Redirecting) if first => {
            (status, [(header::LOCATION, format!("/{}/{timer}", Mood::Fine.letter()))]).into_response()
        }
        _ => status.into_response(),
    }
}

/// A byte now and then, for longer than anybody waits.
fn drip() -> impl futures::Stream<Item = std::io::Result<Bytes>> {
    stream::unfold(0, |sent| async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        (sent < TIMEOUT_MS / 25).then_some((Ok(Bytes::from_static(b".")), sent + 1))
    })
}

fn flood() -> impl futures::Stream<Item = std::io::Result<Bytes>> {
    static CHUNK: [u8; 65_536] = [b'x'; 65_536];
    stream::iter((0..GIANT).map(|_| Ok(Bytes::from_static(&CHUNK))))
}
