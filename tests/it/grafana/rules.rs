//! The rules as they are written.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::{Query, files, text};

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Rule {
    pub record: Option<String>,
    pub alert: Option<String>,
    pub expr: String,
    #[serde(rename = "for")]
    pub holds: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// A file for `promtool test rules`.
#[derive(Deserialize)]
pub struct TestFile {
    pub tests: Vec<TestGroup>,
}

#[derive(Deserialize)]
pub struct TestGroup {
    #[serde(default)]
    pub alert_rule_test: Vec<AlertTest>,
    #[serde(default)]
    pub promql_expr_test: Vec<ExprTest>,
}

#[derive(Deserialize)]
pub struct AlertTest {
    pub alertname: String,
    #[serde(default)]
    pub exp_alerts: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
pub struct ExprTest {
    pub expr: String,
}

impl Rule {
    /// Every rule of every file.
    pub fn all() -> Vec<Self> {
        let rules = |path: &std::path::PathBuf| {
            read::<RuleFile>(path).groups.into_iter().flat_map(|group| group.rules)
        };
        files("rules", "yml").iter().flat_map(rules).collect()
    }

    pub fn alerts() -> Vec<Self> {
        Self::all().into_iter().filter(|rule| rule.alert.is_some()).collect()
    }

    pub fn name(&self) -> &str {
        self.alert.as_deref().or(self.record.as_deref()).expect("a rule has a name")
    }

    pub fn query(&self) -> Query {
        Query { place: format!("rule {}", self.name()), expr: self.expr.clone() }
    }
}

pub fn tests() -> Vec<TestGroup> {
    files("rules/tests", "yml").iter().flat_map(|path| read::<TestFile>(path).tests).collect()
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    yaml_serde::from_str(&text(path)).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}
