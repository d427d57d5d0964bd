//! `wheel watch`: the wheels on a terminal, as they turn.
//!
//! It reads `GET /v1/wheels/stream` ([`model`] keeps what it says) and draws it four times a second ([`draw`]). When the
//! stream breaks, the picture stays, says since when it is old, and the stream is opened again.

mod draw;
mod model;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Subcommand;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::client::{Client, Events};
use super::exit::{Exit, usage};
use super::{look, out};
use model::Model;

/// How often the picture is drawn.
const FRAME: Duration = Duration::from_millis(250);

/// How often the receivers are asked for.
const RECEIVERS: Duration = Duration::from_secs(5);

/// The pause before a broken stream is opened again.
const RETRY: Duration = Duration::from_secs(1);

/// The longest wait for a key: so long after the end its reader is still there.
const KEY_WAIT: Duration = Duration::from_millis(100);

const STREAM: &str = "/v1/wheels/stream";

/// `wheel …`
#[derive(Subcommand)]
pub enum Verb {
    /// Show the wheels as they turn; q quits. With --json: the frames of the stream, one a line
    Watch,
}

/// Runs one `wheel` verb.
pub async fn run(client: Client, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    let Verb::Watch = verb;
    if !json && !std::io::stdout().is_terminal() {
        return Err(usage("`wheel watch` draws on a terminal; --json prints the frames, one a line"));
    }
    // A server that is not there, or refuses, is told before the screen changes.
    let mut events = client.events(STREAM).await?;
    if json {
        return print_frames(&mut events).await;
    }
    let mut terminal = ratatui::try_init()?;
    let watched = watch(&client, events, &mut terminal).await;
    ratatui::restore();
    watched.map(|()| Exit::Ok)
}

async fn print_frames(events: &mut Events) -> anyhow::Result<Exit> {
    let stop = super::interrupted()?;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(Exit::Ok),
            event = events.next() => match event? {
                Some((_, data)) => out::print(&data)?,
                None => return Ok(Exit::Ok),
            },
        }
    }
}

/// Draws until a key or SIGTERM ends it.
async fn watch(client: &Client, events: Events, terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut keys = quit_keys();
    let mut frames = tokio::time::interval(FRAME);
    let mut ask = tokio::time::interval(RECEIVERS);
    let (mut model, mut events) = (Model::default(), Some(events));
    let has_colors = std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = keys.recv() => return Ok(()),
            _ = frames.tick() => {
                terminal.draw(|frame| draw::draw(frame, &model, has_colors))?;
            }
            _ = ask.tick() => match look::listed(client).await {
                Ok(receivers) => model.receivers = receivers,
                Err(why) => model.failure = Some(why.to_string()),
            },
            event = next(client, &mut events) => match event {
                Ok((name, data)) => model.apply(&name, &data)?,
                Err(why) => {
                    model.failure = Some(why.to_string());
                    events = None;
                }
            },
        }
    }
}

/// The next event. A stream that broke is opened again after a pause.
async fn next(client: &Client, events: &mut Option<Events>) -> anyhow::Result<(String, String)> {
    if events.is_none() {
        tokio::time::sleep(RETRY).await;
        *events = Some(client.events(STREAM).await?);
    }
    let event = match events {
        Some(events) => events.next().await?,
        None => None,
    };
    event.ok_or_else(|| anyhow::anyhow!("the server has ended the stream"))
}

/// Reads keys on a thread of its own; sends when one means the end, and ends with the receiver.
fn quit_keys() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            // Without a terminal to read from there are no keys; signals end it then.
            if !matches!(event::poll(KEY_WAIT), Ok(true)) {
                continue;
            }
            let Ok(Event::Key(key)) = event::read() else { continue };
            let is_ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            let quits = is_ctrl_c || matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc);
            if quits && key.kind != KeyEventKind::Release && sender.blocking_send(()).is_err() {
                return;
            }
        }
    });
    receiver
}
