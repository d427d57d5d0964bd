//! The dashboards, rules and runbook of `grafana/` and `docs/runbook.md` against the series that nodes export, and
//! against a real Prometheus.

mod board;
mod files;
mod live;
mod promql;
mod promtool;
mod rules;
mod series;

use std::fs;
use std::path::{Path, PathBuf};

/// One expression, and where it stands.
#[derive(Clone, Debug)]
struct Query {
    /// Of a dashboard: file and panel. Of a rule: its name.
    place: String,
    /// As written, with the variables of a dashboard.
    expr: String,
}

/// The repository's folder for Grafana and Prometheus.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("grafana")
}

/// The files of a folder below [`folder`] with this ending, by name.
fn files(under: &str, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder().join(under)).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == ending));
    files.sort();
    assert!(!files.is_empty(), "no {ending} in {under}");
    files
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}
