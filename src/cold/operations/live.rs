//! Operations on live timers: cancel, shift, fire, pause, resume.
//!
//! They are taken in due order, from the indexes of lists, a page a step. A step locks what it takes and changes it as a
//! caller's change would be made ([`ColdStore::apply_within`]), in the transaction that moves the position. What a stranger
//! has locked is not waited for while the step holds other rows: the step ends before it, and the next one waits for it
//! alone.
//!
//! A timer that an operation moves may come up again in it. So it is marked with the operation, and is not taken twice. One
//! that somebody else moves may be left out: a cancel makes a closing pass for it, which takes those without a recorded
//! cancel. Of a pause and a resume such a pass could not tell what was left out from what its caller has turned back since;
//! and what somebody has turned back and moved in front of them, they take once more.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::super::apply::{Applied, Change, ChangeEvent};
use super::super::decide::{Context, Writes, decide};
use super::super::list::{Filter, ListCursor, Page, Taken, cursor_at};
use super::super::row::TimerRow;
use super::super::sql::{Column, Dialect, Statement, Tx};
use super::super::totals::Counts;
use super::super::{ColdStore, Error};
use super::{Begun, OperationRow, Stepped, Worker, list_position};
use crate::model::id::Uid;
use crate::model::operation::{Action, OperationState, Refusal};
use crate::model::time::LAST;
use crate::model::timer::Answer;
use crate::planted::Defect;

/// What a step did.
#[derive(Debug)]
pub struct Operated {
    /// How far the operation is.
    pub stepped: Stepped,
    /// The changes that were made.
    pub changes: Vec<Change>,
    /// Their answers, in the same order.
    pub answers: Vec<Applied>,
}

/// What the position of a closing pass begins with.
const CLOSING: &str = "closing ";

/// One operation on live timers.
struct Work {
    action: Action,
    filter: Filter,
    taken: Taken,
    by_ms: i64,
    /// It looks once more from the begin.
    is_closing: bool,
    /// The key up to which it has come in this pass.
    after: Option<ListCursor>,
}

impl Work {
    fn of(operation: &OperationRow) -> Result<Self, Error> {
        let unknown = || Error::Corrupt("an action that this version does not know".into());
        let action = Action::from_word(&operation.action).ok_or_else(unknown)?;
        let selection = operation.selection()?;
        let mut filter = selection.filter;
        if let ([only], None) = (action.states(), filter.state) {
            // Its index is used.
            filter.state = Some(*only);
        }
        let position = operation.position.as_deref();
        let closing = position.and_then(|position| position.strip_prefix(CLOSING));
        let taken = Taken {
            states: action.states(),
            registered_until: selection.registered_until.unwrap_or(LAST).min(operation.created_at),
            unchanged_by: operation.id.0,
            is_unasked: closing.is_some(),
        };
        Ok(Self {
            action,
            filter,
            taken,
            by_ms: selection.by_ms.unwrap_or_default(),
            is_closing: closing.is_some(),
            after: list_position(closing.or(position).filter(|key| !key.is_empty()))?,
        })
    }

    /// The position after a page that ends here; `None` if the operation is done.
    fn position(&self, next: Option<ListCursor>, dry_run: bool) -> Option<String> {
        // Nothing can have been moved past a first page that was the only one.
        let closes = self.action == Action::Cancel && !dry_run && !self.is_closing && self.after.is_some();
        match next {
            Some(next) if self.is_closing => Some(format!("{CLOSING}{next}")),
            Some(next) => Some(next.to_string()),
            None => closes.then(|| CLOSING.to_owned()),
        }
    }

    fn event(&self) -> Result<ChangeEvent, Error> {
        Ok(match self.action {
            Action::Cancel => ChangeEvent::Cancel,
            Action::Shift => ChangeEvent::Shift(self.by_ms),
            Action::Fire => ChangeEvent::Fire(None),
            Action::Pause => ChangeEvent::Pause(None),
            Action::Resume => ChangeEvent::Resume(None),
            Action::Redrive | Action::Purge => {
                return Err(Error::Corrupt("an action that takes no live timers".into()));
            }
        })
    }
}

/// Whether a change was made; if not, why.
const fn refusal(applied: &Applied) -> Option<Refusal> {
    match applied {
        Applied::Live(_, Answer::Cancelled | Answer::Stopped | Answer::Done) | Applied::Same(_) => None,
        Applied::Unreadable => Some(Refusal::Unreadable),
        // What is locked is live, has no version to match and gets no new target.
        _ => Some(Refusal::InFlight),
    }
}

fn uids_of(rows: &[TimerRow]) -> Vec<Uid> {
    rows.iter().map(|row| row.uid).collect()
}

impl ColdStore {
    /// One step of an operation on live timers: at most `most` of them.
    pub async fn operate(
        &self,
        operation: &OperationRow,
        worker: &Worker,
        most: usize,
    ) -> Result<Operated, Error> {
        let work = Work::of(operation)?;
        if let Some(operated) = self.operate_once(operation, &work, worker, Some(most)).await? {
            return Ok(operated);
        }
        let alone = self.operate_once(operation, &work, worker, None).await?;
        alone.ok_or(Error::Busy)
    }

    /// One step. With a number of timers it does not wait for any that a stranger has locked: `None` if that is the first.
    /// Without one it takes the next one, and waits for it.
    async fn operate_once(
        &self,
        operation: &OperationRow,
        work: &Work,
        worker: &Worker,
        most: Option<usize>,
    ) -> Result<Option<Operated>, Error> {
        let idle = |operation| Operated {
            stepped: Stepped::idle(operation),
            changes: Vec::new(),
            answers: Vec::new(),
        };
        let mut page = self.list_taken(&work.filter, &work.taken, work.after, most.unwrap_or(1)).await?;
        let (mut tx, mut now) = match self.begin_step(operation, worker).await? {
            Begun::Step(tx, now) => (tx, now),
            Begun::Nothing(after) => return Ok(Some(idle(after))),
        };
        let event = work.event()?;
        let (mut changes, mut late) = (Vec::new(), None);
        let answers = if operation.dry_run {
            self.foretell(&page.rows, &event)
        } else {
            let held = match most {
                Some(_) => self.lock_page(&mut tx, work, &mut page).await?,
                None => {
                    Some(self.lock_taken(&mut tx, work, &uids_of(&page.rows), "FOR UPDATE OF timers").await?)
                }
            };
            let Some(held) = held else { return Ok(None) };
            let held: Vec<Uid> = held.into_iter().collect();
            changes.extend(held.iter().map(|uid| Change { uid: *uid, caller: None, event: event.clone() }));
            let within =
                Box::pin(self.apply_within(&mut tx, &changes, &held, false, Counts::default())).await?;
            late = Some(within.late);
            within.answers
        };
        // Those of a closing pass were counted before.
        let unreadable = if work.is_closing { 0 } else { page.unreadable.len() };
        now.matched += i64::try_from(answers.len() + unreadable).unwrap_or(0);
        now.refuse_all(Refusal::Unreadable, unreadable);
        for why in answers.iter().filter_map(refusal) {
            now.refuse(why);
        }
        if !operation.dry_run {
            let changed = changes.iter().zip(&answers).filter(|(_, answer)| refusal(answer).is_none());
            let changed: Vec<Uuid> = changed.map(|(change, _)| change.uid.0).collect();
            now.done += i64::try_from(changed.len()).unwrap_or(0);
            if self.planted.is(Defect::OperationRepeats) {
                tx.commit().await.map_err(Error::at_commit)?;
                tx = match self.begin_step(operation, worker).await? {
                    Begun::Step(tx, _) => tx,
                    Begun::Nothing(after) => return Ok(Some(idle(after))),
                };
            }
            if work.action.moves() {
                self.mark(&mut tx, operation, changed).await?;
            }
        }
        match work.position(page.next, operation.dry_run) {
            Some(position) => now.position = Some(position),
            None => now.state = OperationState::Done,
        }
        self.end_step(&mut tx, &now).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        if let Some(late) = late {
            Box::pin(self.tell_late(late)).await?;
        }
        let (looked_at, scanned) = (answers.len(), page.scanned);
        let stepped = Stepped { operation: Some(now), looked_at, scanned, ..Stepped::idle(None) };
        Ok(Some(Operated { stepped, changes, answers }))
    }

    /// How a change of these timers would be answered. Nothing is written.
    fn foretell(&self, rows: &[TimerRow], event: &ChangeEvent) -> Vec<Applied> {
        let context = Context {
            now: self.clock.now(),
            watermark: LAST,
            planted: self.planted,
            salt: &self.own,
            // No change of an operation asks what its queue says.
            queue: None,
        };
        let mut writes = Writes::default();
        rows.iter().map(|row| decide(&mut row.clone(), event, context, &mut writes)).collect()
    }

    /// Locks the timers of a page that match still. The page ends before the first one that a stranger has locked; `None`
    /// if that is the first of the page.
    async fn lock_page(
        &self,
        tx: &mut Tx,
        work: &Work,
        page: &mut Page,
    ) -> Result<Option<BTreeSet<Uid>>, Error> {
        let uids = uids_of(&page.rows);
        let mut held = self.lock_taken(tx, work, &uids, "FOR UPDATE OF timers SKIP LOCKED").await?;
        let missing: Vec<Uid> = uids.into_iter().filter(|uid| !held.contains(uid)).collect();
        let strangers = self.lock_taken(tx, work, &missing, "").await?;
        match page.rows.iter().position(|row| strangers.contains(&row.uid)) {
            None => return Ok(Some(held)),
            Some(0) => return Ok(None),
            Some(first) => page.rows.truncate(first),
        }
        page.next = page.rows.last().map(cursor_at);
        page.unreadable.retain(|key| Some(*key) < page.next);
        let kept: BTreeSet<Uid> = page.rows.iter().map(|row| row.uid).collect();
        held.retain(|uid| kept.contains(uid));
        Ok(Some(held))
    }

    /// Of these timers, those that match still; locked, if they are to be. They matched when the page was read: somebody may
    /// have changed them since.
    async fn lock_taken(
        &self,
        tx: &mut Tx,
        work: &Work,
        uids: &[Uid],
        lock: &'static str,
    ) -> Result<BTreeSet<Uid>, Error> {
        if uids.is_empty() || (lock.is_empty() && self.dialect() == Dialect::Sqlite) {
            return Ok(BTreeSet::new());
        }
        let mut s = Statement::new(self.dialect(), "operation_lock");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids.iter().map(|uid| uid.0).collect()))]);
        let mut conditions = self.conditions(&work.filter, &mut s);
        conditions.push(work.taken.condition(&mut s));
        s.push(&format!(
            "WITH {batch} SELECT uid, generation FROM timers JOIN b ON {} WHERE COALESCE({}, false) ORDER BY b_uid {}",
            self.dialect().keyed("uid", "b_uid"),
            conditions.join(" AND "),
            self.dialect().lock(lock)
        ));
        tx.fetch(s).await?.iter().map(|row| row.get(0).map(Uid)).collect()
    }

    /// Notes of timers that an operation has moved them.
    async fn mark(&self, tx: &mut Tx, operation: &OperationRow, uids: Vec<Uuid>) -> Result<(), Error> {
        if uids.is_empty() {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "operation_mark");
        let batch = s.batch("b", vec![("b_uid", Column::Uuid(uids))]);
        let id = s.uuid(operation.id.0);
        let is_it = self.dialect().keyed("uid", "b_uid");
        s.push(&format!("WITH {batch} UPDATE timers SET operation = {id} FROM b WHERE {is_it}"));
        tx.execute(s).await.map(drop)
    }
}
