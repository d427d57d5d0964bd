use super::*;

const NOW: UnixMs = UnixMs::new(1_000_000);
const LATER: UnixMs = UnixMs::new(1_060_000);

fn scheduled() -> Life {
    Life::new(NOW, NOW)
}

/// As the claim statement leaves it.
fn claimed(mut life: Life) -> Life {
    life.state = State::Delivering;
    life.attempt += 1;
    life.tries += 1;
    life.wake_at = NOW.plus(std::time::Duration::from_secs(15));
    life
}

fn token(life: &Life) -> Token {
    Token { generation: life.generation, attempt: life.attempt }
}

fn attempted(life: Life, result: AttemptResult, next: Next) -> Step {
    life.step(Event::Attempted { token: token(&life), result, next }, NOW)
}

#[test]
fn cancel_before_any_attempt_is_cancelled_and_repeats() {
    let step = scheduled().step(Event::Cancel, NOW);
    assert_eq!((step.life.state, step.answer), (State::Cancelled, Answer::Cancelled));
    assert_eq!(step.life.step(Event::Cancel, NOW).answer, Answer::Cancelled);
}

#[test]
fn cancel_after_sure_failures_is_stopped() {
    for result in [AttemptResult::Failed, AttemptResult::Refused] {
        let retrying = attempted(claimed(scheduled()), result, Next::Retry(LATER)).life;
        assert_eq!((retrying.state, retrying.wake_at), (State::Retrying, LATER));
        let step = retrying.step(Event::Cancel, NOW);
        assert_eq!((step.life.state, step.answer), (State::Cancelled, Answer::Stopped));
    }
}

#[test]
fn an_unknown_outcome_bars_a_clean_answer_for_good() {
    for result in [AttemptResult::Timeout, AttemptResult::Unknown] {
        let retrying = attempted(claimed(scheduled()), result, Next::Retry(LATER)).life;
        assert!(retrying.uncertain);
        let sure = attempted(claimed(retrying), AttemptResult::Failed, Next::Retry(LATER)).life;
        let step = sure.step(Event::Cancel, NOW);
        assert_eq!(
            (step.life.state, step.answer, step.life.uncertain),
            (State::Cancelled, Answer::InFlight, true)
        );
        assert_eq!(step.life.step(Event::Cancel, NOW).answer, Answer::InFlight);
        assert_eq!(sure.step(Event::Reschedule { due_at: LATER }, NOW).answer, Answer::InFlight);
    }
}

#[test]
fn a_cancel_in_flight_allows_no_further_attempt() {
    let asked = claimed(scheduled()).step(Event::Cancel, NOW);
    assert_eq!((asked.life.state, asked.answer), (State::Delivering, Answer::InFlight));
    for (result, end) in [
        (AttemptResult::Ok, State::Delivered),
        (AttemptResult::Failed, State::Cancelled),
        (AttemptResult::Timeout, State::Cancelled),
    ] {
        let end_life = attempted(asked.life, result, Next::Retry(LATER)).life;
        assert_eq!(end_life.state, end);
        assert_eq!(end_life.uncertain, end == State::Cancelled);
    }
    let released = asked.life.step(Event::Released { token: token(&asked.life) }, NOW).life;
    assert_eq!((released.state, released.uncertain), (State::Cancelled, true));
    let expired =
        asked.life.step(Event::ClaimExpired { token: token(&asked.life), max_attempts: 8 }, NOW).life;
    assert_eq!(expired.state, State::Cancelled);
}

#[test]
fn a_reschedule_makes_a_new_generation_and_forgets_its_attempts() {
    let retrying = attempted(claimed(scheduled()), AttemptResult::Failed, Next::Retry(LATER)).life;
    let step = retrying.step(Event::Reschedule { due_at: LATER }, NOW);
    assert_eq!(step.answer, Answer::Done);
    assert_eq!(
        (step.life.state, step.life.generation, step.life.attempt),
        (State::Scheduled, Generation(2), 0)
    );
    assert_eq!(step.life.step(Event::Cancel, NOW).answer, Answer::Stopped, "its first generation was tried");
    assert_eq!(claimed(scheduled()).step(Event::Reschedule { due_at: LATER }, NOW).answer, Answer::InFlight);
}

#[test]
fn a_paused_timer_keeps_its_place_and_its_age() {
    let paused = Life::new(LATER, NOW).step(Event::Pause, NOW);
    assert_eq!((paused.life.state, paused.life.wake_at, paused.answer), (State::Paused, LAST, Answer::Done));
    let resume = |life: Life, now| life.step(Event::Resume { is_too_late: false }, now).life;
    let early = resume(paused.life, NOW);
    assert_eq!((early.state, early.wake_at), (State::Scheduled, LATER));
    let past = LATER.plus(std::time::Duration::from_secs(1));
    let late = resume(paused.life, past);
    assert_eq!((late.state, late.due_at, late.wake_at), (State::Scheduled, LATER, past));
    assert_eq!((late.generation, late.version), (Generation(1), Version(3)), "the same firing");
    let retrying = attempted(claimed(scheduled()), AttemptResult::Failed, Next::Retry(LATER)).life;
    let again = resume(retrying.step(Event::Pause, NOW).life, NOW);
    assert_eq!((again.state, again.wake_at, again.attempt), (State::Retrying, NOW, 1));
}

#[test]
fn a_resume_ends_what_is_too_late_and_was_never_attempted() {
    let resume =
        |life: Life| life.step(Event::Pause, NOW).life.step(Event::Resume { is_too_late: true }, NOW);
    assert_eq!(resume(scheduled()).life.state, State::Expired);
    let retrying = attempted(claimed(scheduled()), AttemptResult::Failed, Next::Retry(LATER)).life;
    assert_eq!(resume(retrying).life.state, State::Retrying, "its first attempt was in time");
    let waiting = scheduled().step(Event::Resume { is_too_late: true }, NOW).life;
    assert_eq!(waiting.state, State::Scheduled, "it was not paused");
}

#[test]
fn a_paused_timer_can_be_moved_cancelled_and_fired() {
    let paused = scheduled().step(Event::Pause, NOW).life;
    let moved = paused.step(Event::Reschedule { due_at: LATER }, NOW).life;
    assert_eq!((moved.state, moved.due_at, moved.wake_at), (State::Paused, LATER, LAST));
    assert_eq!(moved.generation, Generation(2));
    let fired = paused.step(Event::Fire, LATER).life;
    assert_eq!((fired.state, fired.due_at, fired.wake_at), (State::Scheduled, LATER, LATER));
    assert_eq!(paused.step(Event::Cancel, NOW).answer, Answer::Cancelled);
    let tried = attempted(claimed(scheduled()), AttemptResult::Failed, Next::Retry(LATER)).life;
    assert_eq!(tried.step(Event::Pause, NOW).life.step(Event::Cancel, NOW).answer, Answer::Stopped);
    assert_eq!(claimed(scheduled()).step(Event::Pause, NOW).answer, Answer::InFlight);
    let unknown = attempted(claimed(scheduled()), AttemptResult::Unknown, Next::Retry(LATER)).life;
    assert_eq!(unknown.step(Event::Pause, NOW).answer, Answer::InFlight);
}

#[test]
fn a_claim_that_expired_is_tried_again_until_its_attempts_are_spent() {
    let life = claimed(scheduled());
    let again = life.step(Event::ClaimExpired { token: token(&life), max_attempts: 2 }, LATER).life;
    assert_eq!((again.state, again.wake_at, again.uncertain), (State::Retrying, LATER, true));
    let last = claimed(again);
    let dead = last.step(Event::ClaimExpired { token: token(&last), max_attempts: 2 }, LATER).life;
    assert_eq!(dead.state, State::Dead);
}

#[test]
fn a_late_result_counts_only_for_the_attempt_it_belongs_to() {
    let first = claimed(scheduled());
    let old = token(&first);
    let waiting = first.step(Event::ClaimExpired { token: old, max_attempts: 8 }, NOW).life;
    let late =
        |life: Life, result| life.step(Event::Attempted { token: old, result, next: Next::GiveUp }, NOW);
    assert_eq!(late(waiting, AttemptResult::Failed).answer, Answer::Stale);
    assert_eq!(late(waiting, AttemptResult::Ok).life.state, State::Delivered);
    let second = claimed(waiting);
    assert_eq!(late(second, AttemptResult::Failed), Step { life: second, answer: Answer::Stale });
    let acked = late(second, AttemptResult::Ok).life;
    assert_eq!((acked.state, acked.acked_late), (State::Delivering, true));
    assert_eq!(attempted(acked, AttemptResult::Failed, Next::Retry(LATER)).life.state, State::Delivered);
    // A result of an older generation touches nothing.
    let moved = scheduled().step(Event::Reschedule { due_at: LATER }, NOW).life;
    assert_eq!(late(claimed(moved), AttemptResult::Ok).answer, Answer::Stale);
}

#[test]
fn a_release_uncounts_the_attempt() {
    let life = claimed(scheduled());
    let released = life.step(Event::Released { token: token(&life) }, NOW).life;
    assert_eq!((released.state, released.attempt, released.tries), (State::Scheduled, 0, 0));
    assert_eq!(released.step(Event::Cancel, NOW).answer, Answer::Cancelled);
    assert_eq!(released.step(Event::Released { token: token(&life) }, NOW).answer, Answer::Stale);
}

#[test]
fn only_what_was_never_attempted_expires() {
    let late = Event::TooLate { generation: Generation(1) };
    assert_eq!(scheduled().step(late, LATER).life.state, State::Expired);
    assert_eq!(claimed(scheduled()).step(late, LATER).answer, Answer::Stale);
}

#[test]
fn an_end_never_moves() {
    for end in State::ALL.into_iter().filter(|state| state.is_end()) {
        let mut life = claimed(scheduled());
        life.state = end;
        let events = [
            Event::Cancel,
            Event::Reschedule { due_at: LATER },
            Event::Relabel,
            Event::Fire,
            Event::Pause,
            Event::Resume { is_too_late: true },
            Event::Attempted { token: token(&life), result: AttemptResult::Ok, next: Next::GiveUp },
            Event::ClaimExpired { token: token(&life), max_attempts: 1 },
            Event::Released { token: token(&life) },
            Event::TooLate { generation: life.generation },
        ];
        for event in events {
            assert_eq!(life.step(event, NOW).life, life, "{end:?} {event:?}");
        }
    }
}

#[test]
fn codes_and_words_lead_back() {
    for state in State::ALL {
        assert_eq!(State::from_code(state.code()), Some(state));
        assert_eq!(State::from_word(state.word()), Some(state));
    }
    assert_eq!(State::from_code(8), None);
    assert_eq!(State::from_code(-1), None);
}
