//! The audit: who did what to the service, from where, and what it was before and is after.
//!
//! A row is written in the transaction that makes the change, so neither is there without the other; of what is done to timers
//! one by one (on the page, `run` of a schedule, `test` of a destination) just before it ([`ColdStore::note_deed`]). Who acts is told by the
//! door that lets a call in ([`acting`]), for all that the call does; what a node does by itself has no actor and no row. The
//! timers that programs register and change are not in it: they have a life of their own (`explain`).
//!
//! Nothing here may hold a secret: what is written is what the API shows of a thing, and never a payload.

use serde_json::{Value, json};

use super::sql::{Row, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::time::UnixMs;

tokio::task_local! {
    static ACTOR: Actor;
}

/// The most bytes that a row keeps of what a thing was or is.
const MOST_KEPT: usize = 16 * 1024;

/// The number that stands for all namespaces.
const OF_ALL: i64 = -1;

/// The most rows of a page; one more may be read, to see whether there is a next one.
pub const MAX_AUDIT_PAGE: usize = 1000;

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The id of a key, or a word for who has none.
    pub id: String,
    /// What the key is called.
    pub name: Option<String>,
    /// The address that the call came from.
    pub from: Option<String>,
}

/// Runs what somebody does: the changes of the service in it are written down as his. What it spawns is not, unless it is
/// [`carried`].
pub async fn acting<F: Future>(actor: Actor, work: F) -> F::Output {
    ACTOR.scope(actor, work).await
}

/// The same work, as that of whoever acts now, wherever it runs.
pub fn carried<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let actor = ACTOR.try_with(Clone::clone).ok();
    async move {
        match actor {
            Some(actor) => acting(actor, work).await,
            None => work.await,
        }
    }
}

/// What somebody did to a thing.
#[derive(Debug)]
pub struct Deed<'a> {
    /// The kind of the thing and the verb: `destination.put`.
    pub action: &'static str,
    /// Which one.
    pub object: &'a str,
    /// What it was.
    pub was: Option<Value>,
    /// What it became.
    pub became: Option<Value>,
}

impl Deed<'_> {
    /// Whether it is about something that only keys of all namespaces may see: another such key.
    fn is_of_all(&self) -> bool {
        let key = self.was.as_ref().or(self.became.as_ref());
        let is_key_of_all =
            self.action.starts_with("key.") && key.is_some_and(|key| key["namespace"].is_null());
        is_key_of_all || self.action.starts_with("namespace.")
    }
}

/// A row of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Its number. Later ones are larger, but for those of transactions under way at once.
    pub id: i64,
    /// When it was done.
    pub at: UnixMs,
    /// Who did it.
    pub actor: Actor,
    /// The kind of the thing and the verb.
    pub action: String,
    /// Which one.
    pub object: String,
    /// What it was, as JSON.
    pub was: Option<String>,
    /// What it became, as JSON.
    pub became: Option<String>,
}

impl AuditRow {
    /// About how many bytes it takes in an answer.
    pub fn size(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        256 + self.object.len() + length(&self.was) + length(&self.became)
    }
}

/// The columns of [`AuditRow`], in order.
const COLUMNS: &str = "id, at, actor, name, origin, action, object, was, became";

impl AuditRow {
    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get(0)?,
            at: UnixMs::new(row.get(1)?),
            actor: Actor { id: row.get(2)?, name: row.get(3)?, from: row.get(4)? },
            action: row.get(5)?,
            object: row.get(6)?,
            was: row.get(7)?,
            became: row.get(8)?,
        })
    }
}

/// Which rows of the audit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Done at this moment or later.
    pub since: Option<UnixMs>,
    /// Done before this moment.
    pub until: Option<UnixMs>,
    /// By this key, by its id or its name.
    pub actor: Option<String>,
    /// This action, or all on this kind of thing.
    pub action: Option<String>,
    /// Before this row in the list: its moment and its number.
    pub before: Option<(UnixMs, i64)>,
    /// What was done to keys is left out.
    pub without_keys: bool,
    /// So is what was done to keys of all namespaces.
    pub of_one: bool,
}

/// JSON as it is kept: what is too long says so instead.
fn kept(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= MOST_KEPT {
        return text;
    }
    json!({"left_out": format!("{} bytes", text.len())}).to_string()
}

impl ColdStore {
    /// Writes down what is done in this transaction, if somebody does it.
    pub(super) async fn audit(&self, tx: &mut Tx, deed: Deed<'_>) -> Result<(), Error> {
        let Ok(statement) = ACTOR.try_with(|actor| self.audit_statement(actor, &deed)) else { return Ok(()) };
        tx.execute(statement).await.map(drop)
    }

    /// Writes down what is done beside a transaction: what changes nothing of the service, or much at once.
    pub async fn note_deed(&self, deed: Deed<'_>) -> Result<(), Error> {
        let Ok(statement) = ACTOR.try_with(|actor| self.audit_statement(actor, &deed)) else { return Ok(()) };
        self.pool.write(statement).await.map(drop)
    }

    fn audit_statement(&self, actor: &Actor, deed: &Deed<'_>) -> Statement {
        let mut s = Statement::new(self.dialect(), "audit");
        let now = s.now(self.bound_now());
        let (by, action, object) = (s.text(&actor.id), s.text(deed.action), s.text(deed.object));
        let mut maybe = |text: Option<String>| text.map_or_else(|| "NULL".to_owned(), |text| s.text(&text));
        let (name, from) = (maybe(actor.name.clone()), maybe(actor.from.clone()));
        let (was, became) = (maybe(deed.was.as_ref().map(kept)), maybe(deed.became.as_ref().map(kept)));
        s.push(&format!(
            "INSERT INTO audit (namespace, at, actor, name, origin, action, object, was, became) \
             VALUES ({namespace}, {now}, {by}, {name}, {from}, {action}, {object}, {was}, {became})",
            namespace = if deed.is_of_all() { OF_ALL } else { self.namespace().0.into() },
        ));
        s
    }

    /// The audit, the latest first, at most `limit` rows.
    pub async fn audited(&self, filter: &AuditFilter, limit: usize) -> Result<Vec<AuditRow>, Error> {
        let mut s = Statement::new(self.dialect(), "audited");
        let here = self.here(&mut s);
        let mut conditions = vec![match filter.of_one {
            true => format!("namespace = {here}"),
            false => format!("namespace IN ({here}, {OF_ALL})"),
        }];
        if filter.without_keys {
            conditions.push("substr(action, 1, 4) <> 'key.'".into());
        }
        if let Some(since) = filter.since {
            conditions.push(format!("at >= {}", s.int(since.get())));
        }
        if let Some(until) = filter.until {
            conditions.push(format!("at < {}", s.int(until.get())));
        }
        if let Some(actor) = &filter.actor {
            let actor = s.text(actor);
            conditions.push(format!("(actor = {actor} OR name = {actor})"));
        }
        if let Some(action) = &filter.action {
            let (action, of_kind) = (s.text(action), s.text(&format!("{action}.")));
            conditions
                .push(format!("(action = {action} OR substr(action, 1, length({of_kind})) = {of_kind})"));
        }
        if let Some((at, id)) = filter.before {
            let (at, id) = (s.int(at.get()), s.int(id));
            conditions.push(format!("(at, id) < ({at}, {id})"));
        }
        let limit = s.int(limit.min(MAX_AUDIT_PAGE + 1) as i64);
        s.push(&format!(
            "SELECT {COLUMNS} FROM audit WHERE {} ORDER BY at DESC, id DESC LIMIT {limit}",
            conditions.join(" AND ")
        ));
        self.pool.read(s).await?.iter().map(AuditRow::read).collect()
    }
}
