//! Who is connected, and who goes when the places run out.
//!
//! Every connection has a *seat*. A connection is *busy* while a call is under way on it, and *idle* otherwise; so it is
//! idle from its first moment, until it has sent the head of a request. When all seats are taken, the one that has been
//! idle for longest loses its seat to the newcomer. If all are busy, the newcomer gets one of a few *reserved* seats: its
//! calls for health and metrics are answered, others are refused, until a seat is free.
//!
//! While seats are scarce, one address ([`Peer`]) has at most half of them: beyond that its own connections make room
//! for its new ones. While seats are plenty an address may have any number, because a proxy or a load test has one
//! address. Loopback is not limited: a proxy on this machine, and everything on a server that listens there, comes from
//! it.
//!
//! Nothing here waits or does I/O: [`super::listen`] accepts, serves and closes.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::metrics::Metrics;

/// Whom a connection counts for: an IPv4 address, or a network of 64 bits of IPv6, which one customer has to himself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl From<IpAddr> for Peer {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) if !ip.is_loopback() => {
                let [a, b, c, d, ..] = ip.segments();
                Self(std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            ip => Self(ip),
        }
    }
}

/// The seats.
pub struct Connections {
    /// Seats for all, and seats for health checks only.
    most: usize,
    reserved: usize,
    /// The most seats of one address while seats are scarce.
    share: usize,
    state: Mutex<State>,
    metrics: Metrics,
}

#[derive(Default)]
struct State {
    seats: HashMap<u64, SeatState>,
    /// The idle connections on ordinary seats, and those on reserved ones, by when they became idle.
    idle: BTreeMap<u64, u64>,
    idle_reserved: BTreeMap<u64, u64>,
    /// Ordinary seats by address.
    peers: HashMap<Peer, OfPeer>,
    taken: usize,
    reserved: usize,
    /// Rises with every event: the number of the next seat, and the time in which idle ones are ordered.
    turn: u64,
}

#[derive(Default)]
struct OfPeer {
    taken: usize,
    idle: BTreeMap<u64, u64>,
}

struct SeatState {
    peer: Peer,
    reserved: bool,
    /// When it became idle; `None` while it is busy.
    idle_since: Option<u64>,
    close: Arc<Notify>,
}

/// A place for one connection, until it is dropped.
pub struct Seat {
    number: u64,
    of: Arc<Connections>,
    close: Arc<Notify>,
    /// Calls under way: one at most over HTTP/1.1, several over HTTP/2.
    under_way: AtomicUsize,
}

/// A call under way; when the last one of a connection is dropped, that is idle.
pub struct Busy {
    seat: Arc<Seat>,
    /// There was no ordinary seat: only health and metrics are answered.
    pub refused: bool,
}

impl Connections {
    /// Seats for `most` connections, and `reserved` ones beyond them for health checks only.
    pub fn new(most: usize, reserved: usize, metrics: Metrics) -> Arc<Self> {
        metrics.connections_max.set(i64::try_from(most).unwrap_or(i64::MAX));
        Arc::new(Self { most, reserved, share: most.div_ceil(2), state: Mutex::default(), metrics })
    }

    /// A seat for a new connection; `None` if there is no room even for a health check. The connections that lose
    /// their seats for it are told so ([`Seat::closed`]).
    pub fn sit(self: &Arc<Self>, ip: IpAddr) -> Option<Seat> {
        let peer = Peer::from(ip);
        let mut state = self.lock();
        let reserved = !self.make_room(&mut state, peer);
        if reserved && state.reserved >= self.reserved && !self.evict(&mut state, None, true) {
            drop(state);
            self.count("refused");
            return None;
        }
        let close = Arc::new(Notify::new());
        let number = state.next_turn();
        state.seats.insert(number, SeatState { peer, reserved, idle_since: None, close: Arc::clone(&close) });
        state.counted_in(peer, reserved);
        state.set_idle(number);
        self.show(&state);
        drop(state);
        self.count("accepted");
        Some(Seat { number, of: Arc::clone(self), close, under_way: AtomicUsize::new(0) })
    }

    /// Closes the connection that has been idle for longest, if one is: the process is out of open files.
    pub fn close_one(&self) {
        let mut state = self.lock();
        let _ = self.evict(&mut state, None, false) || self.evict(&mut state, None, true);
        self.show(&state);
    }

    /// Whether there is an ordinary seat for this address, which another connection may have lost for it.
    fn make_room(&self, state: &mut State, peer: Peer) -> bool {
        let scarce = state.taken >= self.most - self.most / 4;
        let taken = state.peers.get(&peer).map_or(0, |of| of.taken);
        if scarce && taken >= self.share && !peer.0.is_loopback() {
            return self.evict(state, Some(peer), false);
        }
        state.taken < self.most || self.evict(state, None, false)
    }

    /// Takes the seat of the connection that has been idle for longest: of one address, of all, or of those on reserved
    /// seats. False if none is idle.
    fn evict(&self, state: &mut State, peer: Option<Peer>, reserved: bool) -> bool {
        let oldest = match (peer, reserved) {
            (Some(peer), _) => state.peers.get(&peer).and_then(|of| of.idle.first_key_value()),
            (None, false) => state.idle.first_key_value(),
            (None, true) => state.idle_reserved.first_key_value(),
        };
        let Some((_, &number)) = oldest else { return false };
        if let Some(seat) = state.remove(number) {
            seat.close.notify_one();
            self.count("evicted");
        }
        true
    }

    fn count(&self, what: &str) {
        self.metrics.connected.with_label_values(&[what]).inc();
    }

    fn show(&self, state: &State) {
        let idle = state.idle.len();
        let busy = state.taken - idle;
        for (name, count) in [("busy", busy), ("idle", idle), ("reserved", state.reserved)] {
            self.metrics.connections.with_label_values(&[name]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A panic while the lock was held leaves sums that are consistent: each change is complete before anything else is
    /// called.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    const fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    fn counted_in(&mut self, peer: Peer, reserved: bool) {
        if reserved {
            self.reserved += 1;
        } else {
            self.taken += 1;
            self.peers.entry(peer).or_default().taken += 1;
        }
    }

    fn counted_out(&mut self, peer: Peer, reserved: bool) {
        if reserved {
            self.reserved -= 1;
            return;
        }
        self.taken -= 1;
        if let Some(of) = self.peers.get_mut(&peer) {
            of.taken -= 1;
            if of.taken == 0 {
                self.peers.remove(&peer);
            }
        }
    }

    /// Notes that a connection is idle from now on. Nothing happens to one that has lost its seat.
    fn set_idle(&mut self, number: u64) {
        let turn = self.next_turn();
        let Some(seat) = self.seats.get_mut(&number).filter(|seat| seat.idle_since.is_none()) else { return };
        seat.idle_since = Some(turn);
        if seat.reserved {
            self.idle_reserved.insert(turn, number);
        } else {
            self.idle.insert(turn, number);
            self.peers.entry(seat.peer).or_default().idle.insert(turn, number);
        }
    }

    /// Notes that a connection is busy; returns its address, and whether its seat is a reserved one. `None` if it has
    /// lost its seat.
    fn set_busy(&mut self, number: u64) -> Option<(Peer, bool)> {
        let seat = self.seats.get_mut(&number)?;
        let (peer, reserved) = (seat.peer, seat.reserved);
        if let Some(turn) = seat.idle_since.take() {
            self.idle.remove(&turn);
            self.idle_reserved.remove(&turn);
            if let Some(of) = self.peers.get_mut(&peer) {
                of.idle.remove(&turn);
            }
        }
        Some((peer, reserved))
    }

    fn remove(&mut self, number: u64) -> Option<SeatState> {
        let (peer, reserved) = self.set_busy(number)?;
        self.counted_out(peer, reserved);
        self.seats.remove(&number)
    }
}

impl Seat {
    /// Waits until the seat is lost to another connection. The call under way, if one has begun meanwhile, may end.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Whether a call is under way on this connection, also after its seat was lost.
    pub fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }

    /// A call begins on this connection. One on a reserved seat moves to an ordinary one, if there is one by now.
    pub fn call(self: &Arc<Self>) -> Busy {
        let mut state = self.of.lock();
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let mut refused = false;
        if let Some((peer, true)) = state.set_busy(self.number) {
            refused = !self.of.make_room(&mut state, peer);
            if !refused {
                state.counted_out(peer, true);
                state.counted_in(peer, false);
                if let Some(seat) = state.seats.get_mut(&self.number) {
                    seat.reserved = false;
                }
            }
        }
        self.of.show(&state);
        Busy { seat: Arc::clone(self), refused }
    }

    /// Counts a call that was refused for want of a seat.
    pub fn count_refused(&self) {
        self.of.count("refused");
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.seat.of.lock();
        if self.seat.under_way.fetch_sub(1, Ordering::SeqCst) == 1 {
            state.set_idle(self.seat.number);
            self.seat.of.show(&state);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        state.remove(self.number);
        self.of.show(&state);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt;

    use super::*;

    fn seats(most: usize, reserved: usize) -> Arc<Connections> {
        Connections::new(most, reserved, Metrics::new().expect("series"))
    }

    fn peer(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn sit(seats: &Arc<Connections>, last: u8) -> Arc<Seat> {
        Arc::new(seats.sit(peer(last)).expect("a seat"))
    }

    fn is_closed(seat: &Seat) -> bool {
        seat.closed().now_or_never().is_some()
    }

    fn counts(seats: &Connections) -> (usize, usize) {
        let state = seats.lock();
        assert_eq!(state.seats.len(), state.taken + state.reserved);
        assert_eq!(state.peers.values().map(|of| of.taken).sum::<usize>(), state.taken);
        (state.taken, state.reserved)
    }

    #[test]
    fn the_connection_that_is_idle_for_longest_makes_room() {
        let seats = seats(3, 1);
        let all = [sit(&seats, 1), sit(&seats, 2), sit(&seats, 3)];
        // The first one is the oldest, and the second one the one that is idle for longest.
        drop(all[0].call());
        let newcomer = sit(&seats, 4);
        assert_eq!(all.each_ref().map(|seat| is_closed(seat)), [false, true, false]);
        assert_eq!(counts(&seats), (3, 0));
        assert!(!newcomer.call().refused);
        drop((all, newcomer));
        assert_eq!(counts(&seats), (0, 0));
    }

    #[test]
    fn while_all_are_busy_only_health_is_answered() {
        let seats = seats(2, 2);
        let all = [sit(&seats, 1), sit(&seats, 2)];
        let calls = all.each_ref().map(|seat| seat.call());
        let late = sit(&seats, 3);
        assert_eq!(counts(&seats), (2, 1));
        assert!(late.call().refused);
        let [first, _second] = calls;
        drop(first);
        assert!(!late.call().refused, "an idle one makes room for a call");
        assert!(is_closed(&all[0]) && !is_closed(&all[1]) && !is_closed(&late));
        assert_eq!(counts(&seats), (2, 0));
    }

    #[test]
    fn reserved_seats_have_a_bound_of_their_own() {
        let seats = seats(1, 2);
        let busy = sit(&seats, 1);
        let _call = busy.call();
        let waiting = [sit(&seats, 2), sit(&seats, 3)];
        let newest = sit(&seats, 4);
        assert_eq!(waiting.each_ref().map(|seat| is_closed(seat)), [true, false]);
        let _checks = [waiting[1].call(), newest.call()];
        assert!(seats.sit(peer(5)).is_none(), "every seat is busy");
        assert_eq!(counts(&seats), (1, 2));
    }

    #[test]
    fn an_address_has_at_most_half_of_the_seats_while_they_are_scarce() {
        let plenty = seats(8, 1);
        let many: Vec<_> = (0..6).map(|_| sit(&plenty, 1)).collect();
        assert_eq!(counts(&plenty), (6, 0), "while there are plenty it may have more");
        let own = sit(&plenty, 1);
        assert!(is_closed(&many[0]) && counts(&plenty) == (6, 0), "it makes room for itself");
        let others = [sit(&plenty, 2), sit(&plenty, 3)];
        assert_eq!(counts(&plenty), (8, 0));
        let calls: Vec<_> = many[1..].iter().chain([&own]).map(|seat| seat.call()).collect();
        assert!(sit(&plenty, 1).call().refused, "its own are busy, and others' are not for it");
        assert!(!is_closed(&others[0]) && !is_closed(&others[1]));
        drop(calls);
    }

    #[test]
    fn loopback_may_have_every_seat() {
        for (ip, expected) in [(peer(1), 6), (IpAddr::from(Ipv4Addr::LOCALHOST), 8)] {
            let seats = seats(8, 1);
            let all: Vec<_> = (0..8).map(|_| seats.sit(ip).expect("a seat")).collect();
            assert_eq!(counts(&seats).0, expected);
            drop(all);
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let of = |text: &str| Peer::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::1"), Peer("::1".parse().expect("an address")));
    }
}
