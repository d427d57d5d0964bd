//! The page: what an operator sees and does in a browser, served from this binary.
//!
//! A door beside the API. The server builds all HTML (askama) and SVG; htmx reads parts again; one script of our own
//! moves the live picture (`overview`) and sets nothing but attributes and text. Every list is an address, and every
//! page but the moving picture works without script.
//!
//! Who may see it: on a server without keys everybody on its machine, else whoever has logged in with a key
//! ([`session`]), whose scope says what he may do here. What protects it: the content security policy below (no inline script or style, nothing from
//! elsewhere), and for every POST the checks of `guard`. What a page changes goes through [`crate::writer::Intake::change`],
//! as the API's changes do, so both give the same answers.

mod act;
mod ahead;
mod assets;
mod audit;
mod data_templates;
mod frame;
mod guard;
mod late;
mod live;
mod login;
mod nodes;
mod operations;
mod overview;
mod picture;
mod queues;
mod receivers;
mod schedules;
pub mod session;
mod timers;
mod words;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use rustls::crypto::SecureRandom;
use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;

use crate::model::namespace::Namespace;
use crate::service::{Node, Service};
use frame::Trouble;
use guard::Visit;
use login::Attempts;
use session::Sessions;

/// How long a page may take until its answer begins.
const PAGE_WAIT: Duration = Duration::from_secs(30);

/// What a browser may load and do with a page: scripts, styles and images of this server, and its forms and streams.
/// Without inline script and style, text of a user that got into a page as markup would still do nothing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Headers of every answer of the page.
const HARDENED: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // Not `no-referrer`: browsers would then send `Origin: null` with the page's own forms.
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The state that all pages share.
pub struct Admin {
    node: Arc<Node>,
    sessions: Sessions,
    random: &'static dyn SecureRandom,
    /// Logins that failed of late.
    attempts: Attempts,
    /// Cancelled when the node stops; streams end then.
    closing: CancellationToken,
}

impl Admin {
    /// The service for the namespace of a visitor; an error page until the cold store has answered for the first time.
    fn service(&self, visit: &Visit) -> Result<Cow<'_, Service>, Trouble> {
        let service = self.node.service().ok_or_else(Trouble::starting)?;
        Ok(match guard::namespace_of(visit.caller) {
            Namespace::OWN => Cow::Borrowed(service),
            other => Cow::Owned(service.within(other)),
        })
    }

    fn random<const N: usize>(&self) -> Result<[u8; N], rustls::crypto::GetRandomFailed> {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes)?;
        Ok(bytes)
    }
}

/// The routes of the page. Streams end when `closing` is cancelled. Fails if the machine has no random numbers.
pub fn routes(
    node: Arc<Node>,
    closing: CancellationToken,
) -> Result<Router, rustls::crypto::GetRandomFailed> {
    let random = rustls::crypto::ring::default_provider().secure_random;
    let mut secret = [0; 32];
    random.fill(&mut secret)?;
    // Of several keys the first one: it is the same on all nodes but for the time in which it is changed.
    let pepper = node.config.server.secrets_key.first().map_or("", |key| key.expose_secret());
    let sessions = Sessions::new(Arc::clone(&node.keys), secret, pepper.as_bytes());
    let admin = Arc::new(Admin { sessions, random, closing, attempts: Attempts::default(), node });
    let pages = Router::new()
        .route("/", get(overview::page))
        .route("/wheels/stream", get(overview::stream))
        .route("/wheels/table", get(overview::table))
        .route("/wheels/slot", get(overview::slot))
        .route("/banner", get(frame::banner))
        .route("/timers", get(timers::list))
        .route("/timers/{id}", get(timers::one))
        .route("/timers/{id}/data", get(timers::data))
        .route("/act", post(act::confirm))
        .route("/act/now", post(act::act))
        .route("/operations", get(operations::page).post(operations::count))
        .route("/operations/{id}", get(operations::one))
        .route("/operations/{id}/stop", post(operations::stop))
        .route("/operations/{id}/run", post(operations::run))
        .route("/schedules", get(schedules::page))
        .route("/schedules/{id}", get(schedules::one))
        .route("/schedules/{id}/act", post(schedules::act))
        .route("/templates", get(data_templates::page))
        .route("/templates/{name}", get(data_templates::one))
        .route("/ahead", get(ahead::page))
        .route("/late", get(late::page))
        .route("/receivers", get(receivers::page))
        .route("/queues", get(queues::page))
        .route("/queues/{name}/pause", post(queues::pause))
        .route("/queues/{name}/resume", post(queues::resume))
        .route("/nodes", get(nodes::page))
        .route("/audit", get(audit::page))
        .route("/login", get(login::form).post(login::login))
        .route("/logout", post(login::logout))
        .route("/zone", post(login::zone))
        .route("/namespace", post(login::namespace))
        .layer(middleware::from_fn_with_state(Arc::clone(&admin), guard::admit))
        .route("/assets/{*name}", get(assets::asset))
        .layer(middleware::map_response(hardened))
        .with_state(admin);
    Ok(pages)
}

async fn hardened(mut response: Response) -> Response {
    for (name, value) in HARDENED {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    // Pages show what is private, and soon old; assets say for themselves how long they may be kept.
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// A page or a part of one.
fn html(template: &impl askama::Template) -> Response {
    match template.render() {
        Ok(text) => axum::response::Html(text).into_response(),
        Err(why) => {
            tracing::error!(%why, "a page cannot be rendered");
            Trouble::internal().into_response()
        }
    }
}
