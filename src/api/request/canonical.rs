//! Whether two requests are the same: equal after canonical JSON.
//!
//! The text is walked once, whatever its depth: a value is written where it stands, and only an object whose names are
//! not in order is put together again.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

use crate::api::problem::FieldError;
use crate::model::id::digest16;
use crate::model::json::{MAX_DEPTH, Unreadable, Walk, plain};

/// The hash that tells whether two requests are the same: over canonical JSON (sorted keys, no spaces, numbers
/// by their exact value), without `id`, which names the timer and is not its content.
pub fn request_hash(text: &[u8], errors: &mut Vec<FieldError>) -> [u8; 16] {
    let mut canonical = String::with_capacity(text.len());
    // The text was read as JSON before: what can still be wrong is in the payload.
    let written =
        std::str::from_utf8(text).ok().map_or(Ok(()), |text| value(&mut Walk::new(text), 0, &mut canonical));
    if let Err(why) = written {
        errors.push(match why {
            Unreadable::TooDeep => {
                FieldError::new("/data", "too_deep", format!("nested deeper than {MAX_DEPTH}"))
            }
            Unreadable::Name(why) => FieldError::new("/data", "bad_name", format!("a field's name: {why}")),
        });
    }
    digest16(&[b"request", canonical.as_bytes()])
}

/// Canonical JSON of a text that is JSON; empty for an empty one.
pub fn canonical(text: &str) -> Result<String, Unreadable> {
    let mut canonical = String::with_capacity(text.len());
    // One level deep: an `id` is content here.
    value(&mut Walk::new(text), 1, &mut canonical).map(|()| canonical)
}

/// Writes the next value.
fn value(walk: &mut Walk<'_>, depth: usize, out: &mut String) -> Result<(), Unreadable> {
    match walk.peek() {
        Some(b'{' | b'[') if depth == MAX_DEPTH => return Err(Unreadable::TooDeep),
        Some(b'{') => object(walk, depth, out)?,
        Some(b'[') => {
            out.push('[');
            walk.enter();
            while !walk.ends(b']') {
                value(walk, depth + 1, out)?;
                out.push(',');
            }
            out.push(']');
        }
        // Half a surrogate pair is no text, and is the same only as itself.
        Some(b'"') => {
            let text = walk.string();
            match plain(text) {
                Ok(plain) => push_text(text, &plain, out),
                Err(_) => out.push_str(text),
            }
        }
        Some(b'-' | b'0'..=b'9') => {
            let text = walk.word();
            match exact(text) {
                Some(number) => out.push_str(&number),
                None => out.push_str(text),
            }
        }
        _ => out.push_str(walk.word()),
    }
    Ok(())
}

/// Writes an object: its fields sorted by name, and of equal names the last.
fn object<'a>(walk: &mut Walk<'a>, depth: usize, out: &mut String) -> Result<(), Unreadable> {
    out.push('{');
    let begin = out.len();
    let mut fields: Vec<(Cow<'a, str>, Range<usize>)> = Vec::new();
    walk.enter();
    while !walk.ends(b'}') {
        let start = out.len();
        let text = walk.name();
        let name = plain(text).map_err(Unreadable::Name)?;
        push_text(text, &name, out);
        out.push(':');
        value(walk, depth + 1, out)?;
        out.push(',');
        if depth == 0 && name == "id" {
            out.truncate(start);
        } else {
            fields.push((name, start..out.len()));
        }
    }
    if !fields.is_sorted_by(|(one, _), (other, _)| one < other) {
        fields.sort_by(|(one, _), (other, _)| one.cmp(other));
        let written = out.split_off(begin);
        for (n, (name, at)) in fields.iter().enumerate() {
            if fields.get(n + 1).is_none_or(|(next, _)| next != name) {
                out.push_str(&written[at.start - begin..at.end - begin]);
            }
        }
    }
    out.push('}');
    Ok(())
}

/// Writes a string in the one form that it has without needless escapes. One that was written without any has it; every
/// escape is longer than what it stands for.
fn push_text(text: &str, plain: &str, out: &mut String) {
    if text.len() == plain.len() + 2 {
        out.push_str(text);
    } else {
        out.push_str(&Value::from(plain).to_string());
    }
}

/// A number as digits and exponent, so that 2.50, 2.5 and 25e-1 are the same and no digit is lost; `None` if its
/// exponent is out of all bounds.
fn exact(text: &str) -> Option<String> {
    let (sign, plain) = text.strip_prefix('-').map_or(("", text), |plain| ("-", plain));
    let (mantissa, exponent) = plain.split_once(['e', 'E']).unwrap_or((plain, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let (leading, kept) = (digits.trim_start_matches('0'), digits.trim_matches('0'));
    if kept.is_empty() {
        return Some("0".into());
    }
    let exponent: i64 = exponent.trim_start_matches('+').parse().ok()?;
    let shift = i64::try_from(leading.len() - kept.len()).ok()? - i64::try_from(fraction.len()).ok()?;
    Some(format!("{sign}{kept}e{}", exponent.checked_add(shift)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    // Both have a `Value`.
    use serde_json::Value;

    use super::*;

    fn hash(text: &str) -> Option<[u8; 16]> {
        let mut errors = Vec::new();
        let hash = request_hash(text.as_bytes(), &mut errors);
        errors.is_empty().then_some(hash)
    }

    #[test]
    fn the_same_content_has_the_same_hash() {
        for (one, other) in [
            (r#"{"a":1,"b":[2,{"c":3,"d":4}]}"#, " {\"b\" : [ 2 , {\"d\":4, \"c\":3} ],\n\"a\":1 } "),
            (r#"{"id":"x","a":1}"#, r#"{"a":1}"#),
            (r#"{"a":"ü\/"}"#, r#"{"\u0061":"\u00fc/"}"#),
            (r#"[1,-0,2.50,1e2,0.001]"#, r#"[1.0,0.0,25e-1,100,1E-3]"#),
        ] {
            assert_eq!(hash(one), hash(other), "{one} {other}");
        }
    }

    #[test]
    fn other_content_has_another_hash() {
        for (one, other) in [
            ("{}", "[]"),
            ("[1,2]", "[2,1]"),
            ("[1,[2]]", "[[1],2]"),
            (r#"{"a":{"id":1}}"#, r#"{"a":{"id":2}}"#),
            (r#"{"a":null}"#, "{}"),
            (r#"["1"]"#, "[1]"),
            ("[1]", "[-1]"),
            ("[1]", "[10]"),
            ("[12345678901234567890123]", "[12345678901234567890124]"),
            ("[1e400]", "[1e401]"),
            ("[1e99999999999999999999]", "[2e99999999999999999999]"),
            (r#"["\ud800"]"#, r#"["\ud801"]"#),
        ] {
            assert_ne!(hash(one), hash(other), "{one} {other}");
        }
    }

    #[test]
    fn nesting_has_an_end() {
        let nested = |depth: usize| hash(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        assert!(nested(MAX_DEPTH).is_some());
        assert!(nested(MAX_DEPTH + 1).is_none());
        assert!(hash(r#"{"\ud800":1}"#).is_none(), "a name that is no text");
    }

    /// The definition, level by level; stored hashes were made by it. It reads a text again for each level.
    fn by_definition(text: &str, depth: usize, out: &mut String) {
        use serde_json::value::RawValue;
        use std::collections::BTreeMap;
        match text.as_bytes()[0] {
            b'{' => {
                let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).expect("an object");
                if depth == 0 {
                    fields.remove("id");
                }
                out.push('{');
                for (name, value) in fields {
                    out.push_str(&format!("{}:", Value::from(name)));
                    by_definition(value.get(), depth + 1, out);
                    out.push(',');
                }
                out.push('}');
            }
            b'[' => {
                let items: Vec<&RawValue> = serde_json::from_str(text).expect("an array");
                out.push('[');
                for item in items {
                    by_definition(item.get(), depth + 1, out);
                    out.push(',');
                }
                out.push(']');
            }
            b'"' => match serde_json::from_str::<String>(text) {
                Ok(plain) => out.push_str(&Value::from(plain).to_string()),
                Err(_) => out.push_str(text),
            },
            b'-' | b'0'..=b'9' => out.push_str(&exact(text).unwrap_or_else(|| text.to_owned())),
            _ => out.push_str(text),
        }
    }

    /// Any JSON value as text, with spaces, escapes and equal names.
    fn any_json() -> impl Strategy<Value = String> {
        let string = || {
            prop::sample::select(vec![
                "",
                "a",
                "b",
                "id",
                "ü",
                r"\u0061",
                r"\n\/",
                r"\ud83d\ude00",
                r#"\""#,
                "\u{7f}",
            ])
            .prop_map(|text| format!("\"{text}\""))
        };
        let space = || prop::sample::select(vec!["", " ", "\n\t "]);
        let leaf = prop_oneof![
            string(),
            Just(r#""\ud800""#.to_owned()),
            prop::sample::select(vec![
                "null",
                "true",
                "0",
                "-1.50e+3",
                "2.5",
                "12345678901234567890123",
                "1e400"
            ])
            .prop_map(str::to_owned),
        ];
        leaf.prop_recursive(5, 40, 6, move |inner| {
            let item =
                (space(), inner, space()).prop_map(|(before, item, after)| format!("{before}{item}{after}"));
            let field = (space(), string(), space(), item.clone())
                .prop_map(|(before, name, after, item)| format!("{before}{name}{after}:{item}"));
            prop_oneof![
                prop::collection::vec(item, 0..5).prop_map(|items| format!("[{}]", items.join(","))),
                prop::collection::vec(field, 0..5).prop_map(|fields| format!("{{{}}}", fields.join(","))),
            ]
        })
    }

    proptest! {
        #[test]
        fn one_walk_writes_what_the_definition_says(text in any_json()) {
            let (mut walked, mut defined) = (String::new(), String::new());
            let done = value(&mut Walk::new(&text), 0, &mut walked).is_ok();
            prop_assert!(done);
            by_definition(&text, 0, &mut defined);
            prop_assert_eq!(walked, defined);
        }
    }

    #[test]
    fn a_text_that_is_cut_off_ends_the_walk() {
        let text = r#" {"a" : [1, {"b\"": "ü"}], "c": tru"#;
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            let _ = value(&mut Walk::new(&text[..end]), 0, &mut String::new());
        }
    }
}
