//! What a call takes: the scope that a key needs for it.
//!
//! The rule is by route, so that a new route is closed until somebody decides: what is not named here takes `operate`. The
//! OpenAPI document says the same of each call (`security`), and a test calls every route with every scope.

use axum::http::StatusCode;

use super::auth::Caller;
use super::problem::Problem;
use crate::model::key::Scope;

/// What a call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Takes {
    /// To do it.
    pub scope: Scope,
    /// To see what it is about. Whoever may not see it is answered as if it were not there.
    pub sight: Scope,
    /// It is about the service as a whole: the key must be of all namespaces.
    pub is_of_all: bool,
}

/// What a call on this route takes. `route` is a path with the names of its parameters: `/v1/timers/{id}`.
pub fn of(method: &str, route: &str) -> Takes {
    let see = |scope| Takes { scope, sight: Scope::View, is_of_all: false };
    let parts: Vec<&str> = route.trim_start_matches('/').split('/').collect();
    let reads = matches!(method, "GET" | "HEAD" | "OPTIONS");
    match parts.as_slice() {
        ["v1", "namespaces", ..] => Takes { scope: Scope::Admin, sight: Scope::Admin, is_of_all: true },
        ["v1", "keys", ..] => Takes { scope: Scope::Admin, sight: Scope::Admin, is_of_all: false },
        ["v1", "audit"] => Takes { sight: Scope::Operate, ..see(Scope::Operate) },
        ["v1", "wheels" | "nodes" | "receivers", ..] => Takes { is_of_all: true, ..see(Scope::View) },
        _ if reads => see(Scope::View),
        ["v1", "timers", ..] | ["v1", "queues", _, "lease" | "settle"] => see(Scope::Register),
        _ => see(Scope::Operate),
    }
}

impl Takes {
    /// Lets this caller through, or answers him.
    pub fn check(self, caller: Caller, method: &str, route: &str) -> Result<(), Problem> {
        if caller.scope < self.sight || (self.is_of_all && !caller.is_of_all()) {
            let of = if self.is_of_all { " of all namespaces (`*`)" } else { "" };
            let detail =
                format!("there is nothing here for this key; it takes one with `{}`{of}", self.sight.word());
            return Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail));
        }
        if caller.scope < self.scope {
            let (has, takes) = (caller.scope.word(), self.scope.word());
            let detail = format!("this key's scope is `{has}`; {method} {route} takes `{takes}`");
            return Err(Problem::new(StatusCode::FORBIDDEN, "scope", detail));
        }
        Ok(())
    }
}
