//! A body that nobody reads to its end: what still arrives of it is thrown away for a moment.
//!
//! A connection that is closed with unread bytes in it is reset, and the reset may overtake the answer: a client
//! that is still sending would learn of a broken connection instead of what is wrong with its request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};
use tokio::runtime::Handle;

/// How long the client may take to notice the answer.
const LINGER: Duration = Duration::from_secs(2);

/// The same request, whose body may be dropped at any time.
pub(super) fn lingering(request: Request) -> Request {
    let held_back = request.headers().contains_key(header::EXPECT);
    request.map(|body| Body::new(Lingering { body, held_back, over: false }))
}

struct Lingering {
    body: Body,
    /// The client waits for `100 Continue`, which goes out when the body is first asked for.
    held_back: bool,
    over: bool,
}

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.held_back = false;
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.over |= matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if self.over || self.held_back || self.body.is_end_stream() {
            return;
        }
        let mut rest = std::mem::take(&mut self.body).into_data_stream();
        // Without a runtime there is no connection either.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let gone = async { while rest.next().await.is_some_and(|part| part.is_ok()) {} };
                // In vain if the client goes on and on.
                let _ = tokio::time::timeout(LINGER, gone).await;
            });
        }
    }
}
