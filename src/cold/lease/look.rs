//! What may be given out: found, and locked until the transaction ends.

use std::collections::{BTreeMap, HashSet};

use uuid::Uuid;

use super::Asker;
use super::desk::{Desk, Found};
use crate::clock::Monotonic;
use crate::cold::columns::{AFTER, TimerColumn};
use crate::cold::restore::MAY_FIRE;
use crate::cold::row::TimerRow;
use crate::cold::sql::{Column, Dialect, Row, Statement, Tx};
use crate::cold::{ColdStore, Error, schedules};
use crate::model::id::Uid;
use crate::model::priority::Priority;
use crate::model::queue::{Held, MAX_ITEMS, Place};
use crate::planted::Defect;

impl ColdStore {
    /// Locks these rows and reads their places. Payloads are read once it is known who gets what.
    pub(super) async fn lock_rows(
        &self,
        tx: &mut Tx,
        desk: &mut Desk<'_>,
        uids: &[Uid],
    ) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "lease_lock");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let lock = self.dialect().lock("FOR UPDATE OF timers");
        s.push(&format!(
            "WITH {batch} SELECT {} FROM timers JOIN b ON {} \
             WHERE COALESCE(audience IS NOT NULL AND {MAY_FIRE}, false) ORDER BY b_uid {lock}",
            without_payload("timers", self.dialect()),
            self.dialect().keyed("uid", "b_uid")
        ));
        let rows = tx.fetch(s).await?;
        self.take_in(tx, desk, rows).await
    }

    /// Takes locked rows in hand, with their places.
    async fn take_in(&self, tx: &mut Tx, desk: &mut Desk<'_>, rows: Vec<Row>) -> Result<(), Error> {
        let mut new: BTreeMap<Uid, TimerRow> = BTreeMap::new();
        for row in &rows {
            match TimerRow::read(row, false) {
                Ok(timer) => drop(new.insert(timer.uid, timer)),
                Err(why) => {
                    let uid = Uid(row.get(0)?);
                    tracing::error!(uid = %uid.0, %why, "a timer cannot be read by this version; it is not given out");
                }
            }
        }
        new.retain(|uid, timer| {
            !desk.rows.contains_key(uid)
                && timer.namespace == desk.namespace
                && timer.target.queue() == Some(desk.queue)
        });
        let had = new.values().filter(|row| row.life.tries > 0).map(|row| row.uid).collect();
        for (uid, places) in self.places_of(tx, had).await? {
            if let Some(row) = new.get_mut(&uid) {
                row.places = places;
                if self.planted.is(Defect::PlaceGivenTwice) {
                    let is_held = |place: &&mut Place| !matches!(place.held, Held::Returned | Held::Lost);
                    for place in row.places.iter_mut().filter(is_held) {
                        (place.held, place.until) = (Held::Lost, desk.now);
                    }
                }
            }
        }
        desk.audience_of.extend(new.iter().filter_map(|(uid, row)| Some((*uid, row.audience()?))));
        desk.rows.extend(new);
        Ok(())
    }

    /// Locks what is ready for these audiences, at most so many of each and each priority, the longest ready first, and so many
    /// rows in all; with a worker, only what it may have. On PostgreSQL it also hears what store and queue say, which is a round
    /// trip less for workers to wait for; if the queue is paused, or this node has seen a later building of the store, it finds
    /// nothing.
    pub(super) async fn lock_ready(
        &self,
        tx: &mut Tx,
        desk: &mut Desk<'_>,
        wanted: &BTreeMap<i64, usize>,
        of: Option<&Asker>,
        rows: usize,
    ) -> Result<Found, Error> {
        let limits: BTreeMap<i64, usize> =
            wanted.iter().map(|(audience, wanted)| (*audience, (*wanted).min(MAX_ITEMS))).collect();
        let most = limits.values().copied().max().unwrap_or(0);
        let mut s = Statement::new(self.dialect(), "lease_ready");
        let batch = s.batch(
            "b",
            vec![
                ("b_audience", Column::Int(limits.keys().copied().collect())),
                ("b_most", Column::Int(limits.values().map(|most| *most as i64).collect())),
            ],
        );
        let ranks = Priority::ALL.map(|priority| format!("SELECT {} AS b_rank", priority.code()));
        let ranks = ranks.join(" UNION ALL ");
        // Most workers have nothing for them alone: one look tells that, where each priority of each would be one.
        let wanted = format!("SELECT b_audience, b_most FROM b WHERE {}", has_any("b_audience"));
        // SQLite was heard before: of what has become ready since, the time would be later than that of what is written.
        let heard_at = match self.dialect() {
            Dialect::Postgres => self.bound_now(),
            Dialect::Sqlite => Some(desk.now.get()),
        };
        let (now, all) = (s.now(heard_at), s.int(rows as i64));
        let mut which = format!(
            "t.audience = b_audience AND COALESCE(t.priority, 0) = b_rank AND t.ready_at IS NOT NULL \
             AND t.ready_at <= {now} AND {MAY_FIRE} AND {}",
            schedules::may_go(&now, "t", self.held())
        );
        if let Some(asking) = of {
            let worker = s.text(&asking.worker);
            which.push_str(&format!(
                " AND NOT EXISTS (SELECT 1 FROM places p WHERE p.uid = t.uid AND p.worker = {worker} \
                 AND (p.held = 0 OR (p.held IN (3, 4) AND COALESCE(t.dispatch, '') NOT LIKE '%\"repeat\":true%')))"
            ));
            // What this transaction has given out is not written yet, and its own locks do not keep it away.
            let mut taken = desk.taken_from(asking);
            taken.extend(&asking.exclude);
            if !taken.is_empty() {
                let none_of = s.none_of("t.uid", taken.iter().map(|uid| uid.0).collect());
                which.push_str(&format!(" AND {none_of}"));
            }
            let late =
                format!(" AND (t.expire_at IS NULL OR t.expire_at >= {now} OR COALESCE(t.fresh, 0) = 0)");
            which.push_str(&late);
        }
        let sent = Monotonic::now();
        let read = match self.dialect() {
            Dialect::Postgres => {
                let heard = self.heard(&mut s, &now, desk.queue);
                let seen = s.int(self.seen());
                s.push(&format!(
                    "WITH {batch}, heard AS MATERIALIZED ({heard}), wanted AS MATERIALIZED ({wanted}) \
                     SELECT {}, heard.* FROM heard LEFT JOIN \
                     (SELECT d.* FROM wanted CROSS JOIN ({ranks}) r CROSS JOIN LATERAL (SELECT t.* FROM timers t WHERE {which} \
                      ORDER BY t.ready_at LIMIT b_most FOR UPDATE OF t SKIP LOCKED) d \
                      WHERE (SELECT incarnation >= {seen} AND NOT COALESCE(paused, false) FROM heard) LIMIT {all}) d ON true",
                    without_payload("d", self.dialect())
                ));
                let mut read = tx.fetch(s).await?;
                desk.note(self.read_heard(sent, read.first(), AFTER)?);
                if let [one] = &read[..]
                    && one.get::<Option<Uuid>>(0)?.is_none()
                {
                    read.clear();
                }
                read
            }
            Dialect::Sqlite => {
                let limit = s.int(most as i64);
                let mut found = format!(
                    "SELECT t.rowid AS id FROM timers t WHERE {which} ORDER BY t.ready_at LIMIT {limit}"
                );
                // Its limit cannot differ by row.
                if limits.values().any(|one| *one != most) {
                    found = format!(
                        "SELECT id FROM (SELECT id, row_number() OVER () AS nth FROM ({found})) WHERE nth <= b_most"
                    );
                }
                s.push(&format!(
                    "WITH {batch} SELECT {} FROM ({wanted}) CROSS JOIN ({ranks}) r CROSS JOIN timers \
                     WHERE timers.rowid IN ({found}) LIMIT {all}",
                    without_payload("timers", self.dialect())
                ));
                tx.fetch(s).await?
            }
        };
        let mut found = Found { uids: Vec::with_capacity(read.len()), cut: HashSet::new() };
        let mut counts: BTreeMap<(i64, i16), usize> = BTreeMap::new();
        for row in &read {
            let audience: i64 = row.of(TimerColumn::Audience)?;
            let rank = row.of::<Option<i16>>(TimerColumn::Priority)?.unwrap_or(0);
            *counts.entry((audience, rank)).or_default() += 1;
            found.uids.push(Uid(row.get(0)?));
        }
        let is_cut =
            |(audience, count): (i64, usize)| limits.get(&audience).is_some_and(|most| count >= *most);
        let cut = counts.into_iter().map(|((audience, _), count)| (audience, count));
        found.cut.extend(cut.filter(|one| is_cut(*one)).map(|(audience, _)| audience));
        if read.len() >= rows {
            // Some were not come to.
            found.cut.extend(limits.keys());
        }
        self.take_in(tx, desk, read).await?;
        Ok(found)
    }
}

/// Whether anything at all, ready or not yet, is for this audience. A scalar: a join could be made by reading all that there is.
pub(super) fn has_any(audience: &str) -> String {
    format!("(SELECT 1 FROM timers WHERE audience = {audience} AND ready_at IS NOT NULL LIMIT 1) IS NOT NULL")
}

/// The select list of a row whose payload is left out.
fn without_payload(alias: &str, dialect: Dialect) -> String {
    let nothing = match dialect {
        Dialect::Postgres => "NULL::bytea",
        Dialect::Sqlite => "NULL",
    };
    let column = |one: &TimerColumn| match one {
        TimerColumn::Data => nothing.to_owned(),
        other => format!("{alias}.{}", other.name()),
    };
    TimerColumn::EACH.iter().map(column).collect::<Vec<_>>().join(", ")
}
