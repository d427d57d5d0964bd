//! A TCP proxy in this process that does to connections what a bad network does.
//!
//! It stands before one server and can at any time pass, cut, freeze or delay what flows, on open connections too.
//! Before a PostgreSQL it can also cut exactly between a commit and its answer. It never changes or adds a byte: a
//! client sees its server, late or not at all.
//!
//! Invariant: its memory is bounded, by 512 connections with 256 KiB held each
//! way. What is frozen waits in the kernels of its two ends, as on a real line. It counts what it does, so that the
//! drill can see whether a fault landed.

mod answers;
mod direction;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::tools::servers::free_port;
use answers::Answers;
pub use answers::Commits;
use direction::{Direction, Forwarder};

/// As many connections are carried; one more is reset at once.
const CONNECTIONS_MAX: usize = 512;
/// How long the server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// A pause after a connection that could not be accepted, as when this process has no more files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// What happens to all that flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Cut,
    Freeze,
    Delay(Duration),
}

/// The mode, and how often it was to cut: a connection ends when that is no longer what it was at its
/// beginning, however soon another mode followed.
#[derive(Debug, Clone, Copy)]
struct State {
    mode: Mode,
    cuts: u64,
}

/// What a proxy has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that clients made.
    pub accepted: u64,
    /// Those that are open now, held ones included.
    pub open: u64,
    /// Those that the proxy reset by itself: while it cuts, after a commit, or because there were too many.
    pub cut: u64,
    /// Those that the server did not take; the client's was reset.
    pub unreachable: u64,
    /// Bytes passed on to the server.
    pub to_server: u64,
    /// Bytes passed on to clients.
    pub to_client: u64,
    /// Commits whose answer was dropped; with each goes a connection.
    pub commits_cut: u64,
    /// Connections on which no commit can be seen, because they are encrypted or not PostgreSQL's.
    pub unreadable: u64,
}

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    open: AtomicU64,
    cut: AtomicU64,
    unreachable: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
    commits_cut: AtomicU64,
    unreadable: AtomicU64,
}

/// What all connections share.
struct Shared {
    upstream: SocketAddr,
    state: watch::Sender<State>,
    /// How many commits are still to be cut, and which.
    wanted: watch::Sender<(u64, Commits)>,
    counters: Counters,
}

/// A proxy on the loopback before one server. Dropping it closes everything.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Proxy {
    /// Listens on a free port before `upstream`, which need not be there yet, and passes everything.
    pub async fn start(upstream: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port()?));
        let listener = listener.await.context("the fault proxy cannot listen")?;
        let address = listener.local_addr().context("the fault proxy cannot listen")?;
        let shared = Arc::new(Shared {
            upstream,
            state: watch::Sender::new(State { mode: Mode::Pass, cuts: 0 }),
            wanted: watch::Sender::new((0, Commits::Explicit)),
            counters: Counters::default(),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Ok(Self { address, shared, task })
    }

    /// Where clients find it: 127.0.0.1 and a port that is its own for good.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything flows; what was held or delayed comes first, at once.
    pub fn pass(&self) {
        self.set(Mode::Pass);
    }

    /// OpenConnection connections are reset on both sides, also when another mode follows at once, and new ones as soon
    /// as they are made.
    pub fn cut(&self) {
        self.set(Mode::Cut);
    }

    /// Nothing flows in either direction; connections stay open, and new ones are accepted and held.
    pub fn freeze(&self) {
        self.set(Mode::Freeze);
    }

    /// Whatever comes from now on is passed on so much later, each way; the order stays.
    pub fn delay(&self, by: Duration) {
        self.set(Mode::Delay(by));
    }

    /// The next `count` commits, over all connections, happen and their clients do not learn of it: the answer and
    /// all after it are dropped, and both sides of the connection are reset. Replaces an earlier count; zero takes
    /// it back. Works beside the other modes, and only on unencrypted PostgreSQL: see
    /// [`Counts::commits_cut`] and [`Counts::unreadable`] for whether it landed.
    pub fn cut_after_commit(&self, count: u64, which: Commits) {
        self.shared.wanted.send_replace((count, which));
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        let all = &self.shared.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Counts {
            accepted: of(&all.accepted),
            open: of(&all.open),
            cut: of(&all.cut),
            unreachable: of(&all.unreachable),
            to_server: of(&all.to_server),
            to_client: of(&all.to_client),
            commits_cut: of(&all.commits_cut),
            unreadable: of(&all.unreadable),
        }
    }

    fn set(&self, mode: Mode) {
        self.shared.state.send_modify(|state| {
            state.mode = mode;
            state.cuts += u64::from(mode == Mode::Cut);
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Its connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            client = listener.accept() => match client {
                Ok((client, _)) => {
                    count(&shared.counters.accepted);
                    if connections.len() < CONNECTIONS_MAX {
                        let cuts = shared.state.borrow().cuts;
                        connections.spawn(carry(client, cuts, Arc::clone(&shared)));
                    } else {
                        reset(&[&client]);
                        count(&shared.counters.cut);
                    }
                }
                Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
            },
        }
    }
}

/// While it lives, a connection counts as open.
struct OpenConnection<'a>(&'a Counters);

impl<'a> OpenConnection<'a> {
    fn new(counters: &'a Counters) -> Self {
        count(&counters.open);
        Self(counters)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Carries one connection, which began after so many cuts, to its end.
async fn carry(mut client: TcpStream, cuts: u64, shared: Arc<Shared>) {
    let _open = OpenConnection::new(&shared.counters);
    let mut states = shared.state.subscribe();
    let is_cut = |state: &State| state.mode == Mode::Cut || state.cuts != cuts;
    let moved = states.wait_for(|state| state.mode != Mode::Freeze || is_cut(state)).await;
    let Ok(state) = moved.map(|state| *state) else { return };
    if is_cut(&state) {
        reset(&[&client]);
        count(&shared.counters.cut);
        return;
    }
    // A client that gave up while it was held does not get to the server.
    let ready = client.ready(Interest::READABLE).now_or_never();
    if ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed())) {
        return;
    }
    let connected = tokio::time::timeout(CONNECT, TcpStream::connect(shared.upstream)).await;
    let Ok(Ok(mut server)) = connected else {
        reset(&[&client]);
        count(&shared.counters.unreachable);
        return;
    };
    // A small answer does not wait for the next one.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ended = {
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let to_upstream = Direction { shared: &shared, passed: &shared.counters.to_server, answers: None };
        let to_downstream =
            Direction { shared: &shared, passed: &shared.counters.to_client, answers: Some(Answers::new()) };
        tokio::select! {
            biased;
            _ = states.wait_for(is_cut) => End::Cut,
            end = async {
                tokio::try_join!(
                    Forwarder::new(to_upstream).run(&mut from_client, &mut to_server),
                    Forwarder::new(to_downstream).run(&mut from_server, &mut to_client),
                )
            } => end.err().unwrap_or(End::Closed),
        }
    };
    match ended {
        End::Closed => {}
        End::Broken => reset(&[&client, &server]),
        End::Cut => {
            reset(&[&client, &server]);
            count(&shared.counters.cut);
        }
    }
}

/// How a connection came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Both sides said that they have no more.
    Closed,
    /// One side reset it, or went away.
    Broken,
    /// The proxy cut it.
    Cut,
}

/// As these are dropped, their other ends hear that they are gone for good, and nothing after.
fn reset(streams: &[&TcpStream]) {
    for stream in streams {
        // One that is gone already needs no reset.
        let _ = stream.set_zero_linger();
    }
}
