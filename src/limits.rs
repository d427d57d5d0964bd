//! What the system allows this process: how many files it may have open, and how they are shared between the node's duties.
//!
//! Every connection is an open file: of a client, to a receiver, to a store. Without shares, clients could use up the
//! files that deliveries need. The shares follow from the limit in force, so that a small limit makes each duty smaller
//! instead of making one of them fail.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{ColdKind, Config, HotUrl};

/// Connections of clients beyond `server.max_connections`, for health checks and metrics only.
pub const PROBE_CONNECTIONS: usize = 32;

/// Open files that are none of the connections counted here: the listener, the runtime's own, the log, name lookups,
/// SQLite's files.
const OTHER_FILES: u64 = 64;

/// Connections to PostgreSQL beside `cold.connections`: the node's own work, and the one that listens.
const POSTGRES_OWN: u64 = 7;

/// The masters of a Redis Cluster that are allowed for; the number is not known before the cluster answers.
const MASTERS: u64 = 8;

/// How the open files of a node are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    /// The most files that the process may have open; `u64::MAX` without a limit.
    pub limit: u64,
    /// The most connections of clients; with the reserved ones at most a third of the limit.
    pub inbound: usize,
    /// Connections of clients beyond these, for health checks and metrics only: [`PROBE_CONNECTIONS`], or a quarter of
    /// the third if that is less.
    pub reserved: usize,
    /// The most connections to receivers, idle ones included: what clients and stores leave. It may be 0.
    pub outbound: usize,
    /// The smallest limit at which every connection of the settings has room.
    pub wanted: u64,
}

/// Raises the limit on open files of this process to the highest that it may have; returns the limit in force then.
/// A failure leaves the limit as it is.
pub fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Fails only where the system's own maximum is lower; the limit in force is read back.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    in_force()
}

/// From now on a crash of this process leaves no core file: it would hold payloads, secrets and keys. Whoever needs one raises
/// the limit again from outside (`prlimit --core=unlimited --pid PID`).
pub fn leave_no_core() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    // Lowering a limit is always allowed.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum });
}

/// The limit on open files of this process; `u64::MAX` without one.
pub fn in_force() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The limit that [`raise`] would reach in a process that was started like this one.
pub fn highest() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

impl FileLimits {
    /// The shares under these settings, if `limit` files may be open.
    pub fn of(config: &Config, limit: u64) -> Self {
        let clients = count(config.server.max_connections + PROBE_CONNECTIONS);
        let own = OTHER_FILES + stores(config);
        let third = clients.min(limit / 3).max(2);
        let reserved =
            if third == clients { PROBE_CONNECTIONS } else { PROBE_CONNECTIONS.min(size(third / 4)) };
        let inbound = size(third).saturating_sub(reserved);
        let outbound = limit.saturating_sub(own).saturating_sub(third);
        let wanted = clients.saturating_mul(3).max(clients + own + 2 * count(config.dispatch.concurrency));
        Self { limit, inbound, reserved, outbound: size(outbound), wanted }
    }

    /// The most attempts at once: `dispatch.concurrency`, or half of the connections to receivers if that is less.
    pub fn attempts(&self, config: &Config) -> usize {
        config.dispatch.concurrency.min(self.outbound / 2).max(1)
    }

    /// The most connections to receivers that are kept open: the other half, and no more than twice as many as there are
    /// attempts.
    pub fn kept_open(&self, config: &Config) -> usize {
        self.outbound.saturating_sub(self.attempts(config)).min(2 * config.dispatch.concurrency)
    }

    /// Whether every connection of the settings has room: `server.max_connections`, `dispatch.concurrency` and the
    /// pools.
    pub const fn fits(&self) -> bool {
        self.limit >= self.wanted
    }

    /// The shares in words.
    pub fn told(&self) -> String {
        let Self { limit, inbound, outbound, .. } = self;
        match *limit {
            u64::MAX => format!("no limit on open files: {inbound} connections of clients"),
            _ => format!(
                "{limit} open files at most: {inbound} connections of clients, {outbound} to receivers, the rest for \
                 the stores"
            ),
        }
    }

    /// What to do where they do not fit ([`FileLimits::fits`]).
    pub fn cure(&self) -> String {
        format!(
            "the settings want {}: raise `LimitNOFILE` of the unit (or `ulimit -n`), or lower \
             `server.max_connections` and `dispatch.concurrency`",
            self.wanted
        )
    }
}

/// The connections to the stores.
fn stores(config: &Config) -> u64 {
    let cold = match config.cold_kind() {
        Ok(ColdKind::Postgres) => u64::from(config.cold.connections) + POSTGRES_OWN,
        _ => 0,
    };
    let each = count(config.hot.connections) + 1;
    let hot = match config.hot_url() {
        Ok(HotUrl::Memory) | Err(_) => 0,
        Ok(HotUrl::Cluster(_)) => each * MASTERS,
        Ok(_) => each,
    };
    cold + hot
}

fn count(of: usize) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX / 8)
}

fn size(of: u64) -> usize {
    usize::try_from(of).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(sets: &[&str]) -> Config {
        let sets: Vec<_> = sets.iter().map(|s| (*s).to_owned()).collect();
        Config::load(Some(std::path::Path::new("/dev/null")), [], &sets).expect("settings")
    }

    #[test]
    fn clients_get_at_most_a_third_and_the_rest_is_for_deliveries() {
        let of = |limit| FileLimits::of(&config(&[]), limit);
        for (limit, inbound, reserved, outbound, fits) in [
            (1024, 309, 32, 1024 - 341 - 64, false),
            (4096, 1333, 32, 4096 - 1365 - 64, false),
            (12_384, 4096, 32, 12_384 - 4128 - 64, true),
            (65_536, 4096, 32, 65_536 - 4128 - 64, true),
            (60, 15, 5, 0, false),
            (0, 2, 0, 0, false),
        ] {
            let found = of(limit);
            let shares = (found.inbound, found.reserved, found.outbound, found.fits());
            assert_eq!(shares, (inbound, reserved, outbound, fits), "{limit}");
            assert_eq!(found.wanted, 12_384);
        }
        let few = FileLimits::of(&config(&["server.max_connections=3"]), 65_536);
        assert_eq!((few.inbound, few.reserved), (3, 32));
        assert!(of(u64::MAX).fits());
        for (limit, attempts, kept_open) in
            [(1024, 309, 310), (4096, 1333, 1334), (65_536, 2048, 4096), (60, 1, 0), (u64::MAX, 2048, 4096)]
        {
            let (found, config) = (of(limit), config(&[]));
            assert_eq!((found.attempts(&config), found.kept_open(&config)), (attempts, kept_open), "{limit}");
        }
    }

    #[test]
    fn what_the_settings_open_is_wanted() {
        let few = ["server.max_connections=100", "dispatch.concurrency=5000"];
        assert_eq!(FileLimits::of(&config(&few), 1).wanted, 132 + 64 + 10_000);
        let stores =
            ["cold.url=postgres://x/y", "hot.url=redis://x", "cold.connections=20", "hot.connections=8"];
        let all: Vec<&str> = few.into_iter().chain(stores).collect();
        assert_eq!(FileLimits::of(&config(&all), 1).wanted, 132 + 64 + 10_000 + 27 + 9);
    }
}
