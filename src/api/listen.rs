//! Accepts connections and serves calls on them.
//!
//! Every wait has an end: for the head of a request ([`HEADER_WAIT`], also the longest that an idle connection is kept),
//! for its body ([`super::arrival`]), for the answer (`CALL_WAIT` in [`super`]), and for a client that takes nothing of
//! its answer ([`WRITE_WAIT`]), server-sent events included.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
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
use super::tls::Tls;
use crate::limits::FileLimits;
use crate::metrics::Metrics;
use crate::model::key::KeyHash;
use crate::service::origin::Peer;
use crate::telemetry::Rarely;

/// How long a client may take to send its headers; also how long an idle connection is kept.
const HEADER_WAIT: Duration = Duration::from_secs(30);

/// How long a client may take nothing of an answer that is ready for it.
const WRITE_WAIT: Duration = Duration::from_secs(30);

/// How long a client may take for its handshake for TLS.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);

/// The most bytes of headers that one request may have.
const MAX_HEADERS: usize = 32 * 1024;

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
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_WAIT).max_buf_size(MAX_HEADERS);
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
                            None => connection(http, stream, peer, seat, router, closing).await,
                            Some(acceptor) => {
                                let shaken = tokio::select! {
                                    shaken = shake_hands(acceptor, stream) => shaken,
                                    () = seat.closed() => None,
                                    () = closing.cancelled() => None,
                                };
                                let Some((stream, certificate)) = shaken else { return };
                                let peer = Peer { certificate, ..peer };
                                connection(http, stream, peer, seat, router, closing).await;
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

/// Shakes hands for TLS; with the SHA-256 of the certificate that the client has shown. `None` if it did not within
/// [`HANDSHAKE_WAIT`], or not rightly: that is no failure of the service.
async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    acceptor: TlsAcceptor,
    stream: S,
) -> Option<(TlsStream<S>, Option<KeyHash>)> {
    match tokio::time::timeout(HANDSHAKE_WAIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let certificate = shown.map(|shown| Sha256::digest(shown).into());
            Some((stream, certificate))
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
    http: http1::Builder,
    stream: S,
    peer: Peer,
    seat: Seat,
    router: Router,
    closing: CancellationToken,
) {
    let seat = Arc::new(seat);
    let of_calls = Arc::clone(&seat);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let busy = of_calls.call();
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        if busy.refused {
            request.extensions_mut().insert(NoSeat(Arc::clone(&of_calls)));
        }
        let answering = router.call(request);
        async move {
            let response: Response = answering.await?;
            Ok::<_, std::convert::Infallible>(response.map(|body| Answer { body, _busy: busy }))
        }
    });
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut ending = pin!(async {
        tokio::select! {
            () = seat.closed() => {}
            () = closing.cancelled() => {}
        }
    });
    tokio::select! {
        // A connection that a client breaks off is no failure of the service.
        _ = serving.as_mut() => return,
        () = &mut ending => {}
    }
    serving.as_mut().graceful_shutdown();
    // What has arrived by now is read. hyper keeps a connection that has brought half a head: it is dropped.
    if futures::poll!(serving.as_mut()).is_pending() && seat.is_busy() {
        let _ = serving.await;
    }
}

/// The body of an answer. While it is being sent, its connection is busy.
struct Answer {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
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
        (client, tokio::spawn(connection(http1::Builder::new(), stream, peer, seat, router, closing)))
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
