//! Calls about schedules, and the lists of what they have made.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::header::RETRY_AFTER;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{AGAIN, Callers};
use crate::clock::wall_us;
use crate::model::time::UnixMs;
use crate::tools::drill::history::{
    Listed, Reason, ScheduleAsk, ScheduleCall, occurrence_id, schedule_id, schedule_of,
};
use crate::tools::drill::plan::Behaviour;

/// The destination of lifecycle events, and the subscription.
const LOG: &str = "drill-log";
/// How often a call is made that has to be answered, once all nodes are up.
const TRIES: usize = 30;

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    items: Vec<Item>,
    next: Option<String>,
}

/// What a list says of an occurrence.
#[derive(Deserialize)]
struct Item {
    id: String,
    state: String,
    created_at: UnixMs,
    skipped: Option<String>,
}

impl Item {
    /// What is noted of it; `None` if it has no nominal time.
    fn listed(&self) -> Option<Listed> {
        let (id, moment) = self.id.rsplit_once(':')?;
        let nominal_ms = moment_ms(moment)?;
        Some(Listed {
            schedule: schedule_of(id).filter(|_| occurrence_id(id, nominal_ms) == self.id)?,
            nominal_ms,
            is_delivered: self.state == "delivered",
            is_cancelled: self.state == "cancelled",
            skipped: self.skipped.as_deref().map(Reason::of),
            made_us: self.created_at.get() * 1000,
        })
    }
}

/// The moment in an id, such as `20261201T090000000Z`.
fn moment_ms(text: &str) -> Option<i64> {
    let is_plain = text.len() == 19 && text.is_ascii();
    let part = |from: usize, until: usize| text.get(from..until);
    let [year, month, day] = [part(0, 4)?, part(4, 6)?, part(6, 8)?];
    let [hour, minute, second, ms] = [part(9, 11)?, part(11, 13)?, part(13, 15)?, part(15, 18)?];
    let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}.{ms}Z");
    UnixMs::parse_rfc3339(&text).ok().filter(|_| is_plain).map(UnixMs::get)
}

impl Callers {
    /// Has the receivers told of every nominal time that is skipped from now on.
    pub async fn hear_of_skips(&self) -> anyhow::Result<()> {
        let url = self.receivers.url(0, Behaviour::Accepts);
        self.destination(LOG, &json!({"webhook": {"url": url}})).await?;
        let body = json!({"destination": LOG, "events": ["schedule.skipped"]});
        for _ in 0..TRIES {
            let url = format!("{}/v1/subscriptions/{LOG}", self.node());
            let answer = self.http.put(url).json(&body).send().await?;
            match answer.status() {
                StatusCode::OK | StatusCode::CREATED => return Ok(()),
                // Not every node knows of it yet.
                StatusCode::SERVICE_UNAVAILABLE => tokio::time::sleep(AGAIN[0]).await,
                status => bail!("the subscription is not made: {status}"),
            }
        }
        bail!("the subscription is not taken by every node")
    }

    /// Makes one call about a schedule until it is answered. Returns whether it was acknowledged.
    pub async fn ask_schedule(&self, schedule: u32, ask: ScheduleAsk, body: Option<&Value>) -> bool {
        let mut wait = AGAIN[0];
        loop {
            let Ok(permit) = self.calls.acquire().await else { return false };
            let asked_us = wall_us();
            let status = self.call_schedule(schedule, ask, body).await;
            let call = ScheduleCall { schedule, ask, asked_us, answered_us: wall_us(), status };
            self.recorder.schedule_call(call);
            drop(permit);
            if status.is_some() || self.give_up.is_cancelled() {
                return call.is_done();
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.give_up.cancelled() => {}
            }
            wait = (wait * 2).min(AGAIN[1]);
        }
    }

    /// The status that counts; `None` if there is no answer, or one that promises nothing.
    async fn call_schedule(&self, schedule: u32, ask: ScheduleAsk, body: Option<&Value>) -> Option<u16> {
        let (method, what) = match ask {
            ScheduleAsk::Make => (Method::PUT, ""),
            ScheduleAsk::Change => (Method::PATCH, ""),
            ScheduleAsk::Pause => (Method::POST, "/pause"),
            ScheduleAsk::Resume => (Method::POST, "/resume"),
        };
        let url = format!("{}/v1/schedules/{}{what}", self.node(), schedule_id(schedule));
        let mut request = self.http.request(method, url);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.ok()?;
        let (status, says_when) = (response.status(), response.headers().contains_key(RETRY_AFTER));
        response.bytes().await.ok()?;
        (!(matches!(status.as_u16(), 429 | 503) && says_when)).then_some(status.as_u16())
    }

    /// All occurrences of a schedule, live and ended. Fails when no node tells them.
    pub async fn occurrences(&self, schedule: u32) -> anyhow::Result<Vec<Listed>> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = self.page_of(schedule, cursor.as_deref()).await?;
            all.extend(page.items.iter().filter_map(Item::listed));
            cursor = page.next;
            if cursor.is_none() {
                return Ok(all);
            }
        }
    }

    async fn page_of(&self, schedule: u32, cursor: Option<&str>) -> anyhow::Result<Page> {
        let mut tries = 0;
        loop {
            let url = format!("{}/v1/timers", self.node());
            let mut request = self.http.get(url).query(&[("schedule", schedule_id(schedule).as_str())]);
            request = request.query(&[("limit", "1000")]);
            if let Some(cursor) = cursor {
                request = request.query(&[("cursor", cursor)]);
            }
            let page = async { request.send().await?.error_for_status()?.json::<Page>().await };
            match page.await {
                Ok(page) => return Ok(page),
                Err(why) if tries >= TRIES => {
                    return Err(why).context("the occurrences of a schedule are not listed");
                }
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: &str) -> Item {
        Item {
            id: id.into(),
            state: "expired".into(),
            created_at: UnixMs::new(7),
            skipped: Some("paused".into()),
        }
    }

    #[test]
    fn an_occurrence_is_read_back_from_its_id() {
        let listed = item("drill-rule-3:20261201T090000500Z").listed().expect("an occurrence");
        let at_ms = UnixMs::parse_rfc3339("2026-12-01T09:00:00.5Z").expect("a time").get();
        assert_eq!((listed.schedule, listed.nominal_ms, listed.skipped), (3, at_ms, Some(Reason::Paused)));
        assert_eq!((listed.is_delivered, listed.made_us), (false, 7000));
        for id in [
            "drill-3",
            "drill-3:20261201T090000500Z",
            "drill-rule-3:2026",
            "drill-rule-3:20261201T090000500Zé",
        ] {
            assert_eq!(item(id).listed(), None, "{id}");
        }
    }
}
