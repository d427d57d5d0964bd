//! Wiring: which tasks start in which order, what happens when one fails, and how they stop.
//!
//! Start: listen → cold store (tried until it answers) → name and shards → wheels (replay, loader, ticker) →
//! sweep → ready. Every task belongs to one of the phases (`phases.rs`); `stop` ends these in order.

mod phases;
mod reload;
mod shares;
mod supervisor;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::admin;
use crate::api;
use crate::api::tls::Tls;
use crate::clock::{Clock, Monotonic, SystemClock};
use crate::cold::{ColdStore, Identity};
use crate::config::{ColdKind, Config, shown_url};
use crate::destinations::Destinations;
use crate::destinations::vault::Vault;
use crate::dispatch::Dispatcher;
use crate::hot::last_mile::LastMile;
use crate::hot::loader::{Loader, Rates};
use crate::hot::promoter::{Promoter, receive_express};
use crate::hot::ticker::Ticker;
use crate::housekeeping::Housekeeping;
use crate::limits::{self, FileLimits};
use crate::metrics::Metrics;
use crate::model::pointer::Pointer;
use crate::observe::{Observer, Sources};
use crate::operations::Operations;
use crate::outbox::{Outbox, Subscriptions};
use crate::ownership::Ownership;
use crate::positions::{Positions, Reach};
use crate::promotion::Promotion;
use crate::queue::Queues;
use crate::schedule::Maker;
use crate::service::{Node, Service};
use crate::sink::{Sink, Sinks};
use crate::sweep::Sweep;
use crate::templates::Templates;
use crate::traces::Export;
use crate::wheel::{self, HotWheel, Measured};
use crate::writer::{Intake, Writer};
use phases::{DRAIN, Phases};
use reload::{Capacity, Reload};
use shares::Shares;

/// The longest that attempts under way may go on after a stop was asked for, whatever their timeout:
/// supervisors kill after 30 s.
const LAST_ATTEMPTS: Duration = Duration::from_secs(25);

/// How long a stop waits for the hand-over of the shards before it begins the next phase meanwhile.
const HAND_OVER: Duration = Duration::from_secs(2);

/// The longest that the first sweep waits for the first replay: Redis may be away.
const REPLAY_FIRST: Duration = Duration::from_secs(3);

pub use reload::Read;

/// Runs the service until SIGTERM or SIGINT, or until it cannot go on. At SIGHUP it reads the settings again.
pub async fn serve(config: Config, read: Read) -> anyhow::Result<()> {
    crate::telemetry::init(&config.log)?;
    // Before anything is opened.
    limits::raise();
    limits::leave_no_core();
    let traces = Export::start(&config.node.name)?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let reload = Reload::new(config.clone(), read).context("cannot listen for SIGHUP")?;
    let stop = CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        asked.cancel();
    });
    let ended = run(config, Arc::new(SystemClock), reload, stop).await;
    traces.end().await;
    ended
}

/// Runs the service until `stop`.
async fn run(
    mut config: Config,
    clock: Arc<dyn Clock>,
    reload: Reload,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let files = FileLimits::of(&config, limits::in_force());
    config.dispatch.concurrency = files.attempts(&config);
    let config = Arc::new(config);
    let listen = config.server.listen;
    let tls = Tls::open(&config.server)?.map(Arc::new);
    let listener = TcpListener::bind(listen).await.map_err(|why| {
        anyhow::anyhow!("cannot listen on {listen}: {why}; free the port, or set another in `server.listen`")
    })?;
    let address = listener.local_addr().context("the listener has no address")?;
    if files.fits() {
        tracing::info!("{}", files.told());
    } else {
        tracing::warn!("{}; {}", files.told(), files.cure());
    }
    let metrics = Metrics::new()?;
    let store = ColdStore::open(&config, clock, false, true)?.measured(&metrics);
    let node = Arc::new(Node::new(Arc::clone(&config), metrics, stop.clone()));
    let (phases, failure) = Phases::new();
    let closing = phases.doors.stop.clone();
    let pages = admin::routes(Arc::clone(&node), closing.clone())
        .map_err(|_| anyhow::anyhow!("this machine gives no random numbers"))?;
    if let Some(tls) = tls.clone() {
        phases.loops.spawn("tls", until(&phases.loops.stop, async move { tls.follow().await }));
    }
    let serving = api::serve(listener, tls, Arc::clone(&node), pages, files, closing);
    phases.doors.spawn_fallible("api", async { serving.await.context("the API cannot be served") });
    let supervised = supervisor::start(Arc::clone(&node), phases.pulses.clone(), phases.loops.stop.clone());
    tracing::info!(
        "listening on {}://{address} (node {}, store {})",
        config.server.scheme(),
        config.node.name,
        shown_url(&config.cold.url)
    );

    let ended = tokio::select! {
        prepared = prepare(&config, &store) => match prepared {
            Ok(()) => work(&node, &store, address.to_string(), reload, &phases, failure).await,
            Err(why) => Err(why),
        },
        () = stop.cancelled() => Ok(()),
    };
    // Calls that still wait for a store that is away are aborted.
    phases.doors.end_within(DRAIN).await;
    let _ = tokio::time::timeout(DRAIN, store.close()).await;
    if let Some(supervised) = supervised {
        supervised.end().await;
    }
    tracing::info!("stopped");
    ended
}

/// Waits until the cold store answers and has the right schema. A failure that does not pass by itself is returned at
/// once.
async fn prepare(config: &Config, store: &ColdStore) -> anyhow::Result<()> {
    let shared = config.cold_kind()? == ColdKind::Postgres;
    let mut wait = Duration::from_millis(250);
    let mut is_logged = false;
    loop {
        match store.prepare().await {
            Ok(()) => return Ok(()),
            Err(why) if shared && why.is_passing() => {
                if is_logged {
                    tracing::debug!(%why, "the cold store does not answer yet");
                } else {
                    tracing::warn!("{why}; trying again, not ready until it answers");
                    is_logged = true;
                }
            }
            Err(why) => {
                return Err(
                    anyhow::anyhow!(why).context(format!("`cold.url` {}", shown_url(&config.cold.url)))
                );
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(2));
    }
}

/// Starts everything behind the API, runs until a stop is asked for or a task fails, and stops it.
async fn work(
    node: &Arc<Node>,
    store: &ColdStore,
    address: String,
    reload: Reload,
    phases: &Phases,
    mut failure: mpsc::Receiver<anyhow::Error>,
) -> anyhow::Result<()> {
    let capacity = start(node, store, address, phases).await?;
    let dispatcher = Arc::clone(&capacity.dispatcher);
    let reloading = reload.run(capacity);
    phases.loops.spawn("reload", until(&phases.loops.stop, reloading));
    let ended = tokio::select! {
        () = node.stop_asked() => Ok(()),
        why = failure.recv() => Err(why.unwrap_or_else(|| anyhow::anyhow!("every loop ended"))),
    };
    let longest = node.service().map(|service| service.destinations.longest_attempt()).unwrap_or_default();
    let longest = longest.max(node.config.webhook.timeout.get());
    let grace = (longest + Duration::from_secs(1)).min(LAST_ATTEMPTS);
    stop(phases, dispatcher, store.is_shared(), grace).await;
    if let Some(service) = node.service() {
        // What nobody got is taken back; if that takes too long, its leases end.
        let _ = tokio::time::timeout(DRAIN, service.queues.drain()).await;
    }
    ended
}

/// Stops in this order:
///
/// 1. Where other nodes share the store, shards are handed over while everything still runs: timers that fall due before
///    another node has taken them over are claimed already. A node that has the store to itself gives its shards up
///    last.
/// 2. No call is accepted and nothing more is claimed. Calls and attempts under way get time to end.
/// 3. Loops end. Results are recorded. Timers that these and the last calls wrote are promoted, to the owner of their
///    shard by then.
async fn stop(phases: &Phases, dispatcher: Arc<Dispatcher>, shared: bool, grace: Duration) {
    if shared {
        phases.owning.end_within(HAND_OVER).await;
    }
    phases.loops.stop.cancel();
    tokio::join!(phases.doors.end_within(DRAIN), dispatcher.drain(grace));
    phases.loops.end().await;
    phases.recording.end().await;
    phases.promoting.end().await;
    phases.owning.end().await;
}

/// Reads the namespaces and the keys of the store. A server without any key listens on loopback only.
async fn open_keys(node: &Node, store: &ColdStore) -> anyhow::Result<()> {
    let server = &node.config.server;
    node.namespaces.open(store).await?;
    node.keys.open(store).await?;
    if node.keys.has_settings() {
        tracing::info!(
            "the keys of `server.api_keys` may do everything and do not expire; `mainspring key create` makes keys that \
             need not, and that are revoked without a restart"
        );
    }
    if node.keys.has_any() {
        return Ok(());
    }
    if let Some(why) = server.without_keys() {
        return Err(why.into());
    }
    if server.behind_proxy {
        tracing::warn!(
            "`server.behind_proxy` is true and there is no key: everyone who reaches the proxy may do everything; make one \
             with `mainspring key create`"
        );
    }
    Ok(())
}

/// The vault with the keys of the settings.
fn vault(config: &Config) -> anyhow::Result<Vault> {
    Vault::new(&config.server.secrets_key)
        .map_err(|why| anyhow::anyhow!("settings: `server.secrets_key`: {why}"))
}

/// Runs a loop that has no end of its own.
fn until(
    stop: &CancellationToken,
    work: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let stop = stop.clone();
    async move {
        tokio::select! {
            () = work => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Starts every loop; returns what a stop drains and a change of the capacity concerns.
async fn start(
    node: &Arc<Node>,
    store: &ColdStore,
    address: String,
    phases: &Phases,
) -> anyhow::Result<Capacity> {
    let config = &node.config;
    let me = Identity {
        name: config.node.name.clone(),
        incarnation: uuid::Uuid::now_v7().simple().to_string(),
        address,
    };
    let ownership = Ownership::new(me, config.lease.get(), config.shards, !store.is_shared());
    let ownership = Arc::new(ownership.with(config.planted()));
    let hot = wheel::open(config, &store.wheels_name().await?).context("the wheels cannot be opened")?;
    let hot: Arc<dyn HotWheel> = Arc::new(Measured::new(hot, node.metrics.clone()));
    let reach = Reach::new(config.wheel.window.get(), config.wheel.near.get());
    let positions = Arc::new(Positions::new(config.shards, reach));
    let (promotion, to_promote) = Promotion::new(
        store.clock().clone(),
        config.wheel.window.get(),
        config.wheel.enabled.then(|| Arc::clone(&positions)),
        node.metrics.clone(),
    );
    // Callers' requests do not hold up the node's own work.
    let urgent = store.urgently();
    let writer = Writer::new(urgent.clone(), promotion.clone(), node.metrics.clone());
    let sinks = Sinks::new(
        config,
        store.clock().clone(),
        FileLimits::of(config, limits::in_force()).kept_open(config),
    )
    .context("the HTTP client cannot be made")?;
    let sinks = Arc::new(sinks);
    open_keys(node, store).await?;
    let destinations = Arc::new(Destinations::new(store.clone(), vault(config)?));
    destinations.open().await?;
    let subscriptions =
        Arc::new(Subscriptions::new(store.clone(), ownership.me().clone(), config.lease.get()));
    // Before anything is written.
    subscriptions.take().await?;
    let rates = Arc::new(Rates::new(config.wheel.load_per_second, config.wheel.catch_up_per_second));
    let (dispatcher, recording) = Dispatcher::new(
        config,
        urgent.clone(),
        writer.clone(),
        Arc::clone(&ownership),
        node.metrics.clone(),
        Arc::clone(&sinks) as Arc<dyn Sink>,
        Arc::clone(&destinations),
    );
    // Before anything is offered.
    dispatcher.take_terms();
    let stop = &phases.loops.stop;
    let watched = store.clone();
    phases.loops.spawn("marks", until(stop, async move { watched.watch_marks().await }));
    phases.loops.spawn("keys", until(stop, Arc::clone(&node.keys).run()));
    phases.loops.spawn("namespaces", until(stop, Arc::clone(&node.namespaces).run()));
    phases.loops.spawn("destinations", until(stop, Arc::clone(&destinations).run()));
    phases.loops.spawn("terms", until(stop, Arc::clone(&dispatcher).follow_destinations()));
    phases.loops.spawn("spread", until(stop, store.clone().follow_spread()));
    phases.loops.spawn("slots", until(stop, Arc::clone(&dispatcher).reserve_slots()));
    phases.recording.spawn("record", recording);
    phases.loops.spawn("subscriptions", until(stop, Arc::clone(&subscriptions).follow()));
    let outbox = Outbox::new(
        config,
        store.clone(),
        Arc::clone(&dispatcher),
        Arc::clone(&ownership),
        Arc::clone(&destinations),
        Arc::clone(&sinks) as Arc<dyn Sink>,
        node.metrics.clone(),
    );
    phases.loops.spawn("outbox", outbox.run(Arc::clone(&subscriptions), stop.clone()));
    let callers = Writer::new(store.clone(), promotion, node.metrics.clone());
    let operations = Arc::new(Operations::new(
        store.clone(),
        callers.clone(),
        &config.node.name,
        config.operations.per_second,
    ));
    phases.loops.spawn("operations", Arc::clone(&operations).run(phases.loops.stop.clone()));
    let queues = Queues::new(
        store.clone(),
        callers.clone(),
        Arc::clone(&ownership),
        node.metrics.clone(),
        phases.loops.stop.clone(),
    );
    phases.loops.spawn("queues", until(&phases.loops.stop, Arc::clone(&queues).run()));
    let (intake, workers) = Intake::new(callers, store.writers());
    workers.into_iter().for_each(|worker| phases.intake.spawn("intake", worker));
    let observer = Arc::new(Observer::new(Sources {
        config: Arc::clone(config),
        store: store.clone(),
        hot: Arc::clone(&hot),
        positions: Arc::clone(&positions),
        ownership: Arc::clone(&ownership),
        dispatcher: Arc::clone(&dispatcher),
        destinations: Arc::clone(&destinations),
        metrics: node.metrics.clone(),
    }));
    phases.loops.spawn("observer", Arc::clone(&observer).run(phases.loops.stop.clone()));
    node.set_service(Service {
        store: store.clone(),
        intake,
        ownership: Arc::clone(&ownership),
        hot: Arc::clone(&hot),
        positions: Arc::clone(&positions),
        observer,
        destinations,
        operations,
        queues,
        subscriptions,
        templates: Arc::new(Templates::new(store.clone())),
        sink: Arc::clone(&sinks) as Arc<dyn Sink>,
    });
    let shares = Shares::new(
        Arc::clone(node),
        urgent.clone(),
        Arc::clone(&ownership),
        Arc::clone(&positions),
        Arc::clone(&hot),
    );
    let owning = phases.pulses.watch("ownership", shares.run(phases.owning.stop.clone()));
    phases.owning.spawn_fallible("ownership", owning);
    if config.wheel.enabled {
        let last_mile = LastMile::new(
            Arc::clone(&dispatcher),
            store.clock().clone(),
            config.wheel.lead.get(),
            node.metrics.clone(),
        );
        let promoter = Arc::new(Promoter {
            store: urgent.clone(),
            hot,
            ownership: Arc::clone(&ownership),
            positions: Arc::clone(&positions),
            near: config.wheel.near.get(),
            last_mile,
            metrics: node.metrics.clone(),
        });
        start_wheels(promoter, &dispatcher, Arc::clone(&rates), to_promote, phases);
    } else {
        tracing::warn!("`wheel.enabled` is false: timers fire from SQL, up to a second late");
    }
    let clock = store.clock().clone();
    let maker = Maker::new(writer.clone(), Arc::clone(&ownership), clock, config.wheel.window.get());
    phases.loops.spawn("schedules", phases.pulses.watch("schedules", maker.run(phases.loops.stop.clone())));
    let sweep = Sweep::new(
        urgent,
        Arc::clone(&ownership),
        Arc::clone(&dispatcher),
        positions,
        writer,
        node.metrics.clone(),
    );
    let stop = &phases.loops.stop;
    let sweeping = phases.pulses.watch("sweep", start_sweep(Arc::clone(node), sweep, stop.clone()));
    phases.loops.spawn("sweep", sweeping);
    for _ in 0..store.writers() {
        phases.loops.spawn("dispatch", Arc::clone(&dispatcher).run());
    }
    let house =
        Housekeeping::new(store.clone(), ownership, node.metrics.clone(), config.history.retention.get());
    phases.loops.spawn_fallible("housekeeping", house.run(stop.clone()));
    Ok(Capacity { dispatcher, sinks, rates })
}

/// Starts the loops of the wheels.
fn start_wheels(
    promoter: Arc<Promoter>,
    dispatcher: &Arc<Dispatcher>,
    rates: Arc<Rates>,
    to_promote: mpsc::Receiver<Pointer>,
    phases: &Phases,
) {
    let promoting = Arc::clone(&promoter).run(to_promote, phases.promoting.stop.clone());
    phases.promoting.spawn("promotion", promoting);
    let (loops, stop, pulses) = (&phases.loops, &phases.loops.stop, &phases.pulses);
    let handing_out = Arc::clone(&promoter.last_mile).run(stop.clone());
    loops.spawn("last mile", pulses.watch("last mile", handing_out));
    let ticker = Ticker::new(
        Arc::clone(&promoter.hot),
        Arc::clone(&promoter.positions),
        Arc::clone(&promoter.last_mile),
        promoter.store.clock().clone(),
        promoter.metrics.clone(),
    );
    loops.spawn("ticker", pulses.watch("ticker", ticker.run(stop.clone())));
    if promoter.hot.is_shared() {
        let express = receive_express(
            Arc::clone(&promoter.hot),
            Arc::clone(&promoter.ownership),
            Arc::clone(&promoter.last_mile),
            stop.clone(),
        );
        loops.spawn("express", express);
    }
    let loader = Loader { promoter, dispatcher: Arc::clone(dispatcher), rates };
    loops.spawn("loader", pulses.watch("loader", loader.run(stop.clone())));
}

/// Sweeps after the first replay, which finds overdue timers in order, or after [`REPLAY_FIRST`].
async fn start_sweep(node: Arc<Node>, sweep: Sweep, stop: CancellationToken) {
    let began = Monotonic::now();
    let is_replayed = || {
        let service = node.service().filter(|service| service.ownership.has_entered());
        service.is_some_and(|service| {
            !node.config.wheel.enabled || service.positions.has_looked() || began.elapsed() > REPLAY_FIRST
        })
    };
    while !is_replayed() {
        if stop.is_cancelled() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let recovered = || {
        node.set_recovered();
        tracing::info!("ready");
    };
    sweep.run(stop, recovered).await;
}
