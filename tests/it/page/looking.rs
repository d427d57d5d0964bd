//! What pages show: titles, the policy, lists as addresses, user text as text, and what goes wrong.

use std::collections::{BTreeSet, VecDeque};

use reqwest::Method;
use serde_json::json;

use super::{NOWHERE, Page, Visitor};
use crate::support::{Node, NodeBuilder, Receiver, Redis, Reply, eventually, in_state, on_both, to};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Nothing in a page is script or style by itself, and everything that it loads is this server's.
#[track_caller]
fn is_strict(page: &Page) {
    assert_eq!(page.header("content-security-policy"), Some(POLICY));
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    for tag in page.text.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap_or_default();
        let name = tag.split_whitespace().next().unwrap_or_default();
        assert!(name != "style", "inline style");
        assert!(name != "script" || tag.contains(" src=\"/assets/"), "inline script: {tag}");
        // What stands between quotes is a value.
        let outside: String = tag.split('"').step_by(2).collect();
        for name in outside.split_whitespace().skip(1).filter_map(|part| part.split('=').next()) {
            assert!(name != "style" && !name.starts_with("on") && !name.starts_with("hx-on"), "{tag}");
        }
    }
    for address in page.all("href").into_iter().chain(page.all("src")) {
        assert!(
            address.starts_with(['/', '#']) && !address.starts_with("//"),
            "{address} is not of this server"
        );
    }
}

async fn every_page_answers_and_every_link_leads_to_one(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver, visitor) = (node.api(), Receiver::start().await, Visitor::new(&node));
    let broken = Receiver::start().await;
    for n in 0..3 {
        let timer = json!({"delay": format!("PT{}S", 30 + n * 40), "owner": "user:1", "labels": {"app": "shop"},
            "target": to(NOWHERE)});
        assert_eq!(api.put(&format!("waits-{n}"), &timer).await.0, 201);
    }
    let failing = json!({"delay": "PT0S", "target": to(broken.url("/status/500")),
        "retry": {"attempts": 2, "first": "PT0.01S"}});
    assert_eq!(api.put("fails", &failing).await.0, 201);
    assert_eq!(api.put("goes", &json!({"delay": "PT0S", "target": to(receiver.url("/ok"))})).await.0, 201);
    in_state(&api, "fails", "dead").await;
    in_state(&api, "goes", "delivered").await;

    for (path, title) in [
        ("/", "On time."),
        ("/timers", "Timers"),
        ("/timers/waits-0", "waits-0 · scheduled"),
        ("/timers/fails", "fails · dead"),
        ("/ahead", "Peak ahead: "),
        ("/late", "Nothing is overdue. 0 retrying, 1 dead within a day."),
        ("/receivers", "One receiver is failing"),
        ("/nodes", "One node, every shard owned"),
    ] {
        let page = visitor.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        assert!(page.title().starts_with(title), "{path}: {}", page.title());
        is_strict(&page);
    }
    // From page to page, wherever a link leads.
    let (mut seen, mut next) = (BTreeSet::new(), VecDeque::from(["/".to_owned()]));
    while let Some(path) = next.pop_front() {
        let own = path.split('#').next().unwrap_or_default().to_owned();
        let foreign = own.is_empty() || own.starts_with("/docs") || own.starts_with("/metrics");
        if foreign || !seen.insert(own.clone()) {
            continue;
        }
        let page = visitor.get(&own).await;
        assert_eq!(page.status, 200, "{own}");
        if own.starts_with("/assets/") {
            assert_eq!(page.header("cache-control"), Some("public, max-age=31536000, immutable"));
            assert_eq!(page.header("content-security-policy"), Some(POLICY));
        } else {
            is_strict(&page);
            next.extend(page.all("href").into_iter().chain(page.all("src")));
        }
        // Every bar of a chart is a list of its own; a few of them will do.
        assert!(seen.len() < 1000, "the pages go on for ever");
        next.retain(|path| !path.starts_with("/timers?due_after") || seen.len() < 60);
    }
    assert!(seen.iter().any(|path| path.ends_with(".js")) && seen.len() > 20, "{seen:?}");
}

#[tokio::test]
async fn an_empty_service_teaches_a_call_that_works() {
    let node = Node::builder().start_ready().await;
    let visitor = Visitor::new(&node);
    let mut calls = Vec::new();
    for path in ["/", "/timers", "/ahead", "/receivers"] {
        let page = visitor.get(path).await;
        let call = page.between("<pre id=\"try\">", "</pre>").replace("&#34;", "\"").replace("&#39;", "'");
        assert!(call.starts_with(&format!("curl -X PUT {}/v1/timers/tea", node.base())), "{path}: {call}");
        calls.push(call);
    }
    for call in calls {
        let ran = std::process::Command::new("bash")
            .args(["-c", &format!("{call} --silent --noproxy '*'")])
            .output();
        let ran = ran.expect("bash runs");
        assert!(String::from_utf8_lossy(&ran.stdout).contains("\"id\":\"tea\""), "{ran:?}");
    }
}

#[tokio::test]
async fn a_search_is_its_address() {
    let node = Node::builder().start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    for (id, owner, app, port) in
        [("a", "user:1", "shop", 9), ("b", "user:2", "shop", 10), ("c", "user:1", "mail", 9)]
    {
        let timer = json!({"delay": "PT1H", "owner": owner, "labels": {"app": app},
            "target": to(format!("http://127.0.0.1:{port}/x"))});
        assert_eq!(api.put(id, &timer).await.0, 201);
    }
    assert_eq!(api.delete("c").await.0, 200);
    let found = async |path: &str| {
        let page = visitor.get(path).await;
        assert_eq!(page.status, 200, "{path}");
        let ids =
            page.all("href").into_iter().filter_map(|href| Some(href.strip_prefix("/timers/")?.to_owned()));
        ids.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
    };
    for (query, ids) in [
        ("", "a b c"),
        ("?owner=user%3A1", "a c"),
        ("?label.app=shop", "a b"),
        ("?state=cancelled", "c"),
        ("?receiver=http%3A%2F%2F127.0.0.1%3A10", "b"),
        ("?id=a&id=c", "a c"),
        ("?owner=user%3A1&state=scheduled", "a"),
        ("?due_before=2026-01-01T00%3A00%3A00.000Z", ""),
    ] {
        assert_eq!(found(&format!("/timers{query}")).await, ids, "{query}");
    }
    // As the form sends it.
    let form = "/timers?id=&owner=user%3A1&label=app%3Dshop&state=&receiver=&due_after=2026-01-01T09%3A00&due_before=";
    let answer = visitor.get(form).await;
    let address = "/timers?owner=user%3A1&label.app=shop&due_after=2026-01-01T09%3A00%3A00.000Z";
    assert_eq!((answer.status, answer.header("location")), (303, Some(address)));
    assert_eq!(found(address).await, "a");
    let page = visitor.get("/timers?state=lost").await;
    assert!(page.text.contains("lost is no state of a timer."));
}

#[tokio::test]
async fn a_long_list_has_pages() {
    let node = Node::builder().start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    let timers: Vec<_> = (0..150)
        .map(|n| json!({"id": format!("listed-{n}"), "delay": "PT1H", "target": to(NOWHERE)}))
        .collect();
    crate::support::register(&api, &timers).await;
    let first = visitor.get("/timers").await;
    assert_eq!(first.all("value").iter().filter(|value| value.starts_with("listed-")).count(), 100);
    let next = first.all("href").into_iter().find(|href| href.contains("cursor=")).expect("a next page");
    let second = visitor.get(&next).await;
    assert_eq!(second.all("value").iter().filter(|value| value.starts_with("listed-")).count(), 50);
    assert!(second.text.contains(">First page</a>") && !second.text.contains(">Next page</a>"));
}

#[tokio::test]
async fn what_users_write_is_shown_as_text() {
    let node = Node::builder().start_ready().await;
    let (api, receiver, visitor) = (node.api(), Receiver::start().await, Visitor::new(&node));
    let evil = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>";
    receiver.on("/evil", move |_| Reply::status(500).body(evil));
    let timer = json!({"delay": "PT0S", "owner": evil, "labels": {"a": evil}, "data": {"x": format!("</pre>{evil}")},
        "target": {"webhook": {"url": receiver.url("/evil?<script>alert(2)</script>"), "headers": {"x-a": "<b>"}}},
        "retry": {"attempts": 1}});
    receiver.on("/evil?%3Cscript%3Ealert(2)%3C/script%3E", move |_| Reply::status(500).body(evil));
    assert_eq!(api.put("evil", &timer).await.0, 201);
    in_state(&api, "evil", "dead").await;
    let owner: String = url::form_urlencoded::byte_serialize(evil.as_bytes()).collect();
    for path in [
        "/timers?due_after=1970-01-01T00%3A00%3A00.000Z".to_owned(),
        "/timers/evil".to_owned(),
        "/timers/evil?show=data".to_owned(),
        "/timers/evil/data".to_owned(),
        format!("/timers?owner={owner}"),
        format!("/timers?state={owner}"),
        format!("/timers/{owner}"),
        format!("/timers?{owner}=x"),
        "/late".to_owned(),
        "/receivers".to_owned(),
    ] {
        let page = visitor.get(&path).await;
        assert!(!page.text.contains("<script>alert") && !page.text.contains("<img"), "{path}: {}", page.text);
        let shows_it = page.text.contains("alert");
        assert!(shows_it || !path.starts_with("/timers"), "{path} shows it: {}", page.text);
        is_strict(&page);
    }
    let shown = visitor.get("/timers/evil?show=data").await;
    assert!(shown.text.contains("&#60;/pre&#62;") || shown.text.contains("&lt;/pre&gt;"), "{}", shown.text);
}

#[tokio::test]
async fn data_is_shown_on_demand_only() {
    let node = Node::builder().start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    let timer = json!({"delay": "PT1H", "data": {"private": "Jo's diary"},
        "target": {"webhook": {"url": NOWHERE, "secret": "whsec_c2VjcmV0"}}});
    assert_eq!(api.put("t", &timer).await.0, 201);
    let page = visitor.get("/timers/t").await;
    assert!(!page.text.contains("diary"), "not by itself");
    for path in ["/timers/t?show=data", "/timers/t/data"] {
        let page = visitor.get(path).await;
        let call = page
            .between("<pre id=\"again\" tabindex=\"0\">", "</pre>")
            .replace("&#34;", "\"")
            .replace("&#39;", "'");
        assert!(call.contains("\"private\""), "{call}");
        assert!(!page.text.contains("c2VjcmV0"), "the secret is never shown");
        // The call can be run as it is: while the timer is live, the same id with another secret is taken.
        let ran = std::process::Command::new("bash")
            .args(["-c", &format!("{call} --silent --noproxy '*'")])
            .output();
        let ran = String::from_utf8_lossy(&ran.expect("bash runs").stdout).into_owned();
        assert!(ran.contains("bad_webhook") || ran.contains("id_taken"), "{ran}");
    }
}

#[tokio::test]
async fn the_picture_stands_in_the_page_also_without_script() {
    let node = Node::builder().start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    // One moment for all, so that they are in one slot; one prefix that no form's token begins with.
    let at = crate::support::rfc3339(crate::support::wall_ms() + 1_800_000);
    let timers: Vec<_> =
        (0..5).map(|n| json!({"id": format!("slot-{n}"), "fire_at": at, "target": to(NOWHERE)})).collect();
    crate::support::register(&api, &timers).await;
    let page = eventually("the wheel holds them", std::time::Duration::from_secs(10), async || {
        let page = visitor.get("/").await;
        if page.text.contains("5 timers\"") { Ok(page) } else { Err(page.text) }
    })
    .await;
    let slot = page.all("href").into_iter().find(|href| {
        href.starts_with("/timers?due_after=") && {
            let label = page.text.split(&href.replace('&', "&#38;")).nth(1);
            label.is_some_and(|rest| rest.starts_with("\" aria-label=") && rest.contains("5 timers"))
        }
    });
    let listed = visitor.get(&slot.expect("a slot that leads to its timers")).await;
    assert_eq!(listed.all("value").iter().filter(|value| value.starts_with("slot-")).count(), 5);
    // The table beside it has the same.
    let table = page.between("<div id=\"slots\"", "</div>");
    assert!(table.contains(">5</td>") && table.contains("waits for its time"), "{table}");
    let slots = visitor.get("/wheels/table").await;
    assert!(slots.status == 200 && slots.text.contains(">5</td>"), "{}", slots.text);
}

#[tokio::test]
async fn what_does_not_work_is_said_on_every_page() {
    let redis = Redis::private().await;
    let node = Node::builder().hot(redis.url()).start_ready().await;
    let visitor = Visitor::new(&node);
    let words = "The wheels are away";
    for path in ["/timers", "/ahead", "/late", "/receivers", "/nodes", "/banner"] {
        assert!(!visitor.get(path).await.text.contains(words), "{path}");
    }
    redis.kill().await;
    eventually("it is said", std::time::Duration::from_secs(20), async || {
        let text = visitor.get("/banner").await.text;
        if text.contains(words) { Ok(()) } else { Err(text) }
    })
    .await;
    for path in ["/timers", "/ahead", "/late", "/receivers", "/nodes"] {
        let page = visitor.get(path).await;
        assert!(page.status == 200 && page.text.contains(words), "{path}");
    }
    let page = visitor.get("/").await;
    assert!(page.text.contains("data-redis=\"away\""), "{}", page.text);
    assert!(!page.between("data-degraded=\"redis\"", "</p>").contains("hidden"), "{}", page.text);
}

async fn what_a_paused_destination_keeps_is_not_overdue(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    for name in ["kept", "other"] {
        let hook = json!({"webhook": {"url": NOWHERE}});
        let path = format!("/v1/destinations/{name}");
        assert_eq!(api.send(Method::PUT, &path, &[], Some(&hook)).await.status, 201);
    }
    assert_eq!(api.send(Method::POST, "/v1/destinations/kept/pause", &[], None).await.status, 200);
    let due = crate::support::rfc3339(crate::support::wall_ms() - 60_000);
    for n in 0..3 {
        let timer = json!({"fire_at": due, "target": {"destination": "kept"}});
        assert_eq!(api.put(&format!("kept-{n}"), &timer).await.0, 201);
    }
    let page = visitor.get("/late").await;
    assert!(page.title().starts_with("Nothing is late, and nothing died"), "{}", page.title());
    let kept = page.between("id=\"kept\"", "</section>");
    assert!(kept.contains(">kept</a>") && kept.contains(">3</a>"), "{kept}");
    assert!(page.between("id=\"overdue\"", "</section>").contains("None."), "{}", page.text);
    is_strict(&page);
}

#[tokio::test]
async fn a_node_that_waits_for_its_store_says_so() {
    let node = Node::builder().cold("postgres://nobody@127.0.0.1:9/none").hot("memory://").start();
    let visitor = Visitor::new(&node);
    let api = node.api();
    eventually("it listens", std::time::Duration::from_secs(20), async || {
        api.try_send(reqwest::Method::GET, "/livez", &[], None).await
    })
    .await;
    for path in ["/", "/timers", "/nodes"] {
        let page = visitor.get(path).await;
        assert_eq!((page.status, page.title()), (503, "Starting · Mainspring"), "{path}");
        assert!(page.text.contains("has not answered since this node was started"));
        is_strict(&page);
    }
    assert_eq!(visitor.get("/wheels/stream").await.status, 503);
}

#[tokio::test]
async fn times_are_those_of_the_readers_zone() {
    let node = Node::builder().start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    let timer = json!({"fire_at": "2099-12-01T01:00:00Z", "target": to(NOWHERE)});
    assert_eq!(api.put("t", &timer).await.0, 201);
    let page = visitor.get("/timers").await;
    assert!(page.text.contains(">2099-12-01 01:00:00</time>") && page.text.contains("Times are UTC"));
    let set =
        visitor.post("/zone", &[("token", page.token()), ("zone", "Asia/Shanghai"), ("to", "/timers")]).await;
    assert_eq!((set.status, set.header("location")), (303, Some("/timers")));
    let page = visitor.get("/timers").await;
    assert!(
        page.text.contains(">2099-12-01 09:00:00</time>") && page.text.contains("Times are Asia/Shanghai")
    );
    let found = visitor.get("/timers?due_after=2099-12-01T09%3A00").await;
    assert_eq!(found.header("location"), Some("/timers?due_after=2099-12-01T01%3A00%3A00.000Z"));
    let none = visitor.post("/zone", &[("token", page.token()), ("zone", "Asia/Shanghi"), ("to", "/")]).await;
    assert_eq!(none.status, 422);
    assert!(none.text.contains("There is no time zone Asia/Shanghi"), "{}", none.text);
    let away =
        visitor.post("/zone", &[("token", page.token()), ("zone", "UTC"), ("to", "//evil.example")]).await;
    assert_eq!(away.header("location"), Some("/"), "a form leads to no other server");
    let nowhere = node.api().send(Method::GET, "/nosuchpage", &[("accept", "text/html,*/*")], None).await;
    assert_eq!(nowhere.status, 404);
    assert!(nowhere.body.as_str().is_some_and(|page| page.contains("There is no such page")), "{nowhere:?}");
}

#[tokio::test]
async fn a_timer_that_is_not_there_is_said_to_be() {
    let node = Node::builder().start_ready().await;
    let page = Visitor::new(&node).get("/timers/none").await;
    assert_eq!((page.status, page.heading().as_str()), (404, "No such timer"));
    is_strict(&page);
}

#[tokio::test]
async fn the_live_picture_is_a_stream() {
    let node = Node::builder().start_ready().await;
    let client = crate::support::http_client(std::time::Duration::from_secs(30));
    let answer = client.get(format!("{}/wheels/stream", node.base())).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut answer = answer;
    let mut text = String::new();
    while !text.contains("event: delta") {
        let chunk = answer.chunk().await.expect("a chunk").expect("it goes on");
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(text.starts_with("event: full\ndata: {\"now\":"), "{text}");
}

on_both!(every_page_answers_and_every_link_leads_to_one, what_a_paused_destination_keeps_is_not_overdue);
