//! Output: stdout that may close early, tables, and spans of time for people.

use std::io::{ErrorKind, Write};

use comfy_table::{Table, presets};

use super::exit::Exit;
pub use crate::model::time::{from_now, human};

/// The reader of stdout is gone (`… | head`). The verb ends; this is no failure.
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

/// Prints a verb's result and returns `exit`, also if nobody reads the text.
pub fn verdict(text: &str, exit: Exit) -> anyhow::Result<Exit> {
    match print(text) {
        Err(why) if !why.is::<PipeClosed>() => Err(why),
        _ => Ok(exit),
    }
}

/// Prints a line to stderr. A stderr that nobody reads is ignored.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Text from elsewhere, safe for a terminal: control characters are escaped.
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

/// JSON text in one line. Blanks outside strings are dropped; all else stays as it is (numbers keep their digits).
pub fn compact(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in json.chars() {
        if !in_string && c.is_ascii_whitespace() {
            continue;
        }
        if c == '"' && !escaped {
            in_string = !in_string;
        }
        escaped = in_string && c == '\\' && !escaped;
        line.push(c);
    }
    line
}

/// Rows in columns, each as wide on the terminal as its widest cell; no line ends in blanks.
pub fn table(rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_put_in_one_line_and_keeps_its_text() {
        let text =
            "{\n  \"a b\" : [1.50, 12345678901234567890123],\r\n \"q\": \"x \\\" y \\\\\", \"z\" : null }";
        assert_eq!(compact(text), r#"{"a b":[1.50,12345678901234567890123],"q":"x \" y \\","z":null}"#);
    }

    #[test]
    fn control_characters_of_foreign_text_are_escaped() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{9b}ä"), "a\\u{1b}[2Jb\\nc\\u{9b}ä");
        assert_eq!(short("äöü", 2), "äö…");
        assert_eq!(short("äö", 2), "äö");
    }

    #[test]
    fn tables_line_up() {
        let rows = [vec!["ID".to_owned(), "STATE".to_owned()], vec!["order-1".to_owned(), String::new()]];
        assert_eq!(table(&rows), "ID       STATE\norder-1");
        let wide = [["日本", "a"], ["ab", "b"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&wide), "日本  a\nab    b", "a wide character takes two columns");
        assert_eq!(table(&[]), "");
    }
}
