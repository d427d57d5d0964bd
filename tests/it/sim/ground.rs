//! What the runs of this process share, and the way into one of them.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use mainspring::clock::ManualClock;
use mainspring::cold::ColdStore;
use mainspring::config::Config;
use mainspring::dispatch::webhook::Sender;
use mainspring::metrics::Metrics;
use mainspring::model::time::UnixMs;
use mainspring::planted::Defect;

use super::run::{Run, SHARDS, WINDOW_MS};

/// What a run comes to.
pub struct Verdict {
    pub digest: u64,
    pub arrivals: usize,
    pub steps: usize,
    pub lasted_ms: i64,
    /// The broken rule, and the end of the trace.
    pub wrong: Option<(String, String)>,
}

/// The settings of a run.
fn config(file: &str, long_lead: bool, planted: Option<Defect>) -> Config {
    let sets = [
        format!("cold.url=sqlite://{file}"),
        format!("shards={SHARDS}"),
        "lease=PT3S".into(),
        format!("wheel.window=PT{}S", WINDOW_MS / 1000),
        "wheel.near=PT2S".into(),
        format!("wheel.lead=PT{}S", if long_lead { 0.5 } else { 0.05 }),
        "webhook.timeout=PT1S".into(),
    ];
    let mut config = Config::load(Some(std::path::Path::new("/dev/null")), [], &sets).expect("settings");
    config.planted = planted;
    config
}

/// What all runs of this process share: a place, an empty store to copy, and what takes long to make.
pub struct Ground {
    place: tempfile::TempDir,
    empty: PathBuf,
    pub metrics: Metrics,
    pub sender: Sender,
}

fn ground() -> &'static Ground {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    GROUND.get_or_init(|| {
        crate::support::init();
        // In memory, where there is such a place: nothing here has to outlive the process.
        let memory = std::path::Path::new("/dev/shm");
        let place = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let place = place.expect("a folder");
        let empty = place.path().join("empty.db");
        let config = Arc::new(config(empty.to_str().expect("a plain path"), false, None));
        let clock = ManualClock::new(UnixMs::new(0));
        let store = ColdStore::open(&config, clock, true, false).expect("opens");
        let sender = Sender::new(&config, store.clock().clone()).expect("a client");
        runtime().block_on(async {
            store.prepare().await.expect("prepares");
            store.close().await;
        });
        Ground { place, empty, metrics: Metrics::new().expect("series"), sender }
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// Runs one seed on this thread.
pub fn run(seed: u64, planted: Option<Defect>) -> Verdict {
    static RUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let ground = ground();
    let number = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let file = ground.place.path().join(format!("{number}.db"));
    std::fs::copy(&ground.empty, &file).expect("copies");
    let runtime = runtime();
    let verdict = runtime.block_on(tokio::task::unconstrained(async {
        let config = Arc::new(config(file.to_str().expect("a plain path"), seed.is_multiple_of(2), planted));
        let mut run = Run::new(seed, config, ground);
        run.go().await;
        run.close().await
    }));
    drop(runtime);
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
    verdict
}
