//! The series that a node exports, from the text that it serves.

use std::collections::{BTreeMap, BTreeSet};

use promql_parser::label::MatchOp;
use promql_parser::parser::VectorSelector;

use super::promql::Named;

/// Labels that Prometheus adds to every series that it scrapes.
const ADDED: [&str; 2] = ["job", "instance"];

/// Labels whose values appear with the first call that has them.
const OPEN: [&str; 4] = ["route", "method", "status", "destination"];

/// Names of samples, with the labels of each and their values.
#[derive(Debug, Default)]
pub struct Exported(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Exported {
    /// From the Prometheus text format.
    pub fn read(text: &str) -> Self {
        let mut exported = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (sample, _) = line.rsplit_once(' ').expect("a sample has a value");
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            let series = exported.0.entry(name.to_owned()).or_default();
            let mut rest = labels.strip_suffix('}').expect("labels end");
            while let Some((label, after)) = rest.split_once("=\"") {
                // No value of ours has a quotation mark in it.
                let (value, after) = after.split_once('"').expect("a value ends");
                series.entry(label.to_owned()).or_default().insert(value.to_owned());
                rest = after.trim_start_matches(',');
            }
        }
        exported
    }

    /// The series that Prometheus makes by itself.
    pub fn with_prometheus_own(mut self) -> Self {
        self.add("up", &[]);
        self.add("ALERTS", &["alertname", "alertstate"]);
        self
    }

    /// One more series with these labels, of any value.
    pub fn add(&mut self, name: &str, labels: &[&str]) {
        let labels = labels.iter().map(|label| ((*label).to_owned(), BTreeSet::new()));
        self.0.insert(name.to_owned(), labels.collect());
    }

    /// The names of metrics: a histogram is one.
    pub fn metrics(&self) -> BTreeSet<String> {
        self.0.keys().map(|name| metric(name, |base| self.is_histogram(base)).to_owned()).collect()
    }

    /// The metric that a selector names.
    pub fn metric_of(&self, selector: &VectorSelector) -> String {
        metric(selector.name.as_deref().unwrap_or_default(), |base| self.is_histogram(base)).to_owned()
    }

    fn is_histogram(&self, base: &str) -> bool {
        self.0.contains_key(&format!("{base}_bucket"))
    }

    /// Names, labels and values in the expression that no node exports.
    pub fn unknown(&self, named: &Named) -> Vec<String> {
        let mut faults = named.faults.clone();
        let mut labels: BTreeSet<&str> = ADDED.into();
        for selector in &named.selectors {
            let name = selector.name.as_deref().unwrap_or_default();
            let Some(series) = self.0.get(name) else {
                faults.push(format!("no series {name:?}"));
                continue;
            };
            labels.extend(series.keys().map(String::as_str));
            for matcher in &selector.matchers.matchers {
                let label = matcher.name.as_str();
                if ADDED.contains(&label) {
                    continue;
                }
                let Some(values) = series.get(label) else {
                    faults.push(format!("{name} has no label {label:?}"));
                    continue;
                };
                let is_open = values.is_empty() || OPEN.contains(&label);
                if !is_open {
                    let lacking = wanted(&matcher.op, &matcher.value).into_iter();
                    let lacking = lacking.filter(|value| !values.contains(*value));
                    faults.extend(lacking.map(|value| format!("{name} has no {label}={value:?}")));
                }
            }
        }
        let lacking = named.labels.iter().filter(|label| !labels.contains(label.as_str()));
        faults.extend(lacking.map(|label| format!("none of these series has the label {label:?}")));
        faults
    }
}

/// The values that a matcher spells out: of a regular expression, its alternatives.
fn wanted<'a>(op: &MatchOp, value: &'a str) -> Vec<&'a str> {
    match op {
        MatchOp::Equal | MatchOp::NotEqual => vec![value],
        MatchOp::Re(_) | MatchOp::NotRe(_) => value.split('|').collect(),
    }
}

fn metric(sample: &str, is_histogram: impl Fn(&str) -> bool) -> &str {
    let mut bases = ["_bucket", "_sum", "_count"].iter().filter_map(|suffix| sample.strip_suffix(suffix));
    bases.find(|base| is_histogram(base)).unwrap_or(sample)
}

#[test]
fn a_series_that_is_not_exported_is_seen() {
    let text = "# HELP a A.\n# TYPE a counter\na_total{state=\"x\"} 1\na_total{state=\"y\",kind=\"z\"} 0\n\
                h_bucket{le=\"1\"} 0\nh_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\ng 1\n";
    let exported = Exported::read(text);
    assert_eq!(exported.metrics(), ["a_total", "g", "h"].map(str::to_owned).into());
    let unknown = |expr: &str| exported.unknown(&super::promql::read(expr).expect("PromQL"));
    let sound =
        "sum by (state, job) (rate(a_total{state=~\"x|y\", job=\"j\"}[1m])) / on (job) group_left (kind) g";
    assert_eq!(unknown(sound), Vec::<String>::new());
    assert_eq!(unknown("b"), ["no series \"b\""]);
    assert_eq!(unknown("h"), ["no series \"h\""], "a histogram has no sample of its own name");
    assert_eq!(unknown("a_total{stat=\"x\"}"), ["a_total has no label \"stat\""]);
    assert_eq!(unknown("a_total{state=~\"x|q\"}"), ["a_total has no state=\"q\""]);
    assert_eq!(unknown("a_total{state!=\"q\"}"), ["a_total has no state=\"q\""]);
    assert_eq!(unknown("sum by (le) (g)"), ["none of these series has the label \"le\""]);
    assert_eq!(unknown("histogram_quantile(0.9, rate(h_bucket[1m]))").len(), 1);
    assert_eq!(unknown("histogram_quantile(0.9, sum by (le) (rate(h_bucket[1m])))"), Vec::<String>::new());
}
