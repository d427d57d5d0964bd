//! What a re-drive takes and what it leaves.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use reqwest::Method;
use serde_json::{Value, json};

use super::{LONG, Mendable, before, begin, counts, dead, ended, for_destination, redrive, shown};
use crate::support::{NodeBuilder, Reply, in_state, on_both, problem, rfc3339, wall_ms};

async fn dead_timers_run_again_as_a_new_generation(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, place, since) = (node.api(), Mendable::start().await, before());
    for name in ["a", "b"] {
        place.destination(&api, name).await;
        dead(&api, &for_destination(name), name, 6).await;
    }
    // One has its id again; one died, was registered again, and died again.
    let again = json!({"delay": "PT1H", "target": {"destination": "a"}});
    assert_eq!(api.send(Method::PUT, "/v1/timers/a-0?again=true", &[], Some(&again)).await.status, 201);
    let again = for_destination("a");
    assert_eq!(api.send(Method::PUT, "/v1/timers/a-1?again=true", &[], Some(&again)).await.status, 201);
    in_state(&api, "a-1", "dead").await;
    let first = api.timer("a-2").await.1;
    place.mend();

    let operation = redrive(&api, "a", since).await;
    assert_eq!((&operation["action"], &operation["dry_run"]), (&json!("redrive"), &json!(false)));
    assert_eq!(operation["filter"], json!({"destination": "a"}));
    let done = ended(&api, &operation).await;
    assert_eq!(counts(&done), (7, 5, &json!({"id_taken": 1, "superseded": 1})), "{done}");
    assert!(!done["ended_at"].is_null() && !done["node"].is_null(), "{done}");
    for id in ["a-1", "a-2", "a-3", "a-4", "a-5"] {
        in_state(&api, id, "delivered").await;
    }
    let again = api.timer("a-2").await.1;
    assert_eq!((&again["generation"], &again["attempts"]), (&json!(2), &json!(1)));
    assert_ne!(again["delivery_id"], first["delivery_id"], "another firing");
    assert_eq!(api.timer("a-1").await.1["generation"], 3);
    assert_eq!(api.timer("a-0").await.1["state"], "scheduled");
    assert_eq!(api.timer("b-0").await.1["state"], "dead");
    let sent: Vec<_> = place.receiver.received();
    let ids: BTreeSet<_> = sent.iter().map(|one| &one.delivery_id).collect();
    assert_eq!(ids.len(), sent.len(), "each firing has an id of its own, and was sent once");

    // The ledger counts each as a new registration.
    let ledger = api.ledger().await;
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!((ledger.registered, ledger.dead, ledger.delivered, ledger.pending), (19, 13, 5, 1));

    // The same once more changes nothing twice.
    let again = ended(&api, &redrive(&api, "a", since).await).await;
    assert_eq!(counts(&again), (7, 0, &json!({"id_taken": 1, "superseded": 6})), "{again}");
    assert_eq!(api.ledger().await, ledger);
    let all = api.get("/v1/operations").await.1;
    let ids: Vec<&Value> = all["items"].as_array().expect("items").iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, [&again["id"], &operation["id"]], "the last one first");
}

async fn the_time_of_death_decides(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, place, since) = (node.api(), Mendable::start().await, before());
    place.destination(&api, "a").await;
    dead(&api, &for_destination("a"), "a", 3).await;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    let between = wall_ms();
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    place.destination(&api, "b").await;
    let late = for_destination("a");
    assert_eq!(api.put("late", &late).await.0, 201);
    in_state(&api, "late", "dead").await;
    place.mend();
    let range = |since: i64, until: i64| json!({"since": rfc3339(since), "until": rfc3339(until)});
    for (range, matched) in [(range(since - 5000, since), 0), (range(since, between), 3)] {
        let answer = api.send(Method::POST, "/v1/destinations/a/redrive", &[], Some(&range)).await;
        assert_eq!((answer.status, &answer.body["since"]), (202, &range["since"]), "{}", answer.body);
        assert_eq!(answer.body["until"], range["until"]);
        let done = ended(&api, &answer.body).await;
        assert_eq!(counts(&done), (matched, matched, &json!({})), "{range}");
    }
    assert_eq!(api.timer("late").await.1["state"], "dead");
    // Of what a filter says, all must hold.
    let filter = json!({"id": ["late", "a-0"], "destination": "a", "due_after": late_due(&api).await});
    let done = ended(&api, &begin(&api, filter, false).await).await;
    assert_eq!(counts(&done), (1, 1, &json!({})), "{done}");
    in_state(&api, "late", "delivered").await;
}

async fn late_due(api: &crate::support::Api) -> Value {
    api.timer("late").await.1["due_at"].clone()
}

async fn a_dry_run_counts_and_changes_nothing(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, place) = (node.api(), Mendable::start().await);
    place.destination(&api, "a").await;
    for (id, label, owner) in [("x", "shop", "me"), ("y", "mall", "me"), ("z", "shop", "you")] {
        let mut timer = for_destination("a");
        (timer["labels"], timer["owner"]) = (json!({"app": label}), json!(owner));
        timer["data"] = json!({"id": id});
        assert_eq!(api.put(id, &timer).await.0, 201);
        in_state(&api, id, "dead").await;
    }
    let hook = json!({"delay": "PT0S", "target": {"webhook": {"url": place.receiver.url("/in")}}});
    assert_eq!(api.put("own-owner", &hook).await.0, 201);
    in_state(&api, "own-owner", "dead").await;
    let ledger = api.ledger().await;
    let filters = [
        (json!({"state": "dead"}), 4),
        (json!({"label.app": "shop"}), 2),
        (json!({"label.app": "shop", "owner": "me"}), 1),
        (json!({"owner": "own-owner"}), 1),
        (json!({"receiver": place.receiver.url("")}), 1),
        (json!({"destination": "a", "due_before": "2020-01-01T00:00:00Z"}), 0),
        (json!({"id": "y"}), 1),
        (json!({"label.app": "it's \"quoted\""}), 0),
    ];
    // All at once: each takes as long as a death may be committed late.
    let mut begun = Vec::new();
    for (filter, matched) in filters {
        begun.push((begin(&api, filter.clone(), true).await, filter, matched));
    }
    for (operation, filter, matched) in begun {
        let done = ended(&api, &operation).await;
        assert_eq!(counts(&done), (matched, 0, &json!({})), "{filter}: {done}");
        assert_eq!((&done["filter"], &done["dry_run"]), (&filter, &json!(true)));
    }
    assert_eq!(api.ledger().await, ledger);
    // It says what it would refuse, too.
    let again = json!({"delay": "PT1H", "target": {"destination": "a"}});
    assert_eq!(api.send(Method::PUT, "/v1/timers/x?again=true", &[], Some(&again)).await.status, 201);
    let done = ended(&api, &begin(&api, json!({"state": "dead"}), true).await).await;
    assert_eq!(counts(&done), (4, 0, &json!({"id_taken": 1})), "{done}");
    place.mend();
    let done = ended(&api, &begin(&api, json!({"label.app": "mall"}), false).await).await;
    assert_eq!(counts(&done), (1, 1, &json!({})));
    in_state(&api, "y", "delivered").await;
    assert_eq!(
        place.receiver.of("y").last().expect("sent").json(),
        json!({"id": "y"}),
        "as it was registered"
    );
}

async fn what_has_no_destination_any_more_is_refused(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, place) = (node.api(), Mendable::start().await);
    place.destination(&api, "a").await;
    dead(&api, &for_destination("a"), "a", 3).await;
    assert_eq!(api.send(Method::DELETE, "/v1/destinations/a", &[], None).await.status, 200);
    let gone =
        api.send(Method::POST, "/v1/destinations/a/redrive", &[], Some(&json!({"since": rfc3339(0)}))).await;
    problem(&gone, 404, "not_found");
    for dry_run in [true, false] {
        let done = ended(&api, &begin(&api, json!({"destination": "a"}), dry_run).await).await;
        assert_eq!(counts(&done), (3, 0, &json!({"no_destination": 3})), "{done}");
    }
    assert!(api.ledger().await.balances());
    assert_eq!(shown(&api, &api.get("/v1/operations").await.1["items"][0]).await["state"], "done");
}

/// A destination's rate holds for what runs again.
async fn it_goes_at_the_destinations_rate(builder: NodeBuilder) {
    let node = builder.start_ready().await;
    let (api, place, since) = (node.api(), Mendable::start().await, before());
    place.destination(&api, "a").await;
    // Every other one is taken, so that the destination does not count as failing.
    let turn = AtomicU32::new(0);
    place.receiver.on("/half", move |_| match turn.fetch_add(1, Ordering::SeqCst) % 2 {
        0 => Reply::status(410),
        _ => Reply::ok(),
    });
    let set = async |body: Value| {
        assert_eq!(api.send(Method::PATCH, "/v1/destinations/a", &[], Some(&body)).await.status, 200);
    };
    set(json!({"webhook": {"url": place.receiver.url("/half")}, "concurrency": 1})).await;
    let timers: Vec<Value> = (0..200).map(|_| for_destination("a")).collect();
    assert_eq!(api.post("/v1/timers/batch", &json!({"timers": timers})).await.0, 200);
    let died = crate::support::eventually("all have ended", LONG, async || {
        let ledger = api.ledger().await;
        if ledger.pending == 0 { Ok(ledger.dead) } else { Err(ledger) }
    })
    .await;
    assert!(died >= 80, "{died} died");
    let so_far = place.receiver.received().len();
    place.mend();
    set(json!({"webhook": {"url": place.receiver.url("/in")}, "concurrency": 20, "rate_per_second": 40}))
        .await;
    redrive(&api, "a", since).await;
    crate::support::settled(&api, 200, 0).await;
    let sent: Vec<i64> = place.receiver.received()[so_far..].iter().map(|one| one.at_ms).collect();
    assert_eq!(sent.len() as u64, died);
    let took = sent.iter().max().expect("sent") - sent.iter().min().expect("sent");
    let least = (died as i64 - 1) * 1000 / 40 - 300;
    assert!(took >= least, "{died} at 40 a second took {took} ms");
}

on_both!(
    dead_timers_run_again_as_a_new_generation,
    the_time_of_death_decides,
    a_dry_run_counts_and_changes_nothing,
    what_has_no_destination_any_more_is_refused,
    it_goes_at_the_destinations_rate,
);
