//! Merging: timers of one owner, one target and one window that are due close together go out as one delivery.
//!
//! A *set* is made when its first member comes up: the members that wait, in order of their due times, from the earliest
//! one on, while they are due within its window and there is room ([`form`]). It goes out at its *moment*, the last of
//! their due times. Until the claim it exists nowhere: who is cancelled or moved is out, who is registered is in. The
//! claim freezes it: each member's row gets the same [`Merged`], and from then on every attempt is of these members, less
//! those that were cancelled or moved since.
//!
//! A set of one is an ordinary delivery.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::id::{Epoch, Generation, Uid, digest16};
use super::namespace::Salt;
use super::policy::Retry;
use super::target::Target;
use super::time::{Span, UnixMs};

/// The longest window.
pub const MAX_WINDOW: Duration = Duration::from_secs(300);

/// The most members of a set.
pub const MAX_MEMBERS: usize = 100;

/// The most bytes of a set's body.
pub const MAX_BYTES: usize = 1024 * 1024;

/// What a member's place in the body takes at most, beside its id and its data.
const MEMBER_OVERHEAD: usize = 128;

/// `merge` of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merge {
    /// How much later than the first member another one may be due.
    pub window: Span,
}

impl Merge {
    /// What timers have in common that may go out together.
    pub fn key(&self, salt: &Salt, owner: &str, target: &Target) -> MergeKey {
        let window = u64::try_from(self.window.get().as_millis()).unwrap_or(u64::MAX);
        MergeKey(digest16(&[
            b"merge",
            salt.bytes(),
            owner.as_bytes(),
            &target.kind().to_be_bytes(),
            target.stored().as_bytes(),
            &window.to_be_bytes(),
        ]))
    }
}

/// A hash of what timers have in common that may go out together: owner, target and window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MergeKey(pub [u8; 16]);

/// The set that a claim has made of timers, the same in each of their rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// The delivery id of all its attempts.
    pub id: String,
    /// Its moment, in milliseconds: the last of the due times of its members. Lateness and grace count from it.
    pub at: i64,
    /// How many members the claim gave it.
    pub members: usize,
    /// The first member's `retry`, if it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

impl Merged {
    /// Its moment.
    pub const fn moment(&self) -> UnixMs {
        UnixMs::new(self.at)
    }

    /// A set's delivery id, from its first member and the claim that makes it, by its epoch and its moment: a set that was
    /// given back, and is made anew while one of its members was not, is another one. No timer's own delivery id is made
    /// like this.
    pub fn delivery_id(first: Uid, generation: Generation, epoch: Epoch, claimed_at: UnixMs) -> String {
        let (generation, claimed_at) = (generation.0.to_be_bytes(), claimed_at.get().to_be_bytes());
        let parts =
            [b"merged", first.0.as_bytes().as_slice(), &generation, &epoch.0.to_be_bytes(), &claimed_at];
        let hash = digest16(&parts);
        format!("dlv_{}", Uuid::from_bytes(hash).simple())
    }
}

/// A timer that waits to be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// When it is due.
    pub due_at: UnixMs,
    /// What its id and its data take, in bytes.
    pub bytes: usize,
}

/// The earliest set of timers of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set {
    /// How many of the timers, from the first on, are its members.
    pub members: usize,
    /// Its moment.
    pub at: UnixMs,
}

/// The earliest set of these timers, which are of one key and in order of their due times; `None` if there are none.
/// The rest form the next one.
pub fn form(waiting: &[Waiting], window: Duration) -> Option<Set> {
    let first = waiting.first()?;
    let until = first.due_at.plus(window);
    let mut bytes = 0;
    let is_in = |one: &&Waiting| {
        bytes += one.bytes + MEMBER_OVERHEAD;
        one.due_at <= until && bytes <= MAX_BYTES
    };
    // The first one is in whatever its size: its data alone is far smaller than a set may be.
    let members = waiting.iter().take(MAX_MEMBERS).take_while(is_in).count().max(1);
    Some(Set { members, at: waiting[members - 1].due_at })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(due_at: i64) -> Waiting {
        Waiting { due_at: UnixMs::new(due_at), bytes: 10 }
    }

    #[test]
    fn a_set_is_what_is_due_within_the_window_of_its_first() {
        let window = Duration::from_secs(1);
        let set = |due: &[i64]| {
            form(&due.iter().map(|due| at(*due)).collect::<Vec<_>>(), window)
                .map(|set| (set.members, set.at.get()))
        };
        assert_eq!(set(&[]), None);
        assert_eq!(set(&[5]), Some((1, 5)));
        assert_eq!(set(&[0, 0, 999, 1000, 1001]), Some((4, 1000)));
        // The window counts from the first one: no chain of others makes it longer.
        assert_eq!(set(&[0, 800, 1600]), Some((2, 800)));
    }

    #[test]
    fn a_set_has_at_most_a_hundred_members_and_a_mebibyte() {
        let window = Duration::from_secs(60);
        let many: Vec<Waiting> = (0..250).map(at).collect();
        assert_eq!(form(&many, window), Some(Set { members: 100, at: UnixMs::new(99) }));
        let large: Vec<Waiting> = (0..40).map(|due| Waiting { bytes: 64 * 1024, ..at(due) }).collect();
        let set = form(&large, window).unwrap();
        assert!(set.members * (64 * 1024 + MEMBER_OVERHEAD) <= MAX_BYTES && set.members == 15, "{set:?}");
    }

    #[test]
    fn timers_merge_only_with_their_like() {
        let hook = |url: &str, secret: Option<&str>| {
            let secret = secret.map(str::to_owned);
            Target::Webhook(
                crate::model::target::Webhook::new(url, secret, std::collections::BTreeMap::new()).unwrap(),
            )
        };
        let key = |window: &str, owner: &str, target: &Target| {
            Merge { window: Span::parse(window).unwrap() }.key(&Salt::own("default"), owner, target)
        };
        let plain = hook("http://a/x", None);
        let one = key("PT1S", "u", &plain);
        assert_eq!(one, key("PT1S", "u", &hook("http://A:80/x", None)));
        for other in [
            key("PT2S", "u", &plain),
            key("PT1S", "v", &plain),
            key("PT1S", "u", &hook("http://a/y", None)),
            key("PT1S", "u", &hook("http://a/x", Some("whsec_c2VjcmV0"))),
            key("PT1S", "u", &Target::Destination("http://a/x".into())),
        ] {
            assert_ne!(one, other);
        }
    }

    proptest! {
        #[test]
        fn sets_one_after_the_other_take_every_timer_once(
            mut due in prop::collection::vec(0..5000_i64, 0..300), window in 0..2000_u64
        ) {
            due.sort_unstable();
            let mut rest: Vec<Waiting> = due.iter().map(|due| at(*due)).collect();
            let window = Duration::from_millis(window);
            let mut taken = 0;
            while let Some(set) = form(&rest, window) {
                prop_assert!(set.members > 0 && set.members <= MAX_MEMBERS);
                let members: Vec<Waiting> = rest.drain(..set.members).collect();
                prop_assert_eq!(set.at, members[members.len() - 1].due_at);
                prop_assert!(set.at.since(members[0].due_at) <= window);
                // Whoever could have joined has joined.
                let is_left_out = rest.first().is_some_and(|next| next.due_at <= members[0].due_at.plus(window));
                prop_assert!(!is_left_out || set.members == MAX_MEMBERS);
                taken += set.members;
            }
            prop_assert_eq!(taken, due.len());
        }
    }
}
