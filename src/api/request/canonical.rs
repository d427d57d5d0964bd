//! Whether two requests are the same: equal after canonical JSON.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::api::problem::FieldError;
use crate::model::id::digest16;

/// Arrays and objects inside each other; as many as common parsers follow.
const MAX_DEPTH: usize = 127;

/// The hash that tells whether two requests are the same: over canonical JSON (sorted keys, no spaces, numbers
/// by their exact value), without `id`, which names the timer and is not its content.
pub fn request_hash(text: &[u8], errors: &mut Vec<FieldError>) -> [u8; 16] {
    let mut canonical = String::with_capacity(text.len());
    // The text was read as JSON before: what can still be wrong is in the payload.
    let written = std::str::from_utf8(text).ok().map_or(Ok(()), |text| write(text.trim(), 0, &mut canonical));
    if let Err(why) = written {
        errors.push(match why {
            NotComparable::TooDeep => {
                FieldError::new("/data", "too_deep", format!("nested deeper than {MAX_DEPTH}"))
            }
            NotComparable::Name(why) => {
                FieldError::new("/data", "bad_name", format!("a field's name: {why}"))
            }
        });
    }
    digest16(&[b"request", canonical.as_bytes()])
}

enum NotComparable {
    TooDeep,
    /// Half of a surrogate pair.
    Name(serde_json::Error),
}

/// Writes one JSON value, known to be one. Level by level, for only the text of a number has all its digits.
fn write(text: &str, depth: usize, out: &mut String) -> Result<(), NotComparable> {
    match text.as_bytes().first() {
        Some(b'{' | b'[') if depth == MAX_DEPTH => return Err(NotComparable::TooDeep),
        Some(b'{') => {
            let mut fields: BTreeMap<String, &RawValue> =
                serde_json::from_str(text).map_err(NotComparable::Name)?;
            if depth == 0 {
                fields.remove("id");
            }
            out.push('{');
            for (name, value) in fields {
                out.push_str(&Value::from(name).to_string());
                out.push(':');
                write(value.get(), depth + 1, out)?;
                out.push(',');
            }
            out.push('}');
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(NotComparable::Name)?;
            out.push('[');
            for item in items {
                write(item.get(), depth + 1, out)?;
                out.push(',');
            }
            out.push(']');
        }
        // Half a surrogate pair is no text, and is the same only as itself.
        Some(b'"') => match serde_json::from_str::<String>(text) {
            Ok(plain) => out.push_str(&Value::from(plain).to_string()),
            Err(_) => out.push_str(text),
        },
        Some(b'-' | b'0'..=b'9') => match exact(text) {
            Some(number) => out.push_str(&number),
            None => out.push_str(text),
        },
        _ => out.push_str(text),
    }
    Ok(())
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
}
