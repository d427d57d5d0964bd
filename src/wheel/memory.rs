//! Wheels in the memory of this process: for embedded mode, and the model that the tests compare Redis with.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use super::slot::Slot;
use super::{
    Append, Appended, BEAT_WENT_BACK, EXPRESS, Error, HotWheel, OTHER_INCARNATION, PAGE, Standing, Take,
    Taken, Unreachable,
};
use crate::model::id::Epoch;
use crate::model::pointer::Pointer;

/// The contents of the wheels at some moment.
#[derive(Debug, Clone)]
pub struct Snapshot(State);

/// Wheels in the memory of this process; they are lost with it.
#[derive(Debug)]
pub struct MemoryWheel {
    server: String,
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Debug, Clone, Default)]
struct State {
    shards: HashMap<i32, Wheel>,
    express: HashMap<String, Vec<Pointer>>,
}

#[derive(Debug, Clone)]
struct Wheel {
    standing: Standing,
    slots: BTreeMap<Slot, Vec<Pointer>>,
}

impl Default for MemoryWheel {
    fn default() -> Self {
        Self { server: Uuid::now_v7().simple().to_string(), state: Mutex::default(), arrived: Notify::new() }
    }
}

impl MemoryWheel {
    fn with<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        run(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Empties the wheels, as `FLUSHALL` does (tests).
    pub fn flush(&self) {
        self.with(|state| *state = State::default());
    }

    /// Copies the contents, for [`MemoryWheel::roll_back`] (tests).
    pub fn snapshot(&self) -> Snapshot {
        self.with(|state| Snapshot(state.clone()))
    }

    /// Restores the contents of a snapshot, as a server that was restored from a backup (tests).
    pub fn roll_back(&self, to: &Snapshot) {
        self.with(|state| *state = to.0.clone());
    }
}

#[async_trait::async_trait]
impl HotWheel for MemoryWheel {
    async fn servers(&self, shards: &[i32]) -> Result<Vec<Result<String, Unreachable>>, Error> {
        Ok(shards.iter().map(|_| Ok(self.server.clone())).collect())
    }

    async fn look(&self, shards: &[i32]) -> Result<Vec<Option<Standing>>, Error> {
        Ok(self.with(|state| {
            shards.iter().map(|shard| state.shards.get(shard).map(|wheel| wheel.standing.clone())).collect()
        }))
    }

    async fn build(&self, wheels: &[(i32, Standing)], _until: i64) -> Result<Vec<bool>, Error> {
        Ok(self.with(|state| {
            let mut build = |(shard, standing): &(i32, Standing)| {
                let is_free =
                    state.shards.get(shard).is_none_or(|wheel| wheel.standing.epoch <= standing.epoch);
                if is_free {
                    let wheel = Wheel { standing: standing.clone(), slots: BTreeMap::new() };
                    state.shards.insert(*shard, wheel);
                }
                is_free
            };
            wheels.iter().map(&mut build).collect()
        }))
    }

    async fn adopt(&self, shards: &[(i32, Epoch)]) -> Result<(), Error> {
        self.with(|state| {
            for (shard, epoch) in shards {
                if let Some(wheel) = state.shards.get_mut(shard) {
                    wheel.standing.epoch = wheel.standing.epoch.max(*epoch);
                }
            }
        });
        Ok(())
    }

    async fn set_loaded(&self, shards: &[(i32, Epoch, i64)]) -> Result<(), Error> {
        self.with(|state| {
            for (shard, epoch, loaded) in shards {
                let wheel = state.shards.get_mut(shard).filter(|wheel| wheel.standing.epoch == *epoch);
                if let Some(wheel) = wheel {
                    wheel.standing.loaded = *loaded;
                }
            }
        });
        Ok(())
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        Ok(self.with(|state| {
            appends
                .iter()
                .map(|append| match state.shards.get_mut(&append.shard) {
                    None => Appended::NoWheel,
                    Some(wheel) if append.slot.tick <= wheel.standing.marks.of(append.slot.level) => {
                        Appended::Taken
                    }
                    Some(wheel) => {
                        wheel.slots.entry(append.slot).or_default().extend(&append.pointers);
                        Appended::Kept
                    }
                })
                .collect()
        }))
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Taken>, Error> {
        Ok(self.with(|state| {
            let one = |take: &Take| {
                let Some(wheel) = state.shards.get_mut(&take.shard) else {
                    return Taken::Lost(OTHER_INCARNATION);
                };
                let standing = &mut wheel.standing;
                if standing.incarnation != take.incarnation {
                    return Taken::Lost(OTHER_INCARNATION);
                }
                if standing.epoch != take.epoch {
                    return Taken::NotMine;
                }
                if standing.beat < take.beat {
                    return Taken::Lost(BEAT_WENT_BACK);
                }
                standing.beat += 1;
                let mark = standing.marks.of_mut(take.slot.level);
                *mark = take.slot.tick.max(*mark);
                let beat = standing.beat;
                let all = wheel.slots.get(&take.slot).map_or(&[][..], Vec::as_slice);
                let pointers: Vec<Pointer> = all.iter().skip(take.skip).take(PAGE).copied().collect();
                let more = pointers.len() == PAGE;
                Taken::Page { pointers, beat, more }
            };
            takes.iter().map(one).collect()
        }))
    }

    async fn hand_over(&self, slots: &[(i32, Slot)]) -> Result<(), Error> {
        self.with(|state| {
            for (shard, slot) in slots {
                if let Some(wheel) = state.shards.get_mut(shard) {
                    wheel.slots.remove(slot);
                }
            }
        });
        Ok(())
    }

    async fn counts(&self, slots: &[(i32, Slot)]) -> Result<Vec<usize>, Error> {
        Ok(self.with(|state| {
            let one = |(shard, slot): &(i32, Slot)| {
                state.shards.get(shard).and_then(|wheel| wheel.slots.get(slot)).map_or(0, Vec::len)
            };
            slots.iter().map(one).collect()
        }))
    }

    async fn send_express(&self, node: &str, pointers: &[Pointer]) -> Result<bool, Error> {
        let sent = self.with(|state| {
            let list = state.express.entry(node.to_owned()).or_default();
            let fits = list.len() + pointers.len() <= EXPRESS;
            if fits {
                list.extend(pointers);
            }
            fits
        });
        self.arrived.notify_waiters();
        Ok(sent)
    }

    async fn receive_express(&self, node: &str) -> Result<Vec<Pointer>, Error> {
        let arrived = self.arrived.notified();
        let waiting = |state: &mut State| state.express.remove(node).unwrap_or_default();
        let pointers = self.with(waiting);
        if !pointers.is_empty() {
            return Ok(pointers);
        }
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), arrived).await;
        Ok(self.with(waiting))
    }

    fn is_shared(&self) -> bool {
        false
    }
}
