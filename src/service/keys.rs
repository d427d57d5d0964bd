//! The keys of `server.api_keys`, the quota of each, and the rule for a server without keys. Both doors ask here.

use std::num::NonZeroU32;

use axum::http::{HeaderMap, header};
use governor::clock::Clock;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::Server;

/// The key that a call came with: its index in the settings, 0 when the server is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller(pub(crate) usize);

/// A call that is refused: a stable code, and why in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Stable word for programs.
    pub code: &'static str,
    /// What happened and what to do.
    pub detail: &'static str,
    /// After how many seconds it may be tried again; `None` if waiting does not help.
    pub retry_after: Option<u32>,
}

impl Refusal {
    const fn new(code: &'static str, detail: &'static str) -> Self {
        Self { code, detail, retry_after: None }
    }
}

/// The keys, as hashes, and the quota of each.
pub struct Keys {
    hashes: Vec<[u8; 32]>,
    limits: Vec<DefaultDirectRateLimiter>,
}

impl Keys {
    /// Keys and limits from the settings.
    pub fn new(server: &Server) -> Self {
        let hash = |key: &secrecy::SecretString| Sha256::digest(key.expose_secret().as_bytes()).into();
        let hashes: Vec<[u8; 32]> = server.api_keys.iter().map(hash).collect();
        let limits = NonZeroU32::new(server.rate_per_second)
            .map(|rate| {
                (0..hashes.len().max(1)).map(|_| RateLimiter::direct(Quota::per_second(rate))).collect()
            })
            .unwrap_or_default();
        Self { hashes, limits }
    }

    /// Whether the server has no key and answers everybody on its machine.
    pub const fn is_open(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The SHA-256 of each key, in the order of the settings.
    pub fn hashes(&self) -> &[[u8; 32]] {
        &self.hashes
    }

    /// Whose key this is. Hashes of equal length are compared in constant time, all of them.
    pub fn find(&self, presented: &str) -> Option<Caller> {
        let presented: [u8; 32] = Sha256::digest(presented.trim().as_bytes()).into();
        let mut found = None;
        for (index, key) in self.hashes.iter().enumerate() {
            if bool::from(key.ct_eq(&presented)) {
                found = Some(Caller(index));
            }
        }
        found
    }

    /// Charges `timers` calls to the caller; refused when its quota of this second is spent.
    pub fn charge(&self, caller: Caller, timers: usize) -> Result<(), Refusal> {
        let (Some(limit), Ok(timers)) = (self.limits.get(caller.0), u32::try_from(timers)) else {
            return Ok(());
        };
        let Some(timers) = NonZeroU32::new(timers) else {
            return Ok(());
        };
        match limit.check_n(timers) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(not_until)) => {
                let wait = not_until.wait_time_from(governor::clock::DefaultClock::default().now());
                let seconds = u32::try_from(wait.as_secs()).unwrap_or(60).saturating_add(1);
                let detail = "this key has used up its calls of this second (`server.rate_per_second`)";
                Err(Refusal { retry_after: Some(seconds), ..Refusal::new("rate_exceeded", detail) })
            }
            // One call asks for more than the quota of a whole second, so waiting does not help.
            Err(_) => Err(Refusal::new(
                "rate_exceeded",
                "one call holds more timers than `server.rate_per_second` allows in a second; send smaller batches",
            )),
        }
    }
}

/// An open server answers programs on its own machine, and no web page of another site that a browser there shows.
/// `Origin` names the page's site; `Host` does, if the site's name was made to resolve to loopback (DNS rebinding).
pub fn local_only(headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let Some(host) = text(header::HOST) else { return Ok(()) };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    let local = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !local {
        return Err(Refusal::new(
            "foreign_host",
            "without keys this server answers to localhost and loopback addresses only",
        ));
    }
    match text(header::ORIGIN) {
        Some(origin) if origin != format!("http://{host}") => Err(Refusal::new(
            "foreign_origin",
            "without keys this server does not answer other sites' pages; set `server.api_keys`",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_server_answers_no_foreign_page() {
        let asked = |pairs: &[(&str, &str)]| {
            let headers: HeaderMap = pairs
                .iter()
                .map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap()))
                .collect();
            local_only(&headers).is_ok()
        };
        for host in ["127.0.0.1:7600", "localhost:7600", "localhost", "[::1]:7600", "127.0.0.1"] {
            assert!(asked(&[("host", host)]), "{host}");
        }
        for host in ["evil.example", "evil.example:7600", "127.0.0.1.evil.example", "10.0.0.1:7600"] {
            assert!(!asked(&[("host", host)]), "{host}");
        }
        assert!(asked(&[("host", "localhost:7600"), ("origin", "http://localhost:7600")]));
        for origin in ["https://evil.example", "null", "http://localhost:8000"] {
            assert!(!asked(&[("host", "localhost:7600"), ("origin", origin)]), "{origin}");
        }
    }
}
