//! Which addresses are delivered to: public ones, and the networks that the operator lists; for a namespace that has networks
//! of its own, those.
//!
//! Every attempt is checked, after name resolution, on the very addresses that are connected to. So a name that resolves
//! to other addresses the second time (DNS rebinding) does not get past the check.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use url::Host;

use crate::config::Config;
use crate::model::networks::{Network, Networks};
use crate::model::place::Address;
use crate::model::target::is_local_name;

/// Allows or refuses addresses and names.
#[derive(Clone)]
pub struct Guard {
    config: Arc<Config>,
    /// Those of the namespace that sends.
    networks: Option<Arc<Networks>>,
}

/// An address that is not delivered to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", told(*ip, *by_namespace))]
pub struct RefusedAddress {
    ip: IpAddr,
    /// The networks of the namespace refuse it, and not the settings.
    by_namespace: bool,
}

fn told(ip: IpAddr, by_namespace: bool) -> String {
    if by_namespace {
        format!("{ip} is in no network that this namespace may send to (its `networks`)")
    } else if is_metadata(unmapped(ip)) {
        format!(
            "{ip} is where a cloud provider gives machines their credentials; list the address itself in \
             `webhook.allow_networks`, as /32 or /128, to deliver there"
        )
    } else {
        format!(
            "{ip} is a loopback, private, link-local or otherwise not public address; list its network in \
             `webhook.allow_networks` to deliver there"
        )
    }
}

impl Guard {
    /// A guard under these settings.
    pub fn new(config: Arc<Config>) -> Self {
        Self { config, networks: None }
    }

    /// The same for a namespace with these networks.
    #[must_use]
    pub fn within(&self, networks: Option<Arc<Networks>>) -> Self {
        Self { config: Arc::clone(&self.config), networks }
    }

    /// Checks whether this address is delivered to.
    pub fn check(&self, ip: IpAddr) -> Result<(), RefusedAddress> {
        let plain = unmapped(ip);
        let allowed_by = |list: &[Network]| list.iter().any(|one| holds(*one, plain));
        let by_namespace = match self.networks.as_deref() {
            Some(networks) if allowed_by(&networks.deny) => Some(false),
            Some(Networks { allow, .. }) if !allow.is_empty() && is_metadata(plain) => {
                Some(allow.contains(&Network::Of(plain.into())))
            }
            Some(Networks { allow, .. }) if !allow.is_empty() => Some(allowed_by(allow)),
            _ => None,
        };
        let allowed = by_namespace.unwrap_or_else(|| match is_metadata(plain) {
            true => self.config.allows_address(plain),
            false => is_public(plain) || self.config.allows_network(plain),
        });
        if allowed { Ok(()) } else { Err(RefusedAddress { ip, by_namespace: by_namespace.is_some() }) }
    }

    /// Checks a URL whose host is an address or a local name; other names are checked when they are resolved.
    pub fn check_url(&self, url: &url::Url) -> Result<(), RefusedAddress> {
        match url.host() {
            Some(Host::Ipv4(ip)) => self.check(ip.into()),
            Some(Host::Ipv6(ip)) => self.check(ip.into()),
            Some(Host::Domain(name)) if is_local_name(name) => self.check(Ipv4Addr::LOCALHOST.into()),
            _ => Ok(()),
        }
    }
}

impl Guard {
    /// Checks the host of a broker, if it is an address or a local name; other names are checked when they are resolved.
    pub fn check_address(&self, address: &Address) -> Result<(), RefusedAddress> {
        match address.ip() {
            Some(ip) => self.check(ip),
            None if is_local_name(address.host()) => self.check(Ipv4Addr::LOCALHOST.into()),
            None => Ok(()),
        }
    }
}

/// Whether an address is in a network.
fn holds(network: Network, ip: IpAddr) -> bool {
    match network {
        Network::Public => is_public(ip),
        Network::Of(net) => net.contains(&ip),
    }
}

/// An IPv4 address inside IPv6 (mapped, NAT64, 6to4) is checked as the IPv4 address.
fn unmapped(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let s = v6.segments();
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] => v4(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => v4(high, low),
        _ => ip,
    }
}

/// The addresses at which providers answer a machine's questions about itself, credentials included. A network that is
/// listed does not list them: who opens 169.254.0.0/16, or everything, seldom means these.
const METADATA: [IpAddr; 17] = [
    // AWS, Google Cloud, Azure, Oracle, DigitalOcean, Hetzner, IBM, Huawei, OpenStack, Vultr, Linode and most others.
    v4(169, 254, 169, 254),
    // Google Cloud: the metadata server of GKE on each node.
    v4(169, 254, 169, 252),
    // AWS: credentials of ECS tasks and of EKS pods.
    v4(169, 254, 170, 2),
    v4(169, 254, 170, 23),
    // Azure: the agent's host. Its range is public.
    v4(168, 63, 129, 16),
    // Alibaba Cloud.
    v4(100, 100, 100, 200),
    // Volcengine.
    v4(100, 96, 0, 96),
    // Tencent Cloud.
    v4(169, 254, 0, 23),
    // Scaleway.
    v4(169, 254, 42, 42),
    // Oracle Cloud, classic.
    v4(192, 0, 0, 192),
    // AWS, and its EKS pods.
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]),
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23]),
    // Google Cloud.
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]),
    // Oracle Cloud.
    v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe]),
    // Linode, and Scaleway.
    v6([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1]),
    v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]),
    // OpenStack, Hetzner and others: link-local.
    v6([0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe]),
];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h))
}

fn is_metadata(ip: IpAddr) -> bool {
    METADATA.contains(&ip)
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// Addresses in the special-purpose registry of IPv4 (RFC 6890 and its successors) are not public.
fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(a == 0
        || ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation()
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b == 18 || b == 19))
        || a >= 240)
}

/// Global unicast addresses (2000::/3) are public, except documentation, benchmarking and Teredo.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let s = ip.segments();
    (s[0] & 0xe000) == 0x2000
        && !(s[0] == 0x2001 && s[1] == 0x0db8)
        && !(s[0] == 0x2001 && s[1] < 0x0200)
        && !(s[0] == 0x3fff && s[1] < 0x1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(sets: &[&str]) -> Guard {
        let sets: Vec<_> = sets.iter().map(|s| (*s).to_owned()).collect();
        Guard::new(Arc::new(Config::load(Some(std::path::Path::new("/dev/null")), [], &sets).unwrap()))
    }

    const OPEN: [&str; 2] = ["server.listen=0.0.0.0:1", "server.api_keys=0123456789abcdef"];

    #[test]
    fn addresses_that_are_not_public_are_refused() {
        let guard = guard(&OPEN);
        for bad in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "198.18.0.1",
            "240.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "::7f00:1",
        ] {
            assert!(guard.check(bad.parse().unwrap()).is_err(), "{bad}");
        }
        for good in ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(guard.check(good.parse().unwrap()).is_ok(), "{good}");
        }
    }

    #[test]
    fn loopback_is_allowed_while_the_server_listens_there_and_listed_networks_always() {
        let local = guard(&[]);
        assert!(local.check("127.0.0.1".parse().unwrap()).is_ok());
        assert!(local.check("10.0.0.1".parse().unwrap()).is_err());
        let listed = guard(&[OPEN[0], OPEN[1], "webhook.allow_networks=10.0.0.0/8"]);
        assert!(listed.check("10.1.2.3".parse().unwrap()).is_ok());
        assert!(listed.check("::ffff:10.1.2.3".parse().unwrap()).is_ok());
        assert!(listed.check("127.0.0.1".parse().unwrap()).is_err());
    }

    #[test]
    fn metadata_addresses_are_refused_unless_they_are_listed_themselves() {
        let wide = guard(&[OPEN[0], OPEN[1], "webhook.allow_networks=0.0.0.0/0,::/0"]);
        assert!(wide.check("10.1.2.3".parse().unwrap()).is_ok());
        let more = ["::ffff:169.254.169.254", "64:ff9b::a83f:8110"];
        for ip in METADATA.into_iter().chain(more.map(|text| text.parse().unwrap())) {
            let refused = wide.check(ip).expect_err("refused");
            assert!(refused.to_string().contains("as /32 or /128"), "{refused}");
        }
        let listed =
            guard(&[OPEN[0], OPEN[1], "webhook.allow_networks=169.254.169.254/32,fd00:ec2::254/128"]);
        for good in ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254"] {
            assert!(listed.check(good.parse().unwrap()).is_ok(), "{good}");
        }
        assert!(listed.check("169.254.170.2".parse().unwrap()).is_err());
        assert!(guard(&OPEN).check("168.63.129.16".parse().unwrap()).is_err(), "in a public range");
    }

    #[test]
    fn a_namespace_has_networks_of_its_own() {
        let of = |allow: &[&str], deny: &[&str]| {
            let read = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
            let networks = Networks { allow: read(allow), deny: read(deny) };
            guard(&[OPEN[0], OPEN[1], "webhook.allow_networks=10.0.0.0/8"]).within(Some(Arc::new(networks)))
        };
        let is_allowed = |guard: &Guard, ip: &str| guard.check(ip.parse().unwrap()).is_ok();
        let alone = of(&["192.168.7.0/24"], &[]);
        assert!(is_allowed(&alone, "192.168.7.9") && is_allowed(&alone, "::ffff:192.168.7.9"));
        for ip in ["10.1.2.3", "1.1.1.1", "192.168.8.1"] {
            let refused = alone.check(ip.parse().unwrap()).expect_err("not on its list").to_string();
            assert!(refused.contains("namespace"), "{refused}");
        }
        let also = of(&["public", "192.168.7.0/24"], &["1.1.0.0/16", "192.168.7.66"]);
        assert!(is_allowed(&also, "8.8.8.8") && is_allowed(&also, "192.168.7.9"));
        for ip in ["1.1.1.1", "::ffff:1.1.1.1", "192.168.7.66", "10.1.2.3"] {
            assert!(!is_allowed(&also, ip), "{ip}");
        }
        let denied = of(&[], &["public"]);
        assert!(is_allowed(&denied, "10.1.2.3") && !is_allowed(&denied, "8.8.8.8"));
        // What is wide does not mean the machine's credentials.
        let wide = of(&["0.0.0.0/0", "::/0"], &[]);
        assert!(is_allowed(&wide, "10.1.2.3") && !is_allowed(&wide, "169.254.169.254"));
        assert!(is_allowed(&of(&["169.254.169.254"], &[]), "169.254.169.254"));
    }

    #[test]
    fn behind_a_proxy_loopback_needs_a_listing() {
        let loopback = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        let behind = guard(&["server.behind_proxy=true"]);
        assert!(loopback.iter().all(|ip| guard(&[]).check(*ip).is_ok() && behind.check(*ip).is_err()));
        assert!(behind.check_url(&"http://localhost/".parse().unwrap()).is_err());
        let listed = guard(&["server.behind_proxy=true", "webhook.allow_networks=127.0.0.0/8"]);
        assert!(listed.check(loopback[0]).is_ok() && listed.check(loopback[1]).is_err());
    }

    #[test]
    fn urls_with_addresses_in_other_notations_are_refused() {
        let guard = guard(&OPEN);
        for bad in [
            "http://2130706433/",
            "http://017700000001/",
            "http://0x7f000001/",
            "http://0x7f.1/",
            "http://127.1/",
            "http://127.0.1/",
            "http://0177.0.0.1/",
            "http://0x7f.0x0.0x0.0x1/",
            "http://%31%32%37.0.0.1/",
            "http://１２７.0.0.1/",
            "http://127。0。0。1/",
            "http://0/",
            "http://3232235777/",
            "http://0xa9fea9fe/",
            "http://169.254.43518/",
            "http://[::]/",
            "http://[::1]/",
            "http://[0:0:0:0:0:0:0:1]/",
            "http://[::ffff:7f00:1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://x.localhost./",
        ] {
            assert!(guard.check_url(&bad.parse().unwrap()).is_err(), "{bad}");
        }
        assert!(guard.check_url(&"http://shop.example/".parse().unwrap()).is_ok());
    }
}
