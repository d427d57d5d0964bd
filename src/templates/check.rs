//! A template, ready for use: it merges payloads over its defaults and checks them.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use serde_json::Value;

use super::meter::{Count, MAX_STEPS, measure};
use super::outline::Outline;
use super::{MAX_MISFITS, Misfit};
use crate::model::json::{self, escaped};
use crate::model::template::{MAX_SCHEMA, TemplateHash};
use crate::model::timer::MAX_DATA;

/// The bytes that one pattern may take, compiled.
const MAX_PATTERN: usize = 256 * 1024;

/// The bytes of what matching a pattern keeps for speed.
const MAX_PATTERN_CACHE: usize = 256 * 1024;

/// How many times its texts a template takes while it is ready, patterns not counted.
const READY: usize = 16;

/// A template, ready for use.
#[derive(Debug)]
pub struct Template {
    /// What it says.
    pub hash: TemplateHash,
    /// The bytes of its texts.
    bytes: usize,
    defaults: Option<String>,
    /// `None`: this version cannot read it.
    schema: Option<Schema>,
}

/// A schema, ready for use.
#[derive(Debug)]
pub struct Schema {
    outline: Outline,
    validator: Validator,
}

impl Schema {
    /// Reads a schema; or what is wrong with it, at pointers below `/schema`.
    pub fn read(text: &str) -> Result<Self, Vec<Misfit>> {
        let one = |code, detail: String| vec![Misfit::new("/schema", code, detail)];
        if text.len() > MAX_SCHEMA {
            return Err(one("too_large", format!("{} bytes; at most {MAX_SCHEMA}", text.len())));
        }
        let schema: Value = serde_json::from_str(text).map_err(|why| one("not_readable", told(&why)))?;
        if !schema.is_object() && !schema.is_boolean() {
            return Err(one("wrong_type", "a schema is a JSON object, or true for any data".to_owned()));
        }
        let outline = Outline::of(&schema)?;
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(
                // Linear in the text: no payload can make it slow.
                PatternOptions::regex().size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN_CACHE),
            )
            .should_validate_formats(false)
            .offline()
            .build(&schema)
            .map_err(|why| vec![not_a_schema(&why)])?;
        Ok(Self { outline, validator })
    }

    /// What is wrong with a value, at pointers below `/data`.
    fn faults(&self, value: &Value) -> Vec<Misfit> {
        let one = |code, detail: String| vec![Misfit::new("/data", code, detail)];
        if measure(&self.outline, value, Count::Steps).is_err() {
            let detail = format!(
                "checking it against the template's schema takes more than {MAX_STEPS} steps, or goes too deep; send \
                 less data, or simplify the schema"
            );
            return one("too_costly", detail);
        }
        if self.validator.is_valid(value) {
            return Vec::new();
        }
        if measure(&self.outline, value, Count::Faults).is_err() {
            let detail =
                "it does not match the template's schema; it is too large for a list of what is wrong";
            return one("not_valid", detail.to_owned());
        }
        let mut faults: Vec<Misfit> =
            self.validator.iter_errors(value).flat_map(|fault| told_of(&fault)).take(MAX_MISFITS).collect();
        if faults.is_empty() {
            faults = one("not_valid", "it does not match the template's schema".to_owned());
        }
        faults
    }
}

impl Template {
    /// A template of these texts; without a schema, if this version cannot read it.
    pub const fn new(
        hash: TemplateHash,
        bytes: usize,
        defaults: Option<String>,
        schema: Option<Schema>,
    ) -> Self {
        Self { hash, bytes, defaults, schema }
    }

    /// Merges a payload over the defaults and checks it; `None` is `null`. Returns what is to be kept and sent, or what is
    /// wrong, at pointers below `/data`.
    pub fn fit(&self, data: Option<&[u8]>) -> Result<Option<Vec<u8>>, Vec<Misfit>> {
        let one = |code, detail: String| vec![Misfit::new("/data", code, detail)];
        let Some(schema) = &self.schema else {
            let detail = "this node cannot read this template, which another version wrote; put it anew";
            return Err(vec![Misfit::new("/template", "unreadable", detail)]);
        };
        let data =
            data.map(str::from_utf8).transpose().map_err(|_| one("not_readable", "not UTF-8".into()))?;
        let merged = match (&self.defaults, data) {
            (Some(defaults), Some(data)) => {
                json::merged(defaults, data).map_err(|why| one("not_readable", why.to_string()))?
            }
            // Without a patch, or without anything to merge it over, each stays as it is written.
            (Some(text), None) => text.clone(),
            (None, data) => data.unwrap_or("null").to_owned(),
        };
        if merged.len() > MAX_DATA {
            let detail = format!("{} bytes with the template's defaults; at most {MAX_DATA}", merged.len());
            return Err(one("too_large", detail));
        }
        let value: Value = serde_json::from_str(&merged).map_err(|why| one("not_readable", told(&why)))?;
        let faults = schema.faults(&value);
        match faults.is_empty() {
            true => Ok((!value.is_null()).then(|| merged.into_bytes())),
            false => Err(faults),
        }
    }

    /// About the bytes that it takes while it is ready.
    pub fn weight(&self) -> usize {
        let patterns = self.schema.as_ref().map_or(0, |schema| schema.outline.patterns);
        READY * self.bytes + patterns * MAX_PATTERN
    }

    /// About how much work it is to fit a payload of so many bytes, in bytes read.
    pub fn effort(&self, data: usize) -> usize {
        let Some(Schema { outline, .. }) = &self.schema else { return 0 };
        let read = data + self.defaults.as_ref().map_or(0, String::len);
        let effort = read.saturating_mul(1 + outline.parts.len() / 2);
        if outline.fans_out { effort.max(MAX_STEPS) } else { effort }
    }
}

/// What a reader of JSON says, without the place in a text that the caller never wrote.
fn told(why: &serde_json::Error) -> String {
    let text = why.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    format!("a schema cannot be held against it: {text}")
}

/// Why a schema is none.
fn not_a_schema(why: &ValidationError<'_>) -> Misfit {
    let pointer = format!("/schema{}", why.instance_path().as_str());
    let is_pattern = matches!(why.kind(), ValidationErrorKind::Format { format } if format == "regex")
        || pointer.ends_with("/pattern");
    if is_pattern {
        let detail = format!(
            "not a pattern that is matched in linear time: without look-around and back references, and at most {} KiB \
             compiled",
            MAX_PATTERN / 1024
        );
        return Misfit::new(pointer, "bad_pattern", detail);
    }
    // The one place of the rules for schemas where "any of" would be all that is told.
    if matches!(why.kind(), ValidationErrorKind::AnyOf { .. }) && pointer.ends_with("/type") {
        let detail = "not a type: array, boolean, integer, null, number, object or string, or a list of different ones";
        return Misfit::new(pointer, "bad_schema", detail);
    }
    Misfit::new(pointer, "bad_schema", why.masked_with("this").to_string())
}

/// The words of the faults. They are the keywords of JSON Schema.
const WORDS: [&str; 30] = [
    "additionalItems",
    "additionalProperties",
    "anyOf",
    "const",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "propertyNames",
    "required",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "$ref",
];

/// What one fault says, without the payload's own values. A field that is missing, and each one too many, is told at its own
/// pointer.
fn told_of(fault: &ValidationError<'_>) -> Vec<Misfit> {
    let kind = fault.kind();
    let pointer = format!("/data{}", fault.instance_path().as_str());
    let code = WORDS.iter().find(|word| **word == kind.keyword()).copied().unwrap_or("not_allowed");
    let of_field =
        |name: &str, detail: &str| Misfit::new(format!("{pointer}/{}", escaped(name)), code, detail);
    match kind {
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            vec![of_field(name, "missing; the template's schema requires it")]
        }
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => unexpected
            .iter()
            .take(MAX_MISFITS)
            .map(|name| of_field(name, "the template's schema has no such field; leave it out"))
            .collect(),
        ValidationErrorKind::PropertyNames { .. } => {
            vec![Misfit::new(pointer, code, "a field's name is not one that the template's schema allows")]
        }
        ValidationErrorKind::FalseSchema => {
            vec![Misfit::new(pointer, code, "the template's schema allows nothing here; leave it out")]
        }
        _ => vec![Misfit::new(pointer, code, fault.masked_with("this").to_string())],
    }
}
