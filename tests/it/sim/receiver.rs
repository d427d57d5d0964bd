//! The receivers of a run: they take, refuse, hang or answer into the void, as the seed says.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use mainspring::model::timer::AttemptResult;
use mainspring::sink::{Delivery, Event, Lack, Outcome, Sink};

use super::book::Book;
use super::world::World;

/// How long a node waits for a receiver that hangs.
pub const TIMEOUT_MS: u64 = 1000;

/// How a receiver behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Takes it and says so.
    Ok,
    /// Says no.
    Fails,
    /// Takes it and says nothing.
    Hangs,
    /// Takes it, and the answer is lost.
    Lost,
    /// Cannot be reached.
    Refuses,
}

impl Behaviour {
    /// Whether the receiver has it.
    pub const fn takes(self) -> bool {
        !matches!(self, Self::Fails | Self::Refuses)
    }
}

/// How many of a hundred arrivals go how; the rest are taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mood {
    pub fails: i64,
    pub hangs: i64,
    pub lost: i64,
    pub refuses: i64,
}

/// All receivers, as one process reaches them.
pub struct Receivers {
    pub world: Arc<World>,
    pub book: Arc<Mutex<Book>>,
    pub mood: Arc<Mutex<Mood>>,
    pub process: usize,
}

impl Receivers {
    fn choose(&self) -> Behaviour {
        let Mood { fails, hangs, lost, refuses } = *self.mood.lock().expect("plain");
        match self.world.pick(0..100) {
            n if n < fails => Behaviour::Fails,
            n if n < fails + hangs => Behaviour::Hangs,
            n if n < fails + hangs + lost => Behaviour::Lost,
            n if n < fails + hangs + lost + refuses => Behaviour::Refuses,
            _ => Behaviour::Ok,
        }
    }
}

impl Sink for Receivers {
    fn send<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a, Result<Outcome, Lack>> {
        let how = self.choose();
        {
            let mut book = self.book.lock().expect("plain");
            match delivery.event {
                Event::Told(kind) => book.tells(self.process, delivery, kind, how),
                _ => book.sends(self.process, delivery, how),
            }
        }
        let (result, ms) = match how {
            Behaviour::Ok => (AttemptResult::Ok, self.world.pick(1..500)),
            Behaviour::Fails => (AttemptResult::Failed, self.world.pick(1..500)),
            Behaviour::Hangs => (AttemptResult::Timeout, TIMEOUT_MS as i64),
            Behaviour::Lost => (AttemptResult::Unknown, self.world.pick(1..500)),
            Behaviour::Refuses => (AttemptResult::Refused, 1),
        };
        let answer = self.world.sleep(self.process, Duration::from_millis(ms as u64));
        Box::pin(async move {
            answer.await;
            self.book.lock().expect("plain").learns(delivery);
            Ok(Outcome::without_answer(result, None))
        })
    }
}
