//! Wiring: what starts in which order, what watches over it, and how it stops.
//!
//! Start: listen → cold store (tried until it answers) → name and shards → wheels (replay, loader, ticker) →
//! sweep → ready.
//!
//! Stop, where other nodes share the store: shards are handed over, at once and while everything still runs, so
//! that others fire what falls due → intake → loader, ticker, sweep → attempts under way end → results are
//! recorded → what these and the intake's last calls wrote is promoted, to whoever owns it now → pools.
//! With the store to itself a node gives its shards up last.

mod own;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api;
use crate::clock::{Clock, Monotonic, SystemClock};
use crate::cold::{Applied, Change, ColdStore, Identity, MAX_APPLY_BATCH, MAX_REGISTER_BATCH, NewTimer};
use crate::config::{ColdKind, Config, shown_url};
use crate::dispatch::Dispatcher;
use crate::hot::last_mile::LastMile;
use crate::hot::loader::Loader;
use crate::hot::promoter::{Promoter, receive_express};
use crate::hot::ticker::Ticker;
use crate::housekeeping::Housekeeping;
use crate::metrics::Metrics;
use crate::ownership::Ownership;
use crate::positions::Positions;
use crate::promotion::Promotion;
use crate::service::{Node, Service};
use crate::sweep::Sweep;
use crate::wheel::{self, HotWheel};
use crate::writer::{Batcher, Registrar};

/// The longest that attempts under way may go on after a stop was asked for, whatever their timeout:
/// supervisors kill after 30 s.
const LAST_ATTEMPTS: Duration = Duration::from_secs(25);

/// How long every other step of a stop may take.
const DRAIN: Duration = Duration::from_secs(5);

/// How long a stop waits for its shards to be handed over before it goes on beside that.
const HAND_OVER: Duration = Duration::from_secs(2);

/// How long the first sweep waits for the first replay: Redis may be away.
const REPLAY_FIRST: Duration = Duration::from_secs(3);

/// How many requests of one kind wait for their batch before callers are told to come back later.
const QUEUE: usize = 20_000;

/// Runs the service until SIGTERM or SIGINT, or until it cannot go on.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    crate::telemetry::init(&config.log)?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
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
    run(config, Arc::new(SystemClock), stop).await
}

/// Runs the service until `stop`.
pub async fn run(config: Config, clock: Arc<dyn Clock>, stop: CancellationToken) -> anyhow::Result<()> {
    let config = Arc::new(config);
    let listen = config.server.listen;
    let listener = TcpListener::bind(listen).await.map_err(|why| {
        anyhow::anyhow!("cannot listen on {listen}: {why}; free the port, or set another in `server.listen`")
    })?;
    let address = listener.local_addr().context("the listener has no address")?;
    let store = ColdStore::open(&config, clock, false, true)?;
    let node = Arc::new(Node::new(Arc::clone(&config), Metrics::new()?, stop.clone()));
    let doors = TaskTracker::new();
    let closing = CancellationToken::new();
    doors.spawn(api::serve(listener, Arc::clone(&node), closing.clone()));
    tracing::info!(
        "listening on http://{address} (node {}, store {})",
        config.node.name,
        shown_url(&config.cold.url)
    );

    let ended = tokio::select! {
        prepared = prepare(&config, &store) => match prepared {
            Ok(()) => work(&node, &store, address.to_string(), &doors, &closing).await,
            Err(why) => Err(why),
        },
        () = stop.cancelled() => Ok(()),
    };
    closing.cancel();
    doors.close();
    // Calls that still wait for a store that is away are cut off.
    let _ = tokio::time::timeout(DRAIN, doors.wait()).await;
    let _ = tokio::time::timeout(DRAIN, store.close()).await;
    tracing::info!("stopped");
    ended
}

/// Waits until the cold store is reachable and fit. What does not mend itself is an error at once.
async fn prepare(config: &Config, store: &ColdStore) -> anyhow::Result<()> {
    let shared = config.cold_kind()? == ColdKind::Postgres;
    let mut wait = Duration::from_millis(250);
    let mut told = false;
    loop {
        match store.prepare().await {
            Ok(()) => return Ok(()),
            Err(why) if shared && why.is_passing() => {
                if told {
                    tracing::debug!(%why, "still not");
                } else {
                    tracing::warn!("{why}; trying on, not ready until it answers");
                    told = true;
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

/// Starts everything behind the API, and runs until stopped or unable to go on.
async fn work(
    node: &Arc<Node>,
    store: &ColdStore,
    address: String,
    doors: &TaskTracker,
    closing: &CancellationToken,
) -> anyhow::Result<()> {
    let config = &node.config;
    let me = Identity {
        name: config.node.name.clone(),
        incarnation: uuid::Uuid::now_v7().simple().to_string(),
        address,
    };
    let ownership = Ownership::new(me, config.lease.get(), config.shards, !store.is_shared());
    let ownership = Arc::new(ownership.with(config.planted()));
    let hot = wheel::open(config, &store.wheels_name().await?).context("the wheels cannot be opened")?;
    let positions = Arc::new(Positions::new(config.shards));
    let (promotion, to_promote) = Promotion::new(
        store.clock().clone(),
        config.wheel.window.get(),
        config.wheel.enabled.then(|| Arc::clone(&positions)),
        node.metrics.clone(),
    );
    // What callers ask for does not hold up the node's own work.
    let urgent = store.urgently();
    let (dispatcher, recorder) = Dispatcher::new(
        config,
        urgent.clone(),
        Arc::clone(&ownership),
        node.metrics.clone(),
        promotion.clone(),
    )
    .context("the HTTP client cannot be made")?;
    let (loops, recording) = (TaskTracker::new(), TaskTracker::new());
    let (promoting, owning) = (TaskTracker::new(), TaskTracker::new());
    let (halt, all_written, disown) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let (failed, mut failure) = tokio::sync::mpsc::channel::<anyhow::Error>(4);
    spawn_watched(&recording, &failed, "record", async {
        recorder.await;
        Ok(())
    });
    node.set_service(start_service(node, store, &ownership, &hot, &positions, &promotion, &failed));

    let renewing = own::own(Arc::clone(node), urgent.clone(), disown.clone());
    spawn_watched(&owning, &failed, "ownership", renewing);
    if config.wheel.enabled {
        let promoter = Promoter {
            store: urgent.clone(),
            hot: Arc::clone(&hot),
            ownership: Arc::clone(&ownership),
            positions: Arc::clone(&positions),
            near: config.wheel.near.get(),
            last_mile: LastMile::new(
                Arc::clone(&dispatcher),
                store.clock().clone(),
                config.wheel.lead.get(),
                node.metrics.clone(),
            ),
            metrics: node.metrics.clone(),
        };
        let promoter = Arc::new(promoter);
        let promotes = Arc::clone(&promoter).run(to_promote, all_written.clone());
        spawn_watched(&promoting, &failed, "promotion", async {
            promotes.await;
            Ok(())
        });
        start_wheels(config, promoter, &dispatcher, &loops, &failed, &halt);
    } else {
        tracing::warn!("`wheel.enabled` is false: timers fire from SQL, up to a second late");
    }
    let sweep = Sweep::new(
        urgent,
        Arc::clone(&ownership),
        Arc::clone(&dispatcher),
        positions,
        promotion,
        node.metrics.clone(),
    );
    spawn_watched(&loops, &failed, "sweep", start_sweep(Arc::clone(node), sweep, halt.clone()));
    for _ in 0..store.writers() {
        let claims = Arc::clone(&dispatcher);
        spawn_watched(&loops, &failed, "dispatch", async move {
            claims.run().await;
            Ok(())
        });
    }
    let house = Housekeeping::new(
        store.clone(),
        Arc::clone(&ownership),
        node.metrics.clone(),
        config.history.retention.get(),
    );
    spawn_watched(&loops, &failed, "housekeeping", house.run(halt.clone()));
    drop(failed);

    let ended = tokio::select! {
        () = node.stop_asked() => Ok(()),
        why = failure.recv() => Err(why.unwrap_or_else(|| anyhow::anyhow!("every loop ended"))),
    };
    let grace = (config.webhook.timeout.get() + Duration::from_secs(1)).min(LAST_ATTEMPTS);
    if store.is_shared() {
        // First of all, while everything still runs: what falls due before another node has taken the shards is
        // claimed already.
        disown.cancel();
        owning.close();
        let _ = tokio::time::timeout(HAND_OVER, owning.wait()).await;
    }
    // Nothing new comes in and nothing more is claimed; calls and attempts under way get time to end.
    closing.cancel();
    doors.close();
    halt.cancel();
    let (_, ()) = tokio::join!(tokio::time::timeout(DRAIN, doors.wait()), dispatcher.drain(grace));
    drop(dispatcher);
    end(&loops, &halt).await;
    end(&recording, &CancellationToken::new()).await;
    end(&promoting, &all_written).await;
    end(&owning, &disown).await;
    ended
}

/// Lets the wheels of this node's shards turn.
fn start_wheels(
    config: &Config,
    promoter: Arc<Promoter>,
    dispatcher: &Arc<Dispatcher>,
    loops: &TaskTracker,
    failed: &tokio::sync::mpsc::Sender<anyhow::Error>,
    halt: &CancellationToken,
) {
    let start = |name: &'static str, task: futures::future::BoxFuture<'static, ()>| {
        spawn_watched(loops, failed, name, async {
            task.await;
            Ok(())
        });
    };
    start("last mile", Box::pin(Arc::clone(&promoter.last_mile).run(halt.clone())));
    let ticker = Ticker::new(
        Arc::clone(&promoter.hot),
        Arc::clone(&promoter.positions),
        Arc::clone(&promoter.last_mile),
        promoter.store.clock().clone(),
        promoter.metrics.clone(),
    );
    start("ticker", Box::pin(ticker.run(halt.clone())));
    if promoter.hot.is_shared() {
        let express = receive_express(
            Arc::clone(&promoter.hot),
            Arc::clone(&promoter.ownership),
            Arc::clone(&promoter.last_mile),
            halt.clone(),
        );
        start("express", Box::pin(express));
    }
    let loader = Loader {
        promoter,
        dispatcher: Arc::clone(dispatcher),
        window: config.wheel.window.get(),
        load_per_second: config.wheel.load_per_second,
        catch_up_per_second: config.wheel.catch_up_per_second,
    };
    start("loader", Box::pin(loader.run(halt.clone())));
}

/// Sweeps, once the replay of this node's shards has had its chance to find what is overdue.
async fn start_sweep(node: Arc<Node>, sweep: Sweep, halt: CancellationToken) -> anyhow::Result<()> {
    let began = Monotonic::now();
    let is_replayed = || {
        let service = node.service().filter(|service| service.ownership.has_entered());
        service.is_some_and(|service| {
            !node.config.wheel.enabled || service.positions.has_looked() || began.elapsed() > REPLAY_FIRST
        })
    };
    while !is_replayed() {
        if halt.is_cancelled() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let recovered = || {
        node.set_recovered();
        tracing::info!("ready");
    };
    sweep.run(halt, recovered).await;
    Ok(())
}

/// Ends loops; one that hangs on a store that is away does not hold up the end of the process for long.
async fn end(loops: &TaskTracker, halt: &CancellationToken) {
    halt.cancel();
    loops.close();
    if tokio::time::timeout(DRAIN, loops.wait()).await.is_err() {
        tracing::warn!("a loop did not end in time; what it held is picked up after the restart");
    }
}

/// The intake's queues. Their workers live as long as the process.
fn start_service(
    node: &Node,
    store: &ColdStore,
    ownership: &Arc<Ownership>,
    hot: &Arc<dyn HotWheel>,
    positions: &Arc<Positions>,
    promotion: &Promotion,
    failed: &tokio::sync::mpsc::Sender<anyhow::Error>,
) -> Service {
    let tasks = TaskTracker::new();
    let registrar = Registrar::new(store.clone(), promotion.clone(), node.metrics.clone());
    let registering = registrar.clone();
    let (registrations, workers) =
        Batcher::new(store.writers(), MAX_REGISTER_BATCH, QUEUE, move |batch: Vec<NewTimer>| {
            let registrar = registering.clone();
            async move { registrar.register(&batch).await }
        });
    for worker in workers {
        spawn_watched(&tasks, failed, "register", async {
            worker.await;
            Ok(())
        });
    }
    let changing = (store.clone(), promotion.clone());
    let (changes, workers) =
        Batcher::new(store.writers(), MAX_APPLY_BATCH, QUEUE, move |batch: Vec<Change>| {
            let (store, promotion) = changing.clone();
            async move {
                let answers = store.apply(&batch).await;
                promotion.written(answers.iter().flatten().filter_map(Applied::changed_row));
                answers
            }
        });
    for worker in workers {
        spawn_watched(&tasks, failed, "change", async {
            worker.await;
            Ok(())
        });
    }
    Service {
        store: store.clone(),
        registrar,
        registrations,
        changes,
        ownership: Arc::clone(ownership),
        hot: Arc::clone(hot),
        positions: Arc::clone(positions),
        promotion: promotion.clone(),
    }
}

/// A loop that ends before it was told to takes the process with it: a timer service that is half alive is
/// worse than one that is restarted.
fn spawn_watched(
    loops: &TaskTracker,
    failed: &tokio::sync::mpsc::Sender<anyhow::Error>,
    name: &'static str,
    task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) {
    let failed = failed.clone();
    let running = loops.spawn(task);
    loops.spawn(async move {
        let why = match running.await {
            Ok(Ok(())) => return tracing::debug!("the {name} loop ended"),
            Ok(Err(why)) => why,
            Err(why) => anyhow::anyhow!("the {name} loop broke down: {why}"),
        };
        let _ = failed.send(why).await;
    });
}
