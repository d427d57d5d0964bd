//! Hostile input: whatever is sent to a reader of requests, times, rules, settings or queries is read or refused in words, and
//! nothing of it ends in a panic or a 500.

mod requests;
mod words;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// Texts that have broken readers of one thing or another.
pub const TEXTS: [&str; 48] = [
    "",
    " ",
    "\0",
    "a\0b",
    "\u{feff}",
    "\u{202e}gnp.exe",
    "e\u{301}\u{301}\u{301}",
    "🦀",
    ".",
    "..",
    "../../etc/passwd",
    "a/b",
    "*",
    "*/0 * * * *",
    "0 0 30 2 *",
    "99 99 99 99 99",
    "* * * * * * *",
    "1-0 * * * *",
    "0/4294967296 * * * *",
    "@reboot",
    "Europe/Berlin",
    "Europe/Atlantis",
    "UTC+99",
    "2026-02-30T00:00:00Z",
    "2026-12-01T09:00:00",
    "2026-12-01T24:00:00Z",
    "2016-12-31T23:59:60Z",
    "9999-12-31T23:59:59.999999999Z",
    "+292277026596-12-04T15:30:08Z",
    "-0001-01-01T00:00:00Z",
    "PT0S",
    "PT-5S",
    "P1Y",
    "PT99999999999999999999S",
    "P1DT",
    "PT0.0000000001S",
    "http://",
    "http://0x7f.1/",
    "http://2130706433/",
    "http://[::ffff:7f00:1]/",
    "http://user:pass@host/",
    "https://host:99999/",
    "file:///etc/passwd",
    "whsec_",
    "worker:",
    "group:a b",
    "9223372036854775808",
    "NaN",
];

/// A value that a field may not be ready for.
pub fn hostile() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        select(vec![
            json!(0),
            json!(-1),
            json!(1),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1e308),
            json!(-0.0)
        ]),
        any::<i64>().prop_map(Value::from),
    ];
    let text = prop_oneof![
        6 => select(TEXTS.to_vec()).prop_map(str::to_owned),
        2 => any::<String>(),
        1 => (select(vec!["a", "é", "0", "["]), 1_usize..5000).prop_map(|(one, times)| one.repeat(times)),
    ];
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        3 => number,
        6 => text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(text.clone(), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// One change of a document: where, as a share of its places; what; and the value for it.
type Change = (f64, u8, Value);

/// The pointers of all places of a document.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                places(inner, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        Value::Array(items) => {
            for (n, inner) in items.iter().enumerate() {
                places(inner, &format!("{at}/{n}"), found);
            }
        }
        _ => {}
    }
}

fn change(document: &mut Value, (place, what, with): &Change) {
    let mut found = Vec::new();
    places(document, "", &mut found);
    let at = &found[((found.len() as f64 * place) as usize).min(found.len() - 1)];
    let Some(here) = document.pointer_mut(at) else { return };
    match (what % 4, here) {
        (0, Value::Object(fields)) => drop(fields.insert("of_nobody".into(), with.clone())),
        (1, Value::Object(fields)) => {
            if let Some(name) = fields.keys().next().cloned() {
                fields.remove(&name);
            }
        }
        (2, Value::Array(items)) => items.push(with.clone()),
        (_, here) => *here = with.clone(),
    }
}

/// The text of one of these documents, right in itself, with a few changes; and now and then no JSON any more.
pub fn mutated(documents: Vec<Value>) -> impl Strategy<Value = Vec<u8>> {
    let changes = proptest::collection::vec((0.0..1.0_f64, any::<u8>(), hostile()), 0..4);
    let bytes = proptest::option::weighted(0.1, (0.0..1.0_f64, any::<u8>()));
    (select(documents), changes, bytes).prop_map(|(mut document, changes, bytes)| {
        changes.iter().for_each(|one| change(&mut document, one));
        let mut text = document.to_string().into_bytes();
        if let Some((place, byte)) = bytes {
            let at = ((text.len() as f64 * place) as usize).min(text.len() - 1);
            if byte < 64 { text.truncate(at) } else { text[at] = byte }
        }
        text
    })
}
