//! One conformance suite for [`HotWheel`], run on the wheel in this process, in Redis and in a Redis Cluster: every
//! documented rule, with the whole state before and after.

use std::sync::Arc;
use std::time::Duration;

use mainspring::model::id::{Epoch, Generation, Uid};
use mainspring::model::namespace::Namespace;
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::priority::Priority;
use mainspring::model::time::{LAST, UnixMs};
use mainspring::wheel::{
    Append, Appended, EXPRESS, HotWheel, Level, Marks, MemoryWheel, PAGE, Slot, Standing, Take, Taken, Tick,
    Unreachable,
};

use super::space::{START_MS, Space};
use crate::support::Redis;

const MARK: i64 = START_MS / 1000;
const MINUTE: i64 = START_MS / 60_000;

struct Fixture {
    wheel: Arc<dyn HotWheel>,
    /// Held so that its namespace lives as long as the test.
    _space: Option<Space>,
}

impl Fixture {
    fn memory() -> Self {
        Self { wheel: Arc::new(MemoryWheel::default()), _space: None }
    }

    async fn redis() -> Self {
        let space = Space::new().await;
        Self { wheel: Arc::new(space.wheel()), _space: Some(space) }
    }

    async fn cluster() -> Self {
        let space = Space::in_cluster().await;
        Self { wheel: Arc::new(space.wheel()), _space: Some(space) }
    }

    /// Shards 0 to 2 have wheels that start at the marks.
    async fn built(&self) {
        let wheels: Vec<(i32, Standing)> = (0..3).map(|shard| (shard, standing("one", 1))).collect();
        self.wheel.build(&wheels, START_MS + 3_600_000).await.expect("builds");
    }

    async fn append(&self, shard: i32, slot: Slot, pointers: &[Pointer]) -> Appended {
        let append = Append { shard, slot, pointers: pointers.to_vec() };
        self.wheel.append(&[append]).await.expect("appends").remove(0)
    }

    async fn take(&self, take: &Take) -> Taken {
        self.wheel.take(std::slice::from_ref(take)).await.expect("takes").remove(0)
    }

    /// Takes one page of a slot that is there, as its owner with the latest beat.
    async fn page(&self, shard: i32, slot: Slot) -> Vec<Pointer> {
        let beat = self.look(shard).await.expect("a wheel").beat;
        match self.take(&take(shard, slot, beat)).await {
            Taken::Page { pointers, .. } => pointers,
            other => panic!("{other:?}"),
        }
    }

    async fn look(&self, shard: i32) -> Option<Standing> {
        self.wheel.look(&[shard]).await.expect("looks").remove(0)
    }

    /// How shards 0 to 3 stand and how much lies in the slots that the rules use.
    async fn state(&self) -> (Vec<Option<Standing>>, Vec<usize>) {
        let shards = [0, 1, 2, 3];
        let near = |level: Level, mark: i64| (mark - 1..mark + 4).map(move |tick| slot(level, tick));
        let slots: Vec<(i32, Slot)> = shards
            .into_iter()
            .flat_map(|shard| {
                let all = near(Level::Second, MARK)
                    .chain(near(Level::Minute, MINUTE))
                    .chain(near(Level::WholeMinute, MINUTE));
                all.map(move |slot| (shard, slot))
            })
            .collect();
        (self.wheel.look(&shards).await.expect("looks"), self.wheel.counts(&slots).await.expect("counts"))
    }
}

fn standing(incarnation: &str, epoch: i64) -> Standing {
    Standing {
        incarnation: incarnation.to_owned(),
        epoch: Epoch(epoch),
        beat: 0,
        marks: Marks { second: Tick(MARK), minute: Tick(MINUTE), whole: Tick(MINUTE) },
        loaded: 0,
    }
}

fn slot(level: Level, tick: i64) -> Slot {
    Slot { level, tick: Tick(tick) }
}

/// The slot of a level that lies this many ticks behind the mark.
fn after(level: Level, by: i64) -> Slot {
    slot(level, by + if level == Level::Second { MARK } else { MINUTE })
}

fn take(shard: i32, slot: Slot, beat: i64) -> Take {
    Take { shard, epoch: Epoch(1), incarnation: "one".to_owned(), beat, slot, skip: 0 }
}

fn pointer(shard: i32, n: u128) -> Pointer {
    Pointer {
        uid: Uid(uuid::Uuid::from_u128(n)),
        shard,
        namespace: Namespace((n % 3) as i16),
        generation: Generation(1),
        attempt: 0,
        wake_at: UnixMs::new(START_MS),
        lane: 7,
        minute: false,
        is_for_queue: false,
        priority: Priority::Normal,
        change: 0,
        overdue: false,
        via: Via::Loader,
    }
}

fn pointers(shard: i32, count: u128) -> Vec<Pointer> {
    (0..count).map(|n| pointer(shard, n)).collect()
}

async fn an_append_is_kept_until_its_slot_is_taken_and_refused_from_then_on(f: Fixture) {
    f.built().await;
    for level in Level::ALL {
        let (first, second) = (after(level, 1), after(level, 2));
        let before = f.state().await;
        assert_eq!(f.append(1, after(level, 0), &pointers(1, 1)).await, Appended::Taken, "at the mark");
        assert_eq!(f.append(1, after(level, -1), &pointers(1, 1)).await, Appended::Taken, "before it");
        assert_eq!(f.state().await, before, "what is refused changes nothing");

        assert_eq!(f.append(1, first, &pointers(1, 2)).await, Appended::Kept);
        assert_eq!(f.append(1, second, &pointers(1, 3)).await, Appended::Kept);
        assert_eq!(f.wheel.counts(&[(1, first), (1, second), (0, first)]).await.expect("counts"), [2, 3, 0]);
        assert_eq!(f.page(1, first).await, pointers(1, 2));
        assert_eq!(f.look(1).await.expect("a wheel").marks.of(level), first.tick, "the mark rose");
        let taken = f.state().await;
        assert_eq!(f.append(1, first, &pointers(1, 9)).await, Appended::Taken, "after the take");
        assert_eq!(f.state().await, taken);
        assert_eq!(f.append(1, second, &[pointer(1, 99)]).await, Appended::Kept, "the next is open still");
        assert_eq!(f.append(0, first, &[pointer(0, 1)]).await, Appended::Kept, "and so is another shard's");
    }
    let expected = Marks { second: Tick(MARK + 1), minute: Tick(MINUTE + 1), whole: Tick(MINUTE + 1) };
    assert_eq!(f.look(1).await, Some(Standing { beat: 3, marks: expected, ..standing("one", 1) }));
    assert_eq!(f.look(0).await, Some(standing("one", 1)));
}

async fn a_slot_taken_again_gives_the_same_until_it_is_handed_over(f: Fixture) {
    f.built().await;
    let first = after(Level::Second, 1);
    f.append(0, first, &pointers(0, 5)).await;
    for round in 1..4 {
        // The beat of an answer that was lost is not known: the one before will do.
        let taken = f.take(&take(0, first, 0)).await;
        assert_eq!(taken, Taken::Page { pointers: pointers(0, 5), beat: round, more: false });
    }
    f.append(0, after(Level::Second, 2), &pointers(0, 1)).await;
    let before = f.state().await;
    f.wheel.hand_over(&[(0, first)]).await.expect("hands over");
    let (standings, counts) = f.state().await;
    assert_eq!(standings, before.0, "handing over moves no mark and no beat");
    assert_eq!(counts.iter().sum::<usize>(), 1, "the next slot stays");
    assert_eq!(f.page(0, first).await, []);
    f.wheel.hand_over(&[(0, first), (0, first), (9, first)]).await.expect("is repeated without harm");
    assert_eq!(f.append(0, first, &pointers(0, 1)).await, Appended::Taken, "it never opens again");
}

async fn a_take_of_an_earlier_slot_does_not_set_the_mark_back(f: Fixture) {
    f.built().await;
    f.page(0, after(Level::Second, 3)).await;
    f.page(0, after(Level::Second, 1)).await;
    assert_eq!(f.look(0).await.expect("a wheel").marks.second, Tick(MARK + 3));
    assert_eq!(f.append(0, after(Level::Second, 2), &pointers(0, 1)).await, Appended::Taken);
}

async fn what_is_not_the_wheel_that_was_filled_gives_nothing(f: Fixture) {
    f.built().await;
    let first = after(Level::Second, 1);
    f.append(0, first, &pointers(0, 5)).await;
    f.page(0, after(Level::Minute, 1)).await;
    let before = f.state().await;
    let mine = take(0, first, 1);
    let other = Take { incarnation: "two".to_owned(), ..mine.clone() };
    assert!(matches!(f.take(&other).await, Taken::Lost(_)), "another incarnation");
    let later = Take { beat: 2, ..mine.clone() };
    assert_eq!(f.take(&later).await, Taken::Lost("it was rolled back"));
    for epoch in [Epoch(0), Epoch(2)] {
        assert_eq!(f.take(&Take { epoch, ..mine.clone() }).await, Taken::NotMine, "{epoch:?}");
    }
    let both = Take { epoch: Epoch(2), ..other };
    assert!(matches!(f.take(&both).await, Taken::Lost(_)), "a wheel that is lost is nobody's");
    assert_eq!(f.state().await, before, "no mark and no beat moved");
    assert!(matches!(f.take(&mine).await, Taken::Page { beat: 2, .. }));
}

async fn a_wheel_has_one_owner_and_the_higher_epoch_keeps_it(f: Fixture) {
    f.built().await;
    let first = after(Level::Second, 1);
    f.append(0, first, &pointers(0, 5)).await;
    let before = f.state().await;
    f.wheel.adopt(&[(0, Epoch(7)), (2, Epoch(3))]).await.expect("adopts");
    let now = f.state().await;
    assert_eq!(now.1, before.1, "its slots stay");
    let epochs: Vec<_> = now.0.iter().flatten().map(|standing| standing.epoch.0).collect();
    assert_eq!(epochs, [7, 1, 3]);
    assert_eq!(f.take(&take(0, first, 0)).await, Taken::NotMine, "the owner before takes nothing more");
    f.wheel.adopt(&[(0, Epoch(1)), (0, Epoch(6))]).await.expect("answers");
    assert_eq!(f.state().await, now, "who is late with an older epoch changes nothing");
    let adopted = Take { epoch: Epoch(7), ..take(0, first, 0) };
    assert_eq!(f.take(&adopted).await, Taken::Page { pointers: pointers(0, 5), beat: 1, more: false });
}

async fn a_build_starts_empty_and_touches_no_other_shard(f: Fixture) {
    f.built().await;
    for level in Level::ALL {
        for by in 1..4 {
            f.append(0, after(level, by), &pointers(0, 4)).await;
            f.append(1, after(level, by), &pointers(1, 4)).await;
        }
    }
    f.append(0, after(Level::Minute, 59), &pointers(0, 1)).await;
    f.append(0, after(Level::Second, 59), &pointers(0, 1)).await;
    for _ in 0..3 {
        f.page(0, after(Level::Second, 1)).await;
    }
    f.wheel.set_loaded(&[(0, Epoch(1), 5), (1, Epoch(1), 6)]).await.expect("keeps");
    let (standings, counts) = f.state().await;
    assert_eq!(counts.iter().sum::<usize>(), 2 * 3 * 3 * 4);

    let fresh = Standing { loaded: 17, beat: 2, ..standing("two", 4) };
    f.wheel.build(&[(0, fresh.clone())], START_MS + 3_600_000).await.expect("builds");
    let (now, now_counts) = f.state().await;
    assert_eq!(now, [Some(fresh), standings[1].clone(), standings[2].clone(), None]);
    assert_eq!(now_counts[..15], [0; 15], "shard 0 is empty");
    assert_eq!(now_counts[15..], counts[15..], "shard 1 is as it was");
    let far = [(0, after(Level::Minute, 59)), (0, after(Level::Second, 59))];
    assert_eq!(f.wheel.counts(&far).await.expect("counts"), [0, 0]);
    assert!(
        matches!(f.take(&take(0, after(Level::Second, 1), 2)).await, Taken::Lost(_)),
        "the old one is gone"
    );
    assert_eq!(f.append(0, after(Level::Second, 1), &pointers(0, 1)).await, Appended::Kept);
}

async fn a_slot_of_several_pages_comes_whole_and_in_order(f: Fixture) {
    f.built().await;
    let first = after(Level::WholeMinute, 1);
    let all = pointers(2, PAGE as u128 * 2 + 5);
    let appends: Vec<Append> = all
        .chunks(mainspring::wheel::APPEND)
        .map(|chunk| Append { shard: 2, slot: first, pointers: chunk.to_vec() })
        .collect();
    assert!(f.wheel.append(&appends).await.expect("appends").iter().all(|one| *one == Appended::Kept));
    let mut got = Vec::new();
    let mut ends = Vec::new();
    for page in 0..3 {
        let asked = Take { skip: page * PAGE, beat: page as i64, ..take(2, first, 0) };
        let Taken::Page { pointers, beat, more } = f.take(&asked).await else { panic!("page {page}") };
        got.extend(pointers);
        ends.push((beat, more));
    }
    assert_eq!(ends, [(1, true), (2, true), (3, false)]);
    assert!(got == all, "{} of {} pointers, or out of order", got.len(), all.len());
    let beyond = Take { skip: 3 * PAGE, ..take(2, first, 0) };
    assert_eq!(f.take(&beyond).await, Taken::Page { pointers: Vec::new(), beat: 4, more: false });
}

async fn a_call_of_five_thousand_appends_is_answered_in_order(f: Fixture) {
    f.built().await;
    f.page(1, after(Level::Second, 1)).await;
    let (mut appends, mut expected) = (Vec::new(), Vec::new());
    for n in 0..5000_i64 {
        // Shard 3 has no wheel; tick 1 of shard 1 is taken.
        let (shard, by) = ((n % 4) as i32, 1 + n % 50);
        appends.push(Append {
            shard,
            slot: after(Level::Second, by),
            pointers: vec![pointer(shard, n as u128), pointer(shard, n as u128 + 100_000)],
        });
        expected.push(match (shard, by) {
            (3, _) => Appended::NoWheel,
            (1, 1) => Appended::Taken,
            _ => Appended::Kept,
        });
    }
    assert_eq!(f.wheel.append(&appends).await.expect("appends"), expected);
    let slots: Vec<(i32, Slot)> =
        (0..4).flat_map(|shard| (1..51).map(move |by| (shard, after(Level::Second, by)))).collect();
    let lying: usize = f.wheel.counts(&slots).await.expect("counts").iter().sum();
    assert_eq!(lying, 2 * expected.iter().filter(|one| **one == Appended::Kept).count());
    let here: Vec<Pointer> = appends
        .iter()
        .filter(|append| append.shard == 0 && append.slot == after(Level::Second, 5))
        .flat_map(|append| append.pointers.clone())
        .collect();
    assert_eq!(f.page(0, after(Level::Second, 5)).await, here);
}

async fn pointers_survive_exactly(f: Fixture) {
    f.built().await;
    let mut all = Vec::new();
    for (n, via) in Via::ALL.into_iter().enumerate() {
        for (wake_at, attempt, generation, lane, minute) in [
            (UnixMs::new(0), 0, 1, 0, false),
            (LAST, 255, i32::MAX, i64::MIN, true),
            (UnixMs::new(START_MS + 1), 1, 2, i64::MAX, false),
            (UnixMs::new(START_MS), 0, 3, -1, true),
        ] {
            all.push(Pointer {
                uid: Uid(uuid::Uuid::from_u128(u128::MAX - n as u128)),
                shard: 2,
                namespace: Namespace([0, 1, i16::MAX][n % 3]),
                generation: Generation(generation),
                attempt,
                wake_at,
                lane,
                minute,
                is_for_queue: false,
                priority: Priority::ALL[n % 3],
                change: n as u8,
                overdue: false,
                via,
            });
        }
    }
    let first = after(Level::Minute, 1);
    assert_eq!(f.append(2, first, &all).await, Appended::Kept);
    assert_eq!(f.page(2, first).await, all);
    assert!(f.wheel.send_express("a", &all).await.expect("sends"));
    assert_eq!(f.wheel.receive_express("a").await.expect("receives"), all);
}

async fn an_express_list_is_bounded_and_each_node_has_its_own(f: Fixture) {
    let all = pointers(1, EXPRESS as u128);
    assert!(f.wheel.send_express("a", &all).await.expect("sends"));
    assert!(!f.wheel.send_express("a", &pointers(1, 1)).await.expect("sends"), "the list is full");
    assert!(f.wheel.send_express("b", &pointers(2, 3)).await.expect("sends"), "another's is not");
    let mut got = Vec::new();
    while got.len() < all.len() {
        let page = f.wheel.receive_express("a").await.expect("receives");
        assert!(!page.is_empty(), "{} of {}", got.len(), all.len());
        got.extend(page);
    }
    assert!(got == all, "in order, and without what was refused");
    assert_eq!(f.wheel.receive_express("b").await.expect("receives"), pointers(2, 3));
    assert!(f.wheel.send_express("a", &pointers(1, 1)).await.expect("sends"), "there is room again");
    assert_eq!(f.wheel.receive_express("a").await.expect("receives"), pointers(1, 1));
}

async fn who_waits_for_express_pointers_gets_them_or_nothing(f: Fixture) {
    let receiving = tokio::spawn({
        let wheel = Arc::clone(&f.wheel);
        async move { wheel.receive_express("a").await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(f.wheel.send_express("b", &pointers(1, 1)).await.expect("sends"));
    assert!(f.wheel.send_express("a", &pointers(1, 2)).await.expect("sends"));
    let mut got = receiving.await.expect("runs").expect("receives");
    if got.is_empty() {
        // It was woken by what another got; whoever receives in a loop comes again.
        got = f.wheel.receive_express("a").await.expect("receives");
    }
    if got.len() < 2 {
        got.extend(f.wheel.receive_express("a").await.expect("receives"));
    }
    assert_eq!(got, pointers(1, 2));
    let nothing = tokio::time::timeout(Duration::from_secs(15), f.wheel.receive_express("a")).await;
    assert_eq!(nothing.expect("a few seconds").expect("receives"), []);
}

async fn a_wheel_that_is_not_there_keeps_nothing_and_stays_away(f: Fixture) {
    let nothing = f.state().await;
    assert_eq!(nothing.0, [const { None }; 4]);
    assert_eq!(nothing.1.iter().sum::<usize>(), 0);
    let first = after(Level::Second, 1);
    assert_eq!(f.append(0, first, &pointers(0, 1)).await, Appended::NoWheel);
    assert!(matches!(f.take(&take(0, first, 0)).await, Taken::Lost(_)));
    f.wheel.adopt(&[(0, Epoch(1))]).await.expect("answers");
    f.wheel.set_loaded(&[(0, Epoch(1), 1)]).await.expect("answers");
    f.wheel.hand_over(&[(0, first)]).await.expect("answers");
    assert_eq!(f.append(0, first, &pointers(0, 1)).await, Appended::NoWheel);
    assert!(matches!(f.take(&take(0, first, 0)).await, Taken::Lost(_)));
    assert_eq!(f.state().await, nothing);
}

async fn up_to_where_a_shard_was_loaded_is_kept(f: Fixture) {
    f.built().await;
    f.wheel.set_loaded(&[(0, Epoch(1), START_MS), (2, Epoch(1), START_MS + 1)]).await.expect("keeps");
    let loaded: Vec<i64> = f.state().await.0.into_iter().flatten().map(|one| one.loaded).collect();
    assert_eq!(loaded, [START_MS, 0, START_MS + 1]);
    f.page(0, after(Level::Second, 1)).await;
    f.wheel.adopt(&[(0, Epoch(2))]).await.expect("adopts");
    assert_eq!(f.look(0).await.expect("a wheel").loaded, START_MS);
    f.wheel.set_loaded(&[(0, Epoch(1), START_MS + 2)]).await.expect("answers");
    assert_eq!(f.look(0).await.expect("a wheel").loaded, START_MS, "nobody speaks for the next owner");
}

/// A node that has lost a shard without knowing it builds its wheel anew, after the next owner has filled it.
async fn a_wheel_of_a_later_owner_is_not_built_over(f: Fixture) {
    f.built().await;
    f.wheel.adopt(&[(0, Epoch(3))]).await.expect("adopts");
    let first = after(Level::Second, 1);
    assert_eq!(f.append(0, first, &pointers(0, 2)).await, Appended::Kept);
    let before = f.state().await;
    let build = async |shard, epoch| {
        f.wheel.build(&[(shard, standing("stale", epoch))], START_MS + 600_000).await.expect("answers")
    };
    assert_eq!(build(0, 2).await, [false]);
    assert_eq!(f.state().await, before);
    assert_eq!((build(0, 3).await, build(1, 2).await), (vec![true], vec![true]));
    let (standings, counts) = f.state().await;
    assert_eq!(standings[0], Some(standing("stale", 3)));
    assert_eq!(counts[..15], [0; 15], "the owner itself empties it");
}

async fn each_of_a_batch_of_takes_has_its_own_answer(f: Fixture) {
    f.built().await;
    let first = after(Level::Second, 1);
    for shard in 0..3 {
        f.append(shard, first, &pointers(shard, 2)).await;
    }
    f.wheel.adopt(&[(1, Epoch(2))]).await.expect("adopts");
    let takes: Vec<Take> = [3, 2, 1, 0].map(|shard| take(shard, first, 0)).into();
    let answers = f.wheel.take(&takes).await.expect("takes");
    assert!(
        matches!(
            &answers[..],
            [Taken::Lost(_), Taken::Page { pointers: two, .. }, Taken::NotMine, Taken::Page { pointers: zero, .. }]
                if *two == pointers(2, 2) && *zero == pointers(0, 2)
        ),
        "{answers:?}"
    );
}

async fn an_empty_batch_asks_nothing(f: Fixture) {
    assert_eq!(f.wheel.look(&[]).await.expect("looks"), []);
    assert_eq!(f.wheel.append(&[]).await.expect("appends"), []);
    assert_eq!(f.wheel.take(&[]).await.expect("takes"), []);
    assert_eq!(f.wheel.counts(&[]).await.expect("counts"), [] as [usize; 0]);
    f.wheel.adopt(&[]).await.expect("adopts");
    f.wheel.set_loaded(&[]).await.expect("keeps");
    f.wheel.hand_over(&[]).await.expect("hands over");
    f.wheel.build(&[], 0).await.expect("builds");
    assert!(f.wheel.send_express("a", &[]).await.expect("sends"));
    let (one, two) =
        (f.wheel.servers(&[0, 1]).await.expect("answers"), f.wheel.servers(&[0, 1]).await.expect("answers"));
    let blank = |name: &Result<String, Unreachable>| {
        name.as_ref().is_ok_and(|name| name.contains(' ') || name.is_empty())
    };
    assert!(one == two && one.len() == 2 && !one.iter().any(blank), "names without blanks: {one:?}");
}

/// Of many who append while a slot is taken, each is either in what the take got or refused.
async fn of_an_append_and_a_take_that_meet_the_pointer_is_with_one_of_them(f: Fixture) {
    f.built().await;
    let first = after(Level::Second, 1);
    let appending = (0..8_u128).map(|writer| {
        let wheel = Arc::clone(&f.wheel);
        tokio::spawn(async move {
            let mut refused = Vec::new();
            for n in 0..50 {
                let one = pointer(0, writer * 1000 + n);
                let append = Append { shard: 0, slot: first, pointers: vec![one] };
                match wheel.append(&[append]).await.expect("appends")[0] {
                    Appended::Kept => {}
                    Appended::Taken => refused.push(one.uid),
                    Appended::NoWheel | Appended::Unreachable(_) => panic!("it is there"),
                }
                tokio::task::yield_now().await;
            }
            refused
        })
    });
    let appending: Vec<_> = appending.collect();
    tokio::task::yield_now().await;
    let mut all: Vec<Uid> = f.page(0, first).await.into_iter().map(|one| one.uid).collect();
    for writer in appending {
        all.extend(writer.await.expect("runs"));
    }
    all.sort_unstable();
    let count = all.len();
    all.dedup();
    assert_eq!((count, all.len()), (400, 400));
}

macro_rules! on_all {
    ($($rule:ident),* $(,)?) => {
        mod memory {
            use super::Fixture;
            $(#[tokio::test(flavor = "multi_thread")] async fn $rule() { super::$rule(Fixture::memory()).await; })*
        }
        mod redis {
            use super::Fixture;
            $(#[tokio::test(flavor = "multi_thread")] async fn $rule() { super::$rule(Fixture::redis().await).await; })*
        }
        mod cluster {
            use super::Fixture;
            $(#[tokio::test(flavor = "multi_thread")] async fn $rule() { super::$rule(Fixture::cluster().await).await; })*
        }
    };
}

on_all!(
    an_append_is_kept_until_its_slot_is_taken_and_refused_from_then_on,
    a_slot_taken_again_gives_the_same_until_it_is_handed_over,
    a_take_of_an_earlier_slot_does_not_set_the_mark_back,
    what_is_not_the_wheel_that_was_filled_gives_nothing,
    a_wheel_has_one_owner_and_the_higher_epoch_keeps_it,
    a_build_starts_empty_and_touches_no_other_shard,
    a_slot_of_several_pages_comes_whole_and_in_order,
    a_call_of_five_thousand_appends_is_answered_in_order,
    pointers_survive_exactly,
    an_express_list_is_bounded_and_each_node_has_its_own,
    who_waits_for_express_pointers_gets_them_or_nothing,
    a_wheel_that_is_not_there_keeps_nothing_and_stays_away,
    up_to_where_a_shard_was_loaded_is_kept,
    a_wheel_of_a_later_owner_is_not_built_over,
    each_of_a_batch_of_takes_has_its_own_answer,
    an_empty_batch_asks_nothing,
    of_an_append_and_a_take_that_meet_the_pointer_is_with_one_of_them,
);

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_redis_has_forgotten_are_loaded_again() {
    let server = Redis::private().await;
    let space = Space::at(&server.url()).await;
    let f = Fixture { wheel: Arc::new(space.wheel()), _space: None };
    f.built().await;
    let first = after(Level::Second, 1);
    let forget = || async { space.ask::<String>("SCRIPT", &["FLUSH"]).await };
    forget().await;
    let appends: Vec<Append> =
        (0..250).map(|n| Append { shard: 0, slot: first, pointers: vec![pointer(0, n)] }).collect();
    assert_eq!(f.wheel.append(&appends).await.expect("appends"), vec![Appended::Kept; 250]);
    assert_eq!(f.wheel.counts(&[(0, first)]).await.expect("counts"), [250], "each once");
    forget().await;
    assert_eq!(f.page(0, first).await, pointers(0, 250));
    forget().await;
    f.wheel.adopt(&[(0, Epoch(2))]).await.expect("adopts");
    assert_eq!(f.look(0).await.expect("a wheel").epoch, Epoch(2));
    forget().await;
    assert!(f.wheel.send_express("a", &pointers(0, 3)).await.expect("sends"));
    assert_eq!(f.wheel.receive_express("a").await.expect("receives"), pointers(0, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_cut_is_replaced_and_a_server_that_is_away_is_an_error() {
    let server = Redis::private().await;
    let space = Space::at(&server.url()).await;
    let f = Fixture { wheel: Arc::new(space.wheel()), _space: None };
    f.built().await;
    space.ask::<i64>("CLIENT", &["KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let mut answered = false;
    for _ in 0..10 {
        // The call that meets the cut may fail; the ones after it do not.
        answered = answered || f.wheel.look(&[0]).await.is_ok_and(|all| all[0] == Some(standing("one", 1)));
    }
    assert!(answered);
    let name = f.wheel.servers(&[0]).await.expect("answers");
    drop((space, server));
    let began = std::time::Instant::now();
    assert!(f.wheel.servers(&[0]).await.is_err(), "{name:?} is gone");
    assert!(f.wheel.append(&[]).await.is_ok(), "nothing to ask");
    let append = Append { shard: 0, slot: after(Level::Second, 1), pointers: pointers(0, 1) };
    assert!(f.wheel.append(&[append]).await.is_err());
    assert!(f.wheel.receive_express("a").await.is_err());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_bytes_in_a_list_are_skipped() {
    let space = Space::new().await;
    let f = Fixture { wheel: Arc::new(space.wheel()), _space: None };
    f.built().await;
    let first = after(Level::Second, 1);
    let list = space.key(0, &format!(":s{}", first.tick.0));
    let good = pointers(0, PAGE as u128 + 2);
    f.append(0, first, &good[..1]).await;
    let mut unknown = good[0].pack().as_ref().to_vec();
    unknown[36] = 0x55;
    for foreign in [b"".to_vec(), b"x".to_vec(), vec![0; 38], unknown] {
        space.ask::<i64>("RPUSH", &[list.as_bytes(), &foreign]).await;
    }
    for chunk in good[1..].chunks(mainspring::wheel::APPEND) {
        f.append(0, first, chunk).await;
    }
    // The first page holds fewer than it could, and another follows all the same.
    let Taken::Page { pointers: mut got, more: true, .. } = f.take(&take(0, first, 0)).await else {
        panic!("there is more")
    };
    assert_eq!(got.len(), PAGE - 4);
    let rest = Take { skip: PAGE, ..take(0, first, 1) };
    let Taken::Page { pointers: rest, more: false, .. } = f.take(&rest).await else { panic!("no more") };
    got.extend(rest);
    assert!(got == good);

    let express = format!("mainspring:{{{}:express:a}}", space.namespace);
    for foreign in [b"".as_slice(), b"x", &[0; 37], &[0x55; 41], &[0; 60]] {
        space.ask::<i64>("RPUSH", &[express.as_bytes(), foreign]).await;
    }
    assert!(f.wheel.send_express("a", &good[..2]).await.expect("sends"));
    let mut got = f.wheel.receive_express("a").await.expect("receives");
    if got.is_empty() {
        got = f.wheel.receive_express("a").await.expect("receives");
    }
    assert_eq!(got, good[..2]);
}

/// Standing and slots of a shard share a hash tag, so that a script may touch them together on a cluster;
/// what nobody takes is forgotten; namespaces do not see each other.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_shard_share_a_tag_and_slots_are_forgotten_in_the_end() {
    let (space, other) = (Space::new().await, Space::new().await);
    let f = Fixture { wheel: Arc::new(space.wheel()), _space: None };
    let g = Fixture { wheel: Arc::new(other.wheel()), _space: None };
    f.built().await;
    for level in Level::ALL {
        f.append(1, after(level, 1), &pointers(1, 1)).await;
        f.append(1, after(level, 1), &pointers(1, 1)).await;
    }
    f.wheel.send_express("n:1", &pointers(1, 1)).await.expect("sends");
    let mut keys = space.keys().await;
    keys.sort_unstable();
    let mut expected = vec![
        space.key(0, ""),
        space.key(1, ""),
        space.key(1, &format!(":m{}", MINUTE + 1)),
        space.key(1, &format!(":s{}", MARK + 1)),
        space.key(1, &format!(":w{}", MINUTE + 1)),
        space.key(2, ""),
        format!("mainspring:{{{}:express:n:1}}", space.namespace),
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    for (slot, end) in
        [(":s", START_MS / 1000 + 2), (":m", START_MS / 1000 + 120), (":w", START_MS / 1000 + 120)]
    {
        let key = keys.iter().find(|key| key.contains(&format!("}}{slot}"))).expect("a slot");
        // By the store's clock, of which the mark tells, and not by the one of Redis.
        let left = end + 3600 - MARK;
        assert!((left - 10..=left).contains(&space.ask::<i64>("TTL", &[key]).await), "{key}");
    }
    let list = format!("mainspring:{{{}:express:n:1}}", space.namespace);
    assert!((1..=60).contains(&space.ask::<i64>("TTL", &[list]).await));
    assert_eq!(g.state().await.0, [const { None }; 4]);
    assert!(other.keys().await.is_empty());
}
