//! A schedule in a request, checked: its rule, its policies, and what its occurrences are.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::raw::{DispatchIn, LateIn, MergeIn, Precision, RawTimer, RetryIn, optional_object};
use super::target::TargetIn;
use super::{Context, Naming, Refused, checked, read};
use crate::api::problem::FieldError;
use crate::api::schema;
use crate::cold::{Content, ScheduleEdit};
use crate::model::priority::Priority;
use crate::model::schedule::{Missed, MissedPolicy, Overlap, Plan, Timing, When, is_schedule_id};
use crate::model::time::{Span, UnixMs};

/// The most occurrences that a schedule may be bounded to.
pub const MAX_OCCURRENCES: i64 = 1_000_000_000;

/// A rule (`cron`, `every` or `daily`), and what each of its occurrences is. A field that is `null` counts as left out.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Schedule)]
pub struct ScheduleIn {
    /// It may repeat the id of the path.
    #[schema(ignore)]
    id: Option<String>,
    /// 5 fields (minute, hour, day of month, month, day of week), or 6 with the second first.
    #[schema(value_type = Option<schema::Cron>)]
    cron: Option<String>,
    /// A fixed distance, counted from `start_at`; at least `PT0.5S`.
    #[schema(value_type = Option<schema::Duration>)]
    every: Option<String>,
    /// A time of day, on days counted from that of `start_at`.
    #[serde(default, deserialize_with = "optional_object")]
    daily: Option<DailyIn>,
    /// The time zone of `cron` and `daily`. Default: `UTC`.
    #[schema(value_type = Option<schema::Zone>)]
    zone: Option<String>,
    /// No nominal time is before it. Default: when the schedule was made.
    #[schema(value_type = Option<schema::Instant>)]
    start_at: Option<String>,
    /// No nominal time is after it. Default: there is no end.
    #[schema(value_type = Option<schema::Instant>)]
    end_at: Option<String>,
    /// The most occurrences. Default: any number.
    #[schema(value_type = Option<i64>, minimum = 1, maximum = 1_000_000_000)]
    max_occurrences: Option<i64>,
    /// What happens to nominal times that nobody could fire for more than a minute. Default: `fire_all` within `PT1H`.
    #[serde(default, deserialize_with = "optional_object")]
    missed: Option<MissedIn>,
    /// What happens while the occurrence before has not ended. Default: `allow`.
    #[schema(value_type = Option<schema::OverlapWord>)]
    overlap: Option<String>,
    /// Whom the occurrences are about. Default: each its id.
    #[schema(value_type = Option<schema::Owner>)]
    owner: Option<String>,
    /// Where they go.
    #[schema(value_type = TargetIn)]
    target: Option<Box<RawValue>>,
    /// Their payload. Default: `null`.
    #[schema(value_type = Option<Value>)]
    data: Option<Box<RawValue>>,
    /// The template that the payload is fitted to, when the schedule is made and when it is changed. Default: none.
    #[schema(value_type = Option<schema::TemplateName>)]
    template: Option<String>,
    /// Their labels; the schedule is listed by them too. Default: none.
    #[schema(value_type = Option<schema::Labels>)]
    labels: Option<BTreeMap<String, String>>,
    /// Default: `normal`.
    priority: Option<Priority>,
    /// Default: `second`.
    precision: Option<Precision>,
    /// Each may fire anywhere from its nominal time to so long after it. At most `P1D`.
    #[schema(value_type = Option<schema::Duration>)]
    spread: Option<String>,
    /// What happens when one is found late.
    #[serde(default, deserialize_with = "optional_object")]
    late: Option<LateIn>,
    /// How failed attempts are repeated.
    #[serde(default, deserialize_with = "optional_object")]
    retry: Option<RetryIn>,
    /// With which timers one may go out as one delivery.
    #[serde(default, deserialize_with = "optional_object")]
    merge: Option<MergeIn>,
    /// How one is given out, if their target is a queue. Default: once, to any worker.
    #[serde(default, deserialize_with = "optional_object")]
    dispatch: Option<DispatchIn>,
}

/// A time of day.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Daily)]
pub struct DailyIn {
    /// Such as `09:00` or `09:00:30.250`.
    #[schema(value_type = schema::TimeOfDay)]
    at: String,
    /// 1 is each day, 2 every other day; at most 3,660. Default: 1.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 3660)]
    every_days: Option<u32>,
}

/// What happens to nominal times that nobody could fire for more than a minute.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Missed)]
pub struct MissedIn {
    /// Default: `fire_all`.
    #[schema(value_type = Option<schema::MissedWord>)]
    policy: Option<String>,
    /// None that is older fires. Default: `PT1H`.
    #[schema(value_type = Option<schema::Duration>)]
    within: Option<String>,
}

/// Reads and checks the schedule with this id.
pub fn schedule(id: &str, text: &[u8], context: &Context<'_>) -> Result<ScheduleEdit, Refused> {
    let raw: ScheduleIn = read(text, "")?;
    let mut errors = Vec::new();
    if !is_schedule_id(id) {
        let detail = "a schedule's id is 1 to 100 characters of A-Z a-z 0-9 . _ : -";
        errors.push(FieldError::new("?id", "bad_id", detail));
    }
    if raw.id.as_deref().is_some_and(|own| own != id) {
        errors.push(FieldError::new("/id", "mismatch", "differs from the id in the path; leave it out"));
    }
    let start_at = moment("/start_at", raw.start_at.as_deref(), &mut errors);
    let end_at = moment("/end_at", raw.end_at.as_deref(), &mut errors);
    if let (Some(start), Some(end)) = (start_at, end_at)
        && end < start
    {
        errors.push(FieldError::new("/end_at", "range", "it has to be `start_at` or later"));
    }
    if raw.max_occurrences.is_some_and(|most| !(1..=MAX_OCCURRENCES).contains(&most)) {
        let detail = format!("from 1 to {MAX_OCCURRENCES}; leave it out for any number");
        errors.push(FieldError::new("/max_occurrences", "range", detail));
    }
    let timing = when(&raw, &mut errors).map(|when| Timing {
        when,
        zone: raw.zone.clone().unwrap_or_else(|| "UTC".to_owned()),
        start_at: start_at.unwrap_or(context.now),
    });
    if let Some(Err(why)) = timing.as_ref().map(Timing::rule) {
        errors.push(FieldError::new(format!("/{}", why.field()), "bad_rule", why.to_string()));
    }
    let (missed, overlap) = (missed(raw.missed.as_ref(), &mut errors), overlap(&raw, &mut errors));
    let (has_start, max_occurrences) = (raw.start_at.is_some(), raw.max_occurrences);
    let content = match checked(occurrence(raw, context), Naming::Server, false, context, text) {
        Ok(timer) => Some((Content::of(&timer), timer.request_hash)),
        Err(Refused::Fields(found)) => {
            errors.extend(found);
            None
        }
        Err(other) => return Err(other),
    };
    match (timing, content) {
        (Some(timing), Some((content, request_hash))) if errors.is_empty() => Ok(ScheduleEdit {
            id: id.to_owned(),
            plan: Plan { timing, end_at, max_occurrences, missed, overlap },
            has_start,
            content,
            fitted: None,
            request: String::from_utf8_lossy(text).into_owned(),
            request_hash,
            if_version: None,
        }),
        _ => Err(Refused::Fields(errors)),
    }
}

/// The timer that each occurrence is, but for its time.
fn occurrence(raw: ScheduleIn, context: &Context<'_>) -> RawTimer {
    RawTimer {
        id: None,
        fire_at: Some(context.now.rfc3339()),
        delay: None,
        local: None,
        zone: None,
        owner: raw.owner,
        target: raw.target,
        data: raw.data,
        template: raw.template,
        labels: raw.labels,
        priority: raw.priority,
        precision: raw.precision,
        spread: raw.spread,
        late: raw.late,
        retry: raw.retry,
        merge: raw.merge,
        dispatch: raw.dispatch,
    }
}

/// A moment that may be left out.
fn moment(pointer: &str, text: Option<&str>, errors: &mut Vec<FieldError>) -> Option<UnixMs> {
    match UnixMs::parse_rfc3339(text?) {
        Ok(at) => Some(at),
        Err(why) => {
            errors.push(FieldError::new(pointer, "bad_time", why.to_string()));
            None
        }
    }
}

/// The rule, of the one of three forms that the request uses.
fn when(raw: &ScheduleIn, errors: &mut Vec<FieldError>) -> Option<When> {
    let given: Vec<&str> =
        [("cron", raw.cron.is_some()), ("every", raw.every.is_some()), ("daily", raw.daily.is_some())]
            .into_iter()
            .filter_map(|(name, is_given)| is_given.then_some(name))
            .collect();
    if given.len() != 1 {
        let detail = match given.len() {
            0 => "give one of `cron`, `every`, `daily`".to_owned(),
            _ => format!("give one of them, not {}", given.join(" and ")),
        };
        let pointer = given.first().map(|name| format!("/{name}")).unwrap_or_default();
        errors.push(FieldError::new(pointer, "when", detail));
        return None;
    }
    if let Some(text) = &raw.cron {
        return Some(When::Cron(text.clone()));
    }
    if let Some(DailyIn { at, every_days }) = &raw.daily {
        return Some(When::Daily { at: at.clone(), every_days: every_days.unwrap_or(1) });
    }
    span("/every", raw.every.as_deref(), errors).map(When::Every)
}

fn span(pointer: &str, text: Option<&str>, errors: &mut Vec<FieldError>) -> Option<Span> {
    match Span::parse(text?) {
        Ok(span) => Some(span),
        Err(why) => {
            errors.push(FieldError::new(pointer, "bad_duration", why.to_string()));
            None
        }
    }
}

fn missed(raw: Option<&MissedIn>, errors: &mut Vec<FieldError>) -> Missed {
    let default = Missed::default();
    let Some(raw) = raw else { return default };
    let policy = raw.policy.as_deref().map(MissedPolicy::from_word);
    if policy == Some(None) {
        let words = MissedPolicy::ALL.map(MissedPolicy::word).join(", ");
        errors.push(FieldError::new("/missed/policy", "unknown_policy", format!("one of {words}")));
    }
    Missed {
        policy: policy.flatten().unwrap_or(default.policy),
        within: span("/missed/within", raw.within.as_deref(), errors).unwrap_or(default.within),
    }
}

fn overlap(raw: &ScheduleIn, errors: &mut Vec<FieldError>) -> Overlap {
    let Some(word) = raw.overlap.as_deref() else { return Overlap::default() };
    Overlap::from_word(word).unwrap_or_else(|| {
        let words = Overlap::ALL.map(Overlap::word).join(", ");
        errors.push(FieldError::new("/overlap", "unknown_policy", format!("one of {words}")));
        Overlap::default()
    })
}

/// The fields of a rule: one that is given takes the place of the others.
const RULES: [&str; 3] = ["cron", "every", "daily"];

/// A request with a patch merged over it (RFC 7396). A `target` takes the place of the former one as a whole, as in a change
/// of a timer, and so does a rule.
pub fn patched(request: &str, patch: &[u8]) -> Result<String, Refused> {
    let patch: BTreeMap<String, Box<RawValue>> = read(patch, "")?;
    let mut whole: BTreeMap<String, Box<RawValue>> = serde_json::from_str(request).unwrap_or_default();
    let is_given = |name: &str| patch.get(name).is_some_and(|value| value.get() != "null");
    if RULES.into_iter().any(is_given) {
        RULES.into_iter().for_each(|name| drop(whole.remove(name)));
    }
    for (name, value) in patch {
        match value.get() {
            "null" => drop(whole.remove(&name)),
            _ if name == "target" => drop(whole.insert(name, value)),
            _ => {
                let merged = merged(whole.get(&name).map(AsRef::as_ref), &value);
                whole.insert(name, merged.unwrap_or(value));
            }
        }
    }
    serde_json::to_string(&whole).map_err(|why| Refused::NotJson(why.to_string()))
}

/// A patch merged over a value; `None` if the patch is no object, so that it takes the value's place.
fn merged(before: Option<&RawValue>, patch: &RawValue) -> Option<Box<RawValue>> {
    let patch: BTreeMap<String, Box<RawValue>> = serde_json::from_str(patch.get()).ok()?;
    let before = before.and_then(|before| serde_json::from_str(before.get()).ok());
    let mut whole: BTreeMap<String, Box<RawValue>> = before.unwrap_or_default();
    for (name, value) in patch {
        if value.get() == "null" {
            whole.remove(&name);
            continue;
        }
        let below = merged(whole.get(&name).map(AsRef::as_ref), &value);
        whole.insert(name, below.unwrap_or(value));
    }
    RawValue::from_string(serde_json::to_string(&whole).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_patch_is_merged_over_the_request() {
        let before = json!({"cron": "0 9 * * *", "zone": "UTC", "target": {"webhook": {"url": "http://a/", "secret": "s"}},
            "data": {"n": 1, "deep": {"a": 1, "b": 2}}, "labels": {"app": "shop"}});
        for (patch, expected) in [
            (json!({"zone": null}), json!({"zone": null})),
            (json!({"every": "PT5M"}), json!({"cron": null, "every": "PT5M"})),
            (json!({"every": null}), json!({})),
            (
                json!({"target": {"webhook": {"url": "http://b/"}}}),
                json!({"target": {"webhook": {"url": "http://b/"}}}),
            ),
            (
                json!({"data": {"deep": {"a": null, "c": 3}}}),
                json!({"data": {"n": 1, "deep": {"b": 2, "c": 3}}}),
            ),
            (json!({"data": 7}), json!({"data": 7})),
            (json!({"labels": {"kind": "x"}}), json!({"labels": {"app": "shop", "kind": "x"}})),
            (json!({"missed": {"policy": "skip", "within": null}}), json!({"missed": {"policy": "skip"}})),
        ] {
            let text = patched(&before.to_string(), patch.to_string().as_bytes()).unwrap();
            let mut whole = before.clone();
            for (name, value) in expected.as_object().unwrap() {
                match value {
                    Value::Null => drop(whole.as_object_mut().unwrap().remove(name)),
                    value => whole[name] = value.clone(),
                }
            }
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), whole, "{patch}");
        }
        let large = patched(r#"{"data":12345678901234567890123}"#, br#"{"zone":"UTC"}"#).unwrap();
        assert!(large.contains("12345678901234567890123"), "what is not named stays as it was written");
        assert!(patched("{}", b"[]").is_err());
    }
}
