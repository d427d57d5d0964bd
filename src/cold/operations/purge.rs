//! Purge: what is kept of ended timers is removed: rows of history with payload and labels, and attempts. Their ids stay
//! taken until their time comes, by a hash that tells nothing else. The ledger keeps counting them, as it does when history
//! is removed by its age.

use super::super::row::TimerRow;
use super::super::sql::{Column, Statement, Tx};
use super::super::totals::Counts;
use super::super::{ColdStore, Error, history};
use super::{Begun, OperationRow, SETTLED, Selection, Stepped, Worker, list_position};
use crate::model::namespace::Namespace;
use crate::model::operation::{OperationState, Refusal};

/// The total that rises with every purge. Whoever has counted rows of history compares it before he relies on that.
pub(in crate::cold) const PURGED: &str = "purged";

impl ColdStore {
    /// One step of a purge: at most `most` timers, those that ended before it began.
    pub async fn purge(
        &self,
        operation: &OperationRow,
        worker: &Worker,
        most: usize,
    ) -> Result<Stepped, Error> {
        if self.clock.now() < operation.created_at.plus(SETTLED) {
            // An end gets its time before it is committed.
            return Ok(Stepped { waits: true, ..Stepped::idle(Some(operation.clone())) });
        }
        let Selection { filter, ended_before, .. } = operation.selection()?;
        let (before, after) =
            (ended_before.min(operation.created_at), list_position(operation.position.as_deref())?);
        let page = self.list_ended(&filter, before, after, most).await?;
        let (mut tx, mut now) = match self.begin_step(operation, worker).await? {
            Begun::Step(tx, now) => (tx, now),
            Begun::Nothing(after) => return Ok(Stepped::idle(after)),
        };
        let looked_at = page.rows.len();
        now.matched += i64::try_from(looked_at + page.unreadable.len()).unwrap_or(0);
        now.refuse_all(Refusal::Unreadable, page.unreadable.len());
        if !operation.dry_run && looked_at > 0 {
            let removed = self.remove_ended(&mut tx, &page.rows).await?;
            now.done += i64::try_from(removed).unwrap_or(0);
            now.refuse_all(Refusal::Removed, looked_at.saturating_sub(removed));
        }
        now.position = page.next.map(|next| next.to_string()).or(now.position);
        if page.next.is_none() {
            now.state = OperationState::Done;
        }
        self.end_step(&mut tx, &now).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(Stepped { operation: Some(now), looked_at, scanned: page.scanned, ..Stepped::idle(None) })
    }

    /// Removes these ended timers and their attempts; returns how many were still there.
    async fn remove_ended(&self, tx: &mut Tx, rows: &[TimerRow]) -> Result<usize, Error> {
        let uids = || Column::Uuid(rows.iter().map(|row| row.uid.0).collect());
        let ended_at = rows.iter().map(|row| row.ended_at.unwrap_or_default().get()).collect();
        let mut s = Statement::new(self.dialect(), "purge_history");
        let batch = s.batch(
            "b",
            vec![
                ("b_uid", uids()),
                ("b_generation", Column::Int(rows.iter().map(|row| row.life.generation.0.into()).collect())),
                ("b_ended", Column::Int(ended_at)),
            ],
        );
        s.push(&format!(
            "WITH {batch} DELETE FROM history WHERE (uid, generation, ended_at) IN \
             (SELECT b_uid, b_generation, b_ended FROM b) RETURNING state, namespace"
        ));
        let counts = history::removed(&tx.fetch(s).await?)?;
        let mut s = Statement::new(self.dialect(), "purge_attempts");
        let created_at = Column::Int(rows.iter().map(|row| row.created_at.get()).collect());
        let batch = s.batch("b", vec![("b_uid", uids()), ("b_created", created_at)]);
        s.push(&format!(
            "WITH {batch} DELETE FROM attempts WHERE (uid, created_at) IN (SELECT b_uid, b_created FROM b)"
        ));
        tx.execute(s).await?;
        self.fold(tx, &counts).await?;
        let removed: i64 = counts.values().sum();
        let mut purged = Counts::default();
        purged.add(Namespace::OWN, PURGED, removed);
        self.count(tx, &purged).await?;
        Ok(usize::try_from(removed).unwrap_or(0))
    }
}
