//! `receive`: a receiver for trials. It prints each delivery as it arrives.
//!
//! It stores nothing, accepts posts from anybody, and forgets old deliveries. Do not take it as an example for a real
//! receiver.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use clap::Args;
use standardwebhooks::Webhook;
use tokio_util::sync::CancellationToken;

use super::arrival::{Arrival, Tally};
use super::exit::{Exit, usage};
use super::{client, input, interrupted, out};
use crate::clock::{Clock, SystemClock};
use crate::model::target::secret_bytes;

/// The largest body that is accepted, in bytes: far above that of any delivery.
const MAX_BODY: usize = 64 << 20;
/// How long the last answers may take after the last arrival.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// `receive`
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring receive                   print what arrives at http://127.0.0.1:7700/\n  \
    mainspring receive --fail 2          refuse the first two attempts of each timer\n  \
    mainspring receive --count 10 --json | jq .lateness_ms\n\n\
    Each line: time of arrival, timer, delivery, attempt, lateness, signature (with --secret), `again` if that\n\
    delivery has arrived before, and the body. A merged delivery has its owner instead of a timer, and a line for\n\
    each of its timers.")]
pub struct Receive {
    /// Where to listen; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7700")]
    listen: SocketAddr,
    /// Allow an address that other machines can reach
    #[arg(long)]
    public: bool,
    /// Check signatures with this secret (Standard Webhooks, whsec_ and base64)
    #[arg(long, value_name = "SECRET", conflicts_with = "secret_file")]
    secret: Option<String>,
    /// Check signatures with the secret in this file
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Answer with this status
    #[arg(long, value_name = "CODE", default_value_t = 204, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
    /// Wait this long before each answer: 500ms, 5s, 1m
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = input::duration)]
    delay: Duration,
    /// Answer the first N attempts of each timer with 500
    #[arg(long, value_name = "N", default_value_t = 0)]
    fail: u32,
    /// End after N deliveries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// The flags, and what has arrived. The handlers share it.
struct Receiver {
    secret: Option<Webhook>,
    status: StatusCode,
    delay: Duration,
    fail: u32,
    count: Option<u64>,
    json: bool,
    arrivals: Mutex<Arrivals>,
    stop: CancellationToken,
}

/// What has arrived so far.
#[derive(Default)]
struct Arrivals {
    count: u64,
    deliveries: Tally,
    timers: Tally,
    /// Why stdout can no longer be written.
    failure: Option<anyhow::Error>,
}

/// Receives until told to stop.
pub async fn run(flags: &Receive, json: bool) -> anyhow::Result<Exit> {
    if !flags.listen.ip().is_loopback() && !flags.public {
        return Err(usage(format!(
            "other machines can reach {}, and whatever they send would be printed; add --public to allow that",
            flags.listen
        )));
    }
    let secret = input::secret(flags.secret.as_ref(), flags.secret_file.as_deref())?;
    let key = secret.as_deref().map(secret_bytes).transpose().map_err(usage)?;
    let secret = key.map(Webhook::from_bytes).transpose()?;
    let listener = tokio::net::TcpListener::bind(flags.listen)
        .await
        .with_context(|| format!("cannot listen on {}; --listen names another address", flags.listen))?;
    let interrupted = interrupted()?;
    announce(listener.local_addr()?, secret.is_some());

    let receiver = Arc::new(Receiver {
        secret,
        status: StatusCode::from_u16(flags.status)?,
        delay: flags.delay,
        fail: flags.fail,
        count: flags.count,
        json,
        arrivals: Mutex::default(),
        stop: CancellationToken::new(),
    });
    let app = Router::new()
        .fallback(arrive)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Arc::clone(&receiver));
    let server = axum::serve(listener, app).with_graceful_shutdown(receiver.stop.clone().cancelled_owned());
    tokio::select! {
        ended = server.into_future() => ended?,
        () = interrupted.cancelled() => {}
        () = last_answers(&receiver) => {}
    }
    let mut arrivals = receiver.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = arrivals.failure.take() {
        return Err(why);
    }
    match receiver.count {
        Some(count) if arrivals.count < count => {
            Err(anyhow!("ended after {} of {count} deliveries", arrivals.count))
        }
        _ => Ok(Exit::Ok),
    }
}

/// Prints the address, and a command that sends something there.
fn announce(local: SocketAddr, signed: bool) {
    let url = format!("http://{}/", client::reachable(local));
    let secret = if signed { " --secret SECRET" } else { "" };
    // The name under which this program was started, so that the command works when it is pasted.
    let program = std::env::args().next().unwrap_or_else(|| "mainspring".to_owned());
    out::note(&format!("listening on {url}; Ctrl-C ends it. Try it:"));
    out::note(&format!(
        "  {program} timer put --in 5s --webhook {url}{secret} --data '{{\"hello\":\"world\"}}'"
    ));
}

/// Ends some time after the stop, in which the last answers are sent.
async fn last_answers(receiver: &Receiver) {
    receiver.stop.cancelled().await;
    tokio::time::sleep(receiver.delay + LAST_ANSWERS).await;
}

async fn arrive(
    State(receiver): State<Arc<Receiver>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    if method != Method::POST {
        out::note(&format!("{method} {}: not a delivery, answered 405", out::short(uri.path(), 200)));
        return StatusCode::METHOD_NOT_ALLOWED;
    }
    let arrival = Arrival::read(&headers, uri.path(), &body, SystemClock.now(), receiver.secret.as_ref());
    let Some((status, last)) = receiver.record(&arrival, out::print) else {
        return StatusCode::SERVICE_UNAVAILABLE;
    };
    if last {
        // In a task of its own: this handler is dropped when its caller does not wait for the answer.
        let (delay, stop) = (receiver.delay, receiver.stop.clone());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            stop.cancel();
        });
    }
    tokio::time::sleep(receiver.delay).await;
    status
}

impl Receiver {
    /// Counts and prints a delivery. Returns the status to answer, and whether this delivery is the last; `None` if it
    /// came after the last.
    fn record(
        &self,
        arrival: &Arrival<'_>,
        print: impl FnOnce(&str) -> anyhow::Result<()>,
    ) -> Option<(StatusCode, bool)> {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if arrivals.failure.is_some() || self.count.is_some_and(|count| arrivals.count >= count) {
            return None;
        }
        arrivals.count += 1;
        let again = arrival.delivery().is_some_and(|id| arrivals.deliveries.add(id) > 1);
        // A merged set is refused for the sake of any of its timers.
        let nth = arrival.timers().into_iter().map(|timer| arrivals.timers.add(timer)).min().unwrap_or(1);
        let status = if nth <= self.fail { StatusCode::INTERNAL_SERVER_ERROR } else { self.status };
        let text = if self.json {
            arrival.json(again, status.as_u16())
        } else {
            arrival.line(again, status.as_u16())
        };
        if let Err(why) = print(&text) {
            arrivals.failure = Some(why);
            self.stop.cancel();
        }
        Some((status, self.count.is_some_and(|count| arrivals.count >= count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(fail: u32, count: Option<u64>) -> Receiver {
        Receiver {
            secret: None,
            status: StatusCode::NO_CONTENT,
            delay: Duration::ZERO,
            fail,
            count,
            json: true,
            arrivals: Mutex::default(),
            stop: CancellationToken::new(),
        }
    }

    fn answers(receiver: &Receiver, timers: &[&str]) -> Vec<Option<(u16, bool)>> {
        let enter = |timer: &&str| {
            let headers = HeaderMap::from_iter([
                ("ce-subject".parse().unwrap(), timer.parse().unwrap()),
                ("ce-id".parse().unwrap(), format!("dlv_{timer}").parse().unwrap()),
            ]);
            let arrival = Arrival::read(&headers, "/", b"null", SystemClock.now(), None);
            receiver.record(&arrival, |_| Ok(())).map(|(status, last)| (status.as_u16(), last))
        };
        timers.iter().map(enter).collect()
    }

    #[test]
    fn the_first_attempts_of_each_timer_fail() {
        let some = |status| Some((status, false));
        assert_eq!(
            answers(&receiver(2, None), &["a", "b", "a", "a", "b", "b"]),
            [some(500), some(500), some(500), some(204), some(500), some(204)]
        );
    }

    #[test]
    fn a_merged_set_fails_while_one_of_its_timers_has_attempts_to_fail() {
        let receiver = receiver(1, None);
        assert_eq!(answers(&receiver, &["a"]), [Some((500, false))]);
        let headers = HeaderMap::from_iter([
            ("ce-subject".parse().unwrap(), "user:1".parse().unwrap()),
            ("ce-type".parse().unwrap(), "mainspring.timer.merged.v1".parse().unwrap()),
        ]);
        let member = |id| format!(r#"{{"timer":"{id}","due_at":"2026-12-01T01:00:00.000Z","data":1}}"#);
        let body = format!(r#"{{"merged":[{},{}]}}"#, member("a"), member("b"));
        let answer = || {
            let arrival = Arrival::read(&headers, "/", body.as_bytes(), SystemClock.now(), None);
            receiver.record(&arrival, |_| Ok(())).map(|(status, _)| status.as_u16())
        };
        assert_eq!((answer(), answer()), (Some(500), Some(204)), "`b` has come once, then twice");
    }

    #[test]
    fn nothing_is_taken_after_the_last() {
        assert_eq!(
            answers(&receiver(0, Some(2)), &["a", "b", "c"]),
            [Some((204, false)), Some((204, true)), None]
        );
    }

    #[tokio::test]
    async fn an_address_that_others_can_reach_needs_public() {
        use clap::FromArgMatches;
        let command = Receive::augment_args(clap::Command::new("receive"));
        for listen in ["0.0.0.0:0", "192.0.2.1:0", "[::]:0"] {
            let matches = command.clone().try_get_matches_from(["receive", "--listen", listen]).unwrap();
            let why = run(&Receive::from_arg_matches(&matches).unwrap(), false).await.unwrap_err();
            assert_eq!(super::super::exit::of(&why), Exit::Usage, "{listen}");
        }
    }
}
