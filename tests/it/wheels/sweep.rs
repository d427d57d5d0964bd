//! The guarantee beneath the wheels.

use super::parts::{MINUTE, Parts, SECOND, USUAL};
use super::rig::At;

/// A look that fails deep down hides neither what has fallen due of late nor what lies as deep in other shards.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_looked_at_hides_nothing_else() {
    for postgres in [false, true] {
        let (rig, _dir) = Parts::new(postgres, At::Memory).await.rig(&USUAL).await;
        let node = rig.start("a").await;
        let old: Vec<_> = (0..40).map(|n| rig.timer(&format!("old{n}"), SECOND)).collect();
        let old = rig.commit(&old).await;
        rig.at(5 * MINUTE);
        let recent: Vec<_> = (0..8).map(|n| rig.timer(&format!("recent{n}"), 5 * MINUTE)).collect();
        rig.commit(&recent).await;
        rig.behind_its_back("UPDATE timers SET state = 99 WHERE id = 'old0'").await;
        rig.at(5 * MINUTE + 2 * SECOND);
        let (sweep, _promoted) = rig.sweep(&node);
        sweep.run_once().await.expect_err("one cannot be read");
        assert_eq!(rig.held(), recent.len());
        for _ in 0..8 {
            sweep.run_once().await.expect_err("one cannot be read");
        }
        let beside = old.iter().filter(|one| one.shard != old[0].shard).count();
        assert!(beside > 0);
        assert_eq!(rig.held(), recent.len() + beside);
    }
}
