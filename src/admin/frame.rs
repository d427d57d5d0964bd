//! What all pages have: navigation, banner, footer, and the page that says what went wrong.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::guard::{Visit, is_of_all, namespace_of};
use super::session::Session;
use super::words::Zone;
use super::{Admin, assets, html};
use crate::cold::Error as ColdError;
use crate::model::key::Scope;
use crate::service::keys::{Caller, Refusal};

/// The pages of the navigation.
const PAGES: [(&str, &str); 11] = [
    ("/", "Overview"),
    ("/timers", "Timers"),
    ("/ahead", "Ahead"),
    ("/late", "Late and dead"),
    ("/receivers", "Receivers"),
    ("/schedules", "Schedules"),
    ("/templates", "Templates"),
    ("/queues", "Queues"),
    ("/operations", "Operations"),
    ("/nodes", "Nodes"),
    ("/audit", "Audit"),
];

/// What may be wrong with a node while it runs, in the words of the banner. Worse ones first.
const DEGRADED: [(&str, &str, &str); 6] = [
    ("starting", "lost", "Starting: this node does not fire yet."),
    (
        "store",
        "lost",
        "The cold store does not answer or cannot be written: nothing is registered, changed or fired until it does.",
    ),
    (
        "restored",
        "late",
        "The cold store was restored. What fell due since is held until `mainspring restore accept`.",
    ),
    ("redis", "late", "The wheels are away: timers fire from SQL, up to a second late. None is lost."),
    (
        "no_room",
        "late",
        "Redis has too little memory for the whole window: the wheels reach less far ahead. Timers fire on time.",
    ),
    (
        "wheels_off",
        "late",
        "The wheels are off (`wheel.enabled`): timers fire from SQL, up to a second late.",
    ),
];

/// The most namespaces that a page lists to choose from.
const LISTED: usize = 200;

/// One line of the banner.
pub struct Banner {
    pub key: &'static str,
    pub class: &'static str,
    pub text: &'static str,
    /// It is so now.
    pub holds: bool,
}

/// What all pages have.
pub struct Frame {
    /// The title of the page and of its window.
    pub title: String,
    /// The page of the navigation that it is or belongs to.
    pub here: &'static str,
    /// The reader's time zone.
    pub zone: Zone,
    /// Path and query of this page.
    pub path: String,
    /// For its forms.
    pub token: String,
    /// For those that are of the session alone.
    pub session_token: String,
    /// How the browser reaches this server.
    pub base: String,
    /// The node that answers.
    pub node: String,
    /// Its version.
    pub version: &'static str,
    /// Calls of the API need a key.
    pub keyed: bool,
    /// The reader may see what is behind the login.
    pub may_see: bool,
    /// What the reader may do.
    pub scope: Scope,
    /// The reader's key is of all namespaces.
    is_of_all: bool,
    /// The namespace that the page is about, if it is of one; and its number.
    pub namespace: String,
    pub about: i16,
    /// Those that the reader may choose from.
    pub namespaces: Arc<[String]>,
    /// The page hears by itself what is degraded.
    pub is_live: bool,
    /// What is wrong with the node: keys of [`DEGRADED`].
    pub degraded: Vec<&'static str>,
}

impl Frame {
    /// The frame of a page.
    pub fn new(admin: &Admin, visit: &Visit, here: &'static str, title: impl Into<String>) -> Self {
        let is_of_all = visit.caller.is_some_and(|caller| caller.is_of_all());
        let namespaces = &admin.node.namespaces;
        let about = namespace_of(visit.caller);
        let namespace = namespaces.get(about).map(|row| row.name.clone());
        Self {
            title: title.into(),
            here,
            zone: visit.zone,
            path: visit.path.clone(),
            token: visit.token.clone(),
            session_token: visit.session_token.clone(),
            base: visit.base.clone(),
            node: admin.node.config.node.name.clone(),
            version: env!("CARGO_PKG_VERSION"),
            keyed: !admin.node.keys.is_open(),
            may_see: visit.caller.is_some(),
            scope: visit.caller.map_or(Scope::View, |caller| caller.scope),
            is_of_all,
            namespace: namespace.unwrap_or_default(),
            about: about.0,
            namespaces: if is_of_all { namespaces.names() } else { Arc::default() },
            is_live: false,
            degraded: admin.degraded(),
        }
    }

    /// The frame of a page whose script hears what is degraded.
    pub fn live(self) -> Self {
        Self { is_live: true, ..self }
    }

    /// Whether the reader may change timers.
    pub fn may_register(&self) -> bool {
        self.scope >= Scope::Register
    }

    /// Whether the reader may change all else but keys.
    pub fn may_operate(&self) -> bool {
        self.scope >= Scope::Operate
    }

    /// Whether there is more than one namespace to choose from.
    pub fn may_choose(&self) -> bool {
        self.namespaces.len() > 1
    }

    /// Whether there are too many of them for a list.
    pub fn are_many(&self) -> bool {
        self.namespaces.len() > LISTED
    }

    /// Where a choice of a namespace leads: to this page, if it is about one.
    pub fn chosen_to(&self) -> &'static str {
        if self.here.is_empty() || is_of_all(self.here) { "/timers" } else { self.here }
    }

    /// The address of an asset.
    pub fn asset(&self, name: &str) -> String {
        assets::address(name)
    }

    /// The pages of the navigation that the reader may see, by address.
    pub fn pages(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let (may_operate, sees_all) = (self.may_operate(), self.is_of_all);
        PAGES
            .into_iter()
            .filter(move |(path, _)| (*path != "/audit" || may_operate) && (sees_all || !is_of_all(path)))
    }

    /// The lines of the banner.
    pub fn banners(&self) -> Vec<Banner> {
        let banner = |(key, class, text): (&'static str, &'static str, &'static str)| Banner {
            key,
            class,
            text,
            holds: self.degraded.contains(&key),
        };
        // A live page shows and hides all of them by itself.
        DEGRADED.into_iter().map(banner).filter(|one| one.holds || self.is_live).collect()
    }

    /// A call that registers a first timer here.
    pub fn first_curl(&self) -> String {
        let key = if self.keyed { " \\\n  -H \"Authorization: Bearer $MAINSPRING_KEY\"" } else { "" };
        format!(
            "curl -X PUT {}/v1/timers/tea{key} -d '{{\n  \"delay\": \"PT5S\",\n  \"target\": {{\"webhook\": {{\"url\": \
             \"http://127.0.0.1:7700/\"}}}},\n  \"data\": {{\"say\": \"tea is ready\"}}\n}}'",
            self.base
        )
    }
}

impl Admin {
    /// Who has this session; `None` for somebody who has not logged in where that is needed.
    pub(super) fn caller(&self, session: &Session) -> Option<Caller> {
        if self.node.keys.is_open() { Some(Caller::ANYBODY) } else { session.caller }
    }

    /// What is wrong with this node: the keys of [`DEGRADED`].
    pub(super) fn degraded(&self) -> Vec<&'static str> {
        let Some(service) = self.node.service() else { return vec!["starting"] };
        let wheels = self.node.config.wheel.enabled;
        let states = [
            ("starting", !self.node.has_recovered()),
            ("store", self.node.has_recovered() && !self.node.can_write()),
            ("redis", wheels && self.node.has_recovered() && !service.positions.unreachable().is_empty()),
            ("wheels_off", !wheels),
            ("no_room", service.positions.reach.is_short()),
            ("restored", service.store.held().is_some_and(|held| held.is_open())),
        ];
        states.into_iter().filter(|(_, holds)| *holds).map(|(key, _)| key).collect()
    }
}

#[derive(Template)]
#[template(path = "banner.html", config = ".askama.toml")]
struct BannerPart {
    frame: Frame,
}

/// `GET /banner`: the banner alone, read again every few seconds.
pub async fn banner(State(admin): State<Arc<Admin>>, visit: Visit) -> Response {
    html(&BannerPart { frame: Frame::new(&admin, &visit, "", "") })
}

/// A page that leads on to an address of this server: a browser sends the session's cookie with that step.
#[derive(Template)]
#[template(path = "bounce.html", config = ".askama.toml")]
pub struct Bounce {
    /// The address.
    pub path: String,
}

#[derive(Template)]
#[template(path = "trouble.html", config = ".askama.toml")]
struct TroublePage {
    frame: Frame,
    text: String,
    way_on: Option<(String, &'static str)>,
}

/// Something went wrong: a status, and a page that says it.
#[derive(Debug, Clone)]
pub struct Trouble {
    status: StatusCode,
    title: &'static str,
    text: String,
    way_on: Option<(String, &'static str)>,
    /// In so many seconds it may be tried again.
    retry_after: Option<u32>,
}

impl Trouble {
    fn new(status: StatusCode, title: &'static str, text: impl Into<String>) -> Self {
        Self { status, title, text: text.into(), way_on: None, retry_after: None }
    }

    fn leads(self, path: impl Into<String>, name: &'static str) -> Self {
        Self { way_on: Some((path.into(), name)), ..self }
    }

    /// The service has not reached its store yet.
    pub fn starting() -> Self {
        let text = "The cold store has not answered since this node was started. It goes on trying.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Starting", text)
    }

    /// A defect; the log has more.
    pub fn internal() -> Self {
        let text = "The service failed at this page; the failure is in its log.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "This page failed", text)
    }

    /// The page took too long.
    pub fn slow() -> Self {
        let text = "The cold store did not answer within 30 seconds.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "No answer in time", text)
    }

    /// A form that another site has sent.
    pub fn foreign() -> Self {
        let text = "This form was not sent by a page of this server, so nothing was done.";
        Self::new(StatusCode::FORBIDDEN, "Refused", text)
    }

    /// The key may not do this.
    pub fn beyond(scope: Scope, wanted: Scope) -> Self {
        let (scope, wanted) = (scope.word(), wanted.word());
        let text = format!("Your key's scope is {scope}, and this takes {wanted}. Nothing was done.");
        Self::new(StatusCode::FORBIDDEN, "Not allowed", text)
    }

    /// It is about the service as a whole, and the key of one namespace.
    pub fn of_all() -> Self {
        let text = "This page is about the service as a whole: it takes a key of all namespaces (*).";
        Self::new(StatusCode::NOT_FOUND, "Not here", text).leads("/timers", "Timers")
    }

    /// A form that does not belong to this session.
    pub fn stale() -> Self {
        let text = "This form is too old: its session has ended, another namespace was chosen since, or the server was \
                    started anew. Nothing was done. Go back, load the page again, and repeat it.";
        Self::new(StatusCode::FORBIDDEN, "Too old", text)
    }

    /// A form that is larger than any of ours.
    pub fn large() -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "Too large", "Mark fewer timers. Nothing was done.")
    }

    /// There is no timer of this id.
    pub fn no_timer(id: &str) -> Self {
        let shown: String = id.chars().take(128).collect();
        let text = format!("There is no timer {shown}, live or within the history that is kept.");
        Self::new(StatusCode::NOT_FOUND, "No such timer", text).leads("/timers", "Search")
    }

    /// There is no operation of this id.
    pub fn no_operation() -> Self {
        let text = "There is no such operation; the last 200 that have ended are kept.";
        Self::new(StatusCode::NOT_FOUND, "No such operation", text).leads("/operations", "Operations")
    }

    /// There is no schedule of this id.
    pub fn no_schedule() -> Self {
        let text = "There is no such schedule. It may have been removed; its timers are listed still.";
        Self::new(StatusCode::NOT_FOUND, "No such schedule", text).leads("/schedules", "Schedules")
    }

    /// There is no template of this name.
    pub fn no_template() -> Self {
        let text =
            "There is no such template. It may have been removed, which is possible once nothing uses it.";
        Self::new(StatusCode::NOT_FOUND, "No such template", text).leads("/templates", "Templates")
    }

    /// What was asked for cannot be done; nothing was.
    pub fn refused(text: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Nothing was done", text)
    }

    /// A namespace that there is not.
    pub fn no_namespace(name: &str) -> Self {
        let shown: String = name.chars().take(64).collect();
        let text = format!("There is no namespace {shown}. `mainspring namespace ls` lists them.");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "No such namespace", text)
    }

    /// A time zone that is none.
    pub fn no_zone(name: &str) -> Self {
        let shown: String = name.chars().take(64).collect();
        let text = format!("There is no time zone {shown}. Give an IANA name, such as Europe/Berlin.");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "No such time zone", text)
    }

    /// The caller's quota is spent.
    pub fn quota(why: Refusal) -> Self {
        let text = format!("Nothing was done: {}.", why.detail);
        let status = match why.is_for_good() {
            true => StatusCode::UNPROCESSABLE_ENTITY,
            false => StatusCode::TOO_MANY_REQUESTS,
        };
        Self { retry_after: why.retry_after, ..Self::new(status, "Too many", text) }
    }

    /// The page of this trouble.
    pub fn render(self, admin: &Admin, visit: Visit) -> Response {
        let frame = Frame::new(admin, &visit, "", self.title);
        let page = html(&TroublePage { frame, text: self.text, way_on: self.way_on });
        let wait = self.retry_after.map(|seconds| [(header::RETRY_AFTER, seconds.to_string())]);
        match wait {
            Some(wait) => (self.status, wait, page).into_response(),
            None => (self.status, page).into_response(),
        }
    }
}

impl From<ColdError> for Trouble {
    fn from(why: ColdError) -> Self {
        // The store's own message may hold addresses and names: it goes to the log only.
        tracing::debug!(%why, "a page is answered with 503");
        let text = "The cold store does not answer now. Load the page again in a moment.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "The cold store is away", text)
    }
}

impl IntoResponse for Trouble {
    /// Carries the trouble as an extension; [`super::guard::admit`] makes the page.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
