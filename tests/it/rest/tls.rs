//! TLS of the listener: who it is and who calls is proved, and a certificate is renewed while the node works.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mainspring::service::keys::{certificate_hash, fingerprint};
use reqwest::{Certificate, Client, Identity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use tokio_util::bytes::Bytes;

use super::LONG;
use crate::support::{Authority, Node, eventually, http_client};

/// A node with the certificate of this name; it trusts clients' certificates of this authority.
fn node_of(authority: &Authority, name: &str) -> Node {
    let shown = |path: PathBuf| path.display().to_string();
    Node::builder()
        .env("MAINSPRING__SERVER__TLS_CERTIFICATE", shown(authority.path(&format!("{name}.pem"))))
        .env("MAINSPRING__SERVER__TLS_KEY", shown(authority.path(&format!("{name}.key"))))
        .env("MAINSPRING__SERVER__TLS_CLIENT_CA", shown(authority.path("ca.pem")))
        .start()
}

/// A client that trusts this authority alone, and shows the certificate of this name.
fn client_of(authority: &Authority, shows: Option<&str>) -> Client {
    let _ = http_client(LONG);
    let root = Certificate::from_pem(authority.text("ca.pem").as_bytes()).expect("a certificate");
    let builder = Client::builder().no_proxy().timeout(LONG).tls_certs_only([root]);
    // Each call shakes hands anew.
    let builder = builder.pool_max_idle_per_host(0);
    match shows {
        None => builder.build(),
        Some(name) => {
            let pem = format!(
                "{}{}",
                authority.text(&format!("{name}.pem")),
                authority.text(&format!("{name}.key"))
            );
            builder.identity(Identity::from_pem(pem.as_bytes()).expect("an identity")).build()
        }
    }
    .expect("a client")
}

fn base(node: &Node) -> String {
    node.base().replace("http://", "https://")
}

async fn get(client: &Client, node: &Node, path: &str) -> reqwest::Result<(u16, Value)> {
    let answer = client.get(format!("{}{path}", base(node))).send().await?;
    let status = answer.status().as_u16();
    Ok((status, answer.json().await.unwrap_or(Value::Null)))
}

async fn ready(client: &Client, node: &Node) {
    eventually("it is ready", Duration::from_secs(60), async || match get(client, node, "/readyz").await {
        Ok((200, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

fn why(error: &reqwest::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test]
async fn a_certificate_is_renewed_while_the_node_works() {
    let authority = Authority::new();
    authority.sign("server", &["127.0.0.1", "old.example"], false);
    let node = node_of(&authority, "server");
    let client = client_of(&authority, None);
    ready(&client, &node).await;
    assert!(node.log().contains("listening on https://"), "{}", node.log());
    // Plain HTTP is not answered.
    assert!(http_client(LONG).get(format!("{}/livez", node.base())).send().await.is_err());
    // What cannot be read leaves the former in force.
    let good = authority.text("server.pem");
    std::fs::write(authority.path("server.pem"), "no certificate").expect("written");
    eventually("it is told", LONG, async || {
        if node.log().contains("the former one stays in force") { Ok(()) } else { Err(node.log()) }
    })
    .await;
    assert!(node.log().contains("server.tls_certificate"), "{}", node.log());
    assert_eq!(get(&client, &node, "/livez").await.expect("an answer").0, 200);
    // A new one counts for the next connection.
    authority.sign("server", &["localhost"], false);
    assert_ne!(authority.text("server.pem"), good);
    eventually("it has the new one", LONG, async || match get(&client, &node, "/livez").await {
        Err(error) if why(&error).contains("not valid for name") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test]
async fn a_client_refuses_a_listener_that_is_not_who_it_should_be() {
    let authority = Authority::new();
    authority.sign("other", &["other.example"], false);
    authority.sign("expired", &["127.0.0.1"], true);
    let stranger = Authority::new();
    stranger.sign("server", &["127.0.0.1"], false);
    let client = client_of(&authority, None);
    for (node, words) in [
        (node_of(&authority, "other"), "not valid for name"),
        (node_of(&authority, "expired"), "expired"),
        (node_of(&stranger, "server"), "UnknownIssuer"),
    ] {
        eventually("it is refused", LONG, async || match get(&client, &node, "/livez").await {
            Err(error) if why(&error).contains(words) => Ok(()),
            other => Err(format!("{words}: {other:?}")),
        })
        .await;
    }
}

#[tokio::test]
async fn a_certificate_of_a_client_is_a_key() {
    let authority = Authority::new();
    authority.sign("server", &["127.0.0.1"], false);
    for name in ["shop", "nobody"] {
        authority.sign(name, &[name], false);
    }
    let stranger = Authority::new();
    stranger.sign("shop", &["shop"], false);
    let node = node_of(&authority, "server");
    let open = client_of(&authority, None);
    ready(&open, &node).await;
    let post = async |client: &Client, key: Option<&str>, body: &Value| {
        let mut request = client.post(format!("{}/v1/keys", base(&node))).json(body);
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let (status, first) =
        post(&open, None, &json!({"name": "ops", "namespace": "*", "scopes": ["admin"]})).await;
    assert_eq!(status, 201, "{first}");
    let admin = first["key"].as_str().expect("a key");
    let pem = authority.text("shop.pem");
    let wanted = json!({"name": "shop", "scopes": ["view"], "certificate": pem});
    let (status, made) = post(&open, Some(admin), &wanted).await;
    assert_eq!(status, 201, "{made}");
    let hash = certificate_hash(pem.as_bytes()).expect("a certificate");
    assert_eq!(made["certificate"], fingerprint(&hash));
    assert!(made.get("key").is_none(), "there is no other key: {made}");

    let shop = client_of(&authority, Some("shop"));
    assert_eq!(get(&shop, &node, "/v1/timers").await.expect("an answer").0, 200);
    assert_eq!(get(&shop, &node, "/v1/keys").await.expect("an answer").0, 404, "it may view");
    assert_eq!(
        get(&open, &node, "/v1/timers").await.expect("an answer").0,
        401,
        "without a certificate it takes a key"
    );
    let (status, problem) =
        get(&client_of(&authority, Some("nobody")), &node, "/v1/timers").await.expect("an answer");
    assert_eq!((status, &problem["code"]), (401, &json!("unknown_key")));
    // Another authority's certificate does not pass the handshake, whatever its name.
    let same_name = authority_client(&authority, &stranger);
    assert!(get(&same_name, &node, "/v1/timers").await.is_err());
    let id = made["id"].as_str().expect("an id");
    let revoked = open.delete(format!("{}/v1/keys/{id}", base(&node))).bearer_auth(admin).send().await;
    assert_eq!(revoked.expect("an answer").status().as_u16(), 200);
    assert_eq!(get(&shop, &node, "/v1/timers").await.expect("an answer").0, 401);
}

/// A client that trusts one authority, and shows the shop's certificate of another.
fn authority_client(trusted: &Authority, shown: &Authority) -> Client {
    std::fs::copy(shown.path("shop.pem"), trusted.path("foreign.pem")).expect("copied");
    std::fs::copy(shown.path("shop.key"), trusted.path("foreign.key")).expect("copied");
    client_of(trusted, Some("foreign"))
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_named_at_the_start() {
    let authority = Authority::new();
    authority.sign("server", &["127.0.0.1"], false);
    authority.sign("other", &["127.0.0.1"], false);
    let env = |certificate: &Path, key: &Path| {
        Node::builder()
            .env("MAINSPRING__SERVER__TLS_CERTIFICATE", certificate.display().to_string())
            .env("MAINSPRING__SERVER__TLS_KEY", key.display().to_string())
            .start()
    };
    let path = |name: &str| authority.path(name);
    for (node, setting) in [
        (env(&path("none.pem"), &path("server.key")), "server.tls_certificate"),
        (env(&path("server.key"), &path("server.key")), "server.tls_certificate"),
        (env(&path("server.pem"), &path("server.pem")), "server.tls_key"),
        (env(&path("server.pem"), &path("other.key")), "server.tls_key"),
        (Node::builder().env("MAINSPRING__SERVER__TLS_KEY", "x").start(), "server.tls_certificate"),
    ] {
        let exit = node.wait_exit(LONG).await.expect("it ends");
        assert_eq!(exit.code(), Some(2), "{}", node.log());
        assert!(node.log().contains(setting), "{setting}: {}", node.log());
    }
}

/// A connection with TLS on which HTTP/2 is to be spoken.
async fn encrypted(authority: &Authority, node: &Node) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(authority.text("ca.pem").as_bytes()).expect("a certificate");
    roots.add(ca).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let address = node.base().replace("http://", "");
    let tcp = TcpStream::connect(&address).await.expect("connects");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let tls =
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.expect("shakes hands");
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    tls
}

/// A connection of HTTP/2, as a client has it.
async fn http2(
    authority: &Authority,
    node: &Node,
) -> (h2::client::SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let tls = encrypted(authority, node).await;
    let (sender, connection) = h2::client::handshake(tls).await.expect("HTTP/2");
    (sender, tokio::spawn(connection))
}

fn asked(node: &Node, method: &str, path: &str) -> http::Request<()> {
    http::Request::builder().method(method).uri(format!("{}{path}", base(node))).body(()).expect("a request")
}

#[tokio::test]
async fn many_calls_go_over_one_connection_of_http2() {
    let authority = Authority::new();
    authority.sign("server", &["127.0.0.1"], false);
    let node = node_of(&authority, "server");
    ready(&client_of(&authority, None), &node).await;
    let (mut sender, _connection) = http2(&authority, &node).await;
    let mut answers = Vec::new();
    for n in 0..100 {
        sender = sender.ready().await.expect("it takes calls");
        let (answer, mut body) =
            sender.send_request(asked(&node, "PUT", &format!("/v1/timers/t{n}")), false).expect("sent");
        body.send_data(Bytes::from(super::later().to_string()), true).expect("sent");
        answers.push(answer);
    }
    for answer in answers {
        assert_eq!(answer.await.expect("an answer").status(), 201);
    }
    assert_eq!(
        get(&client_of(&authority, None), &node, "/v1/ledger").await.expect("an answer").1["registered"],
        100
    );
}

/// HTTP/2 names the host beside the path; a page of another site is known by it all the same.
#[tokio::test]
async fn an_open_server_answers_no_foreign_page_over_http2_either() {
    let authority = Authority::new();
    authority.sign("server", &["127.0.0.1"], false);
    let node = node_of(&authority, "server");
    ready(&client_of(&authority, None), &node).await;
    let (sender, _connection) = http2(&authority, &node).await;
    let mut sender = sender.ready().await.expect("it takes calls");
    for (origin, status) in [("https://evil.example".to_owned(), 403), (base(&node), 200)] {
        let (mut head, ()) = asked(&node, "GET", "/v1/timers").into_parts();
        head.headers.insert("origin", origin.parse().expect("a value"));
        let (answer, _) = sender.send_request(http::Request::from_parts(head, ()), true).expect("sent");
        assert_eq!(answer.await.expect("an answer").status(), status, "{origin}");
        sender = sender.ready().await.expect("it takes calls");
    }
}

/// Calls that are begun and taken back at once cost the server more than the client (CVE-2023-44487).
#[tokio::test]
async fn a_client_of_http2_that_takes_its_calls_back_again_and_again_is_disconnected() {
    let authority = Authority::new();
    authority.sign("server", &["127.0.0.1"], false);
    let node = node_of(&authority, "server");
    let client = client_of(&authority, None);
    ready(&client, &node).await;
    // Frames as RFC 9113 has them; no good client sends these.
    let frame = |kind: u8, flags: u8, stream: u32, body: &[u8]| {
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(body);
        bytes
    };
    let head = [b"\x82\x84\x87\x41\x09127.0.0.1".as_slice()].concat();
    let cancel = 8u32.to_be_bytes();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &[]));
    for call in (1..4000).step_by(2) {
        sent.extend(frame(1, 4, call, &head));
        sent.extend(frame(3, 0, call, &cancel));
    }
    let mut tls = encrypted(&authority, &node).await;
    let _ = tls.write_all(&sent).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(LONG, tls.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "the connection ends");
    // GOAWAY: the last call that was looked at, and the reason.
    let (mut rest, mut told) = (answer.as_slice(), None);
    while let [a, b, c, kind, _, _, _, _, _, more @ ..] = rest {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((body, after)) = more.split_at_checked(length) else { break };
        if *kind == 7 {
            told = body[4..].first_chunk().map(|code| u32::from_be_bytes(*code));
        }
        rest = after;
    }
    assert_eq!(told, Some(0xb), "it is told to calm down");
    assert_eq!(get(&client, &node, "/livez").await.expect("an answer").0, 200, "others are served");
}
