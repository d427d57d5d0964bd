//! Group commit: all requests that wait are committed in the next transaction together, without a timed window.
//!
//! A worker takes the queued requests, runs them as one batch and answers each after the commit. While it is busy the
//! next batch is queued. A request is not withdrawn when its caller hangs up: it may be committed.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{Mutex, mpsc, oneshot};

/// A queue of requests that are answered in batches.
pub struct Batcher<Q, A> {
    queue: mpsc::Sender<(Q, oneshot::Sender<A>)>,
}

impl<Q, A> Clone for Batcher<Q, A> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

/// Why a request was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// The queue is full: the store does not keep up.
    Full,
    /// The service is stopping.
    Stopping,
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// A queue of at most `capacity` requests, and the workers to spawn for it. Each runs batches of up to `most`
    /// requests.
    ///
    /// `run` gets the requests in order and returns as many answers in the same order. The workers end when the last
    /// handle is dropped and every queued request is answered.
    pub fn new<F, R>(
        workers: usize,
        most: usize,
        capacity: usize,
        run: F,
    ) -> (Self, Vec<BoxFuture<'static, ()>>)
    where
        F: Fn(Vec<Q>) -> R + Clone + Send + 'static,
        R: Future<Output = Vec<A>> + Send + 'static,
    {
        let (queue, waiting) = mpsc::channel::<(Q, oneshot::Sender<A>)>(capacity);
        let waiting = Arc::new(Mutex::new(waiting));
        let workers = (0..workers).map(|_| work(Arc::clone(&waiting), most, run.clone()).boxed()).collect();
        (Self { queue }, workers)
    }

    /// Queues a request and waits for its answer.
    pub async fn submit(&self, request: Q) -> Result<A, NotTaken> {
        let (answer, answered) = oneshot::channel();
        match self.queue.try_send((request, answer)) {
            Ok(()) => answered.await.map_err(|_| NotTaken::Stopping),
            Err(mpsc::error::TrySendError::Full(_)) => Err(NotTaken::Full),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(NotTaken::Stopping),
        }
    }
}

type Queue<Q, A> = mpsc::Receiver<(Q, oneshot::Sender<A>)>;

async fn work<Q, A, F, R>(waiting: Arc<Mutex<Queue<Q, A>>>, most: usize, run: F)
where
    F: Fn(Vec<Q>) -> R,
    R: Future<Output = Vec<A>>,
{
    loop {
        let mut queue = waiting.lock().await;
        let mut batch = Vec::with_capacity(queue.len().clamp(1, most));
        if queue.recv_many(&mut batch, most).await == 0 {
            return;
        }
        drop(queue);
        let (requests, callers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        for (caller, answer) in callers.into_iter().zip(run(requests).await) {
            // Fails only when the caller has hung up.
            let _ = caller.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_caller_gets_the_answer_to_its_own_request() {
        let (batcher, workers) = Batcher::new(2, 10, 100, |batch: Vec<u32>| async move {
            tokio::task::yield_now().await;
            batch.into_iter().map(|n| n * 2).collect()
        });
        let workers: Vec<_> = workers.into_iter().map(tokio::spawn).collect();
        let answers = futures::future::join_all((0..100).map(|n| batcher.submit(n))).await;
        assert!(answers.into_iter().zip(0..).all(|(answer, n)| answer == Ok(n * 2)));
        drop(batcher);
        for worker in workers {
            worker.await.expect("a worker ends with its queue");
        }
    }

    #[tokio::test]
    async fn a_full_queue_refuses_instead_of_growing() {
        let (batcher, workers) = Batcher::<u32, u32>::new(1, 1, 1, |_| std::future::pending());
        workers.into_iter().for_each(|worker| drop(tokio::spawn(worker)));
        let mut waiting: Vec<_> = (0..3).map(|n| Box::pin(batcher.submit(n))).collect();
        assert!(futures::poll!(&mut waiting[0]).is_pending());
        tokio::task::yield_now().await;
        assert!(futures::poll!(&mut waiting[1]).is_pending());
        assert_eq!(waiting.remove(2).await, Err(NotTaken::Full));
    }
}
