//! Reads the settings for the verbs that need them, and `config show|check`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;

use super::exit::{Exit, usage};
use super::out;
use crate::config::Config;

/// Where settings come from besides the environment.
///
/// These flags may stand before the verb and after it. They are not global flags of clap: of a repeatable global flag
/// clap keeps only the values after the verb.
#[derive(Args, Clone)]
pub struct Settings {
    /// The settings file [default: config.toml in this directory, if there is one]
    #[arg(long, value_name = "FILE", help_heading = "Settings")]
    config: Option<PathBuf>,
    /// Set one key; overrides file and environment; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = "Settings")]
    sets: Vec<String>,
}

/// `config …`
#[derive(Subcommand)]
pub enum ConfigVerb {
    /// Print the settings in force, without secrets
    Show(Settings),
    /// Check the settings; exit code 2 if one is not valid
    Check(Settings),
}

impl Settings {
    /// These settings, which stand before the verb, overridden by `later`, which stand after it.
    pub fn and(&self, later: &Self) -> Self {
        let config = later.config.as_ref().or(self.config.as_ref()).cloned();
        Self { config, sets: [&self.sets[..], &later.sets].concat() }
    }

    /// These settings, overridden by a verb's own flags.
    pub fn and_sets(mut self, sets: Vec<String>) -> Self {
        self.sets.extend(sets);
        self
    }

    /// The settings in force.
    pub fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(self.config.as_deref(), environment()?, &self.sets)?)
    }
}

/// The environment variables that are UTF-8. A setting that is not UTF-8 is an error.
fn environment() -> anyhow::Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    for (name, value) in std::env::vars_os() {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => pairs.push((name, value)),
            (Ok(name), Err(_)) if name.starts_with("MAINSPRING__") => {
                return Err(usage(format!("settings: the value of {name} in the environment is not UTF-8")));
            }
            _ => {}
        }
    }
    Ok(pairs)
}

/// Runs one `config` verb.
pub fn run(verb: &ConfigVerb, before: &Settings, json: bool) -> anyhow::Result<Exit> {
    let (ConfigVerb::Show(after) | ConfigVerb::Check(after)) = verb;
    let config = before.and(after).load()?;
    let text = match (verb, json) {
        (ConfigVerb::Show(_), false) => config.shown().trim_end().to_owned(),
        (ConfigVerb::Show(_), true) => {
            let shown: toml::Value =
                toml::from_str(&config.shown()).context("the settings cannot be shown")?;
            serde_json::to_string(&shown)?
        }
        (ConfigVerb::Check(_), false) => "ok".to_owned(),
        (ConfigVerb::Check(_), true) => json!({ "ok": true }).to_string(),
    };
    out::print(&text)?;
    Ok(Exit::Ok)
}
