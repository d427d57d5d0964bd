//! Namespaces: many in one store, of which none sees another's timers, names or totals.

use std::time::Duration;

use mainspring::cold::{
    Applied, Change, ChangeEvent, ColdStore, DestinationEdit, Edit, Error, Filter, KeyMade, KeyRevoked,
    NamespaceRemoved, NamespaceWritten, NewKey, NewTimer, Registered, Removed, Settlement, Turn, Whose,
    Written,
};
use mainspring::model::id::{TimerId, Uid};
use mainspring::model::key::{KeyId, Scope};
use mainspring::model::namespace::{Namespace, Quotas, Terms};
use mainspring::model::queue::{Action, Dispatch, Settings, lane};
use mainspring::model::target::Target;
use mainspring::model::timer::{Answer, State};

use super::fixture::{Fixture, behind_its_back, on_both_stores, record};
use super::queues::{asking, for_queue};

/// A namespace of this name; its number.
pub async fn made(f: &Fixture, name: &str) -> Namespace {
    match f.store.put_namespace(name, &Terms::default()).await.expect("writes") {
        NamespaceWritten::Done(row, true) => row.number,
        other => panic!("{other:?}"),
    }
}

/// A timer of this namespace under a caller's id.
fn of(f: &Fixture, store: &ColdStore, id: &str, due_in_ms: i64) -> NewTimer {
    let timer = f.timer(id, due_in_ms);
    NewTimer { uid: timer.id.uid(store.salt()), namespace: store.namespace(), ..timer }
}

async fn put(f: &Fixture, store: &ColdStore, id: &str, due_in_ms: i64) -> Uid {
    let timer = of(f, store, id, due_in_ms);
    assert!(matches!(f.register(std::slice::from_ref(&timer)).await[..], [Registered::New(_)]), "{id}");
    timer.uid
}

async fn ids(store: &ColdStore, filter: &Filter) -> Vec<String> {
    let page = store.list(filter, None, 100).await.expect("lists");
    assert!(page.next.is_none());
    page.rows.into_iter().map(|row| row.id).collect()
}

async fn a_number_is_given_once(f: Fixture) {
    let rows = f.store.namespaces().await.expect("reads");
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].number, rows[0].name.as_str(), rows[0].version), (Namespace::OWN, "default", 0));
    assert_eq!([made(&f, "billing").await, made(&f, "shop").await], [Namespace(1), Namespace(2)]);
    let quotas = Quotas { live_timers: Some(5), ..Quotas::default() };
    for (expected, is_changed) in [(2, true), (2, false)] {
        let terms = Terms { quotas: quotas.clone(), ..Terms::default() };
        let NamespaceWritten::Done(row, false) = f.store.put_namespace("shop", &terms).await.expect("writes")
        else {
            panic!("it was there before");
        };
        assert_eq!((row.version, &row.terms.quotas), (expected, &quotas), "changed: {is_changed}");
    }
    let own = f.store.put_namespace("default", &Terms { quotas, ..Terms::default() }).await.expect("writes");
    assert!(
        matches!(own, NamespaceWritten::Done(row, false) if row.number == Namespace::OWN && row.version == 1)
    );
    let names = async || {
        let rows = f.store.namespaces().await.expect("reads");
        rows.into_iter().map(|row| (row.name, row.number.0)).collect::<Vec<_>>()
    };
    assert_eq!(names().await, [("billing".into(), 1), ("default".into(), 0), ("shop".into(), 2)]);
    assert_eq!(f.store.remove_namespace("default").await.expect("answers"), NamespaceRemoved::Own);
    assert_eq!(f.store.remove_namespace("nobody").await.expect("answers"), NamespaceRemoved::NoSuch);
    assert_eq!(f.store.remove_namespace("shop").await.expect("removes"), NamespaceRemoved::Done);
    assert_eq!(made(&f, "shop").await, Namespace(3), "what is left of the former one is not the new one's");
    assert_eq!(&*f.store.sender(Namespace(2)).await.expect("a namespace").name, "shop");
}

async fn one_id_is_a_timer_in_each_namespace(f: Fixture) {
    let stores = [f.store.clone(), f.store.within(made(&f, "a").await), f.store.within(made(&f, "b").await)];
    let mut uids = Vec::new();
    for (n, store) in stores.iter().enumerate() {
        uids.push(put(&f, store, "t", 1000 * (n as i64 + 1)).await);
        put(&f, store, &format!("only-{n}"), 60_000).await;
    }
    for (n, store) in stores.iter().enumerate() {
        assert_eq!(ids(store, &Filter::default()).await, ["t".to_owned(), format!("only-{n}")]);
        let scheduled = Filter { state: Some(State::Scheduled), ..Filter::default() };
        assert_eq!(ids(store, &scheduled).await.len(), 2);
        let owned = Filter { owner: Some("t".into()), ..Filter::default() };
        assert_eq!(ids(store, &owned).await, ["t"]);
        for (m, uid) in uids.iter().enumerate() {
            let found = store.find(*uid).await.expect("finds");
            assert_eq!(found.map(|row| row.namespace), (n == m).then(|| store.namespace()), "{n} {m}");
        }
    }
    // A caller of one namespace cannot change a timer of another, whatever he says its key is.
    let cancel = |caller: &ColdStore, uid| Change {
        uid,
        caller: Some(caller.namespace()),
        event: ChangeEvent::Cancel,
    };
    let answers = f
        .apply(&[cancel(&stores[2], uids[1]), cancel(&stores[0], uids[1]), cancel(&stores[1], uids[1])])
        .await;
    let done: Vec<bool> =
        answers.iter().map(|answer| matches!(answer, Applied::Live(_, Answer::Cancelled))).collect();
    assert_eq!(done, [false, false, true]);
    // Nor does what he asks for come to anything beside it.
    let queue = Edit { target: Some(Target::Queue("theirs".into())), ..Edit::default() };
    let change = Change { uid: uids[2], caller: Some(Namespace::OWN), event: ChangeEvent::Edit(queue) };
    assert!(matches!(f.apply(&[change]).await[..], [Applied::NotLive]));
    assert!(f.store.queues_of_all(10).await.expect("reads").is_empty());
    // A list looks at no row of another: the cursor of one that is cut would name it.
    for store in &stores {
        let labelled = Filter { labels: vec![("a".into(), "b".into())], ..Filter::default() };
        let page = store.list(&labelled, None, 10).await.expect("lists");
        assert_eq!((page.rows.len(), page.scanned), (0, 2));
    }
    let ended = Filter { state: Some(State::Cancelled), ..Filter::default() };
    assert_eq!(ids(&stores[1], &ended).await, ["t"]);
    assert!(ids(&stores[0], &ended).await.is_empty() && ids(&stores[2], &ended).await.is_empty());
    // The id stays taken where it was used, and there alone.
    let again = f.register(&[of(&f, &stores[1], "t", 5), of(&f, &stores[2], "u", 5)]).await;
    assert!(matches!(again[..], [Registered::Same(_), Registered::New(_)]), "{again:?}");
    f.balanced().await;
}

async fn ids_of_the_services_own_form_are_each_namespaces_own(f: Fixture) {
    let (a, b) = (f.store.within(made(&f, "a").await), f.store.within(made(&f, "b").await));
    let uid = Uid(uuid::Uuid::now_v7());
    let timer = f.timer("x", 1000);
    let id = TimerId::of_server(uid, a.namespace());
    let timer = NewTimer { uid, id: id.clone(), namespace: a.namespace(), caller_id: false, ..timer };
    assert!(matches!(f.register(&[timer]).await[..], [Registered::New(_)]));
    let row = a.find(id.uid(a.salt())).await.expect("finds").expect("is there");
    assert_eq!(row.id, id.as_str(), "it is read back as it was told");
    assert!(b.find(id.uid(b.salt())).await.expect("finds").is_none());
    assert!(f.store.find(id.uid(f.store.salt())).await.expect("finds").is_none());
    // Nor does an id that was made up for it lead there.
    let crafted = TimerId::of_server(uid, b.namespace());
    assert_eq!(crafted.uid(b.salt()), uid);
    assert!(b.find(uid).await.expect("finds").is_none());
    assert!(b.find_many(&[uid]).await.expect("finds").is_empty());
}

async fn the_ledger_balances_for_each_namespace_and_for_all(f: Fixture) {
    let owned = f.own_all().await;
    let (a, b) = (f.store.within(made(&f, "a").await), f.store.within(made(&f, "b").await));
    for (store, count) in [(&f.store, 3), (&a, 2), (&b, 1)] {
        for n in 0..count {
            put(&f, store, &format!("t{n}"), 100).await;
        }
        put(&f, store, "cancelled", 60_000).await;
        put(&f, store, "waits", 60_000).await;
        let uid = TimerId::parse("cancelled").expect("an id").uid(store.salt());
        f.apply(&[Change { uid, caller: Some(store.namespace()), event: ChangeEvent::Cancel }]).await;
    }
    f.clock.advance(Duration::from_secs(1));
    let rows = f.claim_due(&owned).await;
    assert_eq!(rows.len(), 6);
    let done: Vec<_> =
        rows.iter().map(|row| (row.uid, record(row, mainspring::model::timer::AttemptResult::Ok))).collect();
    f.store.finish_delivered(&done).await.expect("ends");
    let counts = async |whose| {
        let ledger = f.store.ledger(whose).await.expect("reads");
        (ledger.registered, ledger.delivered, ledger.cancelled, ledger.pending)
    };
    let one = |store: &ColdStore| Whose::One(store.namespace());
    let each = [
        (Whose::All, (12, 6, 3, 3)),
        (one(&f.store), (5, 3, 1, 1)),
        (one(&a), (4, 2, 1, 1)),
        (one(&b), (3, 1, 1, 1)),
    ];
    for (whose, expected) in each {
        assert_eq!(counts(whose).await, expected, "{whose:?}");
    }
    let found = f.store.verify().await.expect("verifies");
    assert!(found.balanced && found.mismatches.is_empty(), "{found:?}");
    let pending: Vec<_> =
        found.namespaces.iter().map(|one| (one.namespace.as_str(), one.ledger.pending)).collect();
    assert_eq!(pending, [("a", 1), ("b", 1), ("default", 1)]);
    // Their history goes, and is counted for each.
    f.clock.advance(Duration::from_secs(4 * 86_400));
    assert_eq!(f.clean_up().await, 9);
    f.balanced().await;
    assert_eq!(counts(one(&a)).await, (4, 2, 1, 1));
    // A timer that is lost is missed in its namespace.
    behind_its_back(&f, "DELETE FROM timers WHERE namespace = 2").await;
    let found = f.store.verify().await.expect("verifies");
    let unbalanced: Vec<_> =
        found.namespaces.iter().filter(|one| !one.balanced).map(|one| one.namespace.as_str()).collect();
    assert_eq!((found.balanced, unbalanced), (false, vec!["b"]));
}

async fn names_are_each_namespaces_own(f: Fixture) {
    let (a, b) = (f.store.within(made(&f, "a").await), f.store.within(made(&f, "b").await));
    let edit = |kind: &str| DestinationEdit {
        name: "orders".into(),
        kind: "webhook".into(),
        settings: format!("{{\"webhook\":{{\"url\":\"http://127.0.0.1:9/{kind}\"}}}}"),
        secrets: None,
        if_version: Some(0),
    };
    for store in [&a, &b] {
        let written = store.put_destination(&edit("x")).await.expect("writes");
        assert!(matches!(written, Written::Done(row, true) if row.namespace == store.namespace()));
    }
    let to = |store: &ColdStore, id: &str| NewTimer {
        target: Target::Destination("orders".into()),
        ..of(&f, store, id, 1000)
    };
    let answers = f.register(&[to(&a, "t"), to(&f.store, "t"), to(&b, "t")]).await;
    assert!(
        matches!(&answers[..], [Registered::New(_), Registered::NoDestination(name), Registered::New(_)] if name == "orders")
    );
    let of_orders = Filter { destination: Some("orders".into()), ..Filter::default() };
    assert_eq!(ids(&a, &of_orders).await, ["t"]);
    let cancel = TimerId::parse("t").expect("an id").uid(a.salt());
    f.apply(&[Change { uid: cancel, caller: Some(a.namespace()), event: ChangeEvent::Cancel }]).await;
    assert_eq!(a.remove_destination("orders").await.expect("removes"), Removed::Done);
    assert!(
        matches!(b.remove_destination("orders").await.expect("answers"), Removed::InUse(uses) if uses.timers == 1)
    );
    assert_eq!(f.store.destinations_of_all(None).await.expect("reads").len(), 1);
    a.put_queue("q", &Settings::default(), Some(true)).await.expect("writes");
    assert!(a.queue("q").await.expect("reads").expect("is there").paused);
    assert!(b.queue("q").await.expect("reads").is_none());
}

async fn who_asks_for_ever_new_queues_makes_only_so_many(f: Fixture) {
    let a = f.store.within(made(&f, "a").await);
    let rows = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999) \
         INSERT INTO queues (namespace, name, settings, paused, version, created_at, changed_at) \
         SELECT {}, 'q' || i, '{{}}', false, 1, 0, 0 FROM n",
        a.namespace().0
    );
    behind_its_back(&f, &rows).await;
    let is_there = async |store: &ColdStore, name| {
        store
            .lease(name, &[asking("w").of(store.namespace(), name)], "n", &mut Turn::default())
            .await
            .expect("leases");
        store.queue(name).await.expect("reads").is_some()
    };
    assert!(is_there(&a, "last").await && !is_there(&a, "beyond").await && is_there(&a, "q7").await);
    assert!(is_there(&f.store, "beyond").await, "another namespace has room");
    let timer = for_queue(of(&f, &a, "task", 0), Dispatch::default());
    let timer = NewTimer { target: Target::Queue("beyond".into()), ..timer };
    assert!(matches!(f.register(&[timer]).await[..], [Registered::New(_)]));
    assert!(a.queue("beyond").await.expect("reads").is_some(), "timers make what they need");
}

async fn workers_get_what_their_namespace_has(f: Fixture) {
    let (a, b) = (f.store.within(made(&f, "a").await), f.store.within(made(&f, "b").await));
    for store in [&a, &b] {
        let timer = for_queue(of(&f, store, "task", 0), Dispatch::default());
        assert!(matches!(f.register(&[timer]).await[..], [Registered::New(_)]));
    }
    f.clock.advance(Duration::from_secs(1));
    let lease = async |store: &ColdStore| {
        let given = store
            .lease("q", &[asking("w").of(store.namespace(), "q")], "a", &mut Turn::default())
            .await
            .expect("leases")
            .given;
        given.into_iter().flatten().collect::<Vec<_>>()
    };
    assert!(lease(&f.store).await.is_empty());
    let (of_a, of_b) = (lease(&a).await, lease(&b).await);
    assert_eq!((of_a.len(), of_b.len()), (1, 1));
    assert!(lease(&a).await.is_empty(), "there is one in each");
    // Its token is good in its own queue alone.
    let token = of_a[0].token;
    let settle = |store: &ColdStore| {
        let lane = lane(store.namespace(), "q");
        let settlement = Settlement { token, lane, action: Action::Ack, result: None };
        Change { uid: token.uid, caller: None, event: ChangeEvent::Settle(settlement) }
    };
    let answers = f.apply(&[settle(&b), settle(&f.store), settle(&a)]).await;
    let done: Vec<bool> =
        answers.iter().map(|answer| matches!(answer, Applied::Live(_, Answer::Done))).collect();
    assert_eq!(done, [false, false, true]);
    let depth = f.store.queue_depths(&[lane(b.namespace(), "q")]).await.expect("counts");
    assert_eq!(depth[0].leased, 1);
    f.balanced().await;
}

async fn a_namespace_goes_when_it_has_nothing_more(f: Fixture) {
    let number = made(&f, "a").await;
    let a = f.store.within(number);
    put(&f, &a, "t", 1000).await;
    let key = NewKey {
        id: KeyId::new(1),
        name: "k".into(),
        namespace: Some(number),
        scope: Scope::View,
        hash: [1; 32],
        is_certificate: false,
        expires_at: None,
    };
    assert!(
        matches!(f.store.make_key(&key).await.expect("makes"), KeyMade::Done(row) if row.namespace == Some(number))
    );
    let gone = async || f.store.remove_namespace("a").await.expect("answers");
    assert_eq!(gone().await, NamespaceRemoved::InUse("1 live timers".into()));
    let uid = TimerId::parse("t").expect("an id").uid(a.salt());
    f.apply(&[Change { uid, caller: Some(number), event: ChangeEvent::Cancel }]).await;
    assert_eq!(gone().await, NamespaceRemoved::InUse("1 keys".into()));
    f.store.revoke_key(key.id, false).await.expect("revokes");
    a.put_queue("q", &Settings::default(), None).await.expect("writes");
    assert_eq!(gone().await, NamespaceRemoved::Done);
    assert!(f.store.queues_of_all(10).await.expect("reads").is_empty());
    // Whoever comes later does not bring it back.
    let answers = f.store.register(&[of(&f, &a, "late", 5), f.timer("own", 5)]).await;
    assert!(matches!(&answers[..], [Err(Error::NoNamespace), Ok(Registered::New(_))]), "{answers:?}");
    // Also who names what went with it.
    let named = NewTimer { target: Target::Destination("orders".into()), ..of(&f, &a, "named", 5) };
    let answers = f.store.register(&[named]).await;
    assert!(matches!(&answers[..], [Err(Error::NoNamespace)]), "{answers:?}");
    assert!(matches!(f.store.make_key(&key).await, Err(Error::NoNamespace)));
    assert!(matches!(a.put_queue("q", &Settings::default(), None).await, Err(Error::NoNamespace)));
    f.balanced().await;
}

async fn who_makes_keys_stays(f: Fixture) {
    let a = made(&f, "a").await;
    let admin = async |id: u64, namespace| {
        let (id, name) = (KeyId::new(id), format!("k{id}"));
        let hash = [u8::try_from(id.get()).expect("small"); 32];
        let new = NewKey {
            id,
            name,
            namespace,
            scope: Scope::Admin,
            hash,
            is_certificate: false,
            expires_at: None,
        };
        assert!(matches!(f.store.make_key(&new).await.expect("makes"), KeyMade::Done(_)));
        id
    };
    let revoke = async |id| f.store.revoke_key(id, true).await.expect("answers");
    let (first, of_a) = (admin(1, None).await, admin(2, Some(a)).await);
    assert_eq!(revoke(first).await, KeyRevoked::LastAdmin, "that of `a` makes none of all");
    assert_eq!(revoke(of_a).await, KeyRevoked::Done, "the first one makes another");
    let (second, of_a) = (admin(3, None).await, admin(4, Some(a)).await);
    assert_eq!(revoke(first).await, KeyRevoked::Done);
    f.store.revoke_key(second, false).await.expect("revokes");
    assert_eq!(revoke(of_a).await, KeyRevoked::LastAdmin);
}

on_both_stores! {
    a_number_is_given_once,
    one_id_is_a_timer_in_each_namespace,
    ids_of_the_services_own_form_are_each_namespaces_own,
    the_ledger_balances_for_each_namespace_and_for_all,
    names_are_each_namespaces_own,
    who_asks_for_ever_new_queues_makes_only_so_many,
    workers_get_what_their_namespace_has,
    a_namespace_goes_when_it_has_nothing_more,
    who_makes_keys_stays,
}

/// A node of a version that knows no namespaces would take their timers for the store's own.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_know_no_namespaces_are_waited_for_and_kept_out() {
    let f = Fixture::postgres().await;
    behind_its_back(&f, "UPDATE nodes SET release = 2").await;
    let put = async |name| f.store.put_namespace(name, &Terms::default()).await.expect("answers");
    assert_eq!(put("a").await, NamespaceWritten::OlderNodes(vec!["a".into()]));
    assert!(matches!(put("default").await, NamespaceWritten::Done(..)), "quotas of the store's own");
    behind_its_back(&f, "UPDATE nodes SET release = 3").await;
    assert!(matches!(put("a").await, NamespaceWritten::Done(_, true)));
    let bears = crate::support::psql(&f.config.cold.url, "SELECT bears FROM store").await;
    assert_eq!(bears.trim(), "3");
}
