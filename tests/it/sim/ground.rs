//! What the runs of this process share, and the way into one of them.

use std::sync::{Arc, OnceLock};

use mainspring::clock::ManualClock;
use mainspring::cold::ColdStore;
use mainspring::config::Config;
use mainspring::metrics::Metrics;
use mainspring::model::time::UnixMs;
use mainspring::planted::Defect;

use super::run::{Play, Run, SHARDS, WINDOW_MS};
use super::world::Watch;

/// What a run comes to.
pub struct Verdict {
    pub digest: u64,
    pub arrivals: usize,
    /// What workers were given.
    pub given: usize,
    pub steps: usize,
    pub lasted_ms: i64,
    /// The end of the trace.
    pub trace: String,
    /// The broken rule.
    pub wrong: Option<String>,
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

/// What all runs of this process share: an empty store to copy, and what takes long to make.
pub struct Ground {
    empty: Vec<u8>,
    pub metrics: Metrics,
}

fn ground() -> &'static Ground {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    GROUND.get_or_init(|| {
        crate::support::init();
        let place = place();
        let empty = place.path().join("empty.db");
        let config = Arc::new(config(empty.to_str().expect("a plain path"), false, None));
        let clock = ManualClock::new(UnixMs::new(0));
        let store = ColdStore::open(&config, clock, true, false).expect("opens");
        runtime().block_on(async {
            store.prepare().await.expect("prepares");
            store.close().await;
        });
        let empty = std::fs::read(empty).expect("reads");
        Ground { empty, metrics: Metrics::new().expect("series") }
    })
}

/// A folder in memory, where there is such a place; it goes when it is dropped.
fn place() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let place = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    place.expect("a folder")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// Runs one seed on this thread.
pub fn run(seed: u64, play: Play, watch: Watch) -> Verdict {
    let (ground, place) = (ground(), place());
    let file = place.path().join("store.db");
    std::fs::write(&file, &ground.empty).expect("copies");
    let runtime = runtime();
    let verdict = runtime.block_on(tokio::task::unconstrained(async {
        let file = file.to_str().expect("a plain path");
        let config = Arc::new(config(file, seed.is_multiple_of(2), play.planted));
        let mut run = Run::new(seed, play, watch, config, ground);
        run.go().await;
        run.close().await
    }));
    drop(runtime);
    verdict
}
