//! `forecast` and `receivers`: what is due when, and which receiver fails.

use std::time::Duration;

use clap::Args;
use reqwest::Method;
use serde::Deserialize;

use super::client::{Client, Connection};
use super::exit::Exit;
use super::{input, out};
use crate::clock::{Clock, SystemClock};
use crate::model::time::UnixMs;

/// The longest bar, in characters.
const BAR: usize = 40;

const HOUR_MS: i64 = 3_600_000;

/// How far a forecast reaches, unless told: tomorrow is in it.
const DEFAULT_SPAN: Duration = Duration::from_secs(2 * 86_400);

/// The longest error in a cell.
const MAX_ERROR: usize = 60;

/// `forecast …`
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring forecast\n    \
      the next two days, by the hour\n  \
    mainspring forecast --from 2026-12-01T09:00:00+08:00 --for 10m --step 1m\n    \
      ten minutes from nine o'clock in Shanghai, minute by minute")]
pub struct Forecast {
    #[command(flatten)]
    connection: Connection,
    /// Where it begins [default: the beginning of this hour]
    #[arg(long, value_name = "RFC3339", value_parser = input::instant)]
    from: Option<String>,
    /// Where it ends [default: two days after its beginning]
    #[arg(long, value_name = "RFC3339", value_parser = input::instant, conflicts_with = "span")]
    to: Option<String>,
    /// How long it is: 10m, 2h, 7d, or ISO 8601
    #[arg(long = "for", value_name = "DURATION", value_parser = input::duration)]
    span: Option<Duration>,
    /// The length of a step [default: an hour, or what makes at most 1500 steps]
    #[arg(long, value_name = "DURATION", value_parser = input::span)]
    step: Option<String>,
}

#[derive(Deserialize)]
struct Counts {
    items: Vec<Count>,
    peak: Option<Count>,
}

#[derive(Deserialize)]
struct Count {
    from: String,
    count: i64,
}

/// Prints how much is due when.
pub async fn forecast(args: &Forecast, json: bool) -> anyhow::Result<Exit> {
    let client = Client::new(&args.connection)?;
    let now = SystemClock.now();
    // Steps begin at whole hours, as people ask for them.
    let from = match &args.from {
        Some(from) => from.clone(),
        None => UnixMs::new(now.get().div_euclid(HOUR_MS) * HOUR_MS).rfc3339(),
    };
    let span = args.span.or(args.to.is_none().then_some(DEFAULT_SPAN));
    let begins = UnixMs::parse_rfc3339(&from).unwrap_or(now);
    let to = args.to.clone().or(span.map(|span| begins.plus(span).rfc3339()));
    let query: Vec<(String, String)> = [("from", Some(from)), ("to", to), ("step", args.step.clone())]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
    let reply = client.ask(Method::GET, "/v1/forecast", &query).await?;
    if json {
        out::print(&reply.json)?;
        return Ok(Exit::Ok);
    }
    let counts: Counts = reply.read()?;
    let Some(peak) = &counts.peak else {
        out::note("nothing is due then");
        return Ok(Exit::Ok);
    };
    let mut rows = vec![["FROM", "", "DUE", ""].map(str::to_owned).to_vec()];
    for Count { from, count } in &counts.items {
        let distance = distance(from, now);
        rows.push(vec![out::plain(from), distance, count.to_string(), bar(*count, peak.count)]);
    }
    out::print(&out::table(&rows))?;
    out::print(&format!("peak: {} from {}", peak.count, out::plain(&peak.from)))?;
    Ok(Exit::Ok)
}

fn distance(at: &str, now: UnixMs) -> String {
    UnixMs::parse_rfc3339(at).map_or_else(|_| String::new(), |at| out::from_now(at, now))
}

/// A bar as long as its share of the peak, at least one character.
fn bar(count: i64, peak: i64) -> String {
    let length = usize::try_from(count.max(0) * BAR as i64 / peak.max(1)).unwrap_or(BAR);
    "█".repeat(length.max(1))
}

/// `receivers …`
#[derive(Args)]
pub struct Receivers {
    #[command(flatten)]
    connection: Connection,
}

#[derive(Deserialize)]
struct Listed {
    items: Vec<Receiver>,
}

/// One receiver, as the server lists it.
#[derive(Deserialize)]
pub(super) struct Receiver {
    pub receiver: String,
    pub state: String,
    pub since: String,
    pub rate: f64,
    pub in_flight: u64,
    pub waiting: u64,
    pub last_error: Option<String>,
}

/// Reads the receivers, worst first.
pub(super) async fn listed(client: &Client) -> anyhow::Result<Vec<Receiver>> {
    let reply = client.ask(Method::GET, "/v1/receivers", &[]).await?;
    Ok(reply.read::<Listed>()?.items)
}

/// Prints the receivers, worst first.
pub async fn receivers(args: &Receivers, json: bool) -> anyhow::Result<Exit> {
    let client = Client::new(&args.connection)?;
    if json {
        let reply = client.ask(Method::GET, "/v1/receivers", &[]).await?;
        out::print(&reply.json)?;
        return Ok(Exit::Ok);
    }
    let items = listed(&client).await?;
    if items.is_empty() {
        out::note("no receiver yet: nothing was sent since the nodes started");
        return Ok(Exit::Ok);
    }
    let now = SystemClock.now();
    let head = ["RECEIVER", "STATE", "SINCE", "ATTEMPTS/S", "IN FLIGHT", "WAITING", "LAST ERROR"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in items {
        let error = one.last_error.as_deref().map_or_else(String::new, |why| out::short(why, MAX_ERROR));
        rows.push(vec![
            out::plain(&one.receiver),
            out::plain(&one.state),
            distance(&one.since, now),
            format!("{:.1}", one.rate),
            one.in_flight.to_string(),
            one.waiting.to_string(),
            error,
        ]);
    }
    out::print(&out::table(&rows))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_its_share_of_the_peak() {
        let length = |count, peak| bar(count, peak).chars().count();
        assert_eq!((length(10, 10), length(5, 10), length(1, 1000), length(0, 0)), (40, 20, 1, 1));
    }
}
