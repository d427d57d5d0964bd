//! The Redis servers that hold the wheels, and which of them has a key: one server, or the masters of a
//! Redis Cluster.
//!
//! A batch is parted by server and sent as one pipeline (in chunks) on one connection to each, to all at
//! once; on a single server there is one part. Where the masters of a cluster are and which hash slots they
//! serve is read from whichever node answers, kept, and read again when a node says that a slot moved, is
//! away, or does not take commands. What fails on one master leaves the answers of the others as they are.
//!
//! This room knows neither shards nor slots of a wheel. It repeats commands, so it is only for those that
//! may be repeated. A slot that is being moved between masters (`ASK`) counts as away until it has arrived.
//!
//! Not redis-rs's own cluster connection: deadpool's manager for it sets no timeouts, its retries outlast
//! them (redis-rs #1528), it takes one pipeline a hash slot, and the masters' own identities are needed
//! here in any case.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use deadpool_redis::redis::{Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;

use super::Error;
use super::server::Server;
use super::topology::{Topology, hash_slot};
use crate::config::HotUrl;

/// How often a batch is tried while the cluster's slots move under it.
const ROUNDS: usize = 3;

/// A command, and the hash slot of its keys.
pub(super) struct Call {
    pub slot: u16,
    pub command: Cmd,
}

/// One server, or the masters of a cluster.
pub struct Servers {
    cluster: Option<Cluster>,
    map: RwLock<Arc<Map>>,
    connections: usize,
    wait: Duration,
}

/// What is known of a cluster beside its masters.
struct Cluster {
    /// The nodes of the setting; each leads to all.
    seeds: Vec<Arc<Server>>,
    /// The first of them, for what all have in common.
    info: ConnectionInfo,
    /// Held while somebody reads where the slots are.
    reading: tokio::sync::Mutex<()>,
}

/// Which server has which hash slots.
#[derive(Default)]
struct Map {
    servers: Vec<Arc<Server>>,
    /// First and last slot and the server's place, in order; without gaps only if the cluster has none.
    ranges: Vec<(u16, u16, usize)>,
}

impl Map {
    fn place(&self, slot: u16) -> Option<usize> {
        let after = self.ranges.partition_point(|(first, ..)| *first <= slot);
        let (_, last, server) = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(*server)
    }

    fn of(&self, slot: u16) -> Option<&Arc<Server>> {
        self.servers.get(self.place(slot)?)
    }

    /// These calls by server; those whose slot nobody serves have none.
    fn part(&self, calls: &[Call], open: Vec<usize>) -> Vec<(Option<Arc<Server>>, Vec<usize>)> {
        let mut parts: Vec<(Option<Arc<Server>>, Vec<usize>)> =
            self.servers.iter().map(|server| (Some(Arc::clone(server)), Vec::new())).collect();
        parts.push((None, Vec::new()));
        for one in open {
            parts[self.place(calls[one].slot).unwrap_or(self.servers.len())].1.push(one);
        }
        parts.retain(|(_, members)| !members.is_empty());
        parts
    }
}

impl Servers {
    /// The servers that a setting names, with up to so many connections to each; `wait` is how long a
    /// reader may wait for something to come. Nothing is reached yet. `None` for wheels in memory.
    pub fn open(url: &HotUrl, connections: usize, wait: Duration) -> Result<Option<Self>, Error> {
        let server = |info: &ConnectionInfo| Server::open(info.clone(), connections, wait);
        let (cluster, map) = match url {
            HotUrl::Memory => return Ok(None),
            HotUrl::Redis(info) => {
                (None, Map { servers: vec![server(info)?], ranges: vec![(0, u16::MAX, 0)] })
            }
            HotUrl::Cluster(nodes) => {
                let seeds = nodes.iter().map(server).collect::<Result<_, _>>()?;
                let info = nodes.first().ok_or_else(|| Error::Url("no node is named".into()))?.clone();
                (Some(Cluster { seeds, info, reading: tokio::sync::Mutex::default() }), Map::default())
            }
        };
        Ok(Some(Self { cluster, map: RwLock::new(Arc::new(map)), connections, wait }))
    }

    /// The hash slot of a key; on a single server all keys are alike.
    pub(super) fn slot_of(&self, key: &str) -> u16 {
        if self.cluster.is_some() { hash_slot(key) } else { 0 }
    }

    /// The server, or the cluster's masters, as they are known now; reads where they are at the first call.
    pub async fn masters(&self) -> Result<Vec<Arc<Server>>, Error> {
        Ok(self.known().await?.servers.clone())
    }

    /// How the cluster says that it stands; `None` on a single server.
    pub async fn topology(&self) -> Result<Option<Topology>, Error> {
        match &self.cluster {
            None => Ok(None),
            Some(cluster) => ask_around(cluster, &self.now()).await.map(Some),
        }
    }

    /// Runs a batch; answers in order. It fails if any of it does.
    pub(super) async fn run<T: FromRedisValue>(&self, calls: Vec<Call>) -> Result<Vec<T>, Error> {
        let parts: Vec<Result<T, Arc<Error>>> = self.run_parts(calls).await?;
        parts.into_iter().collect::<Result<_, _>>().map_err(Error::Shared)
    }

    /// Runs a batch; answers in order, each by itself. A single server fails as a whole, a cluster only if
    /// nobody tells where its slots are.
    pub(super) async fn run_parts<T: FromRedisValue>(
        &self,
        calls: Vec<Call>,
    ) -> Result<Vec<Result<T, Arc<Error>>>, Error> {
        let mut answers: Vec<Option<Result<T, Arc<Error>>>> = calls.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        for round in 1..=ROUNDS {
            if open.is_empty() {
                break;
            }
            let map = self.known().await?;
            let parts = map.part(&calls, std::mem::take(&mut open)).into_iter();
            let asked = parts.map(|(server, members)| async {
                let answered = self.ask_part(server.as_ref(), &members, &calls).await;
                (server, members, answered)
            });
            for (server, members, answered) in join_all(asked).await {
                let mut failed = Vec::new();
                for (one, answer) in members.into_iter().zip(answered) {
                    match answer {
                        Err(why) if self.cluster.is_some() => failed.push((one, why)),
                        answer => answers[one] = Some(answer),
                    }
                }
                let Some((_, first)) = failed.first() else { continue };
                let moved = failed.iter().map(|(_, why)| why).find(|why| why.moved_to().is_some());
                let now = self.learn(&map, moved.unwrap_or(first)).await;
                for (one, why) in failed {
                    // Who served it before is asked again only if it sent us on.
                    let again = match (now.of(calls[one].slot), &server) {
                        (Some(now), Some(then)) => why.moved_to().is_some() || !Arc::ptr_eq(now, then),
                        (now, then) => now.is_some() && then.is_none(),
                    };
                    if again && round < ROUNDS {
                        open.push(one);
                    } else {
                        answers[one] = Some(Err(why));
                    }
                }
            }
        }
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        match answers.iter().find_map(|answer| answer.as_ref().err()) {
            Some(why) if self.cluster.is_none() => Err(Error::Shared(Arc::clone(why))),
            _ => Ok(answers),
        }
    }

    /// Asks one server for its part of a batch.
    async fn ask_part<T: FromRedisValue>(
        &self,
        server: Option<&Arc<Server>>,
        members: &[usize],
        calls: &[Call],
    ) -> Vec<Result<T, Arc<Error>>> {
        let all = |why: Error| {
            let why = Arc::new(why);
            members.iter().map(|_| Err(Arc::clone(&why))).collect()
        };
        let Some(server) = server else {
            return all(Error::Uncovered(members.first().map_or(0, |one| calls[*one].slot)));
        };
        if server.is_away() {
            return all(server.told(Error::Away));
        }
        let commands: Vec<&Cmd> = members.iter().map(|one| &calls[*one].command).collect();
        let told = |why| Arc::new(self.told(server, why));
        match server.run_each(&commands).await {
            Ok(answers) => answers.into_iter().map(|one| one.map_err(|why| told(why.into()))).collect(),
            Err(why) => all(self.told(server, why)),
        }
    }

    /// Who serves each of these slots: another name than before means another server, or the same one
    /// started again. A master that does not say so soon is left alone until it does.
    pub(super) async fn identities(&self, slots: &[u16]) -> Result<Vec<Result<String, Arc<Error>>>, Error> {
        let map = self.known().await?;
        let Some(_) = &self.cluster else {
            let name = map.servers[0].identity().await?;
            return Ok(slots.iter().map(|_| Ok(name.clone())).collect());
        };
        let asked = map.servers.iter().map(|server| async { server.identity_soon().await.map_err(Arc::new) });
        let names = join_all(asked).await;
        let uncovered = |slot: u16| Err(Arc::new(Error::Uncovered(slot)));
        let of = |slot: &u16| map.place(*slot).map_or_else(|| uncovered(*slot), |place| names[place].clone());
        let told: Vec<_> = slots.iter().map(of).collect();
        if let Some(Err(why)) = names.iter().chain(&told).find(|name| name.is_err()) {
            self.learn(&map, why).await;
        }
        match names.first() {
            Some(Err(why)) if names.iter().all(Result::is_err) => Err(Error::Shared(Arc::clone(why))),
            None => Err(Error::Uncovered(0)),
            _ => Ok(told),
        }
    }

    /// Waits for something to be in the list of this name and takes it, up to so many.
    pub(super) async fn take_list(&self, list: &str, most: usize) -> Result<Vec<Vec<u8>>, Error> {
        let (map, slot) = (self.known().await?, self.slot_of(list));
        let server = map.of(slot).ok_or(Error::Uncovered(slot))?;
        let taken = server.take_list(list, self.wait, most).await;
        if let Err(why) = &taken {
            self.learn(&map, why).await;
        }
        taken.map_err(|why| self.told(server, why))
    }

    fn told(&self, server: &Server, why: Error) -> Error {
        match &self.cluster {
            Some(_) => server.told(why),
            None => why,
        }
    }

    fn now(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn known(&self) -> Result<Arc<Map>, Error> {
        let now = self.now();
        match &self.cluster {
            Some(cluster) if now.servers.is_empty() => self.read(cluster, &now, None).await,
            _ => Ok(now),
        }
    }

    /// Reads again where the slots are, after an error; what was known stays if nobody tells.
    async fn learn(&self, stale: &Arc<Map>, after: &Error) -> Arc<Map> {
        match &self.cluster {
            Some(cluster) => self.read(cluster, stale, after.moved_to()).await.unwrap_or_else(|_| self.now()),
            None => self.now(),
        }
    }

    /// Reads where the slots are, unless somebody has since `stale` was read. Who was named by the node
    /// that sent us on knows best.
    async fn read(
        &self,
        cluster: &Cluster,
        stale: &Arc<Map>,
        named: Option<(String, u16)>,
    ) -> Result<Arc<Map>, Error> {
        let _reading = cluster.reading.lock().await;
        let now = self.now();
        if !Arc::ptr_eq(&now, stale) {
            return Ok(now);
        }
        let mut topology = None;
        if let Some((host, port)) = named {
            let server = self.server(cluster, &now, host, port)?;
            topology = server.topology().await.ok();
        }
        let topology = match topology {
            Some(topology) => topology,
            None => ask_around(cluster, &now).await?,
        };
        let mut map = Map::default();
        for (first, last, host, port) in topology.ranges {
            let server = self.server(cluster, &now, host, port)?;
            let place = map.servers.iter().position(|known| known.address() == server.address());
            let place = place.unwrap_or_else(|| {
                map.servers.push(server);
                map.servers.len() - 1
            });
            map.ranges.push((first, last, place));
        }
        let map = Arc::new(map);
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&map);
        Ok(map)
    }

    /// The server at this address: the one that is known, so that its connections stay, or a new one.
    fn server(&self, cluster: &Cluster, map: &Map, host: String, port: u16) -> Result<Arc<Server>, Error> {
        let info = cluster.info.clone().set_addr(ConnectionAddr::Tcp(host, port));
        let address = info.addr().to_string();
        let known = map.servers.iter().chain(&cluster.seeds).find(|known| known.address() == address);
        known.map_or_else(|| Server::open(info, self.connections, self.wait), |known| Ok(Arc::clone(known)))
    }
}

/// Asks every known node at once where the slots are. The first that belongs to a cluster that works is
/// believed; else the one that has seen the latest election.
async fn ask_around(cluster: &Cluster, map: &Map) -> Result<Topology, Error> {
    let new = |seed: &&Arc<Server>| map.servers.iter().all(|known| known.address() != seed.address());
    let nodes = map.servers.iter().chain(cluster.seeds.iter().filter(new));
    let mut asked: FuturesUnordered<_> =
        nodes.map(|node| async move { node.topology().await.map_err(|why| node.told(why)) }).collect();
    let (mut best, mut failed) = (None::<Topology>, None);
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(topology) if topology.works => return Ok(topology),
            Ok(topology) if best.as_ref().is_none_or(|best| best.epoch < topology.epoch) => {
                best = Some(topology);
            }
            Ok(_) => {}
            // Says more than that another is away.
            Err(_) if matches!(failed, Some(Error::NotCluster(_))) => {}
            Err(why) => failed = Some(why),
        }
    }
    match (best, failed) {
        (Some(best), _) => Ok(best),
        (None, why) => Err(why.unwrap_or(Error::Uncovered(0))),
    }
}
