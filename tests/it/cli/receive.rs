//! `receive`: what it prints, and what it answers.

use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::Value;

use super::{FAILED, OK, PATIENCE, Running, Shell};
use crate::support::{Node, eventually, free_port};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The address that it prints once it listens.
async fn listens(receive: &Running) -> String {
    eventually("it listens", PATIENCE, async || {
        let noted = receive.noted();
        let url = noted.split_once("listening on ").and_then(|(_, rest)| rest.split_once(';'));
        url.map(|(url, _)| url.to_owned()).ok_or(noted)
    })
    .await
}

#[tokio::test]
async fn each_attempt_is_a_line_and_the_first_ones_can_be_refused() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let receive =
        shell.start(&format!("receive --listen 127.0.0.1:0 --fail 1 --count 2 --secret {SECRET} --json"));
    let url = listens(&receive).await;
    let put = format!(
        "timer put order-1 --in 0s --webhook {url}hook --secret {SECRET} --retry-first 50ms --data {{\"n\":1.10}}"
    );
    assert_eq!(shell.run(&put).await.code, OK);
    let ran = receive.ended().await;
    assert_eq!(ran.code, OK, "{ran:?}");
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect();
    let told = |line: &Value| {
        (
            line["attempt"].as_i64(),
            line["answered"].as_i64(),
            line["again"].as_bool(),
            line["path"].to_string(),
        )
    };
    let path = || "\"/hook\"".to_owned();
    assert_eq!(
        lines.iter().map(told).collect::<Vec<_>>(),
        [(Some(1), Some(500), Some(false), path()), (Some(2), Some(204), Some(true), path())]
    );
    for line in &lines {
        assert_eq!((&line["timer"], &line["signature"]), (&"order-1".into(), &"ok".into()), "{line}");
        assert_eq!(line["delivery_id"], lines[0]["delivery_id"]);
        assert!(line["lateness_ms"].as_i64().is_some_and(|late| late >= 0), "{line}");
    }
    assert!(ran.stdout.contains(r#""body":{"n":1.10}"#), "as it was sent: {}", ran.stdout);
}

#[tokio::test]
async fn a_delivery_that_was_signed_with_another_secret_is_marked() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let receive = shell.start("receive --listen 127.0.0.1:0 --count 1 --secret whsec_AAAA");
    let url = listens(&receive).await;
    let put = format!("timer put order-1 --in 0s --webhook {url} --secret {SECRET}");
    assert_eq!(shell.run(&put).await.code, OK);
    let ran = receive.ended().await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (OK, 1), "{ran:?}");
    assert!(ran.stdout.contains("  order-1  ") && ran.stdout.contains("  signature bad  "), "{}", ran.stdout);
}

#[tokio::test]
async fn ending_before_the_count_is_a_failure_and_without_a_count_it_is_none() {
    let shell = Shell::new();
    for (line, code) in [("--count 1", FAILED), ("", OK)] {
        let receive = shell.start(&format!("receive --listen 127.0.0.1:0 {line}"));
        listens(&receive).await;
        receive.process.signal(Signal::TERM);
        let ran = receive.ended().await;
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{ran:?}");
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_named_with_its_flag() {
    let taken = TcpListener::bind(("127.0.0.1", free_port())).expect("a free port");
    let address = taken.local_addr().expect("an address");
    let said = Shell::new().run(&format!("receive --listen {address}")).await.refused(FAILED);
    assert!(said.contains(&address.to_string()) && said.contains("--listen"), "{said}");
}
