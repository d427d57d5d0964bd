//! A listener for many receivers, each with a loopback address of its own, that can fall silent: nobody takes its
//! connections and its queue is full, so that a SYN gets no answer at all, as from a machine that is gone.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use axum::serve::Listener;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::tools::drill::history::node_of;
use crate::tools::proc::connecting_to;

/// A SYN that is not answered in this time is not answered. The kernel repeats it only after a second.
const SILENCE: Duration = Duration::from_millis(250);
/// When a queue that is emptied has had no connection for so long, it is empty.
const EMPTY: Duration = Duration::from_millis(20);
/// A listener that takes more connections than its backlog and these is not silent.
const MORE: usize = 64;
/// How long a silent listener is watched for somebody who tries to reach it. A node gives up a connection after
/// four seconds, and tries again after one at most.
const WATCH: Duration = Duration::from_secs(6);
/// How long to wait after a connection could not be taken, as for want of open files.
const AGAIN: Duration = Duration::from_millis(50);

/// Takes connections while its gate is open. Only those of this machine count.
pub struct Gated {
    listener: TcpListener,
    open: watch::Receiver<bool>,
    backlog: u32,
}

/// Opens and closes a listener.
pub struct Gate {
    open: watch::Sender<bool>,
    port: u16,
    backlog: u32,
}

/// A listener on a free port of all addresses, open, whose queue holds `backlog` connections.
pub fn listen(backlog: u32) -> io::Result<(Gated, Gate)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    let listener = socket.listen(backlog)?;
    let (port, (open, is_open)) = (listener.local_addr()?.port(), watch::channel(true));
    Ok((Gated { listener, open: is_open, backlog }, Gate { open, port, backlog }))
}

impl Listener for Gated {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            if !*self.open.borrow_and_update() {
                if self.open.wait_for(|open| *open).await.is_err() {
                    pending::<()>().await;
                }
                self.empty().await;
            }
            let accepted = tokio::select! {
                biased;
                changed = self.open.changed() => {
                    if changed.is_err() {
                        pending::<()>().await;
                    }
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, from)) if from.ip().is_loopback() => return (stream, from),
                Ok(_) => {}
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Gated {
    /// Drops what has queued up while nobody listened. Who sent a request there has given it up or will send it again;
    /// served now, it would count as an attempt that came after later ones.
    async fn empty(&self) {
        for _ in 0..self.backlog as usize + MORE {
            if timeout(EMPTY, self.listener.accept()).await.is_err() {
                return;
            }
        }
    }
}

impl Gate {
    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Closes it and fills its queue; returns what fills it, to be kept until [`Gate::open`]. Fails when SYNs are
    /// still answered then.
    pub async fn close(&self) -> anyhow::Result<Vec<TcpStream>> {
        self.open.send_replace(false);
        let mut filling = Vec::new();
        while filling.len() < self.backlog as usize + MORE {
            match self.knock().await {
                None => return Ok(filling),
                Some(connected) => filling.push(connected.context("no connection to ourselves")?),
            }
        }
        bail!("port {} still answers after {} connections", self.port, filling.len());
    }

    /// Opens it again.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Whether a SYN is not answered.
    pub async fn is_silent(&self) -> bool {
        self.knock().await.is_none()
    }

    /// How many connections of nodes wait for an answer to their SYN. Watches for some seconds before it says that
    /// none does.
    pub async fn knocking(&self) -> usize {
        let watch = async {
            loop {
                let knocking = connecting_to(self.port, |from| node_of(from).is_some());
                if knocking > 0 {
                    return knocking;
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        timeout(WATCH, watch).await.unwrap_or(0)
    }

    /// A connection; `None` if the SYN is not answered.
    async fn knock(&self) -> Option<io::Result<TcpStream>> {
        timeout(SILENCE, TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_closed_gate_answers_no_syn_and_what_queued_up_is_dropped_when_it_opens() {
        let (mut gated, gate) = listen(2).expect("a listener");
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = gated.accept().await;
                let _ = stream.write_all(b"served").await;
            }
        });
        let served = async |mut stream: TcpStream| {
            let mut text = String::new();
            let read = stream.read_to_string(&mut text).await;
            read.is_ok_and(|_| text == "served")
        };
        let connect = || gate.knock();
        assert!(served(connect().await.expect("answered").expect("taken")).await);

        let filling = gate.close().await.expect("it falls silent");
        assert!(!filling.is_empty() && gate.is_silent().await);
        let mut knocking = Box::pin(TcpStream::connect((Ipv4Addr::LOCALHOST, gate.port())));
        assert!(timeout(EMPTY, &mut knocking).await.is_err());
        let waiting = |is_from: fn(IpAddr) -> bool| connecting_to(gate.port(), is_from);
        assert_eq!((waiting(|_| true), waiting(|from| node_of(from).is_some())), (1, 0), "it is no node");
        drop(knocking);
        gate.open();
        for stream in filling {
            assert!(!served(stream).await, "it waited in the queue");
        }
        // What comes while the queue is being emptied is dropped too.
        let mut tries = 0;
        while !served(connect().await.expect("answered").expect("taken")).await {
            tries += 1;
            assert!(tries < 1000, "it stays closed");
        }
        serving.abort();
    }
}
