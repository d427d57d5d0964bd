//! A timer's data, and the call that would register it again. A reader asks for them: they may hold what is private.

use std::fmt::Write;

use serde_json::json;

use crate::cold::TimerRow;
use crate::model::priority::Priority;
use crate::model::target::Target;
use crate::model::time::UnixMs;

/// In place of a secret, which is never shown.
const NO_SECRET: &str = "PUT-THE-SECRET-HERE";

/// What a reader asked for.
pub struct Content {
    /// As it was registered.
    pub data: String,
    pub curl: String,
    pub remark: String,
}

impl Content {
    /// The content of a timer. `base` is how this server is reached, `keyed` whether calls need a key.
    pub fn new(row: &TimerRow, base: &str, keyed: bool, now: UnixMs) -> Self {
        let data = String::from_utf8_lossy(&row.body()).into_owned();
        let (method, path) = if row.caller_id && !row.id.starts_with("tmr_") {
            let again = if row.life.state.is_end() { "?again=true" } else { "" };
            ("PUT", format!("/v1/timers/{}{again}", row.id))
        } else {
            ("POST", "/v1/timers".to_owned())
        };
        let mut curl = format!("curl -X {method} '{base}{path}'");
        if keyed {
            curl.push_str(" \\\n  -H \"Authorization: Bearer $MAINSPRING_KEY\"");
        }
        let _ = write!(curl, " \\\n  -d '{}'", request(row, &data).replace('\'', "'\\''"));
        Self { data, curl, remark: remark(row, now) }
    }
}

/// The request, a line for each field. The data stands in it as it was written.
fn request(row: &TimerRow, data: &str) -> String {
    let fire_at = row.spread.map_or(row.life.due_at, |spread| spread.from);
    let mut fields = vec![("fire_at", json!(fire_at).to_string())];
    if let Some(spread) = &row.spread {
        fields.push(("spread", json!(spread.within).to_string()));
    }
    if let Some(owner) = &row.owner {
        fields.push(("owner", json!(owner).to_string()));
    }
    if let Target::Destination(name) = &row.target {
        fields.push(("target", json!({"destination": name}).to_string()));
    }
    if let Target::Webhook(hook) = &row.target {
        let mut webhook = json!({"url": hook.url});
        if hook.secret.is_some() {
            webhook["secret"] = json!(NO_SECRET);
        }
        if !hook.headers.is_empty() {
            webhook["headers"] = json!(hook.headers);
        }
        fields.push(("target", json!({"webhook": webhook}).to_string()));
    }
    if row.data.is_some() {
        fields.push(("data", data.to_owned()));
    }
    if let Some(labels) = &row.labels {
        fields.push(("labels", labels.clone()));
    }
    if row.minute {
        fields.push(("precision", json!("minute").to_string()));
    }
    if row.priority != Priority::default() {
        fields.push(("priority", json!(row.priority).to_string()));
    }
    if let Some(late) = &row.policies.late {
        fields.push(("late", json!(late).to_string()));
    }
    if let Some(retry) = &row.policies.retry {
        fields.push(("retry", json!(retry).to_string()));
    }
    if let Some(merge) = &row.policies.merge {
        fields.push(("merge", json!(merge).to_string()));
    }
    let lines: Vec<String> =
        fields.into_iter().map(|(name, value)| format!("  \"{name}\": {value}")).collect();
    format!("{{\n{}\n}}", lines.join(",\n"))
}

fn remark(row: &TimerRow, now: UnixMs) -> String {
    let mut remarks = Vec::new();
    if row.life.due_at <= now {
        remarks.push("Its due time has passed: registered again as it is, it fires at once.");
    }
    match &row.target {
        Target::Webhook(hook) if hook.secret.is_some() => {
            remarks.push("Its secret is never shown; put it in yourself.");
        }
        Target::Webhook(_) | Target::Destination(_) | Target::Queue(_) => {}
        Target::Unknown { .. } => remarks.push("Its target is of a kind that this node does not know."),
    }
    if row.template.is_some() {
        remarks.push("Its data is what its template made of it, and is not checked again.");
    }
    if !row.life.state.is_end() {
        remarks.push("While it is live the same call only shows it.");
    }
    remarks.join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::id::{Epoch, TimerId};
    use crate::model::policy::Policies;
    use crate::model::spread::Spread;
    use crate::model::target::Webhook;
    use crate::model::time::Span;
    use crate::model::timer::Life;

    #[test]
    fn a_shell_reads_the_call_as_it_is_meant() {
        let id = TimerId::parse("order-1").unwrap();
        let due_at = UnixMs::parse_rfc3339("2026-12-01T01:00:00Z").unwrap();
        let headers = BTreeMap::from([("x-shop".to_owned(), "a".to_owned())]);
        let hook = Webhook::new("https://shop.example/x", Some("whsec_c2VjcmV0".into()), headers).unwrap();
        let row = TimerRow {
            uid: id.uid(&crate::model::namespace::Salt::own("default")),
            namespace: crate::model::namespace::Namespace::OWN,
            id: "order-1".into(),
            caller_id: true,
            owner: Some("it's me".into()),
            shard: 0,
            life: Life::new(due_at, UnixMs::new(0)),
            expire_at: None,
            epoch: Epoch(1),
            lane: hook.lane(crate::model::namespace::Namespace::OWN),
            minute: true,
            priority: Priority::default(),
            spread: Some(Spread { within: Span::parse("PT5M").unwrap(), from: due_at }),
            target: Target::Webhook(hook),
            data: Some(b"{\"say\":\"it's 2.50\"}".to_vec()),
            template: None,
            labels: Some("{\"app\":\"shop\"}".into()),
            policies: Policies::default(),
            request_hash: [0; 16],
            created_at: UnixMs::new(0),
            claimed_at: None,
            node: None,
            via: None,
            trace: None,
            pointed_at: None,
            merge_key: None,
            merged: None,
            seats: None,
            places: Vec::new(),
            lost: 0,
            may_be_done: false,
            left: None,
            occurrence: None,
            ended_at: None,
            last: None,
        };
        let content = Content::new(&row, "http://127.0.0.1:7600", true, UnixMs::new(0));
        assert_eq!(
            content.curl,
            "curl -X PUT 'http://127.0.0.1:7600/v1/timers/order-1' \\\n  -H \"Authorization: Bearer $MAINSPRING_KEY\" \
             \\\n  -d '{\n  \"fire_at\": \"2026-12-01T01:00:00.000Z\",\n  \"spread\": \"PT5M\",\n  \"owner\": \"it'\\''s me\",\n  \"target\": \
             {\"webhook\":{\"headers\":{\"x-shop\":\"a\"},\"secret\":\"PUT-THE-SECRET-HERE\",\"url\":\
             \"https://shop.example/x\"}},\n  \"data\": {\"say\":\"it'\\''s 2.50\"},\n  \"labels\": \
             {\"app\":\"shop\"},\n  \"precision\": \"minute\"\n}'"
        );
        assert!(!content.curl.contains("c2VjcmV0"), "no secret");
        assert!(content.remark.contains("secret"));
    }
}
