//! Pointers: the entries of the wheels.

use std::cmp::Ordering;

use uuid::Uuid;

use super::id::{Generation, Uid};
use super::namespace::Namespace;
use super::priority::Priority;
use super::time::UnixMs;

/// A pointer to one attempt of a timer, due at some moment. It has no payload and is not deleted when its timer
/// is cancelled; the claim drops a stale or doubled pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// The timer.
    pub uid: Uid,
    /// Its shard.
    pub shard: i32,
    /// Its namespace.
    pub namespace: Namespace,
    /// The generation that is due.
    pub generation: Generation,
    /// Claims of that generation so far.
    pub attempt: i32,
    /// When it is due: the due time, or the time of the next attempt.
    pub wake_at: UnixMs,
    /// The receiver's lane.
    pub lane: i64,
    /// `precision: minute`: it is due at a whole minute and fires from the minute wheel.
    pub minute: bool,
    /// Its target is a queue: it is not sent, but workers that wait for it are woken.
    pub is_for_queue: bool,
    /// Who goes first.
    pub priority: Priority,
    /// Rises with each change of the timer, and begins anew after 255: of two pointers to one attempt this tells the newer.
    pub change: u8,
    /// It was found long after its due time, as after an outage, and must not delay timers that fall due now.
    /// Known to this process only, and not packed.
    pub overdue: bool,
    /// How it was noticed.
    pub via: Via,
}

/// The revision of a timer that a pointer was made from. A later revision is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revision {
    generation: Generation,
    /// Claims of that generation so far.
    attempt: i32,
    change: u8,
}

impl Revision {
    /// The revision of a timer with this generation, so many claims of it, and this change.
    pub const fn new(generation: Generation, attempt: i32, change: u8) -> Self {
        Self { generation, attempt, change }
    }
}

impl PartialOrd for Revision {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let attempts = (self.generation, self.attempt).cmp(&(other.generation, other.attempt));
        // Of two changes the later one is at most half a round ahead.
        let ahead = self.change.wrapping_sub(other.change).cast_signed();
        Some(attempts.then(ahead.cmp(&0)))
    }
}

/// How a due timer was noticed. Counted in the metrics, stored with the timer, shown by `explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Via {
    /// The loader promoted it when its due time came into the window.
    Loader,
    /// Its writer promoted it at once, because it was due within the window already.
    Express,
    /// The sweep found it overdue in SQL, and not held by this node.
    Sweep,
    /// A replay found it in SQL after a restart, a take-over or the loss of a wheel.
    Replay,
}

impl Via {
    /// All paths, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Loader, Self::Express, Self::Sweep, Self::Replay];

    /// Its number in SQL and in a packed pointer.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The path with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Its word in metrics.
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
const PACKED: usize = 37;

/// The length of one that is not of the store's own namespace, whose number stands at its end.
const PACKED_OF_OTHERS: usize = PACKED + 2;

/// A packed pointer.
#[derive(Debug, Clone, Copy)]
pub struct Packed {
    bytes: [u8; PACKED_OF_OTHERS],
    length: usize,
}

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The bit of [`Pointer::minute`] in the last byte of a packed pointer.
const MINUTE: u8 = 0x80;

/// Where [`Pointer::priority`] is in it: two bits.
const PRIORITY_SHIFT: u32 = 5;

/// The bit of [`Pointer::is_for_queue`].
const QUEUE: u8 = 0x10;

/// The bits of [`Pointer::via`].
const VIA: u8 = 0x0f;

impl Pointer {
    /// The revision of its timer.
    pub const fn revision(&self) -> Revision {
        Revision { generation: self.generation, attempt: self.attempt, change: self.change }
    }

    /// Packs everything but the shard, which is in the key: uid 16 bytes, lane 8, `wake_at` 6 (ms, until the
    /// year 10889), generation 4, change 1, attempt 1, path, priority and precision 1; and 2 for the number of
    /// a namespace that is not the store's own; big-endian.
    pub fn pack(&self) -> Packed {
        let mut packed = [0; PACKED_OF_OTHERS];
        packed[..16].copy_from_slice(self.uid.0.as_bytes());
        packed[16..24].copy_from_slice(&self.lane.to_be_bytes());
        packed[24..30].copy_from_slice(&self.wake_at.get().max(0).to_be_bytes()[2..]);
        packed[30..34].copy_from_slice(&self.generation.0.to_be_bytes());
        packed[34] = self.change;
        // There are at most a hundred.
        packed[35] = u8::try_from(self.attempt).unwrap_or(u8::MAX);
        let minute = if self.minute { MINUTE } else { 0 };
        let queue = if self.is_for_queue { QUEUE } else { 0 };
        packed[36] = self.via.code() | self.priority.code() << PRIORITY_SHIFT | minute | queue;
        let number = self.namespace.stored();
        packed[PACKED..].copy_from_slice(&number.unwrap_or(0).to_be_bytes());
        Packed { bytes: packed, length: if number.is_some() { PACKED_OF_OTHERS } else { PACKED } }
    }

    /// Unpacks a pointer of this shard; `None` if it was packed by another version.
    pub fn unpack(shard: i32, packed: &[u8]) -> Option<Self> {
        let (packed, number) = packed.split_first_chunk::<PACKED>()?;
        let namespace = match number {
            [] => Namespace::OWN,
            number => Some(Namespace(i16::from_be_bytes(number.try_into().ok()?)))
                .filter(|one| *one != Namespace::OWN)?,
        };
        let mut wake = [0; 8];
        wake[2..].copy_from_slice(&packed[24..30]);
        Some(Self {
            uid: Uid(Uuid::from_slice(&packed[..16]).ok()?),
            shard,
            namespace,
            generation: Generation(i32::from_be_bytes(packed[30..34].try_into().ok()?)),
            attempt: i32::from(packed[35]),
            wake_at: UnixMs::new(i64::from_be_bytes(wake)),
            lane: i64::from_be_bytes(packed[16..24].try_into().ok()?),
            minute: packed[36] & MINUTE != 0,
            is_for_queue: packed[36] & QUEUE != 0,
            priority: Priority::from_code((packed[36] & !MINUTE) >> PRIORITY_SHIFT)?,
            change: packed[34],
            overdue: false,
            via: Via::from_code(packed[36] & VIA)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_survives_packing() {
        for (attempt, minute, via, priority, number, length) in [
            (0, false, Via::Loader, Priority::High, 0, PACKED),
            (255, true, Via::Replay, Priority::Low, i16::MAX, PACKED + 2),
        ] {
            let pointer = Pointer {
                uid: Uid(Uuid::from_u128(u128::MAX / 3)),
                shard: 63,
                namespace: Namespace(number),
                generation: Generation(i32::MAX),
                attempt,
                wake_at: super::super::time::LAST,
                lane: i64::MIN,
                minute,
                is_for_queue: !minute,
                priority,
                change: 255,
                overdue: false,
                via,
            };
            let packed = pointer.pack();
            assert_eq!(packed.as_ref().len(), length);
            assert_eq!(Pointer::unpack(63, packed.as_ref()), Some(pointer));
        }
        let plain = Pointer::unpack(0, &[0; PACKED]).map(|pointer| (pointer.priority, pointer.change));
        assert_eq!(plain, Some((Priority::Normal, 0)), "as the version before packed it");
        for length in [0, PACKED - 1, PACKED + 1, PACKED + 3] {
            assert_eq!(Pointer::unpack(0, &vec![0; length]), None, "{length} bytes");
        }
        assert_eq!(
            Pointer::unpack(0, &[0; PACKED + 2]),
            None,
            "one number too many: the store's own has none"
        );
        assert_eq!(Pointer::unpack(0, &[0x7f; PACKED]), None, "an unknown path");
    }

    #[test]
    fn of_two_pointers_to_one_attempt_the_later_change_is_the_newer() {
        let of = |attempt, change| Revision { generation: Generation(1), attempt, change };
        assert!(of(0, 1) > of(0, 0) && of(0, 0) > of(0, 255) && of(0, 200) > of(0, 100));
        assert!(of(1, 0) > of(0, 9), "an attempt later");
        assert!(of(0, 7) >= of(0, 7) && of(0, 7) <= of(0, 7));
    }
}
