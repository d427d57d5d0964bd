//! What happens in a Redis Cluster only: masters that die, hang, forget scripts, hand over slots or to a
//! replica. What is on the other masters goes on as if nothing were.

use std::time::{Duration, Instant};

use mainspring::config::HotUrl;
use mainspring::model::id::{Epoch, Generation, Uid};
use mainspring::model::namespace::Namespace;
use mainspring::model::pointer::{Pointer, Via};
use mainspring::model::priority::Priority;
use mainspring::model::time::UnixMs;
use mainspring::wheel::{
    Append, Appended, Error, HotWheel, Level, Marks, RedisWheel, Slot, Standing, Take, Taken, Tick,
    Unreachable,
};

use super::space::START_MS;
use crate::support::{Cluster, Redis, eventually, free_port};

/// Enough that every master has some.
const SHARDS: std::ops::Range<i32> = 0..16;

const MARK: i64 = START_MS / 1000;

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// An answer of Redis is waited for twice as long.
const HALF_AN_ANSWER: Duration = Duration::from_secs(1);

/// A cluster of this test's own, and wheels of all shards in it.
struct Scene {
    cluster: Cluster,
    wheel: RedisWheel,
}

fn open(url: &str) -> RedisWheel {
    RedisWheel::open(&HotUrl::parse(url).expect("a URL"), 4, "t").expect("opens")
}

fn all() -> Vec<i32> {
    SHARDS.collect()
}

fn key(shard: i32) -> String {
    format!("mainspring:{{t:{shard}}}")
}

impl Scene {
    async fn new() -> Self {
        let cluster = Cluster::start().await;
        let wheel = open(&cluster.url());
        let marks = Marks { second: Tick(MARK), minute: Tick(MARK / 60), whole: Tick(MARK / 60) };
        let standing = Standing { incarnation: "one".into(), epoch: Epoch(1), beat: 0, marks, loaded: 0 };
        let wheels: Vec<_> = SHARDS.map(|shard| (shard, standing.clone())).collect();
        wheel.build(&wheels, START_MS + 600_000).await.expect("builds");
        Self { cluster, wheel }
    }

    /// The shards of one master, and of the others.
    async fn shards_of(&self, master: usize) -> (Vec<i32>, Vec<i32>) {
        let (mut its, mut others) = (Vec::new(), Vec::new());
        for shard in SHARDS {
            let of = self.cluster.master_of(&key(shard)).await;
            if of == master { &mut its } else { &mut others }.push(shard);
        }
        assert!(!its.is_empty() && !others.is_empty(), "{its:?} {others:?}");
        (its, others)
    }

    async fn append(&self) -> Vec<Appended> {
        let appends: Vec<Append> =
            SHARDS.map(|shard| Append { shard, slot: first(), pointers: vec![pointer(shard)] }).collect();
        self.wheel.append(&appends).await.expect("some take it")
    }

    async fn take(&self) -> Vec<Taken> {
        let take = |shard| Take {
            shard,
            epoch: Epoch(1),
            incarnation: "one".into(),
            beat: 0,
            slot: first(),
            skip: 0,
        };
        self.wheel.take(&SHARDS.map(take).collect::<Vec<_>>()).await.expect("some give it")
    }

    async fn servers(&self) -> Vec<Result<String, Unreachable>> {
        self.wheel.servers(&all()).await.expect("some answer")
    }

    /// The names of all servers, once all answer.
    async fn names(&self) -> Vec<String> {
        eventually("every server answers", LONG, async || {
            let names = self.wheel.servers(&all()).await.map_err(|why| why.to_string())?;
            names.into_iter().collect::<Result<Vec<_>, _>>().map_err(|why| why.to_string())
        })
        .await
    }
}

fn first() -> Slot {
    Slot { level: Level::Second, tick: Tick(MARK + 1) }
}

fn pointer(shard: i32) -> Pointer {
    Pointer {
        uid: Uid(uuid::Uuid::from_u128(7)),
        shard,
        namespace: Namespace::OWN,
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

/// Which shards have another name than before.
fn changed(before: &[String], after: &[String]) -> Vec<i32> {
    SHARDS
        .zip(before.iter().zip(after))
        .filter(|(_, (one, two))| one != two)
        .map(|(shard, _)| shard)
        .collect()
}

fn holds(taken: &Taken, count: usize) -> bool {
    matches!(taken, Taken::Page { pointers, .. } if pointers.len() == count)
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_are_loaded_on_every_master_that_does_not_know_them() {
    let scene = Scene::new().await;
    let forget = async || {
        for master in &scene.cluster.masters {
            assert_eq!(master.cli(&["SCRIPT", "FLUSH"]).await, "OK");
        }
    };
    forget().await;
    assert!(scene.append().await.iter().all(|one| *one == Appended::Kept));
    forget().await;
    assert!(scene.take().await.iter().all(|taken| holds(taken, 1)), "each once");
    forget().await;
    let epochs: Vec<(i32, Epoch)> = SHARDS.map(|shard| (shard, Epoch(2))).collect();
    scene.wheel.adopt(&epochs).await.expect("adopts");
    let standings = scene.wheel.look(&all()).await.expect("looks");
    assert!(standings.iter().all(|one| one.as_ref().is_some_and(|one| one.epoch == Epoch(2))));
    forget().await;
    for node in ["a", "b", "c", "d", "e", "f"] {
        assert!(scene.wheel.send_express(node, &[pointer(1)]).await.expect("sends"));
    }
    for node in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(scene.wheel.receive_express(node).await.expect("receives"), [pointer(1)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_died_is_told_by_its_shards_and_the_others_answer() {
    let mut scene = Scene::new().await;
    let before = scene.names().await;
    let (its, others) = scene.shards_of(1).await;
    scene.cluster.masters[1].kill().await;
    let appended = scene.append().await;
    let taken = scene.take().await;
    let servers = scene.servers().await;
    for shard in all() {
        let (n, away) = (shard as usize, its.contains(&shard));
        assert_eq!(matches!(appended[n], Appended::Unreachable(_)), away, "{shard}: {:?}", appended[n]);
        assert_eq!(matches!(taken[n], Taken::Unreachable(_)), away, "{shard}: {:?}", taken[n]);
        assert_eq!(servers[n].as_ref().ok(), (!away).then_some(&before[n]), "{shard}");
        assert!(away || (appended[n] == Appended::Kept && holds(&taken[n], 1)), "{shard}");
    }
    let why = servers[its[0] as usize].clone().expect_err("away").to_string();
    assert!(why.contains(&format!("127.0.0.1:{}", scene.cluster.masters[1].port())), "{why}");
    assert!(scene.wheel.look(&all()).await.is_err() && scene.wheel.look(&others).await.is_ok());
    scene.cluster.masters[1].start_again().await;
    scene.cluster.works().await;
    assert_eq!(changed(&before, &scene.names().await), its, "those, and no others, may hold something else");
    let standings = scene.wheel.look(&all()).await.expect("looks");
    assert!(SHARDS.zip(standings).all(|(shard, one)| one.is_none() == its.contains(&shard)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_hangs_does_not_hold_up_the_others() {
    let scene = Scene::new().await;
    let before = scene.names().await;
    let (its, _) = scene.shards_of(2).await;
    scene.cluster.masters[2].stop_process();
    let servers = scene.servers().await;
    assert!(
        all().into_iter().all(|shard| servers[shard as usize].is_err() == its.contains(&shard)),
        "{servers:?}"
    );
    // From now on it is only asked who it is, and not for long. What waits for it does so in every round; a machine
    // that stands still does not.
    let mut took = Duration::MAX;
    for round in 0..5 {
        let began = Instant::now();
        let (appended, taken) = (scene.append().await, scene.take().await);
        scene.servers().await;
        took = took.min(began.elapsed());
        // The first round takes the slot.
        let answer = if round == 0 { Appended::Kept } else { Appended::Taken };
        assert!(
            all().into_iter().all(|shard| (appended[shard as usize] == answer) != its.contains(&shard)),
            "{appended:?}"
        );
        assert!(all().into_iter().all(|shard| holds(&taken[shard as usize], 1) != its.contains(&shard)));
        if took < HALF_AN_ANSWER {
            break;
        }
        eventually("the others answer again", LONG, async || {
            let servers = scene.servers().await;
            let alone =
                all().into_iter().all(|shard| servers[shard as usize].is_err() == its.contains(&shard));
            if alone { Ok(()) } else { Err(servers) }
        })
        .await;
    }
    assert!(took < HALF_AN_ANSWER, "half of what one answer may take: {took:?}");
    scene.cluster.masters[2].continue_process();
    assert!(changed(&before, &scene.names().await).is_empty(), "it is the same as before");
    assert!(
        scene
            .take()
            .await
            .iter()
            .zip(SHARDS)
            .all(|(taken, shard)| holds(taken, usize::from(!its.contains(&shard))))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hash_slot_that_moved_is_followed_and_counts_as_another_server() {
    let scene = Scene::new().await;
    let before = scene.names().await;
    assert!(scene.append().await.iter().all(|one| *one == Appended::Kept));
    let from = scene.cluster.master_of(&key(5)).await;
    scene.cluster.move_slot(&key(5), (from + 1) % 3).await;
    assert!(scene.append().await.iter().all(|one| *one == Appended::Kept), "nothing is lost on the way");
    assert!(scene.take().await.iter().all(|taken| holds(taken, 2)), "each once");
    assert_eq!(changed(&before, &scene.names().await), [5]);
    // The list that a reader waits for moves, too.
    let list = "mainspring:{t:express:a}";
    let from = scene.cluster.master_of(list).await;
    scene.cluster.move_slot(list, (from + 1) % 3).await;
    assert!(scene.wheel.send_express("a", &[pointer(1)]).await.expect("sends"));
    assert_eq!(scene.wheel.receive_express("a").await.expect("receives"), [pointer(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hash_slot_that_nobody_served_is_found_when_somebody_does() {
    let scene = Scene::new().await;
    let slot = scene.cluster.masters[0].cli(&["CLUSTER", "KEYSLOT", &key(5)]).await;
    let by = scene.cluster.master_of(&key(5)).await;
    for master in &scene.cluster.masters {
        master.cli(&["CLUSTER", "DELSLOTS", &slot]).await;
    }
    let late = open(&scene.cluster.url());
    eventually("it is seen that nobody does", LONG, async || {
        let seen = late.servers(&all()).await.map_err(|why| why.to_string())?;
        let dark: Vec<i32> =
            SHARDS.zip(&seen).filter(|(_, one)| one.is_err()).map(|(shard, _)| shard).collect();
        if dark == [5] { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    scene.cluster.masters[by].cli(&["CLUSTER", "ADDSLOTS", &slot]).await;
    eventually("it is found", LONG, async || match late.servers(&[5]).await {
        Ok(seen) if seen[0].is_ok() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_took_over_is_found_and_counts_as_another_server() {
    let mut scene = Scene::new().await;
    scene.cluster.add_replica(0).await;
    let before = scene.names().await;
    let (its, _) = scene.shards_of(0).await;
    assert!(scene.append().await.iter().all(|one| *one == Appended::Kept));
    scene.cluster.masters[0].kill().await;
    eventually("the replica takes over", LONG, async || {
        let appended = scene.append().await;
        // No wheel of what was not replicated in time.
        if appended.iter().any(|one| matches!(one, Appended::Unreachable(_))) {
            Err(appended)
        } else {
            Ok(())
        }
    })
    .await;
    assert_eq!(changed(&before, &scene.names().await), its);
    // The setting names the dead one; who comes new finds the way all the same.
    let fresh = open(&scene.cluster.url());
    // A master that is asked first may have heard nothing of it yet.
    let looked = eventually("every node has heard of it", LONG, async || fresh.look(&all()).await).await;
    assert_eq!(looked.len(), all().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_of_the_wrong_kind_is_told_with_the_right_one() {
    let (cluster, single) = (Cluster::shared().await, Redis::private().await);
    let why = open(&cluster.nodes()[0]).servers(&[0]).await.expect_err("no single Redis");
    let right = format!("redis+cluster://127.0.0.1:{}", cluster.masters[0].port());
    assert!(matches!(why, Error::IsCluster(_)) && why.to_string().contains(&right), "{why}");
    let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", free_port(), single.port());
    let why = open(&url).servers(&[0]).await.expect_err("no cluster");
    let right = format!("give redis://127.0.0.1:{}", single.port());
    assert!(why.to_string().contains("hot.url") && why.to_string().contains(&right), "{why}");
}
