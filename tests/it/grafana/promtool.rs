//! promtool's own checks: of the rules, of their tests, and of what a node serves.

use std::io::Write;
use std::process::{Command, Stdio};

use super::files;
use crate::support::Node;

/// Runs promtool, which has to have nothing against it.
fn promtool(args: &[&str], files: &[std::path::PathBuf], input: &str) {
    let mut command = Command::new("promtool");
    command.args(args).args(files).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool (scripts/install-needs installs it)");
    child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {args:?}: {}\n{said}", output.status);
}

#[test]
fn the_rules_are_sound() {
    promtool(&["check", "rules", "--lint=all", "--lint-fatal"], &files("rules", "yml"), "");
}

#[test]
fn alerts_fire_when_they_should_and_at_no_other_time() {
    promtool(&["test", "rules"], &files("rules/tests", "yml"), "");
}

#[tokio::test]
async fn promtool_has_nothing_against_the_series_of_a_node() {
    let node = Node::builder().start_ready().await;
    let (status, text) = node.api().get("/metrics").await;
    assert_eq!(status, 200);
    promtool(&["check", "metrics"], &[], text.as_str().expect("Prometheus text"));
}
