//! The wheels, and what turns them: one conformance suite for all versions, the wheel law, and the way of
//! timers through the tiers. The clock is turned by hand, every loop is cranked.

mod cluster;
mod conformance;
mod law;
mod moved;
mod parts;
mod rig;
mod room;
mod set_back;
mod space;
mod sweep;
mod take_over;
mod tiers;
mod watermark;
