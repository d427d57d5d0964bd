//! `hot.url`: the address of the wheels, read and checked. Nothing is connected to here.

use deadpool_redis::redis::{ConnectionInfo, IntoConnectionInfo};

use super::url::store_url;

/// Where the wheels are.
#[derive(Debug, Clone)]
pub enum HotUrl {
    /// In this process.
    Memory,
    /// In one Redis server.
    Redis(Box<ConnectionInfo>),
    /// In a Redis Cluster with these known nodes, at least one.
    Cluster(Vec<ConnectionInfo>),
}

impl HotUrl {
    /// Reads the setting. The error says what to write instead, and shows no password.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once("://") {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("redis" | "rediss", rest)) if !rest.is_empty() => {
                let described = |why| match rest.rsplit('@').next().is_some_and(|hosts| hosts.contains(',')) {
                    true => {
                        "several hosts are a Redis Cluster; give redis+cluster://HOST:PORT,HOST:PORT,…".into()
                    }
                    false => format!("{why}; give redis://HOST:PORT or …/DATABASE-NUMBER"),
                };
                one(text).map(|one| Self::Redis(Box::new(one))).map_err(described)
            }
            Some((scheme @ ("redis+cluster" | "rediss+cluster"), rest)) => cluster(scheme, rest)
                .map(Self::Cluster)
                .map_err(|why| format!("{why}; give {scheme}://USER:PASSWORD@HOST:PORT,HOST:PORT,…")),
            _ => Err("give memory://, redis://USER:PASSWORD@HOST:PORT/DATABASE or \
                      redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT,…; with TLS rediss:// or rediss+cluster://"
                .into()),
        }
    }
}

fn one(text: &str) -> Result<ConnectionInfo, String> {
    store_url(text)?;
    text.into_connection_info().map_err(|why| why.to_string())
}

/// Reads `USER:PASSWORD@HOST:PORT,HOST:PORT,…`: one user and password for all nodes, before the first host.
fn cluster(scheme: &str, rest: &str) -> Result<Vec<ConnectionInfo>, String> {
    let (user, hosts) = match rest.rsplit_once('@') {
        Some((user, hosts)) if !user.contains(',') => (format!("{user}@"), hosts),
        Some(_) => {
            return Err("user and password stand once, before the first host (a comma in them is %2C)".into());
        }
        None => (String::new(), rest),
    };
    if user.contains(['/', '?', '#']) {
        return Err("`/`, `?` and `#` in a password are %2F, %3F and %23".into());
    }
    let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
    if hosts.contains(['/', '?', '#']) {
        return Err("a Redis Cluster has no database numbers and takes no options".into());
    }
    let scheme = scheme.trim_end_matches("+cluster");
    let read = |host: &str| match host.trim() {
        "" => Err("a host is missing".to_owned()),
        host => one(&format!("{scheme}://{user}{host}")).map_err(|why| format!("host `{host}`: {why}")),
    };
    hosts.split(',').map(read).collect()
}

#[cfg(test)]
mod tests {
    use deadpool_redis::redis::ConnectionAddr;

    use super::*;

    fn nodes(text: &str) -> Vec<(String, Option<String>, Option<String>)> {
        let HotUrl::Cluster(nodes) = HotUrl::parse(text).unwrap() else { panic!("{text} is a cluster") };
        let parts = |one: &ConnectionInfo| {
            let redis = one.redis_settings();
            let text = |part: Option<&str>| part.map(str::to_owned);
            (one.addr().to_string(), text(redis.username()), text(redis.password()))
        };
        nodes.iter().map(parts).collect()
    }

    #[test]
    fn each_host_of_a_cluster_has_its_port_and_the_one_password() {
        let plain = |address: &str| (address.to_owned(), None, None);
        assert_eq!(nodes("redis+cluster://a"), [plain("a:6379")]);
        assert_eq!(nodes("redis+cluster://a,b:7001,[::1]:7002/")[1..], [plain("b:7001"), plain("::1:7002")]);
        let with = |address: &str| (address.to_owned(), Some("me".to_owned()), Some("p@s,s".to_owned()));
        assert_eq!(nodes("redis+cluster://me:p@s%2Cs@a,b:1"), [with("a:6379"), with("b:1")]);
        let nobody = nodes("redis+cluster://:secret@a");
        assert_eq!(nobody, [("a:6379".to_owned(), None, Some("secret".to_owned()))]);
    }

    #[test]
    fn an_s_in_the_scheme_is_tls_whose_certificate_is_checked() {
        let is_checked =
            |one: &ConnectionInfo| matches!(one.addr(), ConnectionAddr::TcpTls { insecure: false, .. });
        let HotUrl::Redis(one) = HotUrl::parse("rediss://me:secret@a:1/2").unwrap() else {
            panic!("one server")
        };
        assert!(is_checked(&one));
        let HotUrl::Cluster(nodes) = HotUrl::parse("rediss+cluster://me:secret@a,b").unwrap() else {
            panic!("a cluster")
        };
        assert!(nodes.iter().all(is_checked) && nodes.len() == 2);
        let HotUrl::Redis(plain) = HotUrl::parse("redis://a").unwrap() else { panic!("one server") };
        assert!(!is_checked(&plain));
    }

    #[test]
    fn an_error_says_what_to_write_instead_and_hides_the_password() {
        for (url, named) in [
            ("redis+cluster://", "host is missing"),
            ("redis+cluster://:open-sesame@", "host is missing"),
            ("redis+cluster://a,,b", "host is missing"),
            ("redis+cluster://a,b:port", "`b:port`: invalid port"),
            ("redis+cluster://:open-sesame@a:70000", "`a:70000`: invalid port"),
            ("redis+cluster://a,me:open-sesame@b", "before the first host"),
            ("redis+cluster://a,b/3", "no database numbers"),
            ("redis+cluster://a?protocol=resp3", "no database numbers"),
            ("redis+cluster://a?open-sesame@b,c", "%3F"),
            ("redis://me:12/open-sesame@a", "%2F"),
            ("redis://me:12?open-sesame@a", "%3F"),
            ("redis://:open-sesame@a:1,b:2", "redis+cluster://"),
            ("redis://:open-sesame@a:port", "redis://HOST:PORT"),
            ("rediss://:open-sesame@a#insecure", "behind `#`"),
            ("rediss+cluster://:open-sesame@a,,b", "rediss+cluster://"),
            ("cluster://a", "redis+cluster://"),
            ("memory://here", "memory://"),
        ] {
            let why = HotUrl::parse(url).expect_err(url);
            assert!(why.contains(named) && why.contains("give "), "{url}: {why}");
            assert!(!why.contains("open-sesame"), "{url}: {why}");
        }
    }
}
