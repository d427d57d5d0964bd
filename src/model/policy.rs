//! The policies that a caller may set on a timer: how it is retried, and what happens when it is late.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::merge::Merge;
use super::time::{Span, UnixMs};

/// When failed attempts are repeated: exponential backoff that starts at `first` and doubles up to `cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// The number of attempts, the first included: 1 to 100.
    pub attempts: u32,
    /// The wait before the second attempt.
    pub first: Span,
    /// The longest wait between two attempts.
    pub cap: Span,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 8,
            first: Span::from_duration(Duration::from_secs(1)),
            cap: Span::from_duration(Duration::from_secs(3600)),
        }
    }
}

impl Retry {
    /// The wait after attempt number `attempt` (from 1) failed.
    ///
    /// `jitter` in 0.0–1.0 gives three quarters to five quarters of the nominal wait, so that timers that failed
    /// together are not retried together.
    pub fn wait_after(&self, attempt: u32, jitter: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(40);
        let nominal = self.first.get().as_secs_f64() * 2_f64.powi(i32::try_from(doublings).unwrap_or(40));
        let capped = nominal.min(self.cap.get().as_secs_f64());
        Duration::from_secs_f64(capped * (0.75 + 0.5 * jitter.clamp(0.0, 1.0)))
    }
}

/// What happens to a timer whose first attempt would come later than its grace, as after an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// It is delivered late.
    #[default]
    Deliver,
    /// It ends as `expired`; nothing is sent.
    Expire,
}

/// The `late` policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Late {
    /// The lateness up to which it is delivered in any case.
    pub grace: Span,
    /// What happens beyond `grace`.
    #[serde(default)]
    pub then: Then,
}

/// The policies of one timer. `None` stands for the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Policies {
    /// `retry` from the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// `late` from the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
    /// `merge` from the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<Merge>,
}

impl Policies {
    /// The time after which no first attempt is made; `None` if there is none.
    pub fn expire_at(&self, due_at: UnixMs) -> Option<UnixMs> {
        let late = self.late.filter(|late| late.then == Then::Expire)?;
        Some(due_at.plus(late.grace.get()))
    }

    /// The number of attempts, the first included.
    pub fn max_attempts(&self) -> u32 {
        self.retry.unwrap_or_default().attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap() {
        let retry =
            Retry { attempts: 8, first: Span::parse("PT1S").unwrap(), cap: Span::parse("PT10S").unwrap() };
        let waits: Vec<_> = (1..=6).map(|n| retry.wait_after(n, 0.5).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        assert_eq!(retry.wait_after(1, 0.0), Duration::from_millis(750));
        assert_eq!(retry.wait_after(1, 1.0), Duration::from_millis(1250));
        assert_eq!(retry.wait_after(u32::MAX, 0.5), Duration::from_secs(10));
    }
}
