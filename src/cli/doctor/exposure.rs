//! What has to be set before a server leaves loopback: the list of `docs/security.md`. It never fails, only warns: what is right
//! depends on the network around.

use deadpool_redis::redis::ConnectionAddr;
use ipnet::IpNet;
use url::{Host, Url};

use super::{Check, Found};
use crate::config::{ColdKind, Config, HotUrl};

/// Networks that are allowed and have a shorter prefix than this, in bits, are told to be wide.
const WIDE: [u8; 2] = [16, 48];

/// The checks, one for each point of the list but that of the keys; a single one for a server that nobody else reaches.
pub(super) fn of_exposure(config: &Config) -> Vec<Check> {
    let server = &config.server;
    if server.listen.ip().is_loopback() && !server.behind_proxy {
        return vec![Check::new("exposure", Found::Ok, "the server answers this machine only")];
    }
    let mut found = Vec::new();
    let mut point = |is_well: bool, detail: &str, cure: &str| {
        let check = Check::new("exposure", if is_well { Found::Ok } else { Found::Warn }, detail);
        found.push(if is_well { check } else { check.cure(cure) });
    };
    match server.tls_certificate.is_some() || (server.behind_proxy && server.listen.ip().is_loopback()) {
        true => point(true, "callers come with TLS, or through a proxy on this machine", ""),
        false if server.behind_proxy => point(
            false,
            "beside the proxy, callers can reach the server itself without TLS",
            "let it listen on loopback only, or set `server.tls_certificate` and `server.tls_key`, or close its port to all but the proxy",
        ),
        false => point(
            false,
            "callers come without TLS: keys and payloads can be read on the way",
            "set `server.tls_certificate` and `server.tls_key`, or put a proxy with TLS in front and set `server.behind_proxy`",
        ),
    }
    match server.secrets_key.is_empty() {
        false => point(true, "secrets of destinations are encrypted at rest", ""),
        true => point(
            false,
            "no `server.secrets_key`: no secrets of destinations are taken, and sessions of the page are signed by what the \
             database holds",
            "make one with `openssl rand -base64 32`, and give it by `MAINSPRING__SERVER__SECRETS_KEY_FILE`",
        ),
    }
    match server.api_keys.len() {
        0 => point(true, "no keys in the settings", ""),
        _ => point(
            false,
            "keys in `server.api_keys` may do everything and do not expire",
            "make one with `mainspring key create` for each program, with the least scope, and take these out",
        ),
    }
    match is_database_trusted(config) {
        true => point(true, "the database is on this machine, or its certificate is checked", ""),
        false => point(
            false,
            "the database is on another machine, and who answers there is not checked",
            "add `sslmode=verify-full` to `cold.url`",
        ),
    }
    match is_redis_trusted(config) {
        true => point(true, "Redis is on this machine, or reached with TLS", ""),
        false => point(
            false,
            "Redis is on another machine, and reached without TLS",
            "write `rediss://` or `rediss+cluster://` in `hot.url`",
        ),
    }
    let wide: Vec<String> =
        config.webhook.allow_networks.iter().filter(|net| is_wide(net)).map(ToString::to_string).collect();
    match wide.is_empty() {
        true => point(true, "no wide network is allowed beside the public ones", ""),
        false => point(
            false,
            &format!("`webhook.allow_networks` is wide: {}", wide.join(", ")),
            "list the networks of the receivers alone, or give them to a namespace (`mainspring namespace put --allow-network`)",
        ),
    }
    found
}

fn is_wide(net: &IpNet) -> bool {
    let [v4, v6] = WIDE;
    net.prefix_len() < if matches!(net, IpNet::V4(_)) { v4 } else { v6 }
}

fn is_database_trusted(config: &Config) -> bool {
    if config.cold_kind().is_ok_and(|kind| kind == ColdKind::Sqlite) {
        return true;
    }
    let Ok(url) = Url::parse(&config.cold.url) else { return false };
    let query =
        |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let is_socket = query("host").is_some_and(|host| host.starts_with('/'));
    let is_here = match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        // A scheme of its own: an address stands there as a name.
        Some(Host::Domain(name)) => is_this_machine(name) || name.starts_with("%2F"),
        None => true,
    };
    is_socket || is_here || query("sslmode").is_some_and(|mode| mode == "verify-full")
}

fn is_redis_trusted(config: &Config) -> bool {
    let is_trusted = |addr: &ConnectionAddr| match addr {
        ConnectionAddr::Tcp(host, _) => is_this_machine(host),
        _ => true,
    };
    match config.hot_url() {
        Ok(HotUrl::Memory) | Err(_) => true,
        Ok(HotUrl::Redis(one)) => is_trusted(one.addr()),
        Ok(HotUrl::Cluster(all)) => all.iter().all(|one| is_trusted(one.addr())),
    }
}

fn is_this_machine(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    crate::model::target::is_local_name(host) || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(sets: &[&str]) -> Vec<String> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::load(Some(std::path::Path::new("/dev/null")), [], &sets).expect("settings");
        let checks = of_exposure(&config);
        checks.into_iter().filter(|check| check.result == Found::Warn).map(|check| check.detail).collect()
    }

    #[test]
    fn each_point_of_the_list_is_told() {
        let key = "server.secrets_key=MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
        let all = ["server.listen=127.0.0.1:1", key, "server.behind_proxy=true"];
        assert_eq!(warned(&[]), [""; 0]);
        assert_eq!(warned(&all), [""; 0]);
        for (set, word) in [
            ("server.listen=0.0.0.0:1", "beside the proxy"),
            ("server.secrets_key=", "secrets_key"),
            ("server.api_keys=0123456789abcdef", "api_keys"),
            ("cold.url=postgres://u@db.example/m", "database"),
            ("cold.url=postgres://u@10.0.0.1/m?sslmode=require", "database"),
            ("hot.url=redis://cache.example", "Redis"),
            ("hot.url=redis+cluster://127.0.0.1:1,10.0.0.1:1", "Redis"),
            ("webhook.allow_networks=10.0.0.0/8", "wide"),
            ("webhook.allow_networks=::/0", "wide"),
        ] {
            let told = warned(&[all.as_slice(), &[set]].concat());
            assert!(told.len() == 1 && told[0].contains(word), "{set}: {told:?}");
        }
        let alone = warned(&["server.listen=0.0.0.0:1", key]);
        assert!(alone.len() == 1 && alone[0].contains("without TLS"), "{alone:?}");
        for set in [
            "cold.url=postgres://u@db.example/m?sslmode=verify-full",
            "cold.url=postgres://u@127.0.0.1/m",
            "cold.url=postgres://u@[::1]/m",
            "cold.url=postgres:///m?host=/run/postgresql",
            "hot.url=rediss://cache.example",
            "hot.url=redis://localhost",
            "webhook.allow_networks=10.1.0.0/16",
        ] {
            assert_eq!(warned(&[all.as_slice(), &[set]].concat()), [""; 0], "{set}");
        }
    }
}
