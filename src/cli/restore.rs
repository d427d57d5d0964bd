//! `restore …`: what a restored store holds, and the word that lets it fire. It reads and writes the database itself:
//! the server may be down.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use super::config::Settings;
use super::exit::{Exit, usage};
use super::{input, out, store};
use crate::clock::{Clock, SystemClock};
use crate::cold::{ColdStore, Held, acting};
use crate::model::time::UnixMs;

/// `restore …`
#[derive(Subcommand)]
pub enum Restore {
    /// Show what is held since the store was restored
    Status(Settings),
    /// Let what is held fire, all of it or what is not too old; the rest expires
    Accept(Accept),
}

/// `restore accept`
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring restore accept\n    \
      everything that fell due since the restore point fires, oldest first, at wheel.catch_up_per_second\n  \
    mainspring restore accept --not-older-than 2h\n    \
      what was due within the last two hours fires, the rest expires")]
pub struct Accept {
    /// Only what was due at this moment (RFC 3339) or so long ago (2h, PT2H); the rest expires
    #[arg(long, value_name = "TIME|DURATION")]
    not_older_than: Option<String>,
    #[command(flatten)]
    settings: Settings,
}

/// Runs one `restore` verb.
pub async fn run(verb: &Restore, before: &Settings, json: bool) -> anyhow::Result<Exit> {
    let (Restore::Status(after) | Restore::Accept(Accept { settings: after, .. })) = verb;
    let config = before.and(after).load()?;
    if let Some(path) = store::missing_file(&config) {
        out::note(&format!("mainspring: {} does not exist; nothing is held", path.display()));
        return Ok(Exit::NotFound);
    }
    let accept_from = match verb {
        Restore::Status(_) => None,
        Restore::Accept(Accept { not_older_than, .. }) => Some(oldest(not_older_than.as_deref())?),
    };
    let cold = store::open(&config)?;
    let done = acting(store::on_this_machine(), decide(&cold, accept_from, json)).await;
    cold.close().await;
    done
}

/// The moment from which timers are accepted.
fn oldest(not_older_than: Option<&str>) -> anyhow::Result<UnixMs> {
    let Some(text) = not_older_than else { return Ok(UnixMs::new(0)) };
    if let Ok(at) = UnixMs::parse_rfc3339(text) {
        return Ok(at);
    }
    let ago: Duration = input::duration(text).map_err(|_| {
        usage(format!(
            "--not-older-than {text}: neither a time (2026-12-01T09:00:00Z) nor a duration (2h, PT2H)"
        ))
    })?;
    Ok(UnixMs::new(
        SystemClock.now().get().saturating_sub(i64::try_from(ago.as_millis()).unwrap_or(i64::MAX)),
    ))
}

async fn decide(store: &ColdStore, accept_from: Option<UnixMs>, json: bool) -> anyhow::Result<Exit> {
    let Some((held, count)) = store.held_now().await? else {
        out::note("mainspring: nothing is held: no restore of this store waits for a word");
        return Ok(Exit::NotFound);
    };
    if let Some(from) = accept_from
        && !store.accept_held(from).await?
    {
        out::note("mainspring: somebody else has just accepted it");
        return Ok(Exit::Conflict);
    }
    let text = if json {
        let accepted_from = accept_from.map(|from| from.max(held.from).rfc3339());
        let (from, until) = (held.from.rfc3339(), held.until.rfc3339());
        json!({"held_from": from, "held_until": until, "timers": count, "accepted_from": accepted_from})
            .to_string()
    } else {
        text_of(&held, count, accept_from)
    };
    out::verdict(&text, Exit::Ok)
}

fn text_of(held: &Held, count: i64, accept_from: Option<UnixMs>) -> String {
    let what = format!("due from {} to {}: {count} timers", held.from.rfc3339(), held.until.rfc3339());
    match accept_from {
        None => format!("held      {what}\n`mainspring restore accept` lets them fire"),
        Some(from) if from <= held.from => format!("accepted  {what}; running nodes begin within seconds"),
        Some(from) => {
            format!("accepted  {what}; those due before {} expire instead of firing", from.rfc3339())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_so_long_ago() {
        assert_eq!(oldest(None).expect("all").get(), 0);
        let at = oldest(Some("2026-12-01T09:00:00+01:00")).expect("a time");
        assert_eq!(at.rfc3339(), "2026-12-01T08:00:00.000Z");
        let then = oldest(Some("2h")).expect("a duration");
        let ago = SystemClock.now().get() - then.get();
        assert!((7_200_000..7_260_000).contains(&ago), "{ago}");
        assert!(oldest(Some("yesterday")).unwrap_err().to_string().contains("neither a time"));
    }
}
