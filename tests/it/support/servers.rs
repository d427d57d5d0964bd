//! PostgreSQL for tests: databases on the shared server, and private servers to stop and kill.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::{Arc, OnceLock};

use mainspring::clock::SystemClock;
use mainspring::cold::ColdStore;
use mainspring::config::Config;
use mainspring::tools::servers;
use tempfile::TempDir;
use tokio::sync::OnceCell;

/// A PostgreSQL of this test's own. Dropping it ends the server and removes its data.
pub struct Postgres {
    // Before `dir`: the server ends before its directory goes.
    server: servers::Postgres,
    _dir: TempDir,
}

impl Postgres {
    /// Makes a new cluster and returns when it answers.
    pub async fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("pg").tempdir().expect("a temporary directory");
        let server = servers::Postgres::start(dir.path(), None).await.expect("PostgreSQL starts");
        Self { server, _dir: dir }
    }

    /// The superuser's URL for `database`; `postgres` always exists.
    pub fn url(&self, database: &str) -> String {
        self.server.url(database)
    }

    /// Makes an empty database with a new name and returns its URL.
    pub async fn create_database(&self) -> String {
        self.server.create_database(&new_name()).await.expect("a new database")
    }

    /// From now on it speaks TLS too, with this certificate and key in PEM.
    pub async fn encrypt(&self, certificate: &str, key: &str) {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let data = self._dir.path().join("data");
        let owner = fs::metadata(&data).expect("its data");
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = data.join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("made private");
            chown(&path, Some(owner.uid()), Some(owner.gid())).expect("given away");
        }
        for sql in ["ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"] {
            run_sql(&self.url("postgres"), sql).await;
        }
    }

    /// See [`servers::Postgres::stop_fast`].
    pub async fn stop_fast(&self) {
        self.server.stop_fast().await.expect("it stops");
    }

    /// See [`servers::Postgres::kill_immediate`].
    pub async fn kill_immediate(&self) {
        self.server.kill_immediate().await.expect("it ends");
    }

    /// See [`servers::Postgres::start_again`].
    pub async fn start_again(&mut self) {
        self.server.start_again().await.expect("it starts again");
    }
}

/// Makes an empty database with a new name on the shared server and returns its URL.
pub async fn empty_database() -> String {
    make_database("").await
}

/// The same, with the tables of this version and no rows. To copy them takes a tenth of the time that making them takes,
/// which is a second.
pub async fn fresh_database() -> String {
    static MADE: OnceCell<String> = OnceCell::const_new();
    let made = MADE.get_or_init(|| async {
        let url = empty_database().await;
        let sets = [format!("cold.url={url}")];
        let config = Config::load(Some(Path::new("/dev/null")), [], &sets).expect("settings");
        let store = ColdStore::open(&config, Arc::new(SystemClock), false, false).expect("opens");
        store.migrate().await.expect("migrates");
        // PostgreSQL copies only what nobody is connected to.
        store.close().await;
        url.rsplit('/').next().expect("a name").to_owned()
    });
    make_database(&format!(" TEMPLATE {}", made.await)).await
}

async fn make_database(how: &str) -> String {
    let shared = env::var("MAINSPRING_TEST_POSTGRES")
        .expect("MAINSPRING_TEST_POSTGRES is not set: run scripts/test, which starts the servers");
    let name = new_name();
    psql(&shared, &format!("CREATE DATABASE {name}{how}")).await;
    let mut url = url::Url::parse(&shared).expect("the server's URL is a URL");
    url.set_path(&name);
    url.into()
}

fn new_name() -> String {
    format!("test_{}", uuid::Uuid::now_v7().simple())
}

/// Runs a statement on a store of either kind.
pub async fn run_sql(url: &str, sql: &str) {
    match url.strip_prefix("sqlite://") {
        None => drop(psql(url, sql).await),
        Some(path) => {
            let pool = sea_orm::sqlx::SqlitePool::connect(path).await.expect("opens");
            sea_orm::sqlx::raw_sql(sea_orm::sqlx::AssertSqlSafe(sql.to_owned()))
                .execute(&pool)
                .await
                .expect("runs");
        }
    }
}

/// Runs a query on a store of either kind and returns its first column, which must be text, a row a line.
pub async fn ask_sql(url: &str, sql: &str) -> String {
    match url.strip_prefix("sqlite://") {
        None => psql(url, sql).await,
        Some(path) => {
            let pool = sea_orm::sqlx::SqlitePool::connect(path).await.expect("opens");
            let query = sea_orm::sqlx::query_scalar(sea_orm::sqlx::AssertSqlSafe(sql.to_owned()));
            let rows: Vec<String> = query.fetch_all(&pool).await.expect("runs");
            pool.close().await;
            rows.join("\n")
        }
    }
}

/// Runs one SQL text and returns its rows, unaligned, a row a line. Panics if the server refuses it.
pub async fn psql(url: &str, sql: &str) -> String {
    let mut command = tool("psql");
    command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
    command.args(["--set=ON_ERROR_STOP=1", "--dbname", url, "--command", sql]);
    command.env("PGCONNECT_TIMEOUT", "10").stdin(Stdio::null());
    let output = run(command).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "psql refuses {sql:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// See [`servers::free_port`].
pub fn free_port() -> u16 {
    servers::free_port().expect("a port")
}

pub async fn run(mut command: Command) -> process::Output {
    let name = command.get_program().to_string_lossy().into_owned();
    tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("running a command does not panic")
        .unwrap_or_else(|error| panic!("cannot run {name} (scripts/install-needs installs it): {error}"))
}

/// One of PostgreSQL's own programs: the newest that Debian put aside, or else the one on the path.
fn tool(name: &str) -> Command {
    static BIN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let bin = BIN.get_or_init(|| {
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
        let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max()?;
        Some(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin")))
    });
    match bin.as_ref().map(|bin| bin.join(name)).filter(|path| path.exists()) {
        Some(path) => Command::new(path),
        None => Command::new(name),
    }
}
