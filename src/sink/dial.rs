//! Opens connections to brokers: only to addresses that are delivered to, encrypted where the URL says so.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use super::Lack;
use super::broker::NotConnected;
use super::guard::{Guard, RefusedAddress};
use super::names::Names;
use crate::config::Config;
use crate::model::networks::Networks;
use crate::model::place::Address;

/// A connection, encrypted or not.
pub trait Io: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Io for T {}

/// Opens connections.
pub struct Dialer {
    names: Names,
    guard: Guard,
    tls: TlsConnector,
    /// The local address of connections.
    from: Option<IpAddr>,
}

impl Dialer {
    /// A dialer under these settings.
    pub fn new(config: &Arc<Config>, names: Names, tls: rustls::ClientConfig) -> Self {
        let guard = Guard::new(Arc::clone(config));
        Self { names, guard, tls: Arc::new(tls).into(), from: config.webhook.source_address }
    }

    /// The same, for a namespace with these networks.
    #[must_use]
    pub fn within(&self, networks: &Arc<Networks>) -> Self {
        Self {
            names: self.names.within(Some(Arc::clone(networks))),
            guard: self.guard.within(Some(Arc::clone(networks))),
            tls: self.tls.clone(),
            from: self.from,
        }
    }

    /// Connects to one of the addresses of a broker's host. With TLS its certificate must be of that host.
    pub async fn open(&self, address: &Address) -> Result<Box<dyn Io>, NotConnected> {
        let tcp = self.open_plain(address).await?;
        if address.is_tls() { self.encrypt(address, tcp).await } else { Ok(Box::new(tcp)) }
    }

    /// The same without TLS, for protocols that begin in the clear.
    pub async fn open_plain(&self, address: &Address) -> Result<TcpStream, NotConnected> {
        let tcp = self.connect(address).await?;
        // Each event is a packet of its own.
        let _ = tcp.set_nodelay(true);
        Ok(tcp)
    }

    /// Encrypts a connection to a broker's host, whose certificate it must have.
    pub async fn encrypt(&self, address: &Address, tcp: TcpStream) -> Result<Box<dyn Io>, NotConnected> {
        let name = ServerName::try_from(address.host().to_owned());
        let name = name.map_err(|_| NotConnected::NotReached("the host is no name for TLS".into()))?;
        match self.tls.connect(name, tcp).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(why) => Err(NotConnected::NotReached(format!("no connection with TLS: {why}"))),
        }
    }

    /// Checks the addresses of a broker's host, where the connection is made by others.
    #[cfg(feature = "kafka")]
    pub async fn check(&self, address: &Address) -> Result<(), NotConnected> {
        self.addresses(address).await.map(drop)
    }

    async fn connect(&self, address: &Address) -> Result<TcpStream, NotConnected> {
        let mut last = NotConnected::NotReached("the name has no address".into());
        for to in self.addresses(address).await? {
            match self.connect_to(to).await {
                Ok(tcp) => return Ok(tcp),
                Err(why) => {
                    last = Lack::of(&why).map_or_else(
                        || NotConnected::NotReached(format!("no connection: {why}")),
                        NotConnected::Lack,
                    );
                }
            }
        }
        Err(last)
    }

    async fn addresses(&self, address: &Address) -> Result<Vec<SocketAddr>, NotConnected> {
        if let Some(ip) = address.ip() {
            self.guard.check(ip).map_err(|why| NotConnected::Refused(why.to_string()))?;
            return Ok(vec![SocketAddr::from((ip, address.port()))]);
        }
        self.names.lookup(address.host(), address.port()).await.map_err(|why| match Lack::of(why.as_ref()) {
            Some(lack) => NotConnected::Lack(lack),
            None if why.is::<RefusedAddress>() => NotConnected::Refused(why.to_string()),
            None => NotConnected::NotReached(format!("no connection: {why}")),
        })
    }

    async fn connect_to(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        if let Some(from) = self.from {
            socket.bind(SocketAddr::from((from, 0)))?;
        }
        socket.connect(to).await
    }
}
