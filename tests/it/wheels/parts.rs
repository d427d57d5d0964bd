//! What a rig is made of, and how time goes on in it.

use super::rig::{At, Node, Rig, TestWheel};
use super::space::START_MS;
use crate::support::fresh_database;

pub const SECOND: i64 = 1000;

pub const MINUTE: i64 = 60 * SECOND;

/// What a rig is to be made of; held so that its files stay.
pub struct Parts {
    url: String,
    hot: TestWheel,
    _dir: Option<tempfile::TempDir>,
}

impl Parts {
    pub async fn new(postgres: bool, at: At) -> Self {
        let hot = TestWheel::at(at).await;
        if postgres {
            return Self { url: fresh_database().await, hot, _dir: None };
        }
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}", dir.path().join("t.db").display());
        Self { url, hot, _dir: Some(dir) }
    }
}

/// Four shards, a window of ten minutes, two minutes near.
pub const USUAL: [&str; 3] = ["shards=4", "wheel.window=PT10M", "wheel.near=PT2M"];

impl Parts {
    pub async fn rig(self, sets: &[&str]) -> (Rig, Option<tempfile::TempDir>) {
        (Rig::new(&self.url, self.hot, sets).await, self._dir)
    }
}

/// Goes on to so many milliseconds after the start, with a round just after every minute on the
/// way, which is when the watermark rises.
pub async fn walk(rig: &Rig, node: &mut Node, to: i64) {
    let from = rig.now().get() - START_MS;
    for minute in from / MINUTE..to / MINUTE {
        rig.at((minute * MINUTE + 1).max(from));
        node.crank().await;
    }
    rig.at(to);
    node.crank().await;
}

/// Runs each rule on every pair of stores.
macro_rules! on_all {
    ($($rule:ident),* $(,)?) => {
        on_all!(@on sqlite_memory, false, Memory, $($rule),*);
        on_all!(@on sqlite_redis, false, Redis, $($rule),*);
        on_all!(@on postgres_memory, true, Memory, $($rule),*);
        on_all!(@on postgres_redis, true, Redis, $($rule),*);
        on_all!(@on sqlite_cluster, false, Cluster, $($rule),*);
    };
    (@on $name:ident, $postgres:expr, $at:ident, $($rule:ident),*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread")] async fn $rule() {
                super::$rule(crate::wheels::parts::Parts::new($postgres, crate::wheels::rig::At::$at).await).await;
            })*
        }
    };
}

pub(crate) use on_all;
