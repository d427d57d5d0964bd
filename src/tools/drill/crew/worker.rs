//! One worker: it asks, works and settles, and not always as it should.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::desk::{Item, lease_body};
use super::{LEASE_US, Team};
use crate::clock::wall_us;
use crate::tools::drill::history::{Micros, Settled, Wish};
use crate::tools::drill::wait_until;

/// How long a worker that got no answer waits before it asks again.
const AGAIN: Duration = Duration::from_millis(50);
/// After how long a task is to come again that its worker gives back.
const RETRY_US: Micros = 300_000;

/// How long a worker works before it asks to keep what it has.
const BEFORE_EXTENDING: Duration = Duration::from_secs(1);

/// What a worker is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// It works and acks.
    Works,
    /// It is killed in the middle of its work.
    DiesAtWork,
    /// It is killed while its settlement is under way.
    DiesAtSettling,
    /// It hangs up while it waits.
    HangsUp,
    /// It sleeps beyond its lease and settles then.
    Oversleeps,
    /// It keeps what it has for longer, and acks when the first lease would have ended.
    Extends,
    /// It gives back what it has.
    Returns,
    /// It gives up what it has.
    GivesUp,
}

impl Habit {
    fn draw(rng: &mut SmallRng) -> Self {
        match rng.random_range(0..100) {
            0..8 => Self::DiesAtWork,
            8..12 => Self::DiesAtSettling,
            12..18 => Self::HangsUp,
            18..26 => Self::Oversleeps,
            26..30 => Self::Extends,
            30..37 => Self::Returns,
            37..39 => Self::GivesUp,
            _ => Self::Works,
        }
    }

    const fn is_death(self) -> bool {
        matches!(self, Self::DiesAtWork | Self::DiesAtSettling)
    }
}

/// A worker that was killed comes back under its name and asks for what it has, or another comes.
struct Life {
    worker: u32,
    redo: bool,
}

/// Works until the team stops.
pub async fn work(team: Arc<Team>, worker: u32, mut rng: SmallRng, is_bad: bool) {
    let mut life = Life { worker, redo: false };
    let working = async {
        loop {
            let harms = is_bad && team.harm.contains(&wall_us());
            let habit = if harms { Habit::draw(&mut rng) } else { Habit::Works };
            let did = turn(&team, &life, habit, &mut rng).await;
            life.redo = false;
            if did && habit.is_death() {
                team.deeds.killed.fetch_add(1, Ordering::Relaxed);
                life = match rng.random_bool(0.5) {
                    true => Life { worker: life.worker, redo: true },
                    false => Life { worker: team.next.fetch_add(1, Ordering::Relaxed), redo: false },
                };
            }
        }
    };
    tokio::select! {
        () = working => {}
        () = team.stop.cancelled() => {}
    }
}

/// Asks once, and works. Returns whether it got anything.
async fn turn(team: &Team, life: &Life, habit: Habit, rng: &mut SmallRng) -> bool {
    let body = lease_body(life.worker, rng.random_range(1..=3), life.redo);
    let asking = team.desk.lease(rng.random_range(0..usize::MAX), &body, &team.recorder);
    let items = if habit == Habit::HangsUp {
        let patience = Duration::from_millis(rng.random_range(0..600));
        // What is dropped closes its connection.
        match tokio::time::timeout(patience, asking).await {
            Ok(answered) => answered,
            Err(_) => {
                team.deeds.hung_up.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
    } else {
        asking.await
    };
    let Some(items) = items else {
        tokio::time::sleep(AGAIN).await;
        return false;
    };
    for item in &items {
        item.note(life.worker, &team.recorder);
    }
    if items.is_empty() {
        return false;
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..150))).await;
    let wish = match habit {
        Habit::DiesAtWork => return true,
        Habit::Oversleeps => {
            let last_us = items.iter().map(Item::until_us).max().unwrap_or_default();
            wait_until(last_us + rng.random_range(30_000..1_500_000)).await;
            team.deeds.overslept.fetch_add(items.len() as u64, Ordering::Relaxed);
            Wish::Ack
        }
        Habit::Extends => {
            tokio::time::sleep(BEFORE_EXTENDING).await;
            settle(team, &items, Wish::Extend(LEASE_US), rng).await;
            let last_us = items.iter().map(Item::until_us).max().unwrap_or_default();
            wait_until(last_us + 30_000).await;
            Wish::Ack
        }
        Habit::Returns => Wish::Retry(RETRY_US),
        Habit::GivesUp => Wish::Dead,
        Habit::Works | Habit::HangsUp | Habit::DiesAtSettling => Wish::Ack,
    };
    if habit == Habit::DiesAtSettling {
        die_at_settling(team, &items, wish, rng).await;
    } else {
        settle(team, &items, wish, rng).await;
    }
    true
}

/// Settles, again and again until it is answered.
async fn settle(team: &Team, items: &[Item], wish: Wish, rng: &mut SmallRng) {
    let mut left: Vec<(Item, Wish)> = items.iter().map(|item| (item.clone(), wish)).collect();
    while !left.is_empty() {
        let answers = team.desk.settle(rng.random_range(0..usize::MAX), &left, &team.recorder).await;
        let mut answers = answers.into_iter();
        left.retain(|_| answers.next() == Some(Settled::Unknown));
        if !left.is_empty() {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// It is gone when its settlement was sent, or nearly.
async fn die_at_settling(team: &Team, items: &[Item], wish: Wish, rng: &mut SmallRng) {
    let all: Vec<(Item, Wish)> = items.iter().map(|item| (item.clone(), wish)).collect();
    let asked_us = wall_us();
    let settling = team.desk.settle(rng.random_range(0..usize::MAX), &all, &team.recorder);
    let patience = Duration::from_micros(rng.random_range(0..4000));
    if tokio::time::timeout(patience, settling).await.is_err() {
        for item in items {
            item.note_settled(wish, asked_us, Settled::Unknown, &team.recorder);
        }
    }
}
