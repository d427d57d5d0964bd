//! A few threads that read and check large bodies, slice by slice, beside the runtime.
//!
//! A slice is a piece of work of some milliseconds that only computes. On the runtime's own threads such pieces would
//! stand between a timer and its due millisecond. Here there is one thread for every two cores, of a lower priority than
//! the rest of the process. Namespaces are served in turn, one slice each, and so are the callers of one, so that one with many
//! large bodies does not keep the others waiting; the slices of one caller are served first come first served.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use super::Caller;
use crate::model::namespace::Namespace;

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
    of: InTurn<Namespace, InTurn<usize, VecDeque<Slice>>>,
    closed: bool,
}

/// What has slices waiting, by whose they are, and in the order of their turns.
struct InTurn<K, Q> {
    queues: HashMap<K, Q>,
    turns: VecDeque<K>,
}

impl<K, Q> Default for InTurn<K, Q> {
    fn default() -> Self {
        Self { queues: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash, Q: Default> InTurn<K, Q> {
    /// The queue of this one, which is to get a slice.
    fn of(&mut self, whose: K) -> &mut Q {
        self.queues.entry(whose).or_insert_with(|| {
            self.turns.push_back(whose);
            Q::default()
        })
    }

    /// Takes from the queue of the one whose turn it is.
    fn take(
        &mut self,
        take: impl FnOnce(&mut Q) -> Option<Slice>,
        is_empty: impl FnOnce(&Q) -> bool,
    ) -> Option<Slice> {
        let whose = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&whose)?;
        let slice = take(queue);
        if is_empty(queue) {
            self.queues.remove(&whose);
        } else {
            self.turns.push_back(whose);
        }
        slice
    }
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
        self.0.add((caller.namespace, caller.number()), Box::new(move || drop(done.send(slice()))));
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

    fn add(&self, caller: (Namespace, usize), slice: Slice) {
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
    fn add(&mut self, (namespace, caller): (Namespace, usize), slice: Slice) {
        self.of.of(namespace).of(caller).push_back(slice);
    }

    /// The next slice of the namespace, and within it of the caller, whose turn it is.
    fn take(&mut self) -> Option<Slice> {
        self.of.take(
            |callers| callers.take(VecDeque::pop_front, VecDeque::is_empty),
            |callers| callers.turns.is_empty(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_served_in_turn() {
        let (mut queues, order) = (Queues::default(), Arc::new(Mutex::new(Vec::new())));
        let calls = [
            (1, 1, "a"),
            (1, 1, "b"),
            (1, 1, "c"),
            (1, 2, "d"),
            (1, 3, "e"),
            (1, 2, "f"),
            (2, 4, "g"),
            (2, 4, "h"),
        ];
        for (namespace, caller, slice) in calls {
            let order = Arc::clone(&order);
            queues.add((Namespace(namespace), caller), Box::new(move || order.lock().unwrap().push(slice)));
        }
        while let Some(slice) = queues.take() {
            slice();
        }
        assert_eq!(*order.lock().unwrap(), ["a", "g", "d", "h", "e", "b", "f", "c"]);
        assert!(queues.of.queues.is_empty() && queues.of.turns.is_empty());
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
