//! When the machine stood still by itself: its disk or its processors. Everything on it does then, and neither the
//! drill nor a node is the cause.
//!
//! A thread looks ten times a second. A standstill is a fault like those that the drill injects, but it rehearses
//! nothing.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::history::{Affected, Fault, Micros};
use crate::clock::wall_us;

/// How often it looks.
const EVERY: Duration = Duration::from_millis(100);

/// A look that takes longer is a standstill: a lease is renewed once a second, and a straggler is 0.9 s late.
const STILL_US: Micros = 700_000;

/// Watches the machine until dropped.
pub struct Machine {
    seen: Arc<Mutex<Vec<Fault>>>,
    over: Arc<AtomicBool>,
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
        let seen: Arc<Mutex<Vec<Fault>>> = Arc::default();
        let over = Arc::new(AtomicBool::new(false));
        let (noted, ended) = (Arc::clone(&seen), Arc::clone(&over));
        let look = move || {
            let note = |kind, from_us, until_us| {
                let mut seen = noted.lock().unwrap_or_else(PoisonError::into_inner);
                seen.extend(standstill(kind, from_us, until_us));
            };
            while !ended.load(Ordering::Relaxed) {
                let due_us = wall_us() + EVERY.as_micros() as Micros;
                thread::sleep(EVERY);
                let woke_us = wall_us();
                note("processors of this machine", due_us, woke_us);
                write();
                note("disk of this machine", woke_us, wall_us());
            }
        };
        thread::Builder::new().name("machine".into()).spawn(look)?;
        Ok(Self { seen, over })
    }

    /// The standstills so far.
    pub fn stood_still(&self) -> Vec<Fault> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Not waited for: the disk may stand still.
        self.over.store(true, Ordering::Relaxed);
    }
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
        assert_eq!(standstill("disk", 0, STILL_US - 1), None);
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
