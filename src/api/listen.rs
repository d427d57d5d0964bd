//! Accepts connections and serves calls on them.
//!
//! Every wait has an end: for the head of a request ([`HEADER_WAIT`], also the longest that an idle connection is kept),
//! for its body ([`super::arrival`]), for the answer (`CALL_WAIT` in [`super`]), and for a client that takes nothing of
//! its answer ([`WRITE_WAIT`]), server-sent events included.
//!
//! HTTP/2 is spoken over TLS, with clients that ask for it. One connection has at most [`MAX_STREAMS`] calls at once, and a
//! client that begins calls and takes them back at once is disconnected after [`MAX_RESETS`]. What all its calls have sent
//! and nobody has read yet is at most [`WINDOW`]. A client that is silent is asked for a sign of life. One that takes nothing
//! of one answer stops only that stream and not the connection, so its answers are watched ([`Stall`]).

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connections::{Busy, Connections, Seat};
use super::tls::{HTTP2, Tls};
use crate::clock::Monotonic;
use crate::limits::FileLimits;
use crate::metrics::Metrics;
use crate::model::key::KeyHash;
use crate::service::origin::Peer;
use crate::telemetry::Rarely;

/// How long a client may take to send its headers; also how long an idle connection is kept.
const HEADER_WAIT: Duration = Duration::from_secs(30);

/// How long a client may take nothing of an answer that is ready for it.
const WRITE_WAIT: Duration = Duration::from_secs(30);

/// The most calls at once on one connection of HTTP/2.
const MAX_STREAMS: u32 = 100;

/// So many calls that a client has taken back may wait to be forgotten; with one more the connection ends.
const MAX_RESETS: usize = 20;

/// The most bytes of bodies that one connection of HTTP/2 has sent and that nobody has read; and of one call.
const WINDOW: u32 = 1024 * 1024;
const STREAM_WINDOW: u32 = 64 * 1024;

/// The most bytes of one answer that wait for the client.
const SEND_BUFFER: usize = 64 * 1024;

/// The most bytes of an answer that HTTP/2 is given at once: it keeps them until the client takes them.
const PIECE: usize = 16 * 1024;

/// How long a connection of HTTP/2 that is ended may take for what is answered and not taken yet.
const LAST_PIECES: Duration = Duration::from_secs(5);

/// After so long without anything from a client of HTTP/2 it is asked for a sign of life, for which it has as long.
const SILENCE: Duration = Duration::from_secs(20);

/// How long a client may take for its handshake for TLS.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);

/// The most bytes of headers that one request may have.
pub(super) const MAX_HEADERS: usize = 32 * 1024;

/// Marks a call for which there is no seat: it is answered 503, unless it is for health or metrics.
#[derive(Clone)]
pub struct NoSeat(Arc<Seat>);

impl NoSeat {
    /// Counts a call that is refused for it.
    pub fn count(&self) {
        self.0.count_refused();
    }
}

/// Accepts as many connections at once as `files` allows, until `closing` is cancelled; then lets each finish its current
/// call.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    metrics: Metrics,
    files: FileLimits,
    closing: CancellationToken,
) {
    let connections = Connections::new(files.inbound, files.reserved, metrics);
    let http = Http::new();
    let tasks = TaskTracker::new();
    let mut refused_logged = Rarely::default();
    loop {
        let accepted = tokio::select! {
            () = closing.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                // Without a seat the stream is dropped, which closes it.
                if let Some(seat) = connections.sit(from.ip()) {
                    let (http, router, closing) = (http.clone(), router.clone(), closing.clone());
                    let stream = with_write_timeout(stream, WRITE_WAIT);
                    let address = from.ip().to_canonical();
                    let acceptor = tls.as_ref().map(|tls| tls.acceptor());
                    tasks.spawn(async move {
                        let peer = Peer { address, is_encrypted: acceptor.is_some(), certificate: None };
                        match acceptor {
                            None => connection(http, stream, false, peer, seat, router, closing).await,
                            Some(acceptor) => {
                                let shaken = tokio::select! {
                                    shaken = shake_hands(acceptor, stream) => shaken,
                                    () = seat.closed() => None,
                                    () = closing.cancelled() => None,
                                };
                                let Some(Shaken { stream, certificate, is_http2 }) = shaken else { return };
                                let peer = Peer { certificate, ..peer };
                                connection(http, stream, is_http2, peer, seat, router, closing).await;
                            }
                        }
                    });
                }
            }
            Err(why) => {
                // Most likely the process is out of file descriptors: an idle connection gives its own.
                if refused_logged.is_due() {
                    tracing::warn!(%why, "a connection was not accepted");
                }
                connections.close_one();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// How the two versions are spoken.
#[derive(Clone)]
struct Http {
    one: http1::Builder,
    two: http2::Builder<TokioExecutor>,
}

impl Http {
    fn new() -> Self {
        let mut one = http1::Builder::new();
        one.timer(TokioTimer::new()).header_read_timeout(HEADER_WAIT).max_buf_size(MAX_HEADERS);
        let mut two = http2::Builder::new(TokioExecutor::new());
        two.timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_pending_accept_reset_streams(MAX_RESETS)
            .max_local_error_reset_streams(MAX_RESETS)
            .max_header_list_size(MAX_HEADERS as u32)
            .initial_connection_window_size(WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(SILENCE)
            .keep_alive_timeout(SILENCE);
        Self { one, two }
    }
}

/// What a handshake for TLS has found out.
struct Shaken<S> {
    stream: TlsStream<S>,
    /// The SHA-256 of the certificate that the client has shown.
    certificate: Option<KeyHash>,
    /// The client speaks HTTP/2.
    is_http2: bool,
}

/// Shakes hands for TLS. `None` if the client did not within [`HANDSHAKE_WAIT`], or not rightly: that is no failure of the
/// service.
async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    acceptor: TlsAcceptor,
    stream: S,
) -> Option<Shaken<S>> {
    match tokio::time::timeout(HANDSHAKE_WAIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let session = stream.get_ref().1;
            let shown = session.peer_certificates().and_then(<[_]>::first);
            let certificate = shown.map(|shown| Sha256::digest(shown).into());
            let is_http2 = session.alpn_protocol() == Some(HTTP2);
            Some(Shaken { stream, certificate, is_http2 })
        }
        Ok(Err(why)) => {
            tracing::debug!(%why, "a client's handshake for TLS failed");
            None
        }
        Err(_) => None,
    }
}

/// A connection that fails when the client takes nothing for `wait` although something is to be written.
fn with_write_timeout(stream: TcpStream, wait: Duration) -> Pin<Box<TimeoutStream<TcpStream>>> {
    // Small answers go out at once; a failure to ask for that costs only latency.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(wait));
    Box::pin(stream)
}

/// Serves one connection until the client or the node ends it, or it loses its seat.
async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    http: Http,
    stream: S,
    is_http2: bool,
    peer: Peer,
    seat: Seat,
    router: Router,
    closing: CancellationToken,
) {
    let seat = Arc::new(seat);
    let of_calls = Arc::clone(&seat);
    let piece = if is_http2 { PIECE } else { usize::MAX };
    // Over HTTP/1.1 the connection itself fails ([`with_write_timeout`]).
    let stalls = is_http2.then(Stalls::default);
    let of_answers = stalls.clone();
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let busy = of_calls.call();
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        // HTTP/2 names the host beside the path, where nobody else looks for it.
        if let Some(host) =
            request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok())
        {
            request.headers_mut().entry(header::HOST).or_insert(host);
        }
        if busy.refused {
            request.extensions_mut().insert(NoSeat(Arc::clone(&of_calls)));
        }
        let (answering, stalls) = (router.call(request), of_answers.clone());
        async move {
            let response: Response = answering.await?;
            let stall = stalls.map(|stalls| stalls.begin());
            let answer = |body| Answer { body, rest: Bytes::new(), piece, stall, _busy: busy };
            Ok::<_, std::convert::Infallible>(response.map(answer))
        }
    });
    let stream = TokioIo::new(stream);
    let ending = async {
        tokio::select! {
            () = seat.closed() => {}
            () = closing.cancelled() => {}
            () = idle(&seat, HEADER_WAIT), if is_http2 => {}
        }
    };
    match stalls {
        Some(stalls) => tokio::select! {
            () = served(http.two.serve_connection(stream, service), ending, Some(LAST_PIECES), &seat) => {}
            () = stalls.found(WRITE_WAIT) => {}
        },
        None => served(http.one.serve_connection(stream, service), ending, None, &seat).await,
    }
}

/// Completes when there was no call on a connection for so long.
async fn idle(seat: &Seat, wait: Duration) {
    let mut since = None::<Monotonic>;
    loop {
        tokio::time::sleep(wait / 6).await;
        since = if seat.is_busy() { None } else { since.or_else(|| Some(Monotonic::now())) };
        if since.is_some_and(|since| since.elapsed() >= wait) {
            return;
        }
    }
}

/// Serves one connection until `ending` completes, and lets its calls end before it ends it. What is answered may not be
/// sent yet: that has as long as `last` says.
async fn served<C: GracefulConnection>(
    serving: C,
    ending: impl Future<Output = ()>,
    last: Option<Duration>,
    seat: &Seat,
) {
    let mut serving = pin!(serving);
    let mut ending = pin!(ending);
    tokio::select! {
        // A connection that a client breaks off is no failure of the service.
        _ = serving.as_mut() => return,
        () = &mut ending => {}
    }
    serving.as_mut().graceful_shutdown();
    // What has arrived by now is read. hyper keeps a connection that has brought half a head: it is dropped.
    if futures::poll!(serving.as_mut()).is_ready() {
        return;
    }
    match last {
        Some(last) if !seat.is_busy() => drop(tokio::time::timeout(last, serving).await),
        None if !seat.is_busy() => {}
        _ => drop(serving.await),
    }
}

/// Since when a part of an answer waits for its client; it is asked for the next part once that is sent.
type Stall = Mutex<Option<Monotonic>>;

/// The answers that are being sent on one connection.
#[derive(Clone, Default)]
struct Stalls(Arc<Mutex<Vec<Weak<Stall>>>>);

impl Stalls {
    fn begin(&self) -> Arc<Stall> {
        let stall = Arc::new(Stall::default());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&stall));
        stall
    }

    /// Completes when a client has taken nothing of an answer for so long.
    async fn found(&self, wait: Duration) {
        let has_stalled = |stall: Arc<Stall>| {
            let since = *stall.lock().unwrap_or_else(PoisonError::into_inner);
            since.is_some_and(|since| since.elapsed() > wait)
        };
        loop {
            tokio::time::sleep(wait / 6).await;
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.iter().filter_map(Weak::upgrade).any(has_stalled) {
                return;
            }
        }
    }
}

/// The body of an answer. While it is being sent, its connection is busy.
struct Answer {
    body: Body,
    /// What is left of a part of the body that was larger than a piece.
    rest: Bytes,
    /// The most bytes that are handed out at once.
    piece: usize,
    stall: Option<Arc<Stall>>,
    _busy: Busy,
}

impl Answer {
    /// The next piece. HTTP/2 keeps what it is given until the client takes it, however much that is.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = match futures::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        let length = self.rest.len().min(self.piece);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = self.poll_piece(cx);
        if let Some(stall) = &self.stall {
            // What comes later is not waited for by the client's fault.
            let since = matches!(polled, Poll::Ready(Some(Ok(_)))).then(Monotonic::now);
            *stall.lock().unwrap_or_else(PoisonError::into_inner) = since;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// One connection to a server whose answer never ends, and the task that serves it.
    async fn endless(wait: Duration) -> (TcpStream, tokio::task::JoinHandle<()>) {
        let answer = || async {
            let chunks =
                futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 65_536])));
            Body::from_stream(chunks)
        };
        let router = Router::new().route("/", axum::routing::get(answer));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let client = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connects");
        let (stream, from) = listener.accept().await.expect("accepts");
        let connections = Connections::new(1, 0, Metrics::new().expect("series"));
        let seat = connections.sit(from.ip()).expect("a seat");
        let stream = with_write_timeout(stream, wait);
        let closing = CancellationToken::new();
        let peer = Peer { address: from.ip(), is_encrypted: false, certificate: None };
        (client, tokio::spawn(connection(Http::new(), stream, false, peer, seat, router, closing)))
    }

    #[tokio::test]
    async fn an_answer_whose_client_takes_nothing_of_it_is_found() {
        let (stalls, wait) = (Stalls::default(), Duration::from_millis(60));
        let frames =
            futures::stream::iter(["ab", "c"].map(|text| Ok::<_, std::io::Error>(Bytes::from(text))));
        let connections = Connections::new(1, 0, Metrics::new().expect("series"));
        let seat = Arc::new(connections.sit([127, 0, 0, 1].into()).expect("a seat"));
        let body = Body::from_stream(frames.chain(futures::stream::pending()));
        let mut answer =
            Answer { body, rest: Bytes::new(), piece: 1, stall: Some(stalls.begin()), _busy: seat.call() };
        let within = async || tokio::time::timeout(wait * 4, stalls.found(wait)).await.is_ok();
        assert!(!within().await, "nothing waits for the client yet");
        for expected in ["a", "b", "c"] {
            let frame = answer.frame().await.expect("a part").expect("it is sent");
            assert_eq!(frame.into_data().expect("data"), expected, "a large part goes in pieces");
            assert!(within().await, "the client takes nothing of a part that is there");
        }
        assert!(futures::poll!(answer.frame()).is_pending());
        assert!(!within().await, "there is no further part yet");
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_of_its_answer_is_closed() {
        let (mut client, serving) = endless(Duration::from_millis(200)).await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sends");
        let ended = tokio::time::timeout(Duration::from_secs(10), serving).await;
        assert!(ended.is_ok(), "the connection ends");
    }

    #[tokio::test]
    async fn a_client_that_takes_its_answer_slowly_is_not() {
        let (mut client, serving) = endless(Duration::from_millis(300)).await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sends");
        // Each read frees enough of the buffers for another write.
        let mut chunk = vec![0; 4 << 20];
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.read_exact(&mut chunk).await.expect("more of the answer");
        }
        assert!(!serving.is_finished());
    }
}
