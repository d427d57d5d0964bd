//! The ledger's totals: counted where it happens, in the transaction that does it.
//!
//! A total is of the whole store. Beside it stands one of each namespace but the store's own (`delivered@7`), whose part is the
//! rest. So a store without other namespaces counts what it always did.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::row::TimerRow;
use super::sql::{Column, Dialect, Row, Statement, Tx};
use super::{ColdStore, Error, TOTALS_SLOTS};
use crate::model::namespace::Namespace;
use crate::model::timer::State;

/// What one transaction adds to the totals.
#[derive(Debug, Default)]
pub(super) struct Counts(BTreeMap<(Namespace, String), i64>);

impl Counts {
    /// So many more of this, in this namespace.
    pub fn add(&mut self, namespace: Namespace, name: &str, count: i64) {
        match self.0.get_mut(&(namespace, name.to_owned())) {
            Some(sum) => *sum += count,
            None => drop(self.0.insert((namespace, name.to_owned()), count)),
        }
    }

    /// These rows, each under this name.
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a TimerRow>, name: &str) -> Self {
        let mut counts = Self::default();
        rows.into_iter().for_each(|row| counts.add(row.namespace, name, 1));
        counts
    }

    /// Whether nothing is added.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(|count| *count == 0)
    }

    /// The totals to add to, each with how much.
    fn totals(&self) -> BTreeMap<String, i64> {
        let mut totals: BTreeMap<String, i64> = BTreeMap::new();
        for ((namespace, name), count) in self.0.iter().filter(|(_, count)| **count != 0) {
            *totals.entry(name.clone()).or_default() += count;
            if *namespace != Namespace::OWN {
                *totals.entry(of(*namespace, name)).or_default() += count;
            }
        }
        totals
    }
}

/// The total of this name of a namespace other than the store's own.
fn of(namespace: Namespace, name: &str) -> String {
    format!("{name}@{}", namespace.0)
}

/// How a total is added to.
const ADDED: &str = "ON CONFLICT (name, slot) DO UPDATE SET value = totals.value + excluded.value";

/// Whose timers are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Of all namespaces together.
    All,
    /// Of one.
    One(Namespace),
}

/// The ledger: registered = delivered + cancelled + expired + dead + pending, at any moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Ledger {
    /// Timers acknowledged since the store was made. An ended id that is registered again counts again.
    pub registered: i64,
    /// Ended: a receiver accepted it.
    pub delivered: i64,
    /// Ended: its caller cancelled it.
    pub cancelled: i64,
    /// Ended: it was found overdue by more than its grace.
    pub expired: i64,
    /// Ended: out of attempts.
    pub dead: i64,
    /// Live.
    pub pending: i64,
}

impl Ledger {
    /// Whether the equation holds.
    pub const fn balanced(&self) -> bool {
        self.registered == self.delivered + self.cancelled + self.expired + self.dead + self.pending
    }

    /// From the totals alone, which do not tell what is pending: it is what else was registered.
    fn of_totals(totals: &Totals, of: Whose) -> Self {
        let ledger = Self::read(totals, of);
        let Self { registered, delivered, cancelled, expired, dead, .. } = ledger;
        Self { pending: registered - delivered - cancelled - expired - dead, ..ledger }
    }

    fn read(totals: &Totals, of: Whose) -> Self {
        let total = |name| totals.of(of, name);
        Self {
            registered: total("registered"),
            delivered: total("delivered"),
            cancelled: total("cancelled"),
            expired: total("expired"),
            dead: total("dead"),
            pending: total("pending"),
        }
    }
}

/// The ledger of one namespace, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamespaceLedger {
    /// The namespace's name.
    pub namespace: String,
    /// Its ledger.
    pub ledger: Ledger,
    /// Whether the ledger's equation holds.
    pub balanced: bool,
}

/// The result of `verify`.
#[derive(Debug, Clone, Serialize)]
pub struct Verification {
    /// The ledger.
    pub ledger: Ledger,
    /// Whether the ledger's equation holds, of all timers and of each namespace.
    pub balanced: bool,
    /// Rows in history and in the folded totals, by end. Each must equal the ledger's count.
    pub ended_rows: BTreeMap<String, i64>,
    /// Ends whose count differs from the rows, in words.
    pub mismatches: Vec<String>,
    /// Live timers, not paused, whose `wake_at` passed more than a minute ago.
    pub overdue: i64,
    /// The ledger of each namespace, where there is more than one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<NamespaceLedger>,
}

/// Totals and other counts, by name.
struct Totals(BTreeMap<String, i64>);

impl Totals {
    fn read(rows: &[Row]) -> Result<Self, Error> {
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, Error>>().map(Self)
    }

    fn of(&self, whose: Whose, name: &str) -> i64 {
        let total = |name: &str| self.0.get(name).copied().unwrap_or(0);
        match whose {
            Whose::All => total(name),
            Whose::One(Namespace::OWN) => {
                let begin = format!("{name}@");
                let of_others =
                    self.0.range(begin.clone()..).take_while(|(name, _)| name.starts_with(&begin));
                total(name) - of_others.map(|(_, count)| count).sum::<i64>()
            }
            Whose::One(namespace) => total(&of(namespace, name)),
        }
    }
}

impl ColdStore {
    /// Adds to the ledger's totals, in the transaction that does what is counted. It is the last statement
    /// before the commit, because other transactions of the same slot wait for its row.
    pub(super) async fn count(&self, tx: &mut Tx, counts: &Counts) -> Result<(), Error> {
        if counts.is_empty() {
            return Ok(());
        }
        let mut s = Statement::new(self.dialect(), "count");
        let (batch, slot) = self.counts(&mut s, counts);
        s.push(&format!(
            "WITH {batch} INSERT INTO totals (name, slot, value) SELECT c_name, {slot}, c_value FROM c WHERE true {ADDED}"
        ));
        tx.execute(s).await.map(drop)
    }

    /// The same as parts of another statement of PostgreSQL, which saves a call of the store. They are run once its rows are
    /// returned, and only if the condition holds. What follows in the transaction keeps others of the same slot waiting.
    pub(super) fn counted(&self, s: &mut Statement, counts: &Counts, condition: &str) -> String {
        let (batch, slot) = self.counts(s, counts);
        format!(
            "{batch}, counted AS (INSERT INTO totals (name, slot, value) SELECT c_name, {slot}, c_value FROM c \
             WHERE {condition} {ADDED})"
        )
    }

    /// The same for what is known only to the statement: how many rows its part `of` has, and with `others` how many of each
    /// namespace but the store's own.
    pub(super) fn counted_rows(&self, s: &mut Statement, name: &str, of: &str, others: bool) -> String {
        let slot = s.int(self.next_slot());
        let all =
            format!("SELECT '{name}' AS name, {slot} AS slot, count(*) AS n FROM {of} HAVING count(*) > 0");
        let counts = match others {
            // In the order of all that is counted ([`Counts::totals`]), so that two transactions do not deadlock.
            true => format!(
                "SELECT * FROM ({all} UNION ALL SELECT '{name}@' || namespace, {slot}, count(*) FROM {of} \
                 WHERE namespace IS NOT NULL GROUP BY namespace) each_one ORDER BY name COLLATE \"C\""
            ),
            false => all,
        };
        format!("counted AS (INSERT INTO totals (name, slot, value) {counts} {ADDED})")
    }

    fn counts(&self, s: &mut Statement, counts: &Counts) -> (String, String) {
        let (names, values) = counts.totals().into_iter().unzip();
        let columns = vec![("c_name", Column::Text(names)), ("c_value", Column::Int(values))];
        (s.batch("c", columns), s.int(self.next_slot()))
    }

    fn next_slot(&self) -> i64 {
        self.slot + self.turn.fetch_add(1, Ordering::Relaxed).rem_euclid(TOTALS_SLOTS)
    }

    /// The ledger, from the totals: its cost does not depend on the number of timers. What is pending is what was
    /// registered and has not ended; [`ColdStore::verify`] counts it.
    pub async fn ledger(&self, whose: Whose) -> Result<Ledger, Error> {
        Ok(Ledger::of_totals(&self.totals().await?, whose))
    }

    async fn totals(&self) -> Result<Totals, Error> {
        let mut s = Statement::new(self.dialect(), "ledger");
        s.push("SELECT name, CAST(sum(value) AS BIGINT) FROM totals GROUP BY name");
        Totals::read(&self.pool.read(s).await?)
    }

    /// How many live timers each of these namespaces has, by the ledger.
    pub async fn live_counts(&self, which: &[Namespace]) -> Result<Vec<i64>, Error> {
        let totals = self.totals().await?;
        Ok(which.iter().map(|one| Ledger::of_totals(&totals, Whose::One(*one)).pending).collect())
    }

    /// Compares the ledger with a count of all rows, from one snapshot. The rows are counted in indexes; no table is read.
    pub async fn verify(&self) -> Result<Verification, Error> {
        let mut s = Statement::new(self.dialect(), "verify");
        let batch = s.batch("b", vec![("b_shard", Column::Int(self.shards().map(i64::from).collect()))]);
        let now = s.now(self.bound_now());
        s.push(&format!(
            "WITH {batch}, ended AS MATERIALIZED (\
               SELECT 0 AS whose, state, count(*) AS n FROM history WHERE namespace IS NULL GROUP BY state \
               UNION ALL SELECT namespace, state, count(*) FROM history WHERE namespace IS NOT NULL GROUP BY namespace, state) \
             SELECT name, CAST(sum(value) AS BIGINT) FROM totals GROUP BY name \
             UNION ALL SELECT 'pending', count(*) FROM timers \
             UNION ALL SELECT 'rows.' || state, CAST(sum(n) AS BIGINT) FROM ended GROUP BY state \
             UNION ALL SELECT 'pending@' || namespace, count(*) FROM timers WHERE namespace IS NOT NULL GROUP BY namespace \
             UNION ALL SELECT 'rows.' || state || '@' || whose, n FROM ended WHERE whose <> 0 \
             UNION ALL SELECT 'overdue', count(*) FROM b JOIN timers ON shard = b_shard \
               AND wake_at < {now} - 60000 AND state <> 3"
        ));
        // Counting every row of a large store takes longer than `STATEMENT_TIMEOUT`.
        s.without_timeout();
        let rows = match self.dialect() {
            Dialect::Sqlite => self.pool.read(s).await?,
            Dialect::Postgres => {
                let mut tx = self.pool.begin().await?;
                let mut set = Statement::new(self.dialect(), "verify_setting");
                set.push("SET LOCAL statement_timeout = '1h'");
                tx.execute(set).await?;
                tx.fetch(s).await?
            }
        };
        let totals = Totals::read(&rows)?;
        let mut mismatches = Vec::new();
        let ended_rows = rows_by_end(&totals, Whose::All, "", &mut mismatches);
        let mut namespaces = Vec::new();
        for row in self.namespaces_ever().await? {
            let of = Whose::One(row.number);
            // For the store's own namespace the whole store was compared before.
            if row.number != Namespace::OWN {
                rows_by_end(&totals, of, &format!("{}: ", row.name), &mut mismatches);
            }
            let ledger = Ledger::read(&totals, of);
            namespaces.push(NamespaceLedger { namespace: row.name, ledger, balanced: ledger.balanced() });
        }
        let ledger = Ledger::read(&totals, Whose::All);
        let balanced = ledger.balanced() && namespaces.iter().all(|one| one.balanced);
        if namespaces.len() == 1 {
            namespaces.clear();
        }
        let overdue = totals.of(Whose::All, "overdue");
        Ok(Verification { ledger, balanced, ended_rows, mismatches, overdue, namespaces })
    }
}

/// Rows in history and in the folded totals, by end. What differs from the totals is told, after `whose`.
fn rows_by_end(
    totals: &Totals,
    of: Whose,
    whose: &str,
    mismatches: &mut Vec<String>,
) -> BTreeMap<String, i64> {
    let ends = State::ALL.into_iter().filter(|state| state.is_end());
    let each = ends.map(|state| {
        let word = state.word();
        let rows =
            totals.of(of, &format!("rows.{}", state.code())) + totals.of(of, &format!("folded.{word}"));
        let counted = totals.of(of, word);
        if rows != counted {
            let text = format!("{whose}{word}: {counted} counted, {rows} found in history and folded totals");
            mismatches.push(text);
        }
        (word.to_owned(), rows)
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_for_a_namespace_is_counted_for_the_store() {
        let mut counts = Counts::default();
        counts.add(Namespace::OWN, "registered", 3);
        counts.add(Namespace(7), "registered", 2);
        counts.add(Namespace(7), "dead", 0);
        counts.add(Namespace(7), "registered", 1);
        counts.add(Namespace(70), "registered", 10);
        let totals = Totals(counts.totals());
        assert_eq!(totals.0.len(), 3, "nothing is written of what did not happen: {:?}", totals.0);
        assert_eq!(totals.of(Whose::All, "registered"), 16);
        let of = |number| totals.of(Whose::One(Namespace(number)), "registered");
        assert_eq!([of(0), of(7), of(70), of(1)], [3, 3, 10, 0]);
    }
}
