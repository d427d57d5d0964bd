//! A Redis Cluster of three masters without replicas, each a private Redis of its own.

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
}

impl Cluster {
    /// Starts three masters with a third of the hash slots each, and returns when the cluster works.
    pub async fn start() -> Self {
        let mut masters = Vec::new();
        let mut buses = Vec::new();
        for _ in 0..3 {
            let bus = free_port();
            buses.push(bus.to_string());
            let options = [
                ("--cluster-enabled", "yes".to_owned()),
                ("--cluster-config-file", "nodes.conf".to_owned()),
                ("--cluster-port", bus.to_string()),
                ("--cluster-announce-ip", "127.0.0.1".to_owned()),
                ("--cluster-node-timeout", "1000".to_owned()),
                ("--cluster-require-full-coverage", "no".to_owned()),
            ];
            let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
            masters.push(Redis::private_with(Keeps::Snapshots, options).await);
        }
        for (n, master) in masters.iter().enumerate() {
            let slots = SLOTS * n / 3..SLOTS * (n + 1) / 3;
            let (first, last) = (slots.start.to_string(), (slots.end - 1).to_string());
            master.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]).await;
            master.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
            if n > 0 {
                let port = masters[0].port().to_string();
                master.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &buses[0]]).await;
            }
        }
        let cluster = Self { masters };
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

    /// Waits until every node sees every hash slot served.
    pub async fn works(&self) {
        let end = Instant::now() + MEET;
        for master in &self.masters {
            loop {
                let info = master.cli(&["CLUSTER", "INFO"]).await;
                let slots = master.cli(&["CLUSTER", "SLOTS"]).await.matches("127.0.0.1").count();
                if info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384") && slots == 3
                {
                    break;
                }
                assert!(Instant::now() < end, "the cluster does not come to work: {info}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
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
}
