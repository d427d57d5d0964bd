//! The timers that the bench registers: numbered, rendered once, then only overwritten in place.
//!
//! Number, id and due time have fixed widths, so that a request keeps its length whatever it carries.

use crate::clock::{Clock, SystemClock};
use crate::model::time::UnixMs;
use crate::tools::wire::find;

/// What stands before a timer's number in its payload.
pub const MARK: &[u8] = b"\"n\":\"";
/// How many digits a number has.
pub const DIGITS: usize = 12;
/// The smallest payload, in bytes: the number and an empty filling.
pub const MIN_PAYLOAD: usize = MARK.len() + DIGITS + r#"{","p":""}"#.len();

/// Placeholders; each as long as what replaces it.
const NUMBER: &str = "############";
const ID: &str = "b$$$$$$$$$$$$$$$$";
const DUE: &str = "@@@@-@@-@@T@@:@@:@@.@@@Z";
/// The name of one of many namespaces.
const NAMESPACE: &str = "bench-&&&&";
/// The most of them: as many as a store takes beside its own.
pub const MOST_NAMESPACES: u32 = 9_999;
/// The address of one of many receivers. Each of its last three numbers is 100 and two digits, so that the address has
/// one width without leading zeros.
pub const HOST: &str = "127.1%%.1%%.1%%";
/// The most of them.
pub const MOST_HOSTS: u32 = 1_000_000;

/// One year in milliseconds.
const YEAR_MS: i64 = 365 * 86_400_000;

/// Who names the timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// The service.
    Server,
    /// The bench: hashed numbers, so that keys come in no order.
    Caller,
}

/// When timers are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// At a moment from `from` on, less than `over_ms` later.
    At {
        /// The earliest.
        from: UnixMs,
        /// How many milliseconds they are spread over; 0 and 1 mean one moment for all.
        over_ms: i64,
    },
    /// So long after the registration was sent.
    After {
        /// The shortest, in milliseconds.
        min_ms: i64,
        /// The longest, in milliseconds.
        max_ms: i64,
    },
}

impl Due {
    /// One to three years ahead.
    pub const FAR: Self = Self::After { min_ms: YEAR_MS, max_ms: 3 * YEAR_MS };

    fn of(self, number: u64, seed: u64) -> UnixMs {
        let (from, span) = match self {
            Self::At { from, over_ms } => (from.get(), over_ms.max(1)),
            Self::After { min_ms, max_ms } => (SystemClock.now().get() + min_ms, (max_ms - min_ms).max(1)),
        };
        // Apart from the id's hash, so that the order of ids is not the order of due times.
        let hash = mix(mix(number).wrapping_add(seed));
        UnixMs::new(from + i64::try_from(hash % span.unsigned_abs()).unwrap_or(0))
    }
}

/// What all timers of a run have in common.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Their target, as JSON; a [`HOST`] in it becomes one of `hosts` addresses.
    pub target: String,
    /// How many receivers there are. The timers go to them in turn.
    pub hosts: u32,
    /// How many namespaces of the bench's own there are; 0 is none, and all timers are of the server's own.
    pub namespaces: u32,
    /// So many timers in a row are of one namespace, the next of the next.
    pub turn: u64,
    /// How long `data` is, in bytes.
    pub payload_bytes: usize,
    /// Makes the ids and due times of this run differ from those of others.
    pub seed: u64,
}

/// A timer's JSON, and where its parts are.
#[derive(Debug, Clone)]
pub struct Timer {
    /// What is sent.
    pub bytes: Vec<u8>,
    seed: u64,
    hosts: u32,
    namespaces: u32,
    turn: u64,
    number_at: Option<usize>,
    id_at: Option<usize>,
    due_at: Option<usize>,
    host_at: Option<usize>,
    namespace_at: Option<usize>,
}

/// The name of a namespace of the bench's own.
pub fn namespace(nth: u64) -> String {
    format!("bench-{nth:04}")
}

impl Shape {
    /// The header line that puts a call into a namespace: that of the timer with this number, or one that
    /// [`Timer::become_number`] writes over. Empty if all timers are of the server's own.
    pub fn namespace_line(&self, number: Option<u64>) -> String {
        if self.namespaces == 0 {
            return String::new();
        }
        let nth = |number| nth_namespace(number, self.namespaces, self.turn);
        let name = number.map_or_else(|| NAMESPACE.to_owned(), |number| namespace(nth(number)));
        format!("x-mainspring-namespace: {name}\r\n")
    }

    /// A timer as an item of a batch or a line of a stream.
    pub fn item(&self, ids: Ids) -> Timer {
        let id = if ids == Ids::Caller { format!(r#""id":"{ID}","#) } else { String::new() };
        self.timer(format!("{{{id}{}", &self.json()[1..]))
    }

    /// A whole request for one timer; `head` gives the head for method, path and the body's length.
    pub fn single(&self, ids: Ids, head: impl Fn(&str, &str, usize) -> String) -> Timer {
        let json = self.json();
        let head = match ids {
            Ids::Server => head("POST", "/v1/timers", json.len()),
            Ids::Caller => head("PUT", &format!("/v1/timers/{ID}"), json.len()),
        };
        self.timer(head + &json)
    }

    /// A whole request that cancels one timer of the caller's own id.
    pub fn cancel(&self, head: impl Fn(&str, &str, usize) -> String) -> Timer {
        self.timer(head("DELETE", &format!("/v1/timers/{ID}"), 0))
    }

    /// The id of the timer with this number, if callers name them.
    pub fn id(&self, number: u64) -> String {
        format!("b{:016x}", mix(number ^ self.seed))
    }

    /// When it is due.
    pub fn due(&self, number: u64, due: Due) -> UnixMs {
        due.of(number, self.seed)
    }

    fn json(&self) -> String {
        let filling = "x".repeat(self.payload_bytes.saturating_sub(MIN_PAYLOAD));
        format!(r#"{{"fire_at":"{DUE}","target":{},"data":{{"n":"{NUMBER}","p":"{filling}"}}}}"#, self.target)
    }

    fn timer(&self, text: String) -> Timer {
        let at = |what: &str| find(text.as_bytes(), what.as_bytes());
        let (number_at, id_at, due_at, host_at) = (at(NUMBER), at(ID), at(DUE), at(HOST));
        let (seed, hosts) = (self.seed, self.hosts.clamp(1, MOST_HOSTS));
        let (namespaces, turn, namespace_at) = (self.namespaces, self.turn, at(NAMESPACE));
        let bytes = text.into_bytes();
        Timer { number_at, id_at, due_at, host_at, namespace_at, seed, hosts, namespaces, turn, bytes }
    }
}

impl Timer {
    /// Makes it the timer with this number; returns when that is due.
    pub fn become_number(&mut self, number: u64, due: Due) -> UnixMs {
        let due_at = due.of(number, self.seed);
        self.put(self.number_at, format_args!("{number:0width$}", width = DIGITS));
        self.put(self.id_at.map(|at| at + 1), format_args!("{:016x}", mix(number ^ self.seed)));
        self.put(self.due_at, format_args!("{}", due_at.rfc3339()));
        let host = number % u64::from(self.hosts);
        let [high, middle, low] = [host / 10_000, host / 100 % 100, host % 100];
        self.put(self.host_at, format_args!("127.1{high:02}.1{middle:02}.1{low:02}"));
        if self.namespace_at.is_some() {
            let nth = nth_namespace(number, self.namespaces, self.turn);
            self.put(self.namespace_at, format_args!("{}", namespace(nth)));
        }
        due_at
    }

    fn put(&mut self, at: Option<usize>, text: std::fmt::Arguments<'_>) {
        use std::io::Write;
        if let Some(mut place) = at.and_then(|at| self.bytes.get_mut(at..)) {
            // A slice takes what it has room for, and the widths are fixed.
            let _ = place.write_fmt(text);
        }
    }
}

fn nth_namespace(number: u64, namespaces: u32, turn: u64) -> u64 {
    number / turn.max(1) % u64::from(namespaces.clamp(1, MOST_NAMESPACES))
}

/// Scatters numbers over all of 64 bits, each to one of its own (the finalizer of SplitMix64).
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(url: &str) -> String {
        serde_json::json!({"webhook": {"url": url}}).to_string()
    }

    fn shape() -> Shape {
        let target = hook("http://127.0.0.1:1/x");
        Shape { target, hosts: 1, namespaces: 0, turn: 1, payload_bytes: 100, seed: 7 }
    }

    #[test]
    fn timers_go_to_their_receivers_in_turn_and_every_address_is_one() {
        let target = hook(&format!("http://{HOST}:1/x"));
        let mut timer = Shape { target, hosts: MOST_HOSTS, ..shape() }.item(Ids::Server);
        let length = timer.bytes.len();
        let mut host = |number| {
            timer.become_number(number, Due::FAR);
            let json: serde_json::Value = serde_json::from_slice(&timer.bytes).unwrap();
            let url = json["target"]["webhook"]["url"].as_str().unwrap().to_owned();
            assert_eq!(timer.bytes.len(), length);
            url.strip_prefix("http://").unwrap().split(':').next().unwrap().to_owned()
        };
        let most = u64::from(MOST_HOSTS);
        assert_eq!((host(0), host(most)), ("127.100.100.100".into(), "127.100.100.100".into()));
        assert_eq!((host(1234), host(most - 1)), ("127.100.112.134".into(), "127.199.199.199".into()));
        let mut seen = std::collections::HashSet::new();
        let three = Shape { target: HOST.into(), hosts: 3, ..shape() };
        let mut timer = three.item(Ids::Server);
        for number in 0..9 {
            timer.become_number(number, Due::FAR);
            seen.insert(timer.bytes[timer.host_at.unwrap()..][..HOST.len()].to_vec());
        }
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn timers_take_turns_at_namespaces_and_a_batch_is_of_the_one_of_its_first() {
        let shape = Shape { namespaces: 3, turn: 2, ..shape() };
        let head =
            |method: &str, path: &str, _| format!("{method} {path}\r\n{}\r\n", shape.namespace_line(None));
        let mut single = shape.single(Ids::Server, head);
        for (number, name) in
            [(0, "bench-0000"), (1, "bench-0000"), (2, "bench-0001"), (5, "bench-0002"), (6, "bench-0000")]
        {
            single.become_number(number, Due::FAR);
            let line = format!("x-mainspring-namespace: {name}\r\n");
            assert!(find(&single.bytes, line.as_bytes()).is_some(), "{number}");
            assert_eq!(shape.namespace_line(Some(number)), line);
        }
        assert_eq!(Shape { namespaces: 0, ..shape }.namespace_line(Some(1)), "");
    }

    #[test]
    fn a_timer_keeps_its_length_and_its_payload_has_the_length_asked_for() {
        let mut timer = shape().item(Ids::Caller);
        let length = timer.bytes.len();
        let due = Due::At { from: UnixMs::new(1_800_000_000_000), over_ms: 1000 };
        for number in [0, 41, 999_999_999_999] {
            let at = timer.become_number(number, due);
            assert_eq!(timer.bytes.len(), length);
            let json: serde_json::Value = serde_json::from_slice(&timer.bytes).unwrap();
            assert_eq!(json["data"]["n"], format!("{number:012}"));
            assert_eq!(json["data"].to_string().len(), 100);
            assert_eq!(json["fire_at"], at.rfc3339());
            assert!((0..1000).contains(&(at.get() - 1_800_000_000_000)));
            assert_eq!(json["id"].as_str().unwrap().len(), ID.len());
            assert_eq!(json["id"], shape().id(number));
            assert_eq!(shape().due(number, due), at);
        }
        assert!(!timer.bytes.iter().any(|b| b"#$@".contains(b)));
    }

    #[test]
    fn ids_differ_and_only_callers_give_them() {
        let head = |method: &str, path: &str, length: usize| format!("{method} {path} {length}\r\n\r\n");
        let mut put = shape().single(Ids::Caller, head);
        let mut ids = std::collections::HashSet::new();
        for number in 0..1000 {
            put.become_number(number, Due::FAR);
            ids.insert(put.bytes[15..15 + ID.len()].to_vec());
        }
        assert_eq!(ids.len(), 1000);
        let post = shape().single(Ids::Server, head);
        assert!(post.bytes.starts_with(b"POST /v1/timers "));
        assert!(!String::from_utf8(post.bytes).unwrap().contains("\"id\""));
        let mut delete = shape().cancel(head);
        delete.become_number(3, Due::FAR);
        put.become_number(3, Due::FAR);
        assert_eq!(delete.bytes[18..35], put.bytes[15..32], "a cancel names what was registered");
    }
}
