//! The state that all handlers share.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use tokio_util::sync::CancellationToken;

use super::auth::{Auth, Caller};
use super::bodies::{Bodies, Read, SMALL};
use super::problem::Problem;
use super::slices::{Failed, Slices};
use super::view;
use crate::service::{Node, Service};
use crate::sink::guard::Guard;

/// The state that all handlers share.
pub struct ApiState {
    pub(super) node: Arc<Node>,
    pub(super) auth: Auth,
    pub(super) guard: Guard,
    pub(super) bodies: Bodies,
    pub(super) slices: Slices,
    /// Cancelled when the node stops; streams end then.
    pub(super) closing: CancellationToken,
}

impl ApiState {
    /// The service; 503 until the cold store has answered for the first time.
    pub(super) fn service(&self) -> Result<&Service, Problem> {
        self.node.service().ok_or_else(Problem::starting)
    }

    /// Reads the body of a call, of at most `most` bytes.
    pub(super) async fn body(&self, request: Request, most: usize) -> Result<Read, Problem> {
        let caller = caller(&request);
        self.bodies.read(request.into_body(), most, caller).await
    }

    /// Runs what reads or checks a body, or a slice of one: of a large body beside the runtime, so that no timer waits
    /// for it. `bytes` is the size of the whole body.
    pub(super) async fn check<T: Send + 'static>(
        &self,
        caller: Caller,
        bytes: usize,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        if bytes <= SMALL {
            return Ok(check());
        }
        self.slices.run(caller, check).await.map_err(|Failed| {
            let detail = "the service failed at this request; the failure is logged";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
        })
    }

    /// Computes the tiers of timers, as of now.
    pub(super) fn tiers<'a>(&self, service: &'a Service) -> view::Tiers<'a> {
        view::Tiers::now(service, self.node.config.wheel.near.get())
    }
}

/// The key of a call that was admitted.
pub(super) fn caller(request: &Request) -> Caller {
    request.extensions().get().copied().unwrap_or(Caller::ANYBODY)
}
