//! `/v1/audit`: who did what to the service.

use axum::Json;
use axum::extract::{Extension, RawQuery};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Within;
use super::auth::Caller;
use super::problem::{ApiResult, FieldError, Problem};
use super::schema;
use crate::cold::{AuditFilter, AuditRow, MAX_AUDIT_PAGE};
use crate::model::key::Scope;
use crate::model::time::UnixMs;

/// How many entries a page has unless it is asked for another number.
const DEFAULT_PAGE: usize = 100;

/// About the most bytes of a page.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// One entry.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AuditEntry {
    #[schema(value_type = schema::Moment)]
    at: UnixMs,
    /// The id of the key; `anybody` on a server without keys, `machine` by the command line on the store itself.
    actor: String,
    /// What the key was called, or who was logged in on the machine.
    #[schema(required)]
    name: Option<String>,
    /// The address that the call came from; `null` on the machine itself.
    #[schema(required)]
    from: Option<String>,
    /// The kind of the thing and the verb.
    #[schema(value_type = schema::AuditAction)]
    action: String,
    /// Which one.
    object: String,
    /// What it was, without secrets and payloads; over 16 KiB `{"left_out": "N bytes"}` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    before: Option<Box<RawValue>>,
    /// What it became, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    after: Option<Box<RawValue>>,
}

/// A page of the audit.
#[derive(Serialize, utoipa::ToSchema)]
pub struct AuditAnswer {
    items: Vec<AuditEntry>,
    /// The `cursor` of the next page; `null` if this is the last one.
    #[schema(required)]
    next: Option<String>,
}

/// Which entries.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query in the OpenAPI document")]
pub struct AuditQuery {
    /// Done at this moment or later.
    #[param(value_type = Option<schema::Instant>)]
    since: Option<String>,
    /// Done before this moment.
    #[param(value_type = Option<schema::Instant>)]
    until: Option<String>,
    /// By this key: its id or its name.
    actor: Option<String>,
    /// This action, `destination.put`, or all on this kind of thing, `destination`.
    #[param(value_type = Option<schema::AuditAction>)]
    action: Option<String>,
    /// The most entries of this page.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// Who did what, the latest first: every change of keys, destinations, queues, schedules, templates, subscriptions and
/// operations, and what was done on the page. What was done to keys is shown to `admin`. What programs do to timers is in `explain`. Kept for `audit.retention`.
#[utoipa::path(get, path = "/v1/audit", tag = "service", operation_id = "audit", params(AuditQuery),
    responses((status = 200, body = AuditAnswer)))]
pub async fn audit(
    Within(state): Within,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> ApiResult {
    let store = &state.service()?.store;
    let (filter, limit) = read(query.as_deref().unwrap_or_default()).map_err(Problem::invalid)?;
    let filter =
        AuditFilter { without_keys: caller.scope < Scope::Admin, of_one: !caller.is_of_all(), ..filter };
    let mut rows = store.audited(&filter, limit + 1).await?;
    let found = rows.len();
    let mut bytes = 0;
    let fits = rows.iter().take_while(|row| {
        bytes += row.size();
        bytes <= MAX_BYTES
    });
    let fits = fits.count().clamp(1, limit);
    rows.truncate(fits);
    let is_last = rows.len() == found;
    let next = rows.last().filter(|_| !is_last).map(|row| cursor(row.at, row.id));
    Ok(Json(AuditAnswer { items: rows.into_iter().map(entry).collect(), next }).into_response())
}

fn entry(row: AuditRow) -> AuditEntry {
    let json = |text: String| RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned());
    AuditEntry {
        at: row.at,
        actor: row.actor.id,
        name: row.actor.name,
        from: row.actor.from,
        action: row.action,
        object: row.object,
        before: row.was.map(json),
        after: row.became.map(json),
    }
}

fn read(query: &str) -> Result<(AuditFilter, usize), Vec<FieldError>> {
    let (mut filter, mut limit, mut errors) = (AuditFilter::default(), DEFAULT_PAGE, Vec::new());
    let mut seen = std::collections::BTreeSet::new();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let mut wrong = |code, detail: String| errors.push(FieldError::new(format!("?{name}"), code, detail));
        if !seen.insert(name.to_string()) {
            wrong("repeated", "it stands there more than once".into());
            continue;
        }
        match &*name {
            "since" | "until" => match UnixMs::parse_rfc3339(&value) {
                Ok(at) if name == "since" => filter.since = Some(at),
                Ok(at) => filter.until = Some(at),
                Err(why) => wrong("bad_time", why.to_string()),
            },
            "actor" if value.is_empty() || value.len() > 128 => {
                wrong("bad_actor", "the id or the name of a key".into());
            }
            "actor" => filter.actor = Some(value.replace('\0', "\u{fffd}")),
            "action" if !is_action(&value) => {
                wrong("bad_action", "such as `destination.put`, or `destination` for all on them".into());
            }
            "action" => filter.action = Some(value.into_owned()),
            "limit" => match value.parse() {
                Ok(n @ 1..=MAX_AUDIT_PAGE) => limit = n,
                _ => wrong("bad_limit", format!("from 1 to {MAX_AUDIT_PAGE}")),
            },
            "cursor" => match read_cursor(&value) {
                Some(before) => filter.before = Some(before),
                None => wrong("bad_cursor", "give `next` of the page before, unchanged".into()),
            },
            _ => wrong("unknown_field", "there is no such parameter".into()),
        }
    }
    if errors.is_empty() { Ok((filter, limit)) } else { Err(errors) }
}

fn is_action(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'.' | b'_'))
}

fn cursor(at: UnixMs, id: i64) -> String {
    URL_SAFE_NO_PAD.encode([at.get().to_be_bytes(), id.to_be_bytes()].concat())
}

fn read_cursor(text: &str) -> Option<(UnixMs, i64)> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (at, id) = bytes.split_first_chunk::<8>()?;
    Some((UnixMs::new(i64::from_be_bytes(*at)), i64::from_be_bytes(id.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_or_refused_by_name() {
        let (filter, limit) =
            read("since=2026-12-01T00:00:00Z&actor=ops&action=key&limit=5").expect("is right");
        assert_eq!((filter.actor.as_deref(), filter.action.as_deref(), limit), (Some("ops"), Some("key"), 5));
        assert!(filter.since.is_some() && filter.until.is_none());
        let at = (UnixMs::new(1_800_000_000_000), 7);
        let (filter, limit) = read(&format!("cursor={}", cursor(at.0, at.1))).expect("is right");
        assert_eq!((filter.before, limit), (Some(at), DEFAULT_PAGE));
        for bad in [
            "since=soon",
            "until=",
            "actor=",
            "action=A",
            "action=a%27b",
            "limit=0",
            "limit=1001",
            "cursor=x",
            "colour=1",
            "limit=1&limit=2",
        ] {
            let errors = read(bad).expect_err(bad);
            let name = bad.split('=').next().expect("a name");
            assert_eq!(
                errors.iter().map(|error| error.pointer.as_str()).collect::<Vec<_>>(),
                [format!("?{name}")]
            );
        }
    }
}
