//! A build without the export of traces: nothing is kept, and everything is optimized away.

use axum::http::{Request, Response};

use super::{ENDPOINTS, Started, variable};
use crate::model::timer::AttemptResult;
use crate::model::trace::Trace;

/// The export of spans: there is none.
#[derive(Debug)]
pub struct Export;

impl Export {
    /// Warns if the environment asks for what this build does not have.
    pub fn start(_node: &str) -> anyhow::Result<Self> {
        if let Some(name) = ENDPOINTS.into_iter().find(|name| variable(name).is_some()) {
            tracing::warn!(
                "`{name}` is set, but this binary was built without the export of traces; build it with \
                 `--features otlp`"
            );
        }
        Ok(Self)
    }

    /// Does nothing.
    pub async fn end(self) {}
}

/// A call of the API under way.
#[derive(Debug)]
pub struct Call;

impl Call {
    /// Does nothing.
    #[inline(always)]
    pub fn begin<B>(_request: &Request<B>, _route: &str) -> Self {
        Self
    }

    /// Does nothing.
    #[inline(always)]
    pub fn end<B>(self, _response: &Response<B>) {}
}

/// An attempt under way.
#[derive(Debug)]
pub struct Attempt;

impl Attempt {
    /// Does nothing.
    #[inline(always)]
    pub fn begin(_started: Started<'_>) -> Self {
        Self
    }

    /// What its receiver gets: nothing.
    #[inline(always)]
    pub fn onward(&self) -> Onward {
        Onward(())
    }

    /// Does nothing.
    #[inline(always)]
    pub fn end(self, _result: AttemptResult, _status: Option<u16>, _detail: Option<&str>) {}
}

/// The trace context that an attempt gives to its receiver.
#[derive(Debug, Clone, Copy, Default)]
pub struct Onward(());

impl Onward {
    /// None.
    #[inline(always)]
    pub fn traceparent(self) -> Option<Trace> {
        None
    }
}
