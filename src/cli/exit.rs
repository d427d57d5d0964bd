//! How a verb ends: its exit code, and its failure as one line.

use std::error::Error as StdError;
use std::process::ExitCode;

use super::{client, out};
use crate::{cold, config};

/// How a verb ended; the numbers are the contract's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked.
    Ok = 0,
    /// It failed.
    Failed = 1,
    /// It was asked wrongly: flags or settings.
    Usage = 2,
    /// What it was asked about is not there.
    NotFound = 3,
    /// Something else stands in the way: too late, in flight, the id is taken.
    Conflict = 4,
    /// The server or the store cannot be reached.
    Unavailable = 5,
    /// `verify`, `bench` or `drill` found a loss or another broken promise.
    Loss = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A flag or argument that cannot be right, found after the flags were read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A [`Usage`] failure with these words.
pub fn usage(detail: impl Into<String>) -> anyhow::Error {
    Usage(detail.into()).into()
}

/// The exit code of a failure, by the first cause that has one.
pub fn of(why: &anyhow::Error) -> Exit {
    why.chain().find_map(of_cause).unwrap_or(Exit::Failed)
}

fn of_cause(cause: &(dyn StdError + 'static)) -> Option<Exit> {
    if let Some(why) = cause.downcast_ref::<client::Error>() {
        return Some(why.exit());
    }
    if let Some(why) = cause.downcast_ref::<cold::Error>() {
        return Some(of_store(why));
    }
    if cause.is::<out::PipeClosed>() {
        return Some(Exit::Ok);
    }
    (cause.is::<Usage>() || cause.is::<config::Error>()).then_some(Exit::Usage)
}

fn of_store(why: &cold::Error) -> Exit {
    match why {
        cold::Error::Url(_) | cold::Error::Shards { .. } | cold::Error::Namespace { .. } => Exit::Usage,
        cold::Error::Unavailable(_)
        | cold::Error::Ambiguous(_)
        | cold::Error::Full
        | cold::Error::ReadOnly(_)
        | cold::Error::Busy
        | cold::Error::InUse { .. } => Exit::Unavailable,
        _ => Exit::Failed,
    }
}

/// A failure with its causes, in one line; a cause that its consequence already quotes is not repeated.
pub fn message(why: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in why.chain() {
        let text = cause.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Says on stderr why a verb failed, field by field where the server named fields, and gives its exit code.
pub fn report(why: &anyhow::Error) -> Exit {
    if why.chain().any(|cause| cause.is::<out::PipeClosed>()) {
        return Exit::Ok;
    }
    out::note(&format!("mainspring: {}", message(why)));
    let problem = why.chain().find_map(|cause| cause.downcast_ref::<client::Error>());
    for line in problem.map(client::Error::fields).unwrap_or_default() {
        out::note(&format!("  {line}"));
    }
    of(why)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_code() {
        let settings =
            config::Config::load(Some(Path::new("/dev/null")), [], &["nonsense".to_owned()]).unwrap_err();
        let path = PathBuf::from("a.db");
        for (why, exit) in [
            (anyhow!("broken"), Exit::Failed),
            (usage("twice"), Exit::Usage),
            (settings.into(), Exit::Usage),
            (cold::Error::Url("x".into()).into(), Exit::Usage),
            (cold::Error::Shards { store: 8, config: 64 }.into(), Exit::Usage),
            (cold::Error::Busy.into(), Exit::Unavailable),
            (cold::Error::Full.into(), Exit::Unavailable),
            (cold::Error::InUse { path }.into(), Exit::Unavailable),
            (cold::Error::Newer { unknown: "m9".into() }.into(), Exit::Failed),
            (out::PipeClosed.into(), Exit::Ok),
        ] {
            assert_eq!(of(&why), exit, "{why}");
            assert_eq!(of(&why.context("while at it")), exit, "a context does not hide the code");
        }
    }

    #[test]
    fn a_failure_is_one_line_without_repeats() {
        let io = std::io::Error::other("no\nroom");
        let why = Err::<(), _>(io).context("writing: no\nroom").context("saving").unwrap_err();
        assert_eq!(message(&why), "saving: writing: no room");
    }
}
