//! The page in a real browser: Debian's Chromium, headless, driven over WebDriver.
//!
//! Whatever the browser writes to its console at warning level or above fails the test: script errors, failed requests
//! and violations of the content security policy all stand there.

use std::process::{Command, Stdio};
use std::time::Duration;

use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{KEY, NOWHERE};
use crate::support::{Node, Process, Receiver, eventually, free_port, in_state, register, to};

/// How long the browser may take for a step, also on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A browser of this test's own. Dropping it ends both browser and driver.
struct Browser {
    client: Client,
    _driver: Process,
    dir: TempDir,
}

impl Drop for Browser {
    /// Of a test that fails, the driver is killed and would leave its browser behind, with the standard output of the
    /// tests in its hands: whoever reads that would wait for ever.
    fn drop(&mut self) {
        let own = format!("--user-data-dir={}", self.dir.path().display());
        for process in procfs::process::all_processes().into_iter().flatten().flatten() {
            let is_own = process.cmdline().is_ok_and(|args| args.iter().any(|arg| arg.contains(&own)));
            if let Some(pid) = Pid::from_raw(process.pid).filter(|_| is_own) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// `POST /session/{id}/se/log`: what the console holds since the last call.
#[derive(Debug)]
struct Console;

impl WebDriverCompatibleCommand for Console {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/se/log", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &url::Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({"type": "browser"}).to_string()))
    }
}

impl Browser {
    async fn start(width: u32, height: u32) -> Self {
        let dir = tempfile::Builder::new().prefix("browser").tempdir().expect("a temporary directory");
        let port = free_port();
        let mut driver = Command::new("chromedriver");
        driver.arg(format!("--port={port}")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let driver =
            Process::spawn(&mut driver).expect("chromedriver starts: scripts/install-needs installs it");
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-quic".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--no-proxy-server".to_owned(),
            format!("--window-size={width},{height}"),
            format!("--user-data-dir={}", dir.path().display()),
        ];
        let wanted = json!({
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        });
        let wanted: Capabilities = wanted.as_object().expect("an object").clone();
        let client = eventually("the browser starts", SOON, async || {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(wanted.clone()).connect(&format!("http://127.0.0.1:{port}")).await
        })
        .await;
        Self { client, _driver: driver, dir }
    }

    async fn open(&self, url: &str) {
        self.client.goto(url).await.unwrap_or_else(|why| panic!("{url}: {why}"));
    }

    /// What a script returns.
    async fn run(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap_or_else(|why| panic!("{script}: {why}"))
    }

    /// Waits until a script returns something true; returns it.
    async fn until(&self, what: &str, script: &str) -> Value {
        eventually(what, SOON, async || match self.run(script).await {
            Value::Null | Value::Bool(false) => Err(self.run("return document.body.innerText").await),
            found => Ok(found),
        })
        .await
    }

    async fn click(&self, css: &str) {
        let found = self.client.find(Locator::Css(css)).await.unwrap_or_else(|why| panic!("{css}: {why}"));
        found.click().await.unwrap_or_else(|why| panic!("{css}: {why}"));
    }

    async fn path(&self) -> String {
        let url = self.client.current_url().await.expect("an address");
        url[url::Position::BeforePath..].to_owned()
    }

    /// The console was quiet since the last look.
    async fn is_quiet(&self, whereabouts: &str) {
        let entries = self.client.issue_cmd(Console).await.expect("the console");
        let loud: Vec<&Value> = entries
            .as_array()
            .expect("entries")
            .iter()
            .filter(|entry| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING")))
            .collect();
        assert!(loud.is_empty(), "{whereabouts}: {loud:#?}");
    }

    async fn end(self) {
        self.client.clone().close().await.expect("the browser ends");
    }
}

/// Timers in every second and minute of the wheels, one that is dead, and one that retries.
async fn busy(node: &Node, key: Option<&str>) -> Receiver {
    let api = match key {
        Some(key) => node.api().with_key(key),
        None => node.api(),
    };
    let receiver = Receiver::start().await;
    let mut timers: Vec<Value> = (1..60)
        .flat_map(|n| (0..=(n % 7)).map(move |k| (n, k)))
        .map(|(n, k)| json!({"id": format!("minute-{n}-{k}"), "delay": format!("PT{n}M"), "target": to(NOWHERE)}))
        .collect();
    timers.extend((1..40).map(|n| {
        json!({"id": format!("second-{n}"), "delay": format!("PT{n}S"), "target": to(receiver.url("/ok"))})
    }));
    register(&api, &timers).await;
    let failing = |attempts: u32| {
        json!({"delay": "PT0S", "target": to(receiver.url("/status/500")),
            "retry": {"attempts": attempts, "first": "PT1H"}})
    };
    assert_eq!(api.put("fails", &failing(1)).await.0, 201);
    assert_eq!(api.put("retries", &failing(5)).await.0, 201);
    in_state(&api, "fails", "dead").await;
    in_state(&api, "retries", "retrying").await;
    receiver
}

#[tokio::test]
async fn the_wheel_moves_a_slot_lists_its_timers_and_one_is_cancelled() {
    let node = Node::builder().start_ready().await;
    let _receiver = busy(&node, None).await;
    let browser = Browser::start(1440, 1000).await;
    let base = node.base();

    // Every page, without a word in the console.
    for path in
        ["/timers", "/timers/fails", "/timers/retries", "/ahead", "/late", "/receivers", "/nodes", "/"]
    {
        browser.open(&format!("{base}{path}")).await;
        browser
            .until(&format!("{path} has a heading"), "return document.querySelector('h1').innerText")
            .await;
        browser.is_quiet(path).await;
    }

    // The wheel lives: frames come, the hand turns, the hub tells the time, timers fire.
    browser.until("frames come", "return document.getElementById('heard').textContent === 'Live'").await;
    let hand = "return document.querySelector('[data-turn]').getAttribute('transform')";
    let (before, clock) =
        (browser.run(hand).await, browser.run("return document.getElementById('clock').textContent").await);
    let moved =
        format!("return document.querySelector('[data-turn]').getAttribute('transform') !== {before}");
    browser.until("the hand moves", &moved).await;
    let ticked = format!("return document.getElementById('clock').textContent !== {clock}");
    browser.until("the clock goes", &ticked).await;
    browser
        .until("timers fire", "return !document.getElementById('hub-fired').textContent.startsWith('0 ')")
        .await;
    let slots = "return document.querySelectorAll('#wheels a[href]').length";
    let filled = browser.run(slots).await.as_u64().expect("a number");
    assert!(filled > 30, "{filled} slots hold something");

    // On pointing at a slot it is told what it holds.
    let far = "return [...document.querySelectorAll('#wheels g:last-of-type a[href]')].find(a => \
               a.getAttribute('aria-label').includes('timers') && !a.className.baseVal)";
    browser.until("a minute with several timers", &far.replace("return ", "return !!")).await;
    browser
        .run(&format!(
            "({}).dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))",
            far.trim_start_matches("return ")
        ))
        .await;
    browser
        .until(
            "its receivers are named",
            "return document.getElementById('slot').textContent.includes('127.0.0.1:9')",
        )
        .await;
    browser.is_quiet("pointing").await;

    // A click on it lists its timers.
    let href = browser.run(&format!("{far}.getAttribute('href')")).await;
    browser.click(&format!("#wheels a[href={href}]")).await;
    browser.until("the list", "return document.querySelector('table.list')").await;
    assert_eq!(browser.path().await, href.as_str().expect("a text").to_owned());
    let listed = browser
        .run("return document.querySelectorAll('input[type=checkbox][name=id]').length")
        .await
        .as_u64();
    assert!(listed.is_some_and(|listed| (2..=7).contains(&listed)), "{listed:?}");

    // One of them is cancelled: marked, asked, done.
    browser.click("input[type=checkbox][name=id]").await;
    browser
        .until("it is counted", "return document.getElementById('marked').textContent === '1 timer marked'")
        .await;
    let id = browser.run("return document.querySelector('input[type=checkbox][name=id]').value").await;
    browser.click("button[value=cancel]").await;
    browser
        .until("the question", "return document.querySelector('h1').innerText === 'Cancel 1 timer?'")
        .await;
    browser.click("button.danger").await;
    browser
        .until("the answer", "return document.querySelector('h1').innerText === 'Cancelled 1 timer'")
        .await;
    browser.is_quiet("cancelling").await;
    let (_, timer) = node.api().timer(id.as_str().expect("an id")).await;
    assert_eq!(timer["state"], "cancelled");

    // Data on demand, without leaving the page.
    browser.open(&format!("{base}/timers/fails")).await;
    browser.click("#data a").await;
    browser.until("the call", "return document.getElementById('again') && document.getElementById('again').textContent.startsWith('curl')").await;
    assert_eq!(browser.path().await, "/timers/fails");
    browser.is_quiet("data").await;

    // A page that reads itself again has new content after a while, and no word in the console.
    browser.open(&format!("{base}/nodes")).await;
    let lead = "return document.querySelector('.lead').textContent";
    let before = browser.run(lead).await;
    browser.until("it is read again", &format!("{lead} !== {before}")).await;
    browser.is_quiet("reading again").await;
    browser.end().await;
}

#[tokio::test]
async fn a_stream_that_breaks_greys_the_picture_within_three_seconds() {
    let node = Node::builder().start_ready().await;
    let _receiver = busy(&node, None).await;
    let browser = Browser::start(390, 844).await;
    browser.open(&node.base()).await;
    browser.until("frames come", "return document.getElementById('heard').textContent === 'Live'").await;
    browser.is_quiet("a phone").await;
    let overflow = browser
        .run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        .await;
    assert_eq!(overflow, json!(0), "nothing is wider than the screen");
    // Where the machine stands still, the page does, too: nothing is drawn, and nothing greys.
    let gaps = "let last = performance.now(); window.gap = 0; const frame = at => { window.gap = \
                Math.max(window.gap, at - last); last = at; requestAnimationFrame(frame); }; \
                requestAnimationFrame(frame)";
    browser.run(gaps).await;
    node.pause();
    let paused = std::time::Instant::now();
    browser.until("it is grey", "return document.getElementById('flow').classList.contains('stale')").await;
    let took = paused.elapsed();
    let gap = browser.run("return window.gap").await.as_f64().expect("milliseconds");
    browser
        .until(
            "it is said",
            "return document.getElementById('heard').textContent.startsWith('Nothing heard for')",
        )
        .await;
    node.resume();
    browser.until("it lives again", "return document.getElementById('heard').textContent === 'Live'").await;
    let most = Duration::from_secs(4) + Duration::from_secs_f64(gap / 1000.0);
    assert!(took < most, "{took:?}, with {gap} ms between two frames");
    browser.end().await;
}

#[tokio::test]
async fn a_key_opens_the_page_in_a_browser() {
    let node = Node::builder().env("MAINSPRING__SERVER__API_KEYS", KEY).start_ready().await;
    let browser = Browser::start(1440, 1000).await;
    browser.open(&format!("{}/late", node.base())).await;
    browser.until("the login", "return document.querySelector('h1').innerText === 'Log in'").await;
    let field = browser.client.find(Locator::Css("input[name=key]")).await.expect("a field");
    field.send_keys(KEY).await.expect("the key is typed");
    browser.click("button.first").await;
    browser.until("the page", "return location.pathname === '/late'").await;
    browser.open(&node.base()).await;
    browser.until("frames come", "return document.getElementById('heard').textContent === 'Live'").await;
    browser.is_quiet("logged in").await;
    assert_eq!(browser.run("return document.cookie").await, json!(""), "script sees no cookie");

    // With a namespace to choose, every page is still in reach, and nothing is wider than a phone.
    let admin = node.api().with_key(KEY);
    let made = admin.send(Method::PUT, "/v1/namespaces/team-a", &[], Some(&json!({}))).await;
    assert_eq!(made.status, 201, "{}", made.body);
    browser.open(&format!("{}/timers", node.base())).await;
    let beyond = |what: &str| format!("const e = {what}; return e.scrollWidth - e.clientWidth");
    assert_eq!(browser.run(&beyond("document.querySelector('nav')")).await, json!(0), "no page is cut off");
    browser.run("document.querySelector('#namespace').value = 'team-a'").await;
    browser.click("form[action='/namespace'] button").await;
    let chosen = "return document.querySelector('#namespace option[selected]').textContent === 'team-a'";
    browser.until("it is chosen", chosen).await;
    browser.client.set_window_size(390, 844).await.expect("a smaller window");
    browser.open(&format!("{}/timers", node.base())).await;
    assert_eq!(browser.run(&beyond("document.documentElement")).await, json!(0));
    browser.is_quiet("choosing").await;
    browser.click("form[action='/logout'] button").await;
    browser.until("the login again", "return document.querySelector('h1').innerText === 'Log in'").await;
    browser.is_quiet("logged out").await;
    browser.end().await;
}
