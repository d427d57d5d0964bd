//! The state that all handlers share.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use tokio_util::sync::CancellationToken;

use super::auth::{Auth, Caller};
use super::bodies::{Bodies, Read, SMALL};
use super::problem::Problem;
use super::slices::{Failed, Slices};
use super::view;
use crate::model::namespace::Namespace;
use crate::service::{Node, Service};
use crate::sink::guard::Guard;

/// The state that all handlers share.
#[derive(Clone)]
pub struct ApiState {
    pub(super) node: Arc<Node>,
    pub(super) auth: Auth,
    /// Of what the settings say.
    pub(super) settings_guard: Guard,
    pub(super) bodies: Arc<Bodies>,
    pub(super) slices: Arc<Slices>,
    /// Cancelled when the node stops; streams end then.
    pub(super) closing: CancellationToken,
    /// The service for calls about another namespace than the store's own.
    pub(super) within: Option<Box<Service>>,
    /// The states for calls about others.
    pub(super) of_others: Arc<OfOthers>,
}

/// States that were made for other namespaces: each is made once.
#[derive(Default)]
pub(super) struct OfOthers(RwLock<HashMap<Namespace, OfNamespace>>);

/// The most of these that are kept; then all are made anew.
const MOST_KEPT: usize = 10_000;

/// The state, for calls about the namespace of this one.
pub struct Within(pub Arc<ApiState>);

/// The state that a handler gets in place of the common one.
#[derive(Clone)]
pub(super) struct OfNamespace(pub Arc<ApiState>);

impl FromRequestParts<Arc<ApiState>> for Within {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<ApiState>) -> Result<Self, Infallible> {
        let of_call = parts.extensions.get::<OfNamespace>().map(|one| Arc::clone(&one.0));
        Ok(Self(of_call.unwrap_or_else(|| Arc::clone(state))))
    }
}

impl ApiState {
    /// The service; 503 until the cold store has answered for the first time.
    pub(super) fn service(&self) -> Result<&Service, Problem> {
        self.within.as_deref().or_else(|| self.node.service()).ok_or_else(Problem::starting)
    }

    /// The same for calls about this namespace.
    pub(super) fn of(&self, namespace: Namespace) -> Result<OfNamespace, Problem> {
        let OfOthers(kept) = &*self.of_others;
        if let Some(one) = kept.read().unwrap_or_else(PoisonError::into_inner).get(&namespace) {
            return Ok(one.clone());
        }
        let service = self.node.service().ok_or_else(Problem::starting)?;
        let within = Some(Box::new(service.within(namespace)));
        // Without the others: what is kept must not keep itself.
        let one = OfNamespace(Arc::new(Self { within, of_others: Arc::default(), ..self.clone() }));
        let mut kept = kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(namespace, one.clone());
        Ok(one)
    }

    /// Decides which addresses a namespace may send to.
    pub(super) fn guard(&self, namespace: Namespace) -> Guard {
        self.settings_guard.within(self.node.namespaces.networks(namespace))
    }

    /// Charges so many calls to the caller's key and to the namespace that the call is about; 429 when a quota admits no more.
    pub(super) async fn charge(&self, caller: Caller, calls: usize) -> Result<(), Problem> {
        self.auth.charge(&caller, calls)?;
        self.charge_namespace(caller.namespace, calls).await
    }

    /// The same for the namespace alone.
    pub(super) async fn charge_namespace(&self, namespace: Namespace, calls: usize) -> Result<(), Problem> {
        self.node.namespaces.charge(namespace, calls).await.map_err(Problem::over)
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
