//! Nodes of earlier releases, replaced one after the other while callers go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use super::recorded::{FIRED, STAYS, all_of_release_2_is_there, as_release_2, caller, release_2};
use crate::support::{Api, Node, Receiver, Verdict, ask_sql, empty_database, rfc3339, settled, to, wall_ms};

/// The program of an earlier release: the last commit before its schema was changed, built from this repository's history.
fn program_of(release: u32) -> PathBuf {
    let commit = match release {
        1 => "24e363c",
        2 => "732dd89",
        _ => panic!("release {release} has no program yet"),
    };
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = repository.join(format!("target/release_{release}"));
    let source = place.join("source");
    fs::create_dir_all(&source).expect("a folder");
    let step = |command: &mut Command, what: &str| {
        assert!(command.status().is_ok_and(|exit| exit.success()), "{what} of {commit} failed");
    };
    let tar = place.join("source.tar");
    let archive = ["archive", "--format=tar", commit, "--output"];
    step(Command::new("git").current_dir(repository).args(archive).arg(&tar), "git archive");
    step(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(&source), "unpacking");
    let mut cargo = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    cargo
        .current_dir(&source)
        .args(["build", "--locked", "--quiet", "--bin", "mainspring", "--target-dir"])
        .arg(&place);
    step(&mut cargo, "building");
    place.join("debug/mainspring")
}

/// Registers `timers` through these nodes in turn, each until it is acknowledged: a node that stops refuses, says when to
/// come back, or is not there.
async fn register_patiently(apis: &[Api], url: &str, caller: usize, timers: usize) {
    for n in 0..timers {
        let (id, fire_at) = (format!("/v1/timers/c{caller}-{n}"), rfc3339(wall_ms() + 1500));
        let body = json!({ "fire_at": fire_at, "target": to(url) });
        let mut ways = apis.iter().cycle().skip(caller + n).take(200);
        loop {
            let api = ways.next().expect("it is taken within ten seconds");
            match api.try_send(Method::PUT, &id, &[], Some(&body)).await {
                Ok(answer) if matches!(answer.status, 200 | 201) => break,
                Ok(answer) => {
                    assert_eq!(answer.status, 503, "{:?}", answer.body);
                    assert!(answer.header("retry-after").is_some(), "{:?}", answer.body);
                }
                Err(why) => assert!(why.is_request(), "{why:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Two nodes, and callers who go on while one after the other is replaced by today's: all that they register is taken, and
/// fires once. Returns how many timers these were.
async fn replaced_under_load(nodes: &mut [Node; 2], of: impl Fn(&Node) -> Api, receiver: &Receiver) -> usize {
    let (callers, timers, before) = (10, 150, receiver.received().len());
    let apis: Vec<Api> = nodes.iter().map(of).collect();
    let url = receiver.url("/ok");
    let calling = (0..callers).map(|caller| {
        let (apis, url) = (apis.clone(), url.clone());
        tokio::spawn(async move { register_patiently(&apis, &url, caller, timers).await })
    });
    let calling: Vec<_> = calling.collect();
    let wanted = callers * timers;
    for (node, of) in nodes.iter_mut().zip([4, 2]) {
        receiver.wait_until(|all| all.len() > before + wanted / of, Duration::from_secs(60)).await;
        node.upgrade().await;
        node.wait_ready(Duration::from_secs(60)).await;
    }
    for caller in calling {
        caller.await.expect("every registration is taken in the end");
    }
    wanted
}

async fn are_all_of_today(store: &str) {
    // The node that a recorded store was left by is not one of them.
    let releases = ask_sql(store, "SELECT DISTINCT release::text FROM nodes WHERE name <> 'old'").await;
    assert_eq!(releases, mainspring_migrations::RELEASE.to_string());
}

/// `scripts/test --long`: an earlier program has to be built.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_release_1_are_replaced_one_after_the_other() {
    if std::env::var_os("MAINSPRING_TEST_LONG").is_none() {
        return;
    }
    let old = tokio::task::spawn_blocking(|| program_of(1)).await.expect("builds");
    let (store, receiver) = (empty_database().await, Receiver::start().await);
    let start = || Node::builder().program(&old).cold(&store).start_ready();
    let mut nodes = [start().await, start().await];
    let wanted = replaced_under_load(&mut nodes, Node::api, &receiver).await;
    let ledger = settled(&nodes[0].api(), wanted, 0).await;
    assert_eq!(ledger.registered, wanted as u64);
    Verdict::on(&receiver.received()).is_clean(wanted);
    are_all_of_today(&store).await;
}

/// The same on a store that has one of everything, with keys (`scripts/test --long`).
#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_release_2_are_replaced_one_after_the_other() {
    if std::env::var_os("MAINSPRING_TEST_LONG").is_none() {
        return;
    }
    let old = tokio::task::spawn_blocking(|| program_of(2)).await.expect("builds");
    let (store, receiver) = (empty_database().await, Receiver::start().await);
    release_2(&store, &receiver.url("/ok")).await;
    let start = || as_release_2(Node::builder()).program(&old).cold(&store).start_ready();
    let mut nodes = [start().await, start().await];
    let wanted = replaced_under_load(&mut nodes, caller, &receiver).await;
    let ledger = settled(&caller(&nodes[0]), FIRED + wanted, STAYS).await;
    assert_eq!((ledger.registered, ledger.dead, ledger.cancelled), (17 + wanted as u64, 1, 1));
    Verdict::on(&receiver.received()).is_clean(FIRED - 2 + wanted);
    all_of_release_2_is_there(&caller(&nodes[1]), &receiver).await;
    are_all_of_today(&store).await;
}
