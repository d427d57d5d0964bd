//! The secrets of inline webhooks: sealed before a timer or a schedule is written, opened for an attempt.
//!
//! None is sealed while nodes are at work that could not open it: they would send what is not signed. With the first one such
//! nodes cannot enter the store any more.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::vault::Locked;
use super::{Destinations, Refused};
use crate::cold::{ColdStore, Error};
use crate::model::json;
use crate::model::namespace::Namespace;
use crate::model::target::{SEALED, Target, Webhook};

/// Whether secrets are sealed: only where every node can open them.
#[derive(Debug, Default)]
pub(super) struct Sealing(AtomicBool);

impl Sealing {
    async fn may_begin(&self, store: &ColdStore) -> Result<bool, Error> {
        if !self.0.load(Ordering::Relaxed) && store.without_older().await? {
            self.0.store(true, Ordering::Relaxed);
        }
        Ok(self.0.load(Ordering::Relaxed))
    }
}

/// What a secret is sealed with: whose it is, and where it is sent.
fn sealed_as(namespace: Namespace, receiver: &str) -> String {
    format!("webhook {} {receiver}", namespace.0)
}

fn receiver(hook: &Webhook) -> String {
    hook.url.origin().ascii_serialization()
}

impl Destinations {
    /// Seals the secret of a target, if it has one that is not sealed and this node has a key.
    pub async fn seal_target(&self, namespace: Namespace, target: &mut Target) -> Result<(), Refused> {
        let Target::Webhook(hook) = target else { return Ok(()) };
        let Some(secret) = hook.secret.as_deref().filter(|secret| !secret.starts_with(SEALED)) else {
            return Ok(());
        };
        if !self.vault.has_key() || !Box::pin(self.sealing.may_begin(&self.store)).await? {
            return Ok(());
        }
        let sealed = self
            .vault
            .seal_text(&sealed_as(namespace, &receiver(hook)), secret)
            .map_err(|_| Refused::NotSealed)?;
        if sealed.is_some() {
            hook.secret = sealed;
        }
        Ok(())
    }

    /// Opens the secret of a target. One that cannot be opened stays sealed: nothing is sent with it.
    pub fn open_target(&self, namespace: Namespace, target: &mut Target) {
        let Target::Webhook(hook) = target else { return };
        let Some(sealed) = hook.secret.as_deref().filter(|secret| secret.starts_with(SEALED)) else { return };
        if let Ok(secret) = self.vault.open_text(&sealed_as(namespace, &receiver(hook)), sealed) {
            hook.secret = Some(secret);
        }
    }

    /// The text of a schedule's request with its secret as `target` has it: sealed, if it is.
    pub fn sealed_request(&self, request: String, target: &Target) -> String {
        match target {
            Target::Webhook(hook) if hook.is_sealed() => with_secret(request, hook.secret.as_deref()),
            _ => request,
        }
    }

    /// The same with its secret opened, to be read and changed.
    pub fn opened_request(&self, namespace: Namespace, request: String) -> Result<String, Locked> {
        if !request.contains(SEALED) {
            return Ok(request);
        }
        let Ok(value) = serde_json::from_str::<Value>(&request) else { return Ok(request) };
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
        let (Some(url), Some(sealed)) = (text("/target/webhook/url"), text("/target/webhook/secret")) else {
            return Ok(request);
        };
        let Some(url) = url.parse::<url::Url>().ok().filter(|_| sealed.starts_with(SEALED)) else {
            return Ok(request);
        };
        let name = sealed_as(namespace, &url.origin().ascii_serialization());
        let secret = self.vault.open_text(&name, sealed)?;
        Ok(with_secret(request, Some(&secret)))
    }
}

/// The request with this secret; all else stays as it is written.
fn with_secret(request: String, secret: Option<&str>) -> String {
    let patch = json!({"target": {"webhook": {"secret": secret}}}).to_string();
    json::merged(&request, &patch).unwrap_or(request)
}
