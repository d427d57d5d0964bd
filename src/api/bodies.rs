//! Bodies of requests, read within a budget of memory.
//!
//! A body of up to [`SMALL`] bytes costs at most that much for each connection. The larger ones share [`BUDGET`], of which
//! one namespace may have three quarters and one key half. So neither a team nor one of its programs keeps the others from
//! sending. A body takes its share before it is read, and waits for it first come first served; meanwhile its bytes wait in
//! the network. One that has waited for [`WAIT`] is refused.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::bytes::BytesMut;

use super::Caller;
use super::arrival::{GRACE, MIN_RATE, TooSlow};
use super::problem::Problem;

/// The most bytes of a body that is read without a share of the budget, and checked on the runtime's own threads.
pub const SMALL: usize = 64 * 1024;

/// The bytes of larger bodies that are read or worked on at once.
const BUDGET: usize = 64 * 1024 * 1024;

/// Into so many parts keys are told apart, and namespaces. Two may share one, which costs them time only while one of them sends
/// many large bodies at once.
const PARTS: usize = 64;

/// How long a body waits for its share.
const WAIT: Duration = Duration::from_secs(10);

/// The budget, and each namespace's and each key's part of it.
pub struct Bodies {
    wait: Duration,
    all: Arc<Semaphore>,
    by_namespace: [Arc<Semaphore>; PARTS],
    by_caller: [Arc<Semaphore>; PARTS],
}

/// A body that was read, and its share of the budget.
pub struct Read {
    /// The bytes.
    pub bytes: Bytes,
    _share: Option<Share>,
}

/// A share of the budget, until it is dropped.
type Share = [OwnedSemaphorePermit; 3];

impl Bodies {
    /// The budget.
    pub fn new() -> Self {
        Self::with(BUDGET, WAIT)
    }

    fn with(budget: usize, wait: Duration) -> Self {
        let parts = |part: usize| std::array::from_fn(|_| Arc::new(Semaphore::new(part)));
        Self {
            wait,
            all: Arc::new(Semaphore::new(budget)),
            by_namespace: parts(budget - budget / 4),
            by_caller: parts(budget / 2),
        }
    }

    /// Reads a body of at most `most` bytes.
    pub async fn read(&self, mut body: Body, most: usize, caller: Caller) -> Result<Read, Problem> {
        let told = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if told > most {
            return Err(too_large(most));
        }
        let mut share = None;
        if told > SMALL {
            share = Some(self.share(told, caller).await?);
        }
        let mut bytes = BytesMut::with_capacity(told);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|why| broken(&why))?.into_data() else { continue };
            let length = bytes.len() + data.len();
            if length > most {
                return Err(too_large(most));
            }
            // Of a body whose length was not told, the largest that it may get is set aside.
            if length > SMALL && share.is_none() {
                share = Some(self.share(most, caller).await?);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Read { bytes: bytes.freeze(), _share: share })
    }

    /// Waits for a share of this many bytes. A body waits for its key's part first and then for its namespace's, so that it does
    /// not hold up others.
    async fn share(&self, bytes: usize, caller: Caller) -> Result<Share, Problem> {
        let exhausted = || {
            let detail =
                "more large bodies are being read than there is memory set aside for; repeat the call";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail).retry_after(2)
        };
        let of_namespace = &self.by_namespace[usize::from(caller.namespace.0.unsigned_abs()) % PARTS];
        let of_caller = &self.by_caller[caller.number() % PARTS];
        let count = u32::try_from(bytes).unwrap_or(u32::MAX);
        let of = async |part: &Arc<Semaphore>| Arc::clone(part).acquire_many_owned(count).await;
        let taken = async { Ok([of(of_caller).await?, of(of_namespace).await?, of(&self.all).await?]) };
        match tokio::time::timeout(self.wait, taken).await {
            Ok(Ok::<Share, tokio::sync::AcquireError>(share)) => Ok(share),
            _ => Err(exhausted()),
        }
    }
}

fn too_large(most: usize) -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the body is over {most} bytes"))
}

fn broken(why: &axum::Error) -> Problem {
    let mut causes = std::iter::successors(std::error::Error::source(why), |cause| cause.source());
    if !causes.any(|cause| cause.is::<TooSlow>()) {
        return Problem::new(StatusCode::BAD_REQUEST, "body_broken", "the body did not arrive whole");
    }
    let (grace, rate) = (GRACE.as_secs(), MIN_RATE / 1024);
    let detail = format!("the body did not arrive within {grace} s and another second for each {rate} KiB");
    Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::key::KeyId;
    use crate::model::namespace::Namespace;

    fn caller(number: u64) -> Caller {
        Caller { id: KeyId::new(number), ..Caller::ANYBODY }
    }

    /// One of another team.
    fn stranger(number: u64) -> Caller {
        Caller { namespace: Namespace(1), ..caller(number) }
    }

    fn body(bytes: usize) -> Body {
        Body::from(vec![b'x'; bytes])
    }

    /// A body whose length is not told.
    fn chunked(bytes: usize) -> Body {
        let chunks = (0..bytes.div_ceil(1000)).map(move |n| vec![b'x'; 1000.min(bytes - n * 1000)]);
        Body::from_stream(futures::stream::iter(chunks.map(Ok::<_, std::io::Error>)))
    }

    const MOST: usize = 4 * SMALL;

    #[tokio::test]
    async fn bodies_are_read_up_to_their_limit() {
        let bodies = Bodies::with(4 * MOST, WAIT);
        for bytes in [0, 1, SMALL, SMALL + 1, MOST] {
            for body in [body(bytes), chunked(bytes)] {
                assert_eq!(bodies.read(body, MOST, caller(0)).await.expect("read").bytes.len(), bytes);
            }
        }
        for body in [body(MOST + 1), chunked(MOST + 1)] {
            let refused = bodies.read(body, MOST, caller(0)).await.err().expect("refused");
            assert_eq!((refused.status, refused.code), (413, "too_large"));
        }
        assert_eq!(bodies.all.available_permits(), 4 * MOST, "every share was given back");
    }

    #[tokio::test]
    async fn large_bodies_wait_for_memory_and_then_are_refused() {
        let bodies = Bodies::with(4 * MOST, Duration::from_millis(50));
        let read = async |number, body| bodies.read(body, MOST, caller(number)).await;
        // Half is all that one key gets; a length that is not told counts as the largest.
        let held = [read(0, body(MOST)).await, read(0, chunked(SMALL + 1)).await];
        assert!(held.iter().all(Result::is_ok));
        let refused = read(0, body(SMALL + 1)).await.err().expect("refused");
        assert_eq!((refused.status, refused.code), (503, "overloaded"));
        assert!(read(0, body(SMALL)).await.is_ok(), "a small one needs no share");
        let _other = read(1, body(MOST)).await.expect("another key has room");
        assert!(read(1, body(MOST)).await.is_err(), "three quarters are all that its namespace gets");
        let theirs = bodies.read(body(MOST), MOST, stranger(2)).await.expect("another namespace has room");
        assert!(bodies.read(body(MOST), MOST, stranger(3)).await.is_err(), "until all is used up");
        drop(theirs);
        assert!(bodies.read(body(MOST), MOST, stranger(3)).await.is_ok());
        let [first, ..] = held;
        let (waited, ()) = tokio::join!(read(0, body(MOST)), async { drop(first) });
        assert!(waited.is_ok(), "what was waited for in time is read");
    }
}
