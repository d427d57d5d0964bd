//! The state that all handlers share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::auth::Auth;
use super::problem::Problem;
use super::view;
use crate::service::{Node, Service};
use crate::sink::guard::Guard;

/// The state that all handlers share.
pub struct ApiState {
    pub(super) node: Arc<Node>,
    pub(super) auth: Auth,
    pub(super) guard: Guard,
    /// Cancelled when the node stops; streams end then.
    pub(super) closing: CancellationToken,
}

impl ApiState {
    /// The service; 503 until the cold store has answered for the first time.
    pub(super) fn service(&self) -> Result<&Service, Problem> {
        self.node.service().ok_or_else(Problem::starting)
    }

    /// Computes the tiers of timers, as of now.
    pub(super) fn tiers<'a>(&self, service: &'a Service) -> view::Tiers<'a> {
        view::Tiers::now(service, self.node.config.wheel.near.get())
    }
}
