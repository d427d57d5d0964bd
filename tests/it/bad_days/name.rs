//! Two processes under one node name.

use std::time::Duration;

use super::{LONG, all_delivered, due_in};
use crate::support::{Node, Receiver, fresh_database, shared_as};

/// Three times a lease of three seconds a node looks whether its name is still its own.
const NOTICED: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_of_one_name_the_younger_stays_and_the_older_ends_with_an_error() {
    let store = fresh_database().await;
    let older = Node::builder().cold(&store).name("one").start_ready().await;
    let receiver = Receiver::start().await;
    for n in 0..40 {
        let timer = due_in(500 + n * 100, receiver.url("/ok"));
        assert_eq!(older.api().put(&format!("t{n}"), &timer).await.0, 201);
    }
    let younger = Node::builder().cold(&store).name("one").start_ready().await;
    let status = older.wait_exit(NOTICED).await.expect("the older ends by itself");
    assert_eq!(status.code(), Some(1), "{status}");
    let log = older.log();
    let told = "another process has started under the node name `one`; give each its own `node.name`";
    assert!(log.contains(told) && !log.contains("panicked"), "{log}");

    let api = younger.api();
    shared_as(&api, &[("one", 64)], LONG).await;
    assert_eq!(api.put("after", &due_in(0, receiver.url("/ok"))).await.0, 201);
    all_delivered(&api, 41).await;
    assert!(!younger.log().contains(told), "{}", younger.log());
    assert!(younger.sigterm().await.0.success());
}
