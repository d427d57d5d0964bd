//! Completes the OpenAPI document: what the handlers and their types cannot say of themselves.
//!
//! That is: which fields of a request exclude or need each other, the answers that many calls share, headers, keys,
//! and the links from a timer's registration to the calls on it.

use axum::http::StatusCode;
use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

use super::timers::many::MAX_BATCH;
use crate::model::key::Scope;
use crate::model::target::Kind;

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
const KEY: &str = "key";

/// The fields of a request that say when a timer is due.
const TIME_FIELDS: [&str; 4] = ["fire_at", "delay", "local", "zone"];

/// Calls on one timer, by operation id.
const ON_A_TIMER: [&str; 6] = ["get", "patch", "cancel", "fire", "attempts", "explain"];

/// Answers that many calls under `/v1` may give, and what they mean.
const COMMON: [(u16, &str); 7] = [
    (
        400,
        "malformed: the body is not JSON, or the path is not UTF-8; body_broken: the body did not arrive whole",
    ),
    (401, "no_key, unknown_key"),
    (
        403,
        "scope: the key may see this and not do it; foreign_host, foreign_origin: a server without keys answers programs on \
         its own machine only",
    ),
    (408, "timeout: the body came too slowly"),
    (413, "too_large"),
    (422, "invalid; see errors. quota: more than a quota of the namespace ever admits"),
    (429, "rate_exceeded; quota: one of the namespace is used up"),
];
const UNAVAILABLE: &str = "starting, store_unavailable, overloaded, stopping, timeout: repeat the call";

/// The document, completed.
pub(super) fn completed(document: &OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("texts, numbers and maps by text can be JSON");
    requests(&mut document["components"]["schemas"]);
    for (path, methods) in fields(&mut document["paths"]) {
        for (method, operation) in fields(methods) {
            if path.starts_with("/v1/") {
                common_answers(method, path, operation);
                say_scope(method, path, operation);
            } else {
                operation["security"] = json!([]);
            }
            let registers = matches!(operation["operationId"].as_str(), Some("put" | "post"));
            for (status, response) in fields(&mut operation["responses"]) {
                complete_answer(status, response);
                if registers && status.starts_with('2') {
                    response["links"] = links();
                }
            }
        }
    }
    let list = &mut document["paths"]["/v1/timers"]["get"]["responses"]["200"];
    list["links"]["next"] = json!({"operationId": "list", "description": "The next page, unless `next` is null",
        "parameters": {"cursor": "$response.body#/next"}});
    document["components"]["securitySchemes"] = json!({KEY: {"type": "http", "scheme": "bearer",
        "description": "A key of `/v1/keys`. What a call takes stands with it: each scope includes those before it, `view`, \
                        `register`, `operate`, `admin`."}});
    // A server without keys takes calls without one.
    document["security"] = json!([{}, {KEY: []}]);
    document
}

fn fields(value: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    value.as_object_mut().into_iter().flatten()
}

/// Which fields of a request exclude or need each other.
fn requests(schemas: &mut Value) {
    schemas["Timer"]["oneOf"] =
        json!([time_form(&["fire_at"]), time_form(&["delay"]), time_form(&["local", "zone"])]);
    let kinds = Kind::ALL.iter().map(|kind| json!({"required": [kind.word()]}));
    schemas["Target"]["oneOf"] = kinds.collect();
    let places = ["webhook", "redis_stream", "amqp", "mqtt", "nats", "kafka"];
    schemas["Destination"]["oneOf"] = places.iter().map(|kind| json!({"required": [kind]})).collect();

    let mut item = schemas["Timer"].clone();
    item["description"] =
        json!("A timer of a batch or a stream: as in a PUT, with its `id`, or without one.");
    item["properties"]["id"] = json!({"oneOf": [{"type": "null"}, {"$ref": "#/components/schemas/TimerId"}],
        "description": "The caller's own id. Default: the service makes one."});
    schemas["TimerItem"] = item;
    schemas["Batch"]["additionalProperties"] = json!(false);
    schemas["Batch"]["properties"]["timers"]["maxItems"] = json!(MAX_BATCH);
    schemas["Batch"]["properties"]["timers"]["items"] = json!({"$ref": "#/components/schemas/TimerItem"});

    let set = |field: &str| json!({"required": [field], "properties": {field: {"not": {"type": "null"}}}});
    let patch = &mut schemas["Patch"];
    // Of `data` alone, `null` is a value.
    patch["anyOf"] = json!([set("fire_at"), set("delay"), set("local"), {"required": ["data"]}, set("labels"), set("priority"), set("target"), set("dispatch")]);
    patch["oneOf"] = json!([
        time_form(&[]),
        time_form(&["fire_at"]),
        time_form(&["delay"]),
        time_form(&["local", "zone"])
    ]);
}

/// A request that says its time by these fields and no others; without any, it says none.
fn time_form(used: &[&str]) -> Value {
    let kind = |field| if used.contains(&field) { "string" } else { "null" };
    let properties: serde_json::Map<_, _> =
        TIME_FIELDS.iter().map(|field| ((*field).to_owned(), json!({"type": kind(*field)}))).collect();
    json!({"required": used, "properties": properties})
}

/// Which scope a call takes. A server without keys takes calls without one.
fn say_scope(method: &str, path: &str, operation: &mut Value) {
    let takes = super::scopes::of(&method.to_uppercase(), path);
    operation["security"] = json!([{}, {KEY: [takes.scope.word()]}]);
    if takes.is_of_all || takes.sight > Scope::View {
        let response = &mut operation["responses"]["404"];
        if response.is_null() {
            *response = json!({"description": "not_found: this key may not see it", "content": {PROBLEM: {"schema": {"$ref":
                "#/components/schemas/Problem"}}}});
        }
    }
    if takes.is_of_all {
        let said = operation["description"].as_str().unwrap_or_default();
        operation["description"] = json!(format!("{said}\n\nIt takes a key of all namespaces (`*`).").trim());
    }
}

/// Adds the answers that a call shares with others, unless its handler describes its own.
fn common_answers(method: &str, path: &str, operation: &mut Value) {
    let takes_json = operation.pointer("/requestBody/content").is_some_and(|kinds| kinds[JSON].is_object());
    let has = |place: &str| {
        let parameters = operation["parameters"].as_array();
        parameters.is_some_and(|all| all.iter().any(|parameter| parameter["in"] == place))
    };
    let (in_path, in_query) = (has("path"), has("query"));
    let safe = method == "get";
    let applies = |status| match status {
        400 => takes_json || in_path,
        408 | 413 => takes_json,
        422 => takes_json || in_path || in_query,
        // Only what is about all namespaces is free for readers.
        429 => !safe || !super::scopes::of("GET", path).is_of_all,
        _ => true,
    };
    let responses = &mut operation["responses"];
    let mut add = |status: u16, description: &str| {
        let response = &mut responses[status.to_string()];
        if response.is_null() {
            *response = json!({"description": description,
                "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}});
        }
    };
    for (status, description) in COMMON.into_iter().filter(|(status, _)| applies(*status)) {
        add(status, description);
    }
    add(503, UNAVAILABLE);
}

/// Gives an answer its description, the content type of problems, and its headers.
fn complete_answer(status: &str, response: &mut Value) {
    if response["description"].as_str().is_none_or(str::is_empty) {
        let code = status.parse::<StatusCode>().ok();
        response["description"] = json!(code.and_then(|code| code.canonical_reason()).unwrap_or("An answer"));
    }
    let schema = response["content"][JSON]["schema"]["$ref"].as_str().unwrap_or_default();
    let (of_problem, of_timer) = (schema.ends_with("/Problem"), schema.ends_with("/TimerView"));
    if of_problem && let Some(content) = response["content"].as_object_mut().and_then(|all| all.remove(JSON))
    {
        response["content"][PROBLEM] = content;
    }
    let is_problem = response["content"][PROBLEM].is_object();
    let text = |description: &str| json!({"description": description, "schema": {"type": "string"}});
    let headers = &mut response["headers"];
    headers["x-request-id"] = text("The request's id: the caller's own, or one that the service made");
    if of_timer {
        headers["etag"] = text("Its version, for `If-Match`");
    }
    if is_problem && matches!(status, "429" | "503") {
        headers["retry-after"] = json!({"description": "After how many seconds to repeat the call",
            "schema": {"type": "integer", "minimum": 1}});
    }
}

/// From the answer to a registration to the calls on that timer.
fn links() -> Value {
    let link = |operation: &str| {
        let mut parameters = json!({"id": "$response.body#/id"});
        if operation == "patch" {
            parameters["if-match"] = json!("$response.header.etag");
        }
        json!({"operationId": operation, "parameters": parameters})
    };
    ON_A_TIMER
        .into_iter()
        .map(|operation| (operation.to_owned(), link(operation)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
