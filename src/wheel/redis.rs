//! Wheels in Redis: shared by all nodes, rebuilt whenever in doubt.
//!
//! Every call takes one connection and sends one pipeline (in chunks), so that its cost is one round trip
//! and not one for each slot. Scripts are sent by hash and loaded when Redis does not know them.

use std::time::Duration;

use deadpool_redis::redis::{self, AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline, cmd};
use deadpool_redis::{Connection, Manager, Pool, Runtime};

use super::keys::{Keys, mark};
use super::slot::{Level, Marks, Slot, Tick};
use super::{
    Append, Appended, EXPRESS, Error, GONE, HotWheel, PAGE, Standing, Take, Taken, WENT_BACK, scripts,
};
use crate::config::Config;
use crate::model::id::Epoch;
use crate::model::pointer::{PACKED, Pointer};

/// How long one pipeline may take.
const ANSWER: Duration = Duration::from_secs(2);

/// How long connecting, or waiting for a free connection, may take.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a reader of express lists waits for something to come.
const EXPRESS_WAIT: Duration = Duration::from_secs(5);

/// Commands of one pipeline.
const PIPELINE: usize = 100;

/// How long after its end a slot that nobody took is forgotten, seconds.
const FORGET_S: i64 = 3600;

/// How long an express list that nobody reads is kept, seconds.
const FORGET_EXPRESS_S: i64 = 60;

/// The most pointers read from an express list at once.
const EXPRESS_PAGE: usize = 5000;

/// Wheels in a Redis server.
pub struct RedisWheel {
    pool: Pool,
    /// For reads that wait.
    waiting: Pool,
    keys: Keys,
    append: redis::Script,
    take: redis::Script,
    adopt: redis::Script,
    express: redis::Script,
}

impl RedisWheel {
    /// The wheels of this name in the server that `hot.url` names; it is reached when it is first needed.
    pub fn open(config: &Config, name: &str) -> Result<Self, Error> {
        let pool = |size: usize, answer: Duration| {
            let settings = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(CONNECT))
                .set_response_timeout(Some(answer));
            let manager = Manager::new_with_config(config.hot.url.as_str(), settings)?;
            Pool::builder(manager)
                .max_size(size)
                .runtime(Runtime::Tokio1)
                .wait_timeout(Some(CONNECT))
                .create_timeout(Some(CONNECT))
                .recycle_timeout(Some(CONNECT))
                .build()
                .map_err(|why| Error::Url(why.to_string()))
        };
        Ok(Self {
            pool: pool(config.hot.connections, ANSWER)?,
            waiting: pool(1, EXPRESS_WAIT + ANSWER)?,
            keys: Keys::new(name),
            append: redis::Script::new(scripts::APPEND),
            take: redis::Script::new(scripts::TAKE),
            adopt: redis::Script::new(scripts::ADOPT),
            express: redis::Script::new(scripts::EXPRESS),
        })
    }

    /// Runs commands in pipelines; answers in order. Scripts that Redis has forgotten are loaded and the
    /// pipeline is sent again: every command may be repeated.
    async fn run<T: FromRedisValue>(&self, commands: Vec<Cmd>) -> Result<Vec<T>, Error> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = self.pool.get().await?;
        let mut answers = Vec::with_capacity(commands.len());
        for chunk in commands.chunks(PIPELINE) {
            let mut pipeline = Pipeline::with_capacity(chunk.len());
            for command in chunk {
                pipeline.add_command(command.clone());
            }
            let answered: Result<Vec<T>, _> = pipeline.query_async(&mut connection).await;
            answers.extend(match answered {
                Err(why) if why.code() == Some("NOSCRIPT") => {
                    self.load_scripts(&mut connection).await?;
                    pipeline.query_async(&mut connection).await?
                }
                answered => answered?,
            });
        }
        Ok(answers)
    }

    async fn load_scripts(&self, connection: &mut Connection) -> Result<(), Error> {
        for script in [&self.append, &self.take, &self.adopt, &self.express] {
            script.load_async(connection).await?;
        }
        Ok(())
    }
}

fn call(script: &redis::Script, keys: &[String]) -> Cmd {
    let mut command = cmd("EVALSHA");
    command.arg(script.get_hash()).arg(keys.len()).arg(keys);
    command
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
    async fn server(&self) -> Result<String, Error> {
        let mut info = cmd("INFO");
        info.arg("server");
        let text: String = self.run(vec![info]).await?.pop().unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("run_id:"));
        id.map(|id| id.trim().to_owned()).ok_or_else(|| Error::Answer("INFO without run_id".into()))
    }

    async fn look(&self, shards: &[i32]) -> Result<Vec<Option<Standing>>, Error> {
        let one = |shard: &i32| {
            let mut command = cmd("HMGET");
            command.arg(self.keys.standing(*shard)).arg(&["i", "e", "b", "l", "s", "m", "w"]);
            command
        };
        let found: Vec<Fields> = self.run(shards.iter().map(one).collect()).await?;
        Ok(found.into_iter().map(standing).collect())
    }

    async fn build(&self, wheels: &[(i32, Standing)], until: i64) -> Result<(), Error> {
        for (shard, standing) in wheels {
            let marks = standing.marks;
            let mut start = cmd("HSET");
            start.arg(self.keys.standing(*shard));
            start.arg("i").arg(&standing.incarnation).arg("e").arg(standing.epoch.0);
            start.arg("b").arg(standing.beat).arg("l").arg(standing.loaded);
            start.arg("s").arg(marks.second.0).arg("m").arg(marks.minute.0).arg("w").arg(marks.whole.0);
            // The new incarnation first: from here on nobody takes from the old one's slots.
            let mut commands = vec![start];
            for level in Level::ALL {
                // Seconds reach as far as the minutes that were cascaded, and a minute of slack.
                let last = match level {
                    Level::Second => (marks.minute.0 + 2) * 60,
                    Level::Minute | Level::WholeMinute => until / level.tick_ms() + 1,
                };
                let slots: Vec<String> = (marks.of(level).0 - 2..=last)
                    .map(|tick| self.keys.slot(*shard, Slot { level, tick: Tick(tick) }))
                    .collect();
                for chunk in slots.chunks(500) {
                    let mut unlink = cmd("UNLINK");
                    unlink.arg(chunk);
                    commands.push(unlink);
                }
            }
            self.run::<i64>(commands).await?;
        }
        Ok(())
    }

    async fn adopt(&self, shards: &[(i32, Epoch)]) -> Result<(), Error> {
        let one = |(shard, epoch): &(i32, Epoch)| {
            let mut command = call(&self.adopt, &[self.keys.standing(*shard)]);
            command.arg(epoch.0);
            command
        };
        self.run::<i64>(shards.iter().map(one).collect()).await.map(drop)
    }

    async fn set_loaded(&self, shards: &[(i32, i64)]) -> Result<(), Error> {
        let one = |(shard, loaded): &(i32, i64)| {
            let mut command = cmd("HSET");
            command.arg(self.keys.standing(*shard)).arg("l").arg(*loaded);
            command
        };
        self.run::<i64>(shards.iter().map(one).collect()).await.map(drop)
    }

    async fn append(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        let one = |append: &Append| {
            let slot = append.slot;
            let keys = [self.keys.standing(append.shard), self.keys.slot(append.shard, slot)];
            let mut command = call(&self.append, &keys);
            command.arg(mark(slot.level)).arg(slot.tick.0).arg(slot.ends_at().get() / 1000 + FORGET_S);
            for pointer in &append.pointers {
                command.arg(&pointer.pack()[..]);
            }
            command
        };
        let answers: Vec<i64> = self.run(appends.iter().map(one).collect()).await?;
        Ok(answers
            .into_iter()
            .map(|kept| match kept {
                -1 => Appended::NoWheel,
                0 => Appended::Taken,
                _ => Appended::Kept,
            })
            .collect())
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Taken>, Error> {
        let one = |take: &Take| {
            let keys = [self.keys.standing(take.shard), self.keys.slot(take.shard, take.slot)];
            let mut command = call(&self.take, &keys);
            command.arg(&take.incarnation).arg(take.epoch.0).arg(take.beat);
            command.arg(mark(take.slot.level)).arg(take.slot.tick.0);
            command.arg(take.skip).arg(take.skip + PAGE - 1);
            command
        };
        let answers: Vec<(i64, i64, Vec<Vec<u8>>)> = self.run(takes.iter().map(one).collect()).await?;
        let read = |(take, (code, beat, packed)): (&Take, (i64, i64, Vec<Vec<u8>>))| match code {
            1 => {
                // What cannot be read was written by another version; the sweep finds its timer.
                let pointers = packed.iter().filter_map(|one| Pointer::unpack(take.shard, one)).collect();
                Taken::Page { pointers, beat, more: packed.len() == PAGE }
            }
            0 => Taken::NotMine,
            -2 => Taken::Lost(WENT_BACK),
            _ => Taken::Lost(GONE),
        };
        Ok(takes.iter().zip(answers).map(read).collect())
    }

    async fn hand_over(&self, slots: &[(i32, Slot)]) -> Result<(), Error> {
        let one = |(shard, slot): &(i32, Slot)| {
            let mut command = cmd("UNLINK");
            command.arg(self.keys.slot(*shard, *slot));
            command
        };
        self.run::<i64>(slots.iter().map(one).collect()).await.map(drop)
    }

    async fn counts(&self, slots: &[(i32, Slot)]) -> Result<Vec<usize>, Error> {
        let one = |(shard, slot): &(i32, Slot)| {
            let mut command = cmd("LLEN");
            command.arg(self.keys.slot(*shard, *slot));
            command
        };
        self.run(slots.iter().map(one).collect()).await
    }

    async fn send_express(&self, node: &str, pointers: &[Pointer]) -> Result<bool, Error> {
        let mut commands = Vec::new();
        for chunk in pointers.chunks(super::APPEND) {
            let mut command = call(&self.express, &[self.keys.express(node)]);
            command.arg(EXPRESS).arg(FORGET_EXPRESS_S);
            for pointer in chunk {
                let mut item = pointer.shard.to_be_bytes().to_vec();
                item.extend(pointer.pack());
                command.arg(item);
            }
            commands.push(command);
        }
        Ok(self.run::<i64>(commands).await?.into_iter().all(|kept| kept == 1))
    }

    async fn receive_express(&self, node: &str) -> Result<Vec<Pointer>, Error> {
        let list = self.keys.express(node);
        let mut connection = self.waiting.get().await?;
        let mut wait = cmd("BLPOP");
        wait.arg(&list).arg(EXPRESS_WAIT.as_secs());
        let first: Option<(String, Vec<u8>)> = wait.query_async(&mut connection).await?;
        let Some((_, first)) = first else { return Ok(Vec::new()) };
        let mut rest = cmd("LPOP");
        rest.arg(&list).arg(EXPRESS_PAGE);
        let rest: Option<Vec<Vec<u8>>> = rest.query_async(&mut connection).await?;
        let read = |item: Vec<u8>| {
            let (shard, packed) = item.split_at_checked(item.len().checked_sub(PACKED)?)?;
            Pointer::unpack(i32::from_be_bytes(shard.try_into().ok()?), packed)
        };
        Ok(std::iter::once(first).chain(rest.unwrap_or_default()).filter_map(read).collect())
    }

    fn is_shared(&self) -> bool {
        true
    }
}
