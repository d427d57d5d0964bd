//! `/v1/operations`: one action on every timer that a filter matches.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use axum::Json;
use axum::extract::{Path, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Within;
use super::named::checked_name;
use super::problem::{ApiResult, FieldError, Problem};
use super::request;
use super::schema;
use super::timers::read::{Field, filter_of};
use crate::cold::{Filter, MAX_RUNNING, OperationRow, Selection};
use crate::model::namespace::Salt;
use crate::model::operation::{Action, OperationId, OperationState, parse_shift, shift_text};
use crate::model::time::{LAST, UnixMs};
use crate::service::Service;

/// The most bytes of an operation's body.
const MAX_BODY: usize = 64 * 1024;

/// An operation: what to do, and to which timers.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Operation)]
pub struct OperationIn {
    /// `cancel`, `pause`, `resume` and `fire` do what the calls for one timer do. `shift`: due times move by `by`.
    /// `redrive`: dead timers run again, as a new generation that is due now. `purge`: what is kept of ended timers is
    /// removed, their payload and their attempts too; their ids stay taken. They are taken in due order. One that somebody else
    /// moves meanwhile, to a moment that was passed already, may be left out; a `cancel` looks once more for such.
    #[schema(value_type = schema::ActionWord)]
    action: String,
    /// Which timers: those that match every field given, as in the list of timers. At least one field.
    #[schema(value_type = schema::OperationFilter)]
    filter: Fields,
    /// For `shift`, which needs it: how much later, or with a minus before it, earlier.
    #[schema(value_type = Option<schema::Shift>)]
    by: Option<String>,
    /// It counts and changes nothing. Default: false.
    #[serde(default)]
    #[schema(default = false)]
    dry_run: bool,
}

/// The fields of a filter as they are written: one that stands there twice is seen.
#[derive(Debug)]
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap;

        impl<'de> Visitor<'de> for OfMap {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(OfMap)
    }
}

/// A re-drive of one destination.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Redrive)]
pub struct RedriveIn {
    /// Timers that died at this moment or later.
    #[schema(value_type = schema::Instant)]
    since: String,
    /// Timers that died before this moment. Default: now.
    #[schema(value_type = Option<schema::Instant>)]
    until: Option<String>,
}

/// An operation in an answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct OperationView {
    #[schema(value_type = schema::OperationId)]
    id: String,
    #[schema(value_type = schema::ActionWord)]
    action: String,
    /// As it was asked for.
    #[schema(value_type = schema::OperationFilter)]
    filter: Box<RawValue>,
    /// It takes timers that ended at this moment or later; `null` if it takes any.
    #[schema(required, value_type = Option<schema::Moment>)]
    since: Option<UnixMs>,
    /// It takes timers that ended before this moment; `null` if it takes live ones.
    #[schema(required, value_type = Option<schema::Moment>)]
    until: Option<UnixMs>,
    /// How much later due times become; `null` but for `shift`.
    #[schema(required, value_type = Option<schema::Shift>)]
    by: Option<String>,
    /// It counts and changes nothing.
    dry_run: bool,
    #[schema(value_type = schema::OperationState)]
    state: &'static str,
    /// Timers that matched so far.
    #[schema(minimum = 0)]
    matched: i64,
    /// Timers that it changed so far.
    #[schema(minimum = 0)]
    done: i64,
    /// Timers that it left as they were so far, by reason.
    #[schema(value_type = schema::RefusedCounts)]
    refused: BTreeMap<String, i64>,
    /// There if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    failure: Option<String>,
    #[schema(value_type = schema::Moment)]
    created_at: UnixMs,
    /// `null` while it runs.
    #[schema(required, value_type = Option<schema::Moment>)]
    ended_at: Option<UnixMs>,
    /// The node that works on it, or did so last; `null` before the first step.
    #[schema(required)]
    node: Option<String>,
}

impl OperationView {
    fn new(row: OperationRow) -> Self {
        // One that a newer version wrote is shown without its range.
        let selection = row.selection().ok();
        let takes_ended = Action::from_word(&row.action).is_some_and(Action::takes_ended);
        Self {
            id: row.id.to_string(),
            filter: RawValue::from_string(row.filter).unwrap_or_else(|_| RawValue::NULL.to_owned()),
            since: selection.as_ref().and_then(|selection| selection.ended_from),
            by: selection.as_ref().and_then(|selection| selection.by_ms).map(shift_text),
            until: selection.map(|selection| selection.ended_before).filter(|_| takes_ended),
            action: row.action,
            dry_run: row.dry_run,
            state: row.state.word(),
            matched: row.matched,
            done: row.done,
            refused: row.refused,
            failure: row.failure,
            created_at: row.created_at,
            ended_at: row.ended_at,
            node: row.node,
        }
    }
}

/// The operations.
#[derive(Serialize, utoipa::ToSchema)]
pub struct OperationsAnswer {
    items: Vec<OperationView>,
}

/// The operation that a call is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the path in the OpenAPI document")]
pub struct OperationPath {
    /// The operation's id.
    #[param(value_type = schema::OperationId, example = "op_0199c0de00007000800000000000cafe")]
    id: String,
}

fn parse_id(text: &str) -> Result<OperationId, Problem> {
    let bad = || FieldError::new("?id", "bad_id", "an operation's id is op_ and 32 hex digits");
    OperationId::parse(text).ok_or_else(|| Problem::invalid(vec![bad()]))
}

fn no_such(id: OperationId) -> Problem {
    Problem::no_such("operation", id)
}

/// Begins an operation and answers with it.
async fn begin(
    service: &Service,
    action: Action,
    filter: &BTreeMap<String, Value>,
    selection: Selection,
    dry_run: bool,
) -> ApiResult {
    let text = serde_json::to_string(filter).unwrap_or_default();
    let Some(row) = service.operations.begin(service.namespace(), action, text, selection, dry_run).await?
    else {
        let detail = format!("{MAX_RUNNING} operations run already; wait for one to end, or stop one");
        return Err(Problem::new(StatusCode::CONFLICT, "too_many", detail));
    };
    let location = format!("/v1/operations/{}", row.id);
    let mut response = (StatusCode::ACCEPTED, Json(OperationView::new(row))).into_response();
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Begin an operation: it works through its filter by itself.
#[utoipa::path(post, path = "/v1/operations", tag = "operations", operation_id = "begin_operation",
    request_body = OperationIn,
    responses((status = 202, body = OperationView, description = "It has begun",
            headers(("location" = String, description = "The path of the operation"))),
        (status = 409, body = Problem, description = "too_many: as many run as may")))]
pub async fn post(Within(state): Within, request: Request) -> ApiResult {
    let service = state.service()?;
    let body = state.body(request, MAX_BODY).await?;
    let asked: OperationIn = request::read(&body.bytes, "")?;
    let (action, filter, by_ms) = checked(&asked, service.store.salt()).map_err(Problem::invalid)?;
    let selection = Selection { filter, ended_before: LAST, by_ms, ..Selection::default() };
    begin(service, action, &asked.filter.0.into_iter().collect(), selection, asked.dry_run).await
}

/// The action, the filter and the milliseconds of a shift in a request.
fn checked(asked: &OperationIn, salt: &Salt) -> Result<(Action, Filter, Option<i64>), Vec<FieldError>> {
    let mut errors = Vec::new();
    let action = Action::from_word(&asked.action);
    if action.is_none() {
        let words = Action::ALL.map(Action::word).join(", ");
        errors.push(FieldError::new("/action", "unknown_action", format!("one of {words}")));
    }
    let mut by_ms = None;
    match (action, asked.by.as_deref()) {
        (Some(Action::Shift), None) => {
            let detail = "`shift` needs `by`: how much later, such as PT1H, or earlier, such as -PT1H";
            errors.push(FieldError::new("/by", "missing", detail));
        }
        (Some(Action::Shift), Some(text)) => match parse_shift(text) {
            Ok(ms) => by_ms = Some(ms),
            Err(detail) => errors.push(FieldError::new("/by", "bad_duration", detail)),
        },
        (_, Some(_)) => {
            errors.push(FieldError::new("/by", "not_here", "`by` goes with `shift`; leave it out"));
        }
        (_, None) => {}
    }
    if asked.filter.0.is_empty() {
        let detail = "an empty filter would be every timer; give at least one field";
        errors.push(FieldError::new("/filter", "empty", detail));
    }
    let (mut fields, mut seen) = (Vec::new(), HashSet::new());
    for (name, value) in &asked.filter.0 {
        if !seen.insert(name) {
            errors.push(FieldError::new(pointer(name), "repeated", "it stands there more than once"));
            continue;
        }
        let values = match value {
            Value::Array(all) if name == "id" && !all.is_empty() => all.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values {
            match value.as_str() {
                Some(text) => fields.push((name.clone(), text.to_owned())),
                None => {
                    let detail = if name == "id" { "a text, or an array of texts" } else { "a text" };
                    errors.push(FieldError::new(pointer(name), "wrong_type", detail));
                }
            }
        }
    }
    let filter = filter_of(fields, salt, Field::OfFilter).unwrap_or_else(|more| {
        errors.extend(more);
        Filter::default()
    });
    if let (Some(action), Some(state)) = (action, filter.state)
        && !action.states().contains(&state)
    {
        let words: Vec<_> = action.states().iter().map(|state| state.word()).collect();
        let detail = format!(
            "`{}` takes timers that are {}; leave `state` out, or say which of these",
            action.word(),
            words.join(", ")
        );
        errors.push(FieldError::new("/filter/state", "range", detail));
    }
    match action.filter(|_| errors.is_empty()) {
        Some(action) => Ok((action, filter, by_ms)),
        None => Err(errors),
    }
}

fn pointer(name: &str) -> String {
    Field::OfFilter.pointer(name)
}

/// Run the dead timers of a destination again, by when they died. They go at the destination's rate.
#[utoipa::path(post, path = "/v1/destinations/{name}/redrive", tag = "destinations", operation_id = "redrive_destination",
    params(super::destinations::DestinationPath), request_body = RedriveIn,
    responses((status = 202, body = OperationView, description = "It has begun; each timer runs as a new generation",
            headers(("location" = String, description = "The path of the operation"))),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "too_many: as many operations run as may")))]
pub async fn redrive(Within(state): Within, Path(name): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let body = state.body(request, MAX_BODY).await?;
    let asked: RedriveIn = request::read(&body.bytes, "")?;
    let mut errors = Vec::new();
    let mut moment = |pointer: &str, text: &str| match UnixMs::parse_rfc3339(text) {
        Ok(at) => Some(at),
        Err(why) => {
            errors.push(FieldError::new(pointer, "bad_time", why.to_string()));
            None
        }
    };
    let since = moment("/since", &asked.since);
    let until = asked.until.as_deref().map_or(Some(LAST), |until| moment("/until", until));
    if since.zip(until).is_some_and(|(since, until)| since >= until) {
        errors.push(FieldError::new("/until", "range", "it has to be later than `since`"));
    }
    let (Some(since), Some(until), true) = (since, until, errors.is_empty()) else {
        return Err(Problem::invalid(errors));
    };
    super::destinations::find(service, &name).await?;
    let filter = Filter { destination: Some(name.clone()), ..Filter::default() };
    let selection =
        Selection { filter, ended_from: Some(since), ended_before: until, ..Selection::default() };
    let shown = BTreeMap::from([("destination".to_owned(), Value::String(name))]);
    begin(service, Action::Redrive, &shown, selection, false).await
}

/// Operations, the last one first: those that run, and the last 200 that have ended.
#[utoipa::path(get, path = "/v1/operations", tag = "operations", operation_id = "operations",
    responses((status = 200, body = OperationsAnswer)))]
pub async fn list(Within(state): Within) -> ApiResult {
    let service = state.service()?;
    let rows = service.operations.list(service.namespace()).await?;
    let items = rows.into_iter().map(OperationView::new).collect();
    Ok(Json(OperationsAnswer { items }).into_response())
}

/// One operation.
#[utoipa::path(get, path = "/v1/operations/{id}", tag = "operations", operation_id = "operation", params(OperationPath),
    responses((status = 200, body = OperationView), (status = 404, body = Problem)))]
pub async fn get(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    let (service, id) = (state.service()?, parse_id(&id)?);
    let row = service.operations.find(service.namespace(), id).await?.ok_or_else(|| no_such(id))?;
    Ok(Json(OperationView::new(row)).into_response())
}

/// End an operation early. What it has done stays; a repeat gives the same answer.
#[utoipa::path(post, path = "/v1/operations/{id}/stop", tag = "operations", operation_id = "stop_operation",
    params(OperationPath),
    responses((status = 200, body = OperationView, description = "It changes nothing more"),
        (status = 404, body = Problem), (status = 409, body = Problem, description = "already_ended: done or failed")))]
pub async fn stop(Within(state): Within, Path(id): Path<String>) -> ApiResult {
    let (service, id) = (state.service()?, parse_id(&id)?);
    let row = service.operations.end(service.namespace(), id).await?.ok_or_else(|| no_such(id))?;
    if row.state != OperationState::Stopped {
        let detail = format!("it is {} already", row.state.word());
        return Err(Problem::new(StatusCode::CONFLICT, "already_ended", detail));
    }
    Ok(Json(OperationView::new(row)).into_response())
}
