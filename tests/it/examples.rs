//! The recipes of `examples/`: each is run in small, by its one command, and judges itself by what has arrived.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{Process, eventually};

/// A recipe in small takes less than a minute and a half on a quiet machine: one waits for a whole minute to come.
const LONG: Duration = Duration::from_secs(300);
/// What a recipe needs to end its servers.
const TIDY: Duration = Duration::from_secs(60);

/// A directory for the temporary files of a recipe.
fn room() -> TempDir {
    let room = tempfile::tempdir().expect("a temporary directory");
    // PostgreSQL runs as a user of its own, who must be able to pass.
    fs::set_permissions(room.path(), fs::Permissions::from_mode(0o711)).expect("it can be passed");
    room
}

/// The processes that work in a directory.
fn working_in(dir: &Path) -> Vec<String> {
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let inside = |path: &Path| fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
    let found = all.filter(|entry| inside(&entry.path()));
    found.map(|entry| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default()).collect()
}

/// Runs a recipe to its end and returns its exit code and what it printed. Nothing is left of it: no file, no process.
async fn cook(recipe: &str, settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let (room, out) = (room(), tempfile::tempdir().expect("a temporary directory"));
    let log = out.path().join("log");
    let stdout = File::create(&log).expect("a file");
    let stderr = stdout.try_clone().expect("a second handle");
    let mut command = Command::new(format!("{}/examples/{recipe}/run", env!("CARGO_MANIFEST_DIR")));
    command.env_clear().env("PATH", std::env::var_os("PATH").expect("a path")).env("TMPDIR", room.path());
    command.env("MAINSPRING", env!("CARGO_BIN_EXE_mainspring")).envs(settings.iter().copied());
    command.current_dir(out.path()).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let process = Process::spawn(&mut command).expect("it starts");
    let in_time = process.wait(LONG).await;
    // Told to end, it ends what it started.
    let ended = process.end_with(Signal::TERM, TIDY).await.expect("it ends");
    let printed = fs::read_to_string(&log).expect("text");
    assert!(in_time.is_some(), "it takes more than {LONG:?}: {printed}");
    eventually("no process is left", TIDY, async || {
        let left = working_in(room.path());
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    let left: Vec<_> = fs::read_dir(room.path()).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
    (ended.status.code(), printed)
}

/// Runs a recipe that has to end well, and to print each of these.
async fn succeeds(recipe: &str, settings: &[(&str, &str)], told: &[&str]) {
    let (code, printed) = cook(recipe, settings).await;
    assert_eq!(code, Some(0), "{printed}");
    for part in told.iter().chain(&["every promise held"]) {
        assert!(printed.contains(part), "`{part}` is missing: {printed}");
    }
}

#[tokio::test]
async fn coupon_reminders_reach_each_subscriber_once() {
    let told = [
        "2000 subscribers, 2020 reminders",
        "20 cancelled, 10 of them subscribed again",
        "1990, each subscriber once",
        "20 users with two coupons got one push each",
        "2030 registered = 2010 delivered + 20 cancelled",
    ];
    // How fast a machine is that also runs other tests is not what this is about.
    succeeds("coupon-reminders", &[("SUBSCRIBERS", "2000"), ("REMIND_IN", "24"), ("WITHIN", "120")], &told)
        .await;
}

#[tokio::test]
async fn an_alarm_clock_for_three_services_loses_nothing_in_a_restart() {
    let told = [
        "orders    100 of 100 came",
        "meetings  100 of 100 came",
        "viewings  100 of 100 came",
        "300 registered = 300 delivered",
    ];
    succeeds("alarm-clock", &[("EACH", "100")], &told).await;
}

#[tokio::test]
async fn an_order_is_rated_after_its_delay_once_unless_the_customer_rates_in_time() {
    let told = [
        "20 calls repeated: 200, and the due time stays; another content under such an id: 409 id_taken",
        "25 rated in time: 200 cancelled, and the same on a repeat",
        "the server was killed, and started again before the first one was due",
        "25 rated too late: 409 already_fired",
        "20 first calls repeated once more: 200, and how it ended",
        "each once and signed",
        "100 registered = ",
    ];
    // To the second on a machine of its own.
    succeeds("rate-after-48-hours", &[("ORDERS", "100"), ("AFTER", "20"), ("WITHIN", "60")], &told).await;
}

#[tokio::test]
async fn greetings_of_a_day_are_shared_by_three_nodes_and_cancelled_by_sender_and_day() {
    let told = [
        "3000 greetings of the next twenty years",
        "all of the sender shop:7: 240 found by a dry run, 240 cancelled",
        ": 120 found by a dry run, 120 cancelled",
        "630 of 630, each once",
        "360 of the sender and the day that were cancelled: none arrived",
        "at the same time",
        "3000 registered = 630 delivered + 360 cancelled + 2010 parked for years",
    ];
    // Three nodes start before they are due, also on a busy machine.
    succeeds("greetings", &[("GREETINGS", "3000"), ("BEGIN_IN", "30")], &told).await;
}

#[tokio::test]
async fn tasks_reach_those_they_are_for_once_and_the_log_says_what_the_workers_say() {
    let told = [
        "422 at /data/room and /data/minutes; a template in use: 409 in_use",
        "six of the group of twenty: day-1 day-2 day-3 ",
        "eve had windows three times, one after the other; bob left noisy out, and took it later",
        "started again: eve's lease had ended, and she got ",
        "60 rooms are clean",
        "visit went from bob to amy; while she had it: 409 in_flight",
        "12 tasks of the night found by a dry run, 12 cancelled",
        "; the workers say the same",
        " skipped while paused",
    ];
    succeeds("task-dispatch", &[("TASKS", "60")], &told).await;
}

/// Its verdict is worth something: the same recipe with no second to spare.
#[tokio::test]
async fn a_recipe_whose_promise_does_not_hold_fails() {
    let (code, printed) =
        cook("coupon-reminders", &[("SUBSCRIBERS", "400"), ("REMIND_IN", "12"), ("WITHIN", "0")]).await;
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("BROKEN: the last push came"), "{printed}");
    assert!(printed.contains("FAILED: a promise did not hold"), "{printed}");
}
