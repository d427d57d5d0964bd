//! How a failure is shown: one line on stderr, and a line for each field that the server named.

use super::{client, out};

/// A failure with its causes, in one line; a cause that the text before it quotes is not repeated.
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

/// Shows a failure. A reader of stdout that has gone away is none.
pub fn show(why: &anyhow::Error) {
    if why.chain().any(|cause| cause.is::<out::PipeClosed>()) {
        return;
    }
    out::note(&format!("mainspring: {}", message(why)));
    let problem = why.chain().find_map(|cause| cause.downcast_ref::<client::Error>());
    for line in problem.map(client::Error::fields).unwrap_or_default() {
        out::note(&format!("  {line}"));
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_failure_is_one_line_without_repeats() {
        let io = std::io::Error::other("no\nroom");
        let why = Err::<(), _>(io).context("writing: no\nroom").context("saving").unwrap_err();
        assert_eq!(message(&why), "saving: writing: no room");
    }
}
