//! Metrics: every series is defined here. Ids never become labels.

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};

/// All series of a node.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// Timers acknowledged by this node.
    pub registered: IntCounter,
    /// Timers that this node ended, by end.
    pub ended: IntCounterVec,
    /// Attempts that this node made, by result.
    pub attempts: IntCounterVec,
    /// Lateness of first attempts: start of the attempt − due time.
    pub lateness: Histogram,
    /// Duration of attempts.
    pub attempt_seconds: Histogram,
    /// First attempts of a generation, by the path on which the due timer was noticed.
    pub fired: IntCounterVec,
    /// Claims of timers that the sweep had found, retries included: rescues.
    pub swept: IntCounter,
    /// Pointers promoted into slots.
    pub promoted: IntCounter,
    /// Pointers dropped because they could not be promoted; the sweep finds their timers.
    pub unpromoted: IntCounter,
    /// Shards replayed, by kind: `rebuilt` or `resumed`.
    pub replays: IntCounterVec,
    /// Timers that replays read from SQL: `overdue`, or `loaded` into slots.
    pub replayed: IntCounterVec,
    /// Whether the wheels of all shards answered the last time they were asked.
    pub hot_up: IntGauge,
    /// How far the slowest wheel of this node is behind, in seconds.
    pub cursor_lag: Gauge,
    /// Pointers in the last mile: taken from the wheels and not offered to their lane yet.
    pub last_mile: IntGauge,
    /// Pointers whose claim got nothing: they were stale or doubled.
    pub claims_dropped: IntCounter,
    /// Claims that expired without a result.
    pub claims_expired: IntCounter,
    /// Claims released unsent.
    pub released: IntCounter,
    /// Due rows postponed because the lane of their receiver was full.
    pub postponed: IntCounter,
    /// Attempts under way.
    pub in_flight: IntGauge,
    /// Pointers that wait in lanes.
    pub held: IntGauge,
    /// Shards owned.
    pub shards_owned: IntGauge,
    /// Shards taken over: free ones at the start, later those of nodes that failed or gave them up.
    pub shards_taken: IntCounter,
    /// Live timers of the whole store, as the owner of shard 0 sees them; 0 on other nodes.
    pub pending: IntGauge,
    /// Whether the last renewal of the leases succeeded.
    pub store_up: IntGauge,
    /// Failed calls of the node's own loops to the cold store.
    pub store_errors: IntCounter,
    /// This node's wall clock − the store's, in milliseconds.
    pub clock_skew_ms: IntGauge,
    /// API calls, by route, method and status.
    pub requests: IntCounterVec,
    /// Duration of API calls, by route.
    pub request_seconds: HistogramVec,
}

impl Metrics {
    /// Registers every series in a new registry.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let keep = |collector: Box<dyn Collector>| registry.register(collector);
        macro_rules! series {
            ($make:expr) => {{
                let series = $make?;
                keep(Box::new(series.clone()))?;
                series
            }};
        }
        let seconds =
            vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0];
        let metrics = Self {
            registered: series!(IntCounter::new(
                "mainspring_registered_total",
                "Timers acknowledged by this node"
            )),
            ended: series!(IntCounterVec::new(
                Opts::new("mainspring_ended_total", "Timers that this node ended, by end"),
                &["state"]
            )),
            attempts: series!(IntCounterVec::new(
                Opts::new("mainspring_attempts_total", "Attempts that this node made, by result"),
                &["result"]
            )),
            lateness: series!(Histogram::with_opts(
                HistogramOpts::new("mainspring_lateness_seconds", "Start of the first attempt - due time")
                    .buckets(seconds.clone())
            )),
            attempt_seconds: series!(Histogram::with_opts(
                HistogramOpts::new("mainspring_attempt_seconds", "Duration of attempts")
                    .buckets(seconds.clone())
            )),
            fired: series!(IntCounterVec::new(
                Opts::new(
                    "mainspring_fired_total",
                    "First attempts, by the path on which the due timer was noticed"
                ),
                &["path"]
            )),
            promoted: series!(IntCounter::new(
                "mainspring_promoted_total",
                "Pointers promoted into slots of the wheels"
            )),
            unpromoted: series!(IntCounter::new(
                "mainspring_unpromoted_total",
                "Pointers dropped because they could not be promoted; the sweep finds their timers"
            )),
            replays: series!(IntCounterVec::new(
                Opts::new(
                    "mainspring_replays_total",
                    "Shards replayed, by kind: the wheel was rebuilt, or resumed as it was"
                ),
                &["kind"]
            )),
            replayed: series!(IntCounterVec::new(
                Opts::new(
                    "mainspring_replayed_timers_total",
                    "Timers that replays read from SQL: overdue, or loaded into slots"
                ),
                &["what"]
            )),
            hot_up: series!(IntGauge::new(
                "mainspring_wheels_up",
                "1 if the wheels of all shards answered the last time they were asked"
            )),
            cursor_lag: series!(Gauge::new(
                "mainspring_cursor_lag_seconds",
                "How far the slowest wheel of this node is behind the clock"
            )),
            last_mile: series!(IntGauge::new(
                "mainspring_last_mile_pointers",
                "Pointers taken from the wheels and not offered to their lane yet"
            )),
            swept: series!(IntCounter::new(
                "mainspring_swept_total",
                "Claims of timers that the sweep had found: rescues"
            )),
            claims_dropped: series!(IntCounter::new(
                "mainspring_claims_dropped_total",
                "Pointers whose claim got nothing: stale or doubled"
            )),
            claims_expired: series!(IntCounter::new(
                "mainspring_claims_expired_total",
                "Claims that expired without a result"
            )),
            released: series!(IntCounter::new("mainspring_released_total", "Claims released unsent")),
            postponed: series!(IntCounter::new(
                "mainspring_postponed_total",
                "Due rows postponed because the lane of their receiver was full"
            )),
            in_flight: series!(IntGauge::new("mainspring_attempts_in_flight", "Attempts under way")),
            held: series!(IntGauge::new("mainspring_pointers_held", "Due timers that wait in lanes")),
            shards_owned: series!(IntGauge::new("mainspring_shards_owned", "Shards owned by this node")),
            shards_taken: series!(IntCounter::new(
                "mainspring_shards_taken_total",
                "Shards taken over, free ones at the start included"
            )),
            pending: series!(IntGauge::new(
                "mainspring_pending_timers",
                "Live timers of the whole store, from the owner of shard 0; 0 on other nodes"
            )),
            store_up: series!(IntGauge::new(
                "mainspring_store_up",
                "1 if the last renewal of the leases reached the cold store"
            )),
            store_errors: series!(IntCounter::new(
                "mainspring_store_errors_total",
                "Failed calls of the node's own loops to the cold store"
            )),
            clock_skew_ms: series!(IntGauge::new(
                "mainspring_clock_skew_milliseconds",
                "Wall clock of this node - clock of the cold store"
            )),
            requests: series!(IntCounterVec::new(
                Opts::new("mainspring_http_requests_total", "API calls"),
                &["route", "method", "status"]
            )),
            request_seconds: series!(HistogramVec::new(
                HistogramOpts::new("mainspring_http_request_seconds", "Duration of API calls")
                    .buckets(seconds),
                &["route"]
            )),
            registry: registry.clone(),
        };
        keep(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        for state in ["delivered", "cancelled", "expired", "dead"] {
            metrics.ended.with_label_values(&[state]);
        }
        for path in crate::model::pointer::Via::ALL {
            metrics.fired.with_label_values(&[path.word()]);
        }
        for kind in ["rebuilt", "resumed"] {
            metrics.replays.with_label_values(&[kind]);
        }
        for what in ["overdue", "loaded"] {
            metrics.replayed.with_label_values(&[what]);
        }
        for result in ["ok", "failed", "timeout", "refused", "unknown"] {
            metrics.attempts.with_label_values(&[result]);
        }
        Ok(metrics)
    }

    /// All series in the Prometheus text format.
    pub fn text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}
