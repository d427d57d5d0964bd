//! `receive`: a receiver to try things with. It prints each delivery as it arrives.
//!
//! It keeps nothing, believes anybody, and forgets old deliveries; it is no example for a real receiver.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::arrival::{Arrival, Tally};
use super::exit::{Exit, usage};
use super::{input, out};
use crate::clock::{Clock, SystemClock};
use crate::model::target::secret_bytes;

/// The largest body that is taken in: far above what one timer or a merged delivery carries.
const MAX_BODY: usize = 64 << 20;
/// How long the last answers may take to leave after the last arrival.
const FAREWELL: Duration = Duration::from_secs(2);

/// `receive`
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring receive                   print what arrives at http://127.0.0.1:7700/\n  \
    mainspring receive --fail 2          refuse the first two attempts of each timer\n  \
    mainspring receive --count 10 --json | jq .lateness_ms\n\n\
    Each line: when it arrived, timer, delivery, attempt, how far past due, signature (with --secret),\n\
    `again` if that delivery was here before, and the body.")]
pub struct Receive {
    /// Where to listen; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7700")]
    listen: SocketAddr,
    /// Listen on an address that others can reach
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
    /// End after N arrivals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// What the handlers share.
struct Desk {
    secret: Option<Webhook>,
    status: StatusCode,
    delay: Duration,
    fail: u32,
    count: Option<u64>,
    json: bool,
    book: Mutex<Book>,
    stop: CancellationToken,
}

/// What has arrived so far.
#[derive(Default)]
struct Book {
    arrived: u64,
    deliveries: Tally,
    timers: Tally,
    broken: Option<anyhow::Error>,
}

/// Receives until told to stop.
pub async fn run(receive: &Receive, json: bool) -> anyhow::Result<Exit> {
    if !receive.listen.ip().is_loopback() && !receive.public {
        return Err(usage(format!(
            "{} can be reached by others, and whatever they send would be printed; add --public if that is meant",
            receive.listen
        )));
    }
    let secret = match &receive.secret_file {
        Some(path) => Some(input::secret_file("--secret-file", path)?),
        None => receive.secret.clone(),
    };
    let key = secret.as_deref().map(secret_bytes).transpose().map_err(usage)?;
    let secret = key.map(Webhook::from_bytes).transpose()?;
    let listener = tokio::net::TcpListener::bind(receive.listen)
        .await
        .with_context(|| format!("cannot listen on {}; --listen names another address", receive.listen))?;
    greet(listener.local_addr()?, secret.is_some());

    let desk = Arc::new(Desk {
        secret,
        status: StatusCode::from_u16(receive.status)?,
        delay: receive.delay,
        fail: receive.fail,
        count: receive.count,
        json,
        book: Mutex::default(),
        stop: CancellationToken::new(),
    });
    let app =
        Router::new().fallback(arrive).layer(DefaultBodyLimit::max(MAX_BODY)).with_state(Arc::clone(&desk));
    let server = axum::serve(listener, app).with_graceful_shutdown(desk.stop.clone().cancelled_owned());
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = server.into_future() => ended?,
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
        () = farewell(&desk) => {}
    }
    let mut book = desk.book.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = book.broken.take() {
        return Err(why);
    }
    match desk.count {
        Some(count) if book.arrived < count => {
            Err(anyhow!("ended after {} of {count} arrivals", book.arrived))
        }
        _ => Ok(Exit::Ok),
    }
}

/// Says where it listens, and how to send something there.
fn greet(local: SocketAddr, signed: bool) {
    let reach = match local.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let url = format!("http://{}/", SocketAddr::new(reach, local.port()));
    let secret = if signed { " --secret SECRET" } else { "" };
    // As it was called here, so that the line works where it is pasted.
    let program = std::env::args().next().unwrap_or_else(|| "mainspring".to_owned());
    out::note(&format!("listening on {url}; Ctrl-C ends it. Try it:"));
    out::note(&format!(
        "  {program} timer put --in 5s --webhook {url}{secret} --data '{{\"hello\":\"world\"}}'"
    ));
}

/// Ends when the last answers had their time after the stop.
async fn farewell(desk: &Desk) {
    desk.stop.cancelled().await;
    tokio::time::sleep(desk.delay + FAREWELL).await;
}

async fn arrive(
    State(desk): State<Arc<Desk>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    if method != Method::POST {
        out::note(&format!("{method} {}: not a delivery, answered 405", out::short(uri.path(), 200)));
        return StatusCode::METHOD_NOT_ALLOWED;
    }
    let arrival = Arrival::read(&headers, uri.path(), &body, SystemClock.now(), desk.secret.as_ref());
    let Some((status, last)) = desk.enter(&arrival, out::print) else {
        return StatusCode::SERVICE_UNAVAILABLE;
    };
    if last {
        // Apart from this handler, which goes when its caller does not wait for the answer.
        let (delay, stop) = (desk.delay, desk.stop.clone());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            stop.cancel();
        });
    }
    tokio::time::sleep(desk.delay).await;
    status
}

impl Desk {
    /// Prints an arrival. Gives the answer, and whether this was the last; `None` if it came after that.
    fn enter(
        &self,
        arrival: &Arrival<'_>,
        print: impl FnOnce(&str) -> anyhow::Result<()>,
    ) -> Option<(StatusCode, bool)> {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        if book.broken.is_some() || self.count.is_some_and(|count| book.arrived >= count) {
            return None;
        }
        book.arrived += 1;
        let again = arrival.delivery().is_some_and(|id| book.deliveries.add(id) > 1);
        let nth = book.timers.add(arrival.timer().unwrap_or_default());
        let status = if nth <= self.fail { StatusCode::INTERNAL_SERVER_ERROR } else { self.status };
        let text = if self.json {
            arrival.json(again, status.as_u16())
        } else {
            arrival.line(again, status.as_u16())
        };
        if let Err(why) = print(&text) {
            book.broken = Some(why);
            self.stop.cancel();
        }
        Some((status, self.count.is_some_and(|count| book.arrived >= count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desk(fail: u32, count: Option<u64>) -> Desk {
        Desk {
            secret: None,
            status: StatusCode::NO_CONTENT,
            delay: Duration::ZERO,
            fail,
            count,
            json: true,
            book: Mutex::default(),
            stop: CancellationToken::new(),
        }
    }

    fn answers(desk: &Desk, timers: &[&str]) -> Vec<Option<(u16, bool)>> {
        let enter = |timer: &&str| {
            let headers = HeaderMap::from_iter([
                ("ce-subject".parse().unwrap(), timer.parse().unwrap()),
                ("ce-id".parse().unwrap(), format!("dlv_{timer}").parse().unwrap()),
            ]);
            let arrival = Arrival::read(&headers, "/", b"null", SystemClock.now(), None);
            desk.enter(&arrival, |_| Ok(())).map(|(status, last)| (status.as_u16(), last))
        };
        timers.iter().map(enter).collect()
    }

    #[test]
    fn the_first_attempts_of_each_timer_fail() {
        let some = |status| Some((status, false));
        assert_eq!(
            answers(&desk(2, None), &["a", "b", "a", "a", "b", "b"]),
            [some(500), some(500), some(500), some(204), some(500), some(204)]
        );
    }

    #[test]
    fn nothing_is_taken_after_the_last() {
        assert_eq!(
            answers(&desk(0, Some(2)), &["a", "b", "c"]),
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
