//! The HTTP client of the export: the service's own, so that there is one TLS stack in the process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::redirect::Policy;
use tokio::runtime::Handle;

use crate::telemetry::Rarely;

/// Bytes of an answer that are read. A collector answers with a few.
const ANSWER_READ: usize = 64 * 1024;

/// Posts batches of spans. The exporter calls it from a thread of its own, which has no runtime: requests run on the
/// service's.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    runtime: Handle,
    trouble: Arc<Mutex<Trouble>>,
}

impl Client {
    /// A client for the runtime that this is called in. It takes a proxy from the environment, as exporters do.
    pub fn new(timeout: Duration) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("mainspring/", env!("CARGO_PKG_VERSION")))
            // Headers may hold a key, which is meant for the endpoint alone.
            .redirect(Policy::none())
            .timeout(timeout)
            .build()?;
        Ok(Self { http, runtime: Handle::current(), trouble: Arc::default() })
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (http, trouble) = (self.http.clone(), Arc::clone(&self.trouble));
        let sent = self.runtime.spawn(async move {
            let answered = send(&http, request).await;
            let mut trouble = trouble.lock().unwrap_or_else(PoisonError::into_inner);
            match &answered {
                Ok(answer) if answer.status().is_success() => trouble.ended(),
                Ok(answer) => trouble.log(&format!("the collector answered {}", answer.status())),
                Err(why) => trouble.log(&root_cause(why)),
            }
            answered
        });
        Ok(sent.await??)
    }
}

async fn send(http: &reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, reqwest::Error> {
    let mut answer = http.execute(request.try_into()?).await?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        body.extend_from_slice(&chunk[..chunk.len().min(ANSWER_READ - body.len())]);
        if body.len() == ANSWER_READ {
            break;
        }
    }
    let mut response = Response::new(body.into());
    *response.status_mut() = answer.status();
    // How long the collector asks to wait.
    *response.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(response)
}

/// The innermost error says what happened. The outer ones name the URL, which may hold a key.
fn root_cause(why: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = why;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// An outage of the collector is one line, and its end another.
#[derive(Debug, Default)]
struct Trouble {
    is_logged: bool,
    rarely: Rarely,
}

impl Trouble {
    fn log(&mut self, why: &str) {
        if !self.is_logged && self.rarely.is_due() {
            tracing::warn!(why, "spans cannot be exported and are dropped until the collector takes them");
            self.is_logged = true;
        }
    }

    fn ended(&mut self) {
        if std::mem::take(&mut self.is_logged) {
            tracing::info!("spans are exported again");
        }
    }
}
