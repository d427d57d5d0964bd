//! Stores of earlier releases, with what their nodes had written into them, under today's binary.

mod first_version;
mod recorded;
mod rolling;
