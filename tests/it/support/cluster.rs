//! A Redis Cluster of three masters, each a private Redis of its own.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Keeps, Redis, free_port};

/// The nodes find each other within a second or two, unless the machine is busy.
const MEET: Duration = Duration::from_secs(60);

/// Hash slots of a cluster.
const SLOTS: usize = 16_384;

/// Masters that keep nothing but their place in the cluster: killed and started again, one is empty. Slots
/// are served while others are not. Dropping it ends them.
pub struct Cluster {
    pub masters: Vec<Redis>,
    /// Where the first listens for the others.
    bus: String,
    replicas: Vec<Redis>,
}

impl Cluster {
    /// Starts three masters with a third of the hash slots each, and returns when the cluster works.
    pub async fn start() -> Self {
        Self::of([Vec::new(), Vec::new(), Vec::new()]).await
    }

    /// The same, with further options for each master.
    pub async fn of([first, second, third]: [Vec<String>; 3]) -> Self {
        let (first, bus) = node(first).await;
        let masters = vec![first, node(second).await.0, node(third).await.0];
        let cluster = Self { masters, bus, replicas: Vec::new() };
        for (n, master) in cluster.masters.iter().enumerate() {
            let slots = SLOTS * n / 3..SLOTS * (n + 1) / 3;
            let (first, last) = (slots.start.to_string(), (slots.end - 1).to_string());
            master.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]).await;
            master.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
            if n > 0 {
                cluster.meet(master).await;
            }
        }
        cluster.works().await;
        cluster
    }

    /// The cluster that the tests of this process share: started by the first, ended with the last that
    /// holds it at a time. Nobody may harm it.
    pub async fn shared() -> Arc<Self> {
        static SHARED: tokio::sync::Mutex<Weak<Cluster>> = tokio::sync::Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(cluster) = shared.upgrade() {
            return cluster;
        }
        let cluster = Arc::new(Self::start().await);
        *shared = Arc::downgrade(&cluster);
        cluster
    }

    /// Adds a replica of a master, and returns when it holds what the master does.
    pub async fn add_replica(&mut self, of: usize) {
        let (replica, _) = node(Vec::new()).await;
        self.meet(&replica).await;
        let master = self.id(of).await;
        until("the replica knows its master", async || {
            replica.cli(&["CLUSTER", "NODES"]).await.contains(&master)
        })
        .await;
        replica.cli(&["CLUSTER", "REPLICATE", &master]).await;
        until("the replica follows", async || {
            replica.cli(&["INFO", "replication"]).await.contains("master_link_status:up")
        })
        .await;
        self.replicas.push(replica);
    }

    /// Waits until every master sees every hash slot served.
    pub async fn works(&self) {
        let end = Instant::now() + MEET;
        for master in &self.masters {
            loop {
                let info = master.cli(&["CLUSTER", "INFO"]).await;
                let slots = master.cli(&["CLUSTER", "SLOTS"]).await.matches("127.0.0.1").count();
                if info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384") && slots >= 3
                {
                    break;
                }
                assert!(Instant::now() < end, "the cluster does not come to work: {info}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Moves the hash slot of a key, with all its keys, to another master; returns when all know it.
    pub async fn move_slot(&self, key: &str, to: usize) {
        let slot = self.masters[to].cli(&["CLUSTER", "KEYSLOT", key]).await;
        let from = self.master_of(key).await;
        let (source, target) = (&self.masters[from], &self.masters[to]);
        let (source_id, target_id) = (self.id(from).await, self.id(to).await);
        target.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await;
        source.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await;
        let port = target.port().to_string();
        for key in source.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]).await.lines() {
            source.cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
        }
        for master in [target, source].into_iter().chain(&self.masters) {
            master.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await;
        }
    }

    /// The place of the master that was started with a key's hash slot.
    pub async fn master_of(&self, key: &str) -> usize {
        for master in &self.masters {
            // A master that is down cannot be asked.
            if master.is_running() {
                let slot: usize = master.cli(&["CLUSTER", "KEYSLOT", key]).await.parse().expect("a slot");
                return (0..3).find(|n| slot < SLOTS * (n + 1) / 3).expect("a third");
            }
        }
        panic!("no master runs");
    }

    /// For `hot.url`; the last master is left to be found.
    pub fn url(&self) -> String {
        let named: Vec<String> =
            self.masters[..2].iter().map(|master| format!("127.0.0.1:{}", master.port())).collect();
        format!("redis+cluster://{}", named.join(","))
    }

    /// The URL of each master.
    pub fn nodes(&self) -> Vec<String> {
        self.masters.iter().map(Redis::url).collect()
    }

    async fn id(&self, master: usize) -> String {
        self.masters[master].cli(&["CLUSTER", "MYID"]).await
    }

    /// Introduces a node and the first master to each other. A node forgets another that does not answer within a
    /// second, and a busy machine takes longer, so the introduction is repeated.
    async fn meet(&self, node: &Redis) {
        let first = &self.masters[0];
        let (port, first_id) = (first.port().to_string(), self.id(0).await);
        let id = node.cli(&["CLUSTER", "MYID"]).await;
        let end = Instant::now() + MEET;
        loop {
            node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &self.bus]).await;
            let (theirs, its) =
                (first.cli(&["CLUSTER", "NODES"]).await, node.cli(&["CLUSTER", "NODES"]).await);
            if theirs.contains(&id) && its.contains(&first_id) {
                break;
            }
            assert!(Instant::now() < end, "the nodes do not meet: {theirs}\n{its}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A node that belongs to no cluster yet, and the port of its bus.
async fn node(further: Vec<String>) -> (Redis, String) {
    let bus = free_port().to_string();
    let options = [
        ("--cluster-enabled", "yes"),
        ("--cluster-config-file", "nodes.conf"),
        ("--cluster-port", &bus),
        ("--cluster-announce-ip", "127.0.0.1"),
        ("--cluster-node-timeout", "1000"),
        ("--cluster-require-full-coverage", "no"),
    ];
    let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]);
    let options = options.chain(further).collect();
    (Redis::private_with(Keeps::Snapshots, options).await, bus)
}

async fn until(what: &str, done: impl AsyncFn() -> bool) {
    super::eventually(what, MEET, async || if done().await { Ok(()) } else { Err(()) }).await;
}
