//! A browser without script: it keeps cookies, follows nothing by itself, and sends forms.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, Method, RequestBuilder};

use crate::support::{Node, http_client};

/// One answer.
#[derive(Debug)]
pub struct Page {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Page {
    /// A header's text; `None` when it is absent.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header in ASCII"))
    }

    /// What stands in `<title>`.
    pub fn title(&self) -> &str {
        self.between("<title>", "</title>")
    }

    /// What stands in the first heading, without markup.
    pub fn heading(&self) -> String {
        let text = self.between("<h1", "</h1>");
        let text = text.split_once('>').expect("a heading").1;
        text.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect()
    }

    /// The token of its forms; where none is about a namespace, that of those of the session alone.
    pub fn token(&self) -> &str {
        let name = if self.text.contains("name=\"token\"") { "token" } else { "session" };
        self.between(&format!("name=\"{name}\" value=\""), "\"")
    }

    /// The text between two others; panics if it is not there.
    #[track_caller]
    pub fn between(&self, before: &str, after: &str) -> &str {
        let rest = self.text.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {}", self.text)).1;
        rest.split_once(after).unwrap_or_else(|| panic!("no {after:?} in {rest}")).0
    }

    /// The values of an attribute, in order, as a browser reads them.
    pub fn all(&self, attribute: &str) -> Vec<String> {
        let before = format!(" {attribute}=\"");
        let marks = self.text.split(&before).skip(1);
        let value = |rest: &str| {
            rest.split('"').next().unwrap_or_default().replace("&amp;", "&").replace("&#38;", "&")
        };
        marks.map(value).collect()
    }

    /// The values of the hidden fields of this name.
    pub fn hidden(&self, name: &str) -> Vec<String> {
        let before = format!("type=\"hidden\" name=\"{name}\" value=\"");
        let marks = self.text.split(&before).skip(1);
        marks.map(|rest| rest.split('"').next().unwrap_or_default().to_owned()).collect()
    }
}

/// A browser with its cookies.
pub struct Visitor {
    base: String,
    client: Client,
    cookies: Mutex<BTreeMap<String, String>>,
}

impl Visitor {
    pub fn new(node: &Node) -> Self {
        let client = http_client(Duration::from_secs(30));
        Self { base: node.base(), client, cookies: Mutex::default() }
    }

    /// Who has logged in with this key.
    pub async fn logged_in(node: &Node, key: &str) -> Self {
        let visitor = Self::new(node);
        let answer = visitor.log_in(key).await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        visitor
    }

    /// Sends the login form.
    pub async fn log_in(&self, key: &str) -> Page {
        let form = self.get("/login").await;
        self.post("/login", &[("token", form.token()), ("key", key), ("to", "/timers")]).await
    }

    pub fn cookie(&self, name: &str) -> Option<String> {
        self.cookies.lock().expect("no panic holds it").get(name).cloned()
    }

    pub fn set_cookie(&self, name: &str, value: &str) {
        self.cookies.lock().expect("no panic holds it").insert(name.into(), value.into());
    }

    pub async fn get(&self, path: &str) -> Page {
        self.get_with(path, &[]).await
    }

    /// The same with more headers.
    pub async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Page {
        self.send(self.client.request(Method::GET, format!("{}{path}", self.base)), headers).await
    }

    /// Sends a form.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Page {
        self.post_with(path, fields, &[("origin", &self.base.clone()), ("sec-fetch-site", "same-origin")])
            .await
    }

    /// The same with these headers alone.
    pub async fn post_with(&self, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Page {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.client.request(Method::POST, format!("{}{path}", self.base));
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        self.send(request, headers).await
    }

    async fn send(&self, mut request: RequestBuilder, headers: &[(&str, &str)]) -> Page {
        let cookies: Vec<String> = {
            let cookies = self.cookies.lock().expect("no panic holds it");
            cookies.iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        if !cookies.is_empty() {
            request = request.header("cookie", cookies.join("; "));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        for cookie in headers.get_all("set-cookie") {
            let text = cookie.to_str().expect("a cookie in ASCII");
            let (name, value) = text.split(';').next().and_then(|pair| pair.split_once('=')).expect("a pair");
            self.set_cookie(name, value);
        }
        Page { status, headers, text: response.text().await.expect("text") }
    }
}
