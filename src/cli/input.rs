//! Reads the values of flags: durations, headers, labels, ids, files.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use jiff::fmt::friendly::SpanParser;
use serde_json::value::RawValue;

use super::exit::usage;
use crate::model::destination::{MAX_NAME, is_name};
use crate::model::id::TimerId;
use crate::model::schedule::{MAX_SCHEDULE_ID, is_schedule_id};
use crate::model::time::{Span, UnixMs};

/// A duration as the contract writes it, from ISO 8601 (kept as written) or shorthand such as `1h30m`.
pub fn span(text: &str) -> Result<String, String> {
    if text.starts_with('P') {
        return Span::parse(text).map(|_| text.to_owned()).map_err(|why| why.to_string());
    }
    let shorthand = SpanParser::new().parse_span(text).map_err(|_| {
        format!("`{text}` is not a duration; write 30s, 5m, 2h30m, 1d, or ISO 8601 such as PT30S")
    })?;
    Span::parse(&shorthand.to_string()).map(|span| span.to_string()).map_err(|why| why.to_string())
}

/// A duration that this process uses itself, written as for [`span`].
pub fn duration(text: &str) -> Result<Duration, String> {
    Span::parse(&span(text)?).map(Span::get).map_err(|why| why.to_string())
}

/// An RFC 3339 time, kept as written.
pub fn instant(text: &str) -> Result<String, String> {
    UnixMs::parse_rfc3339(text).map(|_| text.to_owned()).map_err(|why| why.to_string())
}

/// A timer's id that can stand in a URL.
pub fn id(text: &str) -> Result<String, String> {
    no_step(text)?;
    TimerId::parse(text).map(|id| id.as_str().to_owned()).map_err(|why| why.to_string())
}

/// A schedule's id that can stand in a URL.
pub fn schedule(text: &str) -> Result<String, String> {
    no_step(text)?;
    let what = format!("1 to {MAX_SCHEDULE_ID} characters of A-Z a-z 0-9 . _ : -");
    if is_schedule_id(text) { Ok(text.to_owned()) } else { Err(what) }
}

/// A name of a destination or the like that can stand in a URL.
pub fn name(text: &str) -> Result<String, String> {
    let what = format!("1 to {MAX_NAME} of A-Z a-z 0-9 . _ -, not a dot first");
    if is_name(text) { Ok(text.to_owned()) } else { Err(what) }
}

fn no_step(text: &str) -> Result<(), String> {
    match text {
        "." | ".." => Err("`.` and `..` cannot stand in a URL, where they are steps of a path".into()),
        _ => Ok(()),
    }
}

/// `Name: value`; the name in lower case, for its case means nothing.
pub fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as 'Name: value'")?;
    let (name, value) = (name.trim(), value.trim());
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(format!("`{name}` is not a header name; write it as 'Name: value'"));
    }
    Ok((name.to_ascii_lowercase(), value.to_owned()))
}

/// `name=value`.
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as name=value".into()),
    }
}

/// The text of a file that a flag names; `-` is stdin.
pub fn file(flag: &str, path: &Path) -> anyhow::Result<String> {
    let read = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.with_context(|| format!("{flag}: {} cannot be read", path.display()))
}

/// The JSON of `--FLAG` or `--FLAG-file`, as it is written; `None` if neither is given.
pub fn json(flag: &str, text: Option<&str>, path: Option<&Path>) -> anyhow::Result<Option<Box<RawValue>>> {
    let (flag, text) = match (text, path) {
        (Some(text), _) => (format!("--{flag}"), text.to_owned()),
        (None, Some(path)) => {
            let flag = format!("--{flag}-file");
            let text = file(&flag, path)?;
            (flag, text)
        }
        (None, None) => return Ok(None),
    };
    match serde_json::from_str(&text) {
        Ok(json) => Ok(Some(json)),
        Err(why) => Err(usage(format!("{flag} is not JSON ({why}); text needs quotes: '\"text\"'"))),
    }
}

/// The key or secret in a file, without blanks around it.
pub fn secret_file(flag: &str, path: &Path) -> anyhow::Result<String> {
    Ok(file(flag, path)?.trim().to_owned())
}

/// The secret of `--secret` or `--secret-file`, if one is given.
pub fn secret(text: Option<&String>, path: Option<&Path>) -> anyhow::Result<Option<String>> {
    match path {
        Some(path) => secret_file("--secret-file", path).map(Some),
        None => Ok(text.cloned()),
    }
}

/// A URL with the password in a file in it.
pub fn url_with_password(text: &str, path: &Path) -> anyhow::Result<String> {
    let mut url: url::Url = text.parse().map_err(|why| usage(format!("`{text}` is not a URL: {why}")))?;
    if url.password().is_some() {
        return Err(usage("the URL has a password of its own, beside --password-file"));
    }
    let password = secret_file("--password-file", path)?;
    url.set_password(Some(&password)).map_err(|()| usage(format!("`{text}` has no host")))?;
    Ok(url.into())
}

/// The flags of a verb, from a line that is split at blanks.
#[cfg(test)]
pub fn parsed<T: clap::Args>(line: &str) -> T {
    try_parsed(line).unwrap_or_else(|why| panic!("{why}"))
}

/// The same, where the line may be wrong.
#[cfg(test)]
pub fn try_parsed<T: clap::Args>(line: &str) -> Result<T, clap::Error> {
    let command = T::augment_args(clap::Command::new("verb").no_binary_name(true));
    T::from_arg_matches(&command.try_get_matches_from(line.split_whitespace())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_put_into_a_url() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "p@ss\n").expect("written");
        let with = |url| url_with_password(url, file.path());
        assert_eq!(with("redis://u@h:1/2").expect("a URL"), "redis://u:p%40ss@h:1/2");
        assert!(with("redis://u:q@h").is_err() && with("redis").is_err());
    }

    #[test]
    fn shorthand_becomes_iso_8601() {
        for (text, iso) in [
            ("30s", "PT30S"),
            ("5m", "PT5M"),
            ("2h", "PT2H"),
            ("1d", "P1D"),
            ("2w", "P14D"),
            ("1h30m", "PT1H30M"),
            ("90m", "PT1H30M"),
            ("1d2h3m4s5ms", "P1DT2H3M4.005S"),
            ("500ms", "PT0.5S"),
            ("1.5h", "PT1H30M"),
            ("5 minutes", "PT5M"),
            ("0s", "PT0S"),
            ("PT48H", "PT48H"),
            ("P1DT0.5S", "P1DT0.5S"),
        ] {
            assert_eq!(span(text).as_deref(), Ok(iso), "{text}");
        }
        assert_eq!(duration("1m500ms"), Ok(Duration::from_millis(60_500)));
    }

    #[test]
    fn a_text_that_is_not_a_duration_is_refused() {
        for text in [
            "",
            "30",
            "s",
            "-5s",
            "5M",
            "1h1h",
            "1m1h",
            "1s1s",
            "1y",
            "1mo",
            "P1Y",
            "PT",
            "99999999999999999999s",
            "9999999999999w",
            "9999999w",
        ] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn headers_and_labels_are_split_at_the_first_separator() {
        assert_eq!(header("Authorization: Bearer a:b"), Ok(("authorization".into(), "Bearer a:b".into())));
        assert_eq!(header("X-Empty:"), Ok(("x-empty".into(), String::new())));
        for bad in ["", "Name value", ": x", "a b: c"] {
            assert!(header(bad).is_err(), "{bad}");
        }
        assert_eq!(label("app=a=b"), Ok(("app".into(), "a=b".into())));
        assert_eq!(label("app="), Ok(("app".into(), String::new())));
        assert!(label("=x").is_err() && label("x").is_err());
    }

    #[test]
    fn ids_and_names_that_a_url_cannot_hold_are_refused() {
        assert!(id("order:1").is_ok() && id("...").is_ok());
        assert!(name("shop-orders").is_ok() && name(".a").is_err() && name("a:b").is_err());
        for bad in [".", "..", "", "a/b", "ä"] {
            assert!(id(bad).is_err() && name(bad).is_err(), "{bad}");
        }
    }
}
