//! Register without end: one timer a line in, one result a line out, and both flow at once.
//!
//! Two tasks a stream. The *reader* takes the body apart, looks at each line and queues it. The *writer*
//! registers whatever is queued, up to one transaction, and answers in order. A lone line is therefore
//! answered as soon as it is committed; while a group commits, the next one is read and checked.
//!
//! Everything is bounded: the queue by a group and by bytes, the answers by two groups. Who does not read his
//! results is not read from. The writer is no part of the connection's own task: a client that stands still
//! must never hold up a transaction that has begun.
//!
//! The answer ends after the last line's result, or earlier: the node stops, the client is silent too long or
//! breaks off. What has a result was decided; a line without one may be sent again.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use futures::StreamExt;
use futures::stream::Peekable;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::many::{Item, ItemAnswer, register_group};
use super::{Answered, MAX_BODY, context};
use crate::api::problem::{FieldError, Problem};
use crate::api::request::RawTimer;
use crate::api::{ApiState, Caller};
use crate::cold::MAX_REGISTER_BATCH;
use crate::service::Service;

const NDJSON: &str = "application/x-ndjson";

/// How long a client may be silent, or leave its results unread, before its stream ends.
const IDLE: Duration = Duration::from_secs(300);

/// Bytes of lines that are read and not yet answered, for each stream.
const MAX_WAITING: usize = 4 * 1024 * 1024;

/// How long a client that waits for `100 Continue` is waited for in turn. It gets it at once.
const CONTINUE: Duration = Duration::from_secs(1);

type Parts = Peekable<BodyDataStream>;

/// Register any number, one timer a line; results come back while the body is still being sent.
#[utoipa::path(post, path = "/v1/timers/stream", tag = "timers",
    request_body(content = RawTimer, content_type = "application/x-ndjson",
        description = "One timer a line, each as in PUT with its `id`, or without one; at most 128 KiB a line, any \
            number of lines. Read the results while you send. Five minutes of silence end the stream."),
    responses((status = 200, body = ItemAnswer, content_type = "application/x-ndjson",
            description = "One result a line, in the order of the lines, each as soon as it is committed. If the \
                answer ends early (the node stops), lines without a result were not acknowledged: send them again"),
        (status = 415, body = Problem, description = "The body is announced as something else")))]
pub async fn stream(
    State(state): State<Arc<ApiState>>,
    axum::Extension(caller): axum::Extension<Caller>,
    request: Request,
) -> Answered {
    state.service()?;
    expect_ndjson(request.headers())?;
    let (answers, answered) = mpsc::channel::<Bytes>(1);
    let asks = request.headers().contains_key(header::EXPECT);
    let mut body = request.into_body().into_data_stream().peekable();
    if asks {
        // The 100 goes out when the body is asked for, and never after the answer's head: a client may take
        // that for a refusal of its body.
        let _ = tokio::time::timeout(CONTINUE, Pin::new(&mut body).peek()).await;
    }
    tokio::spawn(run(state, caller, body, answers));
    let results = futures::stream::unfold(answered, |mut answered| async {
        let lines = answered.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(lines), answered))
    });
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(results)).into_response())
}

fn expect_ndjson(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if [NDJSON, "application/ndjson", "application/jsonl"]
        .iter()
        .any(|known| kind.eq_ignore_ascii_case(known))
    {
        return Ok(());
    }
    let detail = format!(
        "send one timer a line, with `content-type: {NDJSON}`; for one JSON document with many timers there is \
         POST /v1/timers/batch"
    );
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_ndjson", detail))
}

/// A line that was looked at, and its share of the stream's memory.
struct Waiting {
    item: Item,
    room: OwnedSemaphorePermit,
}

/// Reads and answers one stream until either side ends it.
async fn run(state: Arc<ApiState>, caller: Caller, body: Parts, answers: mpsc::Sender<Bytes>) {
    let (queue, waiting) = mpsc::channel(MAX_REGISTER_BATCH);
    let room = Arc::new(Semaphore::new(MAX_WAITING));
    let reader = Reader { state: Arc::clone(&state), caller, room, queue, paid: true };
    let reading = tokio::spawn(reader.run(body));
    if let Ok(service) = state.service() {
        write(&state, service, waiting, answers).await;
    }
    // The rest of the body lingers when it is dropped, which therefore comes after the last result.
    if let Err(why) = reading.await {
        tracing::error!(%why, "the reader of a stream broke down");
    }
}

/// Registers and answers group after group. Returns when the lines end, the client is gone, or the doors close;
/// what is queued then is not registered.
async fn write(
    state: &ApiState,
    service: &Service,
    mut waiting: mpsc::Receiver<Waiting>,
    answers: mpsc::Sender<Bytes>,
) {
    let mut group = Vec::new();
    loop {
        let taken = tokio::select! {
            biased;
            () = state.closing.cancelled() => return,
            taken = waiting.recv_many(&mut group, MAX_REGISTER_BATCH) => taken,
        };
        if taken == 0 {
            return;
        }
        let (items, rooms): (Vec<_>, Vec<_>) = group.drain(..).map(|one| (one.item, one.room)).unzip();
        let mut lines = Vec::new();
        for answer in register_group(service, items).await {
            serde_json::to_writer(&mut lines, &answer).expect("texts and numbers can be written as JSON");
            lines.push(b'\n');
        }
        drop(rooms);
        if !matches!(tokio::time::timeout(IDLE, answers.send(lines.into())).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// The one who reads a body.
struct Reader {
    state: Arc<ApiState>,
    caller: Caller,
    room: Arc<Semaphore>,
    queue: mpsc::Sender<Waiting>,
    /// The next line is paid for: the call itself was charged, and is worth one.
    paid: bool,
}

/// The other side has ended: nobody takes what is read.
struct Ended;

impl Reader {
    /// Reads until the body ends, breaks off, or nobody takes it any more; returns what of it is left unread.
    async fn run(mut self, mut body: Parts) -> Option<Parts> {
        let mut lines = Lines::default();
        loop {
            let arrived = tokio::select! {
                () = self.queue.closed() => return Some(body),
                arrived = tokio::time::timeout(IDLE, body.next()) => arrived,
            };
            match arrived {
                Ok(Some(Ok(mut part))) => {
                    while let Some(line) = lines.next(&mut part) {
                        if self.hand_over(line).await.is_err() {
                            return Some(body);
                        }
                    }
                }
                Ok(None) => break,
                // Silent or broken off: half a line is none.
                Ok(Some(Err(_))) | Err(_) => return None,
            }
        }
        // Nothing is left to read, whether this one is still taken or not.
        if let Some(line) = lines.end() {
            let _ = self.hand_over(line).await;
        }
        None
    }

    /// Looks at one line and queues it, when there is room for it.
    async fn hand_over(&mut self, line: Line) -> Result<(), Ended> {
        let share = u32::try_from(line.text().len()).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(share).await.map_err(|_| Ended)?;
        let item = self.look_at(&line).unwrap_or_else(|problem| Item::refused(line.text(), problem));
        self.queue.send(Waiting { item, room }).await.map_err(|_| Ended)
    }

    fn look_at(&mut self, line: &Line) -> Result<Item, Problem> {
        let service = self.state.service()?;
        if !std::mem::take(&mut self.paid) {
            self.state.auth.charge(&self.caller, 1)?;
        }
        match line {
            Line::Text(text) => Ok(Item::read(text, &context(&self.state, service))),
            Line::TooLong => {
                let detail = format!("the line is over {MAX_BODY} bytes");
                Err(Problem::invalid(vec![FieldError::new("", "too_large", detail)]))
            }
        }
    }
}

/// A line that is not blank.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Text(Vec<u8>),
    /// Over [`MAX_BODY`]; it was thrown away.
    TooLong,
}

impl Line {
    fn text(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            Self::TooLong => &[],
        }
    }
}

/// Takes a body apart into lines, wherever its parts are cut.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
    too_long: bool,
}

impl Lines {
    /// The next line that `part` completes; `part` keeps what follows it. `None` when `part` is used up.
    fn next(&mut self, part: &mut Bytes) -> Option<Line> {
        while !part.is_empty() {
            let end = part.iter().position(|byte| *byte == b'\n');
            let piece = part.split_to(end.unwrap_or(part.len()));
            // One more, for it may be the CR of the line's end.
            self.too_long |= self.begun.len() + piece.len() > MAX_BODY + 1;
            if self.too_long {
                self.begun = Vec::new();
            } else {
                self.begun.extend_from_slice(&piece);
            }
            if end.is_some() {
                let _ = part.split_to(1);
                if let Some(line) = self.end() {
                    return Some(line);
                }
            }
        }
        None
    }

    /// What was begun, taken as a line; `None` if that is blank.
    fn end(&mut self) -> Option<Line> {
        let mut text = std::mem::take(&mut self.begun);
        let too_long = std::mem::take(&mut self.too_long);
        if text.last() == Some(&b'\r') {
            text.pop();
        }
        if too_long || text.len() > MAX_BODY {
            return Some(Line::TooLong);
        }
        (!text.trim_ascii().is_empty()).then_some(Line::Text(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a body that arrives in parts of `size` bytes.
    fn lines(body: &[u8], size: usize) -> Vec<Line> {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for part in body.chunks(size) {
            let mut part = Bytes::copy_from_slice(part);
            while let Some(line) = lines.next(&mut part) {
                found.push(line);
            }
            assert!(lines.begun.len() <= MAX_BODY + 1, "no line takes more memory than that");
        }
        found.extend(lines.end());
        found
    }

    #[test]
    fn lines_are_the_same_wherever_the_body_is_cut() {
        let text = |text: &str| Line::Text(text.as_bytes().to_vec());
        for (body, expected) in [
            ("", vec![]),
            ("\n\r\n  \t\n", vec![]),
            ("a", vec![text("a")]),
            ("a\n", vec![text("a")]),
            ("a\r\n\nb c\r\n", vec![text("a"), text("b c")]),
            ("a\n\n\nb\n \r\nc", vec![text("a"), text("b"), text("c")]),
            ("a\rb\n c \n", vec![text("a\rb"), text(" c ")]),
        ] {
            for size in 1..=body.len().max(1) {
                assert_eq!(lines(body.as_bytes(), size), expected, "{body:?} in parts of {size}");
            }
        }
    }

    #[test]
    fn a_line_that_is_too_long_costs_nobody_but_itself() {
        for end in ["\n", "\r\n"] {
            for (length, fits) in [(MAX_BODY, true), (MAX_BODY + 1, false), (3 * MAX_BODY, false)] {
                let long = "x".repeat(length);
                let body = format!("a{end}{long}{end}b{end}{long}");
                for size in [1000, MAX_BODY - 1, MAX_BODY, MAX_BODY + 1, body.len()] {
                    let long = || if fits { Line::Text(long.clone().into_bytes()) } else { Line::TooLong };
                    let expected = [Line::Text(b"a".to_vec()), long(), Line::Text(b"b".to_vec()), long()];
                    assert_eq!(lines(body.as_bytes(), size), expected, "{length} in parts of {size}");
                }
            }
        }
    }
}
