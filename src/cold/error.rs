//! Failures of the cold store, by what the caller can do about them.

use std::path::PathBuf;
use std::sync::Arc;

use sea_orm::{DbErr, RuntimeErr, sqlx};

/// A failure of the cold store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// It cannot be reached, or the connection broke. A later call may succeed.
    #[error("the cold store cannot be reached: {0}")]
    Unavailable(Arc<sqlx::Error>),
    /// The connection broke during a commit, or during a statement that is a transaction of its own: it may or may not be
    /// committed.
    #[error("the connection to the cold store broke during a commit: {0}")]
    Ambiguous(Arc<sqlx::Error>),
    /// It answered with an error.
    #[error("the cold store refused: {0}")]
    Refused(Arc<sqlx::Error>),
    /// Its disk is full.
    #[error("the cold store's disk is full; free some space, the node then continues by itself")]
    Full,
    /// Its file cannot be written.
    #[error("the cold store cannot be written: {0}; make the file and its folder writable for this user")]
    ReadOnly(Arc<sqlx::Error>),
    /// Transactions kept blocking each other.
    #[error("the cold store is busy; try again")]
    Busy,
    /// A row that cannot be read back.
    #[error("the cold store holds a row that cannot be read: {0}")]
    Corrupt(String),
    /// `cold.url` names no store.
    #[error("`cold.url`: {0}")]
    Url(String),
    /// Another process has locked the SQLite file.
    #[error(
        "{path} is in use by another `mainspring serve`; stop that one, or give this one another file in `cold.url` \
         (several nodes share one PostgreSQL)"
    )]
    InUse {
        /// The database file.
        path: PathBuf,
    },
    /// The SQLite file, or the lock file beside it, cannot be opened.
    #[error(
        "{path} cannot be opened: {source}; `cold.url` must name a file in a folder that exists and is writable"
    )]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Arc<std::io::Error>,
    },
    /// The schema is newer than this binary.
    #[error(
        "the database was migrated by a newer mainspring (it has {unknown}); run that version, or a newer one, instead"
    )]
    Newer {
        /// The steps that this binary does not know.
        unknown: String,
    },
    /// Nodes live that cannot work with the schema of this binary.
    #[error(
        "the database is not migrated while nodes of an older version run that could not work with it: {names}; stop \
         them first (one that was killed counts as running for a minute)"
    )]
    OlderNodes {
        /// Their names.
        names: String,
    },
    /// The schema cannot be migrated.
    #[error("the database cannot be migrated: {0}")]
    Migration(String),
    /// The setting `namespace` is not the one that the store was made with.
    #[error(
        "`namespace` is {config}, but this store was made with {store}; set `namespace = \"{store}\"`, or use another store"
    )]
    Namespace {
        /// What the store was made with.
        store: String,
        /// What the settings say.
        config: String,
    },
    /// The namespace was removed.
    #[error("this namespace was removed just now")]
    NoNamespace,
    /// The setting `shards` is not the one that the store was made with.
    #[error("`shards` is {config}, but this store was made with {store}; set `shards = {store}`")]
    Shards {
        /// What the store was made with.
        store: i32,
        /// What the settings say.
        config: u16,
    },
}

impl Error {
    /// Whether the database refused a value. The same value is refused again.
    pub fn is_data(&self) -> bool {
        matches!(self, Self::NoNamespace)
            || self
                .code()
                .is_some_and(|code| code.len() == 5 && (code.starts_with("22") || code.starts_with("23")))
    }

    /// Whether the table exists already.
    pub(super) fn is_duplicate(&self) -> bool {
        self.code().is_some_and(|code| code == "42P07")
    }

    /// Whether transactions blocked each other. The same call may succeed when it is run again.
    pub(super) fn is_deadlock(&self) -> bool {
        matches!(self, Self::Busy) || self.code().is_some_and(|code| code == "40P01" || code == "40001")
    }

    /// Whether a lock was not given in time (`lock_timeout`). Nothing was changed.
    pub fn is_blocked(&self) -> bool {
        self.code().is_some_and(|code| code == "55P03")
    }

    /// Whether the database gave a statement up, because it took too long (`statement_timeout`) or somebody cancelled it.
    pub fn is_timeout(&self) -> bool {
        self.code().is_some_and(|code| code == "57014")
    }

    /// Whether the transaction may be committed although the call failed.
    pub(super) const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Ambiguous(_))
    }

    /// Whether the same call may succeed later.
    pub const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_)
                | Self::Ambiguous(_)
                | Self::Refused(_)
                | Self::Full
                | Self::ReadOnly(_)
                | Self::OlderNodes { .. }
                | Self::Busy
        )
    }

    /// The same failure, of a commit: one that broke the connection is ambiguous.
    pub(super) fn at_commit(self) -> Self {
        match self {
            Self::Unavailable(why) => Self::Ambiguous(why),
            other => other,
        }
    }

    /// The same of a statement that is a transaction of its own. What the database has refused by itself, as for its timeout,
    /// was not committed; not so when it ended the session (`08…`, `57P0…`).
    pub(super) fn at_write(self) -> Self {
        match self.code() {
            Some(code) if !code.starts_with("08") && !code.starts_with("57P0") => self,
            _ => self.at_commit(),
        }
    }

    fn code(&self) -> Option<String> {
        match self {
            Self::Refused(why) | Self::Unavailable(why) => {
                why.as_database_error().and_then(|e| e.code()).map(|code| code.into_owned())
            }
            _ => None,
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(why: sqlx::Error) -> Self {
        let code = why.as_database_error().and_then(|e| e.code()).map(|code| code.into_owned());
        let why = Arc::new(why);
        match (&*why, code.as_deref()) {
            (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_), _) => Self::Corrupt(why.to_string()),
            // PostgreSQL, five letters: connection lost, shutting down, no resources, cancelled, read-only.
            (_, Some("53100")) => Self::Full,
            // The transaction was idle for too long (`idle_in_transaction_session_timeout`), and its session
            // was ended.
            (_, Some("25P03")) => Self::Unavailable(why),
            (_, Some("25006")) => Self::ReadOnly(why),
            (_, Some(code)) if code.len() == 5 => match &code[..2] {
                "08" | "57" | "53" | "28" | "3D" => Self::Unavailable(why),
                _ => Self::Refused(why),
            },
            // SQLite, primary result code in the low byte.
            (_, Some(code)) => match code.parse::<u32>().map_or(0, |code| code & 0xff) {
                5 | 6 => Self::Busy,
                8 => Self::ReadOnly(why),
                13 => Self::Full,
                10 | 14 => Self::Unavailable(why),
                _ => Self::Refused(why),
            },
            (_, None) => Self::Unavailable(why),
        }
    }
}

impl From<DbErr> for Error {
    fn from(why: DbErr) -> Self {
        match why {
            DbErr::Conn(RuntimeErr::SqlxError(why))
            | DbErr::Exec(RuntimeErr::SqlxError(why))
            | DbErr::Query(RuntimeErr::SqlxError(why)) => match Arc::try_unwrap(why) {
                Ok(why) => Self::from(why),
                Err(shared) => Self::Refused(shared),
            },
            DbErr::ConnectionAcquire(_) => Self::Unavailable(Arc::new(sqlx::Error::PoolTimedOut)),
            other => Self::Migration(other.to_string()),
        }
    }
}
