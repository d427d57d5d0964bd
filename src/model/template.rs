//! Templates: named JSON Schemas with defaults, which the payload of a timer is fitted to before it is written.
//!
//! A timer keeps the name of its template. What it was fitted to is a hash of what the template says, not a version: a
//! version begins anew when a template is removed and made again, or when a store is restored.

use super::id::digest16;

/// The most bytes of a schema.
pub const MAX_SCHEMA: usize = 64 * 1024;

/// What a template says: equal for equal content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TemplateHash(pub [u8; 16]);

/// The template of a timer that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateUse {
    /// Its name.
    pub name: String,
    /// What the payload was fitted to; `None` before that.
    pub fitted: Option<TemplateHash>,
}

impl TemplateUse {
    /// A payload that is not fitted yet.
    pub const fn unfitted(name: String) -> Self {
        Self { name, fitted: None }
    }
}

/// The number by which the users of a template and its changes are kept apart.
pub fn lock_key(name: &str) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = digest16(&[b"template", name.as_bytes()]);
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}
