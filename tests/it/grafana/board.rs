//! A dashboard as it is written.

use serde_json::Value;

use super::{Query, files, text};

/// The row of the panels that stand above all rows.
pub const TOP: &str = "Top";

/// What `$job` becomes.
pub const JOB: &str = "mainspring-test";

/// What `$__rate_interval` becomes, in seconds: a window that nobody would write by hand.
pub const RATE_INTERVAL_S: u64 = 29;

pub struct Board {
    pub name: String,
    pub text: String,
    pub json: Value,
}

pub struct Panel<'a> {
    pub row: &'a str,
    pub json: &'a Value,
}

impl Board {
    pub fn all() -> Vec<Self> {
        let read = |path: &std::path::PathBuf| {
            let text = text(path);
            let json = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
            Self { name: path.file_stem().expect("a name").to_string_lossy().into_owned(), text, json }
        };
        files("dashboards", "json").iter().map(read).collect()
    }

    /// All panels but the rows.
    pub fn panels(&self) -> Vec<Panel<'_>> {
        let mut row = TOP;
        let mut panels = Vec::new();
        for json in self.json["panels"].as_array().expect("panels") {
            if json["type"] == "row" {
                row = json["title"].as_str().expect("the title of a row");
                let folded = json["panels"].as_array().expect("panels of a row");
                panels.extend(folded.iter().map(|json| Panel { row, json }));
            } else {
                panels.push(Panel { row, json });
            }
        }
        panels
    }

    /// The expressions of panels and annotations.
    pub fn queries(&self) -> Vec<Query> {
        let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
        let panels = self.panels().into_iter().flat_map(|panel| {
            let place = panel.place();
            list(&panel.json["targets"]).into_iter().map(move |target| (place.clone(), target))
        });
        let annotations = list(&self.json["annotations"]["list"]).into_iter().map(|annotation| {
            (
                format!("annotation {}", annotation["name"].as_str().unwrap_or("")),
                annotation["target"].clone(),
            )
        });
        let of = |(place, target): (String, Value)| {
            let expr = target["expr"].as_str()?.to_owned();
            Some(Query { place: format!("{}: {place}", self.name), expr })
        };
        panels.chain(annotations).filter_map(of).collect()
    }

    /// Metric and label of each `label_values(metric, label)` that fills a variable.
    pub fn label_values(&self) -> Vec<(String, String)> {
        let variables = self.json["templating"]["list"].as_array().expect("variables");
        let of = |variable: &Value| {
            let query = variable["query"]["query"].as_str()?;
            let inner = query.strip_prefix("label_values(")?.strip_suffix(')')?;
            let (metric, label) = inner.rsplit_once(", ")?;
            Some((metric.to_owned(), label.to_owned()))
        };
        variables.iter().filter_map(of).collect()
    }
}

impl Panel<'_> {
    pub fn title(&self) -> &str {
        self.json["title"].as_str().unwrap_or_default()
    }

    pub fn description(&self) -> &str {
        self.json["description"].as_str().unwrap_or_default()
    }

    /// As the runbook writes it.
    pub fn place(&self) -> String {
        format!("{} › {}", self.row, self.title())
    }
}

/// An expression with its variables replaced, all instances chosen.
pub fn filled_in(expr: &str) -> String {
    let filled = expr
        .replace("$__rate_interval", &format!("{RATE_INTERVAL_S}s"))
        .replace("$instance", ".*")
        .replace("$destination", ".*")
        .replace("$job", JOB);
    assert!(!filled.contains('$'), "a variable that the test does not know: {expr}");
    filled
}
