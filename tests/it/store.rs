//! One conformance suite for the cold store, run on SQLite and on PostgreSQL: every rule and every race that
//! SQL must win. The clock is turned by hand.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use mainspring::clock::{Clock, ManualClock};
use mainspring::cold::{
    Applied, AttemptRecord, Change, ChangeEvent, ColdStore, Edit, Error, Filter, Identity, NewTimer, Probe,
    Registered, TimerRow,
};
use mainspring::config::Config;
use mainspring::model::id::{Epoch, Generation, TimerId, Uid};
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::policy::{Late, Policies, Then};
use mainspring::model::target::{Target, Webhook};
use mainspring::model::time::{Span, UnixMs};
use mainspring::model::timer::{Answer, AttemptResult, Next, State, Token};

use crate::support::{fresh_database, psql};

const START: UnixMs = UnixMs::new(1_800_000_000_000);

struct Fixture {
    store: ColdStore,
    clock: Arc<ManualClock>,
    config: Config,
    me: Identity,
    _dir: tempfile::TempDir,
}

fn config(url: &str, sets: &[&str]) -> Config {
    let mut all = vec![format!("cold.url={url}"), "shards=8".to_owned(), "history.retention=P2D".to_owned()];
    all.extend(sets.iter().map(|set| (*set).to_owned()));
    Config::load(Some(std::path::Path::new("/dev/null")), [], &all).expect("settings")
}

fn identity(name: &str) -> Identity {
    Identity { name: name.into(), incarnation: format!("{name}-1"), address: "127.0.0.1:1".into() }
}

impl Fixture {
    async fn at(url: &str, dir: tempfile::TempDir) -> Self {
        let config = config(url, &[]);
        let clock = ManualClock::new(START);
        let store = ColdStore::open(&config, clock.clone(), true, true).expect("opens");
        store.prepare().await.expect("prepares");
        let me = identity("a");
        store.enter(&me).await.expect("enters");
        Self { store, clock, config, me, _dir: dir }
    }

    async fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}", dir.path().join("t.db").display());
        Self::at(&url, dir).await
    }

    async fn postgres() -> Self {
        Self::at(&fresh_database().await, tempfile::tempdir().expect("a directory")).await
    }

    fn now(&self) -> UnixMs {
        self.clock.now()
    }

    fn timer(&self, id: &str, due_in_ms: i64) -> NewTimer {
        let id = TimerId::parse(id).expect("an id");
        NewTimer {
            uid: id.uid("default"),
            id,
            caller_id: true,
            again: false,
            owner: None,
            due_at: UnixMs::new(self.now().get() + due_in_ms),
            minute: false,
            target: Target::Webhook(
                Webhook::new("http://127.0.0.1:9/x", None, BTreeMap::new()).expect("a hook"),
            ),
            data: Some(br#"{"a":"\u0000"}"#.to_vec()),
            labels: None,
            policies: Policies::default(),
            request_hash: [7; 16],
            created_at: self.now(),
        }
    }

    async fn register(&self, timers: &[NewTimer]) -> Vec<Registered> {
        self.store.register(timers).await.into_iter().map(|answer| answer.expect("registers")).collect()
    }

    async fn put(&self, id: &str, due_in_ms: i64) -> Uid {
        let timer = self.timer(id, due_in_ms);
        assert!(matches!(self.register(std::slice::from_ref(&timer)).await[..], [Registered::New(_)]));
        timer.uid
    }

    async fn own_all(&self) -> Vec<(i32, Epoch)> {
        let mut taken = self.store.take(&self.me, 100, true, 3000).await.expect("takes");
        taken.sort_unstable();
        assert_eq!(taken.len(), 8);
        taken
    }

    /// What is due, paired with the epochs of `owned`.
    async fn due(&self, owned: &[(i32, Epoch)]) -> Vec<(Pointer, Epoch)> {
        let probe = |shard| Probe { shard, floor: i64::MIN, grace_ms: 0 };
        let probes: Vec<_> = owned.iter().map(|(shard, _)| probe(*shard)).collect();
        let found = self.store.due(&probes, 10_000, 10_000).await.expect("looks");
        let epoch = |shard: i32| owned.iter().find(|(one, _)| *one == shard).expect("owned").1;
        found.rows.iter().map(|due| (due.pointer, epoch(due.pointer.shard))).collect()
    }

    async fn claim(&self, pointers: &[(Pointer, Epoch)]) -> Vec<TimerRow> {
        self.store.claim(pointers, "a", 0).await.expect("claims").rows
    }

    async fn claim_due(&self, owned: &[(i32, Epoch)]) -> Vec<TimerRow> {
        let due = self.due(owned).await;
        self.claim(&due).await
    }

    async fn change(&self, uid: Uid, event: ChangeEvent) -> (TimerRow, Answer) {
        match self.store.apply(&[Change { uid, event }]).await.expect("applies").remove(0) {
            Applied::Live(row, answer) => (*row, answer),
            other => panic!("{other:?}"),
        }
    }

    async fn find(&self, uid: Uid) -> TimerRow {
        self.store.find(uid).await.expect("finds").expect("is there")
    }

    async fn balanced(&self) {
        let found = self.store.verify().await.expect("verifies");
        assert!(found.balanced && found.mismatches.is_empty(), "{found:?}");
    }
}

fn record(row: &TimerRow, result: AttemptResult) -> AttemptRecord {
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
    }
}

fn token(row: &TimerRow) -> Token {
    Token { generation: row.life.generation, attempt: row.life.attempt }
}

async fn a_timer_is_claimed_at_its_due_time_and_never_before(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 1000).await;
    f.clock.advance(Duration::from_millis(999));
    assert!(f.due(&owned).await.is_empty());
    let early = Pointer {
        uid,
        shard: f.find(uid).await.shard,
        generation: Generation(1),
        attempt: 0,
        wake_at: f.now(),
        lane: 0,
        minute: false,
        overdue: false,
        via: Via::Loader,
    };
    let epoch = owned[0].1;
    assert!(f.claim(&[(early, epoch)]).await.is_empty(), "the claim itself refuses what is not due");
    f.clock.advance(Duration::from_millis(1));
    let rows = f.claim_due(&owned).await;
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].life.state, rows[0].life.attempt, rows[0].life.tries), (State::Delivering, 1, 1));
    assert_eq!(rows[0].data.as_deref(), Some(&br#"{"a":"\u0000"}"#[..]));
    assert!(f.claim(&f.due(&owned).await).await.is_empty(), "claimed once");
    assert_eq!(
        f.store.finish_delivered(&[(uid, record(&rows[0], AttemptResult::Ok))]).await.expect("ends"),
        [uid]
    );
    let row = f.find(uid).await;
    assert_eq!((row.life.state, row.ended_at), (State::Delivered, Some(f.now())));
    assert_eq!(f.store.attempts(&row).await.expect("reads").len(), 1);
    f.balanced().await;
}

async fn a_claim_of_an_older_generation_gets_nothing(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let stale = f.due(&owned).await;
    let (row, answer) = f
        .change(
            uid,
            ChangeEvent::Edit(Edit {
                due_at: Some(f.now().plus(Duration::from_secs(0))),
                data: Some(None),
                ..Edit::default()
            }),
        )
        .await;
    assert_eq!((answer, row.life.generation), (Answer::Done, Generation(2)));
    assert!(f.claim(&stale).await.is_empty(), "the old generation is due in the pointer only");
    assert_eq!(f.claim_due(&owned).await.len(), 1);
}

async fn a_claim_under_an_older_epoch_gets_nothing(f: Fixture) {
    let owned = f.own_all().await;
    f.put("t", 0).await;
    let stale = f.due(&owned).await;
    f.clock.advance(Duration::from_millis(3001));
    let other = identity("b");
    let taken = f.store.take(&other, 100, false, 3000).await.expect("takes");
    assert_eq!(taken.len(), 8, "the lease has run out");
    assert!(f.claim(&stale).await.is_empty(), "fenced");
    assert_eq!(f.claim_due(&taken).await.len(), 1);
    assert!(
        f.store.renew(&f.me, &owned, |_| 0, 3000).await.expect("asks").is_empty(),
        "renewing an old epoch renews nothing"
    );
}

async fn what_a_dead_owner_had_claimed_is_due_again_at_once(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let far = f.put("far", 3_600_000).await;
    assert_eq!(f.claim_due(&owned).await.len(), 1);
    let again = f.own_all().await;
    assert!(again.iter().zip(&owned).all(|(new, old)| new.1 > old.1), "a restart has new epochs");
    assert_eq!(f.store.recall(&again, 3000).await.expect("recalls").len(), 1);
    let due = f.due(&again).await;
    assert_eq!(due.len(), 1);
    let expired = ChangeEvent::ClaimExpired(Token { generation: Generation(1), attempt: 1 });
    let (row, answer) = f.change(uid, expired).await;
    assert_eq!((answer, row.life.state, row.life.uncertain), (Answer::Done, State::Retrying, true));
    let attempts = f.store.attempts(&row).await.expect("reads");
    assert_eq!(attempts.iter().map(|a| a.result).collect::<Vec<_>>(), [AttemptResult::Unknown]);
    assert_eq!(f.find(far).await.life.state, State::Scheduled);
    let second = f.claim_due(&again).await;
    assert_eq!(second[0].life.attempt, 2);
    assert_eq!(second[0].delivery_id(), row.delivery_id(), "all attempts of one firing carry one id");
    f.balanced().await;
}

async fn what_was_given_up_in_order_is_not_recalled(f: Fixture) {
    let (first, kept) = (f.own_all().await, f.put("kept", 0).await);
    assert_eq!(f.claim_due(&first).await.len(), 1);
    let expires = f.find(kept).await.life.wake_at;
    let given_up = f.store.give_up(&f.me, &first).await.expect("gives up");
    assert_eq!(given_up.len(), 8);
    assert!(f.store.give_up(&f.me, &first).await.expect("asks").is_empty(), "they are nobody's now");

    // The next owner leaves the claim alone, and crashes with one of its own.
    let second = f.own_all().await;
    assert_eq!(f.store.recall(&second, 3000).await.expect("recalls").len(), 0);
    let crashed = f.put("crashed", 0).await;
    assert_eq!(f.claim_due(&second).await.len(), 1);
    let third = f.own_all().await;
    assert_eq!(f.store.recall(&third, 3000).await.expect("recalls").len(), 1, "the crashed owner's only");
    assert_eq!(f.find(crashed).await.life.wake_at, f.now());
    assert_eq!(f.find(kept).await.life.wake_at, expires, "who ceded it may be sending it still");

    // Given up in order again: what the one before him ceded is spared still.
    f.store.give_up(&f.me, &third).await.expect("gives up");
    let fourth = f.own_all().await;
    assert_eq!(f.store.recall(&fourth, 3000).await.expect("recalls").len(), 0);

    // A late success under the ceded epoch ends it; what nobody reports runs out.
    let row = f.find(kept).await;
    let ended = f.store.finish_delivered(&[(kept, record(&row, AttemptResult::Ok))]).await.expect("ends");
    assert_eq!(ended, [kept]);
    f.change(crashed, ChangeEvent::ClaimExpired(token(&f.find(crashed).await))).await;
    let lost = f.put("lost", 0).await;
    let due: Vec<_> = f.due(&fourth).await.into_iter().filter(|(pointer, _)| pointer.uid == lost).collect();
    assert_eq!(f.claim(&due).await.len(), 1);
    f.store.give_up(&f.me, &fourth).await.expect("gives up");
    let fifth = f.own_all().await;
    assert_eq!(f.store.recall(&fifth, 3000).await.expect("recalls").len(), 0);
    assert!(f.due(&fifth).await.iter().all(|(pointer, _)| pointer.uid != lost));
    f.clock.advance(Duration::from_secs(60));
    assert!(f.due(&fifth).await.iter().any(|(pointer, _)| pointer.uid == lost), "its claim ran out");
    f.balanced().await;
}

async fn what_was_ceded_by_a_node_that_died_since_is_recalled(f: Fixture) {
    for restarted in [false, true] {
        f.store.enter(&f.me).await.expect("enters");
        let uid = f.put(if restarted { "restarted" } else { "dead" }, 0).await;
        let first = f.own_all().await;
        assert_eq!(f.claim_due(&first).await.len(), 1);
        f.store.give_up(&f.me, &first).await.expect("gives up");
        let second = f.own_all().await;
        assert_eq!(f.store.recall(&second, 3000).await.expect("recalls").len(), 0, "it is alive");
        if restarted {
            f.clock.advance(Duration::from_secs(1));
            f.store.enter(&f.me).await.expect("enters anew");
        } else {
            f.clock.advance(Duration::from_secs(4));
        }
        assert_eq!(f.store.recall(&second, 3000).await.expect("recalls").len(), 1);
        assert_eq!(f.find(uid).await.life.wake_at, f.now());
        f.change(uid, ChangeEvent::ClaimExpired(token(&f.find(uid).await))).await;
        f.change(uid, ChangeEvent::Cancel).await;
    }
}

async fn what_is_given_up_sparing_nothing_is_recalled(f: Fixture) {
    let (first, uid) = (f.own_all().await, f.put("t", 0).await);
    assert_eq!(f.claim_due(&first).await.len(), 1);
    f.store.give_up_sparing_nothing(&f.me, &first).await.expect("gives up");
    let second = f.own_all().await;
    assert_eq!(f.store.recall(&second, 3000).await.expect("recalls").len(), 1);
    assert_eq!(f.find(uid).await.life.wake_at, f.now());
}

async fn nodes_are_counted_and_ranked_by_their_names(f: Fixture) {
    let (b, c) = (identity("b"), identity("c"));
    f.store.enter(&c).await.expect("enters");
    f.store.enter(&b).await.expect("enters");
    for (me, rank) in [(&f.me, 0), (&b, 1), (&c, 2)] {
        let beat = f.store.beat(me, 3000).await.expect("beats");
        assert_eq!((beat.alive.len(), beat.rank(&me.name), beat.usurped), (3, rank, false));
    }
    f.store.leave(&b).await.expect("leaves");
    let beat = f.store.beat(&c, 3000).await.expect("beats");
    assert_eq!((beat.alive.len(), beat.rank("c")), (2, 1), "whoever has left does not count");
}

async fn when_the_next_node_counts_as_dead_is_known(f: Fixture) {
    let (b, c) = (identity("b"), identity("c"));
    assert_eq!(f.store.beat(&f.me, 3000).await.expect("beats").next_dead_ms, None, "nobody else");
    f.store.enter(&b).await.expect("enters");
    f.store.enter(&c).await.expect("enters");
    f.clock.advance(Duration::from_secs(1));
    f.store.beat(&b, 3000).await.expect("beats");
    for (after, alive, left) in
        [(0, 3, Some(2000)), (1500, 3, Some(500)), (500, 2, Some(1000)), (1000, 1, None)]
    {
        f.clock.advance(Duration::from_millis(after));
        let beat = f.store.beat(&f.me, 3000).await.expect("beats");
        assert_eq!((beat.alive.len(), beat.next_dead_ms), (alive, left), "{after} ms later");
    }
}

async fn a_late_result_counts_only_for_its_own_attempt(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let first = f.claim_due(&owned).await.remove(0);
    f.clock.advance(Duration::from_secs(60));
    f.change(uid, ChangeEvent::ClaimExpired(token(&first))).await;
    let second = f.claim_due(&owned).await.remove(0);
    assert_eq!(second.life.attempt, 2);
    let late = record(&first, AttemptResult::Ok);
    assert!(
        f.store.finish_delivered(&[(uid, late.clone())]).await.expect("asks").is_empty(),
        "not the current attempt"
    );
    let (row, answer) = f.change(uid, ChangeEvent::Attempted(Next::GiveUp, late)).await;
    assert_eq!((answer, row.life.state), (Answer::Done, State::Delivering));
    let failed = record(&second, AttemptResult::Failed);
    let (row, _) = f.change(uid, ChangeEvent::Attempted(Next::Retry(f.now()), failed)).await;
    assert_eq!(row.life.state, State::Delivered, "the late success was not thrown away");
    let results: Vec<_> = f
        .store
        .attempts(&f.find(uid).await)
        .await
        .expect("reads")
        .iter()
        .map(|a| (a.attempt, a.result))
        .collect();
    assert_eq!(results, [(1, AttemptResult::Ok), (2, AttemptResult::Failed)]);
    f.balanced().await;
}

async fn a_claim_that_runs_out_is_found_and_only_then(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let row = f.claim_due(&owned).await.remove(0);
    let (_, early) = f.change(uid, ChangeEvent::ClaimExpired(token(&row))).await;
    assert_eq!(early, Answer::Stale, "it has not run out");
    f.clock.set(row.life.wake_at);
    let due = f.due(&owned).await;
    assert_eq!((due.len(), due[0].0.attempt), (1, 1));
    assert!(f.claim(&due).await.is_empty(), "it is not claimed before it is given up");
}

async fn an_ended_id_stays_taken_and_again_starts_the_next_generation(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let first = f.claim_due(&owned).await.remove(0);
    f.store.finish_delivered(&[(uid, record(&first, AttemptResult::Ok))]).await.expect("ends");
    let same = f.timer("t", 0);
    assert!(
        matches!(&f.register(std::slice::from_ref(&same)).await[..], [Registered::Same(row)] if row.life.state == State::Delivered)
    );
    let other = NewTimer { request_hash: [8; 16], ..same.clone() };
    assert!(matches!(f.register(std::slice::from_ref(&other)).await[..], [Registered::Taken]));
    let again = NewTimer { again: true, ..other };
    let answers = f.register(std::slice::from_ref(&again)).await;
    let [Registered::New(row)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(row.life.generation, Generation(2));
    assert_ne!(row.delivery_id(), first.delivery_id(), "no two firings share an id");
    assert!(matches!(f.register(&[again]).await[..], [Registered::Same(_)]), "again is repeated safely");
    let (_, answer) = f.change(uid, ChangeEvent::Cancel).await;
    assert_eq!(answer, Answer::Cancelled, "nothing of this registration was sent");
    f.balanced().await;
    let ledger = f.store.ledger().await.expect("reads");
    assert_eq!((ledger.registered, ledger.delivered, ledger.cancelled, ledger.pending), (2, 1, 1, 0));
}

async fn history_goes_after_its_retention_and_the_totals_stay(f: Fixture) {
    f.store.make_partitions(f.now(), 3).await.expect("partitions");
    for n in 0..5 {
        let uid = f.put(&format!("t{n}"), 5000).await;
        f.change(uid, ChangeEvent::Cancel).await;
    }
    f.put("live", 1_000_000_000).await;
    f.store.clean_up(f.now()).await.expect("cleans");
    assert!(f.store.find(f.timer("t0", 0).uid).await.expect("looks").is_some());
    // Past the retention of two days and the rest of the day whose partition it was.
    f.clock.advance(Duration::from_secs(3 * 86_400 + 1));
    assert_eq!(f.store.clean_up(f.now()).await.expect("cleans"), 5);
    assert!(f.store.find(f.timer("t0", 0).uid).await.expect("looks").is_none());
    assert!(
        matches!(f.register(&[f.timer("t0", 5000)]).await[..], [Registered::New(_)]),
        "the id is free again"
    );
    let ledger = f.store.ledger().await.expect("reads");
    assert_eq!((ledger.registered, ledger.cancelled, ledger.pending), (7, 5, 2));
    f.balanced().await;
}

async fn of_equal_ids_in_one_batch_the_first_is_new(f: Fixture) {
    let one = f.timer("t", 1000);
    let other = NewTimer { request_hash: [9; 16], ..one.clone() };
    let answers = f.register(&[f.timer("x", 1), one.clone(), one.clone(), other, one.clone()]).await;
    assert!(
        matches!(
            answers[..],
            [
                Registered::New(_),
                Registered::New(_),
                Registered::Same(_),
                Registered::Taken,
                Registered::Same(_)
            ]
        ),
        "{answers:?}"
    );
    assert_eq!(f.store.ledger().await.expect("reads").registered, 2);
    f.balanced().await;
}

async fn many_callers_of_one_id_make_one_timer(f: Fixture) {
    let store = &f.store;
    let timer = f.timer("t", 1000);
    let answers = futures::future::join_all((0..50).map(|_| {
        let timer = [timer.clone()];
        async move { store.register(&timer).await.remove(0).expect("registers") }
    }))
    .await;
    assert_eq!(answers.iter().filter(|a| matches!(a, Registered::New(_))).count(), 1);
    assert_eq!(answers.iter().filter(|a| matches!(a, Registered::Same(_))).count(), 49);
}

async fn of_a_claim_and_a_cancel_exactly_one_wins(f: Fixture) {
    let owned = f.own_all().await;
    let timers: Vec<_> = (0..200).map(|n| f.timer(&format!("t{n}"), 0)).collect();
    f.register(&timers).await;
    let due = f.due(&owned).await;
    let changes: Vec<_> = timers.iter().map(|t| Change { uid: t.uid, event: ChangeEvent::Cancel }).collect();
    let claims = async {
        let mut claimed = HashSet::new();
        for chunk in due.chunks(20) {
            claimed.extend(f.claim(chunk).await.into_iter().map(|row| row.uid));
        }
        claimed
    };
    let cancels = async {
        let mut cancelled = HashSet::new();
        for chunk in changes.rchunks(20) {
            for (applied, change) in f.store.apply(chunk).await.expect("applies").into_iter().zip(chunk) {
                match applied {
                    Applied::Live(_, Answer::Cancelled) => drop(cancelled.insert(change.uid)),
                    Applied::Live(row, Answer::InFlight) => assert_eq!(row.life.state, State::Delivering),
                    other => panic!("{other:?}"),
                }
            }
        }
        cancelled
    };
    let (claimed, cancelled) = tokio::join!(claims, cancels);
    assert!(claimed.is_disjoint(&cancelled));
    assert_eq!(claimed.len() + cancelled.len(), 200);
    f.balanced().await;
}

async fn changes_of_one_timer_in_one_batch_see_each_other(f: Fixture) {
    let uid = f.put("t", 60_000).await;
    let later = f.now().plus(Duration::from_secs(120));
    let edit = |due_at| ChangeEvent::Edit(Edit { due_at: Some(due_at), ..Edit::default() });
    let batch = [edit(later), ChangeEvent::Fire, ChangeEvent::Cancel, ChangeEvent::Cancel]
        .map(|event| Change { uid, event });
    let answers = f.store.apply(&batch).await.expect("applies");
    assert!(
        matches!(&answers[..], [Applied::Live(a, Answer::Done), Applied::Live(b, Answer::Done), Applied::Live(c, Answer::Cancelled), Applied::NotLive]
            if a.life.due_at == later && b.life.generation == Generation(3) && c.life.state == State::Cancelled),
        "{answers:?}"
    );
    let row = f.find(uid).await;
    assert_eq!((row.life.state, row.life.generation), (State::Cancelled, Generation(3)));
    f.balanced().await;
}

async fn an_edit_changes_only_what_it_names(f: Fixture) {
    let uid = f.put("t", 60_000).await;
    let labels = Edit { labels: Some(Some(r#"{"a":"b"}"#.into())), ..Edit::default() };
    let (row, _) = f.change(uid, ChangeEvent::Edit(labels.clone())).await;
    assert_eq!((row.life.generation, row.life.version), (Generation(1), 2), "labels make no new generation");
    let (row, answer) = f.change(uid, ChangeEvent::Edit(labels)).await;
    assert_eq!((answer, row.life.version), (Answer::Done, 2), "nothing changed");
    let data = Edit { data: Some(Some(b"[1]".to_vec())), if_version: Some(2), ..Edit::default() };
    let (row, _) = f.change(uid, ChangeEvent::Edit(data.clone())).await;
    assert_eq!((row.life.generation, row.life.version), (Generation(2), 3));
    let again = f.store.apply(&[Change { uid, event: ChangeEvent::Edit(data) }]).await.expect("applies");
    assert!(matches!(again[..], [Applied::OtherVersion(3)]), "{again:?}");
    let row = f.find(uid).await;
    assert_eq!((row.data.as_deref(), row.labels.as_deref()), (Some(&b"[1]"[..]), Some(r#"{"a":"b"}"#)));
}

async fn what_is_found_later_than_its_grace_expires_unattempted(f: Fixture) {
    let owned = f.own_all().await;
    let late = Late { grace: Span::parse("PT10S").expect("a span"), then: Then::Expire };
    let timer =
        NewTimer { policies: Policies { late: Some(late), ..Policies::default() }, ..f.timer("t", 0) };
    f.register(&[timer.clone(), f.timer("u", 0)]).await;
    f.clock.advance(Duration::from_secs(11));
    let claimed = f.claim_due(&owned).await;
    assert_eq!(
        claimed.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(),
        ["u"],
        "the claim itself refuses it"
    );
    let (row, _) = f.change(timer.uid, ChangeEvent::TooLate(Generation(1))).await;
    assert_eq!((row.life.state, row.life.tries), (State::Expired, 0));
    f.balanced().await;
}

async fn a_release_is_only_for_the_holder_of_the_epoch(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let row = f.claim_due(&owned).await.remove(0);
    let (_, answer) = f.change(uid, ChangeEvent::Released(token(&row), Epoch(row.epoch.0 - 1))).await;
    assert_eq!(answer, Answer::Stale);
    let (back, answer) = f.change(uid, ChangeEvent::Released(token(&row), row.epoch)).await;
    assert_eq!((answer, back.life.state, back.life.attempt), (Answer::Done, State::Scheduled, 0));
    assert_eq!(f.claim_due(&owned).await.len(), 1);
}

async fn postponed_rows_leave_the_head_and_keep_their_due_time(f: Fixture) {
    let owned = f.own_all().await;
    let uid = f.put("t", 0).await;
    let due = f.due(&owned).await;
    f.store.postpone(&[(due[0].0, 5000)]).await.expect("postpones");
    assert!(f.due(&owned).await.is_empty());
    assert_eq!(f.find(uid).await.life.due_at, START);
    f.clock.advance(Duration::from_secs(5));
    assert_eq!(f.claim_due(&owned).await.len(), 1);
}

async fn a_list_misses_nothing_and_repeats_nothing(f: Fixture) {
    let mut timers = Vec::new();
    for n in 0..60 {
        let owner = (n % 2 == 0).then(|| "even".to_owned());
        let labels = (n % 3 == 0).then(|| r#"{"kind":"third"}"#.to_owned());
        timers.push(NewTimer { owner, labels, ..f.timer(&format!("t{n}"), 1000 + i64::from(n / 7)) });
    }
    f.register(&timers).await;
    for timer in &timers[..20] {
        f.change(timer.uid, ChangeEvent::Cancel).await;
    }
    let all = |filter: Filter| {
        let store = f.store.clone();
        async move {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = store.list(&filter, after, 7).await.expect("lists");
                assert!(page.rows.len() <= 7);
                seen.extend(page.rows);
                after = page.next;
                if after.is_none() {
                    return seen;
                }
            }
        }
    };
    let seen = all(Filter::default()).await;
    assert_eq!(seen.iter().map(|row| row.uid).collect::<HashSet<_>>().len(), 60);
    assert_eq!(seen.len(), 60);
    assert!(seen.is_sorted_by_key(|row| row.life.due_at), "in due order");
    let count = |filter| async { all(filter).await.len() };
    assert_eq!(count(Filter { state: Some(State::Cancelled), ..Filter::default() }).await, 20);
    assert_eq!(count(Filter { owner: Some("even".into()), ..Filter::default() }).await, 30);
    assert_eq!(
        count(Filter { labels: vec![("kind".into(), "third".into())], ..Filter::default() }).await,
        20
    );
    assert_eq!(
        count(Filter { labels: vec![("k\"'ind".into(), "third".into())], ..Filter::default() }).await,
        0
    );
    let after = START.plus(Duration::from_millis(1004));
    assert_eq!(count(Filter { due_after: Some(after), ..Filter::default() }).await, 60 - 28);
    assert_eq!(count(Filter { due_before: Some(after), ..Filter::default() }).await, 28);
}

async fn a_planted_loss_is_found_by_verify(f: Fixture) {
    f.put("t", 0).await;
    f.balanced().await;
    let mut gone = f.timer("u", 0);
    gone.caller_id = false;
    f.register(&[gone]).await;
    behind_its_back(&f, "DELETE FROM timers WHERE id = 'u'").await;
    let found = f.store.verify().await.expect("verifies");
    assert!(!found.balanced);
}

/// One unreadable row (of a newer version, or damaged) holds nobody else up.
async fn an_unreadable_timer_is_left_alone(f: Fixture) {
    let owned = f.own_all().await;
    let (bad, good) = (f.put("bad", 0).await, f.put("good", 0).await);
    behind_its_back(&f, "UPDATE timers SET policies = '{]' WHERE id = 'bad'").await;
    let due = f.due(&owned).await;
    let claimed = f.store.claim(&due, "a", 0).await.expect("claims");
    assert_eq!(claimed.rows.iter().map(|row| row.uid).collect::<Vec<_>>(), [good]);
    assert_eq!(claimed.unreadable, [bad]);
    let cancel = |uid| Change { uid, event: ChangeEvent::Cancel };
    let answers = f.store.apply(&[cancel(bad), cancel(good)]).await.expect("applies");
    assert!(matches!(answers[..], [Applied::Unreadable, Applied::Live(_, Answer::InFlight)]), "{answers:?}");
}

async fn behind_its_back(f: &Fixture, sql: &str) {
    match f.config.cold.url.strip_prefix("sqlite://") {
        None => drop(psql(&f.config.cold.url, sql).await),
        Some(path) => {
            let pool = sea_orm::sqlx::SqlitePool::connect(path).await.expect("opens");
            sea_orm::sqlx::raw_sql(sea_orm::sqlx::AssertSqlSafe(sql.to_owned()))
                .execute(&pool)
                .await
                .expect("runs");
        }
    }
}

async fn the_schema_goes_up_down_and_up_again(f: Fixture) {
    f.put("t", 0).await;
    f.store.migrate_down(None).await.expect("down");
    assert!(f.store.find(f.timer("t", 0).uid).await.is_err());
    f.store.prepare().await.expect("up again");
    assert!(f.store.find(f.timer("t", 0).uid).await.expect("looks").is_none());
    f.put("t", 0).await;
}

async fn timers_outlive_a_migration(f: Fixture) {
    let lives = f.put("lives", 60_000).await;
    let ended = f.put("ended", 60_000).await;
    f.change(ended, ChangeEvent::Cancel).await;
    f.store.migrate_down(Some(1)).await.expect("one step back");
    f.store.prepare().await.expect("and forward");
    assert_eq!(f.find(lives).await.life.state, State::Scheduled);
    assert_eq!(f.find(ended).await.life.state, State::Cancelled);
}

async fn a_newer_database_and_another_shard_count_are_refused(f: Fixture) {
    let other = config(&f.config.cold.url, &["shards=16"]);
    let store = ColdStore::open(&other, f.clock.clone(), true, false).expect("opens");
    let why = store.prepare().await.expect_err("made with 8");
    assert!(matches!(why, Error::Shards { store: 8, config: 16 }), "{why}");
    let other = config(&f.config.cold.url, &["namespace=other"]);
    let store = ColdStore::open(&other, f.clock.clone(), true, false).expect("opens");
    let why = store.prepare().await.expect_err("made for `default`");
    assert!(matches!(&why, Error::Namespace { store, .. } if store == "default"), "{why}");
    let newer = "INSERT INTO seaql_migrations (version, applied_at) VALUES ('m29990101_000001_future', 0)";
    behind_its_back(&f, newer).await;
    let why = f.store.prepare().await.expect_err("newer").to_string();
    assert!(why.contains("m29990101_000001_future") && why.contains("newer"), "{why}");
}

macro_rules! on_both {
    ($($rule:ident),* $(,)?) => {
        mod sqlite {
            use super::Fixture;
            $(#[tokio::test(flavor = "multi_thread")] async fn $rule() { super::$rule(Fixture::sqlite().await).await; })*
        }
        mod postgres {
            use super::Fixture;
            $(#[tokio::test(flavor = "multi_thread")] async fn $rule() { super::$rule(Fixture::postgres().await).await; })*
        }
    };
}

on_both!(
    a_timer_is_claimed_at_its_due_time_and_never_before,
    a_claim_of_an_older_generation_gets_nothing,
    a_claim_under_an_older_epoch_gets_nothing,
    what_a_dead_owner_had_claimed_is_due_again_at_once,
    what_was_given_up_in_order_is_not_recalled,
    what_is_given_up_sparing_nothing_is_recalled,
    what_was_ceded_by_a_node_that_died_since_is_recalled,
    nodes_are_counted_and_ranked_by_their_names,
    when_the_next_node_counts_as_dead_is_known,
    a_late_result_counts_only_for_its_own_attempt,
    a_claim_that_runs_out_is_found_and_only_then,
    an_ended_id_stays_taken_and_again_starts_the_next_generation,
    history_goes_after_its_retention_and_the_totals_stay,
    of_equal_ids_in_one_batch_the_first_is_new,
    many_callers_of_one_id_make_one_timer,
    of_a_claim_and_a_cancel_exactly_one_wins,
    changes_of_one_timer_in_one_batch_see_each_other,
    an_edit_changes_only_what_it_names,
    what_is_found_later_than_its_grace_expires_unattempted,
    a_release_is_only_for_the_holder_of_the_epoch,
    postponed_rows_leave_the_head_and_keep_their_due_time,
    a_list_misses_nothing_and_repeats_nothing,
    a_planted_loss_is_found_by_verify,
    an_unreadable_timer_is_left_alone,
    the_schema_goes_up_down_and_up_again,
    timers_outlive_a_migration,
    a_newer_database_and_another_shard_count_are_refused,
);

/// A second connection that holds a transaction open while the store works.
async fn held_open(url: &str) -> sea_orm::sqlx::Transaction<'static, sea_orm::sqlx::Postgres> {
    sea_orm::sqlx::PgPool::connect(url).await.expect("connects").begin().await.expect("begins")
}

/// Waits until some session of this database waits for a lock.
async fn somebody_waits(url: &str) {
    let database = url.rsplit('/').next().expect("a name");
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
    );
    for _ in 0..200 {
        if psql(url, &sql).await.trim() != "0" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nobody waits for a lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_waited_for_its_own_row_to_end_is_not_new() {
    let f = Fixture::postgres().await;
    let uid = f.put("t", 0).await;
    let mut ending = held_open(&f.config.cold.url).await;
    for sql in [
        "INSERT INTO history (uid, id, caller_id, shard, state, due_at, wake_at, generation, attempt, tries, \
         version, epoch, lane, minute, uncertain, cancel_requested, acked_late, target, request_hash, created_at, \
         ended_at) SELECT uid, id, caller_id, shard, state, due_at, wake_at, generation, attempt, tries, \
         version, epoch, lane, minute, uncertain, cancel_requested, acked_late, target, request_hash, created_at, 5 \
         FROM timers WHERE uid = $1",
        "INSERT INTO ended_ids SELECT uid, request_hash, generation, 1900000000000 FROM timers WHERE uid = $1",
        "DELETE FROM timers WHERE uid = $1",
    ] {
        sea_orm::sqlx::query(sql).bind(uid.0).execute(&mut *ending).await.expect("ends by hand");
    }
    let (store, timer) = (f.store.clone(), f.timer("t", 0));
    let put = tokio::spawn(async move { store.register(&[timer]).await.remove(0) });
    somebody_waits(&f.config.cold.url).await;
    ending.commit().await.expect("commits");
    let answer = put.await.expect("runs").expect("registers");
    assert!(matches!(answer, Registered::Same(_)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_does_not_pass_a_running_claim() {
    let f = Fixture::postgres().await;
    f.own_all().await;
    let mut claiming = held_open(&f.config.cold.url).await;
    sea_orm::sqlx::query("SELECT 1 FROM shards WHERE shard = 3 FOR KEY SHARE")
        .execute(&mut *claiming)
        .await
        .expect("locks");
    f.clock.advance(Duration::from_millis(3001));
    let other = identity("b");
    let taken = f.store.take(&other, 100, false, 3000).await.expect("takes");
    assert_eq!(taken.len(), 7, "all but the shard in which a claim runs");
    claiming.commit().await.expect("commits");
    assert_eq!(f.store.take(&other, 100, false, 3000).await.expect("takes").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_passes_a_running_claim() {
    let f = Fixture::postgres().await;
    let owned = f.own_all().await;
    let mut claiming = held_open(&f.config.cold.url).await;
    sea_orm::sqlx::query("SELECT 1 FROM shards FOR KEY SHARE").execute(&mut *claiming).await.expect("locks");
    let renewed =
        tokio::time::timeout(Duration::from_secs(5), f.store.renew(&f.me, &owned, |_| 0, 3000)).await;
    assert_eq!(renewed.expect("does not wait").expect("renews").len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_the_database_refuses_fails_alone() {
    let f = Fixture::postgres().await;
    let mut timers: Vec<_> = (0..100).map(|n| f.timer(&format!("t{n}"), 1000)).collect();
    timers[37].owner = Some("nul\0inside".into());
    let answers = f.store.register(&timers).await;
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Ok(Registered::New(_)) => assert_ne!(n, 37),
            Err(why) => assert!(n == 37 && why.is_data(), "{n}: {why}"),
            other => panic!("{n}: {other:?}"),
        }
    }
    assert_eq!(f.store.ledger().await.expect("reads").registered, 99);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_at_once_migrate_in_turn() {
    let url = fresh_database().await;
    let config = config(&url, &[]);
    let starts = (0..6).map(|_| {
        let config = config.clone();
        async move {
            let store = ColdStore::open(&config, ManualClock::new(START), true, true).expect("opens");
            store.prepare().await
        }
    });
    for started in futures::future::join_all(starts).await {
        started.expect("prepares");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_one_sqlite_file_is_refused() {
    let f = Fixture::sqlite().await;
    let why = ColdStore::open(&f.config, f.clock.clone(), true, true).err().expect("held").to_string();
    assert!(why.contains("in use") && why.contains("t.db"), "{why}");
    ColdStore::open(&f.config, f.clock.clone(), true, false).expect("reading beside it is allowed");
}
