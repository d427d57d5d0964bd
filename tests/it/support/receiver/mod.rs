//! A place that webhooks arrive at: it notes what came and when, and misbehaves on request.

mod received;
mod reply;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, to_bytes};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};

pub use received::Received;
pub use reply::Reply;
use reply::{ConnectionClosed, built_in};

/// The largest body that it takes in; far above the largest that may be sent.
const BODY_MAX: usize = 32 << 20;

type Behaviour = Arc<dyn Fn(&Received) -> Reply + Send + Sync>;

#[derive(Default)]
struct Shared {
    received: Mutex<Vec<Received>>,
    arrived: Notify,
    custom: Mutex<HashMap<String, Behaviour>>,
    /// Requests so far to `/flaky/…`, by path and timer.
    flaky: Mutex<HashMap<(String, String), u32>>,
}

impl Shared {
    fn received(&self) -> MutexGuard<'_, Vec<Received>> {
        self.received.lock().expect("nothing panics while it holds this lock")
    }

    fn custom(&self, path: &str) -> Option<Behaviour> {
        self.custom.lock().expect("nothing panics while it holds this lock").get(path).cloned()
    }
}

/// An HTTP server on a loopback port. It runs on a thread of its own, so that a busy test does not
/// blur the arrival times. Dropping it cuts every connection.
///
/// | path | what it does |
/// |---|---|
/// | `/ok` | 200 at once |
/// | `/slow/{ms}` | 200 after `ms` milliseconds |
/// | `/status/{code}?retry_after=…` | that status, with that `Retry-After` if given |
/// | `/hang` | never answers |
/// | `/drip` | 200 at once, then a byte a second, for ten minutes |
/// | `/giant` | 200 and 50 MiB |
/// | `/redirect` | 302 to `/ok` |
/// | `/flaky/{n}` | 500 to the first `n` requests of each timer, then 200 |
/// | `/close` | reads the request and closes the connection without an answer |
///
/// Any other path is 404, unless [`Receiver::on`] says otherwise. Everything is recorded.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Starts on a free port.
    pub async fn start() -> Self {
        Self::start_on(super::free_port()).await
    }

    /// Starts on a given port, for a receiver that was down until now.
    pub async fn start_on(port: u16) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST, port).await
    }

    /// Starts on every loopback address of a free port: 127.0.0.1, 127.0.0.2 and so on are as many receivers.
    pub async fn start_everywhere() -> Self {
        Self::start_at(Ipv4Addr::UNSPECIFIED, super::free_port()).await
    }

    async fn start_at(ip: Ipv4Addr, port: u16) -> Self {
        let listener = TcpListener::bind((ip, port)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let listener = listener.into_std().expect("a listener can change its runtime");
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime for the receiver");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener can change its runtime");
                tokio::select! {
                    () = accept(listener, serving) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// The URL of one of its paths, such as `/ok`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Lets `behaviour` answer everything at exactly `path`, from now on. It runs on the receiver's
    /// thread and must not block; a pause belongs into the [`Reply`].
    pub fn on(&self, path: &str, behaviour: impl Fn(&Received) -> Reply + Send + Sync + 'static) {
        let mut custom = self.shared.custom.lock().expect("nothing panics while it holds this lock");
        custom.insert(path.to_owned(), Arc::new(behaviour));
    }

    /// All requests, in order of arrival.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received().clone()
    }

    /// All requests for one timer, in order of arrival.
    pub fn of(&self, timer: &str) -> Vec<Received> {
        self.shared.received().iter().filter(|one| one.timer == timer).cloned().collect()
    }

    /// Waits until at least `count` requests have arrived and returns all. Panics after `timeout`.
    pub async fn wait_for(&self, count: usize, timeout: Duration) -> Vec<Received> {
        self.wait(|all| all.len() >= count, timeout, &format!("{count} requests")).await
    }

    /// Waits until `condition` holds for all that has arrived and returns it. Panics after `timeout`.
    pub async fn wait_until(
        &self,
        condition: impl Fn(&[Received]) -> bool,
        timeout: Duration,
    ) -> Vec<Received> {
        self.wait(condition, timeout, "its condition").await
    }

    async fn wait(
        &self,
        holds: impl Fn(&[Received]) -> bool,
        timeout: Duration,
        what: &str,
    ) -> Vec<Received> {
        let waiting = async {
            loop {
                // Listening starts before looking, so that nothing can arrive in between unseen.
                let arrived = self.shared.arrived.notified();
                tokio::pin!(arrived);
                arrived.as_mut().enable();
                if holds(&self.shared.received()) {
                    return;
                }
                arrived.await;
            }
        };
        if tokio::time::timeout(timeout, waiting).await.is_err() {
            let all = self.received();
            let last = &all[all.len().saturating_sub(5)..];
            panic!("not {what} within {timeout:?}; {} arrived, the last of them {last:#?}", all.len());
        }
        self.received()
    }
}

/// The most arrivals within any `window` milliseconds.
pub fn densest(received: &[Received], window: i64) -> usize {
    let mut at: Vec<i64> = received.iter().map(|one| one.at_ms).collect();
    at.sort_unstable();
    (0..at.len())
        .map(|n| at[n..].iter().take_while(|other| **other < at[n] + window).count())
        .max()
        .unwrap_or(0)
}

impl Drop for Receiver {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            continue;
        };
        tokio::spawn(serve(stream, peer, Arc::clone(&shared)));
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>) {
    stream.set_nodelay(true).ok();
    let service = service_fn(move |request| answer(request, peer, Arc::clone(&shared)));
    // An error here is a client that went away, or a reply that closes the connection.
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
}

async fn answer(
    request: Request<Incoming>,
    peer: SocketAddr,
    shared: Arc<Shared>,
) -> Result<Response<Body>, ConnectionClosed> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let (head, body) = request.into_parts();
    let body = to_bytes(Body::new(body), BODY_MAX).await.map_err(|_| ConnectionClosed)?;
    let received = Received::new(i64::try_from(at).expect("before the year 292,000,000"), peer, &head, body);

    let custom = shared.custom(head.uri.path());
    shared.received().push(received.clone());
    shared.arrived.notify_waiters();
    let reply = match custom {
        Some(behaviour) => behaviour(&received),
        None => built_in(&received, head.uri.query().unwrap_or_default(), &shared.flaky),
    };
    reply.send().await
}
