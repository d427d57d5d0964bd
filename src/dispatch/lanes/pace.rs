//! How quick a receiver is: answers a second, recent and long-term.

/// How often the pace is measured, and the half-life of the recent pace, in milliseconds.
const RECENT_MS: f64 = 500.0;

/// The half-life of the long-term pace, in milliseconds.
const LONG_TERM_MS: f64 = 30_000.0;

/// The pace of a new lane, in answers a second: quick until it shows otherwise.
const INITIAL_PER_SECOND: f64 = 10_000.0;

/// Answers a second, as two exponentially weighted averages.
#[derive(Debug)]
pub(super) struct Pace {
    recent: f64,
    /// A pause of seconds does not make a quick receiver a slow one.
    long_term: f64,
    /// Answers since the last measurement.
    answers: u32,
    measured_at_ms: i64,
    /// The queue was empty at some moment since the last measurement.
    was_idle: bool,
}

impl Pace {
    pub fn new(now_ms: i64) -> Self {
        Self {
            recent: INITIAL_PER_SECOND,
            long_term: 0.0,
            answers: 0,
            measured_at_ms: now_ms,
            was_idle: false,
        }
    }

    /// Answers a second that may be counted on.
    pub fn per_second(&self) -> f64 {
        self.recent.max(self.long_term)
    }

    /// Counts an answer.
    pub fn answered(&mut self) {
        self.answers += 1;
    }

    /// Takes in whether the queue is empty now.
    pub fn observe_queue(&mut self, is_empty: bool) {
        self.was_idle |= is_empty;
    }

    /// Takes the answers since the last measurement into the averages, if that was long enough ago.
    pub fn measure(&mut self, is_empty: bool, now_ms: i64) {
        let passed = (now_ms - self.measured_at_ms) as f64;
        if passed < RECENT_MS {
            return;
        }
        let seen = f64::from(self.answers) * 1000.0 / passed;
        for (average, half_life) in [(&mut self.recent, RECENT_MS), (&mut self.long_term, LONG_TERM_MS)] {
            let weight = 0.5_f64.powf(passed / half_life);
            let smoothed = *average * weight + seen * (1.0 - weight);
            // With an empty queue the answers show the demand, not the receiver's limit; then the average only rises.
            *average = if self.was_idle { smoothed.max(*average) } else { smoothed };
        }
        self.was_idle = is_empty;
        self.answers = 0;
        self.measured_at_ms = now_ms;
    }
}
