//! A pointer: what the wheels hold of a timer instead of the timer itself.

use uuid::Uuid;

use super::id::{Generation, Uid};
use super::time::UnixMs;

/// Points at one attempt that is due at some moment: no payload, nothing to delete when its timer is
/// cancelled. A stale or doubled pointer is dropped by its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// The timer.
    pub uid: Uid,
    /// Its shard.
    pub shard: i32,
    /// The generation that is due.
    pub generation: Generation,
    /// Claims of that generation so far.
    pub attempt: i32,
    /// When somebody should look at it: due, or the next attempt.
    pub wake_at: UnixMs,
    /// The receiver's lane.
    pub lane: i64,
    /// Due at a whole minute and fired from the minute wheel (`precision: minute`).
    pub minute: bool,
    /// Found long after its time: what an outage left behind, which must not delay what falls due now. Known
    /// to this process only.
    pub overdue: bool,
    /// How it came to be noticed.
    pub via: Via,
}

/// Which state of its timer a pointer was made from: the later one is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision {
    generation: Generation,
    /// Claims of that generation so far.
    attempt: i32,
}

/// How a due timer is noticed. Counted by path, kept with the timer, and told by `explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Via {
    /// The loader promoted it when its due time came into the window.
    Loader,
    /// Whoever wrote it promoted it at once, for it was due within the window already.
    Express,
    /// The sweep found it overdue in SQL, and in nobody's hands.
    Sweep,
    /// A replay found it in SQL after a restart, a take-over or the loss of a wheel.
    Replay,
}

impl Via {
    /// All paths, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Loader, Self::Express, Self::Sweep, Self::Replay];

    /// The number that stands for it in SQL and in a packed pointer.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The path behind a number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The word for metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Loader => "loader",
            Self::Express => "express",
            Self::Sweep => "sweep",
            Self::Replay => "replay",
        }
    }
}

/// The length of a packed pointer in bytes.
pub const PACKED: usize = 37;

/// Set in the last byte of a packed pointer when it is due at a whole minute.
const MINUTE: u8 = 0x80;

impl Pointer {
    /// Which state of its timer it was made from.
    pub const fn revision(&self) -> Revision {
        Revision { generation: self.generation, attempt: self.attempt }
    }

    /// Packs all but the shard, which the place it is kept at tells: uid 16, lane 8, wake 6 (ms, until the
    /// year 10889), generation 4, attempt 2, path and precision 1; big-endian.
    pub fn pack(&self) -> [u8; PACKED] {
        let mut packed = [0; PACKED];
        packed[..16].copy_from_slice(self.uid.0.as_bytes());
        packed[16..24].copy_from_slice(&self.lane.to_be_bytes());
        packed[24..30].copy_from_slice(&self.wake_at.get().max(0).to_be_bytes()[2..]);
        packed[30..34].copy_from_slice(&self.generation.0.to_be_bytes());
        let attempt = u16::try_from(self.attempt).unwrap_or(u16::MAX);
        packed[34..36].copy_from_slice(&attempt.to_be_bytes());
        packed[36] = self.via.code() | if self.minute { MINUTE } else { 0 };
        packed
    }

    /// Reads a packed pointer of this shard; `None` if it is none of this version's.
    pub fn unpack(shard: i32, packed: &[u8]) -> Option<Self> {
        let packed: &[u8; PACKED] = packed.try_into().ok()?;
        let mut wake = [0; 8];
        wake[2..].copy_from_slice(&packed[24..30]);
        Some(Self {
            uid: Uid(Uuid::from_slice(&packed[..16]).ok()?),
            shard,
            generation: Generation(i32::from_be_bytes(packed[30..34].try_into().ok()?)),
            attempt: i32::from(u16::from_be_bytes(packed[34..36].try_into().ok()?)),
            wake_at: UnixMs::new(i64::from_be_bytes(wake)),
            lane: i64::from_be_bytes(packed[16..24].try_into().ok()?),
            minute: packed[36] & MINUTE != 0,
            overdue: false,
            via: Via::from_code(packed[36] & !MINUTE)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_survives_packing() {
        for (attempt, minute, via) in [(0, false, Via::Loader), (65_535, true, Via::Replay)] {
            let pointer = Pointer {
                uid: Uid(Uuid::from_u128(u128::MAX / 3)),
                shard: 63,
                generation: Generation(i32::MAX),
                attempt,
                wake_at: super::super::time::LAST,
                lane: i64::MIN,
                minute,
                overdue: false,
                via,
            };
            assert_eq!(Pointer::unpack(63, &pointer.pack()), Some(pointer));
        }
        assert_eq!(Pointer::unpack(0, &[0; PACKED - 1]), None);
        assert_eq!(Pointer::unpack(0, &[0x7f; PACKED]), None, "an unknown path");
    }
}
