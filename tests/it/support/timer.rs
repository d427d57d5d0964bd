//! A timer as the intake hands it to the cold store.

use std::collections::BTreeMap;

use mainspring::cold::NewTimer;
use mainspring::model::id::TimerId;
use mainspring::model::namespace::{Namespace, Salt};
use mainspring::model::policy::Policies;
use mainspring::model::priority::Priority;
use mainspring::model::target::{Target, Webhook};
use mainspring::model::time::UnixMs;

/// One under the caller's id, for a webhook that nobody serves.
pub fn new_timer(id: &str, due_at: UnixMs, created_at: UnixMs) -> NewTimer {
    let id = TimerId::parse(id).expect("an id");
    let hook = Webhook::new("http://127.0.0.1:9/x", None, BTreeMap::new()).expect("a hook");
    NewTimer {
        uid: id.uid(&Salt::own("default")),
        namespace: Namespace::OWN,
        id,
        caller_id: true,
        again: false,
        owner: None,
        due_at,
        minute: false,
        priority: Priority::Normal,
        spread: None,
        target: Target::Webhook(hook),
        data: None,
        template: None,
        labels: None,
        policies: Policies::default(),
        dispatch: None,
        request_hash: [7; 16],
        created_at,
        trace: None,
        occurrence: None,
    }
}
