//! The page at `/docs`: Swagger UI over `/openapi.json`, served from this binary.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use utoipa_swagger_ui::{Config, SwaggerFile};

/// The page and its files.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    // By default the page sends this server's address to a validator on the net.
    let config = Arc::new(Config::from("/openapi.json").validator_url("none"));
    let serve = move |name: &str, change: fn(&mut SwaggerFile)| file(name, Arc::clone(&config), change);
    let (bare, index, other) = (serve.clone(), serve.clone(), serve);
    Router::new()
        .route("/docs", get(async move || bare("index.html", resolve_below_docs)))
        .route("/docs/", get(async move || index("index.html", |_| ())))
        .route("/docs/{*file}", get(async move |Path(name): Path<String>| other(&name, |_| ())))
}

/// The page names its files relative to `/docs/`; at `/docs` a base has to say so.
fn resolve_below_docs(page: &mut SwaggerFile) {
    let html = String::from_utf8_lossy(&page.bytes).replacen("<head>", "<head><base href=\"docs/\">", 1);
    page.bytes = html.into_bytes().into();
}

fn file(name: &str, config: Arc<Config<'static>>, change: fn(&mut SwaggerFile)) -> Response {
    match utoipa_swagger_ui::serve(name, config) {
        Ok(Some(mut file)) => {
            change(&mut file);
            ([(header::CONTENT_TYPE, file.content_type)], file.bytes.into_owned()).into_response()
        }
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(why) => {
            tracing::error!(%why, name, "a file of the page cannot be served");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
