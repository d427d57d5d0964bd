//! Wheels in Redis: shared by all nodes, and built anew whenever they may be incomplete.
//!
//! Every call is one batch of commands. It costs one round trip, not one for each slot; on a Redis Cluster one
//! to each master, to all at the same time ([`Servers`]). All keys of a shard are on one master. Scripts are
//! sent by their hash, and loaded into servers that do not have them.
//!
//! A failover of a Redis Cluster may lose the last writes, and nothing here prevents that. The promoted replica
//! is another server, or has an older beat or another incarnation, and the wheel is built anew from SQL.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::{self, Cmd, FromRedisValue, cmd};

use super::keys::{Keys, mark};
use super::servers::{Call, Servers};
use super::slot::{Level, Marks, Slot, Tick};
use super::{
    Append, Appended, BEAT_WENT_BACK, EXPRESS, Error, HotWheel, OTHER_INCARNATION, PAGE, Standing, Take,
    Taken, Unreachable, scripts,
};
use crate::config::HotUrl;
use crate::metrics::Connections;
use crate::model::id::Epoch;
use crate::model::pointer::Pointer;

/// How long a read of an express list waits for an entry.
const EXPRESS_WAIT: Duration = Duration::from_secs(5);

/// A slot that was not taken expires so long after its end, in seconds.
const EXPIRE_S: i64 = 3600;

/// An express list that is not read expires after so long, in seconds.
const EXPIRE_EXPRESS_S: i64 = 60;

/// The most pointers that one read of an express list takes.
const EXPRESS_PAGE: usize = 5000;

/// Wheels in a Redis server, or in a Redis Cluster.
pub struct RedisWheel {
    servers: Servers,
    keys: Keys,
    append: redis::Script,
    take: redis::Script,
    build: redis::Script,
    loaded: redis::Script,
    adopt: redis::Script,
    express: redis::Script,
    witness: redis::Script,
}

impl RedisWheel {
    /// The wheels of this name in the servers of this setting, with up to `connections` to each. Connections
    /// are made when they are first needed.
    pub fn open(url: &HotUrl, connections: usize, name: &str) -> Result<Self, Error> {
        let servers = Servers::open(url, connections, EXPRESS_WAIT)?;
        Ok(Self {
            servers: servers.ok_or_else(|| Error::Url("memory:// is not a Redis".into()))?,
            keys: Keys::new(name),
            append: redis::Script::new(scripts::APPEND),
            take: redis::Script::new(scripts::TAKE),
            build: redis::Script::new(scripts::BUILD),
            loaded: redis::Script::new(scripts::LOADED),
            adopt: redis::Script::new(scripts::ADOPT),
            express: redis::Script::new(scripts::EXPRESS),
            witness: redis::Script::new(scripts::WITNESS),
        })
    }

    /// A command on one key.
    fn on(&self, name: &str, key: &str) -> Call {
        let mut command = cmd(name);
        command.arg(key);
        Call { slot: self.servers.slot_of(key), command }
    }

    /// A script on keys with one hash tag.
    fn call(&self, script: &redis::Script, keys: &[String]) -> Call {
        let mut command = cmd("EVALSHA");
        command.arg(script.get_hash()).arg(keys.len()).arg(keys);
        Call { slot: self.servers.slot_of(&keys[0]), command }
    }

    async fn run<T: FromRedisValue>(&self, calls: Vec<Call>) -> Result<Vec<T>, Error> {
        self.servers.run(calls).await
    }
}

type Fields = (Option<String>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

fn standing((incarnation, epoch, beat, loaded, second, minute, whole): Fields) -> Option<Standing> {
    Some(Standing {
        incarnation: incarnation?,
        epoch: Epoch(epoch?),
        beat: beat?,
        loaded: loaded?,
        marks: Marks { second: Tick(second?), minute: Tick(minute?), whole: Tick(whole?) },
    })
}

#[async_trait::async_trait]
impl HotWheel for RedisWheel {
    async fn servers(&self, shards: &[i32]) -> Result<Vec<Result<String, Unreachable>>, Error> {
        let slots: Vec<u16> =
            shards.iter().map(|shard| self.servers.slot_of(&self.keys.standing(*shard))).collect();
        let names = self.servers.identities(&slots).await?;
        Ok(names.into_iter().map(|name| name.map_err(Unreachable::from)).collect())
    }

    async fn look(&self, shards: &[i32]) -> Result<Vec<Option<Standing>>, Error> {
        let one = |shard: &i32| {
            let mut call = self.on("HMGET", &self.keys.standing(*shard));
            call.command.arg(&["i", "e", "b", "l", "s", "m", "w"]);
            call
        };
        let found: Vec<Fields> = self.run(shards.iter().map(one).collect()).await?;
        Ok(found.into_iter().map(standing).collect())
    }

    async fn build(&self, wheels: &[(i32, Standing)], until: i64) -> Result<Vec<bool>, Error> {
        let one = |(shard, standing): &(i32, Standing)| {
            let marks = standing.marks;
            let emptied = Level::ALL.into_iter().flat_map(|level| {
                let last = match level {
                    // Second slots exist up to the last cascaded minute; one more minute for safety.
                    Level::Second => (marks.minute.0 + 2) * 60,
                    Level::Minute | Level::WholeMinute => until / level.tick_ms() + 1,
                };
                (marks.of(level).0 - 2..=last).map(move |tick| Slot { level, tick: Tick(tick) })
            });
            let slots = emptied.map(|slot| self.keys.slot(*shard, slot));
            let keys: Vec<String> = std::iter::once(self.keys.standing(*shard)).chain(slots).collect();
            let mut call = self.call(&self.build, &keys);
            let start: &mut Cmd = &mut call.command;
            start.arg(standing.epoch.0);
            start.arg("i").arg(&standing.incarnation).arg("e").arg(standing.epoch.0);
            start.arg("b").arg(standing.beat).arg("l").arg(standing.loaded);
            start.arg("s").arg(marks.second.0).arg("m").arg(marks.minute.0).arg("w").arg(marks.whole.0);
            call
        };
        let mut built = Vec::with_capacity(wheels.len());
        // One with a long window empties thousands of slots.
        for few in wheels.chunks(8) {
            let answers = self.run::<i64>(few.iter().map(one).collect()).await?;
            built.extend(answers.into_iter().map(|built| built == 1));
        }
        Ok(built)
    }

    async fn adopt(&self, shards: &[(i32, Epoch)]) -> Result<(), Error> {
        let one = |(shard, epoch): &(i32, Epoch)| {
            let mut call = self.call(&self.adopt, &[self.keys.standing(*shard)]);
            call.command.arg(epoch.0);
            call
        };
        self.run::<i64>(shards.iter().map(one).collect()).await.map(drop)
    }

    async fn set_loaded(&self, shards: &[(i32, Epoch, i64)]) -> Result<(), Error> {
        let one = |(shard, epoch, loaded): &(i32, Epoch, i64)| {
            let mut call = self.call(&self.loaded, &[self.keys.standing(*shard)]);
            call.command.arg(epoch.0).arg(*loaded);
            call
        };
        self.run::<i64>(shards.iter().map(one).collect()).await.map(drop)
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        let one = |append: &Append| {
            let slot = append.slot;
            let keys = [self.keys.standing(append.shard), self.keys.slot(append.shard, slot)];
            let mut call = self.call(&self.append, &keys);
            let command = &mut call.command;
            command.arg(mark(slot.level)).arg(slot.tick.0).arg(slot.ends_at().get() / 1000 + EXPIRE_S);
            for pointer in &append.pointers {
                command.arg(pointer.pack().as_ref());
            }
            call
        };
        let answers = self.servers.run_each::<i64>(appends.iter().map(one).collect()).await?;
        Ok(answers
            .into_iter()
            .map(|kept| match kept {
                Ok(-1) => Appended::NoWheel,
                Ok(0) => Appended::Taken,
                Ok(_) => Appended::Kept,
                Err(why) => Appended::Unreachable(why.into()),
            })
            .collect())
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Taken>, Error> {
        let one = |take: &Take| {
            let keys = [self.keys.standing(take.shard), self.keys.slot(take.shard, take.slot)];
            let mut call = self.call(&self.take, &keys);
            let command = &mut call.command;
            command.arg(&take.incarnation).arg(take.epoch.0).arg(take.beat);
            command.arg(mark(take.slot.level)).arg(take.slot.tick.0);
            command.arg(take.skip).arg(take.skip + PAGE - 1);
            call
        };
        type Answer = (i64, i64, Vec<Vec<u8>>);
        let answers = self.servers.run_each::<Answer>(takes.iter().map(one).collect()).await?;
        let read = |(take, answer): (&Take, Result<Answer, Arc<Error>>)| match answer {
            Err(why) => Taken::Unreachable(why.into()),
            Ok((1, beat, packed)) => {
                // An entry that cannot be read was written by another version; the sweep finds its timer.
                let pointers = packed.iter().filter_map(|one| Pointer::unpack(take.shard, one)).collect();
                Taken::Page { pointers, beat, more: packed.len() == PAGE }
            }
            Ok((0, ..)) => Taken::NotMine,
            Ok((-2, ..)) => Taken::Lost(BEAT_WENT_BACK),
            Ok(_) => Taken::Lost(OTHER_INCARNATION),
        };
        Ok(takes.iter().zip(answers).map(read).collect())
    }

    async fn hand_over(&self, slots: &[(i32, Slot)]) -> Result<(), Error> {
        let one = |(shard, slot): &(i32, Slot)| self.on("UNLINK", &self.keys.slot(*shard, *slot));
        self.run::<i64>(slots.iter().map(one).collect()).await.map(drop)
    }

    async fn counts(&self, slots: &[(i32, Slot)]) -> Result<Vec<usize>, Error> {
        let one = |(shard, slot): &(i32, Slot)| self.on("LLEN", &self.keys.slot(*shard, *slot));
        self.run(slots.iter().map(one).collect()).await
    }

    async fn send_express(&self, node: &str, pointers: &[Pointer]) -> Result<bool, Error> {
        let mut calls = Vec::new();
        for chunk in pointers.chunks(super::APPEND) {
            let mut call = self.call(&self.express, &[self.keys.express(node)]);
            let command = &mut call.command;
            command.arg(EXPRESS).arg(EXPIRE_EXPRESS_S);
            for pointer in chunk {
                let mut item = pointer.shard.to_be_bytes().to_vec();
                item.extend_from_slice(pointer.pack().as_ref());
                command.arg(item);
            }
            calls.push(call);
        }
        Ok(self.run::<i64>(calls).await?.into_iter().all(|kept| kept == 1))
    }

    async fn receive_express(&self, node: &str) -> Result<Vec<Pointer>, Error> {
        let items = self.servers.take_list(&self.keys.express(node), EXPRESS_PAGE).await?;
        let read = |item: Vec<u8>| {
            let (shard, packed) = item.split_first_chunk()?;
            Pointer::unpack(i32::from_be_bytes(*shard), packed)
        };
        Ok(items.into_iter().filter_map(read).collect())
    }

    async fn witness(&self, incarnation: i64) -> Result<i64, Error> {
        let mut call = self.call(&self.witness, &[self.keys.witness()]);
        call.command.arg(incarnation);
        let answers = self.run::<i64>(vec![call]).await?;
        Ok(answers.first().copied().unwrap_or(incarnation))
    }

    async fn used(&self) -> Result<f64, Error> {
        let servers = self.servers.masters().await?;
        let used = futures::future::try_join_all(servers.iter().map(|server| server.used())).await?;
        Ok(used.into_iter().fold(0.0, f64::max))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn connections(&self) -> Option<Connections> {
        Some(self.servers.connections())
    }
}
