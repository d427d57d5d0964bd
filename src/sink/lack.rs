//! What this node lacks: its own limits are no attempt at a receiver.

use std::error::Error;
use std::io;
use std::net::UdpSocket;

use rustix::io::Errno;

use super::names::ResolverFull;

/// Something that this node needs for an attempt and has not got. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// File descriptors: of the process or of the system.
    Files,
    /// A free local port.
    Ports,
    /// Memory for sockets.
    Memory,
    /// A network: there is no route to anywhere.
    Network,
    /// Room in the resolver.
    Resolver,
}

impl Lack {
    /// Every lack.
    pub const ALL: [Self; 5] = [Self::Files, Self::Ports, Self::Memory, Self::Network, Self::Resolver];

    /// Its word in metrics and logs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Ports => "ports",
            Self::Memory => "memory",
            Self::Network => "network",
            Self::Resolver => "resolver",
        }
    }

    /// What the operator can do about it.
    pub const fn cure(self) -> &'static str {
        match self {
            Self::Files => {
                "raise the limit of open files (LimitNOFILE, `ulimit -n`), or lower `dispatch.concurrency`"
            }
            Self::Ports => {
                "widen net.ipv4.ip_local_port_range, or have receivers keep their connections open, or lower `dispatch.concurrency`"
            }
            Self::Memory => "give the machine more memory, or lower `dispatch.concurrency`",
            Self::Network => "connect this machine to a network",
            Self::Resolver => "look at the name servers in /etc/resolv.conf; they answer slowly",
        }
    }

    /// The lack that an error tells of, if it is one: the cause of an attempt that got no connection.
    pub fn of(why: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(why);
        while let Some(error) = cause {
            if error.is::<ResolverFull>() {
                return Some(Self::Resolver);
            }
            let io = error.downcast_ref::<io::Error>();
            if let Some(lack) = io.and_then(io::Error::raw_os_error).and_then(Self::of_code) {
                return Some(lack);
            }
            // An `io::Error` may hold another error that is not its source.
            let inner = io.and_then(io::Error::get_ref).map(|inner| inner as &(dyn Error + 'static));
            cause = inner.or_else(|| error.source());
        }
        None
    }

    fn of_code(code: i32) -> Option<Self> {
        match Errno::from_raw_os_error(code) {
            Errno::MFILE | Errno::NFILE => Some(Self::Files),
            Errno::ADDRNOTAVAIL => Some(Self::Ports),
            Errno::NOBUFS | Errno::NOMEM => Some(Self::Memory),
            Errno::NETDOWN | Errno::NETUNREACH if !has_network() => Some(Self::Network),
            _ => None,
        }
    }
}

/// Whether there is a route to anywhere. Without one, no receiver is to blame; with one for IPv4 only, a receiver that
/// has an IPv6 address only is. Nothing is sent: a datagram socket is only told where it would send to.
fn has_network() -> bool {
    let reaches = |from: &str, to: &str| UdpSocket::bind(from).and_then(|socket| socket.connect(to)).is_ok();
    reaches("0.0.0.0:0", "192.0.2.1:9") || reaches("[::]:0", "[2001:db8::1]:9")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_is_found_behind_other_errors() {
        let errno = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        let wrapped = io::Error::other(errno(Errno::MFILE));
        assert_eq!(Lack::of(&wrapped), Some(Lack::Files));
        assert_eq!(Lack::of(&errno(Errno::ADDRNOTAVAIL)), Some(Lack::Ports));
        assert_eq!(Lack::of(&io::Error::other(ResolverFull)), Some(Lack::Resolver));
        for of_the_receiver in [Errno::CONNREFUSED, Errno::TIMEDOUT, Errno::HOSTUNREACH, Errno::CONNRESET] {
            assert_eq!(Lack::of(&errno(of_the_receiver)), None);
        }
    }
}
