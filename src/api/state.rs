//! What every handler works with.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::auth::Auth;
use super::problem::Problem;
use super::view;
use crate::service::{Node, Service};
use crate::sink::guard::Guard;

/// What every handler works with.
pub struct ApiState {
    pub(super) node: Arc<Node>,
    pub(super) auth: Auth,
    pub(super) guard: Guard,
    /// The doors close: streams end.
    pub(super) closing: CancellationToken,
}

impl ApiState {
    /// What is behind the API, once the cold store has answered.
    pub(super) fn service(&self) -> Result<&Service, Problem> {
        self.node.service().ok_or_else(Problem::starting)
    }

    /// Tells in which tier timers are.
    pub(super) fn tiers<'a>(&self, service: &'a Service) -> view::Tiers<'a> {
        view::Tiers::now(service, self.node.config.wheel.near.get())
    }
}
