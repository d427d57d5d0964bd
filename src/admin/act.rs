//! Cancel, move, fire now, pause, resume: one timer or the marked ones.
//!
//! First a page says what would happen to how many, by asking the timer's own transition ([`Life::step`]); its button
//! names it. Then each timer is changed on its own, and the answer tells what happened to each class of them, in the
//! words of the API. All but a cancel hold only for the version that the first page showed: what somebody changed
//! meanwhile stays as it is, and a form that a browser sends twice fires nothing twice.
//!
//! [`Life::step`]: crate::model::timer::Life::step

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde_json::json;

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::login::way_on;
use super::{Admin, html, words};
use crate::cold::{ChangeEvent, Deed, Edit, TimerRow};
use crate::model::id::{TimerId, Uid, Version};
use crate::model::time::{Span, UnixMs};
use crate::model::timer::{Answer, Event, State as TimerState};
use crate::service::Service;
use crate::service::answer::conflict;
use crate::service::keys::Caller;
use crate::writer::Changed;

/// The most timers of one form.
const MOST: usize = 1000;

/// How many changes are under way at once; they are committed in groups.
const AT_ONCE: usize = 256;

/// How many timers one entry of the audit names.
const AUDITED_AT_ONCE: usize = 100;

/// What is done to timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Cancel,
    Move,
    Fire,
    Pause,
    Resume,
}

impl Action {
    fn read(word: &str) -> Option<Self> {
        match word {
            "cancel" => Some(Self::Cancel),
            "move" => Some(Self::Move),
            "fire" => Some(Self::Fire),
            "pause" => Some(Self::Pause),
            "resume" => Some(Self::Resume),
            _ => None,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Move => "move",
            Self::Fire => "fire",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }

    /// What a button says: `Cancel 214 timers`.
    fn button(self, timers: usize) -> String {
        let timers = words::count(timers, "timer");
        match self {
            Self::Cancel => format!("Cancel {timers}"),
            Self::Move => format!("Move {timers}"),
            Self::Fire => format!("Fire {timers} now"),
            Self::Pause => format!("Pause {timers}"),
            Self::Resume => format!("Resume {timers}"),
        }
    }

    /// How this would be answered for a timer as it stands.
    fn answer(self, row: &TimerRow, now: UnixMs) -> Answer {
        let event = match self {
            Self::Cancel => Event::Cancel,
            Self::Move => Event::Reschedule { due_at: now },
            Self::Fire => Event::Fire,
            Self::Pause => Event::Pause,
            Self::Resume => Event::Resume { is_too_late: false },
        };
        row.life.step(event, now).answer
    }

    /// Whether it does something to such a timer: a cancel is recorded while an attempt is under way.
    fn acts(self, row: &TimerRow, answer: Answer) -> bool {
        let is_paused = row.life.state == TimerState::Paused;
        let is_so_already = (self == Self::Pause && is_paused) || (self == Self::Resume && !is_paused);
        let is_live = !row.life.state.is_end();
        is_live && !is_so_already && (self == Self::Cancel || answer == Answer::Done)
    }

    /// Its name in the audit.
    const fn audited(self) -> &'static str {
        match self {
            Self::Cancel => "timer.cancel",
            Self::Move => "timer.move",
            Self::Fire => "timer.fire",
            Self::Pause => "timer.pause",
            Self::Resume => "timer.resume",
        }
    }

    /// What becomes of a timer that it would answer so; `acts`: it does something to it.
    const fn effect(self, answer: Answer, acts: bool) -> &'static str {
        match (self, answer) {
            (_, Answer::Cancelled) => "Cancelled: nothing was and nothing will be sent.",
            (_, Answer::Stopped) => "Stopped: its earlier attempts surely failed, and no further one starts.",
            (Self::Cancel, Answer::InFlight) => {
                "No further attempt starts. One is under way or its outcome is not known, so its receiver may have it."
            }
            (Self::Move, Answer::Done) => "It is due at the new time, as a new generation.",
            (Self::Fire, Answer::Done) => "It is due at once, as a new generation.",
            (Self::Pause, Answer::Done) if acts => "It does not fire until it is resumed.",
            (Self::Pause, Answer::Done) => "Nothing: it is paused already.",
            (Self::Resume, Answer::Done) if acts => {
                "It fires at its due time, or at once if that has passed; if it is later than its grace, it does what its `late` says."
            }
            (Self::Resume, Answer::Done) => "Nothing: it is not paused.",
            (_, Answer::InFlight) => "Nothing: an attempt is under way, or its outcome is not known.",
            (_, Answer::AlreadyCancelled) => "Nothing: it was cancelled before.",
            _ => "Nothing: it is over.",
        }
    }
}

/// Timers that are treated alike.
struct Class {
    ids: Vec<String>,
    state: &'static str,
    name: &'static str,
    effect: &'static str,
}

#[derive(Template)]
#[template(path = "act.html", config = ".askama.toml")]
struct ConfirmPage {
    frame: Frame,
    to: String,
    action: &'static str,
    button: String,
    classes: Vec<Class>,
    /// The timers to which something happens, each with the version that is shown.
    timers: Vec<(String, String)>,
    acts_on: usize,
    at: String,
    delay: String,
    wrong: Option<String>,
}

/// `POST /act`: says what would happen to the marked timers.
pub async fn confirm(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let action = Action::read(visit.form.get("action")).ok_or_else(Trouble::stale)?;
    let page = confirm_page(&admin, &visit, action, None).await?;
    Ok(html(&page))
}

async fn confirm_page(
    admin: &Admin,
    visit: &Visit,
    action: Action,
    wrong: Option<String>,
) -> Result<ConfirmPage, Trouble> {
    let service = admin.service(visit)?;
    let ids = marked(visit, &service)?;
    let uids: Vec<Uid> = ids.iter().map(|(_, uid)| *uid).collect();
    let rows: HashMap<Uid, TimerRow> =
        if uids.is_empty() { HashMap::new() } else { service.store.find_many(&uids).await? };
    let now = service.store.clock().now();
    let mut classes: BTreeMap<(bool, &str, &str), Class> = BTreeMap::new();
    let mut timers = Vec::new();
    for (id, uid) in ids {
        let (acts, state, effect) = match rows.get(&uid) {
            Some(row) => {
                let answer = action.answer(row, now);
                let acts = action.acts(row, answer);
                (acts, row.life.state.word(), action.effect(answer, acts))
            }
            None => (false, "", "Nothing: there is no such timer."),
        };
        if let Some(row) = rows.get(&uid).filter(|_| acts) {
            timers.push((id.clone(), row.life.version.to_string()));
        }
        let name = if state.is_empty() { "not found" } else { state };
        let class = Class { ids: Vec::new(), state, name, effect };
        // Those to which something happens come first.
        classes.entry((!acts, state, effect)).or_insert(class).ids.push(id);
    }
    let acts_on = timers.len();
    let title = format!("{}?", action.button(acts_on));
    Ok(ConfirmPage {
        frame: Frame::new(admin, visit, "/timers", title),
        to: way_on(visit.form.get("to"), "/timers"),
        action: action.word(),
        button: action.button(acts_on),
        classes: classes.into_values().collect(),
        timers,
        acts_on,
        at: visit.form.get("at").to_owned(),
        delay: visit.form.get("delay").to_owned(),
        wrong,
    })
}

/// The ids of a form, each once, in order.
fn marked(visit: &Visit, service: &Service) -> Result<Vec<(String, Uid)>, Trouble> {
    let mut ids: Vec<(String, Uid)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for id in visit.form.all("id") {
        let Ok(parsed) = TimerId::parse(id) else { continue };
        let uid = parsed.uid(service.store.salt());
        if seen.insert(uid) {
            ids.push((id.to_owned(), uid));
        }
    }
    if ids.len() > MOST { Err(Trouble::large()) } else { Ok(ids) }
}

/// What became of the timers of one class.
struct Told {
    code: &'static str,
    tone: &'static str,
    meaning: String,
    ids: Vec<String>,
}

#[derive(Template)]
#[template(path = "acted.html", config = ".askama.toml")]
struct ActedPage {
    frame: Frame,
    to: String,
    summary: String,
    classes: Vec<Told>,
}

/// `POST /act/now`: does it, and tells what happened to each class of timers.
pub async fn act(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let action = Action::read(visit.form.get("action")).ok_or_else(Trouble::stale)?;
    let service = admin.service(&visit)?;
    let (now, horizon) =
        (service.store.clock().now(), admin.node.namespaces.quotas(service.namespace()).horizon);
    let within = |at: Option<UnixMs>| match (at, horizon) {
        (Some(at), Some(horizon)) if at > now.plus(horizon.get()) => {
            Err(format!("That is further ahead than this namespace's quota `horizon`, {horizon}."))
        }
        _ => Ok(at),
    };
    let due_at = match new_time(action, &visit, now).and_then(within) {
        Ok(due_at) => due_at,
        Err(wrong) => {
            let page = confirm_page(&admin, &visit, action, Some(wrong)).await?;
            return Ok((StatusCode::UNPROCESSABLE_ENTITY, html(&page)).into_response());
        }
    };
    let versions: HashMap<&str, Version> = visit
        .form
        .all("id")
        .zip(visit.form.all("version"))
        .filter_map(|(id, version)| Some((id, Version(version.parse().ok()?))))
        .collect();
    let ids = marked(&visit, &service)?;
    let caller = visit.caller.unwrap_or(Caller::ANYBODY);
    admin.node.keys.charge(caller, ids.len()).map_err(Trouble::quota)?;
    // The form itself was charged as one call.
    let charged = admin.node.namespaces.charge(caller.namespace, ids.len().saturating_sub(1)).await;
    charged.map_err(Trouble::quota)?;
    let asked = ids.len();
    let mut admitted = vec![None; asked];
    if matches!(action, Action::Move | Action::Fire) {
        let uids: Vec<Uid> = ids.iter().map(|(_, uid)| *uid).collect();
        let answer = admin.node.namespaces.admit_moves(&service.store, &uids, due_at).await?;
        admitted = answer.map_err(Trouble::quota)?;
    }
    // Before anything is done: of what is not written down nothing is done.
    for some in ids.chunks(AUDITED_AT_ONCE) {
        let names: Vec<&str> = some.iter().map(|(id, _)| id.as_str()).collect();
        let object = if let [one] = names[..] { one.to_owned() } else { format!("{} timers", names.len()) };
        let became = Some(json!({"timers": names, "due_at": due_at}));
        let deed = Deed { action: action.audited(), object: &object, was: None, became };
        service.store.note_deed(deed).await?;
    }
    let service = &service;
    let changes = ids.into_iter().map(|(id, uid)| {
        // A form without a version was not made here; no timer has this one.
        let version = versions.get(id.as_str()).copied().unwrap_or(Version(-1));
        let event = match action {
            Action::Cancel => ChangeEvent::Cancel,
            Action::Move => ChangeEvent::Edit(Edit { due_at, if_version: Some(version), ..Edit::default() }),
            Action::Fire => ChangeEvent::Fire(Some(version)),
            Action::Pause => ChangeEvent::Pause(Some(version)),
            Action::Resume => ChangeEvent::Resume(Some(version)),
        };
        async move { (told(action, service.intake.change(uid, event).await), id) }
    });
    let mut answers = futures::stream::iter(changes).buffered(AT_ONCE);
    let mut classes: BTreeMap<(usize, &str), Told> = BTreeMap::new();
    let mut admitted = admitted.into_iter();
    while let Some((answer, id)) = answers.next().await {
        let Answered { rank, code, meaning } = answer;
        let seconds = admitted.next().flatten().filter(|_| rank != 0);
        admin.node.namespaces.give_back_due(service.namespace(), seconds);
        let tone = if rank == 0 { "ontime" } else { "late" };
        let class = Told { code, tone, meaning, ids: Vec::new() };
        classes.entry((rank, code)).or_insert(class).ids.push(id);
    }
    let done: usize =
        classes.iter().filter(|((rank, _), _)| *rank == 0).map(|(_, told)| told.ids.len()).sum();
    tracing::info!(action = action.word(), asked, done, "timers were changed from the page");
    let summary = match (done == asked, due_at) {
        (true, Some(at)) if action == Action::Move => {
            format!("All are due {} now.", visit.zone.moment(at, at).text)
        }
        (true, _) => "That was all of them.".to_owned(),
        (false, _) => format!("{} of {asked} as asked; the others as told below.", words::number(done)),
    };
    let title = match action {
        Action::Cancel => format!("Cancelled {}", words::count(done, "timer")),
        Action::Move => format!("Moved {}", words::count(done, "timer")),
        Action::Fire => format!("Due now: {}", words::count(done, "timer")),
        Action::Pause => format!("Paused {}", words::count(done, "timer")),
        Action::Resume => format!("Resumed {}", words::count(done, "timer")),
    };
    let page = ActedPage {
        frame: Frame::new(&admin, &visit, "/timers", title),
        to: way_on(visit.form.get("to"), "/timers"),
        summary,
        classes: classes.into_values().collect(),
    };
    Ok(html(&page))
}

/// The new due time of a move; an error says what is wrong with it.
fn new_time(action: Action, visit: &Visit, now: UnixMs) -> Result<Option<UnixMs>, String> {
    if action != Action::Move {
        return Ok(None);
    }
    let ahead = |at: UnixMs| match at < now {
        true => Err("That time has passed; to fire it at once, use Fire now.".to_owned()),
        false => Ok(Some(at)),
    };
    match (visit.form.get("at").trim(), visit.form.get("delay").trim()) {
        ("", "") => Err("Give the new due time.".to_owned()),
        (at, "") => visit.zone.read(at).map_err(|why| format!("{why}.")).and_then(ahead),
        ("", delay) => Span::parse(delay)
            .and_then(|delay| now.plus(delay.get()).bounded())
            .map(Some)
            .map_err(|why| format!("{why}.")),
        _ => Err("Give either the time or the delay, not both.".to_owned()),
    }
}

/// The answer for one timer. Of rank 0 is what was asked for.
struct Answered {
    rank: usize,
    code: &'static str,
    meaning: String,
}

fn told(action: Action, changed: Result<Changed, crate::writer::ChangeError>) -> Answered {
    let answered = |rank, code, meaning: &str| Answered { rank, code, meaning: meaning.to_owned() };
    match changed {
        Ok(Changed::Answered(_, Answer::Cancelled)) => {
            answered(0, "cancelled", "Nothing was or ever will be sent.")
        }
        Ok(Changed::Answered(_, Answer::Stopped)) => answered(
            0,
            "stopped",
            "Earlier attempts surely failed, or their places are settled; nothing more will be sent.",
        ),
        Ok(Changed::Answered(row, Answer::Done)) => match (action, row.life.state) {
            (Action::Fire, _) => answered(0, "fired", "Due now, as a new generation."),
            (Action::Pause, _) => answered(0, "paused", "It does not fire until it is resumed."),
            (Action::Resume, TimerState::Expired) => {
                answered(0, "expired", "It was later than its grace, and expired: nothing was sent.")
            }
            (Action::Resume, _) => answered(0, "resumed", "It fires at its due time, or at once."),
            _ => answered(0, "moved", "Due at the new time, as a new generation."),
        },
        Ok(Changed::Answered(row, answer)) => {
            let (code, _) = conflict(&row, answer);
            let meaning = match (answer, row.life.state) {
                (Answer::InFlight, TimerState::Cancelled) => {
                    "Cancelled, but the outcome of an earlier attempt is not known: the receiver may have got it."
                }
                (Answer::InFlight, _) if action == Action::Cancel => {
                    "An attempt is under way. The cancel is recorded, and no further attempt starts."
                }
                (Answer::InFlight, _) => {
                    "An attempt is under way, or its outcome is not known; nothing was changed."
                }
                (Answer::AlreadyCancelled, _) => "It was cancelled before; nothing was changed.",
                _ => "Too late: it is over. Nothing was changed.",
            };
            answered(1, code, meaning)
        }
        Ok(Changed::OtherVersion(_)) => answered(
            2,
            "version_changed",
            "Somebody has changed it since the page before was shown; nothing was done. Look at it again.",
        ),
        Ok(Changed::NoTimer) => answered(3, "not_found", "There is no such timer, live or within history."),
        // The page changes no targets.
        Ok(Changed::Unreadable | Changed::NoDestination(_) | Changed::Unfit(_) | Changed::Unfitted(_)) => {
            answered(4, "unreadable", "This version of the service cannot read it; nothing was changed.")
        }
        Err(why) => {
            tracing::debug!(%why, "a change from the page has no answer");
            answered(
                5,
                "store_unavailable",
                "The cold store did not answer: look at it again before you repeat this.",
            )
        }
    }
}
