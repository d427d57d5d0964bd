//! A client of the REST API, for the verbs that call a running server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Method, StatusCode, Url};
use serde::{Deserialize, Serialize};

use super::exit::usage;
use super::{input, out};

/// Where a server listens by default.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7600";
/// The time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Added to the message when the answer to a change was lost.
const OUTCOME_UNKNOWN: &str = "; it may have been done all the same, the verb `get` shows it";

/// Which server to call, and with which key.
#[derive(Args)]
pub struct Connection {
    /// The server [default: $MAINSPRING_SERVER, else http://127.0.0.1:7600]
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    server: Option<String>,
    /// A file with the API key [default: the key in $MAINSPRING_API_KEY]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    key_file: Option<PathBuf>,
    /// The namespace to work in, with a key of all namespaces [default: $MAINSPRING_NAMESPACE, else the store's own]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Server", value_parser = input::name)]
    in_namespace: Option<String>,
}

impl Connection {
    /// Whether a flag or the environment names a server.
    pub fn names_a_server(&self) -> bool {
        self.named_server().is_some()
    }

    fn named_server(&self) -> Option<String> {
        self.server.clone().or_else(|| variable("MAINSPRING_SERVER"))
    }
}

/// By this header a caller with a key of all namespaces chooses one.
const NAMESPACE: &str = "x-mainspring-namespace";

/// The value of a variable of the environment, unless it is blank.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// A server, and what to do there.
#[derive(Args)]
#[group(skip)]
pub struct Remote<V: Subcommand> {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    pub verb: V,
}

impl<V: Subcommand> Remote<V> {
    /// The client of the server.
    pub fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.connection)
    }
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
    /// Sent, but no complete answer came back.
    #[error("{server} gave no answer: {why}{hint}")]
    NoAnswer {
        /// The base URL.
        server: String,
        /// The root cause.
        why: String,
        /// For a change, that its outcome is unknown.
        hint: &'static str,
    },
    /// The server refused the call.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// The answer is not one of a Mainspring server.
    #[error("{server} answered {status}, but is not a Mainspring server; is --server right?")]
    NotMainspring {
        /// The base URL.
        server: String,
        /// The status of the answer.
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
    /// A line for each field that the server refused and that its `detail` does not name already.
    pub fn fields(&self) -> Vec<String> {
        let Self::Refused(problem) = self else {
            return Vec::new();
        };
        let line = |field: &Field| out::plain(&format!("{}: {}", field.pointer, field.detail));
        let shown = problem.to_string();
        problem.errors.iter().map(line).filter(|line| !shown.contains(line)).collect()
    }
}

/// A successful answer.
#[derive(Debug)]
pub struct Reply {
    /// Its status, a 2xx.
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
    namespace: Option<HeaderValue>,
}

impl Client {
    /// The client for these flags. Without a flag the environment counts.
    pub fn new(connection: &Connection) -> anyhow::Result<Self> {
        let server = connection.named_server();
        let key = match &connection.key_file {
            Some(path) => Some(input::secret_file("--key-file", path)?),
            None => variable("MAINSPRING_API_KEY"),
        };
        let namespace = connection.in_namespace.clone().or_else(|| variable("MAINSPRING_NAMESPACE"));
        let namespace = namespace.map(|name| HeaderValue::from_str(&name)).transpose();
        let namespace = namespace.map_err(|_| usage("MAINSPRING_NAMESPACE is no name of a namespace"))?;
        Ok(Self { namespace, ..Self::of(&server.unwrap_or_else(|| DEFAULT_SERVER.into()), key.as_deref())? })
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
            url.ok_or_else(|| usage(format!("the server `{base}` is not a URL such as {DEFAULT_SERVER}")))?;
        let key = match key {
            Some(key) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", key.trim()))
                    .map_err(|_| usage("the API key has characters that an HTTP header cannot hold"))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self {
            http: http(TIMEOUT)?,
            base: url.as_str().trim_end_matches('/').to_owned(),
            key,
            namespace: None,
        })
    }

    /// The same client with another time limit for each call.
    pub fn with_timeout(self, timeout: Duration) -> anyhow::Result<Self> {
        Ok(Self { http: http(timeout)?, ..self })
    }

    /// Makes one call. `path` is appended to the server's URL unchanged.
    pub async fn call<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        query: &[(String, String)],
        body: Option<&B>,
    ) -> Result<Reply, Error> {
        let hint = if method == Method::GET { "" } else { OUTCOME_UNKNOWN };
        let failed = |why: reqwest::Error| self.failed(&why, hint);
        let mut request = self.http.request(method, format!("{}{path}", self.base)).query(query);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        if let Some(namespace) = &self.namespace {
            request = request.header(NAMESPACE, namespace);
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
            _ => Err(Error::NotMainspring { server: self.base.clone(), status }),
        }
    }

    /// Opens a stream of server-sent events.
    pub async fn events(&self, path: &str) -> anyhow::Result<Events> {
        let mut request = streaming()?.get(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        if let Some(namespace) = &self.namespace {
            request = request.header(NAMESPACE, namespace);
        }
        let answer = request.send().await.map_err(|why| self.failed(&why, ""))?;
        let status = answer.status();
        let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if status.is_success() && kind.starts_with("text/event-stream") {
            return Ok(Events { answer, unread: String::new() });
        }
        let is_problem = kind.starts_with("application/problem+json");
        let text = answer.text().await.map_err(|why| self.failed(&why, ""))?;
        Err(match serde_json::from_str::<Problem>(&text) {
            Ok(problem) if is_problem => Error::Refused(Box::new(Problem { status, ..problem })),
            _ => Error::NotMainspring { server: self.base.clone(), status },
        }
        .into())
    }

    /// A call without a body.
    pub async fn ask(&self, method: Method, path: &str, query: &[(String, String)]) -> Result<Reply, Error> {
        self.call::<()>(method, path, query, None).await
    }

    fn failed(&self, why: &reqwest::Error, hint: &'static str) -> Error {
        let server = self.base.clone();
        let mut text = if why.is_timeout() { "it took too long".to_owned() } else { root_cause(why) };
        if text.starts_with("invalid peer certificate") {
            text.push_str(" (for an authority that the system does not know, set SSL_CERT_FILE)");
        }
        if why.is_connect() || why.is_builder() {
            Error::Unreachable { server, why: text }
        } else {
            Error::NoAnswer { server, why: text, hint }
        }
    }
}

/// Server-sent events, as they come.
pub struct Events {
    answer: reqwest::Response,
    unread: String,
}

impl Events {
    /// The next event: its name and its data, which is one line. `None` at the end of the stream; fails when the server
    /// has been silent for too long. Cancel safe.
    pub async fn next(&mut self) -> anyhow::Result<Option<(String, String)>> {
        loop {
            while let Some((event, rest)) = self.unread.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                let value = |name: &str| field(name).map(|value| value.trim().to_owned());
                let (name, data) = (value("event:"), value("data:"));
                self.unread = rest.to_owned();
                // What has no name is a comment that keeps the connection alive.
                if let (Some(name), Some(data)) = (name, data) {
                    return Ok(Some((name, data)));
                }
            }
            match self.answer.chunk().await.map_err(|why| anyhow::anyhow!(root_cause(&why)))? {
                Some(bytes) => self.unread.push_str(&String::from_utf8_lossy(&bytes)),
                None => return Ok(None),
            }
        }
    }
}

/// The same for streams: they have no end, but must not be silent.
fn streaming() -> anyhow::Result<reqwest::Client> {
    Ok(builder().read_timeout(TIMEOUT).build()?)
}

/// An HTTP client without proxies and redirects, so that the key goes to no other server.
pub fn http(timeout: Duration) -> anyhow::Result<reqwest::Client> {
    Ok(builder().timeout(timeout).build()?)
}

/// The same for a server on this machine, whose certificate is of the name by which others know it. No key goes there.
pub fn http_of_this_machine(timeout: Duration) -> anyhow::Result<reqwest::Client> {
    Ok(builder().timeout(timeout).tls_danger_accept_invalid_certs(true).build()?)
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("mainspring/", env!("CARGO_PKG_VERSION")))
}

/// The innermost cause. It says what failed; the outer ones say where.
pub fn root_cause(why: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = why;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// The address under which this machine reaches a server that listens on `listen`.
pub fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
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
            "the field is named once"
        );
        assert_eq!(refused(503, r#"{"request_id":"r"}"#).to_string(), "503 Service Unavailable (request r)");
    }

    #[test]
    fn a_server_that_is_not_a_url_is_a_usage_error() {
        for bad in ["", "localhost:7600", "ftp://a", "http://a/?x=1", "http://me:key@a"] {
            let why = Client::of(bad, None).err().unwrap();
            assert_eq!(exit::of(&why), Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn a_server_on_all_addresses_is_reached_on_loopback() {
        for (listen, reached) in
            [("0.0.0.0:7600", "127.0.0.1:7600"), ("[::]:7600", "[::1]:7600"), ("127.0.0.1:1", "127.0.0.1:1")]
        {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), reached);
        }
    }
}
