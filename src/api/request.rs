//! Reads a timer as a caller writes it and checks it into a [`NewTimer`].
//!
//! All faults of a request are collected and answered at once, each with its JSON pointer. The limits here are
//! those that the OpenAPI document states (`super::schema`).

mod canonical;
mod destination;
mod key;
mod namespace;
mod queue;
mod raw;
mod schedule;
mod subscription;
mod target;
mod template;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

pub use destination::{DestinationIn, destination};
pub use key::{ALL as ALL_NAMESPACES, KeyIn, key};
pub use namespace::{NamespaceIn, namespace};
pub use queue::{LeaseIn, QueueIn, SettleIn, lease, queue, settle};
use raw::Object;
pub use raw::{DispatchIn, LateIn, LateThen, MergeIn, Precision, RawTimer, RetryIn};
pub use schedule::{DailyIn, MAX_OCCURRENCES, MissedIn, ScheduleIn, patched, schedule};
pub use subscription::{SubscriptionIn, subscription};
pub use target::{BAD_QUEUE, TargetIn, no_destination, target};
pub use template::{TemplateIn, WantedTemplate, named_template, template, unknown_template};

use super::problem::FieldError;
use crate::cold::NewTimer;
use crate::model::id::{TimerId, Uid};
pub use crate::model::json::escaped;
use crate::model::merge::{MAX_WINDOW, Merge};
use crate::model::namespace::{Quotas, Salt};
use crate::model::policy::{Late, Policies, Retry};
use crate::model::queue::{Dispatch, MAX_TIMES, To};
use crate::model::schedule::is_reserved;
use crate::model::spread::{MAX_SPREAD, Spread};
use crate::model::time::{Span, UnixMs};
use crate::model::timer::is_label_name;
use crate::model::trace::Trace;
use crate::sink::guard::Guard;

pub use crate::model::timer::{MAX_DATA, MAX_LABEL_NAME};
/// The longest owner, in bytes.
pub const MAX_OWNER: usize = 256;
/// The most labels of one timer.
pub const MAX_LABELS: usize = 16;
/// The longest value of a label, in bytes.
pub const MAX_LABEL_VALUE: usize = 256;
/// The fewest attempts that `retry` may ask for.
pub const MIN_RETRY_ATTEMPTS: u32 = 1;
/// The most attempts that `retry` may ask for.
pub const MAX_RETRY_ATTEMPTS: u32 = 100;
const MIN_RETRY_FIRST: Span = Span::from_duration(Duration::from_millis(10));
const MAX_RETRY_CAP: Span = Span::from_duration(Duration::from_secs(7 * 86_400));

/// Fields of the contract that this version refuses as `not_supported`. A list of known fields leaves them out.
const NOT_SUPPORTED: [&str; 5] = ["amqp", "nats", "mqtt", "kafka", "redis_stream"];

/// Which id a timer of a request gets, and with it its primary key.
#[derive(Debug, Clone)]
pub enum Naming {
    /// `PUT`: the id of the path.
    Path(TimerId),
    /// An item of a batch or stream: the `id` in its body, or one that the service makes.
    Body,
    /// `POST` with an `Idempotency-Key`: the service makes the id, and the key gives this uid.
    Key(Uid),
    /// `POST` without one: the service makes both.
    Server,
}

/// What the checks need beside the request.
pub struct Context<'a> {
    /// The store's time.
    pub now: UnixMs,
    /// The namespace of the timers.
    pub salt: &'a Salt,
    /// What the namespace may use.
    pub quotas: Quotas,
    /// Decides which addresses are delivered to.
    pub guard: Guard,
    /// A uid for the timer, if the service makes its id.
    pub fresh: Uuid,
    /// The trace of the call.
    pub trace: Option<Trace>,
}

/// Why a body was refused.
#[derive(Debug)]
pub enum Refused {
    /// It is not JSON.
    NotJson(String),
    /// It is JSON, and these fields are not valid.
    Fields(Vec<FieldError>),
}

/// Reads a JSON object into `T`. Pointers of errors begin with `pointer_prefix`.
pub fn read<'de, T: Deserialize<'de>>(text: &'de [u8], pointer_prefix: &str) -> Result<T, Refused> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|why| {
        let pointer = format!("{pointer_prefix}{}", pointer_of(why.path()));
        let inner = why.into_inner();
        // Reading stops at the first field that does not fit; the text after it may still not be JSON. Nor does the
        // class of the error tell: a `null` in place of a word, or nesting too deep, counts as bad syntax.
        match serde_json::from_slice::<&RawValue>(text) {
            Ok(_) => {
                let is_data = inner.classify() == serde_json::error::Category::Data;
                let text =
                    if is_data { inner.to_string() } else { "this value does not fit here".to_owned() };
                let detail =
                    text.rsplit_once(" at line ").map_or(text.as_str(), |(detail, _)| detail).to_owned();
                let detail = NOT_SUPPORTED
                    .iter()
                    .fold(without_text(detail), |text, field| text.replace(&format!(", `{field}`"), ""));
                let code = if detail.starts_with("unknown field") { "unknown_field" } else { "wrong_type" };
                Refused::Fields(vec![FieldError::new(pointer, code, detail)])
            }
            Err(why) => Refused::NotJson(format!("not JSON: {why}")),
        }
    })?;
    json.end().map_err(|why| Refused::NotJson(format!("not one JSON value: {why}")))?;
    Ok(value)
}

/// What does not fit without the caller's own text, which may be a secret in the wrong place.
fn without_text(detail: String) -> String {
    for kind in ["invalid type: ", "invalid value: "] {
        let Some(rest) = detail.strip_prefix(kind).and_then(|rest| rest.strip_prefix("string \"")) else {
            continue;
        };
        // The text may hold anything; what is expected is our own.
        if let Some((_, expected)) = rest.rsplit_once("\", expected ") {
            return format!("{kind}a string, expected {expected}");
        }
    }
    detail
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

/// Reads and checks one timer. `again` comes from the query.
pub fn timer(text: &[u8], naming: Naming, again: bool, context: &Context<'_>) -> Result<NewTimer, Refused> {
    checked(read(text, "")?, naming, again, context, text)
}

/// Checks one timer. `text` is the whole request.
fn checked(
    raw: RawTimer,
    naming: Naming,
    again: bool,
    context: &Context<'_>,
    text: &[u8],
) -> Result<NewTimer, Refused> {
    let mut errors = Vec::new();
    let (id, uid, caller_id) = identity(&raw, naming, context, &mut errors);
    let minute = raw.precision == Some(Precision::Minute);
    let due_at = due(&raw.fire_at, &raw.delay, &raw.local, &raw.zone, context.now, &mut errors);
    check_horizon(due_at, context.now, &context.quotas, &mut errors);
    let within = spread(raw.spread.as_deref(), &mut errors);
    let spread = within.zip(due_at).map(|(within, from)| Spread { within, from });
    // One that is spread is rounded after its moment is chosen.
    let due_at = due_at.map(|at| if minute && spread.is_none() { at.ceil_minute() } else { at });
    if let Some(owner) = &raw.owner {
        check_text(owner, 1, MAX_OWNER, "/owner", &mut errors);
    }
    let target = target(raw.target.as_deref(), &context.guard, &mut errors);
    check_data(raw.data.as_deref(), &context.quotas, &mut errors);
    let template = named_template(raw.template, &mut errors);
    let labels = labels(raw.labels.as_ref(), &mut errors);
    let policies = Policies {
        retry: retry(raw.retry.as_ref(), &mut errors),
        late: late(raw.late, &mut errors),
        merge: merge(raw.merge, &mut errors),
    };
    let dispatch = dispatch(raw.dispatch.as_ref(), &mut errors);
    if target.as_ref().is_some_and(|target| target.queue().is_none()) && dispatch.is_some() {
        errors.push(no_queue());
    }
    if target.as_ref().is_some_and(|target| target.queue().is_some()) && policies.merge.is_some() {
        errors.push(merges("/merge"));
    }
    let hash = canonical::request_hash(text, &mut errors);
    let (Some(due_at), Some(target), true) = (due_at, target, errors.is_empty()) else {
        return Err(Refused::Fields(errors));
    };
    Ok(NewTimer {
        uid,
        namespace: context.salt.namespace,
        id,
        caller_id,
        again,
        owner: raw.owner,
        due_at,
        minute,
        priority: raw.priority.unwrap_or_default(),
        spread,
        target,
        data: raw.data.map(|data| data.get().as_bytes().to_vec()),
        template,
        labels,
        policies,
        dispatch,
        request_hash: hash,
        created_at: context.now,
        trace: context.trace,
        occurrence: None,
    })
}

/// The id, the uid, and whether the caller chose either.
fn identity(
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
            errors.extend(reserved_id(&id, "?id"));
            let uid = id.uid(context.salt);
            (id, uid, true)
        }
        Naming::Body => match raw.id.as_deref().map(TimerId::parse) {
            None => (TimerId::of_server(fresh, context.salt.namespace), fresh, false),
            Some(Ok(id)) => {
                if id.is_of_server() {
                    errors.push(FieldError::new(
                        "/id",
                        "reserved",
                        "ids of the form tmr_… are made by the service",
                    ));
                }
                errors.extend(reserved_id(&id, "/id"));
                let uid = id.uid(context.salt);
                (id, uid, true)
            }
            Some(Err(why)) => {
                errors.push(FieldError::new("/id", "bad_id", why.to_string()));
                (TimerId::of_server(fresh, context.salt.namespace), fresh, false)
            }
        },
        Naming::Key(uid) => {
            refuse_id(raw, errors);
            (TimerId::of_server(uid, context.salt.namespace), uid, true)
        }
        Naming::Server => {
            refuse_id(raw, errors);
            (TimerId::of_server(fresh, context.salt.namespace), fresh, false)
        }
    }
}

/// What is wrong with an id that ends as those of occurrences do.
fn reserved_id(id: &TimerId, pointer: &str) -> Option<FieldError> {
    let detail = "ids that end in a colon and a moment, such as :20261201T090000000Z, are those of schedules' \
                  occurrences; choose another";
    is_reserved(id.as_str()).then(|| FieldError::new(pointer, "reserved_id", detail))
}

fn refuse_id(raw: &RawTimer, errors: &mut Vec<FieldError>) {
    if raw.id.is_some() {
        errors.push(FieldError::new(
            "/id",
            "not_here",
            "POST makes the id itself; to choose one, PUT /v1/timers/{id}",
        ));
    }
}

/// The due time, from the one of the three forms that the request uses.
pub fn due(
    fire_at: &Option<String>,
    delay: &Option<String>,
    local: &Option<String>,
    zone: &Option<String>,
    now: UnixMs,
    errors: &mut Vec<FieldError>,
) -> Option<UnixMs> {
    let forms: Vec<&str> = [("fire_at", fire_at), ("delay", delay), ("local", local)]
        .into_iter()
        .filter(|(_, value)| value.is_some())
        .map(|(name, _)| name)
        .collect();
    if forms.len() != 1 {
        let detail = match forms.len() {
            0 => "give one of `fire_at`, `delay`, or `local` with `zone`".to_owned(),
            _ => format!("give one of them, not {}", forms.join(" and ")),
        };
        let pointer = forms.first().map(|name| format!("/{name}")).unwrap_or_default();
        errors.push(FieldError::new(pointer, "when", detail));
        return None;
    }
    if zone.is_some() && local.is_none() {
        errors.push(FieldError::new("/zone", "when", "`zone` goes with `local`"));
        return None;
    }
    let (pointer, parsed) = match (fire_at, delay, local, zone) {
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
    match parsed {
        Ok(at) => Some(at),
        Err(why) => {
            let zone = matches!(why, crate::model::time::Error::Zone(_));
            errors.push(FieldError::new(if zone { "/zone" } else { pointer }, "bad_time", why.to_string()));
            None
        }
    }
}

/// Checks the size of a payload.
pub fn check_data(data: Option<&RawValue>, quotas: &Quotas, errors: &mut Vec<FieldError>) {
    let size = data.map_or(0, |data| data.get().len());
    if size > MAX_DATA {
        errors.push(FieldError::new("/data", "too_large", format!("{size} bytes; at most {MAX_DATA}")));
    } else if let Some(most) = quotas.payload_bytes.filter(|most| size > *most) {
        let detail = format!("{size} bytes; this namespace's quota `payload_bytes` is {most}");
        errors.push(FieldError::new("/data", "quota", detail));
    }
}

/// Checks that a timer is due within the namespace's horizon.
pub fn check_horizon(due_at: Option<UnixMs>, now: UnixMs, quotas: &Quotas, errors: &mut Vec<FieldError>) {
    if let (Some(due_at), Some(horizon)) = (due_at, quotas.horizon)
        && due_at > now.plus(horizon.get())
    {
        let detail = format!("further ahead than this namespace's quota `horizon`, {horizon}");
        errors.push(FieldError::new("", "quota", detail));
    }
}

fn check_text(text: &str, least: usize, most: usize, pointer: &str, errors: &mut Vec<FieldError>) {
    if !(least..=most).contains(&text.len()) {
        errors.push(FieldError::new(pointer, "length", format!("{least} to {most} bytes")));
    } else if text.chars().any(char::is_control) {
        errors.push(FieldError::new(pointer, "control_character", "control characters are not allowed here"));
    }
}

/// What is wrong with the name of a label; `None` if nothing is.
pub fn bad_label(name: &str, pointer: &str) -> Option<FieldError> {
    let detail = || format!("a label's name is 1 to {MAX_LABEL_NAME} of A-Z a-z 0-9 . _ - /");
    (!is_label_name(name)).then(|| FieldError::new(pointer, "bad_label", detail()))
}

/// Checks labels and writes them as JSON, sorted by name; `None` if there are none.
pub fn labels(labels: Option<&BTreeMap<String, String>>, errors: &mut Vec<FieldError>) -> Option<String> {
    let labels = labels.filter(|labels| !labels.is_empty())?;
    if labels.len() > MAX_LABELS {
        errors.push(FieldError::new(
            "/labels",
            "too_many",
            format!("{}; at most {MAX_LABELS}", labels.len()),
        ));
    }
    for (name, value) in labels.iter().take(MAX_LABELS) {
        let pointer = format!("/labels/{}", escaped(name));
        errors.extend(bad_label(name, &pointer));
        check_text(value, 0, MAX_LABEL_VALUE, &pointer, errors);
    }
    serde_json::to_string(labels).ok()
}

/// How a timer for a queue is given out.
pub fn dispatch(asked: Option<&DispatchIn>, errors: &mut Vec<FieldError>) -> Option<Dispatch> {
    let asked = asked?;
    let mut dispatch = Dispatch { repeat: asked.repeat.unwrap_or(false), ..Dispatch::default() };
    match asked.to.clone().map(To::try_from) {
        None => {}
        Some(Ok(to)) => dispatch.to = to,
        Some(Err(why)) => errors.push(FieldError::new("/dispatch/to", "bad_to", why.to_string())),
    }
    match asked.times.unwrap_or(1) {
        times @ 1..=MAX_TIMES => dispatch.times = times,
        _ => errors.push(FieldError::new("/dispatch/times", "range", format!("from 1 to {MAX_TIMES}"))),
    }
    Some(dispatch)
}

/// What is wrong with `dispatch` where nothing is given out.
pub fn no_queue() -> FieldError {
    let detail =
        "only a timer whose target is a queue is given out; leave it out, or give {\"queue\":\"NAME\"}";
    FieldError::new("/dispatch", "no_queue", detail)
}

/// What is wrong with a queue for a timer that merges.
pub fn merges(pointer: &str) -> FieldError {
    FieldError::new(pointer, "merge_and_queue", "a timer for a queue does not merge; leave one of them out")
}

/// A policy of retries, which stands at `/retry`.
pub fn retry(asked: Option<&RetryIn>, errors: &mut Vec<FieldError>) -> Option<Retry> {
    let asked = asked?;
    let mut retry = Retry::default();
    if let Some(attempts) = asked.attempts {
        if !(MIN_RETRY_ATTEMPTS..=MAX_RETRY_ATTEMPTS).contains(&attempts) {
            let detail = format!("from {MIN_RETRY_ATTEMPTS} to {MAX_RETRY_ATTEMPTS}");
            errors.push(FieldError::new("/retry/attempts", "range", detail));
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
    retry.first = span(&asked.first, "/retry/first", retry.first);
    retry.cap = span(&asked.cap, "/retry/cap", retry.cap.max(retry.first));
    if retry.first > retry.cap {
        errors.push(FieldError::new("/retry/first", "range", "longer than `cap`"));
    }
    if retry.first < MIN_RETRY_FIRST {
        errors.push(FieldError::new("/retry/first", "range", format!("at least {MIN_RETRY_FIRST}")));
    }
    if retry.cap > MAX_RETRY_CAP {
        errors.push(FieldError::new("/retry/cap", "range", format!("at most {MAX_RETRY_CAP}")));
    }
    Some(retry)
}

/// The length of a spread.
fn spread(asked: Option<&str>, errors: &mut Vec<FieldError>) -> Option<Span> {
    match Span::parse(asked?) {
        Ok(within) if within > MAX_SPREAD => {
            errors.push(FieldError::new("/spread", "range", format!("at most {MAX_SPREAD}")));
            None
        }
        Ok(within) => Some(within),
        Err(why) => {
            errors.push(FieldError::new("/spread", "bad_duration", why.to_string()));
            None
        }
    }
}

fn late(asked: Option<LateIn>, errors: &mut Vec<FieldError>) -> Option<Late> {
    let asked = asked?;
    match Span::parse(&asked.grace) {
        Ok(grace) => Some(Late { grace, then: asked.then }),
        Err(why) => {
            errors.push(FieldError::new("/late/grace", "bad_duration", why.to_string()));
            None
        }
    }
}

fn merge(asked: Option<MergeIn>, errors: &mut Vec<FieldError>) -> Option<Merge> {
    let asked = asked?;
    match Span::parse(&asked.window) {
        Ok(window) if window.get() <= MAX_WINDOW => Some(Merge { window }),
        Ok(_) => {
            let most = Span::from_duration(MAX_WINDOW);
            errors.push(FieldError::new("/merge/window", "range", format!("at most {most}")));
            None
        }
        Err(why) => {
            errors.push(FieldError::new("/merge/window", "bad_duration", why.to_string()));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_the_wrong_place_is_not_told() {
        for text in [r#"{"scopes":"hidden"}"#, r#"{"scopes":"hidden\", expected hidden"}"#] {
            let Err(Refused::Fields(errors)) = read::<KeyIn>(text.as_bytes(), "") else { panic!("{text}") };
            assert_eq!((errors[0].pointer.as_str(), errors[0].code), ("/scopes", "wrong_type"));
            assert_eq!(errors[0].detail, "invalid type: a string, expected a sequence");
        }
        let Err(Refused::Fields(errors)) = read::<KeyIn>(br#"{"scopes":7}"#, "") else { panic!("a number") };
        assert_eq!(errors[0].detail, "invalid type: integer `7`, expected a sequence");
    }
}
