//! `migrate up|status` and `verify`: the verbs that read the database themselves, without a server.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;
use serde_json::json;

use super::config::Settings;
use super::exit::Exit;
use super::out;
use crate::clock::SystemClock;
use crate::cold::{self, Actor, ColdStore, MigrationState, Verification};
use crate::config::{ColdKind, Config};

/// `migrate …`
#[derive(Subcommand)]
pub enum Migrate {
    /// Bring the database up to this version's schema
    Up(Settings),
    /// Compare the database with this version; exit code 1 if they differ
    Status(Settings),
}

/// Opens the store for reading. A server may be running on it.
pub fn open(config: &Config) -> Result<ColdStore, cold::Error> {
    ColdStore::open(config, Arc::new(SystemClock), false, false)
}

/// Who works on the store itself, for the audit: somebody on this machine, by the name that the shell tells, or by number.
pub fn on_this_machine() -> Actor {
    let told = std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).ok();
    let name = told.filter(|name| (1..=64).contains(&name.len()));
    let name = name.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    Actor { id: "machine".into(), name: Some(name), from: None }
}

/// The SQLite file of `cold.url` if it does not exist: opening it would make it.
pub fn missing_file(config: &Config) -> Option<PathBuf> {
    let kind = config.cold_kind().ok()?;
    let path = config.cold.url.strip_prefix("sqlite://")?.split('?').next()?;
    let path = PathBuf::from(path);
    (kind == ColdKind::Sqlite && !path.exists()).then_some(path)
}

/// Runs one `migrate` verb.
pub async fn migrate(verb: &Migrate, before: &Settings, json: bool) -> anyhow::Result<Exit> {
    let (Migrate::Up(after) | Migrate::Status(after)) = verb;
    let config = before.and(after).load()?;
    match verb {
        Migrate::Up(_) => {
            let store = ColdStore::open(&config, Arc::new(SystemClock), false, true)?;
            let done = up(&store, json).await;
            store.close().await;
            done
        }
        Migrate::Status(_) => {
            if let Some(path) = missing_file(&config) {
                out::note(&format!(
                    "mainspring: {} does not exist yet; `mainspring migrate up` makes it",
                    path.display()
                ));
                return Ok(Exit::Failed);
            }
            let store = open(&config)?;
            let state = store.migration_state().await;
            store.close().await;
            let state = state?;
            let text = if json { serde_json::to_string(&state)? } else { status_text(&state) };
            out::verdict(&text, if current(&state) { Exit::Ok } else { Exit::Failed })
        }
    }
}

async fn up(store: &ColdStore, json: bool) -> anyhow::Result<Exit> {
    let before = store.migration_state().await?;
    store.migrate().await?;
    let after = store.migration_state().await?;
    let applied: Vec<&String> = after.applied.iter().filter(|step| !before.applied.contains(step)).collect();
    let text = if json {
        json!({ "applied": applied }).to_string()
    } else if applied.is_empty() {
        "up to date, nothing to do".to_owned()
    } else {
        applied.iter().map(|step| format!("applied  {step}")).collect::<Vec<_>>().join("\n")
    };
    out::verdict(&text, Exit::Ok)
}

/// Whether this binary can work with the database as it is.
pub fn current(state: &MigrationState) -> bool {
    state.pending.is_empty() && state.is_borne
}

fn status_text(state: &MigrationState) -> String {
    let lines_of =
        |word: &str, steps: &[String]| steps.iter().map(|s| format!("{word:<7}  {s}")).collect::<Vec<_>>();
    let mut lines = lines_of(
        "applied",
        &state.applied.iter().filter(|s| !state.unknown.contains(s)).cloned().collect::<Vec<_>>(),
    );
    lines.extend(lines_of("pending", &state.pending));
    lines.extend(lines_of("unknown", &state.unknown));
    lines.push(
        match (state.unknown.is_empty(), state.pending.is_empty()) {
            (false, _) if state.is_borne => {
                "the database was migrated by the next release of mainspring; this one can work with it"
            }
            (false, _) => "the database was migrated by a newer mainspring",
            (true, false) => "`mainspring migrate up` (or the next `serve`) applies what is pending",
            (true, true) => "up to date",
        }
        .to_owned(),
    );
    lines.join("\n")
}

/// Runs `verify`.
pub async fn verify(settings: &Settings, json: bool) -> anyhow::Result<Exit> {
    let config = settings.load()?;
    if let Some(path) = missing_file(&config) {
        out::note(&format!("mainspring: {} does not exist; there is nothing to verify", path.display()));
        return Ok(Exit::NotFound);
    }
    let store = open(&config)?;
    let found = store.verify().await;
    // In a database without this version's tables the statement fails. The schema is then the cause to show.
    let behind = match &found {
        Err(cold::Error::Refused(_)) => store.migration_state().await.is_ok_and(|state| !current(&state)),
        _ => false,
    };
    store.close().await;
    if behind {
        anyhow::bail!(
            "the database does not have this version's schema; `mainspring migrate status` shows more"
        );
    }
    let found = found?;
    if found.overdue > 0 {
        out::note(&overdue_text(found.overdue));
    }
    let exit = if lossless(&found) { Exit::Ok } else { Exit::Loss };
    out::verdict(&if json { serde_json::to_string(&found)? } else { verify_text(&found) }, exit)
}

/// Whether every registered timer is pending or ended, and the counts agree with the rows.
pub fn lossless(found: &Verification) -> bool {
    found.balanced && found.mismatches.is_empty()
}

/// The warning about overdue timers.
pub fn overdue_text(overdue: i64) -> String {
    format!(
        "warning: timers whose next step is overdue by more than a minute: {overdue}; is a server running on this \
         store?"
    )
}

fn verify_text(found: &Verification) -> String {
    let ledger = &found.ledger;
    let ends = [
        ("delivered", ledger.delivered),
        ("cancelled", ledger.cancelled),
        ("expired", ledger.expired),
        ("dead", ledger.dead),
    ];
    let row = |name: &str, counted: i64, rows: Option<i64>| {
        let rows = rows.map_or_else(String::new, |rows| format!("{rows:>12}"));
        format!("{name:<10}{counted:>12}{rows}")
    };
    let mut lines = vec![
        format!("{:<10}{:>12}{:>12}", "", "counted", "rows"),
        row("registered", ledger.registered, None),
    ];
    lines.extend(ends.map(|(name, counted)| row(name, counted, found.ended_rows.get(name).copied())));
    lines.push(row("pending", ledger.pending, None));
    lines.extend(found.mismatches.iter().map(|mismatch| format!("mismatch: {mismatch}")));
    let unbalanced = found.namespaces.iter().filter(|one| !one.balanced);
    lines.extend(
        unbalanced.map(|one| format!("mismatch: the ledger of namespace {} does not balance", one.namespace)),
    );
    let accounted = ends.iter().map(|(_, counted)| counted).sum::<i64>() + ledger.pending;
    lines.push(match ledger.registered - accounted {
        0 if lossless(found) => "ok: every registered timer is pending or ended exactly once".into(),
        0 => "LOSS: the ledger balances, but its counts differ from the rows".into(),
        n @ 1.. => format!("LOSS: registered, but neither pending nor ended: {n}"),
        n => format!("LOSS: pending or ended, but never registered: {}", n.unsigned_abs()),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cold::Ledger;

    fn found(registered: i64, mismatches: &[&str]) -> Verification {
        let ledger = Ledger { registered, delivered: 4, cancelled: 3, expired: 0, dead: 1, pending: 2 };
        Verification {
            ledger,
            balanced: ledger.balanced(),
            ended_rows: BTreeMap::from([("delivered".into(), 4), ("cancelled".into(), 3)]),
            mismatches: mismatches.iter().map(|&mismatch| mismatch.to_owned()).collect(),
            overdue: 0,
            namespaces: Vec::new(),
        }
    }

    #[test]
    fn a_ledger_that_balances_is_ok_and_all_else_is_a_loss() {
        for (found, last) in [
            (found(10, &[]), "ok: every registered timer is pending or ended exactly once"),
            (
                found(10, &["dead: 1 counted, 0 found"]),
                "LOSS: the ledger balances, but its counts differ from the rows",
            ),
            (found(12, &[]), "LOSS: registered, but neither pending nor ended: 2"),
            (found(9, &[]), "LOSS: pending or ended, but never registered: 1"),
        ] {
            assert_eq!(verify_text(&found).lines().last(), Some(last));
            assert_eq!(lossless(&found), last.starts_with("ok"));
        }
    }

    #[test]
    fn the_table_lines_up() {
        let text = verify_text(&found(10, &["dead: 1 counted, 0 found"]));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "               counted        rows");
        assert_eq!(lines[1], "registered          10");
        assert_eq!(lines[2], "delivered            4           4");
        assert_eq!(lines[7], "mismatch: dead: 1 counted, 0 found");
    }

    #[test]
    fn a_status_names_what_differs() {
        let steps = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let state = |pending: &[&str], unknown: &[&str]| MigrationState {
            applied: steps(&[&["m1"], unknown].concat()),
            pending: steps(pending),
            unknown: steps(unknown),
            release: None,
            is_borne: unknown.is_empty(),
        };
        assert_eq!(status_text(&state(&[], &[])), "applied  m1\nup to date");
        assert!(status_text(&state(&["m2"], &[])).contains("pending  m2"));
        assert!(status_text(&state(&[], &["m9"])).starts_with("applied  m1\nunknown  m9\n"));
    }
}
