//! Tools that look at servers from outside: `bench` measures one, `drill` breaks some of its own.
//!
//! The two never know each other (a test of the layout checks it); what both need is here beside them.
//!
//! | room | what it is for |
//! |---|---|
//! | [`mod@bench`] | scenarios, load, figures |
//! | [`drill`] | faults, load, checker |
//! | [`node`] | a Mainspring node as a child process |
//! | [`process`] | any child process: signals, end, log |
//! | [`servers`] | PostgreSQL, Redis and brokers: servers of the tool's own, databases on given ones, free ports |
//! | [`brokers`] | a broker of each kind with one place, and a publisher that has no node before it |
//! | [`proc`] | CPU time, memory and children of processes, from `/proc` |
//! | [`quantiles`] | p50 to max of durations |
//! | [`wire`] | HTTP/1.1 on one connection, at little cost |

pub mod bench;
pub mod brokers;
pub mod drill;
pub mod node;
pub mod proc;
pub mod process;
pub mod quantiles;
pub mod servers;
pub mod wire;
