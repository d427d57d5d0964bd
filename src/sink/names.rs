//! Names of receivers: resolved with a bounded cache, without blocking threads, and checked.
//!
//! The system's own resolver blocks a thread for each name, and a domain whose name servers are dead would hold as many
//! threads as there are names in it. So names are asked for over the network, as `/etc/resolv.conf` and `/etc/hosts`
//! say; both are read again when they have changed.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hickory_resolver::config::ResolverConfig;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{ResolverBuilder, TokioResolver};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::guard::{Guard, RefusedAddress};
use crate::clock::Monotonic;
use crate::model::networks::Networks;

/// Answers that are kept.
const CACHED: u64 = 8192;

/// The longest time for which an answer is kept, whatever its time to live.
const KEEP: Duration = Duration::from_secs(300);

/// The longest time for which it is kept that a name has no address.
const KEEP_ABSENT: Duration = Duration::from_secs(10);

/// How long one name server may take for one try. There are two tries, and two servers are asked at once.
const TRY: Duration = Duration::from_secs(2);

/// Questions to one name server that wait for their answers.
const QUESTIONS: usize = 1024;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The files that say how names are resolved.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// The resolver cannot take another question: this node's own limit.
#[derive(Debug, thiserror::Error)]
#[error("the node's resolver has no room for another question")]
pub struct ResolverFull;

/// Resolves the names of receivers to addresses that may be delivered to.
#[derive(Clone)]
pub struct Names {
    guard: Guard,
    current: Arc<Mutex<Current>>,
}

struct Current {
    resolver: TokioResolver,
    changed: [Option<SystemTime>; 2],
    looked_at: Monotonic,
}

impl Names {
    /// A resolver that gives the addresses that `guard` allows.
    pub fn new(guard: Guard) -> Result<Self, NetError> {
        let current = Current { changed: changed(), resolver: resolver()?, looked_at: Monotonic::now() };
        Ok(Self { guard, current: Arc::new(Mutex::new(current)) })
    }

    /// The same, for a namespace with these networks.
    #[must_use]
    pub fn within(&self, networks: Option<Arc<Networks>>) -> Self {
        Self { guard: self.guard.within(networks), current: Arc::clone(&self.current) }
    }

    fn resolver(&self) -> TokioResolver {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked_at.elapsed() > LOOK_EVERY {
            current.looked_at = Monotonic::now();
            let changed = changed();
            if let (true, Ok(resolver)) = (changed != current.changed, resolver()) {
                (current.changed, current.resolver) = (changed, resolver);
            }
        }
        current.resolver.clone()
    }
}

/// Why a name has no address that may be delivered to.
pub type NoAddress = Box<dyn std::error::Error + Send + Sync>;

impl Names {
    /// Resolves a name to the addresses that are delivered to, each with this port. An error if all of its addresses are
    /// refused.
    pub async fn lookup(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, NoAddress> {
        let found = self.resolver().lookup_ip(name).await.map_err(cause)?;
        let check = |ip| self.guard.check(ip).map(|()| SocketAddr::from((ip, port)));
        let checked: Vec<Result<SocketAddr, RefusedAddress>> = found.iter().map(check).collect();
        let allowed: Vec<SocketAddr> = checked.iter().flatten().copied().collect();
        match checked.into_iter().find_map(Result::err) {
            Some(refused) if allowed.is_empty() => Err(Box::new(refused)),
            _ => Ok(allowed),
        }
    }
}

impl Names {
    /// An error if one of the addresses of a name is refused: somebody else will choose among them.
    pub async fn check(&self, name: &str) -> Result<(), NoAddress> {
        let found = self.resolver().lookup_ip(name).await.map_err(cause)?;
        found.iter().try_for_each(|ip| self.guard.check(ip)).map_err(Into::into)
    }
}

/// Resolves the name of the operator's own proxy, which may be anywhere. It resolves no receiver's.
pub struct ProxyName(Names);

impl Names {
    /// A resolver for the name of the proxy through which all is sent.
    pub fn of_the_proxy(self) -> ProxyName {
        ProxyName(self)
    }
}

impl Resolve for ProxyName {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.0.resolver();
        Box::pin(async move {
            let found = resolver.lookup_ip(name.as_str()).await.map_err(cause)?;
            let addresses: Vec<SocketAddr> = found.iter().map(|ip| SocketAddr::from((ip, 0))).collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let names = self.clone();
        Box::pin(async move { Ok(Box::new(names.lookup(name.as_str(), 0).await?.into_iter()) as Addrs) })
    }
}

/// The error in a form in which its cause can be found again.
fn cause(why: NetError) -> NoAddress {
    match why {
        NetError::Busy => Box::new(ResolverFull),
        NetError::Io(inner) => match inner.raw_os_error() {
            Some(code) => Box::new(io::Error::from_raw_os_error(code)),
            None => Box::new(io::Error::new(inner.kind(), format!("the name cannot be resolved: {inner}"))),
        },
        other => Box::new(io::Error::other(format!("the name cannot be resolved: {other}"))),
    }
}

fn changed() -> [Option<SystemTime>; 2] {
    FILES.map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
}

/// A resolver as the files say now. Without name servers it knows the names of `/etc/hosts`.
fn resolver() -> Result<TokioResolver, NetError> {
    bounded(TokioResolver::builder_tokio().unwrap_or_else(|why| {
        tracing::warn!(%why, "/etc/resolv.conf cannot be used; receivers are found by address and by /etc/hosts only");
        TokioResolver::builder_with_config(ResolverConfig::default(), TokioRuntimeProvider::default())
    }))
}

/// A resolver with our bounds.
fn bounded(mut builder: ResolverBuilder<TokioRuntimeProvider>) -> Result<TokioResolver, NetError> {
    let options = builder.options_mut();
    options.cache_size = CACHED;
    options.positive_max_ttl = Some(KEEP);
    options.negative_max_ttl = Some(KEEP_ABSENT);
    options.timeout = options.timeout.min(TRY);
    options.attempts = options.attempts.min(2);
    options.max_active_requests = QUESTIONS;
    builder.build()
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hickory_resolver::config::NameServerConfig;
    use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
    use hickory_resolver::proto::rr::rdata::A;
    use hickory_resolver::proto::rr::{RData, Record, RecordType};
    use tokio::net::UdpSocket;

    use super::*;
    use crate::config::Config;

    const OPEN: Ipv4Addr = Ipv4Addr::new(93, 184, 215, 14);
    const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);

    fn known(name: &str) -> Vec<Ipv4Addr> {
        match name {
            "open.example." => vec![OPEN],
            "inside.example." => vec![INSIDE],
            "both.example." => vec![OPEN, INSIDE],
            "here.example." => vec![Ipv4Addr::LOCALHOST],
            _ => Vec::new(),
        }
    }

    /// A name server that knows five names, and never answers for those below `dead.example`. Returns how often it is
    /// asked for an IPv4 address.
    async fn name_server() -> (Names, Arc<AtomicUsize>) {
        let sets = ["server.listen=0.0.0.0:1".to_owned(), "server.api_keys=0123456789abcdef".to_owned()];
        name_server_under(Config::load(Some(std::path::Path::new("/dev/null")), [], &sets).unwrap()).await
    }

    /// The same, for a node with these settings.
    pub async fn name_server_under(config: Config) -> (Names, Arc<AtomicUsize>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let asked = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                let question = Message::from_vec(&buffer[..length]).unwrap();
                let query = question.queries[0].clone();
                let name = query.name().to_string();
                if name.ends_with("dead.example.") {
                    continue;
                }
                let mut answer = Message::response(question.metadata.id, OpCode::Query);
                answer.add_query(query.clone());
                let times = counted.load(Ordering::SeqCst);
                let (addresses, ttl) = match name.as_str() {
                    // Public when it is looked at first, and inside from then on.
                    "rebinding.example." => (vec![[OPEN, Ipv4Addr::LOCALHOST][times.min(1)]], 0),
                    name => (known(name), 60),
                };
                if addresses.is_empty() {
                    answer.metadata.response_code = ResponseCode::NXDomain;
                } else if query.query_type() == RecordType::A {
                    counted.fetch_add(1, Ordering::SeqCst);
                    let record =
                        |address| Record::from_rdata(query.name().clone(), ttl, RData::A(A(address)));
                    answer.add_answers(addresses.into_iter().map(record));
                }
                let _ = socket.send_to(&answer.to_vec().unwrap(), peer).await;
            }
        });
        let mut server = NameServerConfig::udp(IpAddr::from(Ipv4Addr::LOCALHOST));
        server.connections[0].port = port;
        let servers = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let builder = TokioResolver::builder_with_config(servers, TokioRuntimeProvider::default());
        let current =
            Current { resolver: bounded(builder).unwrap(), changed: changed(), looked_at: Monotonic::now() };
        (Names { guard: Guard::new(Arc::new(config)), current: Arc::new(Mutex::new(current)) }, asked)
    }

    async fn addresses(names: &Names, name: &str) -> Result<Vec<SocketAddr>, String> {
        let found = names.resolve(name.parse().unwrap()).await;
        found.map(Iterator::collect).map_err(|why| why.to_string())
    }

    #[tokio::test]
    async fn a_name_is_asked_for_once_and_its_addresses_are_checked() {
        let (names, asked) = name_server().await;
        for _ in 0..3 {
            assert_eq!(addresses(&names, "open.example").await, Ok(vec!["93.184.215.14:0".parse().unwrap()]));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let refused = addresses(&names, "inside.example").await.unwrap_err();
        assert!(refused.contains("10.1.2.3") && refused.contains("allow_networks"), "{refused}");
        let none = addresses(&names, "nothing.example").await.unwrap_err();
        assert!(none.contains("cannot be resolved"), "{none}");
    }

    #[tokio::test]
    async fn a_name_that_comes_to_mean_another_address_is_checked_at_each_answer() {
        let (names, asked) = name_server().await;
        let first = addresses(&names, "rebinding.example").await;
        assert_eq!(first, Ok(vec!["93.184.215.14:0".parse().unwrap()]));
        for _ in 0..3 {
            let refused = addresses(&names, "rebinding.example").await.expect_err("it is this machine now");
            assert!(refused.contains("127.0.0.1"), "{refused}");
        }
        assert!(asked.load(Ordering::SeqCst) > 1, "the answer held for no time");
    }

    #[tokio::test]
    async fn who_chooses_among_addresses_itself_gets_a_name_only_if_all_are_allowed() {
        let (names, _) = name_server().await;
        assert_eq!(addresses(&names, "both.example").await, Ok(vec!["93.184.215.14:0".parse().unwrap()]));
        let refused = names.check("both.example.").await.unwrap_err().to_string();
        assert!(refused.contains("10.1.2.3"), "{refused}");
        assert!(names.check("open.example.").await.is_ok());
    }

    #[tokio::test]
    async fn the_networks_of_a_namespace_hold_for_names() {
        let (names, _) = name_server().await;
        let networks = |allow: &str, deny: &str| {
            let read = |text: &str| text.split_terminator(',').map(|one| one.parse().unwrap()).collect();
            Some(Arc::new(Networks { allow: read(allow), deny: read(deny) }))
        };
        let inside = names.within(networks("10.0.0.0/8", ""));
        assert_eq!(addresses(&inside, "inside.example").await, Ok(vec!["10.1.2.3:0".parse().unwrap()]));
        for one in [inside, names.within(networks("", "93.184.0.0/16"))] {
            let refused = addresses(&one, "open.example").await.expect_err("not for this namespace");
            assert!(refused.contains("namespace"), "{refused}");
        }
    }

    #[tokio::test]
    async fn names_that_nobody_answers_for_do_not_hold_up_others() {
        let (names, _) = name_server().await;
        let dead: Vec<_> = (0..600)
            .map(|n| {
                let names = names.clone();
                tokio::spawn(async move { addresses(&names, &format!("n{n}.dead.example")).await })
            })
            .collect();
        tokio::task::yield_now().await;
        // More than the runtime has threads to block.
        assert_eq!(addresses(&names, "open.example").await, Ok(vec!["93.184.215.14:0".parse().unwrap()]));
        assert!(dead.iter().all(|one| !one.is_finished()));
        dead.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn the_names_of_the_hosts_file_are_known() {
        let found = async |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = Config::load(Some(std::path::Path::new("/dev/null")), [], &sets).unwrap();
            addresses(&Names::new(Guard::new(Arc::new(config))).unwrap(), "localhost").await
        };
        let loopback = found(&[]).await.unwrap();
        assert!(
            !loopback.is_empty() && loopback.iter().all(|found| found.ip().is_loopback()),
            "{loopback:?}"
        );
        let refused = found(&["server.listen=0.0.0.0:1", "server.api_keys=0123456789abcdef"]).await;
        assert!(
            refused.unwrap_err().contains("webhook.allow_networks"),
            "an address of a name is checked too"
        );
    }
}
