//! Login, logout, and the reader's time zone.
//!
//! Logins are slowed after failures ([`Attempts`]): keys that people have chosen could be guessed otherwise.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::frame::{Frame, Trouble};
use super::guard::{NAMESPACE, NewSession, Visit, ZONE, set_cookie};
use super::session::LONGEST;
use super::words::Zone;
use super::{Admin, html};
use crate::clock::{Clock, Monotonic, SystemClock};
use crate::model::key::id_in;

/// How long a browser keeps the time zone, in seconds: a year.
const ZONE_KEPT: u64 = 365 * 86_400;

/// Logins may fail so often within [`REMEMBERED`] before they are slowed.
const FREE: usize = 5;

/// How long a failure counts.
const REMEMBERED: Duration = Duration::from_secs(60);

/// How late a failure is answered then.
const SLOWED: Duration = Duration::from_secs(1);

/// Logins that are checked, or wait for their late answer, at once. With [`SLOWED`] that is how many keys a second can be
/// tried on a node.
const AT_ONCE: usize = 4;

/// Logins that failed of late, and those that are under way.
pub struct Attempts {
    failed: Mutex<VecDeque<Monotonic>>,
    room: Arc<Semaphore>,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { failed: Mutex::default(), room: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Attempts {
    /// Room for one; `None` if so many are under way that this one is not checked.
    fn begin(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }

    /// Notes a failure; returns how late it is answered.
    fn failed(&self, now: Monotonic) -> Duration {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        while failed.front().is_some_and(|first| now.since(*first) >= REMEMBERED) {
            failed.pop_front();
        }
        if failed.len() < FREE {
            failed.push_back(now);
            return Duration::ZERO;
        }
        SLOWED
    }
}

#[derive(Template)]
#[template(path = "login.html", config = ".askama.toml")]
struct LoginPage {
    frame: Frame,
    to: String,
    wrong: Option<&'static str>,
}

/// The address to go on to after a form: one of this server, or `otherwise`.
pub fn way_on(to: &str, otherwise: &str) -> String {
    // `//host` and `/\host` are addresses of another server.
    let is_ours = to.starts_with('/')
        && !to[1..].starts_with(['/', '\\'])
        && to.bytes().all(|b| (0x21..0x7f).contains(&b));
    if is_ours { to.to_owned() } else { otherwise.to_owned() }
}

/// `GET /login`.
pub async fn form(State(admin): State<Arc<Admin>>, visit: Visit) -> Response {
    let query = visit.path.split_once('?').map_or("", |(_, query)| query);
    let to = url::form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "to");
    let to = way_on(to.as_ref().map_or("", |(_, to)| to), "/");
    if visit.caller.is_some() {
        return Redirect::to(&to).into_response();
    }
    html(&LoginPage { frame: Frame::new(&admin, &visit, "", "Log in"), to, wrong: None })
}

/// `POST /login`: a key opens a session.
pub async fn login(State(admin): State<Arc<Admin>>, visit: Visit) -> Response {
    let to = way_on(visit.form.get("to"), "/");
    if visit.caller.is_some() {
        return Redirect::to(&to).into_response();
    }
    let refused = |status: StatusCode, wrong| {
        let frame = Frame::new(&admin, &visit, "", "Log in");
        (status, html(&LoginPage { frame, to: to.clone(), wrong: Some(wrong) })).into_response()
    };
    let key = visit.form.get("key").trim();
    // The store's own keys are random: nobody can try them through, and nobody who has one is kept out by those who try.
    let of_store = if id_in(key).is_some() { admin.node.keys.find(key).await } else { None };
    let room = admin.attempts.begin();
    if of_store.is_none() && room.is_none() {
        let wrong = "Too many logins are under way, and logins failed of late. Try again in a moment.";
        let mut response = refused(StatusCode::TOO_MANY_REQUESTS, wrong);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return response;
    }
    let Some(caller) = of_store.or_else(|| admin.node.keys.find_in_settings(key)) else {
        tracing::warn!("a login to the page with a key that is not known here");
        // In a task of its own: who hangs up makes no room by that.
        let late = admin.attempts.failed(Monotonic::now());
        let waited = tokio::spawn(async move {
            tokio::time::sleep(late).await;
            drop(room);
        });
        let _ = waited.await;
        return refused(StatusCode::UNAUTHORIZED, "This key is not known here.");
    };
    match admin.random() {
        Ok(nonce) => {
            let session = admin.sessions.begin(Some(caller), SystemClock.now(), nonce);
            let mut response = Redirect::to(&to).into_response();
            response.extensions_mut().insert(NewSession(session));
            response
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// `POST /logout`: the session ends.
pub async fn logout(State(admin): State<Arc<Admin>>, visit: Visit) -> Response {
    let now = SystemClock.now();
    admin.sessions.end(&visit.session, now);
    let Ok(nonce) = admin.random() else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let mut response = Redirect::to("/login").into_response();
    response.extensions_mut().insert(NewSession(admin.sessions.begin(None, now, nonce)));
    response
}

/// `POST /namespace`: the namespace that pages are about, for a reader with a key of all.
pub async fn namespace(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let name = visit.form.get("namespace").trim();
    let found = admin.node.namespaces.find(name).await?.ok_or_else(|| Trouble::no_namespace(name))?;
    let mut response = Redirect::to(&way_on(visit.form.get("to"), "/timers")).into_response();
    let secure = visit.base.starts_with("https:");
    set_cookie(&mut response, NAMESPACE, &found.name, LONGEST.as_secs(), secure);
    Ok(response)
}

/// `POST /zone`: the time zone in which pages show times. A name that is no zone is refused.
pub async fn zone(visit: Visit) -> Result<Response, Trouble> {
    let form = &visit.form;
    let asked = if form.get("here").is_empty() { form.get("zone") } else { form.get("here") };
    let mut response = Redirect::to(&way_on(form.get("to"), "/")).into_response();
    let zone = Zone::parse(asked.trim()).ok_or_else(|| Trouble::no_zone(asked.trim()))?;
    let secure = visit.base.starts_with("https:");
    set_cookie(&mut response, ZONE, &zone.to_string(), ZONE_KEPT, secure);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_answered_late_once_there_are_many_and_forgotten_after_a_while() {
        let (attempts, now) = (Attempts::default(), Monotonic::now());
        for _ in 0..FREE {
            assert_eq!(attempts.failed(now), Duration::ZERO);
        }
        assert_eq!(attempts.failed(now), SLOWED);
        assert_eq!(attempts.failed(now.plus(REMEMBERED - Duration::from_millis(1))), SLOWED);
        assert_eq!(attempts.failed(now.plus(REMEMBERED)), Duration::ZERO);
        let rooms: Vec<_> = std::iter::from_fn(|| attempts.begin()).take(AT_ONCE + 1).collect();
        assert_eq!(rooms.len(), AT_ONCE);
    }

    #[test]
    fn the_way_on_never_leads_to_another_server() {
        for ours in ["/", "/timers?state=dead", "/timers/a:b?show=data#data"] {
            assert_eq!(way_on(ours, "/x"), ours);
        }
        for foreign in
            ["", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb: c", "timers", "/\t/x"]
        {
            assert_eq!(way_on(foreign, "/x"), "/x", "{foreign}");
        }
    }
}
