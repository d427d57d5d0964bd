//! The bodies of requests on their way in: how slowly they may come, and what happens to those that no handler reads.
//!
//! A body must come at [`MIN_RATE`] on average, after a first [`GRACE`]. So a large one over a slow line gets the time
//! that it needs, and a client that sends a byte now and then does not hold a connection and memory for long.
//!
//! A body that no handler reads to the end is drained: its bytes are read and dropped for two seconds. A connection that
//! is closed with unread bytes in it is reset, and the reset may overtake the answer: a client that is still sending
//! would see a broken connection instead of what is wrong with its request.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::Monotonic;

/// How long the client may take to see the answer and to stop sending.
const DRAIN: Duration = Duration::from_secs(2);

/// How long any body may take, from when it is first read.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// The bytes a second that a body must bring after that, on average.
pub(super) const MIN_RATE: u64 = 64 * 1024;

/// How fast a body has to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// At least at `rate` bytes a second on average, after `grace`.
    Least { grace: Duration, rate: u64 },
    /// At any pace: its handler ends one that is silent.
    Any,
}

impl Pace {
    /// The pace of all bodies but a stream's.
    pub const LEAST: Self = Self::Least { grace: GRACE, rate: MIN_RATE };
}

/// The body comes more slowly than [`MIN_RATE`].
#[derive(Debug, thiserror::Error)]
#[error("the body comes too slowly")]
pub(super) struct TooSlow;

/// When the body of a call last brought something.
#[derive(Debug, Clone, Default)]
pub(super) struct Arrival(Arc<Mutex<Option<Monotonic>>>);

impl Arrival {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Monotonic::now());
    }

    fn last(&self) -> Option<Monotonic> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the answer; `None` when there is none for `most`, from when the body last brought something.
    pub async fn answered_within<T>(&self, most: Duration, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = std::pin::pin!(answer);
        let mut since = Monotonic::now();
        loop {
            let left = most.saturating_sub(since.elapsed());
            if let Ok(answer) = tokio::time::timeout(left, &mut answer).await {
                return Some(answer);
            }
            since = self.last().filter(|last| last.since(since) > Duration::ZERO)?;
        }
    }
}

/// The same request, whose body keeps to `pace` and is drained when it is dropped. An [`Arrival`] of the body is among
/// its extensions.
pub(super) fn watched(request: Request, pace: Pace) -> Request {
    let awaits_continue = request.headers().contains_key(header::EXPECT);
    let arrival = Arrival::default();
    let noted = arrival.clone();
    let mut request = request.map(|body| {
        let deadline = match pace {
            Pace::Least { grace, rate } => {
                Some(Deadline { grace, rate, began: None, received: 0, timer: None })
            }
            Pace::Any => None,
        };
        Body::new(Watched { body, awaits_continue, ended: false, deadline, arrival })
    });
    request.extensions_mut().insert(noted);
    request
}

/// Until when the next bytes have to come. It begins when the body is first read.
struct Deadline {
    grace: Duration,
    rate: u64,
    began: Option<Instant>,
    received: u64,
    /// Made when there is something to wait for: most bodies come with their head.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// How long the body may take in all, given what it has brought.
    fn allowed(&self) -> Duration {
        self.grace + Duration::from_millis(self.received.saturating_mul(1000) / self.rate)
    }

    /// Ready when the body is too slow.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = *self.began.get_or_insert_with(Instant::now) + self.allowed();
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx)
    }
}

struct Watched {
    body: Body,
    /// The client waits for `100 Continue`, which is sent when the body is first polled.
    awaits_continue: bool,
    /// The body ended or broke off.
    ended: bool,
    deadline: Option<Deadline>,
    arrival: Arrival,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.awaits_continue = false;
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let Poll::Ready(frame) = polled else {
            let Some(deadline) = &mut self.deadline else { return Poll::Pending };
            ready!(deadline.poll(cx));
            return Poll::Ready(Some(Err(axum::Error::new(TooSlow))));
        };
        match &frame {
            Some(Ok(frame)) => {
                self.arrival.note();
                let brought = frame.data_ref().map_or(0, Bytes::len);
                if let Some(deadline) = &mut self.deadline {
                    deadline.received += u64::try_from(brought).unwrap_or(u64::MAX);
                }
            }
            None | Some(Err(_)) => self.ended = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
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

#[cfg(test)]
mod tests {
    use futures::channel::mpsc;
    use http_body_util::BodyExt;

    use super::*;

    const PACE: Pace = Pace::Least { grace: Duration::from_millis(100), rate: 1000 };

    /// A body, and what sends its chunks.
    fn body(pace: Pace) -> (mpsc::UnboundedSender<std::io::Result<Bytes>>, Request) {
        let (chunks, body) = mpsc::unbounded();
        (chunks, watched(Request::new(Body::from_stream(body)), pace))
    }

    fn send(chunks: &mpsc::UnboundedSender<std::io::Result<Bytes>>, bytes: usize) {
        chunks.unbounded_send(Ok(vec![0; bytes].into())).expect("read");
    }

    #[tokio::test]
    async fn a_body_that_comes_too_slowly_ends_and_one_that_comes_may_take_longer() {
        for (pace, bytes, ends) in
            [(PACE, 0, true), (PACE, 50, true), (PACE, 100_000, false), (Pace::Any, 0, false)]
        {
            let (chunks, mut request) = body(pace);
            send(&chunks, bytes);
            request.body_mut().frame().await.expect("a chunk").expect("arrives");
            let next = tokio::time::timeout(Duration::from_millis(400), request.body_mut().frame()).await;
            assert_eq!(matches!(next, Ok(Some(Err(_)))), ends, "{pace:?} after {bytes} bytes");
        }
    }

    #[tokio::test]
    async fn a_call_is_waited_for_from_the_last_of_its_body() {
        let wait = Duration::from_millis(200);
        let (chunks, mut request) = body(PACE);
        let arrival = request.extensions().get::<Arrival>().cloned().expect("noted");
        let slow = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(90)).await;
                send(&chunks, 1000);
                request.body_mut().frame().await.expect("a chunk").expect("arrives");
            }
            tokio::time::sleep(Duration::from_millis(90)).await;
        };
        assert!(
            arrival.answered_within(wait, slow).await.is_some(),
            "it took longer than a wait, and brought something"
        );
        assert!(arrival.answered_within(wait, std::future::pending::<()>()).await.is_none());
    }
}
