//! A subscriber to every lifecycle event beside the load (`--subscribed`): what events cost, and how soon they are sent.

use std::time::Duration;

use anyhow::{Context, bail};

use super::Env;
use super::figures::{Figure, Figures};
use crate::clock::Monotonic;

/// The name of the destination and of the subscription.
const NAME: &str = "bench-log";

/// How long events may take to be sent once the load has ended.
const DRAIN: Duration = Duration::from_secs(300);

/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(100);

impl Env {
    /// Subscribes for everything, if that is asked for. The events go to the bench's receiver, which does not count them.
    pub(super) async fn subscribe(&self) -> anyhow::Result<()> {
        if !self.options.subscribed {
            return Ok(());
        }
        let url = self.receiver.log_url();
        let destination = serde_json::json!({"webhook": {"url": url}}).to_string();
        self.endpoint.put(&format!("/v1/destinations/{NAME}"), &destination).await?;
        let subscription = serde_json::json!({"destination": NAME, "events": ["*"]}).to_string();
        self.endpoint.put(&format!("/v1/subscriptions/{NAME}"), &subscription).await
    }

    /// Waits until no event waits, and notes how long that took.
    pub(super) async fn drained(&self, figures: &mut Figures) -> anyhow::Result<()> {
        if !self.options.subscribed {
            return Ok(());
        }
        let began = Monotonic::now();
        loop {
            let shown = self.endpoint.get(&format!("/v1/subscriptions/{NAME}")).await?;
            let shown: serde_json::Value = serde_json::from_slice(&shown)?;
            let waiting =
                shown["waiting"].as_i64().context("the server does not say how many events wait")?;
            if waiting == 0 {
                break;
            }
            if began.elapsed() > DRAIN {
                bail!("{waiting} events still wait {} s after the load", DRAIN.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        figures.set(Figure::Drained, began.elapsed().as_secs_f64());
        Ok(())
    }
}
