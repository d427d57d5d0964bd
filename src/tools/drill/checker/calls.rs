//! What the calls about one timer say: its due times, and its story.

use super::Dues;
use crate::tools::drill::history::{Answer, Arrival, Ask, Call, Micros};

/// The due time that was in force when a call was sent.
pub(super) fn due_before(calls: &[&Call], asked_us: Micros) -> Option<i64> {
    let before = calls.iter().take_while(|call| call.asked_us < asked_us);
    before
        .filter(|call| matches!(call.answer, Answer::Done { .. }))
        .filter_map(|call| match call.ask {
            Ask::Register { due_ms } | Ask::Move { due_ms } => Some(due_ms),
            Ask::Cancel => None,
        })
        .last()
}

/// The moments that a timer may be due at, by generation.
pub(super) fn dues(calls: &[&Call]) -> Dues {
    let mut dues = Dues::new();
    let mut current = 0;
    for call in calls {
        let (Ask::Register { due_ms } | Ask::Move { due_ms }) = call.ask else { continue };
        let upto = match call.answer {
            Answer::Done { generation } => generation,
            Answer::Unknown => current + 1,
            _ => continue,
        };
        for generation in current + 1..=upto.max(current + 1) {
            let possible = dues.entry(generation).or_default();
            if !possible.contains(&due_ms) {
                possible.push(due_ms);
            }
        }
        if let Answer::Done { generation } = call.answer {
            // Asked for as it was already, it stays the generation it was.
            dues.entry(generation).or_default().push(due_ms);
            current = generation;
        }
    }
    dues
}

/// The due times of which one is the timer's last, each with the moment of its answer: that of the latest
/// acknowledged call, and those of the unanswered calls after it.
pub(super) fn in_force(calls: &[&Call]) -> Vec<(Micros, Micros)> {
    let mut dues = Vec::new();
    for call in calls {
        let (Ask::Register { due_ms } | Ask::Move { due_ms }) = call.ask else { continue };
        match call.answer {
            Answer::Done { .. } => dues.clear(),
            Answer::Unknown => {}
            _ => continue,
        }
        dues.push((due_ms * 1000, call.answered_us));
    }
    dues
}

/// A timer's life in a line, in milliseconds since its first call.
pub(super) fn story(calls: &[&Call], arrivals: &[&Arrival]) -> String {
    let from = calls.first().map(|call| call.asked_us).or(arrivals.first().map(|a| a.at_us)).unwrap_or(0);
    let ms = |us: Micros| (us - from) as f64 / 1000.0;
    let mut lines: Vec<(Micros, String)> = calls
        .iter()
        .map(|call| {
            let ask = match call.ask {
                Ask::Register { due_ms } => format!("register for {:.1}", ms(due_ms * 1000)),
                Ask::Move { due_ms } => format!("move to {:.1}", ms(due_ms * 1000)),
                Ask::Cancel => "cancel".into(),
            };
            (
                call.asked_us,
                format!("{:.1} {ask}: {:?} at {:.1}", ms(call.asked_us), call.answer, ms(call.answered_us)),
            )
        })
        .chain(arrivals.iter().map(|a| {
            let replied = a.replied.map_or("nothing".into(), |status| status.to_string());
            let (generation, attempt) = (a.generation, a.attempt);
            (
                a.at_us,
                format!(
                    "{:.1} arrival {generation}.{attempt} of node {:?}, answered {replied}",
                    ms(a.at_us),
                    a.node
                ),
            )
        }))
        .collect();
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("; ")
}
