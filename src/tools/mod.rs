//! What looks at a server from outside: it measures one, or rehearses failures on some of its own.

pub mod bench;
pub mod drill;
