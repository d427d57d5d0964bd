//! One attempt over HTTP: pooled connections, a timeout, no redirects, a proxy only if the settings name one, bounded replies.

use std::error::Error as _;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Proxy, Request, Response};

use tower::util::MapResponseLayer;

use super::guard::{Guard, RefusedAddress};
use super::names::Names;
use super::{Delivery, Lack, Outcome, REPLY_KEPT, event};
use crate::clock::StoreClock;
use crate::config::Config;
use crate::model::namespace::Sender;
use crate::model::networks::Networks;
use crate::model::target::Webhook;
use crate::model::time::UnixMs;
use crate::model::timer::AttemptResult;

/// Bytes of a reply that are read, so that its connection can be used again.
const REPLY_READ: usize = 64 * 1024;

/// The longest wait for the rest of a reply whose status is known.
const REPLY_WAIT: Duration = Duration::from_millis(500);

/// The longest wait that a receiver may ask for with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// The longest wait for a connection. A receiver that is there answers within a round trip; one second more than the
/// third try of the kernel, which comes after three.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(4);

/// How long an attempt of this length waits for a connection: a little shorter than it is, so that one without a connection counts
/// as not sent.
pub(super) fn connect_wait(limit: Duration) -> Duration {
    CONNECT_WAIT.min(limit.mul_f64(0.95))
}

/// How many sets of networks, with how long a connection is waited for, have clients of their own at a time.
const APART: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// What the connections of a client depend on: the networks of a namespace that has its own, and how long they are waited for.
type Apart = (Option<Arc<Networks>>, Duration);

/// Sends webhooks.
pub struct Webhooks {
    clients: Clients,
    /// Those of namespaces with networks of their own, where a connection that one of them may use, another may not; and those
    /// of shorter attempts than most.
    apart: Mutex<LruCache<Apart, Arc<Clients>>>,
    guard: Guard,
    clock: StoreClock,
    timeout: Duration,
}

impl Webhooks {
    /// A sink under these settings, which keeps at most so many idle connections open.
    pub fn new(
        config: &Arc<Config>,
        clock: StoreClock,
        (names, tls): (Names, rustls::ClientConfig),
        idle_connections: usize,
    ) -> anyhow::Result<Self> {
        let guard = Guard::new(Arc::clone(config));
        let most = AtomicUsize::new(idle_connections.max(1));
        let connections = Arc::new(Connections { made: AtomicUsize::new(0), most });
        let timeout = config.webhook.timeout.get();
        let clients = Clients::new(Arc::clone(config), names, tls, connections, connect_wait(timeout))?;
        Ok(Self { clients, apart: Mutex::new(LruCache::new(APART)), guard, clock, timeout })
    }

    /// From now on so many idle connections are kept.
    pub fn keep_idle(&self, most: usize) {
        self.clients.connections.most.store(most.max(1), Ordering::Relaxed);
        self.clients.replace();
        self.apart().clear();
    }

    /// Closes all idle connections, if any were made.
    fn close_idle(&self) {
        if self.clients.connections.made.swap(0, Ordering::Relaxed) > 0 {
            self.clients.replace();
            self.apart().clear();
        }
    }

    fn apart(&self) -> MutexGuard<'_, LruCache<Apart, Arc<Clients>>> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client for a sender's attempt of this length: its connections lead only where that one may send to.
    fn client(&self, sender: &Sender, limit: Duration) -> anyhow::Result<Client> {
        if self.clients.connections.are_enough() {
            self.close_idle();
        }
        let (networks, wait) = (&sender.networks, connect_wait(limit));
        if networks.is_none() && wait == self.clients.connect_wait {
            return Ok(self.clients.current());
        }
        let mut apart = self.apart();
        let make = || self.clients.apart(networks.as_ref(), wait).map(Arc::new);
        Ok(apart.try_get_or_insert((networks.clone(), wait), make)?.current())
    }

    /// Makes one attempt.
    pub async fn send(&self, delivery: &Delivery, hook: &Webhook) -> Result<Outcome, Lack> {
        let guard = self.guard.within(delivery.sender.networks.clone());
        if let Err(refused) = guard.check_url(&hook.url) {
            return Ok(failed(AttemptResult::Refused, refused.to_string()));
        }
        if hook.is_sealed() {
            let detail = "its secret cannot be opened: give the key that it was sealed under in `server.secrets_key`, beside others";
            return Ok(failed(AttemptResult::Refused, detail.to_owned()));
        }
        if let Some(refused) = self.refused_by_name(delivery, hook).await? {
            return Ok(refused);
        }
        let at = self.clock.now();
        let limit = delivery.timeout.unwrap_or(self.timeout);
        let client = match self.client(&delivery.sender, limit) {
            Ok(client) => client,
            Err(why) => return Ok(failed(AttemptResult::Refused, format!("no client can be made: {why}"))),
        };
        let mut request = Request::new(Method::POST, hook.url.clone());
        *request.headers_mut() = event::headers(hook, delivery, at);
        *request.timeout_mut() = delivery.timeout;
        *request.body_mut() = Some(delivery.data.clone().into());
        match client.execute(request).await {
            Ok(response) => Ok(self.outcome_of(response).await),
            Err(why) => self.outcome_of_error(&why, limit),
        }
    }

    /// A proxy resolves the names itself and does not know whose webhook it is. So where a namespace has networks of its own, its
    /// names are resolved here as well, and what they forbid is refused.
    async fn refused_by_name(&self, delivery: &Delivery, hook: &Webhook) -> Result<Option<Outcome>, Lack> {
        let (Some(_), Some(networks), Some(url::Host::Domain(name))) =
            (&self.clients.config.webhook.proxy, &delivery.sender.networks, hook.url.host())
        else {
            return Ok(None);
        };
        let names = self.clients.names.within(Some(Arc::clone(networks)));
        let found = tokio::time::timeout(CONNECT_WAIT, names.check(name)).await;
        let why = match found {
            Ok(Ok(())) => return Ok(None),
            Ok(Err(why)) => why,
            Err(_) => "the name cannot be resolved in time".into(),
        };
        match Lack::of(why.as_ref()) {
            Some(lack) => Err(lack),
            None => {
                let detail =
                    format!("not handed to the proxy, because this namespace has networks of its own: {why}");
                let not_reached = !why.is::<RefusedAddress>();
                Ok(Some(Outcome { not_reached, ..failed(AttemptResult::Refused, detail) }))
            }
        }
    }

    async fn outcome_of(&self, mut response: Response) -> Outcome {
        let status = response.status();
        let now = self.clock.now();
        let retry_after = match status.as_u16() {
            429 | 503 => {
                response.headers().get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?, now))
            }
            _ => None,
        };
        let reply = read_reply(&mut response).await;
        let (result, detail) = match status.as_u16() {
            200..=299 => (AttemptResult::Ok, None),
            300..=399 => {
                (AttemptResult::Failed, Some(format!("answered {status}; redirects are not followed")))
            }
            _ => (AttemptResult::Failed, Some(format!("answered {status}"))),
        };
        Outcome {
            result,
            status: Some(status.as_u16()),
            reply,
            detail,
            retry_after,
            gone: status.as_u16() == 410,
            not_reached: false,
        }
    }

    fn outcome_of_error(&self, why: &reqwest::Error, timeout: Duration) -> Result<Outcome, Lack> {
        if let Some(refused) = refused_address(why) {
            return Ok(failed(AttemptResult::Refused, refused.to_string()));
        }
        let cause = root_cause(why);
        if why.is_connect() || why.is_builder() {
            if let Some(lack) = Lack::of(why) {
                self.close_idle();
                return Err(lack);
            }
            let outcome = failed(AttemptResult::Refused, format!("no connection: {cause}"));
            return Ok(Outcome { not_reached: why.is_connect(), ..outcome });
        }
        if why.is_timeout() {
            return Ok(failed(
                AttemptResult::Timeout,
                format!("no answer within {} s", timeout.as_secs_f64()),
            ));
        }
        Ok(failed(AttemptResult::Unknown, format!("the connection broke before an answer came: {cause}")))
    }
}

/// The HTTP client, made anew from time to time so that idle connections stay few.
///
/// The pool of a client has a limit for each host and none for all together. So connections are counted as they are
/// made, and after so many all clients are replaced. With an old one go its idle connections, as soon as no attempt of it is
/// under way, or after their time. A host may have all of them: many namespaces that call one have each its own lane there, and
/// with the limit of one lane most connections would be closed after one attempt.
struct Clients {
    config: Arc<Config>,
    tls: rustls::ClientConfig,
    names: Names,
    current: Mutex<Client>,
    connections: Arc<Connections>,
    connect_wait: Duration,
}

/// The connections of all clients together.
struct Connections {
    /// How many the current ones have made.
    made: AtomicUsize,
    /// After so many they are replaced.
    most: AtomicUsize,
}

impl Connections {
    fn are_enough(&self) -> bool {
        self.made.load(Ordering::Relaxed) >= self.most.load(Ordering::Relaxed)
    }
}

impl Clients {
    fn new(
        config: Arc<Config>,
        names: Names,
        tls: rustls::ClientConfig,
        connections: Arc<Connections>,
        connect_wait: Duration,
    ) -> anyhow::Result<Self> {
        let current = Mutex::new(client(&config, tls.clone(), names.clone(), &connections, connect_wait)?);
        Ok(Self { config, tls, names, current, connections, connect_wait })
    }

    /// Others, for namespaces with these networks, if they have any, and for attempts that wait so long for a connection.
    fn apart(&self, networks: Option<&Arc<Networks>>, connect_wait: Duration) -> anyhow::Result<Self> {
        let names = match networks {
            Some(networks) => self.names.within(Some(Arc::clone(networks))),
            None => self.names.clone(),
        };
        let connections = Arc::clone(&self.connections);
        Self::new(Arc::clone(&self.config), names, self.tls.clone(), connections, connect_wait)
    }

    fn current(&self) -> Client {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self) {
        // It was made from the same settings before.
        let (tls, names) = (self.tls.clone(), self.names.clone());
        if let Ok(new) = client(&self.config, tls, names, &self.connections, self.connect_wait) {
            *self.current.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
    }
}

/// A client that counts the connections it makes.
fn client(
    config: &Config,
    tls: rustls::ClientConfig,
    names: Names,
    connections: &Arc<Connections>,
    connect_wait: Duration,
) -> Result<Client, reqwest::Error> {
    let idle = connections.most.load(Ordering::Relaxed);
    let connections = Arc::clone(connections);
    let timeout = config.webhook.timeout.get();
    let builder = match &config.webhook.proxy {
        Some(proxy) => {
            let proxy = Proxy::all(proxy.clone())?;
            Client::builder().no_proxy().proxy(proxy).dns_resolver(Arc::new(names.of_the_proxy()))
        }
        None => Client::builder().no_proxy().dns_resolver(Arc::new(names)),
    };
    builder
        .user_agent(concat!("mainspring/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        // Over HTTP/1.1 there is nothing that it would try again, and it would copy each request for that. What was not written
        // because its connection had been closed is sent again by what is below it.
        .retry(reqwest::retry::never().max_retries_per_request(0))
        .tls_backend_preconfigured(tls)
        .connector_layer(MapResponseLayer::new(move |connection| {
            connections.made.fetch_add(1, Ordering::Relaxed);
            connection
        }))
        .connect_timeout(connect_wait)
        .timeout(timeout)
        .pool_max_idle_per_host(idle)
        .pool_idle_timeout(Duration::from_secs(30))
        .tcp_nodelay(true)
        .local_address(config.webhook.source_address)
        .build()
}

fn failed(result: AttemptResult, detail: String) -> Outcome {
    Outcome::without_answer(result, Some(detail))
}

/// The beginning of a reply, as text that every database accepts. A slow or endless rest is not read.
async fn read_reply(response: &mut Response) -> Option<String> {
    let mut kept = Vec::new();
    let read = async {
        let mut total = 0;
        while let Ok(Some(chunk)) = response.chunk().await {
            total += chunk.len();
            kept.extend_from_slice(&chunk[..chunk.len().min(REPLY_KEPT - kept.len())]);
            if total >= REPLY_READ {
                break;
            }
        }
    };
    // After the timeout the bytes that have come so far are kept.
    let _ = tokio::time::timeout(REPLY_WAIT, read).await;
    (!kept.is_empty()).then(|| String::from_utf8_lossy(&kept).replace('\0', "\u{fffd}"))
}

/// `Retry-After`: seconds, or an HTTP date.
fn retry_after(value: &str, now: UnixMs) -> Option<Duration> {
    let wait = match value.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at =
                httpdate::parse_http_date(value.trim()).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
            UnixMs::new(i64::try_from(at.as_millis()).ok()?).since(now)
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

fn refused_address(why: &reqwest::Error) -> Option<&RefusedAddress> {
    let mut source = why.source();
    while let Some(error) = source {
        if let Some(refused) = error.downcast_ref::<RefusedAddress>() {
            return Some(refused);
        }
        source = error.source();
    }
    None
}

/// The innermost error says what happened. The outer ones name the URL, which may hold a secret.
fn root_cause(why: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = why;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string().replace('\0', "\u{fffd}").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::model::destination::{Closed, Destination, Limits};
    use crate::model::namespace::Namespace;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = UnixMs::parse_rfc3339("2015-10-21T07:28:00Z").unwrap();
        assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:30 GMT", now), Some(Duration::from_secs(30)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:27:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("99999999", now), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after("soon", now), None);
    }

    /// A receiver that keeps its connections open. Returns its port.
    async fn receiver() -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    // Each request fits into one read.
                    while socket.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                        if socket.write_all(answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        port
    }

    fn delivery(sender: Sender) -> Delivery {
        let destination = Destination {
            namespace: Namespace(1),
            name: "shop".into(),
            kind: "webhook".into(),
            place: Err(Closed::Unknown),
            limits: Limits::default(),
            paused: false,
            version: 1,
            created_at: UnixMs::new(0),
        };
        Delivery::test(Arc::new(destination), Arc::new(sender), UnixMs::new(0))
    }

    /// Webhooks, and how often a name was asked for. All are of this machine.
    async fn webhooks() -> (Webhooks, Arc<AtomicUsize>) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = Config::load(Some(std::path::Path::new("/dev/null")), [], &[]).expect("settings");
        let (names, asked) = super::super::names::tests::name_server_under(config.clone()).await;
        let tls = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let clock = StoreClock::local(Arc::new(crate::clock::SystemClock));
        (Webhooks::new(&Arc::new(config), clock, (names, tls), 100).expect("a client"), asked)
    }

    /// A host that answers no call for a connection, and attempts that are shorter than such calls may be.
    #[tokio::test]
    async fn a_short_attempt_without_a_connection_counts_as_not_sent() {
        let (webhooks, _) = webhooks().await;
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("binds");
        let full = socket.listen(1).expect("listens");
        let address = full.local_addr().expect("an address");
        let mut waiting = Vec::new();
        let soon = Duration::from_millis(200);
        while let Ok(one) = tokio::time::timeout(soon, tokio::net::TcpStream::connect(address)).await {
            waiting.push(one.expect("connects"));
        }
        let hook = Webhook::new(&format!("http://{address}/"), None, Default::default()).expect("a webhook");
        let mut delivery = delivery(Sender::new("team", &Networks::default()));
        delivery.timeout = Some(Duration::from_secs(1));
        let outcome = webhooks.send(&delivery, &hook).await.expect("nothing is lacking");
        assert_eq!((outcome.result, outcome.not_reached), (AttemptResult::Refused, true), "{outcome:?}");
    }

    #[tokio::test]
    async fn a_connection_of_one_namespace_leads_no_other_past_its_networks() {
        let (webhooks, asked) = webhooks().await;
        let url = format!("http://here.example:{}/", receiver().await);
        let hook = Webhook::new(&url, None, Default::default()).expect("a webhook");
        let send = async |networks: &Networks| {
            let delivery = delivery(Sender::new("team", networks));
            webhooks.send(&delivery, &hook).await.expect("nothing is lacking").result
        };
        let denied = Networks { allow: Vec::new(), deny: vec!["127.0.0.0/8".parse().expect("a network")] };
        for _ in 0..2 {
            assert_eq!(send(&Networks::default()).await, AttemptResult::Ok);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1, "the second one goes over the connection of the first");
        assert_eq!(send(&denied).await, AttemptResult::Refused);
        assert_eq!(send(&Networks::default()).await, AttemptResult::Ok);
    }
}
