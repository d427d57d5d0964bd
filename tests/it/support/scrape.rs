//! What a node tells of itself: its series, how its wheels stand, and who owns how many shards.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;

use super::Api;

impl Api {
    /// The sum of a series over its labels, or over those that `series` names.
    pub async fn metric(&self, series: &str) -> f64 {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, 200, "{text}");
        let text = text.as_str().expect("Prometheus text");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let of = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let (found, value) = rest.rsplit_once(' ')?;
            let whole = found.is_empty() || found.starts_with('{');
            (whole && found.contains(labels.trim_end_matches('}'))).then(|| value.parse::<f64>().ok())?
        };
        let values: Vec<f64> = text.lines().filter_map(of).collect();
        assert!(!values.is_empty(), "no series {series}");
        values.iter().sum()
    }

    /// `GET /v1/wheels`, as soon as the wheels answer.
    pub async fn wheels(&self) -> Value {
        super::eventually("the wheels are shown", Duration::from_secs(20), async || {
            let (status, wheels) = self.get("/v1/wheels").await;
            if status == 200 { Ok(wheels) } else { Err(wheels) }
        })
        .await
    }

    /// `status` of `GET /readyz`, which answers 200.
    pub async fn readiness(&self) -> String {
        let (status, ready) = self.get("/readyz").await;
        assert_eq!(status, 200, "{ready}");
        ready["status"].as_str().expect("a status").to_owned()
    }
}

/// How many pointers the wheels hold, of all levels together.
pub fn in_wheels(wheels: &Value) -> u64 {
    let levels = wheels["wheels"].as_array().expect("wheels");
    levels.iter().map(|level| level["count"].as_u64().expect("a count")).sum()
}

/// Waits until the shards are owned like this; nodes without any are left out on both sides.
pub async fn shared_as(api: &Api, wanted: &[(&str, usize)], within: Duration) {
    let owns = |(name, count): &(&str, usize)| (*count > 0).then(|| ((*name).to_owned(), *count));
    let wanted: BTreeMap<String, usize> = wanted.iter().filter_map(owns).collect();
    super::eventually(&format!("shares are {wanted:?}"), within, async || {
        let seen = api.try_send(Method::GET, "/v1/nodes", &[], None).await.map_err(|why| why.to_string())?;
        let nodes = seen.body["items"].as_array().ok_or_else(|| seen.body.to_string())?;
        let owner = |node: &Value| {
            let count = node["shards"].as_array().map_or(0, Vec::len);
            (count > 0).then(|| (node["name"].as_str().expect("a name").to_owned(), count))
        };
        let found: BTreeMap<String, usize> = nodes.iter().filter_map(owner).collect();
        if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}
