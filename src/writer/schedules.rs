//! Schedules make timers and end them; what follows each commit is done here, as for any other.

use std::time::Duration;

use super::{Intake, Writer};
use crate::cold::{
    Backfilled, Error, MadeOccurrences, ScheduleEdit, ScheduleGone, SchedulePut, ScheduleRow, carried,
};
use crate::model::id::Epoch;
use crate::model::time::UnixMs;

impl Writer {
    /// One look at the schedules of these shards ([`crate::cold::ColdStore::make_occurrences`]).
    pub async fn make_occurrences(
        &self,
        owned: &[(i32, Epoch)],
        reach: Duration,
    ) -> Result<MadeOccurrences, Error> {
        let made = self.store.make_occurrences(owned, reach).await?;
        Ok(self.follow_made(made).await)
    }

    /// Has schedules of these shards follow this build's data of the time zones
    /// ([`crate::cold::ColdStore::follow_zones`]); returns how many did.
    pub async fn follow_zones(
        &self,
        owned: &[(i32, Epoch)],
        most: usize,
        reach: Duration,
    ) -> Result<usize, Error> {
        let (count, made) = self.store.follow_zones(owned, most, reach).await?;
        self.follow_made(made).await;
        Ok(count)
    }

    /// Writes a schedule ([`crate::cold::ColdStore::put_schedule`]).
    pub async fn put_schedule(&self, edit: &ScheduleEdit, reach: Duration) -> Result<SchedulePut, Error> {
        let (put, made) = self.store.put_schedule(edit, reach).await?;
        self.follow_made(made).await;
        Ok(put)
    }

    /// Removes a schedule; `false` if there is none of this id.
    pub async fn remove_schedule(&self, id: &str) -> Result<bool, Error> {
        let Some((ScheduleGone { pointers }, made)) = self.store.remove_schedule(id).await? else {
            return Ok(false);
        };
        self.follow_made(made).await;
        self.promotion.promote(pointers);
        Ok(true)
    }

    /// Pauses a schedule, or resumes it; `None` if there is none of this id.
    pub async fn pause_schedule(
        &self,
        id: &str,
        paused: bool,
        reach: Duration,
    ) -> Result<Option<ScheduleRow>, Error> {
        let Some((row, made)) = self.store.pause_schedule(id, paused, reach).await? else { return Ok(None) };
        self.follow_made(made).await;
        Ok(Some(row))
    }

    /// Makes occurrences of skipped nominal times; returns how many, or what kept it from that.
    pub async fn backfill(&self, id: &str, from: UnixMs, to: UnixMs) -> Result<Backfilled, Error> {
        Ok(match self.store.backfill(id, from, to).await? {
            Backfilled::Done(count, made) => Backfilled::Done(count, self.follow_made(made).await),
            other => other,
        })
    }

    /// Does what follows the commit of what schedules did.
    async fn follow_made(&self, mut made: MadeOccurrences) -> MadeOccurrences {
        self.promotion.written(made.rows.iter());
        self.metrics.registered.inc_by(made.rows.len() as u64);
        self.metrics.occurrences.inc_by(made.rows.len() as u64);
        for (reason, count) in &made.skips {
            let count = u64::try_from(*count).unwrap_or(0);
            self.metrics.occurrences_skipped.with_label_values(&[*reason]).inc_by(count);
        }
        let answers: Vec<_> = std::mem::take(&mut made.answers).into_iter().map(Ok).collect();
        self.regroup(&answers).await;
        made.answers = self.follow(&made.changes, answers).into_iter().flatten().collect();
        made
    }
}

impl Intake {
    /// Runs a change of a schedule and what follows it in a task of its own: a caller that hangs up stops neither.
    async fn in_task<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        // Fails only after a panic, or at the end of the process.
        tokio::spawn(carried(work)).await.unwrap_or(Err(Error::Busy))
    }

    /// [`Writer::put_schedule`].
    pub async fn put_schedule(&self, edit: ScheduleEdit, reach: Duration) -> Result<SchedulePut, Error> {
        let writer = self.writer.clone();
        self.in_task(async move { writer.put_schedule(&edit, reach).await }).await
    }

    /// [`Writer::remove_schedule`].
    pub async fn remove_schedule(&self, id: String) -> Result<bool, Error> {
        let writer = self.writer.clone();
        self.in_task(async move { writer.remove_schedule(&id).await }).await
    }

    /// [`Writer::pause_schedule`].
    pub async fn pause_schedule(
        &self,
        id: String,
        paused: bool,
        reach: Duration,
    ) -> Result<Option<ScheduleRow>, Error> {
        let writer = self.writer.clone();
        self.in_task(async move { writer.pause_schedule(&id, paused, reach).await }).await
    }

    /// [`Writer::backfill`].
    pub async fn backfill(&self, id: String, from: UnixMs, to: UnixMs) -> Result<Backfilled, Error> {
        let writer = self.writer.clone();
        self.in_task(async move { writer.backfill(&id, from, to).await }).await
    }
}
