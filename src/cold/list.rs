//! Lists of timers, live and ended, in due order, page by page.
//!
//! A page is one statement, so that a timer which ends meanwhile is neither missing nor twice there. Its parts:
//!
//! 1. *sources*: each reads the keys of rows in due order from one index, from the cursor on. A list by state, owner or destination
//!    has an index for it, and reads no more keys than the page has rows. What no index serves (labels, receivers, a
//!    state beside an owner) is looked at row by row, at most [`SCAN`] rows a page. Rows of other namespaces are not among
//!    them; an index by owner, or of retrying and paused ones, has theirs as well, and these are read past;
//! 2. *scan*: these keys in one order;
//! 3. *page*: those that match, with the bytes of the rows before each;
//! 4. the rows of the page, up to [`MOST_BYTES`].

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use super::columns::{AFTER, ALL, TimerColumn};
use super::destinations::{is_for, is_for_destination};
use super::row::TimerRow;
use super::sql::{Dialect, Row, Statement};
use super::{ColdStore, Error};
use crate::model::destination::lane;
use crate::model::id::{TimerId, Uid};
use crate::model::namespace::Namespace;
use crate::model::queue::{self, To};
use crate::model::target::Kind;
use crate::model::time::UnixMs;
use crate::model::timer::State;

/// The most rows that one page of a list looks at without an index for its filter. A filter that matches few of them
/// gives a short page.
const SCAN: usize = 10_000;

/// A step of an operation looks at so many rows for each timer that it may take.
const OPERATION_SCAN: usize = 20;

/// Rows beyond so many bytes are left to the next page.
const MOST_BYTES: i64 = 8 << 20;

/// About how many bytes a row has beside its payload, its target and its labels.
const ROW_BYTES: i64 = 500;

/// How far ahead of its due time, in milliseconds, a timer may be claimed, and more.
const CLAIMED_AHEAD_MS: i64 = 60_000;

/// Which timers a list contains: those that match every field given.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// One of these; any if empty.
    pub uids: Vec<Uid>,
    /// In this state.
    pub state: Option<State>,
    /// To the receiver of this lane.
    pub lanes: Option<[i64; 2]>,
    /// To this destination.
    pub destination: Option<String>,
    /// Of this owner.
    pub owner: Option<String>,
    /// Made by this schedule.
    pub schedule: Option<String>,
    /// With these labels.
    pub labels: Vec<(String, String)>,
    /// Due at this moment or after it.
    pub due_after: Option<UnixMs>,
    /// Due before this moment.
    pub due_before: Option<UnixMs>,
    /// For this queue.
    pub queue: Option<String>,
    /// For a queue, and given out to these.
    pub to: Option<To>,
    /// This worker has a place of it now.
    pub worker: Option<String>,
}

/// What else an operation demands of a live timer, beside its filter.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    /// Its state is one of these.
    pub states: &'static [State],
    /// It was registered at this moment or before it.
    pub registered_until: UnixMs,
    /// This operation has not moved it.
    pub unchanged_by: Uuid,
    /// No cancel of it is recorded.
    pub is_unasked: bool,
}

impl Taken {
    /// The condition, of columns of `timers`.
    pub fn condition(&self, s: &mut Statement) -> String {
        let states: Vec<String> = self.states.iter().map(|state| state.code().to_string()).collect();
        let (until, operation) = (s.int(self.registered_until.get()), s.uuid(self.unchanged_by));
        let unasked = if self.is_unasked { " AND NOT cancel_requested" } else { "" };
        format!(
            "state IN ({}) AND created_at <= {until} AND operation IS DISTINCT FROM {operation}{unasked}",
            states.join(", ")
        )
    }
}

/// A cursor in a list: the next page begins strictly after this due time, uid and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListCursor {
    /// Due time of the last row examined.
    pub due_at: i64,
    /// Its uid.
    pub uid: Uuid,
    /// Its generation.
    pub generation: i32,
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.due_at, self.uid.simple(), self.generation)
    }
}

/// The text is no cursor of a list.
#[derive(Debug, thiserror::Error)]
#[error("no cursor of a list")]
pub struct BadCursor;

impl FromStr for ListCursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let mut fields = text.splitn(3, '.');
        let mut next = || fields.next().ok_or(BadCursor);
        Ok(Self {
            due_at: next()?.parse().map_err(|_| BadCursor)?,
            uid: Uuid::try_parse(next()?).map_err(|_| BadCursor)?,
            generation: next()?.parse().map_err(|_| BadCursor)?,
        })
    }
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    /// In due order. May be empty although there is a next page.
    pub rows: Vec<TimerRow>,
    /// Those among them that this version cannot read: they match, and are left out.
    pub unreadable: Vec<ListCursor>,
    /// Where the next page begins; `None` after the last page.
    pub next: Option<ListCursor>,
    /// How many rows were read to find them.
    pub scanned: usize,
}

/// A table of timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Live,
    Ended,
}

impl Table {
    const fn name(self) -> &'static str {
        match self {
            Self::Live => "timers",
            Self::Ended => "history",
        }
    }

    /// The columns that `history` has beside those of `timers`.
    const fn ended_at(self) -> &'static str {
        match self {
            Self::Live => "0",
            Self::Ended => "ended_at",
        }
    }

    const fn ended(self) -> &'static str {
        match self {
            Self::Live => "CAST(NULL AS BIGINT), CAST(NULL AS TEXT)",
            Self::Ended => "t.ended_at, t.last",
        }
    }
}

/// Keys of one table, in the order of one index.
struct Source {
    table: Table,
    /// The condition that the index serves.
    of: String,
}

/// One list, for one database.
struct List<'a> {
    store: &'a ColdStore,
    filter: &'a Filter,
    /// Only live timers, and of them only these.
    taken: Option<&'a Taken>,
    /// Only timers that ended before this moment.
    ended_before: Option<UnixMs>,
    after: Option<ListCursor>,
    limit: usize,
}

impl List<'_> {
    fn has_live(&self) -> bool {
        self.ended_before.is_none() && self.filter.state.is_none_or(|state| !state.is_end())
    }

    fn has_ended(&self) -> bool {
        self.taken.is_none() && self.filter.state.is_none_or(State::is_end)
    }

    /// Whether the keys are read by owner, id or schedule, which leave fewer.
    fn is_picked_otherwise(&self) -> bool {
        self.filter.owner.is_some() || !self.filter.uids.is_empty() || self.filter.schedule.is_some()
    }

    /// Whether the keys are read by owner or id, which leave fewer than a schedule does.
    fn is_by_owner_or_id(&self) -> bool {
        self.filter.owner.is_some() || !self.filter.uids.is_empty()
    }

    /// Where the keys are read from.
    fn sources(&self, s: &mut Statement) -> Vec<Source> {
        let namespace = self.store.namespace();
        let (mut conditions, mut own) = (Vec::new(), String::new());
        if let Some(name) = self.filter.destination.as_deref().filter(|_| !self.is_picked_otherwise()) {
            conditions.push(self.store.of_destination(name, s));
        }
        if let Some(name) = self.filter.queue.as_deref().filter(|_| !self.is_picked_otherwise()) {
            // With a destination as well it is none, and matches nothing.
            conditions.push(self.store.of_queue(name, s));
            conditions = vec![conditions.join(" AND ")];
        }
        if conditions.is_empty() && !self.is_picked_otherwise() {
            conditions.extend(self.filter.worker.as_deref().map(|worker| held_by(worker, s)));
        }
        if !self.filter.uids.is_empty() {
            let uids: Vec<String> = self.filter.uids.iter().map(|uid| s.uuid(uid.0)).collect();
            conditions.push(format!("uid IN ({})", uids.join(", ")));
        }
        if let Some(id) = self.filter.schedule.as_deref().filter(|_| !self.is_by_owner_or_id()) {
            conditions.push(of_schedule(self.store.namespace(), id, s));
        }
        if let Some(owner) = &self.filter.owner {
            // Two sources, because an `OR` would have all timers of the owner sorted for each page.
            let both = self.store.of_owner(owner, s);
            conditions = match conditions.first() {
                Some(uids) => both.map(|owned| format!("{uids} AND {owned}")).to_vec(),
                None => both.to_vec(),
            };
        }
        if conditions.is_empty() && namespace != Namespace::OWN {
            // An index holds those of each of the others.
            let of = s.int(namespace.0.into());
            conditions.push(format!("namespace = {of} AND namespace IS NOT NULL"));
        } else {
            // Not looked at row by row: where a page is cut, its cursor names the last row that was looked at.
            let of = of_namespace(namespace, s);
            match conditions.is_empty() {
                true => own = format!(" AND {of}"),
                false => conditions.iter_mut().for_each(|one| *one = format!("{one} AND {of}")),
            }
        }
        let mut sources = Vec::new();
        let mut add = |table, of: &str| sources.push(Source { table, of: format!("{of}{own}") });
        if self.has_live() {
            match (self.filter.state, conditions.as_slice()) {
                // Both conditions: the partial index is found by the first.
                (Some(state @ (State::Retrying | State::Paused)), []) => {
                    add(Table::Live, &format!("state IN (2, 3) AND state = {}", state.code()));
                }
                (_, []) => add(Table::Live, "true"),
                (_, some) => some.iter().for_each(|of| add(Table::Live, of)),
            }
        }
        if self.has_ended() {
            let ends = State::ALL.into_iter().filter(|state| state.is_end());
            match conditions.as_slice() {
                [] => ends
                    .filter(|state| self.filter.state.is_none_or(|wanted| wanted == *state))
                    .for_each(|state| add(Table::Ended, &format!("state = {}", state.code()))),
                some => some.iter().for_each(|of| add(Table::Ended, of)),
            }
        }
        sources
    }

    /// How many rows are looked at, where a condition has no index. A step of an operation goes on where it ended, so it
    /// looks at few: it would read the rest again for each step.
    fn scan(&self) -> usize {
        let is_step = self.taken.is_some() || self.ended_before.is_some();
        let rows = if is_step { OPERATION_SCAN * self.limit } else { SCAN };
        rows.max(self.limit + 1)
    }

    /// The conditions on due time and position, which every index of a source serves.
    fn range(&self, s: &mut Statement) -> String {
        let mut range = String::new();
        if let Some(after) = self.after {
            let (due, uid) = (s.int(after.due_at), s.uuid(after.uid));
            let generation = s.int(i64::from(after.generation));
            range += &format!(
                " AND due_at >= {due} AND (due_at, uid) >= ({due}, {uid}) \
                 AND (due_at, uid, generation) > ({due}, {uid}, {generation})"
            );
        }
        if let Some(at) = self.filter.due_after {
            range += &format!(" AND due_at >= {}", s.int(at.get()));
        }
        if let Some(at) = self.filter.due_before {
            range += &format!(" AND due_at < {}", s.int(at.get()));
        }
        if self.filter.state == Some(State::Delivering) {
            let now = s.now(self.store.bound_now());
            range += &format!(" AND due_at <= {now} + {CLAIMED_AHEAD_MS}");
        }
        range
    }

    /// The condition that is looked at row by row; empty if the sources serve the whole filter.
    fn looked_at(&self, s: &mut Statement) -> String {
        let filter = self.filter;
        let mut conditions = Vec::new();
        if let Some(state) = filter.state {
            let served = self.store.namespace() == Namespace::OWN
                && (state.is_end() || matches!(state, State::Retrying | State::Paused))
                && filter.destination.is_none()
                && filter.queue.is_none()
                && filter.worker.is_none()
                && !self.is_picked_otherwise();
            if !served {
                conditions.push(format!("state = {}", state.code()));
            }
        }
        if let Some(name) = filter.destination.as_deref().filter(|_| self.is_picked_otherwise()) {
            conditions.push(self.store.of_destination(name, s));
        }
        if let Some(id) = filter.schedule.as_deref().filter(|_| self.is_by_owner_or_id()) {
            conditions.push(of_schedule(self.store.namespace(), id, s));
        }
        if let Some(name) = filter.queue.as_deref().filter(|_| self.is_picked_otherwise()) {
            conditions.push(self.store.of_queue(name, s));
        }
        conditions.extend(filter.to.as_ref().map(|to| given_to(to, s)));
        if let Some(worker) = &filter.worker {
            conditions.push(held_by(worker, s));
        }
        if let Some(lanes) = filter.lanes {
            conditions.push(format!("lane {}", s.among(&lanes)));
        }
        conditions.extend(self.store.of_labels(&filter.labels, s));
        conditions.extend(self.taken.map(|taken| taken.condition(s)));
        conditions.extend(self.ended_before.map(|at| format!("ended_at < {}", s.int(at.get()))));
        conditions.join(" AND ")
    }

    /// The statement, and the most keys that it looks at.
    fn statement(&self) -> (Statement, usize) {
        let dialect = self.store.dialect();
        let mut s = Statement::new(dialect, "list");
        let sources = self.sources(&mut s);
        let range = self.range(&mut s);
        let looked_at = self.looked_at(&mut s);
        let (matches, scan) = match looked_at.as_str() {
            "" => ("true".to_owned(), self.limit + 1),
            some => (format!("COALESCE({some}, false)"), self.scan()),
        };
        // Limits are written out: PostgreSQL plans for them.
        let order = "ORDER BY due_at, uid, generation";
        let each = sources.iter().map(|Source { table, of }| {
            format!(
                "SELECT * FROM (SELECT due_at, uid, generation, {ended_at} AS ended_at, {is_live} AS is_live, \
                 {matches} AS matches, {ROW_BYTES} + octet_length(target) + COALESCE(octet_length(data), 0) \
                 + COALESCE(octet_length(labels), 0) AS bytes FROM {table} WHERE {of}{range} {order} LIMIT {scan}) k",
                ended_at = table.ended_at(),
                is_live = *table == Table::Live,
                table = table.name(),
            )
        });
        let each = each.collect::<Vec<_>>().join(" UNION ALL ");
        let mut rows = Vec::new();
        for (table, is_there) in [(Table::Live, self.has_live()), (Table::Ended, self.has_ended())] {
            if !is_there {
                continue;
            }
            let columns: Vec<String> = ALL.split(", ").map(|column| format!("t.{column}")).collect();
            let is_it = dialect.keyed("t.uid", "p.uid");
            let (which, same_end) = match table {
                Table::Live => ("p.is_live", String::new()),
                Table::Ended => {
                    ("NOT p.is_live", format!(" AND {}", dialect.keyed("t.ended_at", "p.ended_at")))
                }
            };
            rows.push(format!(
                "SELECT {}, {} FROM page p JOIN {} t ON {is_it}{same_end} \
                 WHERE COALESCE(t.generation = p.generation, false) AND {which} AND p.before < {MOST_BYTES}",
                columns.join(", "),
                table.ended(),
                table.name()
            ));
        }
        s.push(&format!(
            "WITH scan AS MATERIALIZED (SELECT * FROM ({each}) sources {order} LIMIT {scan}), \
             page AS MATERIALIZED (SELECT m.*, sum(bytes) OVER ({order}) - bytes AS before FROM \
               (SELECT * FROM scan WHERE matches {order} LIMIT {limit}) m), \
             edge AS (SELECT (SELECT count(*) FROM scan) AS scanned, (SELECT count(*) FROM page) AS matched), \
             last AS (SELECT due_at AS last_due, uid AS last_uid, generation AS last_generation FROM scan \
               ORDER BY due_at DESC, uid DESC, generation DESC LIMIT 1) \
             SELECT r.*, scanned, matched, last_due, last_uid, last_generation FROM edge \
             LEFT JOIN last ON true LEFT JOIN ({rows}) r ON true {order}",
            limit = self.limit + 1,
            rows = rows.join(" UNION ALL "),
        ));
        (s, scan)
    }
}

/// The position of what tells where a page ends, behind the columns of a timer and of its end.
const EDGE: usize = AFTER + 2;

impl ColdStore {
    /// The condition that a row goes to this destination.
    pub(super) fn of_destination(&self, name: &str, s: &mut Statement) -> String {
        format!("{} AND lane = {}", is_for_destination(self.dialect()), s.int(lane(self.namespace(), name)))
    }

    /// The condition that a row is for this queue.
    pub(super) fn of_queue(&self, name: &str, s: &mut Statement) -> String {
        format!(
            "{} AND lane = {}",
            is_for(Kind::Queue, self.dialect()),
            s.int(queue::lane(self.namespace(), name))
        )
    }

    /// Two conditions: a row of this owner matches one of them. A timer without an owner is its own owner: it is found by
    /// the uid of its id.
    fn of_owner(&self, owner: &str, s: &mut Statement) -> [String; 2] {
        let own = TimerId::parse(owner).map_or(Uuid::nil(), |id| id.uid(&self.salt).0);
        let (owner, own) = (s.text(owner), s.uuid(own));
        [format!("owner = {owner}"), format!("owner IS NULL AND uid = {own}")]
    }

    /// The conditions that a row has these labels. Their names are such as labels may have
    /// ([`crate::model::timer::is_label_name`]).
    pub(super) fn of_labels(&self, labels: &[(String, String)], s: &mut Statement) -> Vec<String> {
        let has = |(name, value): &(String, String)| {
            let value = s.text(value);
            match self.dialect() {
                Dialect::Postgres => format!("(labels::json ->> {}) = {value}", s.text(name)),
                Dialect::Sqlite => {
                    let path = s.text(&format!("$.\"{name}\""));
                    format!("json_extract(labels, {path}) = {value}")
                }
            }
        };
        labels.iter().map(has).collect()
    }

    /// The conditions that a row matches a filter, for statements that look at it row by row.
    pub(super) fn conditions(&self, filter: &Filter, s: &mut Statement) -> Vec<String> {
        let Filter {
            uids,
            state,
            lanes,
            destination,
            owner,
            schedule,
            labels,
            due_after,
            due_before,
            queue,
            to,
            worker,
        } = filter;
        let mut conditions = self.of_labels(labels, s);
        conditions.push(of_namespace(self.namespace(), s));
        if !uids.is_empty() {
            let uids: Vec<String> = uids.iter().map(|uid| s.uuid(uid.0)).collect();
            conditions.push(format!("uid IN ({})", uids.join(", ")));
        }
        conditions.extend(state.map(|state| format!("state = {}", state.code())));
        conditions.extend(lanes.map(|lanes| format!("lane {}", s.among(&lanes))));
        conditions.extend(destination.as_deref().map(|name| self.of_destination(name, s)));
        conditions.extend(owner.as_deref().map(|owner| {
            let [given, own] = self.of_owner(owner, s);
            format!("({given} OR {own})")
        }));
        conditions.extend(schedule.as_deref().map(|id| of_schedule(self.namespace(), id, s)));
        conditions.extend(due_after.map(|at| format!("due_at >= {}", s.int(at.get()))));
        conditions.extend(due_before.map(|at| format!("due_at < {}", s.int(at.get()))));
        conditions.extend(queue.as_deref().map(|name| self.of_queue(name, s)));
        conditions.extend(to.as_ref().map(|to| given_to(to, s)));
        conditions.extend(worker.as_deref().map(|worker| held_by(worker, s)));
        conditions
    }

    /// One page of timers, live and ended, in due order.
    pub async fn list(
        &self,
        filter: &Filter,
        after: Option<ListCursor>,
        limit: usize,
    ) -> Result<Page, Error> {
        self.page_of(List { store: self, filter, taken: None, ended_before: None, after, limit }).await
    }

    /// One page of the live timers that an operation takes, in due order.
    pub(super) async fn list_taken(
        &self,
        filter: &Filter,
        taken: &Taken,
        after: Option<ListCursor>,
        limit: usize,
    ) -> Result<Page, Error> {
        self.page_of(List { store: self, filter, taken: Some(taken), ended_before: None, after, limit }).await
    }

    /// One page of timers that ended before this moment, in due order.
    pub(super) async fn list_ended(
        &self,
        filter: &Filter,
        before: UnixMs,
        after: Option<ListCursor>,
        limit: usize,
    ) -> Result<Page, Error> {
        self.page_of(List { store: self, filter, taken: None, ended_before: Some(before), after, limit })
            .await
    }

    async fn page_of(&self, list: List<'_>) -> Result<Page, Error> {
        let ((statement, scan), limit) = (list.statement(), list.limit);
        let rows = self.pool.read(statement).await?;
        let Some(edge) = rows.first() else {
            return Ok(Page { rows: Vec::new(), unreadable: Vec::new(), next: None, scanned: 0 });
        };
        let (scanned, matched) = (edge.get::<i64>(EDGE)?, edge.get::<i64>(EDGE + 1)?);
        let last = last_scanned(edge)?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            // There is one row without a timer if none matches.
            if let Some(uid) = row.get::<Option<Uuid>>(0)? {
                let (due_at, generation) = (row.of(TimerColumn::DueAt)?, row.of(TimerColumn::Generation)?);
                found.push((ListCursor { due_at, uid, generation }, TimerRow::read(row, true)));
            }
        }
        found.truncate(limit);
        let is_cut = i64::try_from(found.len()).unwrap_or(i64::MAX) < matched;
        let scanned = usize::try_from(scanned).unwrap_or(0);
        let is_scan_cut = scanned >= scan;
        let next = match (is_cut, is_scan_cut) {
            (true, _) => found.last().map(|(key, _)| *key),
            (false, true) => last,
            (false, false) => None,
        };
        let mut page = Page { rows: Vec::with_capacity(found.len()), unreadable: Vec::new(), next, scanned };
        for (key, row) in found {
            match row {
                Ok(row) => page.rows.push(row),
                Err(Error::Corrupt(why)) => {
                    tracing::debug!(uid = %key.uid, why, "a timer cannot be read by this version; lists leave it out");
                    page.unreadable.push(key);
                }
                Err(other) => return Err(other),
            }
        }
        Ok(page)
    }
}

/// The condition that a row is of this namespace.
pub(super) fn of_namespace(namespace: Namespace, s: &mut Statement) -> String {
    match namespace.stored() {
        None => "namespace IS NULL".to_owned(),
        Some(number) => format!("namespace = {}", s.int(number.into())),
    }
}

/// The condition that a row was made by this schedule. Partial indexes serve it, by its second part.
fn of_schedule(namespace: Namespace, id: &str, s: &mut Statement) -> String {
    format!("schedule = {} AND schedule IS NOT NULL", s.text(&namespace.qualified(id)))
}

/// The condition that a row is for a queue, and given out to these: what is stored of that begins with whom it is for.
fn given_to(to: &To, s: &mut Statement) -> String {
    let begin = format!("{{\"to\":\"{to}\",");
    let is_it = format!("substr(dispatch, 1, {}) = {}", begin.len(), s.text(&begin));
    match to {
        To::Any => format!("audience IS NOT NULL AND (dispatch IS NULL OR {is_it})"),
        _ => is_it,
    }
}

/// The condition that this worker has a place of a row now. Places are of live timers: an ended one may have the uid of one.
fn held_by(worker: &str, s: &mut Statement) -> String {
    let live = State::ALL.into_iter().filter(|state| !state.is_end()).map(|state| state.code().to_string());
    let (live, worker) = (live.collect::<Vec<_>>().join(", "), s.text(worker));
    format!("state IN ({live}) AND uid IN (SELECT uid FROM places WHERE worker = {worker} AND held = 0)")
}

fn last_scanned(row: &Row) -> Result<Option<ListCursor>, Error> {
    let Some(due_at) = row.get(EDGE + 2)? else { return Ok(None) };
    Ok(Some(ListCursor { due_at, uid: row.get(EDGE + 3)?, generation: row.get(EDGE + 4)? }))
}

pub(super) fn cursor_at(row: &TimerRow) -> ListCursor {
    ListCursor { due_at: row.life.due_at.get(), uid: row.uid.0, generation: row.life.generation.0 }
}
