//! A thin REST client. It sends what it is told and judges nothing: tests do.

use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, Method};
use serde_json::Value;

/// One answer. `body` is `Null` when it is empty, and a string when it is not JSON.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// A header's text; `None` when it is absent.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header in ASCII"))
    }
}

/// The totals of `GET /v1/ledger`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledger {
    pub registered: u64,
    pub delivered: u64,
    pub cancelled: u64,
    pub expired: u64,
    pub dead: u64,
    pub pending: u64,
}

impl Ledger {
    /// Whether every registered timer is accounted for.
    pub fn balances(&self) -> bool {
        self.registered == self.delivered + self.cancelled + self.expired + self.dead + self.pending
    }
}

/// A client of one node.
#[derive(Clone)]
pub struct Api {
    pub base: String,
    pub client: Client,
    key: Option<String>,
}

impl Api {
    /// A client for a base such as `http://127.0.0.1:7600`, without a key.
    pub fn new(base: impl Into<String>) -> Self {
        Self { base: base.into(), client: super::http_client(Duration::from_secs(30)), key: None }
    }

    /// The same client, which sends `key` with every call.
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Any call: `path` as written, with its query. Panics when no answer comes at all.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        self.try_send(method.clone(), path, headers, body)
            .await
            .unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    }

    /// As [`Api::send`], for a node that may be down or die meanwhile.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> reqwest::Result<Answer> {
        let body = body.map(|body| body.to_string().into_bytes());
        self.try_send_bytes(method, path, headers, body).await
    }

    /// Any call with a body as written, which need not be JSON. Panics when no answer comes at all.
    pub async fn send_bytes(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        self.try_send_bytes(method.clone(), path, headers, Some(body.into()))
            .await
            .unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    }

    async fn try_send_bytes(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> reqwest::Result<Answer> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let body = match text.as_str() {
            "" => Value::Null,
            json => serde_json::from_str(json).unwrap_or(Value::String(text)),
        };
        Ok(Answer { status, headers, body })
    }

    /// `GET` of any path.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.plain(Method::GET, path, None).await
    }

    /// `POST` to any path.
    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.plain(Method::POST, path, Some(body)).await
    }

    /// `PUT /v1/timers/{id}`.
    pub async fn put(&self, id: &str, body: &Value) -> (u16, Value) {
        self.plain(Method::PUT, &timer_path(id), Some(body)).await
    }

    /// `PATCH /v1/timers/{id}`.
    pub async fn patch(&self, id: &str, body: &Value) -> (u16, Value) {
        self.plain(Method::PATCH, &timer_path(id), Some(body)).await
    }

    /// `DELETE /v1/timers/{id}`.
    pub async fn delete(&self, id: &str) -> (u16, Value) {
        self.plain(Method::DELETE, &timer_path(id), None).await
    }

    /// `GET /v1/timers/{id}`.
    pub async fn timer(&self, id: &str) -> (u16, Value) {
        self.plain(Method::GET, &timer_path(id), None).await
    }

    /// The totals; panics when the node does not give all six.
    pub async fn ledger(&self) -> Ledger {
        let (status, body) = self.get("/v1/ledger").await;
        assert_eq!(status, 200, "{body}");
        let total = |name: &str| {
            body[name].as_u64().unwrap_or_else(|| panic!("no total {name:?} in the ledger {body}"))
        };
        Ledger {
            registered: total("registered"),
            delivered: total("delivered"),
            cancelled: total("cancelled"),
            expired: total("expired"),
            dead: total("dead"),
            pending: total("pending"),
        }
    }

    async fn plain(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let answer = self.send(method, path, &[], body).await;
        (answer.status, answer.body)
    }
}

/// Every character of a valid id may stand in a path as it is.
fn timer_path(id: &str) -> String {
    format!("/v1/timers/{id}")
}
