//! Nodes and shards: who owns what, how far it is promoted and handed over, clocks, and the last replays.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;

use super::frame::{Frame, Trouble};
use super::guard::Visit;
use super::words::{self, Moment, Zone};
use super::{Admin, html};
use crate::cold::{NodeRow, ReplayNote, ShardRow};
use crate::model::time::UnixMs;

/// How many replays of shards are looked at.
const REPLAYS: u64 = 500;

/// A node with an offset beyond this is named: the store's clock decides, but its log lines mislead.
const SKEW_MS: i64 = 500;

#[derive(Template)]
#[template(path = "nodes.html", config = ".askama.toml")]
struct NodesPage {
    frame: Frame,
    clock: String,
    summary: String,
    nodes: Vec<NodeView>,
    shards: Vec<ShardView>,
    replays: Vec<ReplayView>,
}

struct NodeView {
    name: String,
    me: bool,
    state: &'static str,
    class: &'static str,
    beat: String,
    started: Moment,
    address: String,
    version: String,
    shards: usize,
    /// Its clock against the store's; empty if it has not told.
    skew: String,
    /// What it does now; empty if it has not told.
    load: String,
}

struct ShardView {
    shard: i32,
    owner: String,
    class: String,
    epoch: i64,
    title: String,
    watermark: String,
    cursor: String,
}

/// Shards that were replayed together.
struct ReplayView {
    at: Moment,
    shards: usize,
    node: String,
    cause: String,
    detail: String,
}

/// `GET /nodes`.
pub async fn page(State(admin): State<Arc<Admin>>, visit: Visit) -> Result<Response, Trouble> {
    let service = admin.service(&visit)?;
    let (store, zone) = (&service.store, visit.zone);
    let nodes = store.nodes().await?;
    let shards = store.shard_rows(&[]).await?;
    let replays = store.latest_replays(REPLAYS).await?;
    let overview = service.observer.overview().await;
    let now = store.clock().now();
    let lease_ms = i64::try_from(admin.node.config.lease.get().as_millis()).unwrap_or(i64::MAX);
    let is_alive = |node: &NodeRow| now.get() - node.beat_at.get() < lease_ms;
    let alive = nodes.iter().filter(|node| is_alive(node)).count();
    let unowned = shards.iter().filter(|shard| shard.owner.is_none()).count();
    let number: HashMap<String, usize> =
        nodes.iter().enumerate().map(|(index, node)| (node.name.clone(), index % 6)).collect();
    let views = nodes.into_iter().map(|node| {
        let told = overview.nodes.iter().find(|report| report.name == node.name);
        let alive = is_alive(&node);
        NodeView {
            me: node.name == service.ownership.me().name,
            state: if alive { "alive" } else { "silent" },
            class: if alive { "ok" } else { "gone" },
            beat: zone.moment(node.beat_at, now).distance,
            started: zone.moment(node.started_at, now),
            address: node.address,
            version: node.version,
            shards: node.shards.len(),
            skew: told.map(|report| skew(report.skew_ms)).unwrap_or_default(),
            load: told
                .map(|report| {
                    format!(
                        "{} in flight, {} waiting",
                        words::number(report.in_flight),
                        words::number(report.waiting)
                    )
                })
                .unwrap_or_default(),
            name: node.name,
        }
    });
    let title = match (alive, unowned) {
        (_, 1..) => format!("{} without an owner", words::count(unowned, "shard")),
        (1, _) => "One node, every shard owned".to_owned(),
        (n, _) => format!("{n} nodes, every shard owned"),
    };
    let page = NodesPage {
        frame: Frame::new(&admin, &visit, "/nodes", title),
        clock: zone.clock(now),
        summary: format!(
            "{}; a lease lasts {}, and a node that has been silent for as long loses its shards. The wheels are {}{}",
            words::count(shards.len(), "shard"),
            words::span(admin.node.config.lease.get()),
            words::wheels(&admin.node.config),
            match service.positions.unreachable().len() {
                0 => ".".to_owned(),
                away => format!("; those of {} do not answer.", words::count(away, "shard")),
            }
        ),
        nodes: views.collect(),
        shards: shards.into_iter().map(|row| shard_view(row, &number, zone)).collect(),
        replays: together(&replays, zone, now),
    };
    Ok(html(&page))
}

fn skew(ms: i64) -> String {
    if ms.abs() <= SKEW_MS { format!("{ms} ms") } else { format!("{ms} ms: check its clock") }
}

fn shard_view(row: ShardRow, number: &HashMap<String, usize>, zone: Zone) -> ShardView {
    let class = match &row.owner {
        None => "gone".to_owned(),
        Some(owner) => number.get(owner).map_or_else(String::new, |index| format!("of{}", (index + 1) % 6)),
    };
    let owner = row.owner.unwrap_or_else(|| "nobody".to_owned());
    let clock = |at: UnixMs| if at.get() == 0 { String::new() } else { zone.clock(at) };
    ShardView {
        shard: row.shard,
        title: format!("shard {}, owned by {owner}, epoch {}", row.shard, row.epoch.0),
        owner,
        class,
        epoch: row.epoch.0,
        watermark: clock(row.watermark),
        cursor: clock(row.cursor_at),
    }
}

/// Replays that one node made for one cause within a second are one line.
fn together(notes: &[ReplayNote], zone: Zone, now: UnixMs) -> Vec<ReplayView> {
    let mut groups: BTreeMap<(std::cmp::Reverse<i64>, &str, &str), Vec<&ReplayNote>> = BTreeMap::new();
    for note in notes {
        let second = std::cmp::Reverse(note.at.get().div_euclid(1000));
        groups.entry((second, &note.node, &note.cause)).or_default().push(note);
    }
    let view = |((_, node, cause), notes): ((_, &str, &str), Vec<&ReplayNote>)| ReplayView {
        at: zone.moment(notes[0].at, now),
        shards: notes.len(),
        node: node.to_owned(),
        cause: cause.to_owned(),
        detail: match notes.as_slice() {
            [one] => format!("shard {}: {}", one.shard, one.detail),
            [one, ..] => format!("shard {} for one: {}", one.shard, one.detail),
            [] => String::new(),
        },
    };
    groups.into_iter().map(view).take(50).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_of_one_event_are_one_line_and_the_last_comes_first() {
        let note = |at, shard, cause: &str| ReplayNote {
            at: UnixMs::new(at),
            shard,
            node: "a".into(),
            cause: cause.into(),
            cursor_at: UnixMs::new(0),
            detail: "2 overdue".into(),
        };
        let notes = [note(9_000, 1, "lost"), note(5_100, 2, "start"), note(5_200, 3, "start")];
        let lines = together(&notes, Zone::default(), UnixMs::new(10_000));
        let seen: Vec<_> = lines.iter().map(|line| (line.cause.as_str(), line.shards)).collect();
        assert_eq!(seen, [("lost", 1), ("start", 2)]);
        assert_eq!(lines[1].detail, "shard 2 for one: 2 overdue");
    }
}
