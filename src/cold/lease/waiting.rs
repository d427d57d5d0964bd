//! What waits for workers, seen from outside a lease.

use std::collections::{BTreeSet, HashSet};

use super::look::has_any;
use crate::cold::apply::MAX_BATCH;
use crate::cold::places::{PLACE, place_of};
use crate::cold::sql::{Column, Statement};
use crate::cold::{ColdStore, Error};
use crate::model::id::Uid;
use crate::model::pointer::Pointer;
use crate::model::priority::Priority;
use crate::model::queue::{Place, holder};
use crate::model::time::LAST;

impl ColdStore {
    /// Timers of queues that are due and wait for workers are not looked at any more until they would be too late.
    pub async fn park(&self, pointers: &[Pointer]) -> Result<(), Error> {
        let mut sorted: Vec<_> = pointers.to_vec();
        sorted.sort_by_key(|pointer| pointer.uid);
        let mut s = Statement::new(self.dialect(), "park");
        let of = |pick: fn(&Pointer) -> i64| Column::Int(sorted.iter().map(pick).collect());
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", Column::Uuid(sorted.iter().map(|pointer| pointer.uid.0).collect())),
                ("b_generation", of(|pointer| pointer.generation.0.into())),
            ],
        );
        let (now, last) = (s.now(self.bound_now()), s.int(LAST.get()));
        // Whoever is too late already is found again, and looked at.
        s.push(&format!(
            "WITH {batch} UPDATE timers SET wake_at = CASE WHEN expire_at IS NULL THEN {last} WHEN expire_at < {now} \
             THEN wake_at ELSE expire_at + 1 END FROM b WHERE {} AND COALESCE(generation = b_generation \
             AND audience IS NOT NULL AND attempt = 0 AND state = 0 AND wake_at <= {now}, false)",
            self.dialect().keyed("uid", "b_uid")
        ));
        self.urgent.write(s).await.map(drop)
    }

    /// Which of these audiences have something ready.
    pub async fn ready_audiences(&self, audiences: &BTreeSet<i64>) -> Result<HashSet<i64>, Error> {
        let mut s = Statement::new(self.dialect(), "ready_audiences");
        let batch = s.batch("b", vec![("b_audience", Column::Int(audiences.iter().copied().collect()))]);
        let now = s.now(self.bound_now());
        let any = Priority::ALL.map(|priority| {
            format!(
                "EXISTS (SELECT 1 FROM timers WHERE audience = b_audience AND COALESCE(priority, 0) = {} \
                 AND ready_at IS NOT NULL AND ready_at <= {now})",
                priority.code()
            )
        });
        s.push(&format!(
            "WITH {batch} SELECT b_audience FROM b WHERE {} AND ({})",
            has_any("b_audience"),
            any.join(" OR ")
        ));
        self.pool.read(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Timers of a queue of which these workers have places whose leases have ended, and nobody has looked since.
    pub async fn ended_leases(&self, queue: &str, workers: &[&str]) -> Result<Vec<Uid>, Error> {
        let mut s = Statement::new(self.dialect(), "ended_leases");
        let holders = workers.iter().map(|worker| holder(self.namespace(), queue, worker)).collect();
        let batch = s.batch("b", vec![("b_holder", Column::Int(holders))]);
        let now = s.now(self.bound_now());
        let limit = s.int(MAX_BATCH as i64);
        let ended = format!("holder = b_holder AND held IN (0, 2) AND held = 0 AND until_at <= {now}");
        let places = self.dialect().each("places", &ended, "");
        s.push(&format!("WITH {batch} SELECT DISTINCT uid FROM b {places} LIMIT {limit}"));
        self.pool.read(s).await?.iter().map(|row| row.get(0).map(Uid)).collect()
    }

    /// The places of a timer that were given out, in order.
    pub async fn places(&self, uid: Uid) -> Result<Vec<Place>, Error> {
        let mut s = Statement::new(self.dialect(), "places");
        let uid = s.uuid(uid.0);
        s.push(&format!("SELECT {PLACE} FROM places WHERE uid = {uid} ORDER BY number"));
        self.pool.read(s).await?.iter().map(|row| place_of(row).map(|(_, place)| place)).collect()
    }
}
