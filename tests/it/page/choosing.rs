//! Which namespace pages are about, for who may choose.

use reqwest::Method;
use serde_json::json;

use super::who::keyed;
use super::{KEY, Page, Visitor, later};

#[tokio::test]
async fn a_visitor_with_a_key_of_all_chooses_the_namespace_that_pages_are_about() {
    let node = keyed().await;
    let admin = node.api().with_key(KEY);
    let chooser = Visitor::logged_in(&node, KEY).await;
    assert!(
        !chooser.get("/timers").await.text.contains("action=\"/namespace\""),
        "there is nothing to choose"
    );
    let made = admin.send(Method::PUT, "/v1/namespaces/team-a", &[], Some(&json!({}))).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let in_a = [("x-mainspring-namespace", "team-a")];
    for (id, headers) in [("both", &in_a[..]), ("of-team-a", &in_a), ("both", &[]), ("of-nobody", &[])] {
        let put = admin.send(Method::PUT, &format!("/v1/timers/{id}"), headers, Some(&later())).await;
        assert_eq!(put.status, 201, "{}", put.body);
    }
    let before = chooser.get("/timers").await;
    assert!(before.text.contains("of-nobody") && !before.text.contains("of-team-a"));
    assert!(before.text.contains("<option>team-a</option>"), "{}", before.text);
    let choice = |page: &Page, name| {
        [("token", page.token().to_owned()), ("to", "/timers".to_owned()), ("namespace", String::from(name))]
    };
    let send = async |fields: &[(&str, String)]| {
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        chooser.post("/namespace", &fields).await
    };
    assert_eq!(send(&choice(&before, "team-x")).await.status, 422);
    let chosen = send(&choice(&before, "team-a")).await;
    assert_eq!((chosen.status, chosen.header("location")), (303, Some("/timers")));
    // A part of a page that was loaded before is not put into it: the whole page is read again.
    for (about, status) in [("0", Some("true")), ("1", None)] {
        let headers = [("hx-request", "true"), ("x-page-namespace", about)];
        let part = chooser.get_with("/queues", &headers).await;
        assert_eq!((part.status, part.header("hx-refresh")), (200, status), "{}", part.text);
        assert_eq!(part.text.is_empty(), status.is_some());
    }
    let after = chooser.get("/timers").await;
    assert!(after.text.contains("hx-headers='{\"x-page-namespace\":\"1\"}'"), "{}", after.text);
    assert!(after.text.contains("of-team-a") && !after.text.contains("of-nobody"));
    assert!(after.text.contains("<option selected>team-a</option>"), "{}", after.text);
    for (path, status) in
        [("/timers/of-team-a", 200), ("/timers/of-nobody", 404), ("/nodes", 200), ("/", 200)]
    {
        assert_eq!(chooser.get(path).await.status, status, "{path}");
    }
    // A form that was loaded before the choice does not act on what has the same name here.
    let cancel = |page: &Page| {
        [("token", page.token().to_owned()), ("action", "cancel".into()), ("id", "both".into())]
    };
    let act = async |fields: &[(&str, String)]| {
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        chooser.post("/act/now", &fields).await
    };
    let session = before.hidden("session").pop().expect("a form of the session");
    let zone = [("session", session.as_str()), ("zone", "Asia/Tokyo")];
    assert_eq!(chooser.post("/zone", &zone).await.status, 303, "it does not depend on the choice");
    let stale = act(&cancel(&before)).await;
    assert_eq!((stale.status, stale.heading().as_str()), (403, "Too old"));
    assert_eq!(act(&cancel(&after)).await.status, 200);
    let state = async |headers: &[(&str, &str)]| {
        admin.send(Method::GET, "/v1/timers/both", headers, None).await.body["state"].clone()
    };
    assert_eq!((state(&in_a).await, state(&[]).await), (json!("cancelled"), json!("scheduled")));
    let audit = chooser.get("/audit").await;
    assert!(audit.text.contains("both") && !audit.text.contains("of-nobody"), "{}", audit.text);

    // A key of one namespace chooses nothing, by the form or by a cookie.
    let key = json!({"name": "b", "namespace": "team-a", "scopes": ["operate"]});
    let (_, key) = admin.post("/v1/keys", &key).await;
    let bound = Visitor::logged_in(&node, key["key"].as_str().expect("a key")).await;
    bound.set_cookie("mainspring_namespace", "default");
    let page = bound.get("/timers").await;
    assert!(page.text.contains("of-team-a") && !page.text.contains("of-nobody"));
    assert_eq!(
        bound.post("/namespace", &[("token", page.token()), ("namespace", "default")]).await.status,
        404
    );

    assert_eq!(chooser.post("/logout", &[("token", after.token())]).await.status, 303);
    assert_eq!(chooser.cookie("mainspring_namespace").as_deref(), Some(""), "the next one chooses anew");
}
