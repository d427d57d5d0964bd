//! JSON as text: a walk over it, and what is merged over what (RFC 7396).
//!
//! A payload is kept as its caller wrote it: a parser would lose digits of numbers. Each text is walked once, whatever its
//! depth.

use std::borrow::Cow;
use std::collections::HashMap;

/// Arrays and objects inside each other; as many as common parsers follow.
pub const MAX_DEPTH: usize = 127;

/// Why JSON cannot be worked on.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// Arrays and objects inside each other, more than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// Half of a surrogate pair.
    #[error("a field's name: {0}")]
    Name(serde_json::Error),
}

/// A walk over the text of one JSON value, known to be one.
pub struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walk<'a> {
    /// A walk that begins where the text does.
    pub const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Moves into the array or object that begins here.
    pub const fn enter(&mut self) {
        self.at += 1;
    }

    /// The next field's name, with its quotation marks; moves to its value.
    pub fn name(&mut self) -> &'a str {
        let text = self.string();
        self.peek();
        self.at += 1;
        text
    }

    /// The next byte that is no space.
    pub fn peek(&mut self) -> Option<u8> {
        let rest = self.text.as_bytes().get(self.at..)?;
        self.at += rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len());
        self.text.as_bytes().get(self.at).copied()
    }

    /// Whether the array or object ends here; moves past its end, or to its next element. The end of the text ends
    /// everything.
    pub fn ends(&mut self, end: u8) -> bool {
        if self.peek() == Some(b',') {
            self.at += 1;
        }
        match self.peek() {
            Some(byte) if byte == end => {
                self.at += 1;
                true
            }
            next => next.is_none(),
        }
    }

    /// The next string, with its quotation marks.
    pub fn string(&mut self) -> &'a str {
        let from = self.at;
        let bytes = self.text.as_bytes();
        self.at += 1;
        while let Some(byte) = bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => self.at += 1,
                _ => {}
            }
        }
        self.text.get(from..self.at).unwrap_or_default()
    }

    /// The next number, `true`, `false` or `null`.
    pub fn word(&mut self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let ends = |byte: u8| byte.is_ascii_whitespace() || b",]}".contains(&byte);
        // At least one byte, so that every walk ends.
        let length = rest.bytes().position(ends).unwrap_or(rest.len()).max(1);
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    /// The next value as it is written.
    fn whole(&mut self) -> &'a str {
        self.peek();
        let from = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek() {
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.at += 1;
                }
                Some(b'}' | b']') => {
                    depth = depth.saturating_sub(1);
                    self.at += 1;
                }
                Some(b',' | b':') => self.at += 1,
                Some(b'"') => drop(self.string()),
                Some(_) => drop(self.word()),
                None => break,
            }
            if depth == 0 {
                break;
            }
        }
        self.text.get(from..self.at).unwrap_or_default()
    }
}

/// What a string says. Fails for half a surrogate pair.
pub fn plain(text: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    match text.get(1..text.len().saturating_sub(1)) {
        Some(inner) if !inner.contains('\\') => Ok(Cow::Borrowed(inner)),
        _ => serde_json::from_str(text).map(Cow::Owned),
    }
}

/// A field's name as a part of a JSON pointer.
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A value, of which only objects are taken apart.
enum Tree<'a> {
    Object { text: &'a str, fields: Vec<Field<'a>> },
    Other(&'a str),
}

struct Field<'a> {
    name: Cow<'a, str>,
    /// The name as it is written.
    written: &'a str,
    value: Tree<'a>,
}

impl<'a> Tree<'a> {
    fn read(walk: &mut Walk<'a>, depth: usize) -> Result<Self, Unreadable> {
        if walk.peek() != Some(b'{') {
            return Ok(Self::Other(walk.whole()));
        }
        if depth == MAX_DEPTH {
            return Err(Unreadable::TooDeep);
        }
        let (from, mut fields) = (walk.at, Vec::new());
        walk.enter();
        while !walk.ends(b'}') {
            let written = walk.name();
            let name = plain(written).map_err(Unreadable::Name)?;
            fields.push(Field { name, written, value: Self::read(walk, depth + 1)? });
        }
        Ok(Self::Object { text: walk.text.get(from..walk.at).unwrap_or_default(), fields })
    }

    const fn text(&self) -> &'a str {
        match self {
            Self::Object { text, .. } | Self::Other(text) => text,
        }
    }

    fn is_null(&self) -> bool {
        self.text() == "null"
    }

    /// The fields by name, of equal names the last; none of what is no object.
    fn by_name(&self) -> HashMap<&str, &Field<'a>> {
        let Self::Object { fields, .. } = self else { return HashMap::new() };
        fields.iter().map(|field| (&*field.name, field)).collect()
    }
}

/// A patch merged over a value, as RFC 7396 says. What the patch does not touch stays as it is written.
pub fn merged(value: &str, patch: &str) -> Result<String, Unreadable> {
    let value = Tree::read(&mut Walk::new(value), 0)?;
    let patch = Tree::read(&mut Walk::new(patch), 0)?;
    let mut out = String::with_capacity(value.text().len() + patch.text().len());
    merge(Some(&value), &patch, &mut out);
    Ok(out)
}

fn merge(value: Option<&Tree<'_>>, patch: &Tree<'_>, out: &mut String) {
    let Tree::Object { fields: patched, .. } = patch else { return out.push_str(patch.text()) };
    let (values, patches) = (value.map(Tree::by_name).unwrap_or_default(), patch.by_name());
    let before: &[Field<'_>] = match value {
        Some(Tree::Object { fields, .. }) => fields,
        _ => &[],
    };
    let is_last = |of: &HashMap<&str, &Field<'_>>, field: &Field<'_>| {
        of.get(&*field.name).is_some_and(|last| std::ptr::eq(*last, field))
    };
    out.push('{');
    let begin = out.len();
    let name = |field: &Field<'_>, out: &mut String| {
        if out.len() > begin {
            out.push(',');
        }
        out.push_str(field.written);
        out.push(':');
    };
    for field in before.iter().filter(|field| is_last(&values, field)) {
        match patches.get(&*field.name) {
            Some(patch) if patch.value.is_null() => {}
            Some(patch) => {
                name(field, out);
                merge(Some(&field.value), &patch.value, out);
            }
            None => {
                name(field, out);
                out.push_str(field.value.text());
            }
        }
    }
    for field in patched.iter().filter(|field| is_last(&patches, field)) {
        if !values.contains_key(&*field.name) && !field.value.is_null() {
            name(field, out);
            merge(None, &field.value, out);
        }
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    // Both have a `Value`.
    use serde_json::{Value, json};

    use super::*;

    /// The definition, on values.
    fn by_definition(value: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *value = patch.clone();
            return;
        };
        if !value.is_object() {
            *value = json!({});
        }
        for (name, patch) in patch {
            let fields = value.as_object_mut().expect("an object");
            match patch {
                Value::Null => drop(fields.remove(name)),
                patch => by_definition(fields.entry(name).or_insert(Value::Null), patch),
            }
        }
    }

    /// The examples of RFC 7396, appendix A.
    #[test]
    fn a_patch_is_merged_as_rfc_7396_says() {
        for (value, patch, expected) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            (r#"{"a":"foo"}"#, r#""bar""#, r#""bar""#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ] {
            assert_eq!(merged(value, patch).expect("merges"), expected, "{value} {patch}");
        }
    }

    #[test]
    fn what_is_not_touched_stays_as_it_is_written() {
        let merged = |value, patch| merged(value, patch).expect("merges");
        assert_eq!(
            merged(
                r#"{ "n" : 2.50 , "o" : { "x" : [ 1 , "}" ] } }"#,
                r#" {"m": 12345678901234567890123, "\u0061":1e400} "#
            ),
            r#"{"n":2.50,"o":{ "x" : [ 1 , "}" ] },"m":12345678901234567890123,"\u0061":1e400}"#
        );
        assert_eq!(merged(r#"{"a":1,"a":2}"#, r#"{"b":3,"\u0062":4}"#), r#"{"a":2,"\u0062":4}"#, "the last");
        assert_eq!(merged(r#"{"a":1}"#, r#"{"\u0061":null}"#), "{}", "the same name, written otherwise");
    }

    #[test]
    fn nesting_has_an_end() {
        let nested = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        assert_eq!(merged("{}", &nested(MAX_DEPTH)).expect("merges"), nested(MAX_DEPTH));
        assert!(matches!(merged("{}", &nested(MAX_DEPTH + 1)), Err(Unreadable::TooDeep)));
        assert!(matches!(merged("{}", r#"{"\ud800":1}"#), Err(Unreadable::Name(_))));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            Just(json!(1)),
            Just(json!("}\\\"{")),
            Just(json!([null, {"a": null}]))
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop::collection::hash_map(prop::sample::select(vec!["a", "b", "c\"", ""]), inner, 0..4)
                .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
        })
    }

    proptest! {
        #[test]
        fn texts_are_merged_like_values(value in any_json(), patch in any_json()) {
            let merged = merged(&format!("{value:#}"), &format!("{patch:#}")).expect("merges");
            let mut expected = value;
            by_definition(&mut expected, &patch);
            prop_assert_eq!(serde_json::from_str::<Value>(&merged).expect("JSON"), expected);
        }
    }
}
