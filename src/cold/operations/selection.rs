//! What an operation selects, stored so that any node can go on with it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::super::list::Filter;
use super::super::sql::Statement;
use super::super::{ColdStore, Error};
use crate::model::id::Uid;
use crate::model::queue::To;
use crate::model::time::UnixMs;
use crate::model::timer::State;

/// The timers that an operation takes: those that match a filter, dead ones by when they died.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// They match it.
    pub filter: Filter,
    /// They ended at this moment or later.
    pub ended_from: Option<UnixMs>,
    /// They ended before this moment. Never later than the begin of the operation, so that it does not take what came
    /// after it.
    pub ended_before: UnixMs,
    /// Live ones were registered at this moment or before it; never later than the begin of the operation.
    pub registered_until: Option<UnixMs>,
    /// Their due times move by so many milliseconds.
    pub by_ms: Option<i64>,
}

/// As it is stored. What this version does not know is an error: it would select more than was asked for.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    uids: Vec<String>,
    state: Option<State>,
    lanes: Option<[i64; 2]>,
    destination: Option<String>,
    owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schedule: Option<String>,
    labels: Vec<(String, String)>,
    due_after: Option<i64>,
    due_before: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<To>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    ended_from: Option<i64>,
    ended_before: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    registered_until: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by_ms: Option<i64>,
}

impl Selection {
    pub(super) fn stored(&self) -> String {
        let Filter {
            uids,
            state,
            lanes,
            destination,
            owner,
            schedule,
            labels,
            due_after,
            due_before,
            queue,
            to,
            worker,
        } = self.filter.clone();
        let stored = Stored {
            uids: uids.iter().map(|uid| uid.0.simple().to_string()).collect(),
            state,
            lanes,
            destination,
            owner,
            schedule,
            labels,
            due_after: due_after.map(UnixMs::get),
            due_before: due_before.map(UnixMs::get),
            queue,
            to,
            worker,
            ended_from: self.ended_from.map(UnixMs::get),
            ended_before: self.ended_before.get(),
            registered_until: self.registered_until.map(UnixMs::get),
            by_ms: self.by_ms,
        };
        serde_json::to_string(&stored).unwrap_or_default()
    }

    pub(super) fn read(text: &str) -> Result<Self, Error> {
        let bad = || Error::Corrupt("what an operation selects; another version wrote it".into());
        let stored: Stored = serde_json::from_str(text).map_err(|_| bad())?;
        let uid = |text: &String| Uuid::try_parse(text).map(Uid).map_err(|_| bad());
        let filter = Filter {
            uids: stored.uids.iter().map(uid).collect::<Result<_, _>>()?,
            state: stored.state,
            lanes: stored.lanes,
            destination: stored.destination,
            owner: stored.owner,
            schedule: stored.schedule,
            labels: stored.labels,
            due_after: stored.due_after.map(UnixMs::new),
            due_before: stored.due_before.map(UnixMs::new),
            queue: stored.queue,
            to: stored.to,
            worker: stored.worker,
        };
        let ended_before = UnixMs::new(stored.ended_before);
        let (ended_from, by_ms) = (stored.ended_from.map(UnixMs::new), stored.by_ms);
        let registered_until = stored.registered_until.map(UnixMs::new);
        Ok(Self { filter, ended_from, ended_before, registered_until, by_ms })
    }

    /// The condition that a row matches the filter.
    pub(super) fn matches(&self, store: &ColdStore, s: &mut Statement) -> String {
        match store.conditions(&self.filter, s).as_slice() {
            [] => "true".to_owned(),
            all => format!("COALESCE({}, false)", all.join(" AND ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_read_back_and_one_of_a_newer_version_is_refused() {
        let filter = Filter {
            uids: vec![Uid(Uuid::from_u128(7))],
            state: Some(State::Dead),
            lanes: Some([1, -2]),
            destination: Some("a".into()),
            owner: Some("me".into()),
            schedule: Some("daily".into()),
            labels: vec![("a".into(), "b".into())],
            due_after: Some(UnixMs::new(1)),
            due_before: Some(UnixMs::new(2)),
            queue: Some("q".into()),
            to: Some(To::Group("g7".into())),
            worker: Some("w1".into()),
        };
        let (from, before) = (UnixMs::new(3), UnixMs::new(4));
        let all = Selection {
            filter,
            ended_from: Some(from),
            ended_before: before,
            registered_until: Some(UnixMs::new(5)),
            by_ms: Some(-5),
        };
        for selection in [all.clone(), Selection::default()] {
            let read = Selection::read(&selection.stored()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{selection:?}"));
        }
        let newer = all.stored().replacen('{', "{\"planet\":\"mars\",", 1);
        assert!(matches!(Selection::read(&newer), Err(Error::Corrupt(_))));
    }
}
