//! Where a firing goes: what is said, under which id, to whom, and what came of it.
//!
//! A sink takes a [`Delivery`] and gives an [`Outcome`]. It never sees a row, never retries and never decides
//! what follows; [`crate::dispatch`] does. One file for each kind of target, chosen in [`Sinks`].

pub mod event;
pub mod guard;
pub mod webhook;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::clock::StoreClock;
use crate::config::Config;
use crate::model::id::{Epoch, Generation};
use crate::model::pointer::Via;
use crate::model::target::Target;
use crate::model::time::UnixMs;
use crate::model::timer::AttemptResult;

/// One attempt to deliver one firing.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The delivery id: the same for all attempts of this firing, and no other's.
    pub id: String,
    /// The timer's id.
    pub timer: String,
    /// When it should fire.
    pub due_at: UnixMs,
    /// The generation that fires.
    pub generation: Generation,
    /// Which attempt of the generation this is, from 1.
    pub attempt: i32,
    /// To whom.
    pub target: Target,
    /// The payload: JSON.
    pub data: Vec<u8>,
    /// The claim that this attempt is made under.
    pub claim: Claim,
}

/// Which claim an attempt is made under. No receiver is told; it is for whoever watches the sinks.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// The timer's shard.
    pub shard: i32,
    /// The shard's epoch at the claim.
    pub epoch: Epoch,
    /// How the due timer was noticed.
    pub via: Option<Via>,
}

/// How an attempt came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The result.
    pub result: AttemptResult,
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
    /// The beginning of the answer's body.
    pub reply: Option<String>,
    /// What went wrong, in words.
    pub detail: Option<String>,
    /// The receiver asked for this wait.
    pub retry_after: Option<Duration>,
    /// The receiver will never take it (410).
    pub gone: bool,
}

impl Outcome {
    /// An outcome without an answer from the receiver: this result, for this reason.
    pub fn without_answer(result: AttemptResult, detail: Option<String>) -> Self {
        Self { result, status: None, reply: None, detail, retry_after: None, gone: false }
    }
}

/// Makes attempts: [`Sinks`], or the receivers of the simulation.
pub trait Sink: Send + Sync {
    /// Makes one attempt. Dropping the future leaves open whether the receiver got it.
    fn send<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a, Outcome>;
}

/// The sinks of this node, by kind of target.
pub struct Sinks {
    webhook: webhook::Webhooks,
}

impl Sinks {
    /// Sinks under these settings.
    pub fn new(config: &Arc<Config>, clock: StoreClock) -> Result<Self, reqwest::Error> {
        Ok(Self { webhook: webhook::Webhooks::new(config, clock)? })
    }
}

impl Sink for Sinks {
    fn send<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a, Outcome> {
        match &delivery.target {
            Target::Webhook(hook) => self.webhook.send(delivery, hook).boxed(),
            // The claim leaves these alone.
            Target::Unknown { kind } => {
                let detail = format!("this node does not know targets of kind {kind}");
                std::future::ready(Outcome::without_answer(AttemptResult::Refused, Some(detail))).boxed()
            }
        }
    }
}
