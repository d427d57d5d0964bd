//! What many tests write and demand: a target, a problem document, a state that is reached.

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Answer, Api, Ledger};

/// A state that follows without anybody's doing is reached in this time, also on a busy machine.
const IN_TIME: Duration = Duration::from_secs(20);

/// What was registered under load has ended in this time, also on a busy machine.
const SETTLED: Duration = Duration::from_secs(60);

/// Wall time in Unix milliseconds.
pub fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the year 292,000,000")
}

/// The target of a timer: a webhook without anything but its URL.
pub fn to(url: impl AsRef<str>) -> Value {
    json!({"webhook": {"url": url.as_ref()}})
}

/// Looks again and again until it finds what it looks for; panics with the last look after `timeout`.
pub async fn eventually<T, E: Debug>(
    what: &str,
    timeout: Duration,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let end = Instant::now() + timeout;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if Instant::now() >= end => panic!("{what}: not within {timeout:?}, but {seen:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Waits until the timer is in `state` and returns it.
pub async fn in_state(api: &Api, id: &str, state: &str) -> Value {
    eventually(&format!("{id} is {state}"), IN_TIME, async || {
        let (status, timer) = api.timer(id).await;
        if status == 200 && timer["state"] == state { Ok(timer) } else { Err(timer) }
    })
    .await
}

/// Waits until so many timers are delivered and so many pending; the ledger balances at every look.
pub async fn settled(api: &Api, delivered: usize, pending: usize) -> Ledger {
    eventually("the ledger settles", SETTLED, async || {
        let ledger = api.ledger().await;
        assert!(ledger.balances(), "{ledger:?}");
        let seen = (ledger.delivered, ledger.pending);
        if seen == (delivered as u64, pending as u64) { Ok(ledger) } else { Err(ledger) }
    })
    .await
}

/// Demands a complete problem document with this status and code.
#[track_caller]
pub fn problem(answer: &Answer, status: u16, code: &str) {
    let body = &answer.body;
    assert_eq!((answer.status, body["code"].as_str()), (status, Some(code)), "{body}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(body["type"], format!("urn:mainspring:problem:{code}"));
    assert_eq!(body["status"], status);
    for text in ["title", "detail", "request_id"] {
        assert!(body[text].as_str().is_some_and(|text| !text.is_empty()), "no {text} in {body}");
    }
    assert_eq!(answer.header("x-request-id"), body["request_id"].as_str());
    if matches!(status, 429 | 503) {
        let wait = answer.header("retry-after").and_then(|wait| wait.parse::<u32>().ok());
        assert!(wait.is_some_and(|wait| (1..=60).contains(&wait)), "{:?}", answer.headers);
    }
}
