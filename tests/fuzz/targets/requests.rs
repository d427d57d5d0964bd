//! Bodies of requests: read, or refused in words. The first byte says what the rest is to be read as.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use mainspring::api::request::{self, Context, Naming, Refused};
use mainspring::config::Config;
use mainspring::model::namespace::{Quotas, Salt};
use mainspring::model::time::{LAST, Span, UnixMs};
use mainspring::model::timer::MAX_DATA;
use mainspring::sink::guard::Guard;
use uuid::Uuid;

static GUARD: LazyLock<Guard> =
    LazyLock::new(|| Guard::new(Arc::new(Config::load(None, [], &[]).expect("the defaults"))));
static SALT: LazyLock<Salt> = LazyLock::new(|| Salt::own("default"));

/// Noon of a day.
const NOW: UnixMs = UnixMs::new(1_795_780_800_000);

fn told<T>(answer: Result<T, Refused>) -> Option<T> {
    match answer {
        Ok(read) => return Some(read),
        Err(Refused::NotJson(why)) => assert!(!why.is_empty()),
        Err(Refused::Fields(errors)) => {
            assert!(!errors.is_empty());
            assert!(errors.iter().all(|error| !error.code.is_empty() && !error.detail.is_empty()));
        }
    }
    None
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, text)) = bytes.split_first() else { return };
    let context = Context {
        now: NOW,
        salt: &SALT,
        quotas: Quotas::default(),
        guard: GUARD.clone(),
        fresh: Uuid::from_u128(7),
        trace: None,
    };
    match kind {
        b'a' => {
            if let Some(timer) = told(request::timer(text, Naming::Body, false, &context)) {
                assert!(timer.due_at <= LAST && timer.data.is_none_or(|data| data.len() <= MAX_DATA));
            }
        }
        b'b' => drop(told(request::schedule("daily", text, &context))),
        b'c' => {
            let now = r#"{"every":"PT1H","target":{"queue":"q"},"data":{"n":1}}"#;
            if let Some(whole) = told(request::patched(now, text)) {
                told(request::schedule("daily", whole.as_bytes(), &context));
            }
        }
        b'd' => drop(told(request::destination(text, &GUARD))),
        b'e' => drop(told(request::key(text, NOW))),
        b'f' => drop(told(request::namespace(text))),
        b'g' => drop(told(request::queue(text))),
        b'h' => drop(told(request::lease(text, &SALT))),
        b'i' => drop(told(request::settle(text, Span::parse("PT1M").expect("a span")))),
        b'j' => drop(told(request::subscription(text))),
        _ => drop(told(request::template(text))),
    }
});
