//! A storm of callers: hundreds for each node connect at once, call, and hang up; again and again, beside connections that say
//! nothing.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How many callers connect at once, for each node: a thousand for three nodes.
const CALLERS: usize = 350;
/// Connections that are kept and say nothing, for each node.
const IDLE: usize = 175;
/// How long a caller waits for its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after the last one has hung up all come again.
const PAUSE: Duration = Duration::from_millis(500);
/// What each calls: a timer that is not there, which costs the service one read.
const CALL: &[u8] = b"GET /v1/timers/drill-storm HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// The answer.
const ANSWER: &[u8] = b"HTTP/1.1 404";

/// Callers at work.
#[derive(Debug)]
pub struct Storm {
    stop: CancellationToken,
    raging: JoinHandle<Raged>,
}

/// What callers have done.
#[derive(Debug, Default)]
pub struct Raged {
    /// How often all of them came.
    pub rounds: usize,
    /// Calls that were answered.
    pub answered: usize,
    /// Connections that were kept and said nothing.
    pub idle: usize,
}

impl Storm {
    /// Begins. The callers come to the nodes in turn.
    pub fn begin(nodes: Vec<SocketAddr>) -> Self {
        let stop = CancellationToken::new();
        let raging = tokio::spawn(rage(nodes, stop.clone()));
        Self { stop, raging }
    }

    /// Ends when the round under way does.
    pub async fn end(self) -> anyhow::Result<Raged> {
        self.stop.cancel();
        self.raging.await.context("the storm broke down")
    }
}

async fn rage(nodes: Vec<SocketAddr>, stop: CancellationToken) -> Raged {
    let in_turn = |each: usize| nodes.iter().copied().cycle().take(each * nodes.len());
    let connect = |node| async move { timeout(PATIENCE, TcpStream::connect(node)).await.ok()?.ok() };
    let idle: Vec<TcpStream> = join_all(in_turn(IDLE).map(connect)).await.into_iter().flatten().collect();
    let mut raged = Raged { idle: idle.len(), ..Raged::default() };
    while !stop.is_cancelled() {
        let calls = in_turn(CALLERS).map(|node| async move {
            let called = timeout(PATIENCE, call(node)).await;
            usize::from(called.is_ok_and(|answer| answer.is_ok_and(|answer| answer == ANSWER)))
        });
        raged.answered += join_all(calls).await.into_iter().sum::<usize>();
        raged.rounds += 1;
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = stop.cancelled() => {}
        }
    }
    raged
}

/// Connects, calls, reads how the answer begins, and hangs up.
async fn call(node: SocketAddr) -> std::io::Result<[u8; ANSWER.len()]> {
    let mut stream = TcpStream::connect(node).await?;
    stream.write_all(CALL).await?;
    let mut begins = [0; ANSWER.len()];
    stream.read_exact(&mut begins).await?;
    Ok(begins)
}
