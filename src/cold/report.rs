//! The nodes' reports: what each last told of itself, so that any node can show all of them.
//!
//! A report is text that this room does not read. It is worth nothing to the promises: it may be old, or missing.

use super::sql::Statement;
use super::{ColdStore, Error};
use crate::model::time::UnixMs;

/// What a node told of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The node's name.
    pub name: String,
    /// When it was written.
    pub at: UnixMs,
    /// The report.
    pub text: String,
}

impl ColdStore {
    /// Stores a node's report, in place of its last one.
    pub async fn put_report(&self, name: &str, text: &str) -> Result<(), Error> {
        let mut s = Statement::new(self.dialect(), "put_report");
        let now = s.now(self.bound_now());
        let (name, text) = (s.text(name), s.text(text));
        s.push(&format!(
            "INSERT INTO node_reports (name, at, report) VALUES ({name}, {now}, {text}) \
             ON CONFLICT (name) DO UPDATE SET at = excluded.at, report = excluded.report"
        ));
        self.pool.write(s).await.map(drop)
    }

    /// The reports that were written since a moment, by name.
    pub async fn reports(&self, since: UnixMs) -> Result<Vec<NodeReport>, Error> {
        let mut s = Statement::new(self.dialect(), "reports");
        let since = s.int(since.get());
        s.push(&format!("SELECT name, at, report FROM node_reports WHERE at >= {since} ORDER BY name"));
        let read = |row: &super::sql::Row| {
            Ok(NodeReport { name: row.get(0)?, at: UnixMs::new(row.get(1)?), text: row.get(2)? })
        };
        self.pool.read(s).await?.iter().map(read).collect()
    }
}
