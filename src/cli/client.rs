//! A small client of the REST API, for the verbs that talk to a running server.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Method, StatusCode, Url};
use serde::{Deserialize, Serialize};

use super::exit::usage;
use super::{input, out};

/// Where a server listens unless told otherwise.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7600";
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a lost answer means for a change.
const UNSURE: &str = "; whether it was done is not known, `mainspring timer get` tells";

/// Which server to talk to, and as whom.
#[derive(Args)]
pub struct Connection {
    /// The server [default: $MAINSPRING_SERVER, else http://127.0.0.1:7600]
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    server: Option<String>,
    /// A file with the API key [default: the key in $MAINSPRING_API_KEY]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    key_file: Option<PathBuf>,
}

/// A call that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection; nothing was sent.
    #[error("{server} cannot be reached: {why}; is the server running there? (--server, MAINSPRING_SERVER)")]
    Unreachable {
        /// The base URL.
        server: String,
        /// The root cause.
        why: String,
    },
    /// Sent, but no whole answer came back.
    #[error("{server} gave no answer: {why}{hint}")]
    NoAnswer {
        /// The base URL.
        server: String,
        /// The root cause.
        why: String,
        /// What that means for a change.
        hint: &'static str,
    },
    /// The server said no.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// Whoever answered is no Mainspring server.
    #[error("{server} answered {status}, but not as a Mainspring server would; is --server right?")]
    Stranger {
        /// The base URL.
        server: String,
        /// What it answered.
        status: StatusCode,
    },
}

/// A problem document (RFC 9457).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Problem {
    title: String,
    detail: Option<String>,
    errors: Vec<Field>,
    request_id: Option<String>,
    #[serde(skip)]
    status: StatusCode,
    #[serde(skip)]
    retry_after: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Field {
    pointer: String,
    detail: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let title = if self.title.is_empty() { self.status.to_string() } else { out::plain(&self.title) };
        f.write_str(&title)?;
        if let Some(detail) = self.detail.as_deref().filter(|detail| !detail.is_empty()) {
            write!(f, ": {}", out::plain(detail))?;
        }
        if let Some(after) = &self.retry_after {
            write!(f, " (try again in {} s)", out::plain(after))?;
        }
        match &self.request_id {
            Some(id) if self.status.is_server_error() => write!(f, " (request {})", out::plain(id)),
            _ => Ok(()),
        }
    }
}

impl Problem {
    /// The status of the answer that it came in.
    pub const fn status(&self) -> StatusCode {
        self.status
    }
}

impl Error {
    /// What the server found wrong, a line for each field that its detail does not name already; mostly empty.
    pub fn fields(&self) -> Vec<String> {
        let Self::Refused(problem) = self else {
            return Vec::new();
        };
        let line = |field: &Field| out::plain(&format!("{}: {}", field.pointer, field.detail));
        let said = problem.to_string();
        problem.errors.iter().map(line).filter(|line| !said.contains(line)).collect()
    }
}

/// A successful answer.
#[derive(Debug)]
pub struct Reply {
    /// Which success.
    pub status: StatusCode,
    /// The body, in one line.
    pub json: String,
}

impl Reply {
    /// The body as a value.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> anyhow::Result<T> {
        serde_json::from_str(&self.json).map_err(|why| {
            anyhow::anyhow!("the server's answer cannot be read ({why}); is it another version?")
        })
    }
}

/// A client of one server.
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<HeaderValue>,
}

impl Client {
    /// The client that the flags and, where those are silent, the environment describe.
    pub fn new(connection: &Connection) -> anyhow::Result<Self> {
        let given = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let server = connection.server.clone().or_else(|| given("MAINSPRING_SERVER"));
        let key = match &connection.key_file {
            Some(path) => Some(input::secret_file("--key-file", path)?),
            None => given("MAINSPRING_API_KEY"),
        };
        Self::of(&server.unwrap_or_else(|| DEFAULT_SERVER.into()), key.as_deref())
    }

    /// A client of the server at `base`.
    pub fn of(base: &str, key: Option<&str>) -> anyhow::Result<Self> {
        let url = Url::parse(base).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url.filter(|url| {
            url.query().is_none()
                && url.fragment().is_none()
                && url.username().is_empty()
                && url.password().is_none()
        });
        let url =
            url.ok_or_else(|| usage(format!("the server `{base}` is no URL such as {DEFAULT_SERVER}")))?;
        let key = match key {
            Some(key) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", key.trim()))
                    .map_err(|_| usage("the API key has characters that no key has"))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self { http: http(TIMEOUT)?, base: url.as_str().trim_end_matches('/').to_owned(), key })
    }

    /// Makes one call. `path` is appended to the server's URL as it is.
    pub async fn call<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        query: &[(String, String)],
        body: Option<&B>,
    ) -> Result<Reply, Error> {
        let hint = if method == Method::GET { "" } else { UNSURE };
        let failed = |why: reqwest::Error| self.failed(&why, hint);
        let mut request = self.http.request(method, format!("{}{path}", self.base)).query(query);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        let header =
            |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (kind, retry_after) = (header(CONTENT_TYPE).unwrap_or_default(), header(RETRY_AFTER));
        let text = answer.text().await.map_err(failed)?;
        if status.is_success() && kind.starts_with("application/json") {
            return Ok(Reply { status, json: out::compact(&text) });
        }
        match serde_json::from_str::<Problem>(&text) {
            Ok(problem) if kind.starts_with("application/problem+json") => {
                Err(Error::Refused(Box::new(Problem { status, retry_after, ..problem })))
            }
            _ => Err(Error::Stranger { server: self.base.clone(), status }),
        }
    }

    /// A call without a body.
    pub async fn ask(&self, method: Method, path: &str, query: &[(String, String)]) -> Result<Reply, Error> {
        self.call::<()>(method, path, query, None).await
    }

    fn failed(&self, why: &reqwest::Error, hint: &'static str) -> Error {
        let server = self.base.clone();
        let text = if why.is_timeout() { "it took too long".to_owned() } else { root_cause(why) };
        if why.is_connect() || why.is_builder() {
            Error::Unreachable { server, why: text }
        } else {
            Error::NoAnswer { server, why: text, hint }
        }
    }
}

/// An HTTP client as the verbs use it: no proxies, no redirects (the key goes to nobody else).
pub fn http(timeout: Duration) -> anyhow::Result<reqwest::Client> {
    Ok(reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(timeout)
        .user_agent(concat!("mainspring/", env!("CARGO_PKG_VERSION")))
        .build()?)
}

/// The innermost cause, which says what went wrong; the outer ones say where.
pub fn root_cause(why: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = why;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// The error of an answer with this status and this problem document.
#[cfg(test)]
pub fn refused(status: u16, json: &str) -> Error {
    let status = StatusCode::from_u16(status).unwrap();
    Error::Refused(Box::new(Problem { status, ..serde_json::from_str(json).unwrap() }))
}

#[cfg(test)]
mod tests {
    use super::super::exit::{self, Exit};
    use super::*;

    #[test]
    fn a_problem_reads_as_title_detail_and_fields() {
        let why = refused(
            422,
            r#"{"type":"about:blank","title":"Not valid","status":422,"detail":"2 fields","code":"invalid",
                "errors":[{"pointer":"/target/webhook/url","code":"url","detail":"no host"},{"pointer":"/data"}],
                "request_id":"req_1"}"#,
        );
        assert_eq!(why.to_string(), "Not valid: 2 fields");
        assert_eq!(why.fields(), ["/target/webhook/url: no host", "/data: "]);
        let one = refused(
            422,
            r#"{"title":"Not valid","detail":"/x: no","errors":[{"pointer":"/x","detail":"no"}]}"#,
        );
        assert_eq!(
            (one.to_string().as_str(), one.fields().len()),
            ("Not valid: /x: no", 0),
            "it is said once"
        );
        assert_eq!(refused(503, r#"{"request_id":"r"}"#).to_string(), "503 Service Unavailable (request r)");
    }

    #[test]
    fn a_server_that_is_no_url_is_a_usage_error() {
        for bad in ["", "localhost:7600", "ftp://a", "http://a/?x=1", "http://me:key@a"] {
            let why = Client::of(bad, None).err().unwrap();
            assert_eq!(exit::of(&why), Exit::Usage, "{bad}");
        }
    }
}
