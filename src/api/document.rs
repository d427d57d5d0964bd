//! What holds for every call alike, written into the OpenAPI document once.

use axum::http::StatusCode;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, PathItem, Ref, RefOr, Response};

const PROBLEM: &str = "application/problem+json";
const KEY: &str = "key";

/// Completes what the handlers say of themselves: errors are problem documents, any call may end in one, and
/// all but the health checks take a key.
pub(super) fn complete(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let open = !path.starts_with("/v1/");
        for operation in operations(item) {
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response {
                    say(status, response);
                }
            }
            if open {
                operation.security = Some(Vec::new());
            } else {
                operation.responses.responses.insert("default".into(), any_problem().into());
            }
        }
    }
    let schemes = &mut document.components.get_or_insert_default().security_schemes;
    schemes.insert(KEY.into(), SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)).into());
    // A server without keys takes calls without one.
    document.security =
        Some(vec![SecurityRequirement::default(), SecurityRequirement::new(KEY, Vec::<String>::new())]);
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete].into_iter().flatten()
}

fn say(status: &str, response: &mut Response) {
    let code = status.parse::<StatusCode>().ok();
    if response.description.is_empty() {
        response.description = code.and_then(|code| code.canonical_reason()).unwrap_or("An answer").into();
    }
    if code.is_some_and(|code| code.is_client_error() || code.is_server_error())
        && let Some(content) = response.content.shift_remove("application/json")
    {
        response.content.insert(PROBLEM.into(), content);
    }
}

fn any_problem() -> Response {
    let mut response = Response::new("Any other error: 400, 401, 403, 413, 429 or 503, told apart by `code`");
    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
    response.content.insert(PROBLEM.into(), problem.into());
    response
}
