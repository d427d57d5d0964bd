//! What the occurrences of a schedule are, but for their ids and their times. A new field of a timer is added here, and
//! nowhere else in this room.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::ScheduleRow;
use crate::cold::ColdStore;
use crate::cold::register::NewTimer;
use crate::cold::row::TimerRow;
use crate::model::id::{TimerId, Uid};
use crate::model::namespace::Namespace;
use crate::model::policy::Policies;
use crate::model::priority::Priority;
use crate::model::queue::Dispatch;
use crate::model::schedule::Occurrence;
use crate::model::spread::Spread;
use crate::model::target::Target;
use crate::model::template::TemplateUse;
use crate::model::time::{Span, UnixMs};

/// The content of an occurrence, as it is stored.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(default)]
    minute: bool,
    #[serde(default)]
    priority: Priority,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spread: Option<Span>,
    kind: i16,
    target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels: Option<String>,
    #[serde(default)]
    policies: Policies,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dispatch: Option<Dispatch>,
    request_hash: [u8; 16],
}

impl Content {
    /// What of it the audit has: neither the payload, nor where exactly it goes, which may hold a secret.
    pub(super) fn audited(&self) -> Value {
        let labels: Option<Value> =
            self.labels.as_deref().and_then(|labels| serde_json::from_str(labels).ok());
        json!({"owner": self.owner, "minute": self.minute, "priority": self.priority, "spread": self.spread,
            "template": self.template, "labels": labels, "policies": self.policies, "dispatch": self.dispatch})
    }
}

/// Without what a log must not show.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("owner", &self.owner)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Content {
    /// The content of this timer.
    pub fn of(timer: &NewTimer) -> Self {
        Self {
            owner: timer.owner.clone(),
            minute: timer.minute,
            priority: timer.priority,
            spread: timer.spread.map(|spread| spread.within),
            kind: timer.target.kind(),
            target: timer.target.stored(),
            data: timer.data.as_deref().map(|data| String::from_utf8_lossy(data).into_owned()),
            template: timer.template.as_ref().map(|one| one.name.clone()),
            labels: timer.labels.clone(),
            policies: timer.policies,
            dispatch: timer.dispatch.clone(),
            request_hash: timer.request_hash,
        }
    }

    /// To whom occurrences for a queue are given out; `None` if they are for no queue.
    pub(super) fn given_to(&self) -> Option<String> {
        let is_for_queue = self.target().queue().is_some();
        is_for_queue.then(|| self.dispatch.clone().unwrap_or_default().to.to_string())
    }

    /// The owner, if one was given.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// Labels as a JSON object of strings.
    pub fn labels(&self) -> Option<&str> {
        self.labels.as_deref()
    }

    /// The payload, JSON.
    pub fn data(&self) -> Option<Vec<u8>> {
        self.data.clone().map(String::into_bytes)
    }

    /// The template that the payload is fitted to.
    pub fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Puts a payload that was fitted in place of the one that was given.
    pub fn fit(&mut self, data: Option<Vec<u8>>) {
        self.data = data.map(|data| String::from_utf8_lossy(&data).into_owned());
    }

    /// Where it goes; of a kind that this version does not know, no more than that.
    pub fn target(&self) -> Target {
        Target::read(self.kind, &self.target).unwrap_or(Target::Unknown { kind: self.kind })
    }

    /// Puts another target in place of its own.
    pub fn set_target(&mut self, target: &Target) {
        (self.kind, self.target) = (target.kind(), target.stored());
    }

    /// An occurrence that is due at `at`, or, if it is spread, from then on.
    pub fn timer(
        &self,
        namespace: Namespace,
        id: TimerId,
        uid: Uid,
        at: UnixMs,
        now: UnixMs,
        occurrence: Occurrence,
    ) -> NewTimer {
        let is_rounded = self.minute && self.spread.is_none();
        NewTimer {
            uid,
            namespace,
            id,
            caller_id: occurrence.nominal.is_some(),
            again: false,
            owner: self.owner.clone(),
            due_at: if is_rounded { at.ceil_minute() } else { at },
            minute: self.minute,
            priority: self.priority,
            spread: self.spread.map(|within| Spread { within, from: at }),
            target: self.target(),
            data: self.data(),
            // The payload was fitted when the schedule was written, and does not change.
            template: self.template.clone().map(TemplateUse::unfitted),
            labels: self.labels.clone(),
            policies: self.policies,
            request_hash: self.request_hash,
            created_at: now,
            trace: None,
            dispatch: self.dispatch.clone(),
            occurrence: Some(occurrence),
        }
    }
}

impl ColdStore {
    /// An occurrence of a schedule as it would be made now, to show what all of them are.
    pub fn specimen(&self, row: &ScheduleRow) -> TimerRow {
        let spread = row.content.spread.map(|within| Spread { within, from: self.clock.now() });
        self.fresh_row(&NewTimer { spread, ..self.run_of(row, Uuid::nil()) })
    }

    /// An occurrence that is made now, outside the rule, and due now: no other moment is chosen for it.
    pub fn run_of(&self, row: &ScheduleRow, fresh: Uuid) -> NewTimer {
        let (uid, now) = (Uid(fresh), self.clock.now());
        let occurrence = Occurrence {
            schedule: row.id.clone(),
            nominal: None,
            turn: None,
            judge_after: None,
            skipped: None,
        };
        let id = TimerId::of_server(uid, row.namespace);
        NewTimer { spread: None, ..row.content.timer(row.namespace, id, uid, now, now, occurrence) }
    }
}
