//! The bench's own receiver: stamps, answers 204, remembers. It runs on a thread of its own.
//!
//! It can stand for many, each with an address of its own, and it can take its time to answer: the delivery was
//! received then, and only its connection waits.
//!
//! An arrival's time is that of the first bytes of its request, before anything is parsed. A timer is
//! known by the number in its payload (see [`super::timers`]), a delivery by a hash of its id.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::timers::{self, HOST, MARK};
use crate::clock::wall_us;
use crate::model::time::UnixMs;
use crate::tools::quantiles::Quantiles;
use crate::tools::wire::{find, header, lines, number};

/// A request longer than this is no delivery of the bench.
const MAX_REQUEST: usize = 1 << 20;
/// Connections that wait to be taken: many receivers are connected to at once.
const BACKLOG: u32 = 4096;

/// The answer to a delivery.
const ACCEPTED: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

/// Who receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receivers {
    /// How many there are, each with a loopback address of its own.
    pub hosts: u32,
    /// How long they take to answer.
    pub reply_delay: Duration,
}

/// One delivery.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The timer's number.
    pub timer: u64,
    /// A hash of the delivery id.
    pub delivery: u64,
    /// When it was due.
    pub due_at: UnixMs,
    /// When its first bytes came, in microseconds since the Unix epoch.
    pub at_us: i64,
    /// Which attempt it was, from 1.
    pub attempt: u32,
}

/// The deliveries of the step that is measured.
#[derive(Default)]
struct StepDeliveries {
    timers: Range<u64>,
    seen: Vec<bool>,
    distinct: u64,
    arrivals: Vec<Arrival>,
}

/// The receiver. Its thread ends with it.
pub struct Receiver {
    /// Host and port.
    address: String,
    token: u64,
    deliveries: Arc<Mutex<StepDeliveries>>,
    _alive: tokio::sync::oneshot::Sender<()>,
}

/// What the deliveries of a step amount to.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Timers received.
    pub received: u64,
    /// Timers acknowledged and not received.
    pub lost: u64,
    /// Deliveries of one delivery id beyond the first.
    pub duplicates: u64,
    /// Timers received under a second delivery id: no retry explains that.
    pub refired: u64,
    /// Deliveries that came before they were due.
    pub early: u64,
    /// Lateness of each timer's first arrival.
    pub lateness: Quantiles,
    /// The earliest due time of what was received.
    pub first_due: Option<UnixMs>,
    /// When the last timer came for the first time, in microseconds since the Unix epoch.
    pub last_at_us: Option<i64>,
}

impl Receiver {
    /// Listens on a free port, of all loopback addresses if there are many receivers. Deliveries that do not carry
    /// `token` in their path are ignored.
    pub fn start(token: u64, receivers: Receivers) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let many = receivers.hosts > 1;
        let listener = {
            let _within = runtime.enter();
            listen(if many { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST })
                .context("no port is free")?
        };
        let bound = listener.local_addr()?;
        let address = if many { format!("{HOST}:{}", bound.port()) } else { bound.to_string() };
        let deliveries = Arc::new(Mutex::new(StepDeliveries::default()));
        let (alive, mut gone) = tokio::sync::oneshot::channel::<()>();
        let path = path(token);
        let shared = Arc::clone(&deliveries);
        std::thread::Builder::new().name("receiver".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = &mut gone => {}
                    () = accept(listener, &path, receivers.reply_delay, &shared) => {}
                }
            });
        })?;
        Ok(Self { address, token, deliveries, _alive: alive })
    }

    /// Where the timers of this run shall be delivered; with many receivers its host is [`HOST`].
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, path(self.token))
    }

    /// Where lifecycle events go: they are taken and not counted.
    pub fn log_url(&self) -> String {
        let port = self.address.rsplit(':').next().unwrap_or_default();
        format!("http://127.0.0.1:{port}/log")
    }

    /// Begins a step: only these timers count from now on.
    pub fn expect(&self, timers: Range<u64>) {
        let count = usize::try_from(timers.end - timers.start).unwrap_or(0);
        let arrivals = Vec::with_capacity(count);
        *lock(&self.deliveries) = StepDeliveries { timers, seen: vec![false; count], distinct: 0, arrivals };
    }

    /// How many different timers of this step have come.
    pub fn distinct(&self) -> u64 {
        lock(&self.deliveries).distinct
    }

    /// How many deliveries of this step have come.
    pub fn total(&self) -> u64 {
        lock(&self.deliveries).arrivals.len() as u64
    }

    /// When the last delivery came, in microseconds since the Unix epoch.
    pub fn last_at_us(&self) -> Option<i64> {
        lock(&self.deliveries).arrivals.last().map(|arrival| arrival.at_us)
    }

    /// The deliveries of this step so far, in the order in which they came.
    pub fn arrivals(&self) -> Vec<Arrival> {
        lock(&self.deliveries).arrivals.clone()
    }

    /// Judges the step; `unacknowledged` timers need not have come.
    pub fn judge(&self, unacknowledged: &[u64]) -> Verdict {
        let deliveries = lock(&self.deliveries);
        judge(deliveries.timers.clone(), unacknowledged, &deliveries.arrivals)
    }
}

/// What these arrivals of these timers amount to; `unacknowledged` ones need not have come.
pub fn judge(timers: Range<u64>, unacknowledged: &[u64], arrivals: &[Arrival]) -> Verdict {
    let excused: HashSet<u64> = unacknowledged.iter().copied().collect();
    let mut deliveries = HashSet::with_capacity(arrivals.len());
    let mut seen = HashSet::with_capacity(arrivals.len());
    let (mut duplicates, mut refired, mut early) = (0, 0, 0);
    let mut late_us = Vec::with_capacity(arrivals.len());
    let mut last_at_us = None;
    for arrival in arrivals {
        let late = arrival.at_us - arrival.due_at.get() * 1000;
        early += u64::from(late < 0);
        let (new_delivery, new_timer) = (deliveries.insert(arrival.delivery), seen.insert(arrival.timer));
        duplicates += u64::from(!new_delivery);
        refired += u64::from(new_delivery && !new_timer);
        if new_timer {
            late_us.push(late);
            last_at_us = last_at_us.max(Some(arrival.at_us));
        }
    }
    let lost = timers.filter(|timer| !seen.contains(timer) && !excused.contains(timer)).count();
    Verdict {
        received: seen.len() as u64,
        lost: lost as u64,
        duplicates,
        refired,
        early,
        lateness: Quantiles::of(late_us),
        first_due: arrivals.iter().map(|arrival| arrival.due_at).min(),
        last_at_us,
    }
}

fn path(token: u64) -> String {
    format!("/{token:016x}")
}

fn lock(deliveries: &Mutex<StepDeliveries>) -> MutexGuard<'_, StepDeliveries> {
    deliveries.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(on: Ipv4Addr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((on, 0)))?;
    socket.listen(BACKLOG)
}

async fn accept(
    listener: TcpListener,
    path: &str,
    reply_delay: Duration,
    deliveries: &Arc<Mutex<StepDeliveries>>,
) {
    let start: Arc<[u8]> = format!("POST {path} ").into_bytes().into();
    loop {
        match listener.accept().await {
            // Only what comes from this machine.
            Ok((_, from)) if !from.ip().is_loopback() => {}
            Ok((stream, _)) => {
                let (start, deliveries) = (Arc::clone(&start), Arc::clone(deliveries));
                tokio::spawn(async move {
                    // A server that breaks off was killed or has enough of this connection.
                    let _ = serve(stream, &start, reply_delay, &deliveries).await;
                });
            }
            // Out of file descriptors, most likely.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    start: &[u8],
    reply_delay: Duration,
    deliveries: &Mutex<StepDeliveries>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    let mut at_us = 0;
    loop {
        let fresh = buffer.is_empty();
        if stream.read_buf(&mut buffer).await? == 0 || buffer.len() > MAX_REQUEST {
            return Ok(());
        }
        if fresh {
            at_us = wall_us();
        }
        let Some(head) = find(&buffer, b"\r\n\r\n") else { continue };
        let length =
            lines(&buffer[..head]).find_map(|line| number::<usize>(header(line, b"content-length")?));
        let Some(length) = length else {
            return stream.write_all(b"HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\n\r\n").await;
        };
        let end = head + 4 + length;
        if buffer.len() < end {
            continue;
        }
        // An answer at once goes out first, so that the noting costs the server no time.
        if reply_delay.is_zero() {
            stream.write_all(ACCEPTED).await?;
        }
        if buffer.starts_with(start)
            && let Some(arrival) = read(&buffer[..head], &buffer[head + 4..end], at_us)
        {
            lock(deliveries).enter(arrival);
        }
        if !reply_delay.is_zero() {
            tokio::time::sleep(reply_delay).await;
            stream.write_all(ACCEPTED).await?;
        }
        buffer.drain(..end);
    }
}

/// Reads a delivery; `None` if it is none of the bench's.
fn read(head: &[u8], body: &[u8], at_us: i64) -> Option<Arrival> {
    let (mut delivery, mut due_at, mut attempt) = (None, None, 1);
    for line in lines(head).skip(1) {
        if let Some(id) = header(line, b"ce-id") {
            let mut hash = DefaultHasher::new();
            id.hash(&mut hash);
            delivery = Some(hash.finish());
        } else if let Some(due) = header(line, b"ce-dueat") {
            due_at = UnixMs::parse_rfc3339(std::str::from_utf8(due).ok()?).ok();
        } else if let Some(nth) = header(line, b"ce-attempt") {
            attempt = number(nth)?;
        }
    }
    let digits = find(body, MARK)? + MARK.len();
    let timer = number(body.get(digits..digits + timers::DIGITS)?)?;
    Some(Arrival { timer, delivery: delivery?, due_at: due_at?, at_us, attempt })
}

impl StepDeliveries {
    fn enter(&mut self, arrival: Arrival) {
        if !self.timers.contains(&arrival.timer) {
            return;
        }
        let place = usize::try_from(arrival.timer - self.timers.start).unwrap_or(usize::MAX);
        if let Some(seen) = self.seen.get_mut(place).filter(|seen| !**seen) {
            *seen = true;
            self.distinct += 1;
        }
        self.arrivals.push(arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(timer: u64, delivery: u64, late_ms: i64) -> Arrival {
        let due_at = UnixMs::new(1_000_000);
        Arrival { timer, delivery, due_at, at_us: (due_at.get() + late_ms) * 1000, attempt: 1 }
    }

    #[test]
    fn what_is_missing_doubled_or_early_is_counted() {
        let arrivals = [
            arrival(10, 1, 5),
            arrival(11, 2, -1),
            arrival(10, 1, 900),
            arrival(12, 3, 7),
            arrival(12, 4, 8),
        ];
        let verdict = judge(10..16, &[15], &arrivals);
        assert_eq!((verdict.received, verdict.lost), (3, 2), "13 and 14 are lost, 15 was never acknowledged");
        assert_eq!((verdict.duplicates, verdict.refired, verdict.early), (1, 1, 1));
        assert_eq!(verdict.last_at_us, Some(1_000_007_000), "a repeat is not the end");
        let lateness = verdict.lateness;
        assert_eq!((lateness.count, lateness.max_ms), (3, 7.0), "of first arrivals");
    }

    #[test]
    fn a_delivery_is_read() {
        let head = b"POST /x HTTP/1.1\r\nCE-Id: dlv_1\r\nce-dueat: 1970-01-01T00:00:01.500Z\r\nce-attempt: 2";
        let found = read(head, br#"{"n":"000000000042","p":"xx"}"#, 7).unwrap();
        assert_eq!((found.timer, found.due_at.get(), found.at_us, found.attempt), (42, 1500, 7, 2));
        assert!(read(head, b"{}", 7).is_none());
        assert!(read(b"POST /x HTTP/1.1", br#"{"n":"000000000042"}"#, 7).is_none());
    }
}
