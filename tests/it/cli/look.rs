//! `forecast`, `receivers` and `wheel watch` against a running server.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{FAILED, OK, Shell, UNAVAILABLE, USAGE};
use crate::support::{Node, Receiver, eventually, free_port, in_state};

/// The limit of every wait: long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn forecast_shows_how_much_is_due_when_and_the_peak() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let nothing = shell.run("forecast").await;
    assert_eq!((nothing.code, nothing.stdout.as_str()), (OK, ""));
    assert_eq!(nothing.stderr, "nothing is due then\n");
    for (id, at) in [("a", "09:00:00"), ("b", "09:00:30"), ("c", "09:01:00"), ("d", "10:00:00")] {
        let put = format!("timer put {id} --at 2099-01-01T{at}Z --webhook http://127.0.0.1:9/");
        assert_eq!(shell.run(&put).await.code, OK);
    }
    let ten_minutes = "forecast --from 2099-01-01T09:00:00Z --for 10m --step 1m";
    let text = shell.run(ten_minutes).await.printed();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["FROM", "DUE"], "{text}");
    assert_eq!((rows[1][0], rows[1][rows[1].len() - 2]), ("2099-01-01T09:00:00.000Z", "2"), "{text}");
    assert_eq!((rows[2][0], rows[2][rows[2].len() - 2]), ("2099-01-01T09:01:00.000Z", "1"), "{text}");
    assert_eq!(rows[3].join(" "), "peak: 2 from 2099-01-01T09:00:00.000Z", "{text}");
    let found = shell.run(&format!("{ten_minutes} --json")).await.json();
    assert_eq!(found["peak"], json!({"from": "2099-01-01T09:00:00.000Z", "count": 2}));
    let backwards = "forecast --from 2099-01-01T09:00:00Z --to 2098-01-01T09:00:00Z";
    assert!(shell.run(backwards).await.refused(FAILED).contains("it has to be later than `from`"));
}

#[tokio::test]
async fn receivers_shows_the_worst_first() {
    let node = Node::builder().start_ready().await;
    let (shell, receiver) = (Shell::of(&node), Receiver::start().await);
    let none = shell.run("receivers").await;
    assert_eq!((none.code, none.stdout.as_str()), (OK, ""));
    assert!(none.stderr.starts_with("no receiver yet"), "{none:?}");
    let gone = format!("http://127.0.0.1:{}", free_port());
    for (id, url, end) in [("a", receiver.url("/ok"), "delivered"), ("b", gone.clone(), "dead")] {
        let put = format!("timer put {id} --in 0s --webhook {url} --attempts 1");
        assert_eq!(shell.run(&put).await.code, OK);
        in_state(&node.api(), id, end).await;
    }
    let text = shell.run("receivers").await.printed();
    let first: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first, ["RECEIVER", &gone, receiver.url("").trim_end_matches('/')], "{text}");
    assert!(
        text.lines().nth(1).is_some_and(|line| line.contains("failing") && line.contains("no connection")),
        "{text}"
    );
    assert_eq!(shell.run("receivers --json").await.json()["items"][0]["receiver"], gone);
    let listed = shell.run(&format!("timer ls --json --receiver {gone}")).await.printed();
    assert_eq!(listed.lines().count(), 1, "{listed}");
}

#[tokio::test]
async fn wheel_watch_prints_frames_as_json_and_needs_a_terminal_to_draw() {
    let node = Node::builder().start_ready().await;
    let shell = Shell::of(&node);
    let said = shell.run("wheel watch").await.refused(USAGE);
    assert!(said.contains("--json prints the frames"), "{said}");
    let running = shell.start("wheel watch --json");
    let lines = eventually("frames are printed", LONG, async || {
        let printed = running.printed();
        if printed.lines().count() > 5 { Ok(printed) } else { Err(printed) }
    })
    .await;
    let first: Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&first["near"], &first["x"]["level"]), (&json!(120), &json!("ok")));
    running.process.signal(Signal::INT);
    let ended = running.ended().await;
    assert_eq!((ended.code, ended.stderr.as_str()), (OK, "stopping\n"));
    Shell::new()
        .env("MAINSPRING_SERVER", "http://127.0.0.1:9")
        .run("wheel watch --json")
        .await
        .refused(UNAVAILABLE);
}

/// `script` with what runs in it. When it ends, its terminal is gone, and with it the program: one that was left behind
/// would call the port of its server for ever, whoever listens there next.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// On a terminal of 80 × 24, which `script` makes.
#[tokio::test]
async fn wheel_watch_draws_on_a_terminal_and_q_quits() {
    let node = Node::builder().start_ready().await;
    let mut command = Command::new("script");
    let line = format!("stty rows 24 columns 80; exec {} wheel watch", env!("CARGO_BIN_EXE_mainspring"));
    command.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("TERM", "xterm")
        .env("MAINSPRING_SERVER", node.base());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = Terminal(command.spawn().expect("`script` is part of every Debian"));
    let child = &mut terminal.0;
    let (mut keys, mut output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let screen = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&screen);
    let reader = std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = output.read(&mut chunk) {
            seen.lock().expect("plain").extend_from_slice(&chunk[..read]);
        }
    });
    let shown = || String::from_utf8_lossy(&screen.lock().expect("plain")).into_owned();
    // Blanks are not written, the cursor skips them.
    eventually("the picture is drawn", LONG, async || {
        let shown = shown();
        let is_whole =
            ["On time.", "second", "minute", "wheel:", "quits"].iter().all(|text| shown.contains(text));
        if is_whole { Ok(()) } else { Err(shown) }
    })
    .await;
    keys.write_all(b"q").expect("a key");
    let status =
        eventually("it ends", LONG, async || child.try_wait().expect("a child").ok_or_else(shown)).await;
    reader.join().expect("it ends with its input");
    assert!(status.success(), "{status}: {}", shown());
    // The alternate screen is left, and the cursor shown again.
    assert!(shown().contains("\u{1b}[?1049l") && shown().contains("\u{1b}[?25h"), "{}", shown());
}
