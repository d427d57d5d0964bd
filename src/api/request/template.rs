//! A template in a request, checked; and the name of one.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::canonical::canonical;
use super::{Refused, read};
use crate::api::problem::FieldError;
use crate::api::schema;
use crate::model::destination::is_name;
use crate::model::id::digest16;
use crate::model::template::{TemplateHash, TemplateUse};
use crate::model::timer::MAX_DATA;
use crate::templates::{Misfit, Schema};

/// A named JSON Schema with defaults. A field that is `null` counts as left out.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Template)]
pub struct TemplateIn {
    /// What data must match, once it is merged over the defaults.
    #[schema(value_type = schema::JsonSchema)]
    schema: Option<Box<RawValue>>,
    /// A JSON object that data is merged over, at most 64 KiB. Default: data stays as it is.
    #[schema(value_type = Option<schema::TemplateDefaults>)]
    defaults: Option<Box<RawValue>>,
}

/// What a template shall say.
#[derive(Debug)]
pub struct WantedTemplate {
    /// The schema, as it is written.
    pub schema: String,
    /// The defaults, as they are written.
    pub defaults: Option<String>,
    /// Of both.
    pub hash: TemplateHash,
}

impl From<Misfit> for FieldError {
    fn from(misfit: Misfit) -> Self {
        Self::new(misfit.pointer, misfit.code, misfit.detail)
    }
}

/// Reads and checks a template.
pub fn template(text: &[u8]) -> Result<WantedTemplate, Refused> {
    let TemplateIn { schema, defaults } = read(text, "")?;
    let mut errors = Vec::new();
    let mut wrong = |pointer: &str, code, detail: String| errors.push(FieldError::new(pointer, code, detail));
    let Some(schema) = schema else {
        wrong("/schema", "missing", "give a JSON Schema; `true` is one that allows everything".into());
        return Err(Refused::Fields(errors));
    };
    if let Some(defaults) = &defaults {
        let size = defaults.get().len();
        if !defaults.get().starts_with('{') {
            wrong("/defaults", "wrong_type", "a JSON object, which data is merged over".into());
        } else if size > MAX_DATA {
            wrong("/defaults", "too_large", format!("{size} bytes; at most {MAX_DATA}"));
        }
    }
    let defaults = defaults.map_or_else(String::new, |defaults| defaults.get().to_owned());
    let mut hashed = Vec::new();
    for (pointer, text) in [("/schema", schema.get()), ("/defaults", defaults.as_str())] {
        match canonical(text) {
            Ok(text) => hashed.push(text),
            Err(why) => wrong(pointer, "not_readable", why.to_string()),
        }
    }
    if let Err(found) = Schema::read(schema.get()) {
        errors.extend(found.into_iter().map(FieldError::from));
    }
    if !errors.is_empty() {
        return Err(Refused::Fields(errors));
    }
    let parts: Vec<&[u8]> =
        std::iter::once(b"template".as_slice()).chain(hashed.iter().map(String::as_bytes)).collect();
    Ok(WantedTemplate {
        schema: schema.get().to_owned(),
        defaults: Some(defaults).filter(|defaults| !defaults.is_empty()),
        hash: TemplateHash(digest16(&parts)),
    })
}

/// The template that a timer names; whether there is one shows when the payload is fitted to it.
pub fn named_template(name: Option<String>, errors: &mut Vec<FieldError>) -> Option<TemplateUse> {
    let name = name?;
    if is_name(&name) {
        return Some(TemplateUse::unfitted(name));
    }
    errors.push(unknown_template(&name));
    None
}

/// What is wrong with a timer whose template there is not.
pub fn unknown_template(name: &str) -> FieldError {
    let detail = format!("there is no template `{name}`; make it with PUT /v1/templates/{{name}}");
    FieldError::new("/template", "unknown_template", detail)
}
