//! Cancel, move, fire from the page: what is said before, what is done, and that the API says the same.

use reqwest::Method;
use serde_json::json;

use super::{Page, Visitor, later};
use crate::support::{Api, Node, NodeBuilder, Receiver, eventually, in_state, on_both, to};

/// Marks timers on a page and asks what would happen.
async fn asked(visitor: &Visitor, action: &str, ids: &[&str]) -> Page {
    let list = visitor.get("/timers").await;
    let mut fields = vec![("token", list.token()), ("action", action), ("to", "/timers")];
    fields.extend(ids.iter().map(|id| ("id", *id)));
    let page = visitor.post("/act", &fields).await;
    assert_eq!(page.status, 200, "{}", page.text);
    page
}

/// Sends the form of that page, as its button does, with more fields.
async fn sent(visitor: &Visitor, page: &Page, more: &[(&str, &str)]) -> Page {
    let (ids, versions) = (page.hidden("id"), page.hidden("version"));
    let action = page.hidden("action").pop().expect("an action");
    let mut fields = vec![("token", page.token()), ("action", action.as_str()), ("to", "/timers")];
    for (id, version) in ids.iter().zip(&versions) {
        fields.extend([("id", id.as_str()), ("version", version.as_str())]);
    }
    fields.extend(more);
    visitor.post("/act/now", &fields).await
}

/// The answers of a page: the code, and the ids.
fn answers(page: &Page) -> Vec<(String, Vec<String>)> {
    let rows = page.between("<tbody>", "</tbody>").split("<tr>").skip(1);
    rows.map(|row| {
        let code = row.split_once("<b").and_then(|(_, rest)| rest.split_once('>')).expect("a code").1;
        let code = code.split('<').next().unwrap_or_default().to_owned();
        let ids = row.split("href=\"/timers/").skip(1).map(|rest| rest.split('"').next().unwrap_or_default());
        (code, ids.map(str::to_owned).collect())
    })
    .collect()
}

/// Timers in every state that a cancel may meet.
async fn in_every_state(api: &Api, receiver: &Receiver) {
    let at = |path: &str| json!({"delay": "PT0S", "target": to(receiver.url(path)), "retry": {"attempts": 3, "first": "PT1H"}});
    for (id, timer) in [
        ("waits", later()),
        ("cancelled", later()),
        ("delivered", at("/ok")),
        ("retries", at("/status/500")),
        ("flies", at("/hang")),
        ("dead", at("/status/410")),
    ] {
        assert_eq!(api.put(id, &timer).await.0, 201);
    }
    assert_eq!(api.delete("cancelled").await.0, 200);
    for (id, state) in
        [("delivered", "delivered"), ("retries", "retrying"), ("flies", "delivering"), ("dead", "dead")]
    {
        in_state(api, id, state).await;
    }
}

const STATES: [&str; 6] = ["waits", "cancelled", "delivered", "retries", "flies", "dead"];

async fn a_cancel_from_the_page_has_the_answer_of_the_api(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver, visitor) = (node.api(), Receiver::start().await, Visitor::new(&node));
    in_every_state(&api, &receiver).await;
    let page = asked(&visitor, "cancel", &STATES).await;
    assert_eq!(page.heading(), "Cancel 3 timers?");
    assert!(page.text.contains(">Cancel 3 timers</button>"), "the button names it: {}", page.text);
    assert_eq!(page.hidden("id"), ["waits", "retries", "flies"], "the others are over");
    for effect in [
        "Cancelled: nothing was and nothing will be sent.",
        "Stopped: its earlier attempts surely failed",
        "No further attempt starts.",
        "Nothing: it is over.",
    ] {
        assert!(page.text.contains(effect), "{effect}: {}", page.text);
    }
    assert_eq!(api.timer("waits").await.1["state"], "scheduled", "nothing has happened yet");
    let told = sent(&visitor, &page, &[]).await;
    assert_eq!(told.status, 200);
    let mut told = answers(&told);
    told.sort();
    let expected = [("cancelled", "waits"), ("in_flight", "flies"), ("stopped", "retries")];
    assert_eq!(told, expected.map(|(code, id)| (code.to_owned(), vec![id.to_owned()])));
    // The API's answer to the same cancel is the same.
    for (code, id) in expected {
        let (status, answer) = api.delete(id).await;
        let said = if status == 200 { &answer["outcome"] } else { &answer["code"] };
        assert_eq!(said, code, "{id}");
    }
    // What is over is told when it is sent all the same: somebody may have been quicker.
    let again = visitor
        .post(
            "/act/now",
            &[("token", page.token()), ("action", "cancel"), ("id", "delivered"), ("id", "none")],
        )
        .await;
    let mut told = answers(&again);
    told.sort();
    assert_eq!(
        told,
        [("already_fired", "delivered"), ("not_found", "none")]
            .map(|(code, id)| (code.to_owned(), vec![id.to_owned()]))
    );
}

#[tokio::test]
async fn a_move_sets_the_time_that_the_reader_means() {
    let node = Node::builder().start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    for id in ["a", "b"] {
        assert_eq!(api.put(id, &later()).await.0, 201);
    }
    visitor.set_cookie("mainspring_zone", "Asia/Shanghai");
    let page = asked(&visitor, "move", &["a", "b"]).await;
    assert_eq!(page.heading(), "Move 2 timers?");
    for (at, delay, wrong) in [
        ("", "", "Give the new due time."),
        ("2099-01-01T00:00", "PT1H", "Give either the time or the delay"),
        ("tomorrow", "", "is not an RFC 3339 time"),
        ("2020-01-01T00:00", "", "That time has passed"),
        ("", "1h", "is not an ISO 8601 duration"),
    ] {
        let answer = sent(&visitor, &page, &[("at", at), ("delay", delay)]).await;
        assert_eq!(answer.status, 422, "{at} {delay}");
        assert!(answer.text.contains(wrong), "{at} {delay}: {}", answer.text);
    }
    let told = sent(&visitor, &page, &[("at", "2099-12-01T09:00"), ("delay", "")]).await;
    assert_eq!(answers(&told), [("moved".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
    assert!(told.text.contains("All are due 2099-12-01 09:00:00 now."), "{}", told.text);
    assert_eq!(api.timer("a").await.1["due_at"], "2099-12-01T01:00:00.000Z");
    // The same form once more: both have another version now.
    let again = sent(&visitor, &page, &[("at", "2098-12-01T09:00"), ("delay", "")]).await;
    assert_eq!(answers(&again), [("version_changed".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
    assert_eq!(api.timer("a").await.1["due_at"], "2099-12-01T01:00:00.000Z");
}

async fn a_form_that_is_sent_twice_fires_once(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, receiver, visitor) = (node.api(), Receiver::start().await, Visitor::new(&node));
    let timer = json!({"delay": "PT1H", "target": to(receiver.url("/status/500")), "retry": {"attempts": 9, "first": "PT1H"}});
    assert_eq!(api.put("t", &timer).await.0, 201);
    let page = asked(&visitor, "fire", &["t"]).await;
    assert_eq!(page.heading(), "Fire 1 timer now?");
    let told = sent(&visitor, &page, &[]).await;
    assert_eq!(answers(&told), [("fired".to_owned(), vec!["t".to_owned()])]);
    in_state(&api, "t", "retrying").await;
    let again = sent(&visitor, &page, &[]).await;
    assert_eq!(answers(&again), [("version_changed".to_owned(), vec!["t".to_owned()])]);
    assert_eq!(api.timer("t").await.1["generation"], 2);
    assert_eq!(receiver.of("t").len(), 1);
}

async fn a_pause_and_a_resume_say_whom_they_concern(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    for id in ["a", "b"] {
        assert_eq!(api.put(id, &later()).await.0, 201);
    }
    let one = visitor.get("/timers/a").await.text;
    assert!(one.contains("value=\"pause\"") && !one.contains("value=\"resume\""), "it is not paused");
    let page = asked(&visitor, "pause", &["a"]).await;
    assert_eq!(page.heading(), "Pause 1 timer?");
    assert_eq!(answers(&sent(&visitor, &page, &[]).await), [("paused".to_owned(), vec!["a".to_owned()])]);
    assert_eq!(api.timer("a").await.1["state"], "paused");
    let one = visitor.get("/timers/a").await.text;
    assert!(!one.contains("value=\"pause\"") && one.contains("value=\"resume\""), "it is paused");
    assert!(one.contains("It waits for its resume: it is paused."), "{one}");
    // Of both, one is paused already, and only the other one is asked about.
    let page = asked(&visitor, "pause", &["a", "b"]).await;
    assert_eq!(page.heading(), "Pause 1 timer?");
    assert!(page.text.contains("Nothing: it is paused already."), "{}", page.text);
    assert_eq!(answers(&sent(&visitor, &page, &[]).await), [("paused".to_owned(), vec!["b".to_owned()])]);
    let page = asked(&visitor, "resume", &["a", "b"]).await;
    assert_eq!(page.heading(), "Resume 2 timers?");
    assert_eq!(api.post("/v1/timers/a/resume", &json!(null)).await.0, 200);
    let told = answers(&sent(&visitor, &page, &[]).await);
    let of = |code: &str, id: &str| (code.to_owned(), vec![id.to_owned()]);
    assert_eq!(told, [of("resumed", "b"), of("version_changed", "a")]);
    assert_eq!(api.timer("b").await.1["state"], "scheduled");
}

async fn many_are_counted_and_then_changed(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    for id in ["a", "b", "c"] {
        let mut timer = later();
        timer["owner"] = json!(if id == "c" { "you" } else { "me" });
        assert_eq!(api.put(id, &timer).await.0, 201);
    }
    let list = visitor.get("/timers?owner=me").await;
    let ask = async |action: &str, by: &str| {
        let query = list.hidden("query").remove(0);
        let fields = [("token", list.token()), ("query", &query), ("action", action), ("by", by)];
        visitor.post("/operations", &fields).await
    };
    let ended = async |page: &Page| {
        assert_eq!(page.status, 303, "{}", page.text);
        let path = page.header("location").expect("a page").to_owned();
        let page = eventually("it ends", std::time::Duration::from_secs(20), async || {
            let page = visitor.get(&path).await;
            if page.title().contains("done") { Ok(page) } else { Err(page.text) }
        })
        .await;
        (path, page)
    };
    let (path, counted) = ended(&ask("pause", "").await).await;
    assert_eq!(api.timer("a").await.1["state"], "scheduled", "it is counted only");
    assert_eq!(counted.heading(), "pause · done");
    assert!(counted.text.contains(">pause 2 timers</button>"), "{}", counted.text);
    let run = visitor.post(&format!("{path}/run"), &[("token", counted.token())]).await;
    let (_, done) = ended(&run).await;
    assert!(done.text.contains("Timers of: owner me.") && !done.text.contains("/run"), "{}", done.text);
    for (id, state) in [("a", "paused"), ("b", "paused"), ("c", "scheduled")] {
        assert_eq!(api.timer(id).await.1["state"], state, "{id}");
    }
    let (_, nothing) = ended(&ask("pause", "").await).await;
    assert!(!nothing.text.contains("/run"), "nothing matches: {}", nothing.text);
    let (_, shift) = ended(&ask("shift", "-PT10M").await).await;
    assert!(shift.text.contains(">shift by -PT10M 2 timers</button>"), "{}", shift.text);
    for (action, by) in [("shift", ""), ("shift", "soon"), ("explode", "")] {
        let refused = ask(action, by).await;
        assert!(matches!(refused.status, 403 | 422), "{action} {by}: {}", refused.status);
    }
    let dead = visitor.get("/timers?owner=me&state=dead").await;
    let query = dead.hidden("query").remove(0);
    let fields = [("token", dead.token()), ("query", &query), ("action", "cancel")];
    assert_eq!(visitor.post("/operations", &fields).await.status, 422);
    let all = visitor.get("/operations").await.text;
    assert_eq!(all.matches("owner me").count(), 4, "{all}");
    assert!(!visitor.get("/timers").await.text.contains("name=\"query\""), "not on every timer");
    assert_eq!(visitor.get("/operations/op_1").await.status, 404);
    let stop = visitor.post(&format!("{path}/stop"), &[("token", counted.token())]).await;
    assert_eq!(stop.status, 303, "it has ended: nothing happens");
}

/// What is counted is what is done: timers of later are left, and a form that is sent twice begins one operation.
async fn a_run_takes_what_was_counted_and_begins_once(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    let put = async |id: &str| {
        let mut timer = later();
        timer["owner"] = json!("me");
        assert_eq!(api.put(id, &timer).await.0, 201);
    };
    let done = async |path: &str| {
        eventually("it ends", std::time::Duration::from_secs(20), async || {
            let page = visitor.get(path).await;
            if page.title().contains("done") { Ok(page) } else { Err(page.text) }
        })
        .await
    };
    put("a").await;
    // Dead and cancelled ones are counted up to a moment, too.
    for action in ["cancel", "purge"] {
        let list = visitor.get("/timers?owner=me").await;
        let query = list.hidden("query").remove(0);
        let fields = [("token", list.token()), ("query", &query), ("action", action)];
        let count = visitor.post("/operations", &fields).await.header("location").expect("a page").to_owned();
        let counted = done(&count).await;
        assert!(counted.text.contains(&format!(">{action} 1 timer</button>")), "{}", counted.text);
        put(action).await;
        if action == "purge" {
            assert_eq!(api.delete(action).await.0, 200);
        }
        let mut led_to = Vec::new();
        for _ in 0..2 {
            let run = visitor.post(&format!("{count}/run"), &[("token", counted.token())]).await;
            assert_eq!(run.status, 303, "{}", run.text);
            led_to.push(run.header("location").expect("a page").to_owned());
            done(&led_to[0]).await;
        }
        assert_eq!(led_to[0], led_to[1], "it has begun already");
        assert_ne!(led_to[0], count);
    }
    assert_eq!(api.timer("a").await.0, 404, "it was cancelled, and purged");
    assert_eq!(api.timer("cancel").await.1["state"], "scheduled", "it came after the count");
    assert_eq!(api.timer("purge").await.1["state"], "cancelled", "it ended after the count");
    let all = api.get("/v1/operations").await.1;
    assert_eq!(all["items"].as_array().map(Vec::len), Some(4), "{all}");
}

#[tokio::test]
async fn one_timer_tells_its_life() {
    let node = Node::builder().name("teller").start_ready().await;
    let (api, receiver, visitor) = (node.api(), Receiver::start().await, Visitor::new(&node));
    let timer = json!({"delay": "PT0.2S", "target": to(receiver.url("/flaky/1")), "retry": {"attempts": 3, "first": "PT0.05S"}});
    assert_eq!(api.put("t", &timer).await.0, 201);
    in_state(&api, "t", "delivered").await;
    let page = eventually("it is told", std::time::Duration::from_secs(5), async || {
        let page = visitor.get("/timers/t").await;
        if page.text.contains(">ok</span>") { Ok(page) } else { Err(page.text) }
    })
    .await;
    let list = page.between("<ol class=\"line\">", "</ol>");
    let words: Vec<&str> =
        list.split("<b>").skip(1).map(|rest| rest.split('<').next().unwrap_or_default()).collect();
    let mut known = words.clone();
    known.retain(|word| !["promoted", "claimed"].contains(word));
    assert_eq!(known, ["registered", "due", "attempt 1", "attempt 2", "delivered"], "{words:?}");
    assert!(
        page.text.contains("It is over: its receiver accepted it.") && page.text.contains(">teller</span>")
    );
    assert!(!page.text.contains("name=\"action\""), "there is nothing to do any more");
    let waits = api.put("w", &later()).await;
    assert_eq!(waits.0, 201);
    let page = visitor.get("/timers/w").await;
    assert!(page.text.contains("It waits for its due time"), "{}", page.text);
    assert!(page.text.contains("name=\"action\" value=\"cancel\""));
}

on_both!(
    a_cancel_from_the_page_has_the_answer_of_the_api,
    a_form_that_is_sent_twice_fires_once,
    a_pause_and_a_resume_say_whom_they_concern,
    many_are_counted_and_then_changed,
    a_run_takes_what_was_counted_and_begins_once,
);

#[tokio::test]
async fn a_schedule_is_seen_paused_run_and_removed() {
    let (node, receiver) = (Node::builder().start_ready().await, Receiver::start().await);
    let (api, visitor) = (node.api(), Visitor::new(&node));
    assert!(visitor.get("/schedules").await.text.contains("/v1/schedules/daily-report"), "it teaches");
    let body = serde_json::json!({"daily": {"at": "09:00"}, "zone": "Asia/Shanghai",
        "target": crate::support::to(receiver.url("/ok"))});
    let put = api.send(reqwest::Method::PUT, "/v1/schedules/s", &[], Some(&body)).await;
    assert_eq!(put.status, 201);
    let list = visitor.get("/schedules").await;
    assert!(
        list.text.contains("each day at 09:00, in Asia/Shanghai")
            && list.text.contains("href=\"/schedules/s\"")
    );
    let act = async |action: &str| {
        let page = visitor.get("/schedules/s").await;
        assert_eq!(page.status, 200);
        visitor.post("/schedules/s/act", &[("token", page.token()), ("action", action)]).await
    };
    assert_eq!(visitor.get("/schedules/s").await.text.matches("data-name=\"next\"").count(), 8);
    assert_eq!(act("pause").await.header("location"), Some("/schedules/s"));
    let paused = visitor.get("/schedules/s").await;
    assert!(paused.title().starts_with("s · paused") && paused.text.contains("None while it is paused"));
    assert!(visitor.get("/schedules?state=paused").await.text.contains("/schedules/s\""));
    assert!(!visitor.get("/schedules?state=active").await.text.contains("/schedules/s\""));
    assert!(paused.text.contains("<dd>none</dd>"), "{}", paused.text);
    let often = serde_json::json!({"every": "PT0.5S"});
    assert_eq!(api.send(reqwest::Method::PATCH, "/v1/schedules/s", &[], Some(&often)).await.status, 200);
    tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
    assert_eq!(act("resume").await.status, 303);
    crate::support::eventually(
        "the page tells what was skipped",
        std::time::Duration::from_secs(30),
        async || {
            let text = visitor.get("/schedules/s").await.text;
            let is_told = text.contains("data-name=\"skipped\"") && text.contains(", paused</div>");
            if is_told { Ok(()) } else { Err(text) }
        },
    )
    .await;
    assert_eq!(api.send(reqwest::Method::PUT, "/v1/schedules/s", &[], Some(&body)).await.status, 200);
    assert_eq!(api.get("/v1/schedules/s").await.1["state"], "active");
    let run = act("run").await;
    let to = run.header("location").expect("a timer").to_owned();
    receiver.wait_for(1, std::time::Duration::from_secs(30)).await;
    let timer = visitor.get(&to).await;
    assert!(timer.text.contains("href=\"/schedules/s\""), "{}", timer.text);
    assert!(visitor.get("/timers?schedule=s").await.text.contains("Timers: made by s"));
    let template = serde_json::json!({"schema": {"required": ["order"]}, "defaults": {"order": 1}});
    assert_eq!(api.send(reqwest::Method::PUT, "/v1/templates/t", &[], Some(&template)).await.status, 201);
    let mut body = body;
    body["template"] = "t".into();
    assert_eq!(api.send(reqwest::Method::PUT, "/v1/schedules/s", &[], Some(&body)).await.status, 200);
    let run = act("run").await;
    assert!(run.header("location").is_some_and(|to| to.starts_with("/timers/")), "{}", run.text);
    assert_eq!(act("explode").await.status, 403);
    assert_eq!(act("remove").await.header("location"), Some("/schedules"));
    assert_eq!(visitor.get("/schedules/s").await.status, 404);
    assert_eq!(visitor.get("/schedules/a%20b").await.status, 404);
    let forged = visitor.post("/schedules/s/act", &[("action", "remove")]).await;
    assert_eq!(forged.status, 403, "without its token");
}

#[tokio::test]
async fn templates_are_listed_and_shown() {
    let node = Node::builder().start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    assert!(visitor.get("/templates").await.text.contains("/v1/templates/order-review"), "it teaches");
    let body = serde_json::json!({"schema": {"type": "object", "description": "<script>alert(1)</script>"},
        "defaults": {"stars": 5}});
    for name in ["review", "greeting"] {
        let put = api.send(reqwest::Method::PUT, &format!("/v1/templates/{name}"), &[], Some(&body)).await;
        assert_eq!(put.status, 201);
    }
    let list = visitor.get("/templates").await.text;
    let at = |name: &str| list.find(&format!("href=\"/templates/{name}\"")).expect("it is listed");
    assert!(at("greeting") < at("review"), "by name");
    let one = visitor.get("/templates/review").await;
    assert!(one.text.contains("stars&#34;: 5") && !one.text.contains("<script>alert"), "{}", one.text);
    for missing in ["none", "a%20b"] {
        assert_eq!(visitor.get(&format!("/templates/{missing}")).await.status, 404, "{missing}");
    }
}

#[tokio::test]
async fn a_second_without_room_for_all_that_are_moved_takes_none_and_keeps_its_room() {
    let node = Node::builder().start_ready().await;
    let (api, visitor) = (node.api(), Visitor::new(&node));
    let quotas = json!({"quotas": {"due_per_second": 3}});
    let made = api.send(Method::PUT, "/v1/namespaces/default", &[], Some(&quotas)).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let ids = ["a", "b", "c", "d"];
    for (n, id) in ids.into_iter().enumerate() {
        let timer = json!({"fire_at": format!("2098-12-01T09:00:0{n}Z"), "target": later()["target"]});
        assert_eq!(api.put(id, &timer).await.0, 201, "{id}");
    }
    for (some, status) in [(&ids[..], 429), (&ids[..3], 200)] {
        let page = asked(&visitor, "move", some).await;
        let told = sent(&visitor, &page, &[("at", "2099-12-01T09:00"), ("delay", "")]).await;
        assert_eq!(told.status, status, "{some:?}: {}", told.text);
    }
}
