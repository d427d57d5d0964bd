//! Failures rehearsed on the operator's own machine: private stores and servers of the drill's own.
//!
//! It never touches a store or a server that it did not start itself. Whatever is started here ends when its
//! handle is dropped, and every wait has an end.
//!
//! | room | what it is for |
//! |---|---|
//! | [`process`] | a child that is signalled by pid and always reaped |
//! | [`ground`] | throwaway PostgreSQL and Redis servers, to be killed, paused, emptied and rolled back |

pub mod ground;
pub mod process;
