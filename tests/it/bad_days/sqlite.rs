//! SQLite where it cannot be, twice at once, and under a clock that is set back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainspring::clock::{Clock, ManualClock};
use mainspring::cold::{Backlogged, ColdStore, Identity, NewTimer, Probe, TimerRow};
use mainspring::config::Config;
use mainspring::model::id::{Epoch, TimerId};
use mainspring::model::namespace::{Namespace, Salt};
use mainspring::model::pointer::Pointer;
use mainspring::model::policy::Policies;
use mainspring::model::priority::Priority;
use mainspring::model::target::{Target, Webhook};
use mainspring::model::time::UnixMs;
use mainspring::model::timer::State;

use super::{all_delivered, due_in, refused};
use crate::support::{Node, Receiver};

#[tokio::test]
async fn a_store_that_cannot_be_opened_is_named_with_its_setting() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(dir.path().join("folder")).expect("a folder");
    std::fs::write(dir.path().join("text"), "This is a letter and no database.\n".repeat(100))
        .expect("writes");
    for file in [path("missing/x.db"), path("folder"), path("text"), path("text/x.db"), "/proc/x.db".into()] {
        let (code, said) =
            refused(dir.path(), &[("MAINSPRING__COLD__URL", &format!("sqlite://{file}"))]).await;
        assert!(matches!(code, Some(1 | 5)), "{file}: {code:?} {said}");
        assert!(said.contains("cold.url") && said.contains(&file), "{file}: {said}");
        let errors = said.lines().filter(|line| !line.contains(" INFO ")).count();
        assert_eq!(errors, 1, "one clear line: {said}");
    }
    let letter = std::fs::read_to_string(dir.path().join("text")).expect("still text");
    assert!(letter.starts_with("This is a letter"), "what is no store is left alone");
}

#[tokio::test]
async fn a_second_process_on_one_file_refuses_and_harms_nothing() {
    let node = Node::builder().start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    assert_eq!(api.put("before", &due_in(1500, receiver.url("/ok"))).await.0, 201);
    let url = format!("sqlite://{}/mainspring.db", node.dir().display());
    let dir = tempfile::tempdir().expect("a directory");
    for _ in 0..2 {
        let (code, said) = refused(dir.path(), &[("MAINSPRING__COLD__URL", &url)]).await;
        assert_eq!(code, Some(5), "{said}");
        assert!(
            said.contains("in use") && said.contains("cold.url") && said.contains("mainspring.db"),
            "{said}"
        );
    }
    assert_eq!(api.put("after", &due_in(0, receiver.url("/ok"))).await.0, 201);
    all_delivered(&api, 2).await;
    assert_eq!(receiver.received().len(), 2, "each once");
    let (status, _) = node.sigterm().await;
    assert!(status.success());
}

/// A store, its clock, and a node that owns all of its shards.
struct Fixture {
    store: ColdStore,
    clock: Arc<ManualClock>,
    me: Identity,
    _dir: tempfile::TempDir,
}

const START: UnixMs = UnixMs::new(1_800_000_000_000);
const LEASE_MS: i64 = 3000;
const HOUR_MS: i64 = 3_600_000;

impl Fixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let sets =
            [format!("cold.url=sqlite://{}", dir.path().join("t.db").display()), "shards=4".to_owned()];
        let config = Config::load(Some(std::path::Path::new("/dev/null")), [], &sets).expect("settings");
        let clock = ManualClock::new(START);
        let store = ColdStore::open(&config, clock.clone(), true, true).expect("opens");
        store.prepare().await.expect("prepares");
        let me = Identity { name: "a".into(), incarnation: "a-1".into(), address: "127.0.0.1:1".into() };
        store.enter(&me).await.expect("enters");
        Self { store, clock, me, _dir: dir }
    }

    async fn put(&self, id: &str, due_in: Duration) {
        let id = TimerId::parse(id).expect("an id");
        let timer = NewTimer {
            uid: id.uid(&Salt::own("default")),
            namespace: Namespace::OWN,
            id,
            caller_id: true,
            again: false,
            owner: None,
            due_at: self.clock.now().plus(due_in),
            minute: false,
            priority: Priority::Normal,
            spread: None,
            target: Target::Webhook(
                Webhook::new("http://127.0.0.1:9/", None, BTreeMap::new()).expect("a hook"),
            ),
            data: None,
            template: None,
            labels: None,
            policies: Policies::default(),
            dispatch: None,
            request_hash: [7; 16],
            created_at: self.clock.now(),
            trace: None,
            occurrence: None,
        };
        self.store.register(&[timer]).await.remove(0).expect("registers");
    }

    async fn find(&self, id: &str) -> TimerRow {
        let uid = TimerId::parse(id).expect("an id").uid(&Salt::own("default"));
        self.store.find(uid).await.expect("looks").expect("is there")
    }

    /// What a look for due rows finds, each with the epoch to claim it under.
    async fn due(&self, owned: &[(i32, Epoch)]) -> Vec<(Pointer, Epoch)> {
        let probe = |shard| Probe { shard, floor: i64::MIN, grace_ms: 0 };
        let probes: Vec<_> = owned.iter().map(|(shard, _)| probe(*shard)).collect();
        let found = self.store.due(&probes, &Backlogged::default(), 100, 100).await.expect("looks");
        let epoch = |shard| owned.iter().find(|(one, _)| *one == shard).expect("owned").1;
        found.rows.iter().map(|due| (due.pointer, epoch(due.pointer.shard))).collect()
    }

    /// Claims what is due and tells what it got: each of them for the first time.
    async fn claim_due(&self, owned: &[(i32, Epoch)]) -> Vec<String> {
        let rows = self.store.claim(&self.due(owned).await, "a", 0).await.expect("claims").rows;
        assert!(rows.iter().all(|row| row.life.attempt == 1), "{rows:?}");
        rows.into_iter().map(|row| row.id).collect()
    }
}

/// An hour back: what was due before waits for its own time again, and nothing is lost.
#[tokio::test]
async fn a_clock_that_is_set_back_fires_nothing_early_and_loses_nothing() {
    let f = Fixture::new().await;
    let owned = f.store.take_over(&f.me, 4, true, LEASE_MS).await.expect("takes");
    f.put("passed", Duration::from_secs(5)).await;
    f.put("coming", Duration::from_secs(60)).await;
    f.clock.advance(Duration::from_secs(10));
    let seen = f.due(&owned).await;
    assert_eq!(seen.len(), 1, "one is due before the clock is set back");

    f.clock.set(UnixMs::new(START.get() - HOUR_MS));
    assert!(f.due(&owned).await.is_empty(), "no longer due");
    let early = f.store.claim(&seen, "a", 0).await.expect("asks");
    assert!(early.rows.is_empty(), "the claim itself refuses what is not due by the store's clock");
    for id in ["passed", "coming"] {
        assert_eq!(f.find(id).await.life.state, State::Scheduled);
    }
    let kept = f.store.renew(&f.me, &owned, |_| 0, LEASE_MS).await.expect("renews");
    assert_eq!(kept.len(), owned.len(), "the owner stays the owner");
    f.put("between", Duration::ZERO).await;
    assert_eq!(f.claim_due(&owned).await, ["between"], "what is due by the new time fires at once");

    f.clock.set(UnixMs::new(START.get() + 4999));
    assert!(f.claim_due(&owned).await.is_empty(), "a millisecond early");
    f.clock.advance(Duration::from_millis(1));
    assert_eq!(f.claim_due(&owned).await, ["passed"], "its time has come again");
    f.clock.set(UnixMs::new(START.get() + 60_000));
    assert_eq!(f.claim_due(&owned).await, ["coming"]);
    let found = f.store.verify().await.expect("verifies");
    assert!(found.balanced && found.mismatches.is_empty() && found.ledger.pending == 3, "{found:?}");
}
