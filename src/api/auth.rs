//! Keys and their quotas. Without keys the server is open, and the settings keep it on loopback.

use std::num::NonZeroU32;

use axum::http::{HeaderMap, StatusCode, header};
use governor::clock::Clock;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::problem::Problem;
use crate::config::Server;

/// The key that a call came with: its index in the settings, 0 when the server is open.
#[derive(Debug, Clone, Copy)]
pub struct Caller(usize);

/// The keys, as hashes, and the quota of each.
pub struct Auth {
    keys: Vec<[u8; 32]>,
    limits: Vec<DefaultDirectRateLimiter>,
}

impl Auth {
    /// Keys and limits from the settings.
    pub fn new(server: &Server) -> Self {
        let keys: Vec<[u8; 32]> =
            server.api_keys.iter().map(|key| Sha256::digest(key.expose_secret().as_bytes()).into()).collect();
        let limits = NonZeroU32::new(server.rate_per_second)
            .map(|rate| {
                (0..keys.len().max(1)).map(|_| RateLimiter::direct(Quota::per_second(rate))).collect()
            })
            .unwrap_or_default();
        Self { keys, limits }
    }

    /// Checks `Authorization: Bearer`. Hashes of equal length are compared in constant time, all of them.
    pub fn check(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        if self.keys.is_empty() {
            return local_only(headers).map(|()| Caller(0));
        }
        let presented = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")));
        let Some(presented) = presented else {
            let detail = "this server wants `Authorization: Bearer <key>`";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "no_key", detail));
        };
        let presented: [u8; 32] = Sha256::digest(presented.trim().as_bytes()).into();
        let mut found = None;
        for (index, key) in self.keys.iter().enumerate() {
            if bool::from(key.ct_eq(&presented)) {
                found = Some(Caller(index));
            }
        }
        found.ok_or_else(|| {
            Problem::new(StatusCode::UNAUTHORIZED, "unknown_key", "this key is not known here")
        })
    }

    /// Charges `timers` calls to the caller; 429 when its quota of this second is spent.
    pub fn charge(&self, caller: &Caller, timers: usize) -> Result<(), Problem> {
        let (Some(limit), Ok(timers)) = (self.limits.get(caller.0), u32::try_from(timers)) else {
            return Ok(());
        };
        let Some(timers) = NonZeroU32::new(timers) else {
            return Ok(());
        };
        let exceeded = |seconds: u32| {
            let detail = "this key has used up its calls of this second (`server.rate_per_second`)";
            Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_exceeded", detail).retry_after(seconds))
        };
        match limit.check_n(timers) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(not_until)) => {
                let wait = not_until.wait_time_from(governor::clock::DefaultClock::default().now());
                exceeded(u32::try_from(wait.as_secs()).unwrap_or(60).saturating_add(1))
            }
            // One call asks for more than the quota of a whole second, so waiting does not help.
            Err(_) => Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_exceeded",
                "one call holds more timers than `server.rate_per_second` allows in a second; send smaller batches",
            )),
        }
    }
}

/// An open server answers programs on its own machine, and no web page of another site that a browser there shows.
/// `Origin` names the page's site; `Host` does, if the site's name was made to resolve to loopback (DNS rebinding).
fn local_only(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let refused = |code, detail| Err(Problem::new(StatusCode::FORBIDDEN, code, detail));
    let Some(host) = text(header::HOST) else { return Ok(()) };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    let local = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !local {
        return refused(
            "foreign_host",
            "without keys this server answers to localhost and loopback addresses only",
        );
    }
    match text(header::ORIGIN) {
        Some(origin) if origin != format!("http://{host}") => refused(
            "foreign_origin",
            "without keys this server does not answer other sites' pages; set `server.api_keys`",
        ),
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
