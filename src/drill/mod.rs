//! Failures rehearsed on the operator's own machine: private stores, servers of the drill's own, and a fault
//! proxy between them.
//!
//! It never touches a store or a server that it did not start itself. Whatever is started here ends when its
//! handle is dropped, and every wait has an end.
//!
//! | room | what it is for |
//! |---|---|
//! | [`process`] | a child that is signalled by pid and always reaped |
//! | [`ground`] | throwaway PostgreSQL and Redis servers, to be killed, paused, emptied and rolled back |
//! | [`proxy`] | the network between a client and a server, to be cut, frozen and delayed |

pub mod ground;
pub mod process;
pub mod proxy;
