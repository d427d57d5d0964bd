//! Who acts, for the audit: the key of a call, and where it came from.

use std::net::IpAddr;

use axum::http::{Extensions, HeaderMap};

use super::Node;
use super::keys::Caller;
use crate::cold::Actor;
use crate::model::key::KeyHash;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// The connection is encrypted.
    pub is_encrypted: bool,
    /// The SHA-256 of the certificate that it has shown and that an authority of the settings has signed.
    pub certificate: Option<KeyHash>,
}

/// Where a call came from. Behind a proxy on this machine it is what that has added last to `X-Forwarded-For`; what stands
/// before it anybody may have written.
fn origin(extensions: &Extensions, headers: &HeaderMap, behind_proxy: bool) -> Option<IpAddr> {
    let peer = extensions.get::<Peer>()?.address;
    let forwarded = || {
        let last = headers.get_all("x-forwarded-for").iter().next_back()?.to_str().ok()?;
        last.rsplit(',').next()?.trim().parse().ok()
    };
    if behind_proxy && peer.is_loopback() { forwarded().or(Some(peer)) } else { Some(peer) }
}

impl Node {
    /// Who makes a call, as the audit has him.
    pub fn actor(&self, caller: Caller, extensions: &Extensions, headers: &HeaderMap) -> Actor {
        let from = origin(extensions, headers, self.config.server.behind_proxy);
        let (id, name) = match caller.is_anybody() {
            true => ("anybody".to_owned(), None),
            false => (caller.id.to_string(), self.keys.name(caller.id)),
        };
        Actor { id, name, from: from.map(|from| from.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_address_counts_only_from_a_proxy_on_this_machine() {
        let found = |peer: &str, forwarded: &[&str], behind_proxy| {
            let (mut extensions, mut headers) = (Extensions::new(), HeaderMap::new());
            let address = peer.parse().unwrap();
            extensions.insert(Peer { address, is_encrypted: false, certificate: None });
            for value in forwarded {
                headers.append("x-forwarded-for", value.parse().unwrap());
            }
            origin(&extensions, &headers, behind_proxy).unwrap().to_string()
        };
        let spoofed = ["192.0.2.1", "192.0.2.2, 198.51.100.7"];
        assert_eq!(found("127.0.0.1", &spoofed, true), "198.51.100.7");
        assert_eq!(found("127.0.0.1", &spoofed, false), "127.0.0.1");
        assert_eq!(found("203.0.113.5", &spoofed, true), "203.0.113.5");
        assert_eq!(found("127.0.0.1", &["nonsense"], true), "127.0.0.1");
        assert_eq!(found("127.0.0.1", &[], true), "127.0.0.1");
    }
}
