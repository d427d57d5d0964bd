use proptest::prelude::*;

use super::*;

const AGAIN: Again = Again { max_attempts: 3, wait_ms: 10 };

/// A timer with its places, in memory.
struct Timer {
    life: Life,
    seats: Seats,
    places: Vec<Place>,
    expire_at: Option<UnixMs>,
}

impl Timer {
    fn new(times: u32, repeat: bool) -> Self {
        let dispatch = Dispatch { times, repeat, ..Dispatch::default() };
        let due_at = UnixMs::new(0);
        Self {
            life: Life::new(due_at, due_at),
            seats: Seats::new(dispatch, due_at),
            places: Vec::new(),
            expire_at: None,
        }
    }

    fn places(&mut self) -> Places<'_> {
        let Self { life, seats, places, expire_at } = self;
        Places { life, seats, places, expire_at: *expire_at }
    }
}

fn token(place: &Place) -> LeaseToken {
    LeaseToken {
        uid: Uid(uuid::Uuid::nil()),
        created_at: UnixMs::new(0),
        given_at: place.given_at,
        generation: place.generation.0,
        place: place.number,
        giving: place.giving,
    }
}

#[test]
fn whom_a_timer_is_for_is_read_as_it_is_written() {
    for text in ["any", "worker:w1", "group:g:7", "group:any"] {
        assert_eq!(To::try_from(text.to_owned()).map(String::from), Ok(text.to_owned()));
    }
    for text in ["", "worker", "worker:", "group: ", "team:a", "anybody", "worker:ä"] {
        assert_eq!(To::try_from(text.to_owned()), Err(BadTo), "{text}");
    }
    let group = To::Group("a".into());
    assert_ne!(group.audience(Namespace::OWN, "q"), group.audience(Namespace::OWN, "p"));
    assert_ne!(group.audience(Namespace::OWN, "q"), To::Worker("a".into()).audience(Namespace::OWN, "q"));
}

#[test]
fn a_token_is_read_as_it_was_written_and_nothing_else_is_one() {
    let token = LeaseToken {
        uid: Uid(uuid::Uuid::from_u128(u128::MAX / 3)),
        created_at: UnixMs::new(1_800_000_000_000),
        given_at: UnixMs::new(1_800_000_000_007),
        generation: i32::MAX,
        place: 999,
        giving: 12,
    };
    let text = token.text();
    assert_eq!(LeaseToken::read(&text), Some(token));
    assert_eq!(text.len(), 63);
    for bad in ["", "lse_", "lse_AAAA", &text[1..], &format!("{text}A"), &text.replace("lse_", "dlv_")] {
        assert_eq!(LeaseToken::read(bad), None, "{bad}");
    }
}

#[test]
fn each_place_has_a_delivery_id_of_its_own() {
    let uid = Uid(uuid::Uuid::from_u128(7));
    let id = |generation, number| place_delivery_id(uid, UnixMs::new(1), Generation(generation), number);
    assert_eq!(id(1, 0), delivery_id(uid, 1, Generation(1)), "the first has that of the timer");
    let all: std::collections::BTreeSet<String> =
        [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)].map(|(g, n)| id(g, n)).into();
    assert_eq!(all.len(), 5);
}

#[derive(Debug, Clone)]
enum Step {
    Give(u8),
    Settle(u8, u8),
    Stale(u8),
    Pass(u8),
    Expire,
    TakeBack(u8),
    Cancel,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..5u8).prop_map(Step::Give),
        4 => (any::<u8>(), 0..4u8).prop_map(|(which, action)| Step::Settle(which, action)),
        1 => any::<u8>().prop_map(Step::Stale),
        2 => (0..20u8).prop_map(Step::Pass),
        2 => Just(Step::Expire),
        1 => any::<u8>().prop_map(Step::TakeBack),
        1 => Just(Step::Cancel),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// Whatever workers, time and cancels do: never more than `times` places, never two places of a timer in one worker's
    /// hands, never a second one for a worker that is done unless `repeat`, a stale token changes nothing, and the end
    /// follows from the places.
    #[test]
    fn the_law_of_places(times in 1..5u32, repeat: bool, steps in steps()) {
        let mut timer = Timer::new(times, repeat);
        let mut now = UnixMs::new(0);
        let mut given: Vec<LeaseToken> = Vec::new();
        for step in steps {
            if timer.life.state.is_end() {
                break;
            }
            let before = (timer.life, timer.seats.clone(), timer.places.clone());
            match step {
                Step::Give(worker) => {
                    let worker = format!("w{worker}");
                    let mine = |timer: &Timer| timer.places.iter().filter(|place| place.worker == worker && place.held == Held::Out).count();
                    if let Some(place) = timer.places().give(&worker, now.shifted(10), now) {
                        prop_assert!(!before.0.cancel_requested);
                        prop_assert_eq!(mine(&timer), 1);
                        if !repeat {
                            let done = before.2.iter().any(|one| one.worker == worker && matches!(one.held, Held::Acked | Held::Dead));
                            prop_assert!(!done, "{} has settled one", worker);
                        }
                        given.push(token(&place));
                    }
                }
                Step::Settle(which, action) => {
                    let out: Vec<LeaseToken> = timer.places.iter().filter(|place| place.held == Held::Out).map(token).collect();
                    if !out.is_empty() {
                        let token = out[usize::from(which) % out.len()];
                        let action = [Action::Ack, Action::Retry(Some(3)), Action::Dead, Action::Extend(7)][usize::from(action)];
                        let settled = timer.places().settle(&token, action, AGAIN, now);
                        let was = before.2.iter().find(|place| place.number == token.place).expect("there");
                        prop_assert_eq!(settled.is_some(), was.until > now);
                    }
                }
                Step::Stale(which) => {
                    let is_current = |one: &LeaseToken| timer.places.iter().any(|place| place.held == Held::Out && token(place) == *one);
                    let stale: Vec<LeaseToken> = given.iter().copied().filter(|one| !is_current(one)).collect();
                    if !stale.is_empty() {
                        let token = stale[usize::from(which) % stale.len()];
                        prop_assert!(timer.places().settle(&token, Action::Ack, AGAIN, now).is_none());
                        prop_assert_eq!(&timer.places, &before.2);
                    }
                }
                Step::Pass(ms) => now = now.shifted(i64::from(ms)),
                Step::Expire => {
                    timer.places().expire(AGAIN, now);
                    prop_assert!(timer.places.iter().all(|place| place.held != Held::Out || place.until > now));
                }
                Step::TakeBack(which) => {
                    let out: Vec<LeaseToken> = timer.places.iter().filter(|place| place.held == Held::Out).map(token).collect();
                    if !out.is_empty() {
                        let token = out[usize::from(which) % out.len()];
                        let place = timer.places.iter().find(|place| place.number == token.place).expect("there").clone();
                        let told = timer.places().tell_again(&place.worker, now).expect("it is out");
                        prop_assert_eq!(self::token(&told), token);
                        prop_assert!(!timer.places().take_back(&token, place.until, Held::Returned, now), "he was told again");
                        prop_assert!(timer.places().take_back(&token, told.until, Held::Returned, now));
                    }
                }
                Step::Cancel => {
                    let step = timer.life.step(super::super::timer::Event::Cancel, now);
                    timer.life = step.life;
                    timer.places().settle_state(now);
                }
            }
            let count = |held: Held| timer.places.iter().filter(|place| place.held == held).count();
            prop_assert!(timer.places.len() + timer.seats.fresh as usize <= times as usize);
            prop_assert_eq!(count(Held::Acked), timer.seats.acked as usize);
            let out = count(Held::Out);
            match timer.life.state {
                State::Delivering => prop_assert!(out > 0),
                State::Delivered => prop_assert_eq!(count(Held::Acked), times as usize),
                State::Dead => prop_assert!(out == 0 && count(Held::Dead) > 0 && count(Held::Dead) + count(Held::Acked) == times as usize),
                _ => prop_assert_eq!(out, 0),
            }
            if !timer.life.state.is_end() {
                let back = |place: &&Place| matches!(place.held, Held::Returned | Held::Lost);
                let is_free = !timer.life.cancel_requested
                    && (timer.seats.fresh > 0 || timer.places.iter().any(|place| back(&place)));
                prop_assert_eq!(timer.seats.ready_at.is_some(), is_free);
                let next_end = timer.places.iter().filter(|place| place.held == Held::Out).map(|place| place.until).min();
                prop_assert!(next_end.is_none_or(|end| timer.life.wake_at <= end), "somebody looks when a lease ends");
            }
        }
    }
}
