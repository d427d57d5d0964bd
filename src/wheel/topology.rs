//! The topology of a Redis Cluster, and the rule that assigns keys to hash slots (the Redis Cluster
//! specification's).
//!
//! Pure: replies and keys in, addresses and slots out.

use deadpool_redis::redis::{Value, from_redis_value_ref};

use super::Error;
use super::server::field;

/// The number of hash slots of every Redis Cluster.
pub const SLOTS: u16 = 16_384;

/// The state of a cluster, as one of its nodes sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// `cluster_state` is `ok`.
    pub works: bool,
    /// Rises with every election.
    pub epoch: i64,
    /// First and last slot and their master's host and port, in order.
    pub ranges: Vec<(u16, u16, String, u16)>,
}

impl Topology {
    /// Parses the replies to `CLUSTER INFO` and `CLUSTER SLOTS` of the node at `asked`. Where a host is missing
    /// in them, it is that node's own.
    pub(super) fn read(asked: &str, info: &str, slots: Vec<Vec<Value>>) -> Result<Self, Error> {
        let epoch = field(info, "cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        let range = |entry: Vec<Value>| {
            let [first, last, master, ..] = &entry[..] else { return None };
            let (first, last): (u16, u16) = (number(first)?, number(last)?);
            let Value::Array(master) = master else { return None };
            let [host, port, ..] = &master[..] else { return None };
            let host = match host {
                Value::Nil => String::new(),
                host => from_redis_value_ref::<String>(host).ok()?,
            };
            let host = if host.is_empty() || host == "?" { asked.to_owned() } else { host };
            (first <= last && last < SLOTS).then_some((first, last, host, number(port)?))
        };
        let ranges: Option<Vec<_>> = slots.into_iter().map(range).collect();
        let mut ranges = ranges.ok_or_else(|| Error::Answer("to CLUSTER SLOTS in an unknown form".into()))?;
        ranges.sort_unstable();
        Ok(Self { works: field(info, "cluster_state") == Some("ok"), epoch, ranges })
    }

    /// The number of slots that have a master, of [`SLOTS`].
    pub fn covered(&self) -> usize {
        self.ranges.iter().map(|(first, last, ..)| usize::from(last - first) + 1).sum()
    }

    /// The number of masters that serve slots.
    pub fn masters(&self) -> usize {
        let mut all: Vec<_> = self.ranges.iter().map(|(_, _, host, port)| (host, port)).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    }
}

fn number(value: &Value) -> Option<u16> {
    from_redis_value_ref(value).ok()
}

/// The hash slot of a key: CRC16 (XMODEM) of its hash tag, or of the whole key if it has none.
pub(super) fn hash_slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_where_redis_says() {
        assert_eq!(crc16(b"123456789"), 0x31C3, "the specification's own check");
        // As CLUSTER KEYSLOT of Redis 7.0 answers.
        for (key, slot) in [
            ("foo", 12182),
            ("somekey", 11058),
            ("{user1000}.following", 3443),
            ("{user1000}.followers", 3443),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
            ("bar", 5061),
        ] {
            assert_eq!(hash_slot(key), slot, "{key}");
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn slots_are_read_with_their_masters_and_nothing_else() {
        let node =
            |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
        let slots = vec![
            vec![Value::Int(8000), Value::Int(16383), node(Value::Nil, 7001)],
            vec![Value::Int(0), Value::Int(7999), node(text("10.0.0.1"), 7000), node(text("10.0.0.9"), 7009)],
        ];
        let info = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_current_epoch:12\r\n";
        let read = Topology::read("me", info, slots).unwrap();
        let ranges = vec![(0, 7999, "10.0.0.1".to_owned(), 7000), (8000, 16383, "me".to_owned(), 7001)];
        assert_eq!(read, Topology { works: true, epoch: 12, ranges });
        assert_eq!((read.covered(), read.masters()), (16_384, 2));
        let none = Topology::read("me", "cluster_state:fail\r\n", Vec::new()).unwrap();
        assert_eq!((none.works, none.covered(), none.masters()), (false, 0, 0));
        assert!(
            Topology::read("me", info, vec![vec![Value::Int(0), Value::Int(16384), node(Value::Nil, 1)]])
                .is_err()
        );
        assert!(Topology::read("me", info, vec![vec![Value::Int(0)]]).is_err());
    }
}
