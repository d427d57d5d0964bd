//! The SQL dialects: a hot statement is written once and rendered for PostgreSQL or SQLite.
//!
//! | | PostgreSQL | SQLite |
//! |---|---|---|
//! | a batch of rows | arrays bound to `UNNEST` | a `VALUES` list |
//! | any other value | `$n` with a cast | `$n` |
//! | the store's clock | `statement_timestamp()`: stable, so an index can use it, and never ahead of the truth | a bound value |
//! | row locks | as written | none: there is one writer |

use sea_orm::sqlx::postgres::{PgArguments, PgPool, PgRow};
use sea_orm::sqlx::query::Query as SqlxQuery;
use sea_orm::sqlx::sqlite::{SqliteArguments, SqlitePool, SqliteRow};
use sea_orm::sqlx::{self, Arguments, AssertSqlSafe, Postgres, Row as _, Sqlite, query_with};
use std::time::Duration;
use uuid::Uuid;

use super::Error;
use super::columns::TimerColumn;
use super::gate::{Gate, Rank, Turn};
use super::hook::{Call, Hook, TxMark};
use crate::metrics::Connections;

/// The pools that hot statements run on; sea-orm runs on the same ones.
#[derive(Clone)]
pub(super) struct Pool {
    pub database: Database,
    pub hook: Hook,
    /// The order in which writes come to SQLite's one writer; open on PostgreSQL, which has many.
    gate: Gate,
    /// What this pool writes is the node's own work.
    urgent: bool,
}

/// The database and its connections.
#[derive(Clone, Debug)]
pub(super) enum Database {
    Postgres(PgPool),
    Sqlite { writer: SqlitePool, readers: SqlitePool },
}

/// The database that a statement is rendered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Postgres,
    Sqlite,
}

impl Dialect {
    /// The clause that locks the rows of a `SELECT` until the transaction ends. Empty on SQLite, which has one
    /// writer.
    pub fn lock(self, clause: &'static str) -> &'static str {
        match self {
            Self::Postgres => clause,
            Self::Sqlite => "",
        }
    }

    /// The condition that a row has the key of a row of a batch. On PostgreSQL it asks for one of a list of one, so that an
    /// index is looked into for each row of the batch. For an equality a plan that is made while the table is small, and is kept
    /// when it has grown, reads all of an index instead, because it is in an order to join by. What else is asked of the row
    /// stands in `COALESCE(…, false)`, or a partial index would be read whole for that; rows are put in order by the batch; and
    /// some column is read that no index has.
    pub fn keyed(self, key: &str, of_batch: &str) -> String {
        match self {
            Self::Postgres => format!("{key} = ANY (ARRAY[{of_batch}])"),
            Self::Sqlite => format!("{key} = {of_batch}"),
        }
    }

    /// What follows `FROM b`: the rows of a table for each row of the batch, where many may be. On PostgreSQL they are looked
    /// up for one row after the other, under a lock if that is said: where an index of some rows alone had none when
    /// statistics were taken, a join would read all of it.
    pub fn each(self, table: &str, condition: &str, lock: &str) -> String {
        match self {
            Self::Postgres => {
                format!(
                    "CROSS JOIN LATERAL (SELECT * FROM {table} WHERE {condition} OFFSET 0 {lock}) {table}"
                )
            }
            Self::Sqlite => format!("CROSS JOIN {table} ON {condition}"),
        }
    }

    /// The condition that a row has one of the keys that a query finds, which is run once. For the same reason as
    /// [`keyed`](Self::keyed) they are a list on PostgreSQL.
    pub fn among(self, key: &str, keys: &str) -> String {
        match self {
            Self::Postgres => format!("{key} = ANY (ARRAY({keys}))"),
            Self::Sqlite => format!("{key} IN ({keys})"),
        }
    }
}

/// PostgreSQL's clock in microseconds. Through a float, which tells them exactly until 2106 and to one microsecond afterwards:
/// a statement asks many times for each row, and `extract` makes a numeric of it, three times as slow.
const NOW_US: &str = "(date_part('epoch', statement_timestamp()) * 1000000)::bigint";

/// One column of a batch; all columns of a batch have the same length.
pub(super) enum Column {
    Uuid(Vec<Uuid>),
    Int(Vec<i64>),
    IntOrNull(Vec<Option<i64>>),
    Bool(Vec<bool>),
    Text(Vec<String>),
    TextOrNull(Vec<Option<String>>),
    Bytes(Vec<Vec<u8>>),
    BytesOrNull(Vec<Option<Vec<u8>>>),
}

impl Column {
    fn len(&self) -> usize {
        match self {
            Self::Uuid(v) => v.len(),
            Self::Int(v) => v.len(),
            Self::IntOrNull(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Text(v) => v.len(),
            Self::TextOrNull(v) => v.len(),
            Self::Bytes(v) => v.len(),
            Self::BytesOrNull(v) => v.len(),
        }
    }

    fn cells(self) -> Box<dyn Iterator<Item = Cell>> {
        match self {
            Self::Uuid(v) => Box::new(v.into_iter().map(Cell::Uuid)),
            Self::Int(v) => Box::new(v.into_iter().map(|v| Cell::Int(Some(v)))),
            Self::IntOrNull(v) => Box::new(v.into_iter().map(Cell::Int)),
            Self::Bool(v) => Box::new(v.into_iter().map(Cell::Bool)),
            Self::Text(v) => Box::new(v.into_iter().map(|v| Cell::Text(Some(v)))),
            Self::TextOrNull(v) => Box::new(v.into_iter().map(Cell::Text)),
            Self::Bytes(v) => Box::new(v.into_iter().map(|v| Cell::Bytes(Some(v)))),
            Self::BytesOrNull(v) => Box::new(v.into_iter().map(Cell::Bytes)),
        }
    }

    const fn array_type(&self) -> &'static str {
        match self {
            Self::Uuid(_) => "uuid[]",
            Self::Int(_) | Self::IntOrNull(_) => "bigint[]",
            Self::Bool(_) => "boolean[]",
            Self::Text(_) | Self::TextOrNull(_) => "text[]",
            Self::Bytes(_) | Self::BytesOrNull(_) => "bytea[]",
        }
    }
}

enum Args {
    Postgres(PgArguments),
    Sqlite(SqliteArguments),
}

/// A statement under construction: its text and its bound values.
pub(super) struct Statement {
    name: &'static str,
    dialect: Dialect,
    sql: String,
    args: Args,
    bound: usize,
    /// Whether the prepared statement is cached. On SQLite a batch has a different text for each size; caching
    /// those would evict the others.
    cached: bool,
    unbounded: bool,
}

impl Statement {
    /// Starts a statement. `name` is the function that runs it; the text begins with it, as a comment.
    pub fn new(dialect: Dialect, name: &'static str) -> Self {
        let args = match dialect {
            Dialect::Postgres => Args::Postgres(PgArguments::default()),
            Dialect::Sqlite => Args::Sqlite(SqliteArguments::default()),
        };
        Self { name, dialect, sql: format!("/* {name} */ "), args, bound: 0, cached: true, unbounded: false }
    }

    /// Switches this process's own timeout off: the statement runs under a timeout that the database enforces.
    pub fn without_timeout(&mut self) -> &mut Self {
        self.unbounded = true;
        self
    }

    /// Adds text.
    pub fn push(&mut self, sql: &str) -> &mut Self {
        self.sql.push_str(sql);
        self
    }

    fn add<'q, T>(&mut self, value: T) -> String
    where
        T: 'q
            + sqlx::Encode<'q, Postgres>
            + sqlx::Type<Postgres>
            + sqlx::Encode<'q, Sqlite>
            + sqlx::Type<Sqlite>,
    {
        self.bound += 1;
        // Encoding fails only for values over 2 GiB, which no bounded field reaches.
        let _ = match &mut self.args {
            Args::Postgres(args) => args.add(value),
            Args::Sqlite(args) => args.add(value),
        };
        format!("${}", self.bound)
    }

    fn add_array<T>(&mut self, values: Vec<T>) -> String
    where
        Vec<T>: for<'q> sqlx::Encode<'q, Postgres> + sqlx::Type<Postgres>,
    {
        self.bound += 1;
        if let Args::Postgres(args) = &mut self.args {
            let _ = args.add(values);
        }
        format!("${}", self.bound)
    }

    /// Binds a number; returns its placeholder.
    pub fn int(&mut self, value: i64) -> String {
        let mark = self.add(value);
        self.typed(mark, "bigint")
    }

    /// Binds a text; returns its placeholder.
    pub fn text(&mut self, value: &str) -> String {
        let mark = self.add(value.to_owned());
        self.typed(mark, "text")
    }

    /// Binds bytes, or nothing; returns the placeholder.
    pub fn bytes(&mut self, value: Option<&[u8]>) -> String {
        let mark = self.add(value.map(<[u8]>::to_vec));
        self.typed(mark, "bytea")
    }

    /// Binds a uuid; returns its placeholder.
    pub fn uuid(&mut self, value: Uuid) -> String {
        let mark = self.add(value);
        self.typed(mark, "uuid")
    }

    /// Binds numbers; returns an `IN` condition: the expression before it is one of them.
    pub fn among(&mut self, values: &[i64]) -> String {
        match self.dialect {
            // A sub-select is hashed; `= ANY` compares with each number in turn.
            Dialect::Postgres => format!("IN (SELECT unnest({}::bigint[]))", self.add_array(values.to_vec())),
            Dialect::Sqlite => {
                let values: Vec<String> = values.iter().map(i64::to_string).collect();
                format!("IN (SELECT value FROM json_each({}))", self.add(format!("[{}]", values.join(","))))
            }
        }
    }

    /// The same for texts.
    pub fn among_texts(&mut self, values: &[String]) -> String {
        match self.dialect {
            Dialect::Postgres => format!("IN (SELECT unnest({}::text[]))", self.add_array(values.to_vec())),
            Dialect::Sqlite => {
                let values = serde_json::Value::from(values).to_string();
                format!("IN (SELECT value FROM json_each({}))", self.add(values))
            }
        }
    }

    /// Binds uuids; returns the condition that this column is none of them.
    pub fn none_of(&mut self, column: &str, values: Vec<Uuid>) -> String {
        match self.dialect {
            Dialect::Postgres => {
                format!("{column} NOT IN (SELECT unnest({}::uuid[]))", self.add_array(values))
            }
            // Its JSON has no bytes.
            Dialect::Sqlite => {
                let values = values.iter().map(|value| format!("\"{:X}\"", value.simple()));
                let values = format!("[{}]", values.collect::<Vec<_>>().join(","));
                format!("hex({column}) NOT IN (SELECT value FROM json_each({}))", self.add(values))
            }
        }
    }

    fn typed(&self, mark: String, ty: &str) -> String {
        match self.dialect {
            Dialect::Postgres => format!("{mark}::{ty}"),
            Dialect::Sqlite => mark,
        }
    }

    /// The store's clock in milliseconds; `bound` replaces the database's own clock where it is given.
    pub fn now(&mut self, bound: Option<i64>) -> String {
        match self.dialect {
            Dialect::Postgres => {
                let mark = self.add(bound);
                format!("COALESCE({mark}::bigint, {NOW_US} / 1000)")
            }
            Dialect::Sqlite => self.int(bound.unwrap_or_default()),
        }
    }

    /// The same in microseconds.
    pub fn now_us(&mut self, bound: Option<i64>) -> String {
        match self.dialect {
            Dialect::Postgres => {
                let mark = self.add(bound);
                format!("COALESCE({mark}::bigint * 1000, {NOW_US})")
            }
            Dialect::Sqlite => self.int(bound.unwrap_or_default() * 1000),
        }
    }

    /// Binds a batch; returns it as a common table expression, `name(column, …) AS (…)`, with its rows in the
    /// order given. On SQLite one batch is bound, before any other value.
    pub fn batch(&mut self, name: &str, columns: Vec<(&'static str, Column)>) -> String {
        let names = columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let rows = columns.first().map_or(0, |(_, column)| column.len());
        debug_assert!(columns.iter().all(|(_, column)| column.len() == rows), "columns of one length");
        let body = match self.dialect {
            Dialect::Postgres => {
                let marks: Vec<_> = columns.into_iter().map(|(_, column)| self.array(column)).collect();
                format!("SELECT * FROM UNNEST({})", marks.join(", "))
            }
            Dialect::Sqlite => {
                self.cached = self.cached && rows <= 1;
                self.values(columns, rows)
            }
        };
        format!("{name}({names}) AS ({body})")
    }

    fn array(&mut self, column: Column) -> String {
        let ty = column.array_type();
        let mark = match column {
            Column::Uuid(v) => self.add_array(v),
            Column::Int(v) => self.add_array(v),
            Column::IntOrNull(v) => self.add_array(v),
            Column::Bool(v) => self.add_array(v),
            Column::Text(v) => self.add_array(v),
            Column::TextOrNull(v) => self.add_array(v),
            Column::Bytes(v) => self.add_array(v),
            Column::BytesOrNull(v) => self.add_array(v),
        };
        format!("{mark}::{ty}")
    }

    /// Placeholders without numbers, row by row. SQLite looks numbered placeholders up one by one, which for
    /// thousands of them costs more than the statement itself. Those without numbers count from 1, so a batch
    /// is bound before any other value.
    fn values(&mut self, columns: Vec<(&'static str, Column)>, rows: usize) -> String {
        debug_assert_eq!(self.bound, 0, "the batch is bound first");
        let width = columns.len();
        if rows == 0 {
            return format!("SELECT {} WHERE false", vec!["NULL"; width].join(", "));
        }
        let mut columns: Vec<_> = columns.into_iter().map(|(_, column)| column.cells()).collect();
        for _ in 0..rows {
            for cell in columns.iter_mut().filter_map(Iterator::next) {
                match cell {
                    Cell::Uuid(v) => self.add(v),
                    Cell::Int(v) => self.add(v),
                    Cell::Bool(v) => self.add(v),
                    Cell::Text(v) => self.add(v),
                    Cell::Bytes(v) => self.add(v),
                };
            }
        }
        let row = format!("({})", vec!["?"; width].join(","));
        // The limit gives SQLite's planner the number of rows. Without it the planner expects more rows than
        // the table has, and scans the whole table instead of looking each row up by its key (a burst of
        // 20,000: 10 s against 2 s).
        format!("SELECT * FROM (VALUES {}) LIMIT {rows}", vec![row.as_str(); rows].join(","))
    }
}

/// One value of a batch.
enum Cell {
    Uuid(Uuid),
    Int(Option<i64>),
    Bool(bool),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

/// One row of an answer.
pub(super) enum Row {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

impl Row {
    /// The value of a timer's column. The row must begin with the columns of [`super::columns::ALL`].
    pub fn of<T>(&self, column: TimerColumn) -> Result<T, Error>
    where
        T: for<'r> sqlx::Decode<'r, Postgres>
            + sqlx::Type<Postgres>
            + for<'r> sqlx::Decode<'r, Sqlite>
            + sqlx::Type<Sqlite>,
    {
        self.get(column as usize)
    }

    /// The value of the column at `from_end`, counted back from the last, which is 1.
    pub fn get_back<T>(&self, from_end: usize) -> Result<T, Error>
    where
        T: for<'r> sqlx::Decode<'r, Postgres>
            + sqlx::Type<Postgres>
            + for<'r> sqlx::Decode<'r, Sqlite>
            + sqlx::Type<Sqlite>,
    {
        let columns = match self {
            Self::Postgres(row) => sqlx::Row::len(row),
            Self::Sqlite(row) => sqlx::Row::len(row),
        };
        self.get(columns - from_end)
    }

    /// The value of the column at `index`.
    pub fn get<T>(&self, index: usize) -> Result<T, Error>
    where
        T: for<'r> sqlx::Decode<'r, Postgres>
            + sqlx::Type<Postgres>
            + for<'r> sqlx::Decode<'r, Sqlite>
            + sqlx::Type<Sqlite>,
    {
        match self {
            Self::Postgres(row) => row.try_get(index),
            Self::Sqlite(row) => row.try_get(index),
        }
        .map_err(Error::from)
    }
}

/// Bounds a call in time. A database whose machine has failed leaves connections that never answer, so a call
/// that takes longer than the database itself would allow fails, and its connection is closed.
async fn bounded<T>(unbounded: bool, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    if unbounded {
        return Ok(work.await?);
    }
    match tokio::time::timeout(super::STATEMENT_TIMEOUT + Duration::from_secs(5), work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(sqlx::Error::PoolTimedOut.into()),
    }
}

fn postgres(statement: Statement) -> SqlxQuery<'static, Postgres, PgArguments> {
    let Args::Postgres(args) = statement.args else { unreachable!("rendered for PostgreSQL") };
    query_with(AssertSqlSafe(statement.sql), args)
}

fn sqlite(statement: Statement) -> SqlxQuery<'static, Sqlite, SqliteArguments> {
    let Args::Sqlite(args) = statement.args else { unreachable!("rendered for SQLite") };
    query_with(AssertSqlSafe(statement.sql), args).persistent(statement.cached)
}

/// A transaction.
pub(super) struct Tx {
    open: OpenTx,
    hook: Hook,
    mark: TxMark,
    /// Given back after the transaction has ended.
    turn: Option<Turn>,
}

enum OpenTx {
    Postgres(sqlx::Transaction<'static, Postgres>),
    Sqlite(sqlx::Transaction<'static, Sqlite>),
}

impl Tx {
    /// Runs a statement and returns its rows.
    pub async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, Error> {
        let Self { open, hook, .. } = self;
        hook.run(Call::Within, statement.name, open.fetch(statement)).await
    }

    /// Runs a statement and returns the number of rows it affected.
    pub async fn execute(&mut self, statement: Statement) -> Result<u64, Error> {
        let Self { open, hook, .. } = self;
        hook.run(Call::Within, statement.name, open.execute(statement)).await
    }

    /// Commits. After an error it is unknown whether the transaction was committed.
    pub async fn commit(self) -> Result<(), Error> {
        let Self { open, hook, mark, turn } = self;
        let commit = async {
            let _ended = mark;
            let _turn = turn;
            open.commit().await
        };
        hook.run(Call::Commit, "commit", commit).await
    }
}

impl OpenTx {
    async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, Error> {
        let unbounded = statement.unbounded;
        Ok(match self {
            Self::Postgres(tx) => {
                let rows = bounded(unbounded, postgres(statement).fetch_all(&mut **tx)).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
            Self::Sqlite(tx) => {
                let rows = bounded(unbounded, sqlite(statement).fetch_all(&mut **tx)).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
        })
    }

    async fn execute(&mut self, statement: Statement) -> Result<u64, Error> {
        let unbounded = statement.unbounded;
        Ok(match self {
            Self::Postgres(tx) => {
                bounded(unbounded, postgres(statement).execute(&mut **tx)).await?.rows_affected()
            }
            Self::Sqlite(tx) => {
                bounded(unbounded, sqlite(statement).execute(&mut **tx)).await?.rows_affected()
            }
        })
    }

    async fn commit(self) -> Result<(), Error> {
        match self {
            Self::Postgres(tx) => bounded(false, tx.commit()).await,
            Self::Sqlite(tx) => bounded(false, tx.commit()).await,
        }
    }
}

/// SQLite's one writer takes the write lock at the beginning, so that the transaction cannot fail for it later.
const BEGIN: &str = "BEGIN IMMEDIATE";

/// How long a write waits for SQLite's writer.
const WRITER_WAIT: Duration = Duration::from_secs(10);

impl Pool {
    /// The pools, without a fail point.
    pub fn new(database: Database) -> Self {
        Self { database, hook: Hook::default(), gate: Gate::default(), urgent: false }
    }

    /// The same connections, for the node's own work: its writes go before those of callers.
    pub fn urgently(&self) -> Self {
        Self { urgent: true, ..self.clone() }
    }

    /// Waits for SQLite's writer: single statements of the node's own work first (claims, leases of shards, watermarks), then
    /// its transactions (ends and other results) and what workers wait for, then callers' writes and the rest.
    async fn turn(&self, rank: Rank) -> Result<Option<Turn>, Error> {
        if self.dialect() == Dialect::Postgres {
            return Ok(None);
        }
        match tokio::time::timeout(WRITER_WAIT, self.gate.turn(rank)).await {
            Ok(turn) => Ok(Some(turn)),
            Err(_) => Err(sqlx::Error::PoolTimedOut.into()),
        }
    }

    pub const fn dialect(&self) -> Dialect {
        match self.database {
            Database::Postgres(_) => Dialect::Postgres,
            Database::Sqlite { .. } => Dialect::Sqlite,
        }
    }

    /// The connections of this pool; of SQLite's, the writer and the readers together.
    pub fn connections(&self) -> Connections {
        let of = |size: u32, idle: usize, max: u32| Connections::new(size as usize, idle, max as usize);
        match &self.database {
            Database::Postgres(pool) => {
                of(pool.size(), pool.num_idle(), pool.options().get_max_connections())
            }
            Database::Sqlite { writer, readers } => of(
                writer.size() + readers.size(),
                writer.num_idle() + readers.num_idle(),
                writer.options().get_max_connections() + readers.options().get_max_connections(),
            ),
        }
    }

    /// Begins a transaction that may write.
    pub async fn begin(&self) -> Result<Tx, Error> {
        self.begin_at(if self.urgent { Rank::Second } else { Rank::Third }).await
    }

    /// The same, for what is waited for at its due time: on SQLite it does not stand behind what callers write.
    pub async fn begin_soon(&self) -> Result<Tx, Error> {
        self.begin_at(Rank::Second).await
    }

    async fn begin_at(&self, rank: Rank) -> Result<Tx, Error> {
        let begin = async {
            let turn = self.turn(rank).await?;
            let open = self.database.begin().await?;
            Ok(Tx { open, hook: self.hook.clone(), mark: self.hook.begin(), turn })
        };
        self.hook.run(Call::Begin, "begin", begin).await
    }

    /// Runs a statement that only reads, outside any transaction.
    pub async fn read(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        self.hook.run(Call::Read, statement.name, self.database.read(statement)).await
    }

    /// Runs a statement that writes, as a transaction of its own, and returns its rows.
    pub async fn write(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        let name = statement.name;
        let write = async {
            let _turn = self.turn(if self.urgent { Rank::First } else { Rank::Third }).await?;
            self.database.write(statement).await
        };
        self.hook.run(Call::Write, name, write).await
    }

    /// The same, for what must not be written twice: where PostgreSQL's connection breaks after the statement was sent, the
    /// error is [`Error::Ambiguous`].
    pub async fn write_once(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        let Database::Postgres(pool) = &self.database else { return self.write(statement).await };
        let (name, unbounded) = (statement.name, statement.unbounded);
        let write = async {
            let mut connection = bounded(false, pool.acquire()).await?;
            let written = bounded(unbounded, postgres(statement).fetch_all(&mut *connection)).await;
            Ok(written.map_err(Error::at_write)?.into_iter().map(Row::Postgres).collect())
        };
        self.hook.run(Call::Write, name, write).await
    }
}

impl Database {
    async fn begin(&self) -> Result<OpenTx, Error> {
        Ok(match self {
            Self::Postgres(pool) => OpenTx::Postgres(bounded(false, pool.begin()).await?),
            Self::Sqlite { writer, .. } => match writer.begin_with(BEGIN).await {
                // SQLite rolled a transaction back by itself (its disk was full), which the pool does not know.
                Err(sqlx::Error::InvalidSavePointStatement) => {
                    writer.acquire().await?.close().await?;
                    OpenTx::Sqlite(writer.begin_with(BEGIN).await?)
                }
                begun => OpenTx::Sqlite(begun?),
            },
        })
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        let unbounded = statement.unbounded;
        Ok(match self {
            Self::Postgres(pool) => {
                let rows = bounded(unbounded, postgres(statement).fetch_all(pool)).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
            Self::Sqlite { readers, .. } => {
                let rows = bounded(unbounded, sqlite(statement).fetch_all(readers)).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
        })
    }

    async fn write(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        let unbounded = statement.unbounded;
        Ok(match self {
            Self::Postgres(pool) => {
                let rows = bounded(unbounded, postgres(statement).fetch_all(pool)).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
            Self::Sqlite { writer, .. } => {
                let rows = bounded(unbounded, sqlite(statement).fetch_all(writer)).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use sea_orm::sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

    use super::*;

    fn said(who: &str) -> Statement {
        let mut s = Statement::new(Dialect::Sqlite, "say");
        let who = s.text(who);
        s.push(&format!("INSERT INTO said (who) VALUES ({who})"));
        s
    }

    #[tokio::test]
    async fn on_sqlite_claims_go_before_ends_and_what_workers_wait_for_and_those_before_registrations() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = SqliteConnectOptions::new().filename(dir.path().join("db")).create_if_missing(true);
        let writer = SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options);
        let pool = Pool::new(Database::Sqlite { readers: writer.clone(), writer });
        let urgent = pool.urgently();
        let mut make = Statement::new(Dialect::Sqlite, "make");
        make.push("CREATE TABLE said (who TEXT)");
        pool.write(make).await.expect("a table");

        let in_one = async |pool: &Pool, who: &str| {
            let begun = if who == "lease" { pool.begin_soon().await } else { pool.begin().await };
            let mut tx = begun.expect("begins");
            tx.execute(said(who)).await.expect("writes");
            tx.commit().await.expect("commits");
        };
        let mut held = pool.begin().await.expect("begins");
        held.execute(said("first")).await.expect("writes");
        let mut registration = in_one(&pool, "registration").boxed_local();
        let mut lease = in_one(&pool, "lease").boxed_local();
        let mut end = in_one(&urgent, "end").boxed_local();
        let mut claim = urgent.write(said("claim")).boxed_local();
        // In this order they begin to wait.
        assert!((&mut registration).now_or_never().is_none());
        assert!((&mut lease).now_or_never().is_none());
        assert!((&mut end).now_or_never().is_none());
        assert!((&mut claim).now_or_never().is_none());
        held.commit().await.expect("commits");
        let (_, _, _, claimed) = tokio::join!(registration, lease, end, claim);
        claimed.expect("writes");

        let mut order = Statement::new(Dialect::Sqlite, "order");
        order.push("SELECT who FROM said ORDER BY rowid");
        let rows = pool.read(order).await.expect("reads");
        let order: Vec<String> = rows.iter().map(|row| row.get(0).expect("a text")).collect();
        assert_eq!(order, ["first", "claim", "lease", "end", "registration"]);
    }
}
