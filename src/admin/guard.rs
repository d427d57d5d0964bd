//! Who may see a page, and which POSTs are this page's own.
//!
//! A POST that another site's page makes a browser send must change nothing. Two checks, because each has a hole that
//! the other closes:
//!
//! - *Where it comes from.* A browser says it in `Sec-Fetch-Site`, and only `same-origin` is accepted: `same-site` is not
//!   enough, because another port of localhost is the same site, and a `SameSite` cookie goes there too. Where that
//!   header is absent (plain HTTP to another machine, an old browser) `Origin` must be this server. Programs and very old
//!   browsers send neither.
//! - *The token* in the form, which belongs to the session and which another site cannot read. It also refuses a
//!   request whose headers somebody on the way has taken off.
//!
//! The checks stand in the one layer around all pages; no handler of a POST can forget them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use super::frame::{Bounce, Trouble};
use super::login::way_on;
use super::session::{LONGEST, Session};
use super::words::Zone;
use super::{Admin, PAGE_WAIT, html};
use crate::clock::{Clock, SystemClock};
use crate::cold::acting;
use crate::model::key::Scope;
use crate::model::namespace::Namespace;
use crate::service::keys::{Access, Caller, local_only};
use crate::service::origin::Peer;

/// The cookie of the session.
pub const SESSION: &str = "mainspring_session";

/// The cookie of the reader's time zone.
pub const ZONE: &str = "mainspring_zone";

/// The cookie of the namespace that a reader with a key of all has chosen.
pub const NAMESPACE: &str = "mainspring_namespace";

/// The header by which a page that reads parts of itself again says the number of the namespace that it is about.
const ABOUT: &str = "x-page-namespace";

/// The largest form: the ids of a thousand timers, and as much again.
const MAX_FORM: usize = 512 * 1024;

/// The largest form of somebody who has not logged in.
const MAX_LOGIN: usize = 8 * 1024;

/// One request, as far as pages need to know it.
#[derive(Clone)]
pub struct Visit {
    /// Who asks.
    pub session: Session,
    /// The same, about the namespace that he has chosen; `None` for somebody who has not logged in where that is needed.
    pub caller: Option<Caller>,
    /// What forms of this session carry.
    pub token: String,
    /// What those forms carry that are of the session alone.
    pub session_token: String,
    /// The reader's time zone.
    pub zone: Zone,
    /// How the browser reaches this server: `http://127.0.0.1:7600`.
    pub base: String,
    /// Path and query.
    pub path: String,
    /// The fields of a POST.
    pub form: Arc<Form>,
}

/// The fields of a form, in order.
#[derive(Default)]
pub struct Form(Vec<(String, String)>);

impl Form {
    /// The first value of a field; empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value)
    }

    /// All values of a field.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

impl<S: Sync> FromRequestParts<S> for Visit {
    type Rejection = Trouble;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Trouble> {
        parts.extensions.get::<Self>().cloned().ok_or_else(Trouble::internal)
    }
}

/// An answer with this extension gives the browser another session.
#[derive(Clone)]
pub struct NewSession(pub Session);

/// Lets a request through to its page, or answers it.
pub async fn admit(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    let now = SystemClock.now();
    if admin.node.keys.is_open()
        && let Err(why) = local_only(request.headers())
    {
        return (StatusCode::FORBIDDEN, why.detail).into_response();
    }
    if is_without_cookies(&request) {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        return html(&Bounce { path: way_on(path, "/") });
    }
    let known = cookie(request.headers(), SESSION).and_then(|cookie| admin.sessions.read(&cookie, now));
    let session = match known {
        Some(session) => session,
        None => match admin.random() {
            Ok(nonce) => admin.sessions.begin(None, now, nonce),
            Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        },
    };
    let caller = admin.caller(&session);
    let finding = tokio::time::timeout(PAGE_WAIT, about_chosen(&admin, caller, request.headers()));
    let chosen = match finding.await.unwrap_or_else(|_| Err(Trouble::slow())) {
        Err(_) if is_of_session(request.uri().path()) => Ok(caller),
        chosen => chosen,
    };
    let visit = visit(&admin, &request, session, *chosen.as_ref().unwrap_or(&caller));
    let secure = visit.base.starts_with("https:");
    let has_chosen = cookie(request.headers(), NAMESPACE).is_some_and(|name| !name.is_empty());
    let is_gone = chosen.as_ref().is_ok_and(|chosen| namespace_of(*chosen) == Namespace::OWN);
    let mut response = match chosen {
        Ok(_) => enter(&admin, visit, request, next).await,
        Err(trouble) => trouble.render(&admin, visit),
    };
    let given = response.extensions_mut().remove::<NewSession>().map(|NewSession(session)| session);
    // Who comes next, or is here no more, may not have chosen it.
    let is_over = has_chosen && (is_gone || given.is_some());
    let renewed = known.and_then(|session| admin.sessions.renewed(&session, now));
    if let Some(session) = given.or(renewed).or(known.is_none().then_some(session)) {
        let value = admin.sessions.cookie(&session);
        set_cookie(&mut response, SESSION, &value, LONGEST.as_secs(), secure);
    }
    if is_over && !response.headers().get_all(header::SET_COOKIE).iter().any(is_of_namespace) {
        set_cookie(&mut response, NAMESPACE, "", 0, secure);
    }
    response
}

/// Whether a link of another site leads here, with which a browser sends no cookies of ours; it does when this page itself
/// leads on.
fn is_without_cookies(request: &Request) -> bool {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    request.method() == Method::GET
        && header("sec-fetch-mode") == Some("navigate")
        && header("sec-fetch-site").is_some_and(|site| site.ends_with("-site"))
        && cookie(request.headers(), SESSION).is_none()
}

fn is_of_namespace(cookie: &HeaderValue) -> bool {
    cookie.as_bytes().starts_with(NAMESPACE.as_bytes())
}

/// The caller about the namespace that his browser says he has chosen, where his key is of all.
async fn about_chosen(
    admin: &Admin,
    caller: Option<Caller>,
    headers: &HeaderMap,
) -> Result<Option<Caller>, Trouble> {
    let Some(of_all) = caller.filter(|caller| caller.is_of_all()) else { return Ok(caller) };
    let Some(name) = cookie(headers, NAMESPACE).filter(|name| !name.is_empty()) else { return Ok(caller) };
    // One that was removed since is no choice any more.
    let chosen = admin.node.namespaces.find(&name).await?;
    Ok(chosen.map(|chosen| Caller { namespace: chosen.number, ..of_all }).or(caller))
}

fn visit(admin: &Admin, request: &Request, session: Session, caller: Option<Caller>) -> Visit {
    let headers = request.headers();
    let zone = cookie(headers, ZONE).and_then(|name| Zone::parse(&name)).unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.map_or_else(|| admin.node.config.server.listen.to_string(), str::to_owned);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    Visit {
        session,
        caller,
        token: admin.sessions.token(&session, namespace_of(caller)),
        session_token: admin.sessions.token(&session, Namespace::OWN),
        zone,
        base: format!("{}://{host}", scheme(request.extensions().get(), headers)),
        path: path.to_owned(),
        form: Arc::default(),
    }
}

/// The namespace that pages are about.
pub fn namespace_of(caller: Option<Caller>) -> Namespace {
    caller.map_or(Namespace::OWN, |caller| caller.namespace)
}

/// Checks key and form, and runs the page.
async fn enter(admin: &Arc<Admin>, mut visit: Visit, request: Request, next: Next) -> Response {
    if admin.node.keys.access() == Access::Unknown {
        return Trouble::starting().render(admin, visit);
    }
    let takes = takes(request.method(), request.uri().path());
    let is_of_all = is_of_all(request.uri().path());
    // A part of a page that was loaded before another namespace was chosen: the whole page is.
    let about = request.headers().get(ABOUT).and_then(|number| number.to_str().ok());
    if about.is_some_and(|number| number != namespace_of(visit.caller).0.to_string()) {
        return [("hx-refresh", "true")].into_response();
    }
    match visit.caller {
        None if request.uri().path() != "/login" => return to_login(&visit, &request),
        Some(caller) if caller.scope < takes => {
            return Trouble::beyond(caller.scope, takes).render(admin, visit);
        }
        Some(caller) if is_of_all && !caller.is_of_all() => {
            return match request.uri().path() {
                "/" => Redirect::to("/timers").into_response(),
                _ => Trouble::of_all().render(admin, visit),
            };
        }
        _ => {}
    }
    // As a call is by the API: free is what is of the session alone, or of the service as a whole.
    if let Some(caller) = visit.caller.filter(|_| !is_of_all && !is_of_session(request.uri().path()))
        // Where the store does not answer, no page will be there either.
        && let Ok(Err(why)) =
            tokio::time::timeout(PAGE_WAIT, admin.node.namespaces.charge(caller.namespace, 1)).await
    {
        return Trouble::quota(why).render(admin, visit);
    }
    let (parts, body) = request.into_parts();
    let mut request = if parts.method == Method::POST {
        match own_form(admin, &mut visit, &parts.headers, body).await {
            Ok(()) => Request::from_parts(parts, Body::empty()),
            Err(why) => return why.render(admin, visit),
        }
    } else {
        Request::from_parts(parts, body)
    };
    request.extensions_mut().insert(visit.clone());
    let actor = visit.caller.filter(|_| request.method() == Method::POST);
    let actor = actor.map(|caller| admin.node.actor(caller, request.extensions(), request.headers()));
    let running = async {
        match actor {
            Some(actor) => acting(actor, next.run(request)).await,
            None => next.run(request).await,
        }
    };
    let mut response = match tokio::time::timeout(PAGE_WAIT, running).await {
        Ok(response) => response,
        Err(_) => Trouble::slow().into_response(),
    };
    match response.extensions_mut().remove::<Trouble>() {
        Some(trouble) => trouble.render(admin, visit),
        None => response,
    }
}

/// The scope that a page takes: seeing takes none but that of every key.
fn takes(method: &Method, path: &str) -> Scope {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    match first {
        _ if method.is_safe() => Scope::View,
        _ if is_of_session(path) => Scope::View,
        "act" => Scope::Register,
        _ => Scope::Operate,
    }
}

/// Whether a form changes nothing but what the session shows.
fn is_of_session(path: &str) -> bool {
    matches!(path, "/login" | "/logout" | "/zone" | "/namespace")
}

/// Whether a page is about the service as a whole: it takes a key of all namespaces.
pub fn is_of_all(path: &str) -> bool {
    matches!(path, "/" | "/nodes" | "/receivers" | "/namespace") || path.starts_with("/wheels/")
}

/// The answer to somebody who is not logged in.
fn to_login(visit: &Visit, request: &Request) -> Response {
    let headers = request.headers();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let to: String = url::form_urlencoded::byte_serialize(visit.path.as_bytes()).collect();
    let login = format!("/login?to={to}");
    if header("hx-request").is_some() {
        return (StatusCode::UNAUTHORIZED, [("hx-redirect", login)]).into_response();
    }
    if request.method() != Method::GET || header("accept").is_some_and(|kind| kind == "text/event-stream") {
        return (StatusCode::UNAUTHORIZED, "log in first").into_response();
    }
    Redirect::to(&login).into_response()
}

/// Reads the form of a POST, and checks that it is one of ours.
async fn own_form(admin: &Admin, visit: &mut Visit, headers: &HeaderMap, body: Body) -> Result<(), Trouble> {
    if !comes_from_here(headers, &visit.base) {
        return Err(Trouble::foreign());
    }
    let most = if visit.caller.is_some() { MAX_FORM } else { MAX_LOGIN };
    let bytes = axum::body::to_bytes(body, most).await.map_err(|_| Trouble::large())?;
    let fields = url::form_urlencoded::parse(&bytes).into_owned().collect();
    let form = Form(fields);
    let is_token = |about, token| admin.sessions.is_token(&visit.session, about, token);
    let is_ours = is_token(namespace_of(visit.caller), form.get("token"))
        // What is of the session alone does not depend on what pages are about.
        || is_of_session(&visit.path) && is_token(Namespace::OWN, form.get("session"));
    if !is_ours {
        return Err(Trouble::stale());
    }
    visit.form = Arc::new(form);
    Ok(())
}

/// Whether a browser says that a page of this server has sent the request, or nothing at all.
fn comes_from_here(headers: &HeaderMap, base: &str) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => origin == base,
        (None, None) => true,
    }
}

/// `https` on an encrypted connection, and behind a proxy that speaks it with the browser. A browser cannot be made to send
/// this header by a form, and a caller who sends it himself gets a cookie that he cannot use.
fn scheme(peer: Option<&Peer>, headers: &HeaderMap) -> &'static str {
    if peer.is_some_and(|peer| peer.is_encrypted) {
        return "https";
    }
    let first = headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    match first.and_then(|value| value.split(',').next()).map(str::trim) {
        Some("https") => "https",
        _ => "http",
    }
}

/// The value of a cookie.
fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value.to_owned())
}

/// Adds a cookie to an answer. Script cannot read it, and no other site's page makes the browser send it.
pub fn set_cookie(response: &mut Response, name: &str, value: &str, seconds: u64, secure: bool) {
    let secure = if secure { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_of_this_server_may_post() {
        let asked = |pairs: &[(&'static str, &'static str)]| {
            let headers = pairs
                .iter()
                .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            comes_from_here(&headers, "http://localhost:7600")
        };
        let (site, origin) = ("sec-fetch-site", "origin");
        for own in [
            &[][..],
            &[(site, "same-origin")],
            &[(origin, "http://localhost:7600")],
            // A proxy may have another name for this server than the browser has.
            &[(site, "same-origin"), (origin, "https://mainspring.example")],
        ] {
            assert!(asked(own), "{own:?}");
        }
        for foreign in [
            &[(site, "cross-site")][..],
            &[(site, "same-site"), (origin, "http://localhost:7600")],
            &[(site, "none")],
            &[(origin, "http://localhost:8000")],
            &[(origin, "https://localhost:7600")],
            &[(origin, "null")],
        ] {
            assert!(!asked(foreign), "{foreign:?}");
        }
    }

    #[test]
    fn looking_takes_the_least_scope_and_a_new_form_takes_operate() {
        for path in ["/", "/timers/a", "/act", "/queues/a/pause"] {
            assert_eq!(takes(&Method::GET, path), Scope::View, "{path}");
        }
        for (path, scope) in [
            ("/login", Scope::View),
            ("/logout", Scope::View),
            ("/zone", Scope::View),
            ("/namespace", Scope::View),
            ("/act", Scope::Register),
            ("/act/now", Scope::Register),
            ("/operations", Scope::Operate),
            ("/operations/op_1/run", Scope::Operate),
            ("/schedules/a/act", Scope::Operate),
            ("/queues/a/pause", Scope::Operate),
            ("/what/comes/next", Scope::Operate),
        ] {
            assert_eq!(takes(&Method::POST, path), scope, "{path}");
        }
    }

    #[test]
    fn cookies_are_found_by_name() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; mainspring_zone=Asia/Shanghai"));
        headers.append(header::COOKIE, HeaderValue::from_static("mainspring_session=x=y"));
        assert_eq!(cookie(&headers, ZONE).as_deref(), Some("Asia/Shanghai"));
        assert_eq!(cookie(&headers, SESSION).as_deref(), Some("x=y"));
        assert_eq!(cookie(&headers, "b"), None);
    }
}
