//! A timer as a caller writes it, and the way to a checked [`NewTimer`].
//!
//! Everything that is wrong is told at once, each with its JSON pointer.

mod canonical;
mod raw;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

pub use raw::{LateIn, Precision, RawTimer, RetryIn, TargetIn, WebhookIn};

use super::problem::FieldError;
use crate::cold::NewTimer;
use crate::model::id::{TimerId, Uid};
use crate::model::policy::{Late, Policies, Retry};
use crate::model::target::{Target, Webhook};
use crate::model::time::{Span, UnixMs};
use crate::sink::guard::Guard;

/// The largest payload, in bytes of JSON.
pub const MAX_DATA: usize = 64 * 1024;
const MAX_OWNER: usize = 256;
const MAX_LABELS: usize = 16;

/// Fields that are known, to be refused with better words than "unknown".
const NOT_YET: [&str; 6] = ["priority", "spread", "merge", "dispatch", "destination", "queue"];

/// How a timer of a request gets its primary key.
#[derive(Debug, Clone)]
pub enum Naming {
    /// `PUT`: the id of the path.
    Path(TimerId),
    /// A batch item: its own `id`, or none.
    Own,
    /// `POST` with an idempotency key.
    Key(Uid),
    /// `POST` without one.
    Server,
}

/// What parsing needs to know beside the request.
pub struct Context<'a> {
    /// The store's time.
    pub now: UnixMs,
    /// The namespace of ids.
    pub namespace: &'a str,
    /// Which addresses are delivered to.
    pub guard: &'a Guard,
    /// A fresh server-made uid.
    pub fresh: Uuid,
}

/// Why a body is no timer.
#[derive(Debug)]
pub enum Bad {
    /// Not JSON.
    Syntax(String),
    /// JSON, and not valid.
    Fields(Vec<FieldError>),
}

/// Reads JSON into `T`; what is not JSON and what does not fit are told apart.
pub fn read<'de, T: Deserialize<'de>>(text: &'de [u8], at: &str) -> Result<T, Bad> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|why| {
        let pointer = format!("{at}{}", pointer_of(why.path()));
        let inner = why.into_inner();
        match inner.classify() {
            // Reading stops at the first field that does not fit; what follows it may still be no JSON.
            serde_json::error::Category::Data if serde_json::from_slice::<&RawValue>(text).is_ok() => {
                let text = inner.to_string();
                let detail =
                    text.rsplit_once(" at line ").map_or(text.as_str(), |(detail, _)| detail).to_owned();
                let detail =
                    NOT_YET.iter().fold(detail, |text, field| text.replace(&format!(", `{field}`"), ""));
                let code = if detail.starts_with("unknown field") { "unknown_field" } else { "wrong_type" };
                Bad::Fields(vec![FieldError::new(pointer, code, detail)])
            }
            _ => Bad::Syntax(format!("not JSON: {inner}")),
        }
    })?;
    json.end().map_err(|why| Bad::Syntax(format!("not one JSON value: {why}")))?;
    Ok(value)
}

fn pointer_of(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    path.iter()
        .map(|segment| match segment {
            Segment::Seq { index } => format!("/{index}"),
            Segment::Map { key } => format!("/{}", escaped(key)),
            Segment::Enum { variant } => format!("/{variant}"),
            Segment::Unknown => String::new(),
        })
        .collect()
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Reads and checks one timer. `again` comes from the query.
pub fn timer(text: &[u8], naming: Naming, again: bool, context: &Context<'_>) -> Result<NewTimer, Bad> {
    let raw: RawTimer = read(text, "")?;
    let mut errors = Vec::new();
    let (id, uid, caller_id) = name(&raw, naming, context, &mut errors);
    for (field, given) in [
        // The default may be said aloud.
        ("priority", &raw.priority.clone().filter(|given| given != "normal")),
        ("spread", &raw.spread),
        ("merge", &raw.merge),
        ("dispatch", &raw.dispatch),
    ] {
        if given.is_some() {
            errors.push(not_yet(&format!("/{field}")));
        }
    }
    let minute = raw.precision == Some(Precision::Minute);
    let due_at = due(&raw.fire_at, &raw.delay, &raw.local, &raw.zone, context.now, &mut errors);
    let due_at = due_at.map(|at| if minute { at.ceil_minute() } else { at });
    if let Some(owner) = &raw.owner {
        check_text(owner, 1, MAX_OWNER, "/owner", &mut errors);
    }
    let target = target(raw.target.as_deref(), context.guard, &mut errors);
    check_data(raw.data.as_deref(), &mut errors);
    let labels = labels(raw.labels.as_ref(), &mut errors);
    let policies =
        Policies { retry: retry(raw.retry.as_ref(), &mut errors), late: late(raw.late, &mut errors) };
    let hash = canonical::request_hash(text, &mut errors);
    let (Some(due_at), Some(target), true) = (due_at, target, errors.is_empty()) else {
        return Err(Bad::Fields(errors));
    };
    Ok(NewTimer {
        uid,
        id,
        caller_id,
        again,
        owner: raw.owner,
        due_at,
        minute,
        target,
        data: raw.data.map(|data| data.get().as_bytes().to_vec()),
        labels,
        policies,
        request_hash: hash,
        created_at: context.now,
    })
}

fn name(
    raw: &RawTimer,
    naming: Naming,
    context: &Context<'_>,
    errors: &mut Vec<FieldError>,
) -> (TimerId, Uid, bool) {
    let fresh = Uid(context.fresh);
    match naming {
        Naming::Path(id) => {
            if raw.id.as_deref().is_some_and(|own| own != id.as_str()) {
                errors.push(FieldError::new(
                    "/id",
                    "mismatch",
                    "differs from the id in the path; leave it out",
                ));
            }
            let uid = id.uid(context.namespace);
            (id, uid, true)
        }
        Naming::Own => match raw.id.as_deref().map(TimerId::parse) {
            None => (TimerId::of_server(fresh), fresh, false),
            Some(Ok(id)) => {
                if id.server_uid().is_some() {
                    errors.push(FieldError::new(
                        "/id",
                        "reserved",
                        "ids of the form tmr_… are made by the service",
                    ));
                }
                let uid = id.uid(context.namespace);
                (id, uid, true)
            }
            Some(Err(why)) => {
                errors.push(FieldError::new("/id", "bad_id", why.to_string()));
                (TimerId::of_server(fresh), fresh, false)
            }
        },
        Naming::Key(uid) => {
            no_id(raw, errors);
            (TimerId::of_server(uid), uid, true)
        }
        Naming::Server => {
            no_id(raw, errors);
            (TimerId::of_server(fresh), fresh, false)
        }
    }
}

fn no_id(raw: &RawTimer, errors: &mut Vec<FieldError>) {
    if raw.id.is_some() {
        errors.push(FieldError::new(
            "/id",
            "not_here",
            "POST makes the id itself; to choose one, PUT /v1/timers/{id}",
        ));
    }
}

fn not_yet(pointer: &str) -> FieldError {
    FieldError::new(pointer, "not_supported", "not supported by this version; leave it out")
}

/// The due time from whichever form was given.
pub fn due(
    fire_at: &Option<String>,
    delay: &Option<String>,
    local: &Option<String>,
    zone: &Option<String>,
    now: UnixMs,
    errors: &mut Vec<FieldError>,
) -> Option<UnixMs> {
    let given: Vec<&str> = [("fire_at", fire_at), ("delay", delay), ("local", local)]
        .into_iter()
        .filter(|(_, value)| value.is_some())
        .map(|(name, _)| name)
        .collect();
    if given.len() != 1 {
        let detail = match given.len() {
            0 => "give one of `fire_at`, `delay`, or `local` with `zone`".to_owned(),
            _ => format!("give one of them, not {}", given.join(" and ")),
        };
        let pointer = given.first().map(|name| format!("/{name}")).unwrap_or_default();
        errors.push(FieldError::new(pointer, "when", detail));
        return None;
    }
    if zone.is_some() && local.is_none() {
        errors.push(FieldError::new("/zone", "when", "`zone` goes with `local`"));
        return None;
    }
    let (pointer, read) = match (fire_at, delay, local, zone) {
        (Some(at), ..) => ("/fire_at", UnixMs::parse_rfc3339(at)),
        (_, Some(delay), ..) => {
            ("/delay", Span::parse(delay).and_then(|span| now.plus(span.get()).bounded()))
        }
        (_, _, Some(local), Some(zone)) => ("/local", UnixMs::from_local(local, zone)),
        _ => {
            errors.push(FieldError::new("/zone", "when", "`local` needs `zone`, an IANA time zone"));
            return None;
        }
    };
    match read {
        Ok(at) => Some(at),
        Err(why) => {
            let zone = matches!(why, crate::model::time::Error::Zone(_));
            errors.push(FieldError::new(if zone { "/zone" } else { pointer }, "bad_time", why.to_string()));
            None
        }
    }
}

fn target(raw: Option<&RawValue>, guard: &Guard, errors: &mut Vec<FieldError>) -> Option<Target> {
    let Some(raw) = raw else {
        errors.push(FieldError::new(
            "/target",
            "missing",
            "say where it goes: {\"webhook\":{\"url\":\"https://…\"}}",
        ));
        return None;
    };
    let given: TargetIn = match read(raw.get().as_bytes(), "/target") {
        Ok(given) => given,
        Err(Bad::Fields(found)) => {
            errors.extend(found);
            return None;
        }
        Err(Bad::Syntax(why)) => {
            errors.push(FieldError::new("/target", "wrong_type", why));
            return None;
        }
    };
    for (kind, value) in [("destination", &given.destination), ("queue", &given.queue)] {
        if value.is_some() {
            errors.push(not_yet(&format!("/target/{kind}")));
            return None;
        }
    }
    let Some(hook) = given.webhook else {
        errors.push(FieldError::new(
            "/target",
            "missing",
            "give exactly one kind of target, such as webhook",
        ));
        return None;
    };
    match Webhook::new(&hook.url, hook.secret, hook.headers) {
        Ok(hook) => match guard.check_url(&hook.url) {
            Ok(()) => Some(Target::Webhook(hook)),
            Err(why) => {
                errors.push(FieldError::new("/target/webhook/url", "address_refused", why.to_string()));
                None
            }
        },
        Err(why) => {
            errors.push(FieldError::new(
                format!("/target/webhook{}", why.pointer),
                "bad_webhook",
                why.detail,
            ));
            None
        }
    }
}

/// Checks the size of a payload.
pub fn check_data(data: Option<&RawValue>, errors: &mut Vec<FieldError>) {
    let size = data.map_or(0, |data| data.get().len());
    if size > MAX_DATA {
        errors.push(FieldError::new("/data", "too_large", format!("{size} bytes; at most {MAX_DATA}")));
    }
}

fn check_text(text: &str, least: usize, most: usize, pointer: &str, errors: &mut Vec<FieldError>) {
    if !(least..=most).contains(&text.len()) {
        errors.push(FieldError::new(pointer, "length", format!("{least} to {most} bytes")));
    } else if text.chars().any(char::is_control) {
        errors.push(FieldError::new(pointer, "control_character", "control characters are not allowed here"));
    }
}

/// Checks labels and writes them as sorted JSON; `None` for none.
pub fn labels(given: Option<&BTreeMap<String, String>>, errors: &mut Vec<FieldError>) -> Option<String> {
    let labels = given.filter(|labels| !labels.is_empty())?;
    if labels.len() > MAX_LABELS {
        errors.push(FieldError::new(
            "/labels",
            "too_many",
            format!("{}; at most {MAX_LABELS}", labels.len()),
        ));
    }
    for (name, value) in labels.iter().take(MAX_LABELS) {
        let pointer = format!("/labels/{}", escaped(name));
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(allowed) {
            errors.push(FieldError::new(
                &pointer,
                "bad_label",
                "a label's name is 1 to 64 of A-Z a-z 0-9 . _ - /",
            ));
        }
        check_text(value, 0, 256, &pointer, errors);
    }
    serde_json::to_string(labels).ok()
}

fn retry(given: Option<&RetryIn>, errors: &mut Vec<FieldError>) -> Option<Retry> {
    let given = given?;
    let mut retry = Retry::default();
    if let Some(attempts) = given.attempts {
        if !(1..=100).contains(&attempts) {
            errors.push(FieldError::new("/retry/attempts", "range", "from 1 to 100"));
        }
        retry.attempts = attempts;
    }
    let mut span =
        |text: &Option<String>, pointer: &str, default: Span| match text.as_deref().map(Span::parse) {
            None => default,
            Some(Ok(span)) => span,
            Some(Err(why)) => {
                errors.push(FieldError::new(pointer, "bad_duration", why.to_string()));
                default
            }
        };
    retry.first = span(&given.first, "/retry/first", retry.first);
    retry.cap = span(&given.cap, "/retry/cap", retry.cap.max(retry.first));
    if retry.first > retry.cap {
        errors.push(FieldError::new("/retry/first", "range", "longer than `cap`"));
    }
    if retry.first.get().as_millis() < 10 {
        errors.push(FieldError::new("/retry/first", "range", "at least PT0.01S"));
    }
    if retry.cap.get().as_secs() > 7 * 86_400 {
        errors.push(FieldError::new("/retry/cap", "range", "at most P7D"));
    }
    Some(retry)
}

fn late(given: Option<LateIn>, errors: &mut Vec<FieldError>) -> Option<Late> {
    let given = given?;
    match Span::parse(&given.grace) {
        Ok(grace) => Some(Late { grace, then: given.then }),
        Err(why) => {
            errors.push(FieldError::new("/late/grace", "bad_duration", why.to_string()));
            None
        }
    }
}
