//! The stream: one timer a line in, one result a line out, while both flow.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use super::{LONG, later, with};
use crate::support::{Node, NodeBuilder, Postgres, eventually, on_both};

const MAX_LINE: usize = 128 * 1024;

/// The sending side of a stream; see [`open`]. Bytes go out as they are given, each call a chunk.
struct Sender(OwnedWriteHalf);

impl Sender {
    async fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.0.write_all(&chunk).await
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes.as_ref()).await.expect("the body is taken");
    }

    async fn line(&mut self, timer: &Value) {
        self.send(format!("{timer}\n")).await;
    }

    /// Ends the body as it should end, and returns the connection: to close it now would break the call off.
    #[must_use]
    async fn finish(mut self) -> OwnedWriteHalf {
        self.0.write_all(b"0\r\n\r\n").await.expect("the end of the body is taken");
        self.0
    }
}

/// The receiving side: a task reads as long as its results are asked for.
struct Results(mpsc::Receiver<Option<Value>>);

impl Results {
    /// The next result; `None` at the end of the answer. Panics when the answer breaks off instead.
    async fn next(&mut self) -> Option<Value> {
        let next = tokio::time::timeout(LONG, self.0.recv()).await.expect("a result comes soon");
        next.expect("the answer ends as it should, or goes on")
    }

    async fn status(&mut self) -> u64 {
        let result = self.next().await.expect("a result");
        result["status"].as_u64().unwrap_or_else(|| panic!("no status in {result}"))
    }

    /// All that is left, to the proper end of the answer.
    async fn rest(mut self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(result) = self.next().await {
            all.push(result);
        }
        all
    }
}

fn statuses(results: &[Value]) -> Vec<u64> {
    results.iter().map(|one| one["status"].as_u64().expect("a status")).collect()
}

/// Opens a stream and returns when its answer has begun, which is before anything was sent.
async fn open(node: &Node) -> (Sender, Results) {
    let (status, _, out, mut read) = begin(node, "application/x-ndjson", "").await;
    assert_eq!(status, 200);
    let (found, results) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut begun = Vec::new();
        while let Ok(chunk) = next_chunk(&mut read).await {
            begun.extend(&chunk);
            if chunk.is_empty() {
                assert!(begun.is_empty(), "half a result");
                let _ = found.send(None).await;
                return;
            }
            while let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = begun.drain(..=end).collect();
                let result = serde_json::from_slice(&line).expect("each line is JSON");
                if found.send(Some(result)).await.is_err() {
                    return;
                }
            }
        }
    });
    (Sender(out), Results(results))
}

/// Sends the head of a call; returns status and head of the answer, and the connection.
async fn begin(
    node: &Node,
    kind: &str,
    more: &str,
) -> (u16, String, OwnedWriteHalf, BufReader<OwnedReadHalf>) {
    let stream = TcpStream::connect(node.base().replace("http://", "")).await.expect("connects");
    let (read, mut out) = stream.into_split();
    let head = format!(
        "POST /v1/timers/stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
         transfer-encoding: chunked\r\n{more}\r\n"
    );
    out.write_all(head.as_bytes()).await.expect("sends the head");
    let mut read = BufReader::new(read);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let line = tokio::time::timeout(LONG, read.read_line(&mut head)).await.expect("the answer begins");
        assert_ne!(line.expect("reads"), 0, "closed after {head:?}");
    }
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, head.to_lowercase(), out, read)
}

async fn next_chunk(read: &mut BufReader<OwnedReadHalf>) -> std::io::Result<Vec<u8>> {
    let mut size = String::new();
    read.read_line(&mut size).await?;
    let Ok(size) = usize::from_str_radix(size.trim(), 16) else {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    };
    let mut chunk = vec![0; size + 2];
    read.read_exact(&mut chunk).await?;
    chunk.truncate(size);
    Ok(chunk)
}

fn named(id: impl Into<Value>) -> Value {
    with(later(), "id", id.into())
}

async fn each_line_has_its_result_in_order(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let api = node.api();
    assert_eq!(api.put("there", &later()).await.0, 201);
    let too_long = |n: usize| {
        let line = with(named("long"), "data", json!("x".repeat(60_000))).to_string();
        format!("{line}{}", " ".repeat(n - line.len()))
    };
    let other = |id: &str| with(named(id), "labels", json!({"a": "b"})).to_string();
    let lines = [
        named("a").to_string(),
        named("b").to_string() + "\r",
        String::new(),
        named("a").to_string(),
        other("b"),
        " \t\r".to_owned(),
        with(named("c"), "delay", json!("soon")).to_string(),
        named("there").to_string(),
        other("there"),
        later().to_string(),
        with(named("d"), "colour", json!(1)).to_string(),
        r#"{"id":"cut","delay":"PT1H","#.to_owned(),
        "[7".to_owned(),
        "7".to_owned(),
        format!("{} {}", named("two"), named("three")),
        too_long(MAX_LINE + 1),
        too_long(MAX_LINE),
        with(named("e"), "data", json!("x".repeat(64 * 1024))).to_string(),
        named("no id").to_string(),
        named("last").to_string(),
    ];
    let (mut body, mut results) = open(&node).await;
    body.send(lines.join("\n")).await;
    // Without a newline the last line counts when the body ends.
    let _connection = body.finish().await;
    let mut all = Vec::new();
    while let Some(result) = results.next().await {
        all.push(result);
    }
    assert_eq!(
        statuses(&all),
        [201, 201, 200, 409, 422, 200, 409, 201, 422, 422, 422, 422, 422, 422, 201, 422, 422, 201]
    );
    let ids: Vec<_> = all.iter().map(|one| one["id"].as_str().unwrap_or("-")).collect();
    let made = ids[7];
    assert!(made.starts_with("tmr_"), "{made}");
    let expected = [
        "a", "b", "a", "b", "c", "there", "there", made, "d", "-", "-", "-", "-", "-", "long", "e", "no id",
        "last",
    ];
    assert_eq!(ids, expected);
    for (n, code, detail) in [
        (3, "id_taken", "PATCH"),
        (4, "invalid", "/delay"),
        (8, "invalid", "/colour"),
        (9, "malformed", "EOF while parsing"),
        (10, "malformed", "at column 2"),
        (11, "invalid", "expected"),
        (12, "malformed", "trailing characters"),
        (13, "too_large", "131072 bytes"),
        (15, "too_large", "/data"),
        (16, "invalid", "/id"),
    ] {
        let error = &all[n]["error"];
        assert_eq!(error["code"], code, "{n}: {error}");
        assert!(error["detail"].as_str().is_some_and(|text| text.contains(detail)), "{n}: {error}");
    }
    assert!(all.iter().all(|one| one["error"].is_null() == (one["status"].as_u64() < Some(300))));
    let ledger = api.ledger().await;
    assert!(ledger.balances() && ledger.registered == 6, "{ledger:?}");
    let (_, metrics) = api.get("/metrics").await;
    let metrics = metrics.as_str().expect("text");
    assert!(metrics.contains("\nmainspring_registered_total 6\n"), "{metrics}");
    let last = api.timer("last").await;
    assert_eq!((last.0, &last.1["state"]), (200, &json!("scheduled")));
}

/// Each line waits for the result of the one before: nobody would get on if either direction waited.
async fn results_come_while_the_body_is_still_open(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (mut body, mut results) = open(&node).await;
    for n in 0..30 {
        let id = format!("t{n}");
        // In two parts: a line is done when its newline is.
        let line = format!("{}\n", named(id.as_str()));
        let (one, two) = line.split_at(n + 1);
        body.send(one).await;
        body.send(two).await;
        assert_eq!(results.next().await, Some(json!({"id": id, "status": 201})));
        assert_eq!(node.api().timer(&id).await.0, 200, "its result follows its commit");
    }
    body.line(&named("t7")).await;
    assert_eq!(results.next().await, Some(json!({"id": "t7", "status": 200})), "the first is met later too");
    body.line(&with(named("t7"), "delay", json!("PT2H"))).await;
    assert_eq!(results.status().await, 409);
    let _connection = body.finish().await;
    assert_eq!(results.rest().await, Vec::<Value>::new());
    assert_eq!(node.api().ledger().await.registered, 30);
}

async fn any_number_of_lines_is_registered_once_each(builder: NodeBuilder) {
    const LINES: usize = 20_000;
    let node = builder.start_ready().await;
    for expected in [201, 200] {
        let (mut body, mut results) = open(&node).await;
        let sending = tokio::spawn(async move {
            for part in 0..LINES / 500 {
                let ids = (0..500).map(|n| format!("t{}", part * 500 + n));
                let lines: String = ids.map(|id| format!("{}\n", named(id))).collect();
                body.send(lines).await;
            }
            body.finish().await
        });
        for n in 0..LINES {
            let result = results.next().await;
            assert_eq!(result, Some(json!({"id": format!("t{n}"), "status": expected})));
        }
        assert_eq!(results.next().await, None);
        drop(sending.await.expect("all was sent"));
        let ledger = node.api().ledger().await;
        assert_eq!((ledger.registered, ledger.pending), (LINES as u64, LINES as u64));
    }
}

/// Who does not read his results is not read from: what he sends stays with him, not in our memory.
#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_from() {
    const MOST: usize = 3000;
    let node = Node::builder().start_ready().await;
    let (mut body, mut results) = open(&node).await;
    // Each result is as long as its line.
    let line = format!("{{\"{}\":1}}\n", "x".repeat(100_000));
    let mut sent = 0;
    while let Ok(()) = tokio::time::timeout(Duration::from_secs(3), body.send(&line)).await {
        sent += 1;
        assert!(sent < MOST, "300 MB went somewhere");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("a process");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    println!("{peak} kB after {sent} lines");
    assert!(peak < 200_000, "{peak} kB after {sent} lines");
    // The line that got stuck is half sent: it is broken off, and what was sent before is answered.
    drop(body);
    let mut answered = 0;
    while answered < sent {
        assert_eq!(results.status().await, 422);
        answered += 1;
    }
    assert_eq!(node.api().ledger().await.registered, 0);
}

async fn a_stop_answers_what_was_kept_and_keeps_nothing_else(builder: NodeBuilder) {
    let mut node = builder.start_ready().await;
    let (mut body, mut results) = open(&node).await;
    // Sends on and on, even when the answer has ended.
    let sending = tokio::spawn(async move {
        let mut n = 0;
        loop {
            let lines: String = (n..n + 100).map(|n| format!("{}\n", named(format!("t{n}")))).collect();
            if body.try_send(lines.as_bytes()).await.is_err() {
                return n;
            }
            n += 100;
        }
    });
    for n in 0..1500 {
        assert_eq!(results.next().await, Some(json!({"id": format!("t{n}"), "status": 201})));
    }
    let (rest, (status, took)) = tokio::join!(results.rest(), node.sigterm());
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(rest.iter().all(|one| one["status"] == 201), "{rest:?}");
    let answered = 1500 + rest.len() as u64;
    let sent = sending.await.expect("it ends with the connection");
    assert!(sent > answered, "{sent} were sent, {answered} answered");
    let log = node.log();
    assert!(!log.contains("panicked") && !log.contains("WARN") && !log.contains("ERROR"), "{log}");

    node.restart().await;
    node.wait_ready(LONG).await;
    let ledger = node.api().ledger().await;
    assert_eq!((ledger.registered, ledger.pending), (answered, answered));
}

#[tokio::test]
async fn a_stop_ends_a_stream_that_waits() {
    let node = Node::builder().start_ready().await;
    let (mut body, mut results) = open(&node).await;
    body.line(&named("a")).await;
    assert_eq!(results.status().await, 201);
    let (rest, (status, took)) = tokio::join!(results.rest(), node.sigterm());
    assert_eq!((rest, status.code()), (vec![], Some(0)));
    assert!(took < Duration::from_secs(4), "{took:?}");
}

async fn half_a_line_of_a_client_that_breaks_off_is_nothing(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let whole = named("half").to_string();
    // The last one is JSON by chance; whether anything is missing from it, only its newline could tell.
    for half in [&whole[..1], &whole[..20], &whole[..whole.len() - 1], &whole] {
        let (mut body, mut results) = open(&node).await;
        body.line(&named("before")).await;
        assert!(matches!(results.status().await, 200 | 201));
        body.send(half).await;
        // The end of the connection without the end of the body; the other direction stays open.
        body.0.shutdown().await.expect("closes");
        assert_eq!(results.rest().await, Vec::<Value>::new(), "after {half:?}");
        assert_eq!(node.api().timer("half").await.0, 404, "{half:?}");
    }
    // Gone altogether, with results on the way.
    for _ in 0..10 {
        let (mut body, results) = open(&node).await;
        let lines: String = (0..300).map(|n| format!("{}\n", named(format!("t{n}")))).collect();
        body.send(lines + &whole).await;
        drop((body, results));
    }
    eventually("what they sent whole is kept or not, and nothing else", LONG, async || {
        let ledger = node.api().ledger().await;
        assert!(ledger.balances() && (1..=301).contains(&ledger.registered), "{ledger:?}");
        if ledger.registered > 1 { Ok(()) } else { Err(ledger) }
    })
    .await;
    assert_eq!(node.api().timer("half").await.0, 404);
    let log = node.log();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn a_store_that_is_away_is_503_for_its_lines_and_the_stream_goes_on() {
    let mut server = Postgres::start().await;
    let node = Node::builder().cold(server.create_database().await).start_ready().await;
    let (mut body, mut results) = open(&node).await;
    body.line(&named("before")).await;
    assert_eq!(results.status().await, 201);
    server.stop_fast().await;
    body.send(format!("{}\n{}\nno json\n", named("a"), named("b"))).await;
    for id in ["a", "b"] {
        let result = results.next().await.expect("a result");
        assert_eq!((&result["id"], &result["status"]), (&json!(id), &json!(503)));
        assert_eq!(result["error"]["code"], "store_unavailable");
    }
    assert_eq!(results.status().await, 422);
    server.start_again().await;
    eventually("the store is back, in the same stream", LONG, async || {
        body.line(&named("a")).await;
        match results.status().await {
            201 => Ok(()),
            other => Err(other),
        }
    })
    .await;
    body.line(&named("before")).await;
    assert_eq!(results.status().await, 200);
    let _connection = body.finish().await;
    assert_eq!(results.rest().await, Vec::<Value>::new());
    assert_eq!(node.api().ledger().await.registered, 2);
}

#[tokio::test]
async fn each_line_is_charged_and_one_beyond_the_quota_is_429() {
    let node = Node::builder().env("MAINSPRING__SERVER__RATE_PER_SECOND", "5").start_ready().await;
    let (mut body, mut results) = open(&node).await;
    let line = |n: usize| format!("{}\n", named(format!("t{n}")));
    let lines: String = (0..50).map(line).chain(["no json\n".to_owned()]).collect();
    body.send(lines).await;
    let mut kept = 0;
    for n in 0..50 {
        let result = results.next().await.expect("a result");
        assert_eq!(result["id"], format!("t{n}"), "whose it was is said of refused ones too");
        match result["status"].as_u64() {
            Some(201) => kept += 1,
            Some(429) => assert_eq!(result["error"]["code"], "rate_exceeded"),
            _ => panic!("{result}"),
        }
        assert!(n >= 5 || kept == n + 1, "the quota holds 5: {result}");
    }
    assert!(kept < 30, "{kept} of 50 at 5 a second");
    assert_eq!(results.status().await, 429, "whatever is in a line, it is charged");
    eventually("the quota comes back in the same stream", LONG, async || {
        body.line(&named("again")).await;
        match results.status().await {
            201 => Ok(()),
            status => Err(status),
        }
    })
    .await;
    assert_eq!(node.api().ledger().await.registered, kept as u64 + 1);
}

#[tokio::test]
async fn what_is_not_announced_as_lines_is_415() {
    let node = Node::builder().start_ready().await;
    for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded", "", "x-ndjson"] {
        let (status, head, _, mut read) = begin(&node, kind, "").await;
        assert_eq!(status, 415, "{kind}: {head}");
        assert!(head.contains("content-type: application/problem+json"), "{head}");
        let mut body = String::new();
        while !body.contains('}') {
            let read = tokio::time::timeout(LONG, read.read_line(&mut body)).await;
            assert!(read.is_ok() && body.len() < 10_000, "{body}");
        }
        assert!(body.contains("not_ndjson") && body.contains("content-type: application/x-ndjson"), "{body}");
    }
    for kind in [
        "application/x-ndjson; charset=utf-8",
        "Application/X-NDJSON",
        "application/ndjson",
        "application/jsonl",
    ] {
        let (status, head, ..) = begin(&node, kind, "").await;
        assert_eq!(status, 200, "{kind}");
        assert!(head.contains("content-type: application/x-ndjson\r\n"), "{head}");
        assert!(head.contains("x-request-id: "), "{head}");
    }
    let (status, _, mut out, mut read) = begin(&node, "application/x-ndjson", "").await;
    out.write_all(b"0\r\n\r\n").await.expect("an empty body");
    assert_eq!(
        (status, next_chunk(&mut read).await.expect("the end")),
        (200, vec![]),
        "no lines, no results"
    );
}

/// Some clients take an answer that comes instead of the 100 for a refusal, and send no body.
#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_told_to_go_on() {
    let node = Node::builder().start_ready().await;
    let (status, _, mut out, mut read) =
        begin(&node, "application/x-ndjson", "expect: 100-continue\r\n").await;
    assert_eq!(status, 100);
    let line = format!("{}\n", named("a"));
    let chunk = format!("{:x}\r\n{line}\r\n", line.len());
    out.write_all(chunk.as_bytes()).await.expect("the body is taken");
    let mut answer = String::new();
    while !answer.contains("\"status\":201") {
        let line = tokio::time::timeout(LONG, read.read_line(&mut answer)).await.expect("it goes on");
        assert_ne!(line.expect("reads"), 0, "{answer}");
    }
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

on_both!(
    each_line_has_its_result_in_order,
    results_come_while_the_body_is_still_open,
    any_number_of_lines_is_registered_once_each,
    a_stop_answers_what_was_kept_and_keeps_nothing_else,
    half_a_line_of_a_client_that_breaks_off_is_nothing,
);

#[tokio::test]
async fn a_stream_registers_nothing_more_once_its_key_is_revoked() {
    let (node, admin) = super::keys::keyed().await;
    let wanted = json!({"name": "stream", "scopes": ["register"]});
    let (id, key) = super::keys::made(&admin, &wanted).await;
    let more = format!("authorization: Bearer {key}\r\n");
    let (status, _, out, mut read) = begin(&node, "application/x-ndjson", &more).await;
    assert_eq!(status, 200);
    let mut body = Sender(out);
    body.line(&named("s1")).await;
    let answered = tokio::time::timeout(LONG, next_chunk(&mut read)).await.expect("a result comes");
    assert!(String::from_utf8_lossy(&answered.expect("a result")).contains("\"s1\""));
    let revoked = admin.send(reqwest::Method::DELETE, &format!("/v1/keys/{id}"), &[], None).await;
    assert_eq!(revoked.status, 200);
    let _ = body.try_send(format!("{}\n", named("s2")).as_bytes()).await;
    // The end of the answer: no result for the second line.
    let ended = tokio::time::timeout(LONG, next_chunk(&mut read)).await.expect("it ends");
    assert!(ended.is_err() || ended.is_ok_and(|chunk| chunk.is_empty()));
    assert_eq!(admin.timer("s2").await.0, 404);
}
