//! The networks of a namespace: where what it sends may go, asked at the registration and at each attempt.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::keys::{key, made};
use super::{LONG, now, quick, results, with};
use crate::support::{Api, Node, Receiver, Redis, eventually, fresh_database, in_state, on_both, shared_as};

/// Gives a namespace these networks; the first time it makes it.
async fn give(admin: &Api, networks: Value) {
    let terms = json!({ "networks": networks });
    let answer = admin.send(Method::PUT, "/v1/namespaces/team", &[], Some(&terms)).await;
    assert!(matches!(answer.status, 200 | 201), "{}", answer.body);
    let networks = &answer.body["networks"];
    assert!(networks["allow"].is_array() && networks["deny"].is_array(), "{networks}");
}

async fn team(node: &Node, admin: &Api) -> Api {
    node.api().with_key(made(admin, &key("team", "operate", "team")).await.1)
}

/// Why the last attempt of a timer came to nothing.
async fn why(api: &Api, id: &str) -> String {
    let (_, body) = api.get(&format!("/v1/timers/{id}/attempts")).await;
    body["items"]
        .as_array()
        .and_then(|items| items.last())
        .map_or_else(String::new, |one| one["detail"].to_string())
}

async fn a_team_sends_only_where_its_networks_say(builder: crate::support::NodeBuilder) {
    let (node, receiver) = (builder.start_ready().await, Receiver::start().await);
    let admin = node.api().with_key(made(&node.api(), &key("first", "admin", "*")).await.1);
    give(&admin, json!({})).await;
    let api = team(&node, &admin).await;
    let due = || with(now(receiver.url("/ok")), "retry", quick(1));
    let later = with(due(), "delay", json!("PT1H"));
    for id in ["before", "after"] {
        assert_eq!(api.put(id, &later).await.0, 201);
    }
    // Now there is a connection that could be used again.
    assert_eq!(api.put("first", &due()).await.0, 201);
    in_state(&api, "first", "delivered").await;

    give(&admin, json!({"deny": ["127.0.0.0/8"]})).await;
    let (status, refused) = api.put("new", &due()).await;
    assert_eq!((status, &refused["errors"][0]["pointer"]), (422, &json!("/target/webhook/url")), "{refused}");
    assert!(
        refused["errors"][0]["detail"].as_str().is_some_and(|text| text.contains("namespace")),
        "{refused}"
    );
    assert_eq!(api.post("/v1/timers/before/fire", &json!({})).await.0, 202);
    in_state(&api, "before", "dead").await;
    assert_eq!(results(&api, "before").await, ["refused"]);
    assert!(why(&api, "before").await.contains("namespace"), "{}", why(&api, "before").await);
    // Others send there as before.
    assert_eq!(admin.put("own", &due()).await.0, 201);
    in_state(&admin, "own", "delivered").await;

    give(&admin, json!({"allow": ["127.0.0.1"]})).await;
    assert_eq!(api.post("/v1/timers/after/fire", &json!({})).await.0, 202);
    in_state(&api, "after", "delivered").await;
    assert_eq!(receiver.received().len(), 3);
    let (status, refused) =
        api.put("public", &with(due(), "target", json!({"webhook": {"url": "http://1.1.1.1/"}}))).await;
    assert_eq!(status, 422, "{refused}: only what is listed");
}
on_both!(a_team_sends_only_where_its_networks_say);

#[tokio::test(flavor = "multi_thread")]
async fn a_change_holds_on_every_node() {
    let url = fresh_database().await;
    let one = Node::builder().cold(&url).name("one").start_ready().await;
    let two = Node::builder().cold(&url).name("two").start_ready().await;
    let receiver = Receiver::start().await;
    shared_as(&one.api(), &[("one", 32), ("two", 32)], LONG).await;
    let admin = one.api().with_key(made(&one.api(), &key("first", "admin", "*")).await.1);
    give(&admin, json!({})).await;
    eventually("the other node wants a key, too", LONG, async || {
        let status = two.api().get("/v1/timers").await.0;
        if status == 401 { Ok(()) } else { Err(status) }
    })
    .await;
    let api = team(&two, &admin).await;
    let due = || with(now(receiver.url("/ok")), "retry", quick(1));
    let ids: Vec<String> = (0..16).map(|n| format!("t{n}")).collect();
    for id in &ids {
        assert_eq!(api.put(id, &with(due(), "delay", json!("PT1H"))).await.0, 201);
    }
    give(&admin, json!({"deny": ["127.0.0.0/8"]})).await;
    // Promised are two seconds, to a node that gets the processor.
    eventually("the other node has heard of it", Duration::from_secs(10), async || {
        match api.put("new", &with(due(), "delay", json!("PT1H"))).await {
            (422, _) => Ok(()),
            (status, answer) => Err((status, api.delete("new").await, answer)),
        }
    })
    .await;
    let mut by = std::collections::BTreeSet::new();
    for id in &ids {
        assert_eq!(api.post(&format!("/v1/timers/{id}/fire"), &json!({})).await.0, 202);
        in_state(&api, id, "dead").await;
        assert_eq!(results(&api, id).await, ["refused"]);
        let (_, attempts) = api.get(&format!("/v1/timers/{id}/attempts")).await;
        by.insert(attempts["items"][0]["node"].as_str().expect("a node").to_owned());
    }
    assert_eq!(by.into_iter().collect::<Vec<_>>(), ["one", "two"], "each has refused some");
    assert_eq!(receiver.received().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_broker_ends_when_its_network_is_denied() {
    let (node, redis) = (Node::builder().start_ready().await, Redis::private().await);
    let admin = node.api().with_key(made(&node.api(), &key("first", "admin", "*")).await.1);
    give(&admin, json!({})).await;
    let api = team(&node, &admin).await;
    let place = json!({"redis_stream": {"url": redis.url(), "stream": "s"}});
    let answer = api.send(Method::PUT, "/v1/destinations/bus", &[], Some(&place)).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let tried = async || api.post("/v1/destinations/bus/test", &json!({})).await.1;
    assert_eq!(tried().await["result"], "ok");
    give(&admin, json!({"deny": ["127.0.0.1"]})).await;
    let refused = tried().await;
    assert_eq!(refused["result"], "refused", "{refused}");
    assert!(refused["detail"].as_str().is_some_and(|text| text.contains("namespace")), "{refused}");
    give(&admin, json!({})).await;
    eventually("it is connected again", LONG, async || {
        let answer = tried().await;
        if answer["result"] == "ok" { Ok(()) } else { Err(answer) }
    })
    .await;
}

/// A proxy that leads every name to one receiver. Returns its address, and what it was asked for.
async fn proxy(to: u16) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let noted = Arc::clone(&noted);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    if client.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let (line, rest) = head.split_once("\r\n").expect("a line");
                let url: url::Url =
                    line.split(' ').nth(1).and_then(|url| url.parse().ok()).expect("a whole URL");
                noted.lock().expect("unlocked").push(url.to_string());
                let mut server = TcpStream::connect(("127.0.0.1", to)).await.expect("the receiver");
                let head = format!("POST {} HTTP/1.1\r\nconnection: close\r\n{rest}", url.path());
                server.write_all(head.as_bytes()).await.expect("taken");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_leave_through_the_proxy_that_the_settings_name() {
    let receiver = Receiver::start().await;
    let port = receiver.url("/").parse::<url::Url>().expect("a URL").port().expect("a port");
    let (address, asked) = proxy(port).await;
    let node = Node::builder().env("MAINSPRING__WEBHOOK__PROXY", &address).start_ready().await;
    let api = node.api();
    // Only the proxy knows this name.
    let timer = with(now("http://shop.invalid/ok"), "retry", quick(1));
    assert_eq!(api.put("t", &timer).await.0, 201);
    in_state(&api, "t", "delivered").await;
    assert_eq!(*asked.lock().expect("unlocked"), ["http://shop.invalid/ok"]);
    assert_eq!(receiver.of("t").len(), 1);
    // What is an address is checked here all the same.
    let (status, refused) = api.put("inside", &now("http://10.0.0.1/")).await;
    assert_eq!(status, 422, "{refused}");
}

/// The proxy does not know whose webhook it is: for a namespace with networks names are resolved and checked here before.
#[tokio::test(flavor = "multi_thread")]
async fn the_networks_of_a_namespace_hold_in_front_of_the_proxy() {
    let receiver = Receiver::start().await;
    let (address, asked) = proxy(receiver.port()).await;
    let node = Node::builder().env("MAINSPRING__WEBHOOK__PROXY", &address).start_ready().await;
    let api = node.api();
    let put = async |path: &str, headers: &[(&str, &str)], body: &Value| {
        let answer = api.send(Method::PUT, path, headers, Some(body)).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
    };
    put("/v1/namespaces/here", &[], &json!({"networks": {"allow": ["127.0.0.0/8", "::1"]}})).await;
    let of = [("X-Mainspring-Namespace", "here")];
    let here = format!("http://localhost:{}/ok", receiver.port());
    // Only the proxy knows the other name.
    for (id, url, state) in
        [("known", here.as_str(), "delivered"), ("unknown", "http://shop.invalid/ok", "dead")]
    {
        let path = format!("/v1/timers/{id}");
        put(&path, &of, &with(now(url), "retry", quick(1))).await;
        eventually(state, LONG, async || {
            let found = api.send(Method::GET, &path, &of, None).await.body;
            if found["state"] == state { Ok(()) } else { Err(found) }
        })
        .await;
    }
    assert_eq!(*asked.lock().expect("unlocked"), [here]);
}
