//! Connections of clients: who gets one when there are more clients than places.

use std::time::Duration;

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::LONG;
use crate::support::{Api, Node, eventually, http_client, problem};

async fn connect(node: &Node) -> TcpStream {
    TcpStream::connect(node.base().trim_start_matches("http://")).await.expect("connects")
}

/// A caller without any connection yet.
fn fresh(node: &Node) -> Api {
    let mut api = node.api();
    api.client = http_client(LONG);
    api
}

/// Whether the other side closes it within so long.
async fn is_closed(stream: &mut TcpStream, within: Duration) -> bool {
    let mut bytes = [0; 64];
    let read = stream.read(&mut bytes);
    matches!(tokio::time::timeout(within, read).await, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn idle_connections_make_room_oldest_first() {
    let node = Node::builder().env("MAINSPRING__SERVER__MAX_CONNECTIONS", "20").start_ready().await;
    let mut crowd = Vec::new();
    for n in 0..50 {
        let mut stream = connect(&node).await;
        // Half a head does not keep a connection either.
        if n % 2 == 0 {
            stream.write_all(b"GET /v1/ledger HTTP/1.1\r\nhost: localhost\r\n").await.expect("sends");
        }
        crowd.push(stream);
    }
    for path in ["/livez", "/readyz", "/v1/ledger"] {
        assert_eq!(fresh(&node).get(path).await.0, 200, "{path}");
    }
    let api = fresh(&node);
    eventually("the others are closed", LONG, async || {
        let open = api.metric("mainspring_connections").await;
        if open <= 20.0 { Ok(()) } else { Err(open) }
    })
    .await;
    assert!(api.metric("mainspring_connections_total{what=\"evicted\"}").await >= 30.0);
    assert_eq!(api.metric("mainspring_connections_total{what=\"refused\"}").await, 0.0);
    for (n, stream) in crowd.iter_mut().enumerate() {
        match n {
            ..30 => assert!(is_closed(stream, Duration::from_secs(2)).await, "connection {n} is older"),
            40.. => {
                assert!(!is_closed(stream, Duration::from_millis(20)).await, "connection {n} is younger");
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn health_and_metrics_are_answered_while_all_connections_are_busy() {
    let node = Node::builder().env("MAINSPRING__SERVER__MAX_CONNECTIONS", "3").start_ready().await;
    // The test's own client of the start is idle, and makes room.
    let mut watching = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(&node).await;
        let head = b"GET /v1/wheels/stream HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(head).await.expect("sends");
        stream.read_exact(&mut [0; 15]).await.expect("the answer begins");
        watching.push(stream);
    }
    for path in ["/livez", "/readyz", "/startupz", "/metrics"] {
        assert_eq!(fresh(&node).get(path).await.0, 200, "{path}");
    }
    let refused = fresh(&node).send(Method::GET, "/v1/ledger", &[], None).await;
    problem(&refused, 503, "overloaded");
    assert_eq!((refused.header("retry-after"), refused.header("connection")), (Some("1"), Some("close")));
    let page = fresh(&node).send(Method::GET, "/", &[], None).await;
    assert_eq!(page.status, 503, "pages too");
    assert_eq!(fresh(&node).metric("mainspring_connections_total{what=\"refused\"}").await, 2.0);

    watching.pop();
    eventually("there is room again", LONG, async || match fresh(&node).get("/v1/ledger").await {
        (200, _) => Ok(()),
        other => Err(other),
    })
    .await;
}
