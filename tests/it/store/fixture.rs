//! A store of its own for each test, and what tests do with it.

use std::sync::Arc;
use std::time::Duration;

use mainspring::clock::{Clock, ManualClock};
use mainspring::cold::{
    Applied, AttemptRecord, Backlogged, Change, ChangeEvent, ColdStore, DueRow, Identity, NewTimer, Probe,
    Registered, RetentionStep, TimerRow,
};
use mainspring::config::Config;
use mainspring::model::id::{Epoch, Uid};
use mainspring::model::pointer::Pointer;
use mainspring::model::time::UnixMs;
use mainspring::model::timer::{Answer, AttemptResult, Token};

use crate::support::{fresh_database, new_timer, psql, run_sql};

pub const START: UnixMs = UnixMs::new(1_800_000_000_000);

pub struct Fixture {
    pub store: ColdStore,
    pub clock: Arc<ManualClock>,
    pub config: Config,
    pub me: Identity,
    _dir: tempfile::TempDir,
}

pub fn config(url: &str, sets: &[&str]) -> Config {
    let mut all = vec![format!("cold.url={url}"), "shards=8".to_owned(), "history.retention=P2D".to_owned()];
    all.extend(sets.iter().map(|set| (*set).to_owned()));
    Config::load(Some(std::path::Path::new("/dev/null")), [], &all).expect("settings")
}

pub fn identity(name: &str) -> Identity {
    Identity { name: name.into(), incarnation: format!("{name}-1"), address: "127.0.0.1:1".into() }
}

impl Fixture {
    pub async fn at(url: &str, dir: tempfile::TempDir) -> Self {
        let config = config(url, &[]);
        let clock = ManualClock::new(START);
        let store = ColdStore::open(&config, clock.clone(), true, true).expect("opens");
        store.prepare().await.expect("prepares");
        let me = identity("a");
        store.enter(&me).await.expect("enters");
        Self { store, clock, config, me, _dir: dir }
    }

    pub async fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}", dir.path().join("t.db").display());
        Self::at(&url, dir).await
    }

    pub async fn postgres() -> Self {
        Self::at(&fresh_database().await, tempfile::tempdir().expect("a directory")).await
    }

    /// The same store as another process has it.
    pub fn other_process(&self) -> ColdStore {
        ColdStore::open(&self.config, self.clock.clone(), true, true).expect("opens")
    }

    /// From here on the store writes as that of a node that is alive: it need not ask who subscribes.
    pub async fn alive(&self) {
        self.store.take_subscriptions(&self.me).await.expect("takes");
        self.store.heartbeat(&self.me, 60_000).await.expect("beats");
    }

    pub fn now(&self) -> UnixMs {
        self.clock.now()
    }

    pub fn timer(&self, id: &str, due_in_ms: i64) -> NewTimer {
        let due_at = UnixMs::new(self.now().get() + due_in_ms);
        NewTimer { data: Some(br#"{"a":"\u0000"}"#.to_vec()), ..new_timer(id, due_at, self.now()) }
    }

    pub async fn register(&self, timers: &[NewTimer]) -> Vec<Registered> {
        self.store.register(timers).await.into_iter().map(|answer| answer.expect("registers")).collect()
    }

    pub async fn put(&self, id: &str, due_in_ms: i64) -> Uid {
        let timer = self.timer(id, due_in_ms);
        assert!(matches!(self.register(std::slice::from_ref(&timer)).await[..], [Registered::New(_)]));
        timer.uid
    }

    pub async fn own_all(&self) -> Vec<(i32, Epoch)> {
        let mut taken = self.store.take_over(&self.me, 100, true, 3000).await.expect("takes");
        taken.sort_unstable();
        assert_eq!(taken.len(), 8);
        taken
    }

    /// What is due, paired with the epochs of `owned`.
    pub async fn due(&self, owned: &[(i32, Epoch)]) -> Vec<(Pointer, Epoch)> {
        self.due_but(owned, &Backlogged::default()).await
    }

    /// The same, without the rows of lanes with a backlog.
    pub async fn due_but(&self, owned: &[(i32, Epoch)], backlogged: &Backlogged) -> Vec<(Pointer, Epoch)> {
        let epoch = |shard: i32| owned.iter().find(|(one, _)| *one == shard).expect("owned").1;
        let found = self.look(owned, backlogged).await;
        found.into_iter().map(|due| (due.pointer, epoch(due.pointer.shard))).collect()
    }

    /// What a look at these shards finds.
    pub async fn look(&self, owned: &[(i32, Epoch)], backlogged: &Backlogged) -> Vec<DueRow> {
        let probe = |shard| Probe { shard, floor: i64::MIN, grace_ms: 0 };
        let probes: Vec<_> = owned.iter().map(|(shard, _)| probe(*shard)).collect();
        self.store.due(&probes, backlogged, 10_000, 10_000).await.expect("looks").rows
    }

    pub async fn claim(&self, pointers: &[(Pointer, Epoch)]) -> Vec<TimerRow> {
        self.store.claim(pointers, "a", 0).await.expect("claims").rows
    }

    pub async fn claim_due(&self, owned: &[(i32, Epoch)]) -> Vec<TimerRow> {
        let due = self.due(owned).await;
        self.claim(&due).await
    }

    pub async fn change(&self, uid: Uid, event: ChangeEvent) -> (TimerRow, Answer) {
        match self.store.apply(&[Change { uid, caller: None, event }]).await.remove(0).expect("applies") {
            Applied::Live(row, answer) => (*row, answer),
            Applied::Same(row) => (*row, Answer::Done),
            other => panic!("{other:?}"),
        }
    }

    /// Makes all these changes.
    pub async fn apply(&self, changes: &[Change]) -> Vec<Applied> {
        self.store.apply(changes).await.into_iter().collect::<Result<_, _>>().expect("applies")
    }

    /// Does all steps of the retention; returns how many rows of history went.
    pub async fn clean_up(&self) -> i64 {
        let mut removed = 0;
        for step in RetentionStep::ALL {
            removed += self.store.clean_up(step, self.now()).await.expect("cleans");
        }
        removed
    }

    pub async fn find(&self, uid: Uid) -> TimerRow {
        self.store.find(uid).await.expect("finds").expect("is there")
    }

    pub async fn balanced(&self) {
        let found = self.store.verify().await.expect("verifies");
        assert!(found.balanced && found.mismatches.is_empty(), "{found:?}");
    }
}

pub fn record(row: &TimerRow, result: AttemptResult) -> AttemptRecord {
    AttemptRecord {
        generation: row.life.generation.0,
        attempt: row.life.attempt,
        started_at: row.claimed_at.map_or(0, UnixMs::get),
        ended_at: row.claimed_at.map_or(0, UnixMs::get) + 5,
        result,
        status: Some(200),
        reply: Some("fine".into()),
        detail: None,
        node: "a".into(),
        delivery_id: None,
        worker: None,
    }
}

pub fn token(row: &TimerRow) -> Token {
    Token { generation: row.life.generation, attempt: row.life.attempt }
}

pub async fn behind_its_back(f: &Fixture, sql: &str) {
    run_sql(&f.config.cold.url, sql).await;
}

/// A second connection that holds a transaction open while the store works.
pub async fn held_open(url: &str) -> sea_orm::sqlx::Transaction<'static, sea_orm::sqlx::Postgres> {
    sea_orm::sqlx::PgPool::connect(url).await.expect("connects").begin().await.expect("begins")
}

/// Waits until some session of this database waits for a lock.
pub async fn somebody_waits(url: &str) {
    so_many_wait(url, 1).await;
}

/// Waits until so many do.
pub async fn so_many_wait(url: &str, count: usize) {
    let database = url.rsplit('/').next().expect("a name");
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
    );
    for _ in 0..200 {
        if psql(url, &sql).await.trim().parse::<usize>().expect("a count") >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not {count} wait for a lock");
}

/// Runs each rule on both databases.
macro_rules! on_both_stores {
    ($($rule:ident),* $(,)?) => {
        mod sqlite {
            use crate::store::fixture::Fixture;
            $(#[tokio::test(flavor = "multi_thread")] async fn $rule() { super::$rule(Fixture::sqlite().await).await; })*
        }
        mod postgres {
            use crate::store::fixture::Fixture;
            $(#[tokio::test(flavor = "multi_thread")] async fn $rule() { super::$rule(Fixture::postgres().await).await; })*
        }
    };
}

pub(crate) use on_both_stores;
