//! The answer to a caller's change that was not made, or not wholly, in words. Both doors give the same.

use crate::cold::TimerRow;
use crate::model::timer::{Answer, State};

/// The code and the words.
pub fn conflict(row: &TimerRow, answer: Answer) -> (&'static str, String) {
    let id = &row.id;
    match (answer, row.life.state) {
        (Answer::InFlight, State::Cancelled) => (
            "in_flight",
            format!(
                "`{id}` is cancelled, but the outcome of an earlier attempt is not known: the receiver may have got it"
            ),
        ),
        (Answer::InFlight, State::Delivering) if row.life.cancel_requested => (
            "in_flight",
            format!(
                "an attempt of `{id}` is under way; the cancel is recorded and no further attempt starts"
            ),
        ),
        (Answer::InFlight, _) => {
            ("in_flight", format!("an attempt of `{id}` is under way, or its outcome is not known"))
        }
        (Answer::AlreadyCancelled, _) => ("already_cancelled", format!("`{id}` was cancelled before")),
        (_, State::Expired) => (
            "already_fired",
            format!("`{id}` is over: it was found later than its grace and expired; nothing was sent"),
        ),
        (_, State::Dead) => (
            "already_fired",
            format!("`{id}` is over: it ran out of attempts, or its receiver is gone (410)"),
        ),
        _ => ("already_fired", format!("`{id}` was delivered before")),
    }
}
