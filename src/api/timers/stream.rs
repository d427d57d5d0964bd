//! `POST /v1/timers/stream`: one timer a line in, one result a line out, while the body is still being sent.
//!
//! A stream has two tasks. The *reader* splits the body into lines, checks each line and queues it. The *writer*
//! registers the queued lines, up to one transaction of them, and sends their results in order. So a single line is
//! answered as soon as it is committed; while one group commits, the next one is read and checked.
//!
//! Everything is bounded: the queue by a group and by bytes, the results by two groups. A client that does not read
//! its results is not read from. The writer does not run in the connection's own task: a client that stops reading
//! must never hold up a transaction that has begun.
//!
//! The answer ends after the result of the last line, or earlier: the node stops, the client is silent too long, or
//! its body breaks off. A line with a result is decided; a line without one may be sent again.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use futures::StreamExt;
use futures::stream::Peekable;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::bytes::BytesMut;
use tokio_util::codec::{Decoder, LinesCodec, LinesCodecError};

use super::many::{CheckedItem, ItemResult, register_group};
use super::{ApiResult, MAX_BODY, context, trace_of};
use crate::api::problem::{FieldError, Problem};
use crate::api::request::{RawTimer, Refused};
use crate::api::{ApiState, Caller, RequestId, Within};
use crate::cold::MAX_REGISTER_BATCH;
use crate::model::trace::Trace;
use crate::service::Service;

const NDJSON: &str = "application/x-ndjson";

/// How long a client may be silent, or leave its results unread, before its stream ends.
const IDLE: Duration = Duration::from_secs(300);

/// The most bytes of lines that one stream has read and not yet answered.
const MAX_WAITING: usize = 4 * 1024 * 1024;

/// How long the answer waits for the first bytes of a client that asked for `100 Continue`.
const CONTINUE: Duration = Duration::from_secs(1);

type Chunks = Peekable<BodyDataStream>;

/// Register any number, one timer a line; results come back while the body is still being sent.
#[utoipa::path(post, path = "/v1/timers/stream", tag = "timers",
    request_body(content = RawTimer, content_type = "application/x-ndjson",
        description = "One timer a line, each as in a batch; at most 128 KiB a line, any \
            number of lines. Read the results while you send. Five minutes of silence end the stream."),
    responses((status = 200, body = ItemResult, content_type = "application/x-ndjson",
            description = "One result a line, in the order of the lines, each as soon as it is committed. If the \
                answer ends early (the node stops), lines without a result were not acknowledged: send them again"),
        (status = 415, body = Problem, description = "not_ndjson: the content type is another one")))]
pub async fn stream(
    Within(state): Within,
    axum::Extension(caller): axum::Extension<Caller>,
    axum::Extension(request_id): axum::Extension<RequestId>,
    request: Request,
) -> ApiResult {
    state.service()?;
    expect_ndjson(request.headers())?;
    let (answers, answered) = mpsc::channel::<Bytes>(1);
    let trace = trace_of(request.headers());
    let expects_continue = request.headers().contains_key(header::EXPECT);
    let mut body = request.into_body().into_data_stream().peekable();
    if expects_continue {
        // The 100 is sent when the body is first polled. It must precede the answer's head: a client may take a
        // head that comes first for a refusal of its body.
        let _ = tokio::time::timeout(CONTINUE, Pin::new(&mut body).peek()).await;
    }
    tokio::spawn(run(state, caller, trace, request_id, body, answers));
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

/// A checked line, and its share of the stream's memory.
struct QueuedLine {
    item: CheckedItem,
    memory: OwnedSemaphorePermit,
}

/// Reads and answers one stream until either side ends it.
async fn run(
    state: Arc<ApiState>,
    caller: Caller,
    trace: Option<Trace>,
    request_id: RequestId,
    body: Chunks,
    answers: mpsc::Sender<Bytes>,
) {
    let (queue, queued) = mpsc::channel(MAX_REGISTER_BATCH);
    let memory = Arc::new(Semaphore::new(MAX_WAITING));
    let (all, checked) = (Arc::clone(&state), 0);
    let reader = Reader { state: all, caller, trace, memory, queue, charged: true, checked };
    let reading = tokio::spawn(reader.run(body));
    if let Ok(service) = state.service() {
        write(&state, service, caller, &request_id, queued, answers).await;
    }
    // The reader returns the rest of the body. It is dropped here, after the last result, and drained then.
    if let Err(why) = reading.await {
        let request_id = &*request_id.0;
        tracing::error!(request_id, %why, "the reader of a stream failed");
    }
}

/// Registers and answers group after group, until the lines end, the client is gone or the node stops. Lines that are
/// still queued then are not registered.
async fn write(
    state: &ApiState,
    service: &Service,
    caller: Caller,
    request_id: &RequestId,
    mut queued: mpsc::Receiver<QueuedLine>,
    answers: mpsc::Sender<Bytes>,
) {
    let mut group = Vec::new();
    loop {
        let taken = tokio::select! {
            biased;
            () = state.closing.cancelled() => return,
            taken = queued.recv_many(&mut group, service.store.bulk()) => taken,
        };
        // A key that was revoked or has expired meanwhile registers nothing more.
        if taken == 0 || !state.node.keys.holds(caller) {
            return;
        }
        let (items, memory): (Vec<_>, Vec<_>) =
            group.drain(..).map(|line: QueuedLine| (line.item, line.memory)).unzip();
        let mut lines = Vec::new();
        for result in register_group(state, service, caller, items, request_id).await {
            serde_json::to_writer(&mut lines, &result).expect("texts and numbers can be written as JSON");
            lines.push(b'\n');
        }
        drop(memory);
        if !matches!(tokio::time::timeout(IDLE, answers.send(lines.into())).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Reads the body of a stream.
struct Reader {
    state: Arc<ApiState>,
    caller: Caller,
    trace: Option<Trace>,
    memory: Arc<Semaphore>,
    queue: mpsc::Sender<QueuedLine>,
    /// The next line is charged already: the charge for the call counts for its first line.
    charged: bool,
    /// The bytes of the lines that were checked.
    checked: usize,
}

/// The writer has ended and takes no more lines.
struct WriterEnded;

impl Reader {
    /// Reads until the body ends or breaks off, or the writer has ended; returns the rest of the body, if any.
    async fn run(mut self, mut body: Chunks) -> Option<Chunks> {
        let mut lines = Lines::new();
        loop {
            let arrived = tokio::select! {
                () = self.queue.closed() => return Some(body),
                arrived = tokio::time::timeout(IDLE, body.next()) => arrived,
            };
            match arrived {
                Ok(Some(Ok(chunk))) => {
                    lines.append(&chunk);
                    let complete = std::iter::from_fn(|| lines.next()).collect();
                    if self.queue_lines(complete).await.is_err() {
                        return Some(body);
                    }
                }
                Ok(None) => break,
                // The client is silent or broke off: an incomplete line does not count.
                Ok(Some(Err(_))) | Err(_) => return None,
            }
        }
        let _ = self.queue_lines(std::iter::from_fn(|| lines.last()).collect()).await;
        None
    }

    /// Checks the lines of one chunk and queues them, as soon as the stream's memory has room for them.
    async fn queue_lines(&mut self, lines: Vec<Line>) -> Result<(), WriterEnded> {
        if lines.is_empty() {
            return Ok(());
        }
        let bytes = lines.iter().map(|line| line.text().len()).sum::<usize>();
        // A chunk and what was left of the one before are far smaller than the memory.
        let share = u32::try_from(bytes.min(MAX_WAITING)).unwrap_or(u32::MAX);
        let mut memory = Arc::clone(&self.memory).acquire_many_owned(share).await.map_err(|_| WriterEnded)?;
        // Its client waits: what comes faster than its namespace may bring it is not read yet.
        let first = usize::from(self.charged);
        let timers = lines.len().saturating_sub(first);
        tokio::select! {
            () = self.queue.closed() => return Err(WriterEnded),
            () = self.state.node.namespaces.charge_patiently(self.caller.namespace, timers) => {}
        }
        // A stream that has brought as much as a large body is one.
        self.checked = self.checked.saturating_add(bytes);
        let (all, caller, trace) = (Arc::clone(&self.state), self.caller, self.trace);
        let mut charged = std::mem::take(&mut self.charged);
        let check = move || {
            let check = |line: Line| {
                let item = check_line(&all, caller, trace, &line, std::mem::take(&mut charged));
                let item = item.unwrap_or_else(|problem| CheckedItem::refused(line.text(), problem));
                (line.text().len(), item)
            };
            lines.into_iter().map(check).collect::<Vec<_>>()
        };
        // A check that failed is in the log. The stream ends without a result for its lines.
        let checked = self.state.check(caller, self.checked, check).await.map_err(|_| WriterEnded)?;
        for (bytes, item) in checked {
            let memory = memory.split(bytes.min(memory.num_permits())).ok_or(WriterEnded)?;
            self.queue.send(QueuedLine { item, memory }).await.map_err(|_| WriterEnded)?;
        }
        Ok(())
    }
}

/// Checks one line, and charges it to its caller unless that was done.
fn check_line(
    state: &ApiState,
    caller: Caller,
    trace: Option<Trace>,
    line: &Line,
    charged: bool,
) -> Result<CheckedItem, Problem> {
    let service = state.service()?;
    if !charged {
        state.auth.charge(&caller, 1)?;
    }
    match line {
        Line::Text(text) => Ok(CheckedItem::check(text.as_bytes(), &context(state, service, trace))),
        Line::NotUtf8 => Err(Refused::NotJson("not JSON: the line is not UTF-8".into()).into()),
        Line::TooLong => {
            let detail = format!("the line is over {MAX_BODY} bytes");
            Err(Problem::invalid(vec![FieldError::new("", "too_large", detail)]))
        }
    }
}

/// A line that is not blank.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Text(String),
    NotUtf8,
    /// Over [`MAX_BODY`]; its bytes were dropped.
    TooLong,
}

impl Line {
    fn text(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::NotUtf8 | Self::TooLong => &[],
        }
    }
}

/// Splits a body into lines, wherever its chunks are cut.
struct Lines {
    codec: LinesCodec,
    /// Bytes that are not split yet: at most one line and one chunk, if all lines are taken after each chunk.
    arrived: BytesMut,
}

impl Lines {
    fn new() -> Self {
        // One byte more than a line may have, for the CR of its end.
        Self { codec: LinesCodec::new_with_max_length(MAX_BODY + 1), arrived: BytesMut::new() }
    }

    fn append(&mut self, chunk: &[u8]) {
        self.arrived.extend_from_slice(chunk);
    }

    /// The next complete line; `None` until more of the body arrives.
    fn next(&mut self) -> Option<Line> {
        self.split(LinesCodec::decode)
    }

    /// After the end of the body: the next line, the last of which may lack its newline.
    fn last(&mut self) -> Option<Line> {
        self.split(LinesCodec::decode_eof)
    }

    fn split(
        &mut self,
        decode: fn(&mut LinesCodec, &mut BytesMut) -> Result<Option<String>, LinesCodecError>,
    ) -> Option<Line> {
        loop {
            return Some(match decode(&mut self.codec, &mut self.arrived) {
                Ok(None) => return None,
                Ok(Some(text)) if text.len() > MAX_BODY => Line::TooLong,
                Ok(Some(text)) if text.trim_ascii().is_empty() => continue,
                Ok(Some(text)) => Line::Text(text),
                Err(LinesCodecError::MaxLineLengthExceeded) => Line::TooLong,
                Err(LinesCodecError::Io(_)) => Line::NotUtf8,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a body that arrives in chunks of `size` bytes.
    fn lines(body: &[u8], size: usize) -> Vec<Line> {
        let mut lines = Lines::new();
        let mut found = Vec::new();
        for chunk in body.chunks(size) {
            lines.append(chunk);
            while let Some(line) = lines.next() {
                found.push(line);
            }
            assert!(lines.arrived.len() <= MAX_BODY + 1, "no line takes more memory than that");
        }
        while let Some(line) = lines.last() {
            found.push(line);
        }
        found
    }

    #[test]
    fn lines_are_the_same_wherever_the_body_is_cut() {
        let text = |text: &str| Line::Text(text.to_owned());
        for (body, expected) in [
            ("", vec![]),
            ("\n\r\n  \t\n", vec![]),
            ("a", vec![text("a")]),
            ("a\n", vec![text("a")]),
            ("a\r\n\nb c\r\n", vec![text("a"), text("b c")]),
            ("a\n\n\nb\n \r\nc", vec![text("a"), text("b"), text("c")]),
            ("a\rb\n c \n", vec![text("a\rb"), text(" c ")]),
            ("a\nü\n", vec![text("a"), text("ü")]),
        ] {
            for size in 1..=body.len().max(1) {
                assert_eq!(lines(body.as_bytes(), size), expected, "{body:?} in chunks of {size}");
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
                    let long = || if fits { Line::Text(long.clone()) } else { Line::TooLong };
                    let expected = [Line::Text("a".into()), long(), Line::Text("b".into()), long()];
                    assert_eq!(lines(body.as_bytes(), size), expected, "{length} in chunks of {size}");
                }
            }
        }
    }

    #[test]
    fn a_line_that_is_not_utf8_costs_nobody_but_itself() {
        for end in ["\n", ""] {
            let body = [b"a\n\xff\xfe\nb\n\xff", end.as_bytes()].concat();
            for size in 1..=body.len() {
                let expected = [Line::Text("a".into()), Line::NotUtf8, Line::Text("b".into()), Line::NotUtf8];
                assert_eq!(lines(&body, size), expected, "in chunks of {size}");
            }
        }
    }
}
