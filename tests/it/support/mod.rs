//! What the tests stand on: private servers, the real binary as a child, and a receiver which
//! remembers when everything arrived.
//!
//! Whatever is started here is ended by its own pid when its handle is dropped, also while a
//! failed test unwinds, and every wait has an end.
#![allow(dead_code, unused_imports, reason = "each test takes the parts it needs")]

mod api;
mod authority;
mod cluster;
mod expect;
mod node;
mod on_both;
mod receiver;
mod redis;
mod scrape;
mod servers;
mod stalls;
mod timer;
mod traffic;

use std::sync::Once;
use std::time::Duration;

pub use api::{Answer, Api, Ledger};
pub use authority::Authority;
pub use cluster::Cluster;
pub use expect::{eventually, in_state, problem, settled, to, wall_ms};
pub use mainspring::tools::process::Process;
pub use node::{Node, NodeBuilder};
pub(crate) use on_both::on_both;
pub use receiver::{Received, Receiver, Reply, densest};
pub use redis::{Keeps, Redis, SharedRedis};
pub use scrape::{in_wheels, shared_as};
pub use servers::{Postgres, ask_sql, empty_database, free_port, fresh_database, psql, run, run_sql};
pub use stalls::{Stalls, Watch};
pub use timer::new_timer;
pub use traffic::{Traffic, Verdict, register, rfc3339};

/// Chooses the TLS provider for this process. A client cannot be built before; more calls do nothing.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        rustls::crypto::ring::default_provider().install_default().ok();
    });
}

/// An HTTP client that ignores any proxy of the environment, does not follow redirects and gives up
/// after `timeout`. One for each test: its connections belong to the runtime which made them.
pub fn http_client(timeout: Duration) -> reqwest::Client {
    init();
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        // A node closes a connection that was idle for 30 s: a call sent at that moment would be lost.
        .pool_idle_timeout(Duration::from_secs(15))
        .timeout(timeout)
        .build()
        .expect("a plain HTTP client builds")
}
