//! Two databases behind one way to write a hot statement.
//!
//! A statement is written once. What differs is rendered here: a batch of rows is a set of arrays bound to
//! `UNNEST` on PostgreSQL and a `VALUES` list on SQLite, `$n` marks any other value on both, the clock is
//! `statement_timestamp()` on PostgreSQL (stable, so an index can use it, and never ahead of the truth)
//! and a bound value on SQLite, and row locks are written only where rows can be locked.

use sea_orm::sqlx::postgres::{PgArguments, PgPool, PgRow};
use sea_orm::sqlx::query::Query as SqlxQuery;
use sea_orm::sqlx::sqlite::{SqliteArguments, SqlitePool, SqliteRow};
use sea_orm::sqlx::{self, Arguments, AssertSqlSafe, Postgres, Row as _, Sqlite, query_with};
use std::time::Duration;
use uuid::Uuid;

use super::Error;
use super::columns::TimerColumn;
use super::failpoint::{Begun, Call, Way};

/// The pools that hot statements run on; the same that sea-orm runs on.
#[derive(Clone)]
pub(super) struct Pool {
    pub to: Database,
    pub way: Way,
}

/// Which database it is, and its connections.
#[derive(Clone, Debug)]
pub(super) enum Database {
    Postgres(PgPool),
    Sqlite { writer: SqlitePool, readers: SqlitePool },
}

/// Which database a statement is rendered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Postgres,
    Sqlite,
}

impl Dialect {
    /// Locks the rows of a `SELECT` until the transaction ends; SQLite has one writer and needs none.
    pub fn lock(self, clause: &'static str) -> &'static str {
        match self {
            Self::Postgres => clause,
            Self::Sqlite => "",
        }
    }
}

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

/// A statement being written: its text and what is bound to it.
pub(super) struct Statement {
    name: &'static str,
    dialect: Dialect,
    sql: String,
    args: Args,
    bound: usize,
    /// Batches on SQLite have a text of their own for each size; caching those would only push others out.
    cached: bool,
    patient: bool,
}

impl Statement {
    /// Starts a statement; `name` is the function it belongs to and heads the text as a comment.
    pub fn new(dialect: Dialect, name: &'static str) -> Self {
        let args = match dialect {
            Dialect::Postgres => Args::Postgres(PgArguments::default()),
            Dialect::Sqlite => Args::Sqlite(SqliteArguments::default()),
        };
        Self { name, dialect, sql: format!("/* {name} */ "), args, bound: 0, cached: true, patient: false }
    }

    /// Lets it run as long as it takes: the database bounds it itself.
    pub fn patiently(&mut self) -> &mut Self {
        self.patient = true;
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

    /// Binds a number and returns the text that stands for it.
    pub fn int(&mut self, value: i64) -> String {
        let mark = self.add(value);
        self.typed(mark, "bigint")
    }

    /// Binds a text and returns the text that stands for it.
    pub fn text(&mut self, value: &str) -> String {
        let mark = self.add(value.to_owned());
        self.typed(mark, "text")
    }

    /// Binds a uuid and returns the text that stands for it.
    pub fn uuid(&mut self, value: Uuid) -> String {
        let mark = self.add(value);
        self.typed(mark, "uuid")
    }

    /// Binds numbers and returns the text that asks whether what stands before it is one of them.
    pub fn among(&mut self, values: &[i64]) -> String {
        match self.dialect {
            // A sub-select is hashed; `= ANY` would compare with one after the other.
            Dialect::Postgres => format!("IN (SELECT unnest({}::bigint[]))", self.add_array(values.to_vec())),
            Dialect::Sqlite => {
                let values: Vec<String> = values.iter().map(i64::to_string).collect();
                format!("IN (SELECT value FROM json_each({}))", self.add(format!("[{}]", values.join(","))))
            }
        }
    }

    fn typed(&self, mark: String, ty: &str) -> String {
        match self.dialect {
            Dialect::Postgres => format!("{mark}::{ty}"),
            Dialect::Sqlite => mark,
        }
    }

    /// The store's clock in milliseconds: `given` where the store has none of its own, or in tests.
    pub fn now(&mut self, given: Option<i64>) -> String {
        match self.dialect {
            Dialect::Postgres => {
                let mark = self.add(given);
                format!(
                    "COALESCE({mark}::bigint, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint)"
                )
            }
            Dialect::Sqlite => self.int(given.unwrap_or_default()),
        }
    }

    /// A batch, bound before anything else, as a common table expression, `name(column, …) AS (…)`, its rows in the order given.
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

    /// Marks without number, row by row: SQLite looks numbered ones up one by one, which for thousands of them
    /// costs more than the statement itself. They count from 1, so a batch is bound before anything else.
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
        // The limit tells SQLite how few they are. Left to itself it takes some hundreds of rows for more than
        // the table can hold, and walks through the whole table instead of looking each of them up (10 s
        // against 2 s for a burst of 20,000).
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
    /// The value of a timer's column, in a row that begins with [`super::columns::ALL`].
    pub fn of<T>(&self, column: TimerColumn) -> Result<T, Error>
    where
        T: for<'r> sqlx::Decode<'r, Postgres>
            + sqlx::Type<Postgres>
            + for<'r> sqlx::Decode<'r, Sqlite>
            + sqlx::Type<Sqlite>,
    {
        self.get(column as usize)
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

/// A database whose machine is gone leaves a connection that never answers: what took longer than the
/// database itself would allow is given up, and its connection with it.
async fn bounded<T>(patient: bool, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    if patient {
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
    to: OpenTx,
    way: Way,
    begun: Begun,
}

enum OpenTx {
    Postgres(sqlx::Transaction<'static, Postgres>),
    Sqlite(sqlx::Transaction<'static, Sqlite>),
}

impl Tx {
    /// Runs a statement and returns its rows.
    pub async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, Error> {
        let Self { to, way, .. } = self;
        way.pass(Call::Within, statement.name, to.fetch(statement)).await
    }

    /// Runs a statement and returns how many rows it touched.
    pub async fn execute(&mut self, statement: Statement) -> Result<u64, Error> {
        let Self { to, way, .. } = self;
        way.pass(Call::Within, statement.name, to.execute(statement)).await
    }

    /// Makes it durable. An error leaves open whether it was.
    pub async fn commit(self) -> Result<(), Error> {
        let Self { to, way, begun } = self;
        let commit = async {
            let _over = begun;
            to.commit().await
        };
        way.pass(Call::Commit, "commit", commit).await
    }
}

impl OpenTx {
    async fn fetch(&mut self, statement: Statement) -> Result<Vec<Row>, Error> {
        let patient = statement.patient;
        Ok(match self {
            Self::Postgres(tx) => {
                let rows = bounded(patient, postgres(statement).fetch_all(&mut **tx)).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
            Self::Sqlite(tx) => {
                let rows = bounded(patient, sqlite(statement).fetch_all(&mut **tx)).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
        })
    }

    async fn execute(&mut self, statement: Statement) -> Result<u64, Error> {
        let patient = statement.patient;
        Ok(match self {
            Self::Postgres(tx) => {
                bounded(patient, postgres(statement).execute(&mut **tx)).await?.rows_affected()
            }
            Self::Sqlite(tx) => bounded(patient, sqlite(statement).execute(&mut **tx)).await?.rows_affected(),
        })
    }

    async fn commit(self) -> Result<(), Error> {
        match self {
            Self::Postgres(tx) => bounded(false, tx.commit()).await,
            Self::Sqlite(tx) => bounded(false, tx.commit()).await,
        }
    }
}

/// SQLite's one writer says at once that it will write, so that it never has to give way halfway.
const BEGIN: &str = "BEGIN IMMEDIATE";

impl Pool {
    /// The pools, with nothing on the way to them.
    pub fn to(to: Database) -> Self {
        Self { to, way: Way::default() }
    }

    pub const fn dialect(&self) -> Dialect {
        match self.to {
            Database::Postgres(_) => Dialect::Postgres,
            Database::Sqlite { .. } => Dialect::Sqlite,
        }
    }

    /// Starts a transaction that may write.
    pub async fn begin(&self) -> Result<Tx, Error> {
        let begin = async {
            let to = self.to.begin().await?;
            Ok(Tx { to, way: self.way.clone(), begun: self.way.begun() })
        };
        self.way.pass(Call::Begin, "begin", begin).await
    }

    /// Runs a statement that only reads, on its own.
    pub async fn read(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        self.way.pass(Call::Read, statement.name, self.to.read(statement)).await
    }

    /// Runs a statement that writes, as a transaction of its own, and returns its rows.
    pub async fn write(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        self.way.pass(Call::Write, statement.name, self.to.write(statement)).await
    }
}

impl Database {
    async fn begin(&self) -> Result<OpenTx, Error> {
        Ok(match self {
            Self::Postgres(pool) => OpenTx::Postgres(bounded(false, pool.begin()).await?),
            Self::Sqlite { writer, .. } => match writer.begin_with(BEGIN).await {
                // SQLite took a transaction back by itself (its disk was full) and the pool does not know.
                Err(sqlx::Error::InvalidSavePointStatement) => {
                    writer.acquire().await?.close().await?;
                    OpenTx::Sqlite(writer.begin_with(BEGIN).await?)
                }
                begun => OpenTx::Sqlite(begun?),
            },
        })
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        let patient = statement.patient;
        Ok(match self {
            Self::Postgres(pool) => {
                let rows = bounded(patient, postgres(statement).fetch_all(pool)).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
            Self::Sqlite { readers, .. } => {
                let rows = bounded(patient, sqlite(statement).fetch_all(readers)).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
        })
    }

    async fn write(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        let patient = statement.patient;
        Ok(match self {
            Self::Postgres(pool) => {
                let rows = bounded(patient, postgres(statement).fetch_all(pool)).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
            Self::Sqlite { writer, .. } => {
                let rows = bounded(patient, sqlite(statement).fetch_all(writer)).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
        })
    }
}
