//! Drains request bodies that no handler reads to the end: their bytes are read and dropped for two seconds.
//!
//! A connection that is closed with unread bytes in it is reset, and the reset may overtake the answer: a client
//! that is still sending would see a broken connection instead of what is wrong with its request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};
use tokio::runtime::Handle;

/// How long the client may take to see the answer and to stop sending.
const DRAIN: Duration = Duration::from_secs(2);

/// The same request; its body is drained when it is dropped.
pub(super) fn drained_on_drop(request: Request) -> Request {
    let awaits_continue = request.headers().contains_key(header::EXPECT);
    request.map(|body| Body::new(DrainOnDrop { body, awaits_continue, ended: false }))
}

struct DrainOnDrop {
    body: Body,
    /// The client waits for `100 Continue`, which is sent when the body is first polled.
    awaits_continue: bool,
    /// The body ended or broke off.
    ended: bool,
}

impl HttpBody for DrainOnDrop {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.awaits_continue = false;
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.ended |= matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        if self.ended || self.awaits_continue || self.body.is_end_stream() {
            return;
        }
        let mut rest = std::mem::take(&mut self.body).into_data_stream();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let drained = async { while rest.next().await.is_some_and(|chunk| chunk.is_ok()) {} };
                // A client that is still sending after this sees a reset.
                let _ = tokio::time::timeout(DRAIN, drained).await;
            });
        }
    }
}
