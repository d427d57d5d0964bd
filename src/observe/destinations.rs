//! The gauges of destinations, by name: how a destination stands is asked for by its name, and names are an operator's own.
//!
//! There may be thousands of them, so only those are shown with which something is the matter: at most [`MOST`] that are
//! failing or paused, or for which something waits or is under way here. The others have no series.

use crate::destinations::Known;
use crate::dispatch::{ReceiverLoad, sort_worst_first};
use crate::metrics::Metrics;

/// The most destinations that have series.
pub const MOST: usize = 100;

/// What a destination may be in.
const STATES: [&str; 3] = ["ok", "failing", "paused"];

/// Shows these destinations. `loads` are the receivers of this node.
pub fn show(metrics: &Metrics, loads: Vec<ReceiverLoad>, known: &Known) {
    let is_of_interest = |one: &ReceiverLoad| {
        one.failing || one.waiting + one.in_flight > 0 || one.rate > 0.0 || is_paused(known, &one.receiver)
    };
    let mut loads: Vec<ReceiverLoad> = loads
        .into_iter()
        .filter(|one| one.is_destination && known.contains_key(&one.receiver) && is_of_interest(one))
        .collect();
    sort_worst_first(&mut loads);
    loads.truncate(MOST);
    let mut paused: Vec<&str> =
        known.iter().filter(|(_, one)| one.paused).map(|(name, _)| name.as_str()).collect();
    paused.retain(|name| loads.iter().all(|one| one.receiver != *name));
    paused.sort_unstable();
    paused.truncate(MOST - loads.len());

    metrics.destination_state.reset();
    metrics.destination_in_flight.reset();
    metrics.destination_attempts.reset();
    metrics.destination_limit.reset();
    let limit = |name: &str| known.get(name).and_then(|one| one.limits.rate_per_second).unwrap_or(0);
    let show = |name: &str, state: &str, in_flight: usize, rate: f64| {
        for one in STATES {
            metrics.destination_state.with_label_values(&[name, one]).set(i64::from(one == state));
        }
        metrics.destination_in_flight.with_label_values(&[name]).set(in_flight as i64);
        metrics.destination_attempts.with_label_values(&[name]).set(rate);
        metrics.destination_limit.with_label_values(&[name]).set(i64::from(limit(name)));
    };
    for one in &loads {
        let state = match one {
            one if is_paused(known, &one.receiver) => "paused",
            one if one.failing => "failing",
            _ => "ok",
        };
        show(&one.receiver, state, one.in_flight, one.rate);
    }
    paused.into_iter().for_each(|name| show(name, "paused", 0, 0.0));
}

fn is_paused(known: &Known, name: &str) -> bool {
    known.get(name).is_some_and(|one| one.paused)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::destination::{Closed, Destination, Limits};
    use crate::model::time::UnixMs;

    fn destination(name: &str, paused: bool) -> Arc<Destination> {
        let limits = Limits { rate_per_second: Some(7), ..Limits::default() };
        Arc::new(Destination {
            namespace: crate::model::namespace::Namespace::OWN,
            name: name.into(),
            kind: "webhook".into(),
            place: Err(Closed::Unknown),
            limits,
            paused,
            version: 1,
            created_at: UnixMs::new(0),
        })
    }

    fn load(name: &str, failing: bool, in_flight: usize) -> ReceiverLoad {
        ReceiverLoad {
            receiver: name.into(),
            is_destination: true,
            failing,
            since: UnixMs::new(0),
            rate: 0.0,
            in_flight,
            waiting: 0,
            last_error: None,
        }
    }

    #[test]
    fn those_with_something_the_matter_are_shown_and_no_others() {
        let metrics = Metrics::new().expect("series");
        let known: Known = ["idle", "busy", "failing", "paused", "kept"]
            .map(|name| (name.to_owned(), destination(name, matches!(name, "paused" | "kept"))))
            .into();
        let inline = ReceiverLoad { is_destination: false, ..load("http://a", true, 1) };
        let loads = vec![
            load("idle", false, 0),
            load("busy", false, 3),
            load("failing", true, 0),
            load("paused", true, 0),
            load("removed", true, 1),
            inline,
        ];
        show(&metrics, loads, &known);
        let text = metrics.text();
        for (name, state) in
            [("busy", "ok"), ("failing", "failing"), ("paused", "paused"), ("kept", "paused")]
        {
            for one in STATES {
                let series =
                    format!("mainspring_destination_state{{destination=\"{name}\",state=\"{one}\"}} ");
                let value = i64::from(one == state);
                assert!(text.contains(&format!("{series}{value}")), "{series}{value}\n{text}");
            }
        }
        assert!(text.contains("mainspring_destination_in_flight{destination=\"busy\"} 3"), "{text}");
        assert!(text.contains("mainspring_destination_rate_limit{destination=\"kept\"} 7"), "{text}");
        for absent in ["destination=\"idle\"", "destination=\"removed\"", "http://a"] {
            assert!(!text.contains(absent), "{absent}\n{text}");
        }
        // What is over is no longer shown.
        show(&metrics, Vec::new(), &Known::new());
        assert!(!metrics.text().contains("mainspring_destination_"), "{}", metrics.text());
    }

    #[test]
    fn of_very_many_the_worst_are_shown() {
        let metrics = Metrics::new().expect("series");
        let names: Vec<String> = (0..300).map(|n| format!("d{n}")).collect();
        let known: Known = names.iter().map(|name| (name.clone(), destination(name, false))).collect();
        show(&metrics, names.iter().map(|name| load(name, name == "d299", 1)).collect(), &known);
        let text = metrics.text();
        assert_eq!(text.matches("mainspring_destination_in_flight{").count(), MOST);
        assert!(text.contains("{destination=\"d299\",state=\"failing\"} 1"), "{text}");
    }
}
