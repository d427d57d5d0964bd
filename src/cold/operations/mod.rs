//! Operations, as the store has them: what they select, how far they have come, who works on them.
//!
//! One node works on an operation, under a lease with a token. A step ([`live`], [`redrive`], [`purge`]) changes timers and
//! moves the position in one transaction, which begins by matching the token; so a step of a node that lost the lease changes
//! nothing, and whoever goes on begins where the last commit ended. Of operations that move timers (`shift`, `fire`) one goes
//! on at a time.

mod live;
mod purge;
mod redrive;
mod selection;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};
use uuid::Uuid;

pub use live::Operated;
pub(super) use purge::PURGED;
pub use redrive::{MAX_STEP, SETTLED, Stepped};
pub use selection::Selection;

use super::audit::Deed;
use super::list::ListCursor;
use super::sql::{Column, Row, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::namespace::Namespace;
use crate::model::operation::{Action, OperationId, OperationState, Refusal};
use crate::model::time::UnixMs;

/// The most operations that run at a time.
pub const MAX_RUNNING: i64 = 100;

/// So many operations that have ended are kept.
const KEPT: i64 = 200;

/// How many operations of one namespace a node works on at a time.
const MOST_OF_ONE: usize = 4;

/// How many timers were refused, by reason.
pub type Refused = BTreeMap<String, i64>;

/// What a new operation is.
#[derive(Debug, Clone)]
pub struct NewOperation {
    /// Its id.
    pub id: OperationId,
    /// What it does.
    pub action: Action,
    /// The filter as the caller gave it, as JSON.
    pub filter: String,
    /// What it selects.
    pub selection: Selection,
    /// It counts and changes nothing.
    pub dry_run: bool,
}

/// An operation as the store has it.
#[derive(Debug, Clone)]
pub struct OperationRow {
    /// Its id.
    pub id: OperationId,
    /// Its namespace: it takes timers of no other.
    pub namespace: Namespace,
    /// The word of what it does; one that this version does not know is shown all the same.
    pub action: String,
    /// The filter as the caller gave it, as JSON.
    pub filter: String,
    /// What it selects, as it is stored.
    selection: String,
    /// It counts and changes nothing.
    pub dry_run: bool,
    /// Where it stands.
    pub state: OperationState,
    /// The key up to which it has come, as it is stored.
    position: Option<String>,
    /// Timers that matched so far.
    pub matched: i64,
    /// Timers that it changed.
    pub done: i64,
    /// Timers that it left as they were, by reason.
    pub refused: Refused,
    /// Why it failed.
    pub failure: Option<String>,
    /// When it began.
    pub created_at: UnixMs,
    /// When it ended.
    pub ended_at: Option<UnixMs>,
    /// The node that works on it, or did so last.
    pub node: Option<String>,
}

/// The columns of [`OperationRow`], in order.
const COLUMNS: &str = "id, action, filter, selection, dry_run, state, position, matched, done, refused, failure, \
                       created_at, ended_at, node, namespace";

impl OperationRow {
    /// As the audit has it.
    fn audited(&self) -> Value {
        let filter: Value = serde_json::from_str(&self.filter).unwrap_or_default();
        let selection: Value = serde_json::from_str(&self.selection).unwrap_or_default();
        json!({"action": self.action, "filter": filter, "selection": selection, "dry_run": self.dry_run, "state": self.state.word(),
            "matched": self.matched, "done": self.done})
    }

    fn read(row: &Row) -> Result<Self, Error> {
        let bad = || Error::Corrupt("an operation".into());
        Ok(Self {
            id: OperationId(row.get(0)?),
            action: row.get(1)?,
            filter: row.get(2)?,
            selection: row.get(3)?,
            dry_run: row.get(4)?,
            state: OperationState::from_code(row.get(5)?).ok_or_else(bad)?,
            position: row.get(6)?,
            matched: row.get(7)?,
            done: row.get(8)?,
            refused: serde_json::from_str(&row.get::<String>(9)?).map_err(|_| bad())?,
            failure: row.get(10)?,
            created_at: UnixMs::new(row.get(11)?),
            ended_at: row.get::<Option<i64>>(12)?.map(UnixMs::new),
            node: row.get(13)?,
            namespace: Namespace(row.get(14)?),
        })
    }

    /// What it selects. An error if a newer version wrote it.
    pub fn selection(&self) -> Result<Selection, Error> {
        Selection::read(&self.selection)
    }

    /// Counts a timer that was refused.
    fn refuse(&mut self, why: Refusal) {
        self.refuse_all(why, 1);
    }

    /// Counts timers that were refused.
    fn refuse_all(&mut self, why: Refusal, count: usize) {
        if count > 0 {
            *self.refused.entry(why.word().to_owned()).or_default() += i64::try_from(count).unwrap_or(0);
        }
    }
}

/// The key up to which an operation has come that takes timers in the order of lists, as it is stored.
fn list_position(stored: Option<&str>) -> Result<Option<ListCursor>, Error> {
    let bad = |_| Error::Corrupt("the position of an operation".into());
    stored.map(str::parse).transpose().map_err(bad)
}

/// A running operation, as far as it matters who may take it.
struct Running {
    id: Uuid,
    namespace: Namespace,
    /// It moves timers.
    moves: bool,
    /// Some node has worked on it.
    has_begun: bool,
    /// No living node works on it.
    is_free: bool,
    /// This version can read it.
    is_readable: bool,
}

impl Running {
    fn read_all(rows: &[Row]) -> Result<Vec<Self>, Error> {
        rows.iter().map(Self::read).collect()
    }

    fn read(row: &Row) -> Result<Self, Error> {
        let (action, selection): (String, String) = (row.get(1)?, row.get(2)?);
        let action = Action::from_word(&action);
        Ok(Self {
            id: row.get(0)?,
            namespace: Namespace(row.get(6)?),
            moves: action.is_some_and(Action::moves) && !row.get::<bool>(3)?,
            has_begun: row.get(4)?,
            is_free: row.get(5)?,
            is_readable: action.is_some() && Selection::read(&selection).is_ok(),
        })
    }
}

/// Of running operations, those that a node may take.
///
/// Of those of a namespace that move timers one goes on at a time, because a timer names only the last one that moved it: two with the
/// same timer would move it again and again. It is the one that has begun, or else the oldest; the others wait until it has
/// ended. Nobody gets a turn unless `is_locked` holds for all of them: then nobody else gives one.
fn free_of(running: &[Running], is_locked: impl Fn(Uuid) -> bool) -> Vec<(Uuid, Namespace)> {
    let turn = |of: &Running| {
        // No timer is of two namespaces.
        let movers = || running.iter().filter(|one| one.moves && one.namespace == of.namespace);
        let next = movers().find(|one| one.has_begun).or_else(|| movers().find(|one| one.is_readable));
        next.filter(|_| movers().all(|one| is_locked(one.id))).map(|one| one.id)
    };
    let may_go = |one: &&Running| one.is_free && one.is_readable && (!one.moves || turn(one) == Some(one.id));
    running.iter().filter(may_go).map(|one| (one.id, one.namespace)).collect()
}

/// Of operations, the oldest first, those that a node takes that has some of these namespaces already: of the namespace of which
/// it has fewest first, and never more than [`MOST_OF_ONE`] of one. So no namespace has all places of a node.
fn in_turn(mut free: Vec<(Uuid, Namespace)>, held: &[Namespace], most: usize) -> Vec<Uuid> {
    let mut has: HashMap<Namespace, usize> = HashMap::new();
    held.iter().for_each(|one| *has.entry(*one).or_default() += 1);
    let mut taken = Vec::new();
    while taken.len() < most {
        let count = |(_, (_, of)): &(usize, &(Uuid, Namespace))| has.get(of).copied().unwrap_or(0);
        let next = free.iter().enumerate().min_by_key(count).filter(|one| count(one) < MOST_OF_ONE);
        let Some((next, _)) = next else { break };
        let (id, of) = free.remove(next);
        *has.entry(of).or_default() += 1;
        taken.push(id);
    }
    taken
}

/// What [`ColdStore::begin_step`] began.
#[expect(clippy::large_enum_variant, reason = "there is one a step, and it is taken apart at once")]
enum Begun {
    /// A step, in this transaction, of the operation as it is.
    Step(Tx, OperationRow),
    /// None.
    Nothing(Option<OperationRow>),
}

/// The node that works on operations.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Its name.
    pub node: String,
    /// What its leases carry. Another start of the node has another.
    pub token: Uuid,
    /// How long a lease lasts after each step, in milliseconds.
    pub lease_ms: i64,
}

impl ColdStore {
    /// Begins an operation; `None` if as many run as may, or if there is one of this id. The oldest ones that have ended are
    /// forgotten.
    pub async fn create_operation(&self, new: &NewOperation) -> Result<Option<OperationRow>, Error> {
        let mut tx = self.pool.begin().await?;
        self.hold_here(&mut tx).await?;
        let mut s = Statement::new(self.dialect(), "create_operation");
        let here = self.here(&mut s);
        let (now, id) = (s.now(self.bound_now()), s.uuid(new.id.0));
        let (action, filter) = (s.text(new.action.word()), s.text(&new.filter));
        let selection = s.text(&new.selection.stored());
        s.push(&format!(
            "INSERT INTO operations (namespace, id, action, filter, selection, dry_run, state, matched, done, refused, \
             created_at, lease_until) SELECT {here}, {id}, {action}, {filter}, {selection}, {dry}, 0, 0, 0, '{{}}', \
             {now}, 0 WHERE (SELECT count(*) FROM operations WHERE namespace = {here} AND state = 0) < {MAX_RUNNING} \
             ON CONFLICT (namespace, id) DO NOTHING RETURNING {COLUMNS}",
            dry = new.dry_run,
        ));
        let made = tx.fetch(s).await?.first().map(OperationRow::read).transpose()?;
        if made.is_some() {
            let mut s = Statement::new(self.dialect(), "forget_operations");
            let here = self.here(&mut s);
            s.push(&format!(
                "DELETE FROM operations WHERE namespace = {here} AND id IN (SELECT id FROM operations \
                 WHERE namespace = {here} AND state <> 0 ORDER BY id DESC LIMIT 1000 OFFSET {KEPT})"
            ));
            tx.execute(s).await?;
        }
        if let Some(made) = &made {
            let (object, became) = (made.id.to_string(), Some(made.audited()));
            self.audit(&mut tx, Deed { action: "operation.begin", object: &object, was: None, became })
                .await?;
        }
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(made)
    }

    /// All operations that are kept, the last one first.
    pub async fn operations(&self) -> Result<Vec<OperationRow>, Error> {
        let mut s = Statement::new(self.dialect(), "operations");
        let here = self.here(&mut s);
        s.push(&format!("SELECT {COLUMNS} FROM operations WHERE namespace = {here} ORDER BY id DESC"));
        self.pool.read(s).await?.iter().map(OperationRow::read).collect()
    }

    /// One operation.
    pub async fn operation(&self, id: OperationId) -> Result<Option<OperationRow>, Error> {
        let mut s = Statement::new(self.dialect(), "operation");
        let here = self.here(&mut s);
        let id = s.uuid(id.0);
        s.push(&format!("SELECT {COLUMNS} FROM operations WHERE namespace = {here} AND id = {id}"));
        self.pool.read(s).await?.first().map(OperationRow::read).transpose()
    }

    /// Ends a running operation: after this answer it changes nothing more. One that has ended stays as it is. `None` if
    /// there is none.
    pub async fn stop_operation(&self, id: OperationId) -> Result<Option<OperationRow>, Error> {
        self.end_operation(id, OperationState::Stopped, None).await?;
        self.operation(id).await
    }

    /// Ends a running operation that cannot go on.
    pub async fn fail_operation(&self, id: OperationId, why: &str) -> Result<(), Error> {
        self.end_operation(id, OperationState::Failed, Some(why)).await
    }

    async fn end_operation(
        &self,
        id: OperationId,
        state: OperationState,
        failure: Option<&str>,
    ) -> Result<(), Error> {
        let (mut tx, object) = (self.pool.begin().await?, id.to_string());
        let mut s = Statement::new(self.dialect(), "end_operation");
        let here = self.here(&mut s);
        let (now, id) = (s.now(self.bound_now()), s.uuid(id.0));
        let failure = failure.map_or_else(|| "NULL".to_owned(), |why| s.text(why));
        s.push(&format!(
            "UPDATE operations SET state = {}, ended_at = {now}, failure = {failure} \
             WHERE namespace = {here} AND id = {id} AND state = 0 RETURNING {COLUMNS}",
            state.code()
        ));
        if let Some(ended) = tx.fetch(s).await?.first().map(OperationRow::read).transpose()? {
            let became = Some(ended.audited());
            // Only one that runs is ended, and its counts stay.
            let was = Some(OperationRow { state: OperationState::Running, ..ended }.audited());
            self.audit(&mut tx, Deed { action: "operation.stop", object: &object, was, became }).await?;
        }
        tx.commit().await.map_err(Error::at_commit)
    }

    /// Takes running operations that no living node works on, at most `most`, for a node that has some of these namespaces already:
    /// the oldest of each namespace first, and not more than four of one. Those that this version
    /// cannot read are left to nodes of a newer one; those that move timers take turns: one goes on at a
    /// time, until it has ended.
    pub async fn lease_operations(
        &self,
        worker: &Worker,
        held: &[Namespace],
        most: usize,
    ) -> Result<Vec<OperationRow>, Error> {
        let running = Running::read_all(&self.pool.read(self.running_statement()).await?)?;
        if free_of(&running, |_| true).is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.pool.begin().await?;
        let locked = self.lock_movers(&mut tx).await?;
        // Read again, with the locks: what another node has leased meanwhile shows.
        let running = Running::read_all(&tx.fetch(self.running_statement()).await?)?;
        let free = in_turn(free_of(&running, |mover| locked.contains(&mover)), held, most);
        if free.is_empty() {
            return Ok(Vec::new());
        }
        let mut s = Statement::new(self.dialect(), "lease_operations");
        let batch = s.batch("free", vec![("free_id", Column::Uuid(free))]);
        let now = s.now(self.bound_now());
        let (node, token) = (s.text(&worker.node), s.uuid(worker.token));
        let (lease, lock) = (s.int(worker.lease_ms), self.dialect().lock("FOR UPDATE SKIP LOCKED"));
        s.push(&format!(
            "WITH {batch} UPDATE operations SET node = {node}, token = {token}, lease_until = {now} + {lease} \
             WHERE id IN (SELECT id FROM operations WHERE state = 0 AND lease_until < {now} AND id IN (SELECT free_id FROM free) ORDER BY id {lock}) \
             RETURNING {COLUMNS}"
        ));
        let rows = tx.fetch(s).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        let mut leased = rows.iter().map(OperationRow::read).collect::<Result<Vec<_>, _>>()?;
        leased.sort_unstable_by_key(|operation| operation.id);
        Ok(leased)
    }

    /// Running operations, the oldest first, as [`Running`] reads them.
    fn running_statement(&self) -> Statement {
        let mut s = Statement::new(self.dialect(), "running_operations");
        let now = s.now(self.bound_now());
        s.push(&format!(
            "SELECT id, action, selection, dry_run, node IS NOT NULL, lease_until < {now}, namespace FROM operations \
             WHERE state = 0 ORDER BY id"
        ));
        s
    }

    /// Locks the running operations that move timers, but for those that somebody else has locked; returns their ids.
    async fn lock_movers(&self, tx: &mut Tx) -> Result<BTreeSet<Uuid>, Error> {
        let movers = Action::ALL.into_iter().filter(|action| action.moves());
        let movers = movers.map(|action| format!("'{}'", action.word())).collect::<Vec<_>>().join(", ");
        let mut s = Statement::new(self.dialect(), "lock_movers");
        s.push(&format!(
            "SELECT id FROM operations WHERE state = 0 AND NOT dry_run \
             AND action IN ({movers}) ORDER BY id {}",
            self.dialect().lock("FOR UPDATE SKIP LOCKED")
        ));
        tx.fetch(s).await?.iter().map(|row| row.get(0)).collect()
    }

    /// Gives the leases of a node back, so that another one goes on at once.
    pub async fn release_operations(&self, token: Uuid) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "release_operations");
        let token = s.uuid(token);
        s.push(&format!("UPDATE operations SET lease_until = 0 WHERE token = {token} AND state = 0"));
        self.pool.write(s).await.map(drop)
    }

    /// Begins a step: renews the lease and returns the operation as it is. Nobody else changes it until the end of the
    /// transaction. Or there is nothing to do: the operation has ended or another node has the lease (`None`), or the step
    /// before was committed, though its answer was lost (the operation as it is).
    async fn begin_step(&self, operation: &OperationRow, worker: &Worker) -> Result<Begun, Error> {
        let mut tx = self.pool.begin().await?;
        let mut s = Statement::new(self.dialect(), "operation_begin");
        let here = self.here(&mut s);
        let now = s.now(self.bound_now());
        let (id, token, lease) = (s.uuid(operation.id.0), s.uuid(worker.token), s.int(worker.lease_ms));
        s.push(&format!(
            "UPDATE operations SET lease_until = {now} + {lease} \
             WHERE namespace = {here} AND id = {id} AND state = 0 AND token = {token} RETURNING {COLUMNS}"
        ));
        let Some(row) = tx.fetch(s).await?.first().map(OperationRow::read).transpose()? else {
            return Ok(Begun::Nothing(None));
        };
        if row.position == operation.position {
            return Ok(Begun::Step(tx, row));
        }
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(Begun::Nothing(Some(row)))
    }

    /// Ends a step: writes how far the operation has come.
    async fn end_step(&self, tx: &mut Tx, operation: &OperationRow) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "operation_step");
        let here = self.here(&mut s);
        let now = s.now(self.bound_now());
        let (id, state) = (s.uuid(operation.id.0), operation.state.code());
        let (matched, done) = (s.int(operation.matched), s.int(operation.done));
        let refused = s.text(&serde_json::to_string(&operation.refused).unwrap_or_default());
        let position = operation.position.as_deref().map_or_else(|| "NULL".to_owned(), |at| s.text(at));
        let ended_at = if operation.state == OperationState::Running { "NULL" } else { now.as_str() };
        s.push(&format!(
            "UPDATE operations SET state = {state}, position = {position}, matched = {matched}, done = {done}, \
             refused = {refused}, ended_at = {ended_at} WHERE namespace = {here} AND id = {id}"
        ));
        tx.execute(s).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_has_all_places_of_a_node() {
        let free = |of: &[i16]| -> Vec<(Uuid, Namespace)> {
            of.iter().enumerate().map(|(n, of)| (Uuid::from_u128(n as u128), Namespace(*of))).collect()
        };
        let taken = |of: &[i16], held: &[i16], most: usize| -> Vec<u128> {
            let held: Vec<_> = held.iter().map(|of| Namespace(*of)).collect();
            in_turn(free(of), &held, most).into_iter().map(|id| id.as_u128()).collect()
        };
        assert_eq!(taken(&[1, 1, 1, 1, 1, 1], &[], 12), [0, 1, 2, 3], "the oldest, and four at most");
        assert_eq!(taken(&[1, 1, 1, 2, 0], &[], 3), [0, 3, 4], "the oldest of each");
        assert_eq!(taken(&[1, 1, 2], &[1, 1], 2), [2, 0], "who has fewest goes first");
        assert_eq!(taken(&[1, 2], &[1, 1, 1, 1], 9), [1]);
        assert!(taken(&[], &[1], 9).is_empty() && taken(&[1], &[], 0).is_empty());
    }
}
