//! The receivers of a drill: they note when each attempt comes, and answer by the behaviour that its path names.

mod gate;

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
use axum::serve::{Listener, ListenerExt};
use futures::stream;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::history::{
    Arrival, Micros, Occurrence, Reason, Recorder, ToldSkip, node_of, occurrence_id, schedule_of,
};
use super::load::number_of;
use super::plan::{Behaviour, TIMEOUT_MS};
use crate::clock::wall_us;
use crate::model::time::UnixMs;
pub use gate::Gate;

/// How long slow receivers take.
const SLOW: Duration = Duration::from_millis(300);
/// How long one that fails slowly takes for its failure, and then for its success: a node that stood still goes on
/// with the first while another waits for the second.
const SLOW_FAILURE: [Duration; 2] = [Duration::from_millis(2000), Duration::from_millis(4000)];
/// How many chunks of 64 KiB a huge answer has.
const HUGE_CHUNKS: usize = 256;

/// Connections that wait for a receiver of the crowd to take them.
const CROWD_BACKLOG: u32 = 4096;
/// How many receivers fall silent together.
const DISTANT: u32 = 200;
/// Connections that wait for a distant receiver to take them; few, so that the queue is soon full.
const DISTANT_BACKLOG: u32 = 16;

/// Receivers on loopback ports: one for those that accept at once, one for all others, so that the first have a lane of
/// their own, one for those that can fall silent and one for a crowd, each of which has its own address. They end when
/// dropped.
pub struct Receivers {
    accepting: SocketAddr,
    others: SocketAddr,
    distant: Gate,
    crowd: Gate,
    serving: [JoinHandle<()>; 4],
}

impl Receivers {
    /// Listens, and notes every arrival in `recorder`.
    pub async fn start(recorder: Arc<Recorder>) -> anyhow::Result<Self> {
        let (accepting, one) = bind(Arc::clone(&recorder)).await?;
        let (others, two) = bind(Arc::clone(&recorder)).await?;
        let (gated, distant) = gate::listen(DISTANT_BACKLOG).context("no port is free")?;
        let three = serve(gated, Arc::clone(&recorder));
        let (gated, crowd) = gate::listen(CROWD_BACKLOG).context("no port is free")?;
        let serving = [one, two, three, serve(gated, recorder)];
        Ok(Self { accepting, others, distant, crowd, serving })
    }

    /// The receivers that can fall silent.
    pub const fn distant(&self) -> &Gate {
        &self.distant
    }

    /// Where a timer is to be delivered.
    pub fn url(&self, timer: u32, behaviour: Behaviour) -> String {
        let address = match behaviour {
            Behaviour::Accepts => self.accepting,
            Behaviour::Distant => {
                let [.., high, low] = (timer % DISTANT + 1).to_be_bytes();
                SocketAddr::from(([127, 1, high, low], self.distant.port()))
            }
            Behaviour::Crowd | Behaviour::Kept => {
                let [_, high, middle, low] = timer.to_be_bytes();
                // Not among the distant ones, nor the addresses of nodes.
                SocketAddr::from(([127, high.saturating_add(128), middle, low], self.crowd.port()))
            }
            _ => self.others,
        };
        format!("http://{address}/{}/{timer}", behaviour.letter())
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

async fn bind(recorder: Arc<Recorder>) -> anyhow::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port is free")?;
    Ok((listener.local_addr()?, serve(listener, recorder)))
}

fn serve(listener: impl Listener<Addr = SocketAddr>, recorder: Arc<Recorder>) -> JoinHandle<()> {
    let app = Router::new()
        .route("/{behaviour}/{timer}", post(receive))
        .with_state(recorder)
        .into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move {
        // It ends only with its task. The tap does nothing; with it axum tells the address of any listener's peer.
        let _ = axum::serve(listener.tap_io(|_| {}), app).await;
    })
}

async fn receive(
    State(recorder): State<Arc<Recorder>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    Path((behaviour, timer)): Path<(String, u32)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let at_us = wall_us();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if text("ce-type") == SKIPPED {
        recorder.skipped(skip(text("ce-id"), &body, at_us).unwrap_or(ToldSkip::nonsense(at_us)));
        return StatusCode::NO_CONTENT.into_response();
    }
    let one = Arrival { node: node_of(from.ip()), ..arrival(|name| text(&format!("ce-{name}")), at_us) };
    let numbers = recorder.arrived(match text("ce-type") {
        MERGED => members(&body).map(|member| member.of(one)).collect(),
        _ => vec![one],
    });
    let first = one.attempt <= 1;
    let (wait, status) = match Behaviour::of(&behaviour).unwrap_or(Behaviour::Gone) {
        Behaviour::AcceptsSlowly => (SLOW, StatusCode::NO_CONTENT),
        Behaviour::FailsOnceSlowly if first => (SLOW_FAILURE[0], StatusCode::SERVICE_UNAVAILABLE),
        Behaviour::FailsOnceSlowly => (SLOW_FAILURE[1], StatusCode::NO_CONTENT),
        Behaviour::FailsOnce if first => (Duration::ZERO, StatusCode::INTERNAL_SERVER_ERROR),
        Behaviour::HangsOnce if first => {
            // Longer than a node waits; it closes the connection.
            tokio::time::sleep(Duration::from_millis(TIMEOUT_MS * 4)).await;
            return StatusCode::NO_CONTENT.into_response();
        }
        Behaviour::RedirectsOnce if first => (Duration::ZERO, StatusCode::FOUND),
        Behaviour::AlwaysFails => (Duration::ZERO, StatusCode::INTERNAL_SERVER_ERROR),
        Behaviour::Gone => (Duration::ZERO, StatusCode::GONE),
        Behaviour::DripsAnswer | Behaviour::HugeAnswer => (Duration::ZERO, StatusCode::OK),
        _ => (Duration::ZERO, StatusCode::NO_CONTENT),
    };
    tokio::time::sleep(wait).await;
    recorder.replied(numbers, status.as_u16(), wall_us() - at_us);
    match Behaviour::of(&behaviour) {
        Some(Behaviour::DripsAnswer) => (status, Body::from_stream(drip())).into_response(),
        Some(Behaviour::HugeAnswer) => (status, Body::from_stream(huge())).into_response(),
        Some(Behaviour::RedirectsOnce) if first => {
            (status, [(header::LOCATION, format!("/{}/{timer}", Behaviour::Accepts.letter()))])
                .into_response()
        }
        // The next attempt has to connect anew, and finds out whether anybody is there; and a crowd takes no files.
        Some(Behaviour::Distant | Behaviour::Crowd) => {
            (status, [(header::CONNECTION, "close")]).into_response()
        }
        _ => status.into_response(),
    }
}

/// What came, by its CloudEvents attributes, before it is answered.
pub(super) fn arrival<'a>(attribute: impl Fn(&str) -> &'a str, at_us: Micros) -> Arrival {
    let moment_ms = UnixMs::parse_rfc3339(attribute("dueat")).map_or(0, UnixMs::get);
    Arrival {
        // What is no timer of the drill is nobody's. Of a merged set the members say which they are.
        timer: number_of(attribute("subject")).unwrap_or(u32::MAX),
        generation: attribute("generation").parse().unwrap_or(0),
        attempt: attribute("attempt").parse().unwrap_or(0),
        delivery: hash(attribute("id")),
        due_ms: moment_ms,
        moment_ms,
        merged: false,
        of: occurrence(&attribute),
        node: None,
        broker: None,
        at_us,
        replied: None,
        took_us: 0,
    }
}

/// The nominal time that came; `None` if no schedule of the drill has made the timer for one.
fn occurrence<'a>(attribute: &impl Fn(&str) -> &'a str) -> Option<Occurrence> {
    let (id, timer) = (attribute("schedule"), attribute("subject"));
    let nominal_ms = UnixMs::parse_rfc3339(attribute("nominal")).ok()?.get();
    let is_named_so = timer == occurrence_id(id, nominal_ms);
    Some(Occurrence { schedule: schedule_of(id)?, nominal_ms, timer: hash(timer), is_named_so })
}

/// The `ce-type` of an event that tells of nominal times that were skipped.
const SKIPPED: &str = "mainspring.schedule.skipped.v1";

/// What it tells: of one that was made, or of a range of those that never were.
#[derive(Deserialize)]
struct SkipTold {
    schedule: String,
    skipped: String,
    nominal: Option<String>,
    first: Option<String>,
    last: Option<String>,
    count: Option<u64>,
}

/// What such an event tells; `None` if it cannot be read.
fn skip(event: &str, body: &[u8], at_us: Micros) -> Option<ToldSkip> {
    let told: SkipTold = serde_json::from_slice(body).ok()?;
    let ms = |text: Option<&String>| UnixMs::parse_rfc3339(text?).ok().map(UnixMs::get);
    Some(ToldSkip {
        event: hash(event),
        schedule: schedule_of(&told.schedule)?,
        first_ms: ms(told.nominal.as_ref().or(told.first.as_ref()))?,
        last_ms: ms(told.nominal.as_ref().or(told.last.as_ref()))?,
        count: if told.nominal.is_some() { 1 } else { told.count? },
        was_made: told.nominal.is_some(),
        reason: Reason::of(&told.skipped),
        at_us,
    })
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The `ce-type` of a merged set.
const MERGED: &str = "mainspring.timer.merged.v1";

/// A member of a merged set, in its body.
#[derive(Deserialize)]
struct Member {
    timer: String,
    due_at: String,
    generation: i32,
}

impl Member {
    /// Its part of what came.
    fn of(&self, set: Arrival) -> Arrival {
        Arrival {
            timer: number_of(&self.timer).unwrap_or(u32::MAX),
            generation: self.generation,
            due_ms: UnixMs::parse_rfc3339(&self.due_at).map_or(0, UnixMs::get),
            merged: true,
            ..set
        }
    }
}

/// The members of a merged set; none if the body is not one.
fn members(body: &[u8]) -> impl Iterator<Item = Member> {
    #[derive(Deserialize)]
    struct Set {
        merged: Vec<Member>,
    }
    serde_json::from_slice::<Set>(body).map(|set| set.merged).unwrap_or_default().into_iter()
}

/// A byte every 100 ms, for longer than a node waits.
fn drip() -> impl futures::Stream<Item = std::io::Result<Bytes>> {
    stream::unfold(0, |sent| async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        (sent < TIMEOUT_MS / 25).then_some((Ok(Bytes::from_static(b".")), sent + 1))
    })
}

fn huge() -> impl futures::Stream<Item = std::io::Result<Bytes>> {
    static CHUNK: [u8; 65_536] = [b'x'; 65_536];
    stream::iter((0..HUGE_CHUNKS).map(|_| Ok(Bytes::from_static(&CHUNK))))
}
