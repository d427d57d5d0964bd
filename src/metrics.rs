//! Metrics: every series is defined here, by one line of `metrics!`. Ids, URLs and owners never become labels. Names of
//! destinations do: they are an operator's own, and only a hundred at a time.
//!
//! The values of a label are a closed set, and each of them starts at 0, so that a rate over a series exists before its
//! first event. Counters and histograms move where the thing happens; gauges of what a room holds are set when
//! somebody reads them ([`crate::observe`]).

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

/// A label and all its values. Without values, the set is that of the caller (routes).
type Label = (&'static str, &'static [&'static str]);

/// The levels of the wheels.
const WHEEL: Label = ("wheel", &["second", "minute", "whole_minute"]);

/// Operations of the two stores; see [`Operation`].
const COLD: &[&str] = &[
    "register",
    "apply",
    "claim",
    "finish",
    "sweep",
    "scan",
    "lease",
    "lease_items",
    "query",
    "outbox",
    "schedules",
    "housekeeping",
    "begin",
    "commit",
];
const HOT: &[&str] =
    &["servers", "look", "build", "adopt", "loaded", "append", "take", "hand_over", "counts", "express"];

/// The bounds of the buckets of `lateness` and `confirmed`, in seconds. Fine where a healthy node is, and above ten
/// seconds none is more than three times the one before: a quantile is interpolated within a bucket.
pub const LATENESS: &[f64] = &[
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0,
    20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// Durations of calls, in seconds.
const CALLS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

macro_rules! metrics {
    ($($(#[$more:meta])* $field:ident: $type:ty = $make:ident($name:literal, $help:literal $(, $arg:expr)*);)*) => {
        /// All series of a node.
        #[derive(Clone, Debug)]
        pub struct Metrics {
            registry: Registry,
            $(#[doc = $help] #[doc = concat!("(`", $name, "`)")] $(#[$more])* pub $field: $type,)*
        }

        impl Metrics {
            /// Registers every series in a new registry.
            pub fn new() -> Result<Self, prometheus::Error> {
                let registry = Registry::new();
                registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
                let metrics = Self {
                    $($field: registered(&registry, $make($name, $help $(, $arg)*)?)?,)*
                    registry,
                };
                metrics.start_at_zero();
                Ok(metrics)
            }
        }
    };
}

metrics! {
    // What callers asked for.
    registered: IntCounter = counter("mainspring_registered_total", "New timers that this node acknowledged");
    registrations: IntCounterVec = counters("mainspring_registrations_total",
        "Registrations by answer: a new timer, the same request again, an id that is taken, a failure",
        &[("result", &["new", "same", "taken", "failed"])]);
    cancels: IntCounterVec = counters("mainspring_cancels_total", "Cancels by answer",
        &[("result", &["cancelled", "stopped", "in_flight", "already_fired", "not_found", "failed"])]);
    changes: IntCounterVec = counters("mainspring_changes_total", "Changes of timers by their callers, by answer",
        &[("action", &["change", "fire", "pause", "resume", "shift"]),
          ("result", &["done", "in_flight", "already_fired", "already_cancelled", "precondition", "not_found", "failed"])]);
    ended: IntCounterVec = counters("mainspring_ended_total", "Timers that this node ended, by end",
        &[("state", &["delivered", "cancelled", "expired", "dead"])]);

    // Firing.
    fired: IntCounterVec = counters("mainspring_fired_total",
        "First attempts, by the path on which the due timer was noticed and by lateness: within a second, later, or after an outage",
        &[("path", &["loader", "express", "sweep", "replay"]), ("lateness", &["on_time", "late", "catch_up"])]);
    lateness: Histogram = histogram("mainspring_lateness_seconds", "Start of the first attempt - due time", LATENESS);
    confirmed: Histogram = histogram("mainspring_confirmed_seconds",
        "Success of a first attempt recorded - due time", LATENESS);
    early: IntCounter = counter("mainspring_early_total", "Attempts that started before the due time: always 0");
    missed: IntCounter = counter("mainspring_missed_total",
        "Timers that nobody could fire for more than a minute after their due time");
    repeats: IntCounter = counter("mainspring_repeats_total",
        "Attempts made although an earlier one of the same delivery may have reached the receiver");
    attempts: IntCounterVec = counters("mainspring_attempts_total", "Attempts by kind of target and by result",
        &[("sink", &["webhook"]), ("result", &["ok", "failed", "timeout", "refused", "unknown"])]);
    deferred: IntCounterVec = counters("mainspring_attempts_deferred_total",
        "Attempts that were not made, and do not count, because this node lacked something",
        &[("lack", &["files", "ports", "memory", "network", "resolver"])]);
    attempt_seconds: Histogram = histogram("mainspring_attempt_seconds", "Duration of attempts", CALLS);
    in_flight: IntGauge = gauge("mainspring_attempts_in_flight", "Claimed timers whose attempt has not ended");
    held: IntGauge = gauge("mainspring_pointers_held", "Due timers that wait in lanes");
    lanes: IntGaugeVec = gauges("mainspring_lanes", "Lanes of receivers by state", &[("state", &["idle", "sending", "waiting", "failing"])]);
    unrecorded: IntGauge = gauge("mainspring_results_unrecorded", "Results of attempts that are not written to the cold store yet");
    claim_seconds: Histogram = histogram("mainspring_claim_seconds", "Duration of claims, a batch each", CALLS);
    claims_dropped: IntCounter = counter("mainspring_claims_dropped_total", "Pointers whose claim got nothing: stale or doubled");
    claims_expired: IntCounter = counter("mainspring_claims_expired_total", "Claims that expired without a result");
    released: IntCounter = counter("mainspring_released_total", "Claims released unsent");
    swept: IntCounter = counter("mainspring_swept_total", "Claims of timers that the sweep had found: rescues");
    postponed: IntCounter = counter("mainspring_postponed_total", "Due rows postponed because the lane of their receiver was full");
    oldest_due: Gauge = float_gauge("mainspring_oldest_due_seconds",
        "Age of the oldest due timer of this node's shards that nobody has in hand");

    // Schedules.
    occurrences: IntCounter = counter("mainspring_occurrences_total", "Timers that this node made for nominal times of schedules");
    occurrences_skipped: IntCounterVec = counters("mainspring_occurrences_skipped_total",
        "Nominal times that this node found must not fire, by reason", &[("reason", &["missed", "overlap", "paused"])]);
    schedules: IntGaugeVec = gauges("mainspring_schedules",
        "Schedules of the whole store by state, from the owner of shard 0; 0 on other nodes",
        &[("state", &["active", "paused", "ended"])]);
    // Queues.
    queue_leased: IntCounter = counter("mainspring_queue_leased_total", "Places of timers for queues that this node gave out");
    queue_settlements: IntCounterVec = counters("mainspring_queue_settlements_total", "Settlements by workers, by answer",
        &[("action", &["ack", "retry", "dead", "extend"]), ("result", &["done", "lease_lost"])]);
    queue_wait_seconds: Histogram = histogram("mainspring_queue_wait_seconds",
        "From when a place could be given out, by its due time or a retry, until a worker got it", LATENESS);
    queue_lost: IntCounter = counter("mainspring_queue_leases_lost_total", "Leases that ended before their worker settled");
    queue_taken_back: IntCounter = counter("mainspring_queue_leases_taken_back_total",
        "Places taken back because the answer with them could not be written; they do not count");
    queue_workers: IntGauge = gauge("mainspring_queue_waiting_workers", "Lease calls that wait on this node");

    // Queues by name, at most a hundred: these series come and go.
    queue_ready: IntGaugeVec = gauges("mainspring_queue_ready_timers",
        "Timers of the whole store of which a place may be given out now, up to 100,000, from the owner of shard 0", &[("queue", &[])]);
    queue_out: IntGaugeVec = gauges("mainspring_queue_leased_timers",
        "Timers of the whole store of which a worker has a place, up to 100,000, from the owner of shard 0", &[("queue", &[])]);
    queue_oldest: GaugeVec = float_gauges("mainspring_queue_oldest_ready_seconds",
        "For how long the one has been ready that nobody has fetched for longest, from the owner of shard 0", &[("queue", &[])]);

    // Destinations by name, at most a hundred: these series come and go.
    destination_state: IntGaugeVec = gauges("mainspring_destination_state", "1 for what a destination is in on this node: ok, failing, paused",
        &[("destination", &[]), ("state", &[])]);
    destination_in_flight: IntGaugeVec = gauges("mainspring_destination_in_flight", "Attempts under way at a destination, by this node", &[("destination", &[])]);
    destination_attempts: GaugeVec = float_gauges("mainspring_destination_attempts_per_second",
        "Attempts a second at a destination by this node, over about ten seconds", &[("destination", &[])]);
    destination_limit: IntGaugeVec = gauges("mainspring_destination_rate_limit", "The most attempts a second at a destination, all nodes together; 0 is no limit", &[("destination", &[])]);
    destination_waiting: IntGaugeVec = gauges("mainspring_destination_waiting_timers",
        "Timers of the whole store that are due for a destination and not under way, up to 10,000, from the owner of shard 0", &[("destination", &[])]);

    // Wheels.
    promoted: IntCounterVec = counters("mainspring_promoted_total",
        "Pointers moved one step on: into a minute slot, into a second slot, from a minute into a second slot, from a slot to the last mile, from SQL straight to the last mile",
        &[("step", &["minute", "second", "cascade", "last_mile", "express"])]);
    unpromoted: IntCounter = counter("mainspring_unpromoted_total",
        "Pointers dropped because they could not be promoted; the sweep finds their timers");
    promotion_seconds: Histogram = histogram("mainspring_promotion_seconds",
        "Duration of the promotion of timers that were just written, a batch each", CALLS);
    replays: IntCounterVec = counters("mainspring_replays_total", "Shards replayed: the wheel was rebuilt, or resumed as it was",
        &[("kind", &["rebuilt", "resumed"])]);
    replayed: IntCounterVec = counters("mainspring_replayed_timers_total",
        "Timers that replays read from SQL: overdue, or loaded into slots", &[("what", &["overdue", "loaded"])]);
    store_held: IntGauge = gauge("mainspring_store_held", "1 while what fell due since the cold store was restored is held, until `mainspring restore accept`");
    hot_up: IntGauge = gauge("mainspring_wheels_up", "1 if the wheels of all shards answered the last time they were asked");
    wheel_reach: GaugeVec = float_gauges("mainspring_wheel_reach_seconds", "How far ahead a wheel reaches",
        &[("wheel", &["second", "minute"])]);
    wheels_short: IntGauge = gauge("mainspring_wheels_short",
        "1 while the wheels reach less far ahead than `wheel.window`, because Redis has no room for more");
    watermark_ahead: Gauge = float_gauge("mainspring_watermark_ahead_seconds",
        "How far ahead of now the lowest watermark of this node's shards is");
    cursor_lag: GaugeVec = float_gauges("mainspring_cursor_lag_seconds",
        "How far the slowest wheel of this node is behind the clock", &[WHEEL]);
    wheel_pointers: IntGaugeVec = gauges("mainspring_wheel_pointers", "Pointers in the slots of this node's shards", &[WHEEL]);
    largest_slot: IntGaugeVec = gauges("mainspring_wheel_largest_slot_pointers",
        "Pointers in the fullest slot, all shards of this node together", &[WHEEL]);
    last_mile: IntGauge = gauge("mainspring_last_mile_pointers", "Pointers taken from the wheels and not offered to their lane yet");

    // Stores.
    pending: IntGauge = gauge("mainspring_pending_timers",
        "Live timers of the whole store, from the owner of shard 0; 0 on other nodes");
    live: IntGaugeVec = gauges("mainspring_live_timers",
        "Live timers of the whole store by state, from the owner of shard 0; 0 on other nodes",
        &[("state", &["scheduled", "delivering", "retrying", "paused"])]);
    forecast: IntGaugeVec = gauges("mainspring_forecast_timers",
        "Timers due from now on, in bins, from the owner of shard 0; 0 on other nodes",
        &[("within", &["1h", "1d", "7d", "30d", "later"])]);
    store_up: IntGauge = gauge("mainspring_store_up", "1 if the last renewal of the leases reached the cold store");
    store_seconds: HistogramVec = histograms("mainspring_store_seconds", "Duration of calls to the stores", CALLS, &["store", "operation"]);
    store_errors: IntCounterVec = counters("mainspring_store_errors_total", "Calls to the stores that failed",
        &[("store", &[]), ("operation", &[])]);
    register_seconds: Histogram = histogram("mainspring_register_seconds",
        "Duration of registrations, the commit included, a batch each", CALLS);
    pool_connections: IntGaugeVec = gauges("mainspring_pool_connections", "Connections to the stores",
        &[("pool", POOLS), ("state", &["idle", "used"])]);
    pool_max: IntGaugeVec = gauges("mainspring_pool_max_connections", "The most connections of a pool", &[("pool", POOLS)]);
    clock_skew: Gauge = float_gauge("mainspring_clock_skew_seconds", "Wall clock of this node - clock of the cold store");
    housekeeping_done: GaugeVec = float_gauges("mainspring_housekeeping_last_success_timestamp_seconds",
        "When a duty of the housekeeping last succeeded on this node; 0 if it never did",
        &[("duty", &["statistics", "partitions", "retention", "forecast"])]);
    retention_lag: GaugeVec = float_gauges("mainspring_retention_lag_seconds",
        "How long the oldest thing that the retention is to remove should have been gone, from the owner of shard 0; 0 on other nodes",
        &[("step", &["old_partitions", "history", "ids", "attempts", "replays", "audit"])]);

    // Lifecycle events.
    outbox_events: IntGauge = gauge("mainspring_outbox_events",
        "Lifecycle events of the whole store that wait to be sent, from the owner of shard 0; 0 on other nodes");
    outbox_oldest: Gauge = float_gauge("mainspring_outbox_oldest_seconds",
        "Age of the oldest lifecycle event that waits, from the owner of shard 0; 0 on other nodes");
    outbox_sends: IntCounterVec = counters("mainspring_outbox_sends_total", "Lifecycle events sent, by result",
        &[("result", &["ok", "failed", "timeout", "refused", "unknown"])]);
    outbox_dropped: IntCounterVec = counters("mainspring_outbox_dropped_total",
        "Lifecycle events dropped: refused for good, or the oldest of too many", &[("reason", &["gone", "overflow"])]);

    // Fleet.
    shards_owned: IntGauge = gauge("mainspring_shards_owned", "Shards owned by this node");
    shards_taken: IntCounter = counter("mainspring_shards_taken_total",
        "Shards taken over, free ones at the start included; each raised an epoch");
    build_info: IntGaugeVec = gauges("mainspring_build_info", "1; the label is the version of this node", &[("version", &[env!("CARGO_PKG_VERSION")])]);

    // API.
    requests: IntCounterVec = counters("mainspring_http_requests_total", "Calls of the API and the page",
        &[("route", &[]), ("method", &[]), ("status", &[])]);
    connections: IntGaugeVec = gauges("mainspring_connections", "Open connections of clients",
        &[("state", &["busy", "idle", "reserved"])]);
    connections_max: IntGauge = gauge("mainspring_connections_max", "The most connections of clients, those for health checks not counted");
    connected: IntCounterVec = counters("mainspring_connections_total",
        "Connections of clients: accepted, idle ones closed for new ones, and calls or connections refused because none was free",
        &[("what", &["accepted", "evicted", "refused"])]);
    request_seconds: HistogramVec = histograms("mainspring_http_request_seconds", "Duration of calls of the API and the page", CALLS, &["route"]);
}

/// The pools of connections; SQLite has no `cold_urgent`, wheels in memory no `hot`.
const POOLS: &[&str] = &["cold", "cold_urgent", "hot"];

/// The connections of a pool at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Open and free.
    pub idle: usize,
    /// In use.
    pub used: usize,
    /// The most that may be open.
    pub max: usize,
}

impl Connections {
    /// Of `open` connections `idle` are free.
    pub const fn new(open: usize, idle: usize, max: usize) -> Self {
        Self { idle, used: open.saturating_sub(idle), max }
    }
}

impl Metrics {
    /// All series in the Prometheus text format.
    pub fn text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }

    /// The series whose label sets are no product.
    fn start_at_zero(&self) {
        for (store, operations) in [("cold", COLD), ("hot", HOT)] {
            for operation in operations {
                self.store_seconds.with_label_values(&[store, *operation]);
                self.store_errors.with_label_values(&[store, *operation]);
            }
        }
        self.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    }

    /// Shows the connections of a pool.
    pub fn show_pool(&self, pool: &str, connections: Connections) {
        let Connections { idle, used, max } = connections;
        self.pool_connections.with_label_values(&[pool, "idle"]).set(idle as i64);
        self.pool_connections.with_label_values(&[pool, "used"]).set(used as i64);
        self.pool_max.with_label_values(&[pool]).set(max as i64);
    }

    /// Notes a call to a store: its duration, and whether it failed.
    pub fn stored(&self, store: &str, operation: &str, took: std::time::Duration, failed: bool) {
        self.store_seconds.with_label_values(&[store, operation]).observe(took.as_secs_f64());
        if failed {
            self.store_errors.with_label_values(&[store, operation]).inc();
        }
    }
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    series: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(series.clone()))?;
    Ok(series)
}

fn counter(name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    IntCounter::new(name, help)
}

fn gauge(name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    IntGauge::new(name, help)
}

fn float_gauge(name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
    Gauge::new(name, help)
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
}

fn histograms(
    name: &str,
    help: &str,
    buckets: &[f64],
    labels: &[&str],
) -> Result<HistogramVec, prometheus::Error> {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)
}

/// Series with labels, one for each combination of values.
macro_rules! with_labels {
    ($($name:ident: $type:ty;)*) => {
        $(fn $name(name: &str, help: &str, labels: &[Label]) -> Result<$type, prometheus::Error> {
            let names: Vec<&str> = labels.iter().map(|(label, _)| *label).collect();
            let series = <$type>::new(Opts::new(name, help), &names)?;
            for values in combinations(labels) {
                series.with_label_values(&values);
            }
            Ok(series)
        })*
    };
}

with_labels! {
    counters: IntCounterVec;
    gauges: IntGaugeVec;
    float_gauges: GaugeVec;
}

/// Every combination of the labels' values; none if a label has none.
fn combinations(labels: &[Label]) -> Vec<Vec<&'static str>> {
    labels.iter().fold(vec![Vec::new()], |all, (_, values)| {
        let with = |before: &Vec<&'static str>, value: &&'static str| [before.as_slice(), &[*value]].concat();
        all.iter().flat_map(|before| values.iter().map(move |value| with(before, value))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_a_label_starts_at_zero() {
        let text = Metrics::new().expect("series").text();
        for series in [
            "mainspring_fired_total{lateness=\"catch_up\",path=\"sweep\"} 0",
            "mainspring_changes_total{action=\"fire\",result=\"not_found\"} 0",
            "mainspring_store_errors_total{operation=\"claim\",store=\"cold\"} 0",
            "mainspring_store_seconds_count{operation=\"append\",store=\"hot\"} 0",
            "mainspring_pool_connections{pool=\"hot\",state=\"idle\"} 0",
        ] {
            assert!(text.contains(series), "{series}\n{text}");
        }
    }
}
