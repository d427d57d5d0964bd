//! Whether two requests are the same: equal after canonical JSON.

use serde_json::Value;

use crate::api::problem::FieldError;
use crate::model::id::digest16;

/// The hash that tells whether two requests are the same: over canonical JSON (sorted keys, no spaces),
/// without `id`, which names the timer and is not its content.
pub fn request_hash(text: &[u8], errors: &mut Vec<FieldError>) -> [u8; 16] {
    match serde_json::from_slice::<Value>(text) {
        Ok(mut value) => {
            if let Value::Object(fields) = &mut value {
                fields.remove("id");
            }
            let mut canonical = String::with_capacity(text.len());
            write_canonical(&value, &mut canonical);
            digest16(&[b"request", canonical.as_bytes()])
        }
        Err(why) => {
            // It was read once already; what is left is nesting deeper than a parser should follow.
            errors.push(FieldError::new("/data", "too_deep", format!("cannot be compared: {why}")));
            [0; 16]
        }
    }
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<_> = fields.iter().collect();
            names.sort_by_key(|(name, _)| *name);
            out.push('{');
            for (place, (name, value)) in names.into_iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write_canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}
