//! The Redis servers of the wheels, and which of them serves a key: one server, or the masters of a Redis
//! Cluster.
//!
//! A batch is grouped by server. Each group is one pipeline (in chunks) on one connection, and all servers are
//! asked at the same time. Which master of a cluster serves which hash slots is read from the first node that
//! answers, kept, and read again when a node redirects a slot, is unreachable, or takes no commands. A failure
//! of one master does not affect the answers of the others.
//!
//! Slots here are Redis's hash slots; this room knows neither shards nor the slots of a wheel. Commands are
//! sent again after some failures, so they must be repeatable. A hash slot that is being moved between masters
//! (`ASK`) counts as unreachable until the move is done.
//!
//! Why not redis-rs's own cluster connection: deadpool's manager for it sets no timeouts, its retries outlast
//! them (redis-rs #1528), it needs one pipeline for each hash slot, and the identities of the masters are
//! needed here anyway.

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
use crate::metrics::Connections;

/// How often a batch is tried while hash slots move between masters.
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
    /// The nodes of the setting; each knows all others.
    seeds: Vec<Arc<Server>>,
    /// The first of them, for the settings that all nodes have in common (user, password, TLS).
    info: ConnectionInfo,
    /// Held while the topology is read.
    reading: tokio::sync::Mutex<()>,
}

/// Which server serves which hash slots.
#[derive(Default)]
struct Map {
    servers: Vec<Arc<Server>>,
    /// First and last slot and the server's index, in order. Slots that no master serves are missing.
    ranges: Vec<(u16, u16, usize)>,
}

impl Map {
    fn index_of(&self, slot: u16) -> Option<usize> {
        let after = self.ranges.partition_point(|(first, ..)| *first <= slot);
        let (_, last, server) = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(*server)
    }

    fn of(&self, slot: u16) -> Option<&Arc<Server>> {
        self.servers.get(self.index_of(slot)?)
    }

    /// Groups these calls by server; `None` for calls whose slot no master serves.
    fn by_server(&self, calls: &[Call], open: Vec<usize>) -> Vec<(Option<Arc<Server>>, Vec<usize>)> {
        let mut groups: Vec<(Option<Arc<Server>>, Vec<usize>)> =
            self.servers.iter().map(|server| (Some(Arc::clone(server)), Vec::new())).collect();
        groups.push((None, Vec::new()));
        for one in open {
            groups[self.index_of(calls[one].slot).unwrap_or(self.servers.len())].1.push(one);
        }
        groups.retain(|(_, members)| !members.is_empty());
        groups
    }
}

impl Servers {
    /// The servers that a setting names, with up to `connections` to each; `wait` is how long a blocking read
    /// waits. No connection is made yet. `None` for wheels in memory.
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

    /// The hash slot of a key; 0 on a single server.
    pub(super) fn slot_of(&self, key: &str) -> u16 {
        if self.cluster.is_some() { hash_slot(key) } else { 0 }
    }

    /// The connections to all servers together.
    pub(super) fn connections(&self) -> Connections {
        let each = self.current().servers.iter().map(|server| server.connections()).collect::<Vec<_>>();
        let sum = |pick: fn(&Connections) -> usize| each.iter().map(pick).sum();
        Connections { idle: sum(|one| one.idle), used: sum(|one| one.used), max: sum(|one| one.max) }
    }

    /// The single server, or the cluster's masters as they are known now. The first call reads the topology.
    pub async fn masters(&self) -> Result<Vec<Arc<Server>>, Error> {
        Ok(self.map().await?.servers.clone())
    }

    /// The topology of the cluster, read now; `None` on a single server.
    pub async fn topology(&self) -> Result<Option<Topology>, Error> {
        match &self.cluster {
            None => Ok(None),
            Some(cluster) => read_topology(cluster, &self.current()).await.map(Some),
        }
    }

    /// Runs a batch; answers in order. Fails if any call fails.
    pub(super) async fn run<T: FromRedisValue>(&self, calls: Vec<Call>) -> Result<Vec<T>, Error> {
        let answers: Vec<Result<T, Arc<Error>>> = self.run_each(calls).await?;
        answers.into_iter().collect::<Result<_, _>>().map_err(Error::Shared)
    }

    /// Runs a batch; returns a result for each call, in order. Fails as a whole on a single server that fails,
    /// and on a cluster of which no node returns the topology.
    pub(super) async fn run_each<T: FromRedisValue>(
        &self,
        calls: Vec<Call>,
    ) -> Result<Vec<Result<T, Arc<Error>>>, Error> {
        let mut answers: Vec<Option<Result<T, Arc<Error>>>> = calls.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        for round in 1..=ROUNDS {
            if open.is_empty() {
                break;
            }
            let map = self.map().await?;
            let groups = map.by_server(&calls, std::mem::take(&mut open)).into_iter();
            let asked = groups.map(|(server, members)| async {
                let answered = self.ask(server.as_ref(), &members, &calls).await;
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
                let now = self.refresh(&map, moved.unwrap_or(first)).await;
                for (one, why) in failed {
                    // The same server is asked again only if it redirected the call.
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

    /// Runs the calls of one server.
    async fn ask<T: FromRedisValue>(
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
        if server.is_unreachable() {
            return all(server.with_address(Error::Unreachable));
        }
        let commands: Vec<&Cmd> = members.iter().map(|one| &calls[*one].command).collect();
        let failure = |why| Arc::new(self.with_address(server, why));
        match server.run_each(&commands).await {
            Ok(answers) => answers.into_iter().map(|one| one.map_err(|why| failure(why.into()))).collect(),
            Err(why) => all(self.with_address(server, why)),
        }
    }

    /// The identity (`run_id`) of the server of each of these slots. It changes when the server is restarted or
    /// replaced. No other command is sent to a master that does not answer in time, until it answers.
    pub(super) async fn identities(&self, slots: &[u16]) -> Result<Vec<Result<String, Arc<Error>>>, Error> {
        let map = self.map().await?;
        let Some(_) = &self.cluster else {
            let name = map.servers[0].identity().await?;
            return Ok(slots.iter().map(|_| Ok(name.clone())).collect());
        };
        let asked =
            map.servers.iter().map(|server| async { server.master_identity().await.map_err(Arc::new) });
        let names = join_all(asked).await;
        let uncovered = |slot: u16| Err(Arc::new(Error::Uncovered(slot)));
        let of =
            |slot: &u16| map.index_of(*slot).map_or_else(|| uncovered(*slot), |index| names[index].clone());
        let by_slot: Vec<_> = slots.iter().map(of).collect();
        if let Some(Err(why)) = names.iter().chain(&by_slot).find(|name| name.is_err()) {
            self.refresh(&map, why).await;
        }
        match names.first() {
            Some(Err(why)) if names.iter().all(Result::is_err) => Err(Error::Shared(Arc::clone(why))),
            None => Err(Error::Uncovered(0)),
            _ => Ok(by_slot),
        }
    }

    /// Waits for an entry of this list, then takes up to `most` of them.
    pub(super) async fn take_list(&self, list: &str, most: usize) -> Result<Vec<Vec<u8>>, Error> {
        let (map, slot) = (self.map().await?, self.slot_of(list));
        let server = map.of(slot).ok_or(Error::Uncovered(slot))?;
        let taken = server.take_list(list, self.wait, most).await;
        if let Err(why) = &taken {
            self.refresh(&map, why).await;
        }
        taken.map_err(|why| self.with_address(server, why))
    }

    fn with_address(&self, server: &Server, why: Error) -> Error {
        match &self.cluster {
            Some(_) => server.with_address(why),
            None => why,
        }
    }

    fn current(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The map; a cluster's is read at the first call.
    async fn map(&self) -> Result<Arc<Map>, Error> {
        let now = self.current();
        match &self.cluster {
            Some(cluster) if now.servers.is_empty() => self.read(cluster, &now, None).await,
            _ => Ok(now),
        }
    }

    /// Reads the topology again after an error. The present map stays if no node returns one.
    async fn refresh(&self, stale: &Arc<Map>, after: &Error) -> Arc<Map> {
        match &self.cluster {
            Some(cluster) => {
                self.read(cluster, stale, after.moved_to()).await.unwrap_or_else(|_| self.current())
            }
            None => self.current(),
        }
    }

    /// Reads the topology, unless another task has replaced `stale` meanwhile. A node that a redirection named
    /// is asked first.
    async fn read(
        &self,
        cluster: &Cluster,
        stale: &Arc<Map>,
        named: Option<(String, u16)>,
    ) -> Result<Arc<Map>, Error> {
        let _reading = cluster.reading.lock().await;
        let now = self.current();
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
            None => read_topology(cluster, &now).await?,
        };
        let mut map = Map::default();
        for (first, last, host, port) in topology.ranges {
            let server = self.server(cluster, &now, host, port)?;
            let index = map.servers.iter().position(|known| known.address() == server.address());
            let index = index.unwrap_or_else(|| {
                map.servers.push(server);
                map.servers.len() - 1
            });
            map.ranges.push((first, last, index));
        }
        let map = Arc::new(map);
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&map);
        Ok(map)
    }

    /// The server at this address: the known one, so that its connections stay, or a new one.
    fn server(&self, cluster: &Cluster, map: &Map, host: String, port: u16) -> Result<Arc<Server>, Error> {
        // As the seeds are reached; a certificate has to be of the host that the cluster names.
        let address = match cluster.info.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: None }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let info = cluster.info.clone().set_addr(address);
        let address = info.addr().to_string();
        let known = map.servers.iter().chain(&cluster.seeds).find(|known| known.address() == address);
        known.map_or_else(|| Server::open(info, self.connections, self.wait), |known| Ok(Arc::clone(known)))
    }
}

/// Reads the topology from all known nodes at the same time. Returns the first one of a cluster that works;
/// else the one of the highest cluster epoch, which rises with every election.
async fn read_topology(cluster: &Cluster, map: &Map) -> Result<Topology, Error> {
    let new = |seed: &&Arc<Server>| map.servers.iter().all(|known| known.address() != seed.address());
    let nodes = map.servers.iter().chain(cluster.seeds.iter().filter(new));
    let mut asked: FuturesUnordered<_> = nodes
        .map(|node| async move { node.topology().await.map_err(|why| node.with_address(why)) })
        .collect();
    let (mut best, mut failed) = (None::<Topology>, None);
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(topology) if topology.works => return Ok(topology),
            Ok(topology) if best.as_ref().is_none_or(|best| best.epoch < topology.epoch) => {
                best = Some(topology);
            }
            Ok(_) => {}
            // This error says more than that another node is unreachable.
            Err(_) if matches!(failed, Some(Error::NotCluster(_))) => {}
            Err(why) => failed = Some(why),
        }
    }
    match (best, failed) {
        (Some(best), _) => Ok(best),
        (None, why) => Err(why.unwrap_or(Error::Uncovered(0))),
    }
}
