//! One direction of one connection: bytes are read, wait for their time, and are written in order.
//!
//! Reading and writing go on beside each other, so that a delay costs time and no throughput, up to the bound on
//! what waits. Invariant: at most [`HELD_MAX`] bytes and [`CHUNKS_MAX`] chunks wait, one read more than
//! that at the worst, and nothing is read or written while frozen.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::answers::Answers;
use super::{End, Mode, Shared, count};
use crate::clock::Monotonic;

/// As many bytes may wait, in each direction.
pub(super) const HELD_MAX: usize = 256 << 10;
/// As many reads may wait, in each direction.
const CHUNKS_MAX: usize = 1024;
/// The most that is read at once, in bytes.
const READ_MAX: usize = 16 << 10;

/// What the two directions differ in.
pub(super) struct Direction<'a> {
    pub(super) shared: &'a Shared,
    /// The bytes that were passed on.
    pub(super) passed: &'a AtomicU64,
    /// The server's answers, if this is the direction to the client.
    pub(super) answers: Option<Answers>,
}

/// Passes on the bytes of one direction.
pub(super) struct Forwarder<'a> {
    direction: Direction<'a>,
    chunks: VecDeque<Chunk>,
    held: usize,
    /// The reader has no more.
    ended: bool,
    /// What comes next is cut off; when all before it is written, the connection is to be reset.
    cut: bool,
}

struct Chunk {
    due: Monotonic,
    bytes: Vec<u8>,
    written: usize,
}

impl<'a> Forwarder<'a> {
    pub(super) fn new(direction: Direction<'a>) -> Self {
        Self { direction, chunks: VecDeque::new(), held: 0, ended: false, cut: false }
    }

    /// Passes on what comes until the reader has no more, and shuts the other end down. An error says how the whole
    /// connection ends. To cut the connection, drop this future.
    pub(super) async fn run(mut self, from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>) -> Result<(), End> {
        let mut states = self.direction.shared.state.subscribe();
        let mut buffer = vec![0; READ_MAX];
        loop {
            let mode = states.borrow_and_update().mode;
            let flows = mode != Mode::Freeze;
            if self.chunks.is_empty() && flows {
                if self.cut {
                    return Err(End::Cut);
                }
                if self.ended {
                    return to.shutdown().await.map_err(|_| End::Broken);
                }
            }
            let room = self.held < HELD_MAX && self.chunks.len() < CHUNKS_MAX;
            let reads = flows && room && !self.ended && !self.cut;
            let first = self.chunks.front().filter(|_| flows);
            tokio::select! {
                _ = states.changed() => {}
                read = from.read(&mut buffer), if reads => match read {
                    Ok(length) => self.take_in(&buffer[..length], mode),
                    Err(_) => return Err(End::Broken),
                },
                written = write(first, mode, to), if first.is_some() => match written {
                    Ok(length) => self.has_written(length),
                    Err(_) => return Err(End::Broken),
                },
            }
        }
    }

    fn take_in(&mut self, bytes: &[u8], mode: Mode) {
        self.ended = bytes.is_empty();
        let mut out = Vec::new();
        let shared = self.direction.shared;
        match &mut self.direction.answers {
            None => out.extend_from_slice(bytes),
            Some(answers) if self.ended => answers.end(&mut out),
            Some(answers) => {
                let knew = answers.unreadable();
                let (remaining, which) = *shared.wanted.borrow();
                let wanted = (remaining > 0).then_some(which);
                self.cut = answers.read(bytes, wanted, &mut out, || shared.take_commit());
                if answers.unreadable() && !knew {
                    count(&shared.counters.unreadable);
                }
                if self.cut {
                    // From here on the client cannot learn of it any more.
                    count(&shared.counters.commits_cut);
                }
            }
        }
        if !out.is_empty() {
            let by = if let Mode::Delay(by) = mode { by } else { Duration::ZERO };
            self.held += out.len();
            self.chunks.push_back(Chunk { due: Monotonic::now().plus(by), bytes: out, written: 0 });
        }
    }

    fn has_written(&mut self, length: usize) {
        self.direction.passed.fetch_add(length as u64, Ordering::SeqCst);
        self.held -= length;
        if let Some(first) = self.chunks.front_mut() {
            first.written += length;
            if first.written == first.bytes.len() {
                self.chunks.pop_front();
            }
        }
    }
}

impl Shared {
    /// Takes one of the commits that are still to be cut; false when there are no more.
    fn take_commit(&self) -> bool {
        self.wanted.send_if_modified(|(count, _)| {
            let some = *count > 0;
            *count = count.saturating_sub(1);
            some
        })
    }
}

/// Writes as much of a chunk as the other end takes, once its time has come; returns how much. Cancel-safe. Does not
/// end without a chunk.
async fn write(chunk: Option<&Chunk>, mode: Mode, to: &mut WriteHalf<'_>) -> std::io::Result<usize> {
    let Some(chunk) = chunk else { return std::future::pending().await };
    if let Mode::Delay(_) = mode {
        let early = chunk.due.since(Monotonic::now());
        tokio::time::sleep(early).await;
    }
    to.write(&chunk.bytes[chunk.written..]).await
}
