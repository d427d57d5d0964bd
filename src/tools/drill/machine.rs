//! When the machine stood still by itself, or was busy: its disk or its processors. Everything on it is late then, and
//! neither the drill nor a node is the cause.
//!
//! A thread looks ten times a second: it sleeps, and writes one block to the disk. Where that takes long, the machine
//! stood still: a fault like those that the drill injects, but it rehearses nothing. And once a second it asks what
//! programs of others did. Those that took half of the processors held the drill up. Nothing of this knows how late a
//! timer was, and processor time that the nodes waste is no load of the machine.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::history::{Affected, Fault, Micros};
use crate::clock::wall_us;
use crate::tools::proc::{cpu_s_of_family, cpu_s_of_machine};

/// How often it looks.
const EVERY: Duration = Duration::from_millis(100);

/// A look that takes longer is a standstill: a lease is renewed once a second, and a straggler is 0.9 s late.
const STILL_US: Micros = 700_000;

/// How often it asks who used the processors.
const ASK_US: Micros = 1_000_000;

/// Watches the machine until dropped.
pub struct Machine {
    seen: Arc<Mutex<Seen>>,
    over: Arc<AtomicBool>,
}

/// What was seen so far.
#[derive(Default)]
struct Seen {
    standstills: Vec<Fault>,
    held_up: Vec<(Micros, Micros)>,
    crowded: Vec<(Micros, Micros)>,
}

impl Machine {
    /// Watches the processors and, if a directory is given, the disk on which it lies. Fails when nothing can
    /// be written there.
    pub fn watch(dir: Option<&Path>) -> io::Result<Self> {
        let mut file = dir.map(|dir| File::create(dir.join("probe"))).transpose()?;
        Self::with(move || {
            let Some(to) = &mut file else { return };
            // As a commit does: one block, and it is to be on the disk.
            let wrote = to.rewind().and_then(|()| to.write_all(&[0; 512])).and_then(|()| to.sync_data());
            if wrote.is_err() {
                file = None;
            }
        })
    }

    /// Watches the processors and how long `write` takes.
    fn with(mut write: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let over = Arc::new(AtomicBool::new(false));
        let (noted, ended) = (Arc::clone(&seen), Arc::clone(&over));
        let look = move || {
            let note = |kind, from_us, until_us| {
                let mut seen = lock(&noted);
                seen.standstills.extend(standstill(kind, from_us, until_us));
                seen.held_up.push((from_us, until_us));
            };
            let mut others = Others::now();
            while !ended.load(Ordering::Relaxed) {
                let due_us = wall_us() + EVERY.as_micros() as Micros;
                thread::sleep(EVERY);
                let woke_us = wall_us();
                note("processors of this machine", due_us, woke_us);
                write();
                note("disk of this machine", woke_us, wall_us());
                if wall_us() - others.at_us >= ASK_US {
                    let now = Others::now();
                    if now.took_half_since(&others) {
                        lock(&noted).crowded.push((others.at_us, now.at_us));
                    }
                    others = now;
                }
            }
        };
        thread::Builder::new().name("machine".into()).spawn(look)?;
        Ok(Self { seen, over })
    }

    /// The standstills so far.
    pub fn stood_still(&self) -> Vec<Fault> {
        lock(&self.seen).standstills.clone()
    }

    /// When everything here was held up: from when the thread was to go on until it did. In the order of their
    /// beginnings.
    pub fn held_up(&self) -> Vec<(Micros, Micros)> {
        lock(&self.seen).held_up.clone()
    }

    /// When others had half of the processors. In the order of their beginnings.
    pub fn crowded(&self) -> Vec<(Micros, Micros)> {
        lock(&self.seen).crowded.clone()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Not waited for: the disk may stand still.
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What the programs of others have used: all that the drill has not started.
struct Others {
    at_us: Micros,
    /// CPU seconds since the machine was started; `None` if it does not say.
    cpu_s: Option<f64>,
    processors: f64,
}

impl Others {
    fn now() -> Self {
        let cpu_s = cpu_s_of_machine().map(|all| all - cpu_s_of_family());
        let processors = thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        Self { at_us: wall_us(), cpu_s, processors }
    }

    fn took_half_since(&self, before: &Self) -> bool {
        let seconds = (self.at_us - before.at_us) as f64 / 1e6;
        self.cpu_s
            .zip(before.cpu_s)
            .is_some_and(|(now, then)| (now - then) * 2.0 >= seconds * self.processors)
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn standstill(kind: &'static str, from_us: Micros, until_us: Micros) -> Option<Fault> {
    let long_us = until_us - from_us;
    let landed = Some(format!("stood still for {} ms, by itself", long_us / 1000));
    (long_us >= STILL_US).then_some(Fault { kind, affected: Affected::Machine, from_us, until_us, landed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until `find` finds something, at most 20 s.
    fn seen<T>(mut find: impl FnMut() -> Option<T>) -> T {
        for _ in 0..1000 {
            if let Some(found) = find() {
                return found;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("not seen in 20 s");
    }

    #[test]
    fn a_write_that_takes_long_is_seen_and_one_that_does_not_is_not() {
        let mut writes = 0;
        let machine = Machine::with(move || {
            writes += 1;
            if writes == 2 {
                thread::sleep(Duration::from_micros(STILL_US as u64));
            }
        })
        .expect("a thread");
        let disk = || machine.stood_still().into_iter().find(|one| one.kind.starts_with("disk"));
        let disk = seen(disk);
        assert_eq!(disk.affected, Affected::Machine);
        assert!(disk.until_us - disk.from_us >= STILL_US, "{disk:?}");
        let looks = machine.held_up();
        assert!(looks.contains(&(disk.from_us, disk.until_us)), "{looks:?}");
        assert!(looks.iter().all(|(from, until)| from <= until) && looks.is_sorted(), "{looks:?}");
        assert_eq!(standstill("disk", 0, STILL_US - 1), None);
    }

    #[test]
    fn others_are_a_load_from_half_of_the_processors_on() {
        let at = |seconds: i64, cpu_s| Others { at_us: seconds * 1_000_000, cpu_s, processors: 2.0 };
        let before = at(10, Some(100.0));
        assert!(at(12, Some(102.0)).took_half_since(&before));
        assert!(!at(12, Some(101.9)).took_half_since(&before));
        assert!(!at(12, None).took_half_since(&before), "nobody says so");
    }

    #[test]
    fn what_lies_on_the_disk_is_one_small_file_that_can_be_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let machine = Machine::watch(Some(dir.path())).expect("it can be written");
        seen(|| dir.path().join("probe").metadata().ok().filter(|file| file.len() == 512));
        drop(machine);
        assert!(Machine::watch(Some(&dir.path().join("nowhere"))).is_err());
    }
}
