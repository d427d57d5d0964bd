//! `/v1/templates`: named JSON Schemas with defaults, which the data of timers is fitted to.

use axum::Json;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Within;
use super::etag::tagged;
use super::named::{RemovedAnswer, checked_name, removed};
use super::problem::{ApiResult, FieldError, Problem};
use super::request::{self, MAX_DATA, TemplateIn, WantedTemplate};
use super::schema;
use super::state::caller;
use crate::cold::{
    MAX_TEMPLATE_TEXT, MAX_TEMPLATES, MOST_COUNTED, TemplateEdit, TemplateRemoved, TemplateRow,
    TemplateWritten,
};
use crate::model::template::MAX_SCHEMA;
use crate::model::time::UnixMs;

/// The most bytes of a template's body: both parts, and what stands around them.
const MAX_BODY: usize = MAX_SCHEMA + MAX_DATA + 4096;

/// The template that a call is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the path in the OpenAPI document")]
pub struct TemplatePath {
    /// The template's name.
    #[param(value_type = schema::TemplateName, example = "order-review")]
    name: String,
}

/// A template in an answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TemplateView {
    #[schema(value_type = schema::TemplateName)]
    name: String,
    /// As it was written.
    #[schema(value_type = schema::JsonSchema)]
    schema: Box<RawValue>,
    /// `null`: data stays as it is.
    #[schema(required, value_type = Option<schema::TemplateDefaults>)]
    defaults: Option<Box<RawValue>>,
    /// Rises with every change; also the `ETag`.
    #[schema(minimum = 1)]
    version: i32,
    #[schema(value_type = schema::Moment)]
    created_at: UnixMs,
    #[schema(value_type = schema::Moment)]
    changed_at: UnixMs,
}

/// All templates.
#[derive(Serialize, utoipa::ToSchema)]
pub struct TemplatesAnswer {
    items: Vec<TemplateView>,
}

fn view(row: TemplateRow) -> TemplateView {
    let json = |text: String| RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned());
    TemplateView {
        name: row.name,
        schema: json(row.schema),
        defaults: row.defaults.map(json),
        version: row.version,
        created_at: row.created_at,
        changed_at: row.changed_at,
    }
}

fn answer(status: StatusCode, row: TemplateRow) -> Response {
    tagged(status, row.version, &view(row))
}

fn no_such(name: &str) -> Problem {
    Problem::no_such("template", name)
}

/// All templates, by name.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", operation_id = "templates",
    responses((status = 200, body = TemplatesAnswer)))]
pub async fn list(Within(state): Within) -> ApiResult {
    let rows = state.service()?.store.templates(None).await?;
    Ok(Json(TemplatesAnswer { items: rows.into_iter().map(view).collect() }).into_response())
}

/// One template.
#[utoipa::path(get, path = "/v1/templates/{name}", tag = "templates", operation_id = "template",
    params(TemplatePath),
    responses((status = 200, body = TemplateView), (status = 404, body = Problem)))]
pub async fn get(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let rows = service.store.templates(Some(std::slice::from_ref(&name))).await?;
    Ok(answer(StatusCode::OK, rows.into_iter().next().ok_or_else(|| no_such(&name))?))
}

/// Make a template, or put another in its place. It holds for what is registered, and for data that is changed, from then
/// on. The same content again changes nothing.
#[utoipa::path(put, path = "/v1/templates/{name}", tag = "templates", operation_id = "put_template",
    params(TemplatePath), request_body = TemplateIn,
    responses((status = 201, body = TemplateView, description = "New"),
        (status = 200, body = TemplateView, description = "The same again, or in place of the former one")))]
pub async fn put(Within(state): Within, Path(name): Path<String>, request: Request) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    let caller = caller(&request);
    let body = state.body(request, MAX_BODY).await?;
    // Making a schema ready takes far longer than reading it.
    let effort = body.bytes.len().saturating_mul(64);
    let wanted = state.check(caller, effort, move || request::template(&body.bytes)).await??;
    let WantedTemplate { schema, defaults, hash } = wanted;
    match service.store.put_template(&TemplateEdit { name, schema, defaults, hash }).await? {
        TemplateWritten::Done(row, true) => Ok(answer(StatusCode::CREATED, row)),
        TemplateWritten::Done(row, false) => Ok(answer(StatusCode::OK, row)),
        TemplateWritten::Full => {
            let detail = format!(
                "there are {} templates, or {} KiB of them, which is as many as there may be; remove some",
                service.store.most_here(MAX_TEMPLATES),
                service.store.most_here(MAX_TEMPLATE_TEXT) / 1024
            );
            Err(Problem::invalid(vec![FieldError::new("", "too_many", detail)]))
        }
    }
}

/// Remove a template that no live timer and no schedule uses.
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "templates", operation_id = "remove_template",
    params(TemplatePath),
    responses((status = 200, body = RemovedAnswer), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "in_use: live timers or schedules use it; the detail has their number")))]
pub async fn remove(Within(state): Within, Path(name): Path<String>) -> ApiResult {
    let service = state.service()?;
    checked_name(&name)?;
    match service.store.remove_template(&name).await? {
        TemplateRemoved::Done => Ok(removed()),
        TemplateRemoved::NoSuch => Err(no_such(&name)),
        TemplateRemoved::InUse(timers, schedules) => {
            let more = if timers >= MOST_COUNTED { " or more" } else { "" };
            let used = if timers == 1 {
                "1 live timer uses".into()
            } else {
                format!("{timers}{more} live timers use")
            };
            let detail = match schedules {
                0 => format!("{used} `{name}`; cancel them first, or wait until they have ended"),
                _ => format!(
                    "{used} `{name}`, and schedules make more of them: {schedules}; remove or change these, and cancel \
                     the timers, first"
                ),
            };
            Err(Problem::new(StatusCode::CONFLICT, "in_use", detail))
        }
    }
}
