//! Writing to the terminal: stdout that may close early, tables, spans of time in words.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use super::exit::Exit;
use crate::model::time::UnixMs;

/// The reader of stdout is gone (`… | head`): the end, and no failure.
#[derive(Debug, thiserror::Error)]
#[error("the reader of stdout is gone")]
pub struct PipeClosed;

/// Prints one or more lines to stdout. Fails with [`PipeClosed`] when nobody reads on.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(why) if why.kind() == ErrorKind::BrokenPipe => Err(PipeClosed.into()),
        done => Ok(done?),
    }
}

/// Prints a verb's result where the exit code is the point: it stands even if nobody reads the text.
pub fn verdict(text: &str, exit: Exit) -> anyhow::Result<Exit> {
    match print(text) {
        Err(why) if !why.is::<PipeClosed>() => Err(why),
        _ => Ok(exit),
    }
}

/// Prints a line to stderr; whether anybody reads it does not matter.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Text from elsewhere made safe for a terminal: control characters are shown, not obeyed.
pub fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// [`plain`] text of at most `chars` characters.
pub fn short(text: &str, chars: usize) -> String {
    let mut safe = plain(text);
    if let Some((end, _)) = safe.char_indices().nth(chars) {
        safe.truncate(end);
        safe.push('…');
    }
    safe
}

/// JSON text in one line: blanks outside strings are dropped, nothing else changes (numbers keep their digits).
pub fn compact(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    let (mut inside, mut escaped) = (false, false);
    for c in json.chars() {
        if !inside && c.is_ascii_whitespace() {
            continue;
        }
        if c == '"' && !escaped {
            inside = !inside;
        }
        escaped = inside && c == '\\' && !escaped;
        line.push(c);
    }
    line
}

/// Rows in columns, each as wide as its widest cell; no line ends in blanks.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A span of time in its two largest units, cut off: `29m 59s`, `3d 4h`, `250ms`.
pub fn human(span: Duration) -> String {
    let ms = span.as_millis();
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let s = span.as_secs();
    let parts = [(s / 86_400, 'd'), (s / 3600 % 24, 'h'), (s / 60 % 60, 'm'), (s % 60, 's')];
    let largest = parts.iter().position(|(n, _)| *n > 0).unwrap_or(3);
    let two = parts.iter().skip(largest).take(2).filter(|(n, _)| *n > 0);
    two.map(|(n, unit)| format!("{n}{unit}")).collect::<Vec<_>>().join(" ")
}

/// Where an instant lies, seen from `now`: `in 29m 59s`, `12s ago`.
pub fn from_now(at: UnixMs, now: UnixMs) -> String {
    if at > now { format!("in {}", human(at.since(now))) } else { format!("{} ago", human(now.since(at))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_in_two_units() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1000, "1s"),
            (1_799_999, "29m 59s"),
            (3_600_000, "1h"),
            (3_605_000, "1h"),
            (90_061_000, "1d 1h"),
            (86_400_000, "1d"),
        ] {
            assert_eq!(human(Duration::from_millis(ms)), text);
        }
        let (early, late) = (UnixMs::new(0), UnixMs::new(60_000));
        assert_eq!((from_now(late, early), from_now(early, late)), ("in 1m".into(), "1m ago".into()));
    }

    #[test]
    fn json_is_put_in_one_line_and_keeps_its_text() {
        let text =
            "{\n  \"a b\" : [1.50, 12345678901234567890123],\r\n \"q\": \"x \\\" y \\\\\", \"z\" : null }";
        assert_eq!(compact(text), r#"{"a b":[1.50,12345678901234567890123],"q":"x \" y \\","z":null}"#);
    }

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{9b}ä"), "a\\u{1b}[2Jb\\nc\\u{9b}ä");
        assert_eq!(short("äöü", 2), "äö…");
        assert_eq!(short("äö", 2), "äö");
    }

    #[test]
    fn tables_line_up() {
        let rows = [vec!["ID".to_owned(), "STATE".to_owned()], vec!["order-1".to_owned(), String::new()]];
        assert_eq!(table(&rows), "ID       STATE\norder-1");
        assert_eq!(table(&[]), "");
    }
}
