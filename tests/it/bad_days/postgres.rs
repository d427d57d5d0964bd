//! PostgreSQL that is down at the start, or goes away in the midst of work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::{LONG, all_delivered, due_in};
use crate::support::{
    Api, Node, Postgres, Receiver, eventually, fresh_database, problem, psql, register, rfc3339, to, wall_ms,
};

/// An answer may wait for the store as long as this, and no longer: 5 s for a connection, and as long before
/// for the writer that waits for one already.
const ANSWERED: Duration = Duration::from_secs(12);

#[tokio::test]
async fn a_database_that_is_down_at_the_start_is_waited_for() {
    let mut server = Postgres::start().await;
    let url = server.create_database().await;
    server.stop_fast().await;
    let (node, receiver) = (Node::builder().cold(url).start(), Receiver::start().await);
    let (api, timer) = (node.api(), due_in(0, receiver.url("/ok")));
    eventually("it listens", LONG, async || {
        let answer = api.try_send(Method::GET, "/livez", &[], None).await.map_err(|why| why.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.status.to_string()) }
    })
    .await;
    for path in ["/readyz", "/startupz"] {
        assert_eq!(api.get(path).await.0, 503, "{path}");
    }
    assert_eq!(api.get("/metrics").await.0, 200);
    for (method, path) in [
        (Method::PUT, "/v1/timers/t"),
        (Method::GET, "/v1/timers/t"),
        (Method::GET, "/v1/timers"),
        (Method::GET, "/v1/ledger"),
    ] {
        let asked = Instant::now();
        problem(&api.send(method, path, &[], Some(&timer)).await, 503, "starting");
        assert!(asked.elapsed() < Duration::from_secs(2), "refused at once: {:?}", asked.elapsed());
    }
    let warned = eventually("the log says what is wrong", LONG, async || {
        let log = node.log();
        if log.contains("WARN") { Ok(log) } else { Err(log) }
    })
    .await;
    assert!(warned.contains("cold store cannot be reached"), "{warned}");

    server.start_again().await;
    node.wait_ready(LONG).await;
    assert_eq!(api.put("t", &timer).await.0, 201);
    all_delivered(&api, 1).await;
    let log = node.log();
    assert_eq!(log.lines().filter(|line| line.contains("WARN")).count(), 1, "told once: {log}");
    assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
}

/// Puts timer after timer, each until it is acknowledged, and returns how many were.
async fn write(api: Api, url: String, stop: Arc<AtomicBool>) -> u64 {
    let mut acknowledged = 0;
    while !stop.load(Ordering::SeqCst) {
        let (path, timer) = (format!("/v1/timers/w{acknowledged}"), due_in(0, &url));
        loop {
            let asked = Instant::now();
            let answer = api.send(Method::PUT, &path, &[], Some(&timer)).await;
            assert!(asked.elapsed() < ANSWERED, "answered after {:?}", asked.elapsed());
            if matches!(answer.status, 200 | 201) {
                break;
            }
            problem(&answer, 503, "store_unavailable");
        }
        acknowledged += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    acknowledged
}

/// Every call that needs the store, while it is away.
async fn every_call_is_503(api: &Api) {
    let change = json!({"delay": "PT2H"});
    let calls = [
        (Method::PUT, "/v1/timers/refused", Some(due_in(0, "http://127.0.0.1:9/"))),
        (Method::POST, "/v1/timers", Some(due_in(0, "http://127.0.0.1:9/"))),
        (Method::PATCH, "/v1/timers/far", Some(change)),
        (Method::DELETE, "/v1/timers/far", None),
        (Method::POST, "/v1/timers/far/fire", None),
        (Method::GET, "/v1/timers/far", None),
        (Method::GET, "/v1/timers/far/attempts", None),
        (Method::GET, "/v1/timers", None),
        (Method::GET, "/v1/ledger", None),
        (Method::GET, "/v1/nodes", None),
    ];
    let asked = Instant::now();
    let answers = calls.iter().map(|(method, path, body)| api.send(method.clone(), path, &[], body.as_ref()));
    let batch = json!({"timers": [due_in(0, "http://127.0.0.1:9/")]});
    let (answers, (status, batch)) =
        tokio::join!(futures::future::join_all(answers), api.post("/v1/timers/batch", &batch));
    // They wait for the same two workers, one batch after another.
    assert!(asked.elapsed() < ANSWERED * 2, "answered after {:?}", asked.elapsed());
    for ((method, path, _), answer) in calls.iter().zip(&answers) {
        println!("{method} {path}");
        problem(answer, 503, "store_unavailable");
    }
    assert_eq!(
        (status, &batch["results"][0]["status"]),
        (200, &json!(503)),
        "each item stands alone: {batch}"
    );
    assert_eq!(batch["results"][0]["error"]["code"], "store_unavailable");
    assert_eq!(api.get("/livez").await.0, 200);
    let (status, ready) = api.get("/readyz").await;
    assert_eq!((status, &ready["status"]), (503, &json!("unavailable")));
}

/// Stops the database under load, lets `meanwhile` happen, and starts it again: nothing is lost and nothing comes
/// twice. Some timers are due while it is away, and a few `back_ms` after the first of these, when it is back.
async fn an_outage_loses_nothing(
    stop: impl AsyncFnOnce(&Postgres),
    meanwhile: impl AsyncFnOnce(&Api),
    back_ms: i64,
) {
    let mut server = Postgres::start().await;
    let node = Node::builder().cold(server.create_database().await).start_ready().await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    assert_eq!(api.put("far", &due_in(3_600_000, receiver.url("/ok"))).await.0, 201);
    assert_eq!(api.put("slow", &due_in(0, receiver.url("/slow/4000"))).await.0, 201);
    receiver.wait_until(|all| all.iter().any(|one| one.timer == "slow"), LONG).await;
    let halt = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write(api.clone(), receiver.url("/ok"), Arc::clone(&halt)));
    receiver.wait_until(|all| all.iter().filter(|one| one.timer.starts_with('w')).count() >= 20, LONG).await;

    assert_eq!(api.metric("mainspring_store_up").await, 1.0);
    let errors = api.metric("mainspring_store_errors_total").await;
    let first = wall_ms() + 4000;
    let due = |n: i64| if n < 30 { first + n * 50 } else { first + back_ms };
    let timer = |n: i64| {
        let target = to(receiver.url("/ok"));
        json!({"id": format!("t{n}"), "fire_at": rfc3339(due(n)), "target": target})
    };
    register(&api, &(0..40).map(timer).collect::<Vec<_>>()).await;
    let due_in_the_outage = due(29);
    stop(&server).await;
    meanwhile(&api).await;
    eventually("what falls due in the outage is due", LONG, async || {
        if wall_ms() > due_in_the_outage { Ok(()) } else { Err(wall_ms()) }
    })
    .await;
    let before = receiver.received().len();
    assert!(receiver.received().iter().all(|one| !one.timer.starts_with('t')), "they were due in the outage");
    assert_eq!(api.metric("mainspring_store_up").await, 0.0);
    assert!(api.metric("mainspring_store_errors_total").await > errors, "calls of its own loops failed");

    server.start_again().await;
    node.wait_ready(LONG).await;
    receiver.wait_until(|all| all.len() > before + 20, LONG).await;
    halt.store(true, Ordering::SeqCst);
    let written = writer.await.expect("the writer was never answered badly");
    assert_eq!(api.metric("mainspring_store_up").await, 1.0);
    let (_, far) = api.timer("far").await;
    assert_eq!((&far["state"], &far["version"]), (&json!("scheduled"), &json!(1)), "503 means not done");
    assert_eq!(api.timer("refused").await.0, 404, "503 means not kept");
    assert_eq!(api.delete("far").await.0, 200);
    let wanted = written + 41;
    eventually("all is delivered", LONG, async || {
        let ledger = api.ledger().await;
        assert!(ledger.balances(), "{ledger:?}");
        let ended = (ledger.registered, ledger.delivered, ledger.cancelled, ledger.pending);
        if ended == (wanted + 1, wanted, 1, 0) { Ok(()) } else { Err((wanted, ledger)) }
    })
    .await;
    let all = receiver.received();
    assert!(all.iter().all(|one| one.lateness_ms() >= 0));
    let ids: std::collections::HashSet<_> = all.iter().map(|one| one.delivery_id.as_str()).collect();
    assert_eq!(
        (ids.len() as u64, all.len() as u64),
        (wanted, wanted),
        "each once: its result waited for the store"
    );
    let log = node.log();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
    assert_eq!(log.matches("listening on").count(), 1, "the same process all the time");
    let errors = log.lines().filter(|line| line.contains("WARN")).count();
    assert!(errors <= 20, "an outage is told, not repeated: {errors} lines");
}

#[tokio::test]
async fn a_database_that_is_stopped_and_started_loses_nothing() {
    // Each call waits five seconds for a connection, and some wait for others.
    let stop = async |server: &Postgres| server.stop_fast().await;
    an_outage_loses_nothing(stop, async |api: &Api| every_call_is_503(api).await, 10_000).await;
}

#[tokio::test]
async fn a_database_that_crashes_and_recovers_loses_nothing() {
    let noticed = async |api: &Api| {
        eventually("the node notices", LONG, async || {
            let up = api.metric("mainspring_store_up").await;
            if up == 0.0 { Ok(()) } else { Err(up) }
        })
        .await;
    };
    an_outage_loses_nothing(async |server: &Postgres| server.kill_immediate().await, noticed, 5000).await;
}

/// What the database refuses for good (here a trigger does) takes no other result of its batch with it.
#[tokio::test]
async fn a_result_that_cannot_be_written_is_left_behind_alone() {
    let url = fresh_database().await;
    let node = Node::builder().cold(url.clone()).start_ready().await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ \
                  BEGIN RAISE 'no' USING ERRCODE = '22003'; END $$; \
                  CREATE TRIGGER refuse BEFORE INSERT ON history FOR EACH ROW WHEN (NEW.id = 'bad') \
                  EXECUTE FUNCTION refuse()";
    psql(&url, refuse).await;
    let (api, receiver) = (node.api(), Receiver::start().await);
    // Answered in the same moment, so that their results are written together.
    let timers: Vec<_> = (0..40)
        .map(|n| {
            let mut timer = due_in(1000, receiver.url("/ok"));
            timer["id"] = json!(if n == 17 { "bad".into() } else { format!("t{n}") });
            timer
        })
        .collect();
    assert_eq!(api.post("/v1/timers/batch", &json!({ "timers": timers })).await.0, 200);
    eventually("all but one are recorded", LONG, async || {
        let ledger = api.ledger().await;
        if (ledger.delivered, ledger.pending) == (39, 1) { Ok(()) } else { Err(ledger) }
    })
    .await;
    let told = eventually("the log tells of the one", LONG, async || {
        let told = node.log().matches("a result cannot be recorded").count();
        if told > 0 { Ok(told) } else { Err(node.log()) }
    })
    .await;
    assert_eq!((told, receiver.received().len()), (1, 40), "{}", node.log());
}
