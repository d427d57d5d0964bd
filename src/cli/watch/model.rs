//! What the stream has said so far.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::cli::look::Receiver;
use crate::clock::Monotonic;

/// The picture, from the frames of the stream.
#[derive(Default)]
pub struct Model {
    /// The server's time in the last frame, in milliseconds since the Unix epoch.
    pub now: i64,
    /// When that frame came.
    pub heard: Option<Monotonic>,
    /// Slots of the second wheel, and of the minute wheel.
    pub near: usize,
    /// Minutes of the minute wheel.
    pub minutes: usize,
    /// Pointers by second and by minute, counted from the Unix epoch.
    pub seconds_counts: BTreeMap<i64, u64>,
    /// The same by minute.
    pub minute_counts: BTreeMap<i64, u64>,
    /// The overview.
    pub overview: Option<Overview>,
    /// The receivers, worst first.
    pub receivers: Vec<Receiver>,
    /// Why the last call failed, until one succeeds.
    pub failure: Option<String>,
}

#[derive(Deserialize)]
struct Frame {
    now: i64,
    near: Option<usize>,
    window: Option<usize>,
    s: Vec<(i64, u64)>,
    m: Vec<(i64, u64)>,
    x: Option<Overview>,
}

/// The part `x` of a frame.
#[derive(Deserialize)]
pub struct Overview {
    pub sentence: String,
    pub level: String,
    pub fired: f64,
    pub p99: Option<f64>,
    pub rates: Rates,
    pub cold: i64,
    pub bins: [i64; 5],
    pub last_mile: i64,
    pub in_flight: i64,
    pub waiting: i64,
    pub retrying: i64,
    pub dead: i64,
    pub redis: bool,
}

/// Events a second.
#[derive(Deserialize)]
pub struct Rates {
    pub minute: f64,
    pub second: f64,
    pub cascade: f64,
    pub last_mile: f64,
    pub express: f64,
    pub swept: f64,
}

impl Model {
    /// Takes a frame in. Fails if it is not one that this version can read.
    pub fn apply(&mut self, event: &str, data: &str) -> anyhow::Result<()> {
        let frame: Frame = serde_json::from_str(data).map_err(|why| {
            anyhow::anyhow!("a frame of the stream cannot be read ({why}); is the server another version?")
        })?;
        if event == "full" {
            self.seconds_counts.clear();
            self.minute_counts.clear();
        }
        for (counts, changed) in [(&mut self.seconds_counts, frame.s), (&mut self.minute_counts, frame.m)] {
            counts.extend(changed);
            counts.retain(|_, count| *count > 0);
        }
        self.near = frame.near.unwrap_or(self.near);
        self.minutes = frame.window.map_or(self.minutes, |window| window.div_ceil(60));
        self.overview = frame.x.or(self.overview.take());
        (self.now, self.heard, self.failure) = (frame.now, Some(Monotonic::now()), None);
        Ok(())
    }

    /// How long ago the last frame came, in seconds.
    pub fn silence_s(&self) -> f64 {
        self.heard.map_or(0.0, |heard| heard.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_changes_what_it_names_and_a_full_frame_everything() {
        let mut model = Model::default();
        let full =
            r#"{"now":5000,"near":120,"window":3600,"s":[[6,3],[7,1]],"m":[[9,2]],"taken":{"s":5,"m":1}}"#;
        model.apply("full", full).unwrap();
        assert_eq!((model.near, model.minutes), (120, 60));
        model.apply("delta", r#"{"now":5250,"s":[[6,0],[8,4]],"m":[],"taken":{"s":6,"m":1}}"#).unwrap();
        assert_eq!(model.seconds_counts, [(7, 1), (8, 4)].into());
        assert_eq!(model.minute_counts, [(9, 2)].into());
        model.apply("full", &full.replace("[6,3],[7,1]", "[9,9]")).unwrap();
        assert_eq!(model.seconds_counts, [(9, 9)].into());
        assert!(model.apply("delta", "{}").is_err());
    }
}
