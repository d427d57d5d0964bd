//! A few threads that read and check large bodies, slice by slice, beside the runtime.
//!
//! A slice is a piece of work of some milliseconds that only computes. On the runtime's own threads such pieces would
//! stand between a timer and its due millisecond. Here there is one thread for every two cores, of a lower priority than
//! the rest of the process. Callers are served in turn, one slice each, so that one with many large bodies does not keep
//! the others waiting; the slices of one caller are served first come first served.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use super::Caller;

/// How much lower the threads' priority is: under full load they get about a third of what a thread of the runtime gets.
const NICE: i32 = 5;

/// The most threads, however many cores there are.
const MAX_THREADS: usize = 4;

type Slice = Box<dyn FnOnce() + Send>;

/// The threads, and the slices that wait for them. The threads end when it is dropped.
pub struct Slices(Arc<Shared>);

/// The slice failed: its panic is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed;

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queues {
    by_caller: HashMap<usize, VecDeque<Slice>>,
    /// The callers that have slices waiting, in the order of their turns.
    turns: VecDeque<usize>,
    closed: bool,
}

impl Slices {
    /// Starts the threads. An error if the system has no thread left.
    pub fn start() -> std::io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let slices = Self(Arc::default());
        for _ in 0..(cores / 2).clamp(1, MAX_THREADS) {
            let shared = Arc::clone(&slices.0);
            thread::Builder::new().name("slices".into()).spawn(move || shared.work())?;
        }
        Ok(slices)
    }

    /// Runs a slice for a caller and returns its result. A caller that goes away does not stop a slice that waits.
    pub async fn run<T: Send + 'static>(
        &self,
        caller: Caller,
        slice: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failed> {
        let (done, result) = oneshot::channel();
        self.0.add(caller.number(), Box::new(move || drop(done.send(slice()))));
        result.await.map_err(|_| Failed)
    }
}

impl Drop for Slices {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.arrived.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, caller: usize, slice: Slice) {
        self.lock().add(caller, slice);
        self.arrived.notify_one();
    }

    fn work(&self) {
        // Without the permission to be nice it works all the same.
        let _ = rustix::process::nice(NICE);
        let mut queues = self.lock();
        loop {
            if let Some(slice) = queues.take() {
                drop(queues);
                // A panic loses this slice, and its caller is told; the thread goes on.
                let _ = catch_unwind(AssertUnwindSafe(slice));
                queues = self.lock();
            } else if queues.closed {
                return;
            } else {
                queues = self.arrived.wait(queues).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Queues {
    fn add(&mut self, caller: usize, slice: Slice) {
        let queue = self.by_caller.entry(caller).or_default();
        if queue.is_empty() {
            self.turns.push_back(caller);
        }
        queue.push_back(slice);
    }

    /// The next slice of the caller whose turn it is.
    fn take(&mut self) -> Option<Slice> {
        let caller = self.turns.pop_front()?;
        let queue = self.by_caller.get_mut(&caller)?;
        let slice = queue.pop_front();
        if queue.is_empty() {
            self.by_caller.remove(&caller);
        } else {
            self.turns.push_back(caller);
        }
        slice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_served_in_turn() {
        let (mut queues, order) = (Queues::default(), Arc::new(Mutex::new(Vec::new())));
        for (caller, slice) in [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (3, "e"), (2, "f")] {
            let order = Arc::clone(&order);
            queues.add(caller, Box::new(move || order.lock().unwrap().push(slice)));
        }
        while let Some(slice) = queues.take() {
            slice();
        }
        assert_eq!(*order.lock().unwrap(), ["a", "d", "e", "b", "f", "c"]);
        assert!(queues.by_caller.is_empty() && queues.turns.is_empty());
    }

    #[tokio::test]
    async fn a_slice_runs_on_a_nicer_thread_and_a_panic_costs_only_itself() {
        let own = rustix::process::getpriority_process(None).expect("a priority");
        let slices = Slices::start().expect("threads");
        let failed: Result<(), Failed> = slices.run(Caller::ANYBODY, || panic!("a planted panic")).await;
        assert_eq!(failed, Err(Failed));
        let nice = slices.run(Caller::ANYBODY, || rustix::process::getpriority_process(None)).await;
        assert_eq!(nice.map(|nice| nice.expect("a priority")), Ok((own + NICE).min(19)));
    }
}
