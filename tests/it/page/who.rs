//! Who may see pages and send forms: keys, sessions, tokens, and where a request comes from.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainspring::admin::session::{IDLE, LONGEST, Session, Sessions};
use mainspring::config::{Config, Server};
use mainspring::model::time::UnixMs;
use mainspring::service::keys::Keys;
use reqwest::Method;
use serde_json::json;

use super::{KEY, Visitor, later};
use crate::support::{Node, wall_ms};

pub async fn keyed() -> Node {
    Node::builder().env("MAINSPRING__SERVER__API_KEYS", KEY).start_ready().await
}

const PAGES: [&str; 17] = [
    "/",
    "/timers",
    "/timers/t",
    "/timers/t/data",
    "/ahead",
    "/late",
    "/receivers",
    "/queues",
    "/nodes",
    "/operations",
    "/operations/1",
    "/audit",
    "/schedules",
    "/schedules/s",
    "/templates",
    "/templates/t",
    "/wheels/slot?due_after=2026-01-01T00:00:00Z",
];

#[tokio::test]
async fn without_a_session_every_page_leads_to_the_login() {
    let node = keyed().await;
    let visitor = Visitor::new(&node);
    for path in PAGES {
        let answer = visitor.get(path).await;
        let to: String = url::form_urlencoded::byte_serialize(path.as_bytes()).collect();
        assert_eq!(
            (answer.status, answer.header("location")),
            (303, Some(format!("/login?to={to}").as_str()))
        );
        assert!(!answer.text.contains("timer"), "{path} shows nothing");
    }
    let login = visitor.get("/login?to=%2Ftimers").await;
    assert_eq!((login.status, login.title()), (200, "Log in · Mainspring"));
    for asset in
        login.all("href").into_iter().chain(login.all("src")).filter(|path| path.starts_with("/assets/"))
    {
        assert_eq!(Visitor::new(&node).get(&asset).await.status, 200, "{asset} needs no session");
    }
    // A part that htmx asks for, and the stream, cannot show a login.
    let part = visitor.get_with("/banner", &[("hx-request", "true")]).await;
    assert_eq!((part.status, part.header("hx-redirect")), (401, Some("/login?to=%2Fbanner")));
    let stream = visitor.get_with("/wheels/stream", &[("accept", "text/event-stream")]).await;
    assert_eq!(stream.status, 401);
    // The key of the API opens no page, and a session opens no API.
    let bearer = visitor.get_with("/timers", &[("authorization", &format!("Bearer {KEY}"))]).await;
    assert_eq!(bearer.status, 303);
    let logged_in = Visitor::logged_in(&node, KEY).await;
    assert_eq!(logged_in.get("/v1/timers").await.status, 401);
}

#[tokio::test]
async fn a_key_opens_the_page_until_the_logout() {
    let node = keyed().await;
    let visitor = Visitor::new(&node);
    let wrong = visitor.log_in("another-key-0123456789").await;
    assert_eq!(wrong.status, 401);
    assert!(wrong.text.contains("This key is not known here."));
    assert_eq!(visitor.get("/timers").await.status, 303);

    let answer = visitor.log_in(KEY).await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("/timers")));
    let cookie = answer.header("set-cookie").expect("a cookie");
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age="] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "this is plain HTTP: {cookie}");
    assert!(!cookie.contains(KEY), "the key is not in it");
    assert_eq!(node.api().with_key(KEY).put("t", &later()).await.0, 201);
    for path in PAGES {
        let is_there = !["/operations/1", "/schedules/s", "/templates/t"].contains(&path);
        assert_eq!(visitor.get(path).await.status, if is_there { 200 } else { 404 }, "{path}");
    }
    let page = visitor.get("/timers").await;
    assert!(!page.text.contains(KEY) && page.text.contains("Log out"));
    let session = visitor.cookie("mainspring_session").expect("a session");
    let out = visitor.post("/logout", &[("token", page.token())]).await;
    assert_eq!((out.status, out.header("location")), (303, Some("/login")));
    assert_eq!(visitor.get("/timers").await.status, 303);
    visitor.set_cookie("mainspring_session", &session);
    assert_eq!(visitor.get("/timers").await.status, 303, "its cookie is of no use any more");
    assert!(!node.log().contains(KEY), "keys never reach the log");
}

/// A node whose store has a key of each scope: the visitors who have logged in with them.
async fn of_each_scope() -> (Node, Vec<(&'static str, Visitor)>) {
    let node = keyed().await;
    let admin = node.api().with_key(KEY);
    let mut visitors = Vec::new();
    for scope in ["view", "register", "operate"] {
        let (status, key) = admin.post("/v1/keys", &json!({"name": scope, "scopes": [scope]})).await;
        assert_eq!(status, 201, "{key}");
        visitors.push((scope, Visitor::logged_in(&node, key["key"].as_str().expect("a key")).await));
    }
    (node, visitors)
}

#[tokio::test]
async fn a_visitor_sees_the_namespace_of_his_key() {
    let node = keyed().await;
    let admin = node.api().with_key(KEY);
    let mut visitors = Vec::new();
    for name in ["team-a", "team-b"] {
        let made = admin.send(Method::PUT, &format!("/v1/namespaces/{name}"), &[], Some(&json!({}))).await;
        assert_eq!(made.status, 201, "{}", made.body);
        let key = json!({"name": name, "namespace": name, "scopes": ["operate"]});
        let (_, key) = admin.post("/v1/keys", &key).await;
        let text = key["key"].as_str().expect("a key");
        let api = node.api().with_key(text);
        let put = async |path: &str, body: serde_json::Value| {
            let answer = api.send(Method::PUT, &format!("/v1/{path}/of-{name}"), &[], Some(&body)).await;
            assert_eq!(answer.status, 201, "{}", answer.body);
        };
        put("timers", later()).await;
        put("queues", json!({})).await;
        put("templates", json!({"schema": true})).await;
        put("schedules", json!({"cron": "@yearly", "target": {"queue": "q"}})).await;
        visitors.push((name, Visitor::logged_in(&node, text).await));
    }
    for (n, (own, visitor)) in visitors.iter().enumerate() {
        let other = visitors[1 - n].0;
        for (path, is_there) in [
            ("/timers", true),
            ("/queues", true),
            ("/schedules", true),
            ("/templates", true),
            ("/late", false),
            ("/ahead", false),
            ("/operations", false),
            ("/audit", true),
        ] {
            let page = visitor.get(path).await;
            assert_eq!(page.status, 200, "{path}");
            assert_eq!(page.text.contains(&format!("of-{own}")), is_there, "{path}");
            assert!(!page.text.contains(other), "{path} tells {own} of {other}");
        }
        for kind in ["timers", "templates", "schedules"] {
            assert_eq!(visitor.get(&format!("/{kind}/of-{own}")).await.status, 200);
            assert_eq!(visitor.get(&format!("/{kind}/of-{other}")).await.status, 404, "{kind}");
        }
        assert_eq!(visitor.get("/nodes").await.status, 404);
    }
}

#[tokio::test]
async fn a_visitor_may_do_what_his_key_may_and_is_shown_no_more() {
    let (node, visitors) = of_each_scope().await;
    let api = node.api().with_key(KEY);
    assert_eq!(api.put("t", &later()).await.0, 201);
    let queue = json!({"delay": "PT1H", "target": {"queue": "reports"}});
    assert_eq!(api.put("q", &queue).await.0, 201);
    let schedule = json!({"cron": "@yearly", "target": {"queue": "reports"}});
    assert_eq!(api.send(Method::PUT, "/v1/schedules/s", &[], Some(&schedule)).await.status, 201);
    let forms = [
        ("/timers/t", "/act", &[("action", "pause"), ("id", "t")][..], "register"),
        ("/timers?owner=t", "/operations", &[("query", "owner=t"), ("action", "cancel")], "operate"),
        ("/queues", "/queues/reports/pause", &[], "operate"),
        ("/schedules/s", "/schedules/s/act", &[("action", "pause")], "operate"),
    ];
    let rank = |scope| ["view", "register", "operate"].iter().position(|one| *one == scope);
    for (scope, visitor) in &visitors {
        for (page, path, fields, takes) in forms {
            let shown = visitor.get(page).await;
            assert_eq!(shown.status, 200, "{page}");
            let may = rank(*scope) >= rank(takes);
            let offers = shown.text.contains(&format!("action=\"{path}\""));
            assert_eq!(offers, may, "{scope} {page} {path}: {}", shown.text);
            let fields = [fields, &[("token", shown.token())]].concat();
            let status = visitor.post(path, &fields).await.status;
            assert_eq!(status == 403, !may, "{scope} {path}: {status}");
            assert!(matches!(status, 200 | 303 | 403), "{scope} {path}: {status}");
        }
        let zone =
            [("token", visitor.get("/timers").await.token().to_owned()), ("zone", "Asia/Tokyo".into())];
        let zone: Vec<(&str, &str)> = zone.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(visitor.post("/zone", &zone).await.status, 303, "everybody has his time zone");
    }
    let (_, queue) = api.get("/v1/queues/reports").await;
    assert_eq!(queue["paused"], true, "by the operator alone");
}

#[tokio::test]
async fn what_is_of_the_service_as_a_whole_takes_a_key_of_all_namespaces() {
    let (node, visitors) = of_each_scope().await;
    let (_, of_one) = &visitors[2];
    let start = of_one.get("/").await;
    assert_eq!((start.status, start.header("location")), (303, Some("/timers")));
    for path in ["/nodes", "/receivers", "/wheels/table", "/wheels/stream"] {
        assert_eq!(of_one.get(path).await.status, 404, "{path}");
    }
    let shown = of_one.get("/timers").await.text;
    assert!(!shown.contains("href=\"/nodes\"") && shown.contains("href=\"/queues\""));
    let of_all = Visitor::logged_in(&node, KEY).await;
    assert_eq!(of_all.get("/nodes").await.status, 200);
    // A certificate is public, and so opens no page, though it may be a key.
    let pem = rcgen::generate_simple_self_signed(["shop".to_owned()]).expect("a certificate").cert.pem();
    let wanted = json!({"name": "c", "scopes": ["admin"], "namespace": "*", "certificate": pem});
    let api = node.api().with_key(KEY);
    let (status, made) = api.post("/v1/keys", &wanted).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(api.post("/v1/keys", &wanted).await.0, 409, "it is one key, and not two");
    let forged = forged(&pem, made["id"].as_str().expect("an id"));
    of_one.set_cookie("mainspring_session", &forged);
    assert_eq!(of_one.get("/timers").await.status, 303);
}

/// The cookie of a session that is signed by what everybody knows of a certificate.
fn forged(pem: &str, id: &str) -> String {
    use hmac::Mac;
    let mac = |key: &[u8], message: &[u8]| -> Vec<u8> {
        let mut signer = hmac::Hmac::<sha2::Sha256>::new_from_slice(key).expect("a key");
        signer.update(message);
        signer.finalize().into_bytes().to_vec()
    };
    let hash = mainspring::service::keys::certificate_hash(pem.as_bytes()).expect("a certificate");
    let number = mainspring::model::key::KeyId::parse(id).expect("an id").get();
    let (from, until) = (wall_ms(), wall_ms() + 600_000);
    let mut body: Vec<u8> = [from.to_be_bytes(), until.to_be_bytes()].concat();
    body.extend([7; 16]);
    body.extend(number.to_be_bytes());
    let signature = mac(&mac(&mac(&hash, b"mainspring page session"), b""), &body);
    body.extend(signature);
    base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, body)
}

#[tokio::test]
async fn the_audit_shows_who_did_what_on_the_page_to_whoever_may_operate() {
    let (node, visitors) = of_each_scope().await;
    let api = node.api().with_key(KEY);
    assert_eq!(api.put("t", &later()).await.0, 201);
    let (viewer, register, operator) = (&visitors[0].1, &visitors[1].1, &visitors[2].1);
    let form = register.get("/timers/t").await;
    let fields = [("token", form.token()), ("action", "cancel"), ("id", "t"), ("version", "1")];
    assert_eq!(register.post("/act/now", &fields).await.status, 200);
    for visitor in [viewer, register] {
        assert_eq!(visitor.get("/audit").await.status, 403);
        assert!(!visitor.get("/timers").await.text.contains("href=\"/audit\""));
    }
    let page = operator.get("/audit").await;
    assert_eq!(page.status, 200);
    for shown in ["timer.cancel", "register", "127.0.0.1"] {
        assert!(page.text.contains(shown), "{shown} in {}", page.text);
    }
    assert!(!page.text.contains("key.make"), "of keys it takes `admin`");
    let all = Visitor::logged_in(&node, KEY).await.get("/audit").await.text;
    assert!(all.contains("key.make") && all.contains("(server.api_keys)"), "{all}");
    let of_one = operator.get("/audit?actor=register&action=timer").await;
    assert!(of_one.text.contains("timer.cancel") && !of_one.text.contains("key.make"));
    assert!(operator.get("/audit?actor=nobody").await.text.contains("Nothing matches."));
    let (_, audit) = api.get("/v1/audit?action=timer.cancel").await;
    let row = &audit["items"][0];
    assert_eq!((&row["name"], &row["object"]), (&json!("register"), &json!("t")), "{row}");
    assert_eq!(row["after"]["timers"], json!(["t"]));
}

#[tokio::test]
async fn a_session_ends_when_its_key_is_revoked() {
    let (node, visitors) = of_each_scope().await;
    let api = node.api().with_key(KEY);
    let (_, keys) = api.get("/v1/keys").await;
    let of_viewer = keys["items"].as_array().expect("items").iter().find(|key| key["name"] == "view");
    let id = of_viewer.expect("it is listed")["id"].as_str().expect("an id");
    let (viewer, operator) = (&visitors[0].1, &visitors[2].1);
    assert_eq!(viewer.get("/timers").await.status, 200);
    assert_eq!(api.send(Method::DELETE, &format!("/v1/keys/{id}"), &[], None).await.status, 200);
    assert_eq!(viewer.get("/timers").await.status, 303);
    assert_eq!(operator.get("/timers").await.status, 200);
}

#[tokio::test]
async fn logins_are_slowed_after_failures_and_only_so_many_are_tried_at_once() {
    let node = keyed().await;
    let stranger = Visitor::new(&node);
    for _ in 0..5 {
        assert_eq!(stranger.log_in("wrong-key-0123456789").await.status, 401);
    }
    let began = Instant::now();
    assert_eq!(stranger.log_in("wrong-key-0123456789").await.status, 401);
    assert!(began.elapsed() >= Duration::from_secs(1), "it is answered late");
    let tries = futures::future::join_all((0..12).map(|_| stranger.log_in("wrong-key-0123456789"))).await;
    let statuses: Vec<u16> = tries.iter().map(|page| page.status).collect();
    assert!(statuses.contains(&401) && statuses.contains(&429), "{statuses:?}");
    let refused = tries.iter().find(|page| page.status == 429).expect("one");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Who has a key gets in.
    let visitor = Visitor::logged_in(&node, KEY).await;
    assert_eq!(visitor.get("/timers").await.status, 200);
}

#[tokio::test]
async fn behind_a_proxy_that_speaks_tls_the_cookie_is_for_tls_alone() {
    let node = keyed().await;
    let answer = Visitor::new(&node).get_with("/login", &[("x-forwarded-proto", "https")]).await;
    assert!(answer.header("set-cookie").expect("a cookie").ends_with("; Secure"));
}

#[tokio::test]
async fn a_session_ends_by_itself() {
    let node = keyed().await;
    let server = Server { api_keys: vec![KEY.into()], ..Config::default().server };
    let keys = Arc::new(Keys::new(&server));
    let sessions = Sessions::new(Arc::clone(&keys), [0; 32], b"");
    let caller = keys.find_in_settings(KEY);
    assert!(caller.is_some());
    let begun = |ago: Duration| {
        let at = UnixMs::new(wall_ms() - i64::try_from(ago.as_millis()).expect("a short time"));
        sessions.begin(caller, at, [ago.as_secs() as u8; 16])
    };
    let visitor = Visitor::new(&node);
    let status = async |session: &Session| {
        visitor.set_cookie("mainspring_session", &sessions.cookie(session));
        visitor.get("/timers").await
    };
    let young = status(&begun(Duration::from_secs(60))).await;
    assert_eq!((young.status, young.header("set-cookie")), (200, None));
    // It goes on while pages are asked for: the cookie is renewed.
    let older = begun(IDLE / 2);
    let renewed = status(&older).await;
    assert_eq!(renewed.status, 200);
    assert_ne!(visitor.cookie("mainspring_session"), Some(sessions.cookie(&older)));
    assert_eq!(status(&begun(IDLE + Duration::from_secs(5))).await.status, 303);
    let mut long = begun(LONGEST - IDLE / 2);
    for _ in 0..200 {
        let Some(later) = sessions.renewed(&long, UnixMs::new(wall_ms())) else { break };
        long = later;
    }
    assert_eq!(status(&long).await.status, 200);
    // Under another key it is no session.
    let other = Server { api_keys: vec!["another-key-0123456789".into()], ..Config::default().server };
    let other = Arc::new(Keys::new(&other));
    let foreign = Sessions::new(Arc::clone(&other), [0; 32], b"");
    let caller = other.find_in_settings("another-key-0123456789");
    let session = foreign.begin(caller, UnixMs::new(wall_ms()), [1; 16]);
    visitor.set_cookie("mainspring_session", &foreign.cookie(&session));
    assert_eq!(visitor.get("/timers").await.status, 303);
}

#[tokio::test]
async fn a_link_of_another_site_leads_on_with_the_session() {
    let node = keyed().await;
    let visitor = Visitor::new(&node);
    // A browser does not send the cookie of a strict site with a link of another.
    let headers = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    let bounce = visitor.get_with("/timers?state=dead", &headers).await;
    assert_eq!((bounce.status, bounce.header("set-cookie")), (200, None), "who is logged in stays so");
    assert!(
        bounce.text.contains("http-equiv=\"refresh\" content=\"0;url=/timers?state=dead\""),
        "{}",
        bounce.text
    );
    let login = visitor.get_with("/timers?state=dead", &[("sec-fetch-site", "same-origin")]).await;
    assert_eq!(login.status, 303);
}

/// Every form that changes something, with fields that would do it.
const FORMS: [(&str, &[(&str, &str)]); 3] = [
    ("/act/now", &[("action", "cancel"), ("id", "t"), ("version", "1")]),
    ("/act", &[("action", "cancel"), ("id", "t")]),
    ("/zone", &[("zone", "Asia/Shanghai")]),
];

async fn forms_of_others_are_refused(node: &Node, visitor: &Visitor, other: &Visitor) {
    let token = visitor.get("/timers").await.token().to_owned();
    let others = other.get("/timers").await.token().to_owned();
    assert_ne!(token, others);
    let own = node.base();
    for (path, fields) in FORMS {
        let with = |token: &'static str| token;
        let _ = with;
        let all = |token: &str| {
            let mut all: Vec<(String, String)> =
                fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            all.push(("token".to_owned(), token.to_owned()));
            all
        };
        let post = async |token: &str, headers: &[(&str, &str)]| {
            let fields = all(token);
            let fields: Vec<(&str, &str)> =
                fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            visitor.post_with(path, &fields, headers).await
        };
        for headers in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "null")],
            &[("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")],
            // Another port of this machine is the same site.
            &[("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:1")],
        ] {
            let answer = post(&token, headers).await;
            assert_eq!(answer.status, 403, "{path} {headers:?}");
        }
        for (token, why) in [("", "none"), ("x", "made up"), (others.as_str(), "another session's")] {
            let answer = post(token, &[("origin", &own)]).await;
            assert_eq!(answer.status, 403, "{path}: a token that is {why}");
        }
        let bare = visitor.post_with(path, fields, &[("origin", &own)]).await;
        assert_eq!(bare.status, 403, "{path}: no token");
        let stranger = Visitor::new(node).post_with(path, &[("token", &token)], &[("origin", &own)]).await;
        assert!(matches!(stranger.status, 401 | 403), "{path}: no session: {}", stranger.status);
        assert_eq!(node.api().with_key(KEY).timer("t").await.1["state"], "scheduled", "nothing was done");
        let answer = post(&token, &[("origin", &own)]).await;
        assert!(matches!(answer.status, 200 | 303), "{path}: its own form: {}", answer.status);
        if path == "/act/now" {
            assert_eq!(node.api().with_key(KEY).timer("t").await.1["state"], "cancelled");
            assert_eq!(node.api().with_key(KEY).put("t?again=true", &later()).await.0, 201);
        }
    }
}

#[tokio::test]
async fn forms_of_others_are_refused_with_keys() {
    let node = keyed().await;
    assert_eq!(node.api().with_key(KEY).put("t", &later()).await.0, 201);
    let (visitor, other) = (Visitor::logged_in(&node, KEY).await, Visitor::logged_in(&node, KEY).await);
    forms_of_others_are_refused(&node, &visitor, &other).await;
    // A login needs the token of its own form too.
    let stranger = Visitor::new(&node);
    let form = stranger.get("/login").await;
    let answer = Visitor::new(&node).post("/login", &[("token", form.token()), ("key", KEY)]).await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn forms_of_others_are_refused_on_an_open_server() {
    let node = Node::builder().start_ready().await;
    assert_eq!(node.api().put("t", &later()).await.0, 201);
    let (visitor, other) = (Visitor::new(&node), Visitor::new(&node));
    forms_of_others_are_refused(&node, &visitor, &other).await;
}

#[tokio::test]
async fn an_open_server_shows_no_page_under_a_foreign_name() {
    let node = Node::builder().start_ready().await;
    let visitor = Visitor::new(&node);
    for path in ["/", "/timers", "/wheels/stream", "/banner", "/login"] {
        for header in [("host", "evil.example"), ("origin", "https://evil.example")] {
            assert_eq!(visitor.get_with(path, &[header]).await.status, 403, "{path} {header:?}");
        }
    }
    assert_eq!(visitor.get("/login").await.header("location"), Some("/"), "there is nothing to log in to");
}

#[tokio::test]
async fn pages_are_calls_of_their_namespace() {
    let node = keyed().await;
    let api = node.api().with_key(KEY);
    let terms = json!({"quotas": {"requests_per_second": 1}});
    let put = api.send(Method::PUT, "/v1/namespaces/busy", &[], Some(&terms)).await;
    assert_eq!(put.status, 201, "{}", put.body);
    let (status, made) =
        api.post("/v1/keys", &json!({"name": "v", "scopes": ["view"], "namespace": "busy"})).await;
    assert_eq!(status, 201, "{made}");
    let visitor = Visitor::logged_in(&node, made["key"].as_str().expect("a key")).await;
    let all = crate::support::eventually("the quota is used up", Duration::from_secs(10), async || {
        let page = visitor.get("/late").await;
        if page.status == 429 { Ok(page) } else { Err(page.status) }
    })
    .await;
    assert!(all.header("retry-after").is_some_and(|seconds| seconds != "0"), "{}", all.text);
    let of_all = Visitor::logged_in(&node, KEY).await;
    for _ in 0..5 {
        assert_eq!(of_all.get("/late").await.status, 200);
    }
}
