//! Who gets what of all that is ready, and that nobody hides anything from others.

use super::*;
use mainspring::model::namespace::Salt;

async fn each_gets_what_is_for_it_and_no_group_hides_another(f: Fixture) {
    for n in 0..40 {
        f.put_for(&format!("other-{n}"), 0, only(To::Group("g1".into()))).await;
    }
    f.put_for("mine", 0, only(To::Group("g2".into()))).await;
    f.put_for("own", 0, only(To::Worker("w1".into()))).await;
    f.put_for("anybody", 0, Dispatch::default()).await;
    let ids = |items: Vec<Leased>| items.into_iter().map(|item| item.timer).collect::<BTreeSet<_>>();
    let exclude = HashSet::from([mainspring::model::id::TimerId::parse("anybody")
        .expect("an id")
        .uid(&Salt::own("default"))]);
    let most = Asking { most: 10, ..asking("w1") };
    let without = Asking { exclude, ..most.clone() };
    assert_eq!(ids(f.lease(without).await), ["own".to_owned()].into());
    let member = Asking { groups: vec!["g2".into()], ..most.clone() };
    assert_eq!(ids(f.lease(member).await), ["anybody".to_owned(), "mine".to_owned()].into());
    assert!(f.lease(most).await.is_empty());
    let all = f.lease(Asking { groups: vec!["g1".into()], most: 100, ..asking("w2") }).await;
    assert_eq!(all.len(), 40);
}

/// What a worker has had does not hide what it has not.
async fn what_a_worker_may_not_have_hides_nothing(f: Fixture) {
    for n in 0..30 {
        f.put_for(&format!("had-{n}"), 0, times(2, false)).await;
    }
    for item in f.lease(Asking { most: 30, ..asking("w1") }).await {
        f.settle(&item, Action::Ack).await.expect("counts");
    }
    f.clock.advance(Duration::from_millis(5));
    f.put_for("new", 0, times(2, false)).await;
    let item = f.item("w1").await;
    assert_eq!(item.timer, "new");
    f.nothing_for("w1").await;
    let exclude: HashSet<Uid> =
        f.lease(Asking { most: 10, ..asking("w2") }).await.iter().map(|item| item.token.uid).collect();
    assert_eq!(exclude.len(), 10);
    let others = f.lease(Asking { most: 1000, exclude, ..asking("w3") }).await;
    assert_eq!(others.len(), 21, "those that w2 has are out, and the new one has a second place");
}

/// Of several workers to whom the same timers hide what they may have, each gets something of its own: what was given out in
/// the same transaction hides nothing either.
async fn of_many_workers_that_others_hide_things_from_each_gets_its_own(f: Fixture) {
    const WORKERS: usize = 20;
    let put = async |word: &str| {
        let timers: Vec<NewTimer> = (0..WORKERS)
            .map(|n| for_queue(f.timer(&format!("{word}-{n:02}"), 0), Dispatch::default()))
            .collect();
        f.register(&timers).await;
        timers.into_iter().map(|timer| timer.uid).collect::<HashSet<Uid>>()
    };
    let exclude = put("hides").await;
    f.clock.advance(Duration::from_millis(5));
    put("new").await;
    let one = |n: usize| Asking { exclude: exclude.clone(), ..asking(&format!("w{n}")) };
    let all: Vec<Asking> = (0..WORKERS).map(one).collect();
    let answer = f.store.lease(Q, &who_ask(Q, &all), "a", &mut Turn::default()).await.expect("leases");
    let got: BTreeSet<String> = answer.given.iter().flatten().map(|item| item.timer.clone()).collect();
    assert_eq!(got.len(), 16, "as many are looked for in one transaction");
    assert_eq!(answer.again, (16..WORKERS).collect::<BTreeSet<_>>(), "the others come at once");
    let rest: Vec<Asking> = answer.again.iter().map(|&n| all[n].clone()).collect();
    let more = f.store.lease(Q, &who_ask(Q, &rest), "a", &mut Turn::default()).await.expect("leases");
    assert!(more.given.iter().all(|items| items.len() == 1) && more.again.is_empty());
    assert!(f.lease(one(99)).await.is_empty());
    assert_eq!(f.lease(asking("w98")).await.len(), 1, "what was hiding is there for others");
}

async fn high_ones_go_first_and_low_ones_still_move(f: Fixture) {
    for (priority, word) in [(Priority::Low, "low"), (Priority::Normal, "normal"), (Priority::High, "high")] {
        for n in 0..21 {
            let timer = f.timer(&format!("{word}-{n:02}"), 0);
            f.put_timer(NewTimer { priority, ..for_queue(timer, Dispatch::default()) }).await;
            f.clock.advance(Duration::from_millis(1));
        }
    }
    let mut turn = Turn::default();
    let mut got: Vec<String> = Vec::new();
    for n in 0..21 {
        let one = asking(&format!("w{n}"));
        let given = f.store.lease(Q, &who_ask(Q, &[one]), "a", &mut turn).await.expect("leases").given;
        got.extend(given.into_iter().flatten().map(|item| item.timer));
    }
    let count = |word: &str| got.iter().filter(|id| id.starts_with(word)).count();
    assert_eq!((count("high"), count("normal"), count("low")), (16, 4, 1));
    assert!(got[0].starts_with("high"), "{got:?}");
    let of = |word: &str| got.iter().filter(|id| id.starts_with(word)).cloned().collect::<Vec<_>>();
    assert!(of("high").is_sorted() && of("normal").is_sorted(), "then by due time");
}

on_both_stores! {
    each_gets_what_is_for_it_and_no_group_hides_another,
    what_a_worker_may_not_have_hides_nothing,
    of_many_workers_that_others_hide_things_from_each_gets_its_own,
    high_ones_go_first_and_low_ones_still_move,
}

/// A look at what is ready reads, and locks, no more of each audience than its workers want, and none of what is due later.
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_a_lease_locks_what_its_workers_want() {
    let f = Fixture::postgres().await;
    let timers: Vec<NewTimer> =
        (0..50).map(|n| for_queue(f.timer(&format!("t{n}"), 0), only(To::Worker("w1".into())))).collect();
    f.register(&timers).await;
    let point = Arc::new(Beside { store: f.store.clone(), got: Mutex::default() });
    let store = f.store.with_fail_point(point.clone(), f.clock.clone());
    let both = [asking("w1"), Asking { most: 40, ..asking("w2") }];
    let given = store.lease(Q, &who_ask(Q, &both), "a", &mut Turn::default()).await.expect("leases").given;
    assert_eq!(given.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(*point.got.lock().expect("no panic"), Some(49), "one row was locked");
}

/// Lets another lease in while the first one has its locks.
struct Beside {
    store: ColdStore,
    got: Mutex<Option<usize>>,
}

impl FailPoint for Beside {
    fn before(&self, _: Call, name: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            if name == "lease_update" {
                let all = Asking { most: 1000, ..asking("w1") };
                let given = self.store.lease(Q, &who_ask(Q, &[all]), "b", &mut Turn::default()).await?.given;
                *self.got.lock().expect("no panic") = Some(given[0].len());
            }
            Ok(())
        })
    }

    fn after(&self, _: Call, _: &'static str) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn begin(&self) -> Box<dyn std::any::Any + Send + Sync> {
        Box::new(())
    }
}
