//! The layout of `src/` (docs/architecture.md): a room knows only rooms below it.

use std::path::Path;

/// The rooms from top to bottom. Rooms of one floor are strangers to each other.
const FLOORS: [&[&str]; 16] = [
    &["cli"],
    &["app", "tools"],
    &["api", "admin"],
    &["service"],
    &["observe"],
    &["hot", "sweep", "housekeeping", "outbox"],
    &["dispatch", "operations", "schedule", "queue"],
    &["writer", "sink"],
    &["promotion"],
    &["ownership", "positions"],
    &["destinations", "templates"],
    &["cold", "wheel"],
    &["traces"],
    &["telemetry", "limits"],
    &["config", "clock", "metrics"],
    &["planted", "model"],
];

/// Arrows that point down and are forbidden all the same.
const NEVER: [(&str, &str); 4] =
    [("sink", "cold"), ("tools", "cold"), ("tools", "dispatch"), ("tools", "hot")];

/// What writes timers, and the room that alone may call it on the store: what follows a commit stands there.
const WRITES: [&str; 5] =
    ["store.register(", "store.apply(", "store.finish_delivered(", "store.redrive(", "store.lease("];
const WRITER: &str = "writer";

/// Rooms within `tools` that are strangers to each other: no file of the first names the second.
const STRANGERS: [[&str; 2]; 2] = [["bench", "drill"], ["drill", "bench"]];

/// Every room that the file names by `crate::ROOM`, outside comments.
fn named(source: &str) -> Vec<&str> {
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = code.flat_map(|line| line.split("crate::").skip(1));
    paths
        .map(|path| path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
        .collect()
}

/// What is wrong with the arrows of one file.
fn wrong(room: &str, source: &str) -> Vec<String> {
    let floor_of = |room: &str| FLOORS.iter().position(|floor| floor.contains(&room));
    let is_wrong = |to: &&str| {
        let down = floor_of(room).zip(floor_of(to)).is_some_and(|(from, to)| from < to);
        *to != room && (!down || NEVER.contains(&(room, *to)))
    };
    let arrows = named(source).into_iter().filter(is_wrong).map(|to| format!("{room} → {to}"));
    let writes = WRITES.iter().filter(|write| room != WRITER && source.contains(*write));
    arrows.chain(writes.map(|write| format!("{room} writes timers by itself: {write}…"))).collect()
}

fn check(room: &str, path: &Path, found: &mut Vec<String>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a folder") {
            check(room, &entry.expect("an entry").path(), found);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        let source = std::fs::read_to_string(path).expect("source text");
        if names_stranger(&path.to_string_lossy(), &source) {
            found.push(format!("{}: bench and drill are strangers", path.display()));
        }
        found.extend(wrong(room, &source).into_iter().map(|arrow| format!("{}: {arrow}", path.display())));
    }
}

/// Whether a file of one part of `tools` names the other. What stands deeper goes by `crate::tools`: a chain of
/// `super` would hide it.
fn names_stranger(path: &str, source: &str) -> bool {
    let code: Vec<&str> = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    STRANGERS.iter().filter(|[from, _]| path.contains(&format!("/src/tools/{from}"))).any(|[_, to]| {
        let names =
            [format!("tools::{to}"), format!("super::{to}"), "super::super::super".into(), "tools::{".into()];
        code.iter().any(|line| names.iter().any(|name| line.contains(name)))
    })
}

#[test]
fn bench_and_drill_are_strangers() {
    assert!(names_stranger("a/src/tools/bench/mod.rs", "use super::drill::fault;"));
    assert!(names_stranger("a/src/tools/drill.rs", "    crate::tools::bench::load::f();"));
    assert!(!names_stranger(
        "a/src/tools/drill/mod.rs",
        "/// As [`crate::tools::bench`] does.\nuse crate::tools::node;"
    ));
}

#[test]
fn arrows_between_rooms_point_down() {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
        let path = entry.unwrap().path();
        let room = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !["lib", "main"].contains(&room.as_str()) {
            check(&room, &path, &mut found);
        }
    }
    assert!(found.is_empty(), "arrows that point up, sideways or to a stranger:\n{}", found.join("\n"));
}

/// `src/room/file.rs::name` in the architecture names a function, type or constant of that file.
#[test]
fn every_name_in_the_architecture_exists() {
    let document = include_str!("../../docs/architecture.md");
    let mut found = 0;
    for word in document.split('`').skip(1).step_by(2).filter(|word| word.starts_with("src/")) {
        let (path, name) = word.split_once("::").unwrap_or((word, ""));
        let source = std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR")));
        let source = if name.is_empty() { String::new() } else { source.unwrap_or_default() };
        let goes_on = |after: &str| after.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        let is_defined = ["fn", "struct", "enum", "trait", "const"]
            .iter()
            .any(|what| source.split(&format!("{what} {name}")).skip(1).any(|after| !goes_on(after)));
        let exists = Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists();
        assert!(exists && (name.is_empty() || is_defined), "docs/architecture.md names {word}");
        found += 1;
    }
    assert!(found > 40, "{found} names read");
}

#[test]
fn an_arrow_that_is_turned_is_seen() {
    assert_eq!(wrong("cold", "use crate::wheel::Slot;"), ["cold → wheel"]);
    assert_eq!(wrong("sink", "fn f() { crate::cold::f() } // a"), ["sink → cold"]);
    assert_eq!(wrong("wheel", "use crate::{api, model};"), ["wheel → "], "no braces: every name is read");
    assert_eq!(wrong("api", "service.store.apply(&changes)").len(), 1, "past the writer");
    assert!(wrong("writer", "self.store.apply(&changes)").is_empty());
    assert!(wrong("hot", "/// [`crate::app`]\nuse crate::dispatch::OVERDUE;\nuse crate::hot::f;").is_empty());
}
