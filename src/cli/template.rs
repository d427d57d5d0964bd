//! `template …`: named JSON Schemas with defaults, on a running server.

use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgGroup, Args, Subcommand};
use reqwest::Method;
use serde::Serialize;
use serde_json::value::RawValue;

use super::client::Client;
use super::exit::Exit;
use super::show::{self, Fields};
use super::{input, out};
use crate::clock::{Clock, SystemClock};

/// The fields of a template that are shown first, in this order; all others follow by name.
const FIRST: [&str; 3] = ["schema", "defaults", "version"];

/// The longest schema or defaults in a cell.
const MAX_CELL: usize = 60;

/// `template …`
#[derive(Subcommand)]
pub enum Verb {
    /// Make a template, or put another in the place of the one of this name
    Put(Put),
    /// Show a template
    Get(Named),
    /// List all templates by name
    Ls,
    /// Remove a template that no live timer and no schedule uses
    Rm(Named),
}

#[derive(Args)]
pub struct Named {
    /// The template
    #[arg(value_parser = input::name)]
    name: String,
}

#[derive(Args)]
#[command(
    group(ArgGroup::new("what").required(true)),
    after_help = "Examples:\n  \
        mainspring template put order-review --schema '{\"required\":[\"order\"]}' --defaults '{\"kind\":\"review\"}'\n  \
        mainspring timer put order-1 --in 30m --destination shop --template order-review --data '{\"order\":1}'"
)]
pub struct Put {
    /// Its name
    #[arg(value_parser = input::name)]
    name: String,
    /// The JSON Schema (2020-12) that data must match
    #[arg(long, value_name = "JSON", group = "what")]
    schema: Option<String>,
    /// The JSON Schema, from a file; - is stdin
    #[arg(long, value_name = "FILE", group = "what")]
    schema_file: Option<PathBuf>,
    /// A JSON object that data is merged over [default: data stays as it is]
    #[arg(long, value_name = "JSON", conflicts_with = "defaults_file")]
    defaults: Option<String>,
    /// The defaults, from a file with JSON; - is stdin
    #[arg(long, value_name = "FILE")]
    defaults_file: Option<PathBuf>,
}

#[derive(Serialize)]
struct Request {
    schema: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    defaults: Option<Box<RawValue>>,
}

impl Put {
    fn request(&self) -> anyhow::Result<Request> {
        let schema = input::json("schema", self.schema.as_deref(), self.schema_file.as_deref())?;
        let defaults = input::json("defaults", self.defaults.as_deref(), self.defaults_file.as_deref())?;
        Ok(Request { schema: schema.context("one of --schema and --schema-file is required")?, defaults })
    }
}

/// Runs one `template` verb.
pub async fn run(client: Client, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    match verb {
        Verb::Put(put) => {
            let reply = client.call(Method::PUT, &path(&put.name), &[], Some(&put.request()?)).await?;
            show::put(&reply, json, |template| {
                let [name, version] = ["name", "version"].map(|field| show::text(template, field));
                format!("put {name}: version {version}")
            })?;
        }
        Verb::Get(Named { name }) => {
            let reply = client.ask(Method::GET, &path(name), &[]).await?;
            show::one(&reply, json, |template| {
                show::fields(&show::text(template, "name"), &FIRST, &["name"], template, SystemClock.now())
            })?;
        }
        Verb::Ls => {
            let reply = client.ask(Method::GET, "/v1/templates", &[]).await?;
            show::all(&reply, json, "there are no templates yet", table)?;
        }
        Verb::Rm(Named { name }) => {
            let reply = client.ask(Method::DELETE, &path(name), &[]).await?;
            show::removed(&reply, json, name)?;
        }
    }
    Ok(Exit::Ok)
}

fn path(name: &str) -> String {
    format!("/v1/templates/{name}")
}

fn table(templates: &[Fields]) -> String {
    let mut rows = vec![["NAME", "VERSION", "SCHEMA", "DEFAULTS"].map(str::to_owned).to_vec()];
    for one in templates {
        let [name, version, schema, defaults] =
            ["name", "version", "schema", "defaults"].map(|field| show::text(one, field));
        rows.push(vec![name, version, out::short(&schema, MAX_CELL), out::short(&defaults, MAX_CELL)]);
    }
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_request_has_what_is_given_digit_by_digit() {
        let put: Put =
            input::parsed("a --schema {\"maximum\":12345678901234567890123} --defaults {\"n\":2.50}");
        let sent = serde_json::to_string(&put.request().unwrap()).unwrap();
        assert_eq!(sent, r#"{"schema":{"maximum":12345678901234567890123},"defaults":{"n":2.50}}"#);
        let plain: Put = input::parsed("a --schema true");
        assert_eq!(serde_json::to_value(plain.request().unwrap()).unwrap(), json!({"schema": true}));
        let bad: Put = input::parsed("a --schema nonsense");
        assert!(bad.request().is_err());
    }

    #[test]
    fn templates_are_shown() {
        let one: Value = json!({"name": "a", "version": 2, "schema": {"type": "object"}, "defaults": null});
        assert_eq!(
            table(&[serde_json::from_value(one).unwrap()]),
            "NAME  VERSION  SCHEMA             DEFAULTS\na     2        {\"type\":\"object\"}"
        );
    }
}
