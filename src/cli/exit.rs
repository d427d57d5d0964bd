//! How a verb ended, as an exit code: contract.md, section 5.

use std::error::Error as StdError;
use std::process::ExitCode;

use super::{client, out};
use crate::cold;
use crate::config;

/// How a verb ended; the numbers are the contract's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked.
    Ok = 0,
    /// It failed.
    Failed = 1,
    /// The flags or the settings are not valid.
    Usage = 2,
    /// The object it was asked about does not exist.
    NotFound = 3,
    /// The object's state does not allow it: too late, in flight, the id is taken.
    Conflict = 4,
    /// The server or the store cannot be reached, or cannot serve now.
    Unavailable = 5,
    /// `verify`, `bench` or `drill` found a loss or another broken promise.
    Loss = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A flag or argument that is found not to be valid after the flags were read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A [`Usage`] failure with these words.
pub fn usage(detail: impl Into<String>) -> anyhow::Error {
    Usage(detail.into()).into()
}

/// The exit code of a failure: that of the first cause that has one.
pub fn of(why: &anyhow::Error) -> Exit {
    why.chain().find_map(of_cause).unwrap_or(Exit::Failed)
}

fn of_cause(cause: &(dyn StdError + 'static)) -> Option<Exit> {
    if let Some(why) = cause.downcast_ref::<client::Error>() {
        return Some(of_call(why));
    }
    if let Some(why) = cause.downcast_ref::<cold::Error>() {
        return Some(of_store(why));
    }
    if cause.is::<out::PipeClosed>() {
        return Some(Exit::Ok);
    }
    (cause.is::<Usage>() || cause.is::<config::Error>()).then_some(Exit::Usage)
}

/// The exit code of a call to a server.
fn of_call(why: &client::Error) -> Exit {
    match why {
        client::Error::Unreachable { .. } | client::Error::NoAnswer { .. } => Exit::Unavailable,
        client::Error::Refused(problem) => match problem.status().as_u16() {
            404 => Exit::NotFound,
            409 | 412 => Exit::Conflict,
            503 => Exit::Unavailable,
            _ => Exit::Failed,
        },
        // From a gateway whose server is down. Its 404 or 409 would say nothing about a timer.
        client::Error::NotMainspring { status, .. } if matches!(status.as_u16(), 502..=504) => {
            Exit::Unavailable
        }
        client::Error::NotMainspring { .. } => Exit::Failed,
    }
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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use anyhow::anyhow;
    use reqwest::StatusCode;

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
    fn answers_become_exit_codes() {
        for (status, exit) in [
            (400, Exit::Failed),
            (401, Exit::Failed),
            (404, Exit::NotFound),
            (409, Exit::Conflict),
            (412, Exit::Conflict),
            (422, Exit::Failed),
            (429, Exit::Failed),
            (500, Exit::Failed),
            (503, Exit::Unavailable),
        ] {
            assert_eq!(of_call(&client::refused(status, "{}")), exit, "{status}");
        }
        let other = |status| client::Error::NotMainspring { server: String::new(), status };
        assert_eq!(of_call(&other(StatusCode::NOT_FOUND)), Exit::Failed, "it says nothing about the timer");
        assert_eq!(of_call(&other(StatusCode::BAD_GATEWAY)), Exit::Unavailable);
        let lost = client::Error::NoAnswer { server: String::new(), why: String::new(), hint: "" };
        assert_eq!(of_call(&lost), Exit::Unavailable);
    }
}
