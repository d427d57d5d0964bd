//! One direction of one connection: what was read waits its time and is written in order.
//!
//! Reading and writing go on beside each other, so that a delay costs time and no throughput, up to what is
//! held at most. Invariant: at most [`HELD_MAX`] bytes and [`PIECES_MAX`] pieces wait, one read more than
//! that at the worst, and nothing is read or written while frozen.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::answers::Answers;
use super::{End, Mode, Shared, count};
use crate::clock::Monotonic;

/// As many bytes may wait, each way.
pub(super) const HELD_MAX: usize = 256 << 10;
/// As many reads may wait, each way.
const PIECES_MAX: usize = 1024;
/// The most that is read at once, in bytes.
const READ_MAX: usize = 16 << 10;

/// Which way, and what is to be done on it.
pub(super) struct Way<'a> {
    pub(super) shared: &'a Shared,
    /// The bytes that were passed on.
    pub(super) passed: &'a AtomicU64,
    /// What the server says, if this is the way back.
    pub(super) answers: Option<Answers>,
}

/// What waits on one way.
pub(super) struct Line<'a> {
    way: Way<'a>,
    pieces: VecDeque<Piece>,
    held: usize,
    /// The reader has no more.
    ended: bool,
    /// What comes next is cut off; when all before it is written, the connection is to be reset.
    cut: bool,
}

struct Piece {
    due: Monotonic,
    bytes: Vec<u8>,
    written: usize,
}

impl<'a> Line<'a> {
    pub(super) fn new(way: Way<'a>) -> Self {
        Self { way, pieces: VecDeque::new(), held: 0, ended: false, cut: false }
    }

    /// Passes on what comes until there is no more; the other end is told so. An error is how the whole
    /// connection ends. Whoever cuts drops this.
    pub(super) async fn run(mut self, from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>) -> Result<(), End> {
        let mut states = self.way.shared.state.subscribe();
        let mut buffer = vec![0; READ_MAX];
        loop {
            let mode = states.borrow_and_update().mode;
            let flows = mode != Mode::Freeze;
            if self.pieces.is_empty() && flows {
                if self.cut {
                    return Err(End::Cut);
                }
                if self.ended {
                    return to.shutdown().await.map_err(|_| End::Broken);
                }
            }
            let room = self.held < HELD_MAX && self.pieces.len() < PIECES_MAX;
            let reads = flows && room && !self.ended && !self.cut;
            let first = self.pieces.front().filter(|_| flows);
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
        let shared = self.way.shared;
        match &mut self.way.answers {
            None => out.extend_from_slice(bytes),
            Some(answers) if self.ended => answers.end(&mut out),
            Some(answers) => {
                let knew = answers.unreadable();
                let (left, which) = *shared.wanted.borrow();
                let wanted = (left > 0).then_some(which);
                self.cut = answers.read(bytes, wanted, &mut out, || shared.take_commit());
                if answers.unreadable() && !knew {
                    count(&shared.counters.unreadable);
                }
                if self.cut {
                    // By now, nobody can learn of it any more.
                    count(&shared.counters.commits_cut);
                }
            }
        }
        if !out.is_empty() {
            let by = if let Mode::Delay(by) = mode { by } else { Duration::ZERO };
            self.held += out.len();
            self.pieces.push_back(Piece { due: Monotonic::now().plus(by), bytes: out, written: 0 });
        }
    }

    fn has_written(&mut self, length: usize) {
        self.way.passed.fetch_add(length as u64, Ordering::SeqCst);
        self.held -= length;
        if let Some(first) = self.pieces.front_mut() {
            first.written += length;
            if first.written == first.bytes.len() {
                self.pieces.pop_front();
            }
        }
    }
}

impl Shared {
    /// Takes one of the commits that are still to be cut; false when there is none left.
    fn take_commit(&self) -> bool {
        self.wanted.send_if_modified(|(count, _)| {
            let left = *count > 0;
            *count = count.saturating_sub(1);
            left
        })
    }
}

/// Writes of a piece what the other end takes, as soon as its time has come. Cancel-safe: what was written is
/// told. Does not end without a piece.
async fn write(piece: Option<&Piece>, mode: Mode, to: &mut WriteHalf<'_>) -> std::io::Result<usize> {
    let Some(piece) = piece else { return std::future::pending().await };
    if let Mode::Delay(_) = mode {
        let early = piece.due.since(Monotonic::now());
        tokio::time::sleep(early).await;
    }
    to.write(&piece.bytes[piece.written..]).await
}
