//! The load: many connections, each with one call under way.
//!
//! Each load runs on a thread of its own, apart from the receiver and from what waits for the result. It
//! ends when every timer of its range was sent; a call that fails is counted and not repeated, since the
//! answer that was lost may have been a yes.
//!
//! A load at a pace has a plan: each call its moment. A call that had to wait for its connection counts from that
//! moment, or an answer that takes long would hide the calls that it holds up ("coordinated omission").

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::timers::{Due, Ids, Shape, Timer};
use crate::clock::wall_us;
use crate::model::time::UnixMs;
use crate::tools::wire::{Body, Connection};

/// How much of a stream is written at once.
const STREAM_CHUNK: usize = 64 * 1024;
/// The most bytes of one batch; the server takes 16 MiB.
const MAX_BATCH_BYTES: usize = 12 << 20;

/// Where the load goes.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Host and port.
    pub address: String,
    /// What stands before `/v1`.
    pub prefix: String,
    /// The API key.
    pub key: Option<String>,
}

/// Which timers, how they look, and when they are due.
#[derive(Debug, Clone)]
pub struct Job {
    /// Where they go.
    pub endpoint: Endpoint,
    /// How they look.
    pub shape: Shape,
    /// Who names them.
    pub ids: Ids,
    /// When they are due.
    pub due: Due,
    /// The number of the first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// How a load went.
#[derive(Debug, Default)]
pub struct LoadResult {
    /// Timers acknowledged.
    pub done: u64,
    /// Timers refused, or of unknown fate.
    pub failed: Vec<u64>,
    /// The first failure, in words.
    pub why: Option<String>,
    /// From the first call to the last answer.
    pub seconds: f64,
    /// How long each call took; a batch is one call, a stream too. At a pace, a call that its connection was late for
    /// counts from the moment that was planned for it.
    pub call_us: Vec<i64>,
    /// The latest due time.
    pub last_due: UnixMs,
}

impl Job {
    /// The head of a request for timers: in the namespace of the one with this number, or of each that is written over it.
    fn head(&self, method: &str, path: &str, length: usize, number: Option<u64>) -> String {
        let namespace = self.shape.namespace_line(number);
        let more = format!("{namespace}content-type: application/json\r\ncontent-length: {length}");
        self.endpoint.head_with(method, path, &more)
    }
}

impl LoadResult {
    /// Timers a second.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.seconds.max(0.001)
    }

    fn add(&mut self, other: Self) {
        self.done += other.done;
        self.failed.extend(other.failed);
        self.why = self.why.take().or(other.why);
        self.call_us.extend(other.call_us);
        self.last_due = self.last_due.max(other.last_due);
    }

    fn fail(&mut self, timers: impl IntoIterator<Item = u64>, why: impl FnOnce() -> String) {
        self.failed.extend(timers);
        self.why.get_or_insert_with(why);
    }
}

impl Endpoint {
    /// Reads a server's base URL; `None` if that is no plain `http` URL.
    pub fn parse(base: &str, key: Option<String>) -> Option<Self> {
        let url = url::Url::parse(base).ok().filter(|url| url.scheme() == "http" && url.query().is_none())?;
        let address = format!("{}:{}", url.host_str()?, url.port_or_known_default()?);
        Some(Self { address, prefix: url.path().trim_end_matches('/').to_owned(), key })
    }

    /// The head of a request.
    pub fn head(&self, method: &str, path: &str, length: usize) -> String {
        self.head_with(method, path, &format!("content-type: application/json\r\ncontent-length: {length}"))
    }

    /// The head of a request with these lines more.
    fn head_with(&self, method: &str, path: &str, more: &str) -> String {
        let key = self.key.as_ref().map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        format!("{method} {}{path} HTTP/1.1\r\nhost: {}\r\n{key}{more}\r\n\r\n", self.prefix, self.address)
    }

    /// One call outside any load; fails unless the answer is 200.
    pub async fn get(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        match self.call(&self.head("GET", path, 0), path).await? {
            (200, body) => Ok(body),
            (status, _) => Err(anyhow!("{path} answered {status}")),
        }
    }

    /// The same for what is put there; fails unless the answer is 200 or 201.
    pub async fn put(&self, path: &str, body: &str) -> anyhow::Result<()> {
        match self.call(&(self.head("PUT", path, body.len()) + body), path).await? {
            (200 | 201, _) => Ok(()),
            (status, body) => Err(anyhow!("{path} answered {status}: {}", String::from_utf8_lossy(&body))),
        }
    }

    async fn call(&self, request: &str, path: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        let ask = async {
            let mut body = Vec::new();
            let head = Connection::open(&self.address).await?.call(request.as_bytes(), &mut body).await?;
            std::io::Result::Ok((head.status, body))
        };
        let answer = tokio::time::timeout(Duration::from_secs(30), ask).await;
        Ok(answer.with_context(|| format!("{path} took too long"))??)
    }
}

/// The numbers that are still to be sent.
struct Numbers {
    next: AtomicU64,
    end: u64,
}

impl Numbers {
    fn of(job: &Job) -> Arc<Self> {
        Arc::new(Self { next: AtomicU64::new(job.first), end: job.first + job.count })
    }

    fn take(&self, at_most: u64) -> Option<std::ops::Range<u64>> {
        let start = self.next.fetch_add(at_most, Ordering::Relaxed);
        (start < self.end).then(|| start..(start + at_most).min(self.end))
    }
}

/// Registers each timer with a call of its own; with `per_second`, at that pace.
pub async fn singles(job: Job, connections: usize, per_second: Option<f64>) -> anyhow::Result<LoadResult> {
    let timer = job.shape.single(job.ids, |method, path, length| job.head(method, path, length, None));
    each(job, timer, connections, per_second).await
}

/// When each call of a load is to be made.
#[derive(Clone, Copy)]
struct Pace {
    began: Instant,
    per_second: f64,
}

impl Pace {
    /// Waits until the moment of call number `nth`. Returns from when on the call counts: from now if there was time to
    /// wait, so that the rounding of the bench's own timer is not in it; else from the moment that was missed.
    async fn wait(self, nth: u64) -> Instant {
        let planned = self.began + Duration::from_secs_f64(nth as f64 / self.per_second);
        if planned < Instant::now() {
            return planned;
        }
        tokio::time::sleep_until(planned).await;
        Instant::now()
    }
}

/// Cancels each timer with a call of its own.
pub async fn cancels(job: Job, connections: usize) -> anyhow::Result<LoadResult> {
    let timer = job.shape.cancel(|method, path, length| job.head(method, path, length, None));
    each(job, timer, connections, None).await
}

async fn each(
    job: Job,
    timer: Timer,
    connections: usize,
    per_second: Option<f64>,
) -> anyhow::Result<LoadResult> {
    let numbers = Numbers::of(&job);
    let job = Arc::new(job);
    on_own_thread(job.endpoint.address.clone(), connections, move |began, connection| {
        let (job, timer, numbers) = (Arc::clone(&job), timer.clone(), Arc::clone(&numbers));
        caller(job, connection, timer, numbers, per_second.map(|per_second| Pace { began, per_second }))
    })
    .await
}

async fn caller(
    job: Arc<Job>,
    connection: Connection,
    mut timer: Timer,
    numbers: Arc<Numbers>,
    pace: Option<Pace>,
) -> LoadResult {
    let mut load = LoadResult::default();
    let mut connection = Some(connection);
    let mut body = Vec::new();
    while let Some(number) = numbers.take(1).map(|range| range.start) {
        let counts_from = match pace {
            Some(pace) => pace.wait(number - job.first).await,
            None => Instant::now(),
        };
        load.last_due = load.last_due.max(timer.become_number(number, job.due));
        match call(&mut connection, &job.endpoint, &timer.bytes, &mut body).await {
            Ok(200 | 201) => {
                load.done += 1;
                load.call_us.push(i64::try_from(counts_from.elapsed().as_micros()).unwrap_or(i64::MAX));
            }
            Ok(status) => load.fail([number], || refusal(status, &body)),
            Err(why) => {
                load.fail([number], || why.to_string());
                // A server that is away is not called again at once.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    load
}

/// How many timers go into a batch, if `size` are wanted: fewer if their data is large.
pub fn batch_size(shape: &Shape, size: usize) -> u64 {
    size.min(MAX_BATCH_BYTES / shape.item(Ids::Caller).bytes.len()).max(1) as u64
}

/// Registers timers `size` at a time.
pub async fn batches(job: Job, connections: usize, size: usize) -> anyhow::Result<LoadResult> {
    let item = job.shape.item(job.ids);
    let size = batch_size(&job.shape, size);
    let numbers = Numbers::of(&job);
    let job = Arc::new(job);
    on_own_thread(job.endpoint.address.clone(), connections, move |_, connection| {
        batcher(Arc::clone(&job), connection, item.clone(), Arc::clone(&numbers), size)
    })
    .await
}

async fn batcher(
    job: Arc<Job>,
    connection: Connection,
    mut item: Timer,
    numbers: Arc<Numbers>,
    size: u64,
) -> LoadResult {
    let mut load = LoadResult::default();
    let mut connection = Some(connection);
    let (mut request, mut body) = (Vec::new(), Vec::new());
    while let Some(range) = numbers.take(size) {
        let count = range.end - range.start;
        let length =
            usize::try_from(count).unwrap_or(0) * (item.bytes.len() + 1) - 1 + r#"{"timers":[]}"#.len();
        request.clear();
        let head = job.head("POST", "/v1/timers/batch", length, Some(range.start));
        request.extend_from_slice(head.as_bytes());
        request.extend_from_slice(br#"{"timers":["#);
        for number in range.clone() {
            if number > range.start {
                request.push(b',');
            }
            load.last_due = load.last_due.max(item.become_number(number, job.due));
            request.extend_from_slice(&item.bytes);
        }
        request.extend_from_slice(b"]}");
        let sent_us = wall_us();
        match call(&mut connection, &job.endpoint, &request, &mut body).await {
            Ok(200) => {
                load.call_us.push(wall_us() - sent_us);
                settle(&mut load, range, &body);
            }
            Ok(status) => load.fail(range, || refusal(status, &body)),
            Err(why) => {
                load.fail(range, || why.to_string());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    load
}

/// Notes what became of each timer of a batch.
fn settle(load: &mut LoadResult, range: std::ops::Range<u64>, body: &[u8]) {
    #[derive(Deserialize)]
    struct Answer {
        results: Vec<Item>,
    }
    let results = serde_json::from_slice(body).map(|answer: Answer| answer.results).unwrap_or_default();
    let mut results = results.into_iter();
    for number in range {
        item(load, number, results.next());
    }
}

#[derive(Deserialize)]
struct Item {
    status: u16,
    #[serde(default)]
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: String,
    #[serde(default)]
    detail: String,
}

fn item(load: &mut LoadResult, number: u64, result: Option<Item>) {
    match result {
        Some(Item { status: 200 | 201, .. }) => load.done += 1,
        Some(Item { status, error }) => load.fail([number], || {
            let error = error.unwrap_or(Refusal { code: String::new(), detail: String::new() });
            format!("{status} {} {}", error.code, error.detail)
        }),
        None => load.fail([number], || "the answer has no result for it".into()),
    }
}

/// Registers timers through `connections` streams that last as long as the load. `None` if the server has
/// no streams (404 or 405).
pub async fn streams(job: Job, connections: usize) -> anyhow::Result<Option<LoadResult>> {
    let item = job.shape.item(job.ids);
    let job = Arc::new(job);
    let share = job.count.div_ceil(connections.max(1) as u64);
    let parts = Numbers::of(&job);
    let missing = Arc::new(AtomicU64::new(0));
    let absent = Arc::clone(&missing);
    let load = on_own_thread(job.endpoint.address.clone(), connections, move |_, connection| {
        let (job, item, part, absent) =
            (Arc::clone(&job), item.clone(), parts.take(share), Arc::clone(&absent));
        async move {
            let mut load = LoadResult::default();
            let Some(range) = part else { return load };
            let sent_us = wall_us();
            let mut answered = range.start;
            match stream(&job, connection, item, range.clone(), &mut load, &mut answered).await {
                Ok(200) => load.call_us.push(wall_us() - sent_us),
                Ok(status) => {
                    absent.fetch_add(u64::from(matches!(status, 404 | 405)), Ordering::Relaxed);
                    load.fail(answered..range.end, || format!("the server answered {status}"));
                }
                Err(why) => load.fail(answered..range.end, || why.to_string()),
            }
            load
        }
    })
    .await?;
    Ok((missing.load(Ordering::Relaxed) == 0).then_some(load))
}

/// One stream. `answered` moves past each timer whose result is in `load`.
async fn stream(
    job: &Job,
    connection: Connection,
    mut item: Timer,
    range: std::ops::Range<u64>,
    load: &mut LoadResult,
    answered: &mut u64,
) -> std::io::Result<u16> {
    let Connection { mut answers, mut requests } = connection;
    let more = job.shape.namespace_line(Some(range.start))
        + "content-type: application/x-ndjson\r\naccept: application/x-ndjson\r\ntransfer-encoding: chunked";
    let mut last_due = UnixMs::default();
    let due = job.due;
    let end = range.end;
    let write = async {
        requests.write_all(job.endpoint.head_with("POST", "/v1/timers/stream", &more).as_bytes()).await?;
        let (mut lines, mut out) = (Vec::with_capacity(STREAM_CHUNK), Vec::with_capacity(STREAM_CHUNK + 16));
        for number in range {
            last_due = last_due.max(item.become_number(number, due));
            lines.extend_from_slice(&item.bytes);
            lines.push(b'\n');
            if lines.len() + item.bytes.len() >= STREAM_CHUNK || number + 1 == end {
                out.clear();
                out.extend_from_slice(format!("{:x}\r\n", lines.len()).as_bytes());
                out.append(&mut lines);
                out.extend_from_slice(b"\r\n");
                requests.write_all(&out).await?;
            }
        }
        requests.write_all(b"0\r\n\r\n").await
    };
    let read = async {
        let head = answers.head().await?;
        if head.status != 200 || head.body != Body::Chunked {
            return Ok(head.status);
        }
        let mut text = Vec::new();
        loop {
            let more = answers.chunk(&mut text).await?;
            let whole = text.iter().rposition(|&b| b == b'\n').map_or(0, |last| last + 1);
            for line in text[..whole].split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
                item_line(load, *answered, line);
                *answered += 1;
            }
            text.drain(..whole);
            if !more {
                break;
            }
        }
        Ok(200)
    };
    // A refusal ends the writing as well: the server reads no further.
    let status = {
        let (mut write, mut read) = (std::pin::pin!(write), std::pin::pin!(read));
        tokio::select! {
            status = &mut read => status,
            written = &mut write => match written {
                Ok(()) => read.await,
                // A server that refuses may close before it has read everything; its answer has the reason.
                Err(why) => read.await.or(Err(why)),
            },
        }
    };
    load.last_due = load.last_due.max(last_due);
    if status.as_ref().is_ok_and(|&status| status == 200) && *answered < end {
        load.fail(*answered..end, || "the stream ended without a result for it".into());
        *answered = end;
    }
    status
}

fn item_line(load: &mut LoadResult, number: u64, line: &[u8]) {
    item(load, number, serde_json::from_slice(line).ok());
}

/// Makes one call, on the connection at hand or a new one.
async fn call(
    connection: &mut Option<Connection>,
    endpoint: &Endpoint,
    request: &[u8],
    body: &mut Vec<u8>,
) -> std::io::Result<u16> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => Connection::open(&endpoint.address).await?,
    };
    let head = open.call(request, body).await?;
    if !head.closes {
        *connection = Some(open);
    }
    Ok(head.status)
}

fn refusal(status: u16, body: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(body).chars().take(300).collect();
    format!("{status} {text}")
}

/// Runs `connections` callers on one thread of their own and adds up their results. The time counts from when all
/// are connected, so that the listener's queue is not in it.
async fn on_own_thread<F>(
    address: String,
    connections: usize,
    caller: impl Fn(Instant, Connection) -> F + Send + 'static,
) -> anyhow::Result<LoadResult>
where
    F: Future<Output = LoadResult> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (done, result) = tokio::sync::oneshot::channel();
    let work = async move {
        let mut open = Vec::with_capacity(connections);
        for _ in 0..connections {
            open.push(Connection::open(&address).await.context("the server cannot be reached")?);
        }
        let (began, began_us) = (Instant::now(), wall_us());
        let mut callers = JoinSet::new();
        for connection in open {
            callers.spawn(caller(began, connection));
        }
        let mut load = LoadResult::default();
        while let Some(one) = callers.join_next().await {
            load.add(one?);
        }
        load.seconds = (wall_us() - began_us) as f64 / 1e6;
        anyhow::Ok(load)
    };
    // An interrupted bench does not wait for the result any more.
    let run = move || drop(done.send(runtime.block_on(work)));
    std::thread::Builder::new().name("load".into()).spawn(run)?;
    result.await.context("the load's thread ended")?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_timer_of_a_batch_has_its_own_result() {
        let mut load = LoadResult::default();
        let body = br#"{"results":[{"id":"a","status":201},{"status":409,"error":{"code":"id_taken","detail":"no"}},{"status":200}]}"#;
        settle(&mut load, 5..9, body);
        assert_eq!((load.done, load.failed), (2, vec![6, 8]));
        assert_eq!(load.why.as_deref(), Some("409 id_taken no"));
    }

    #[test]
    fn a_base_url_becomes_host_and_port() {
        let read = |base| Endpoint::parse(base, None).map(|endpoint| (endpoint.address, endpoint.prefix));
        assert_eq!(read("http://127.0.0.1:7600"), Some(("127.0.0.1:7600".into(), String::new())));
        assert_eq!(read("http://localhost/x/"), Some(("localhost:80".into(), "/x".into())));
        assert_eq!((read("https://a/"), read("7600")), (None, None));
    }

    #[test]
    fn numbers_are_given_out_once() {
        let numbers = Numbers { next: AtomicU64::new(3), end: 10 };
        let taken: Vec<_> = std::iter::from_fn(|| numbers.take(3)).collect();
        assert_eq!(taken, [3..6, 6..9, 9..10]);
    }
}
