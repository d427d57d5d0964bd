//! The outline of a schema: its parts, which of them apply to what, and what is not allowed in one.
//!
//! A part is a subschema. Parts are found by the keywords that hold them, from the root on, and by local references. What
//! no keyword holds (`const`, `examples`, unknown words) is no part, unless a reference points there.

use std::collections::{BTreeMap, HashMap};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::{MAX_MISFITS, Misfit};
use crate::model::json::escaped;

/// Arrays and objects of a schema inside each other.
pub const MAX_DEPTH: usize = 64;

/// The parts of a schema that may apply inside each other to one value, without a step into it.
pub const MAX_CHAIN: usize = 32;

/// The patterns of a schema.
pub const MAX_PATTERNS: usize = 100;

/// The one dialect.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Keywords that hold one part for the same value.
const HERE: [&str; 4] = ["not", "if", "then", "else"];
/// Keywords that hold parts by name for the same value.
const HERE_BY_NAME: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords that hold alternatives for the same value.
const ALTERNATIVES: [&str; 2] = ["anyOf", "oneOf"];
/// Keywords that hold one part for items, and for fields.
const ITEMS: [&str; 4] = ["items", "contains", "unevaluatedItems", "additionalItems"];
const FIELDS: [&str; 2] = ["additionalProperties", "unevaluatedProperties"];
/// Keywords that read the whole value.
const READING_ALL: [&str; 6] = ["pattern", "minLength", "maxLength", "const", "enum", "uniqueItems"];
/// Keywords that hold parts which nothing applies by itself.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// Keywords that are not supported, and what to do instead.
const REFUSED: [(&str, &str); 2] = [
    ("$dynamicRef", "references are static here: use `$ref`"),
    ("$dynamicAnchor", "references are static here: use `$anchor`"),
];

/// A part, with the numbers of those that it applies.
#[derive(Debug, Default)]
pub struct Part {
    /// To the same value.
    pub here: Vec<usize>,
    /// To the same value, as alternatives.
    pub alternatives: Vec<usize>,
    /// To fields of these names.
    pub by_name: HashMap<String, usize>,
    /// To any field.
    pub fields: Vec<usize>,
    /// To the names of fields.
    pub names: Option<usize>,
    /// To the first items, in order.
    pub first_items: Vec<usize>,
    /// To any item.
    pub items: Vec<usize>,
    /// It looks at what the parts for the same value have looked at (`unevaluated…`).
    pub looks_back: bool,
    /// It reads the whole value: a pattern, a length, a comparison.
    pub reads_whole: bool,
    /// The values and names that it compares with.
    pub compared: usize,
    /// Its keywords, each of which may find a fault, and the names that it requires.
    pub keywords: usize,
}

impl Part {
    /// Every part that it applies.
    fn applied(&self) -> impl Iterator<Item = usize> {
        let lists = [&self.here, &self.alternatives, &self.fields, &self.first_items, &self.items];
        let listed = lists.into_iter().flatten().copied();
        listed.chain(self.by_name.values().copied()).chain(self.names)
    }

    /// Whether it applies a part to fields or their names.
    pub fn looks_into_fields(&self) -> bool {
        !self.by_name.is_empty() || !self.fields.is_empty() || self.names.is_some()
    }
}

/// The parts of a schema; the first is the whole.
#[derive(Debug, Default)]
pub struct Outline {
    /// Them.
    pub parts: Vec<Part>,
    /// Its patterns.
    pub patterns: usize,
    /// A part is applied from more than one place, or again for each field or item: how much work a value makes does not show
    /// in its size.
    pub fans_out: bool,
}

/// A schema is read, part by part.
struct Reader<'a> {
    whole: &'a Value,
    parts: Vec<Part>,
    /// The part at each pointer.
    at: BTreeMap<String, usize>,
    anchors: HashMap<&'a str, usize>,
    /// References that are not followed yet: of which part, where they stand, what they say.
    references: Vec<(usize, String, &'a str)>,
    patterns: usize,
    /// What is not allowed, by where it stands.
    wrong: Vec<Misfit>,
}

impl Outline {
    /// The outline of a schema, or what is not allowed in it.
    pub fn of(schema: &Value) -> Result<Self, Vec<Misfit>> {
        if depth_of(schema) > MAX_DEPTH {
            let detail = format!("nested deeper than {MAX_DEPTH}; put parts into `$defs` and refer to them");
            return Err(vec![Misfit::new("/schema", "too_deep", detail)]);
        }
        let mut reader = Reader {
            whole: schema,
            parts: Vec::new(),
            at: BTreeMap::new(),
            anchors: HashMap::new(),
            references: Vec::new(),
            patterns: 0,
            wrong: Vec::new(),
        };
        reader.part(schema, String::new());
        while let Some((from, place, reference)) = reader.references.pop() {
            match reader.target(reference) {
                Ok(to) => reader.parts[from].here.push(to),
                Err((code, detail)) => reader.wrong(place, code, detail),
            }
        }
        let Reader { parts, patterns, mut wrong, .. } = reader;
        if patterns > MAX_PATTERNS {
            let detail = format!("{patterns} patterns; at most {MAX_PATTERNS}");
            wrong.push(Misfit::new("/schema", "too_many", detail));
        }
        let mut outline = Self { parts, patterns, fans_out: false };
        outline.fans_out = outline.is_fanning_out();
        if wrong.is_empty() {
            wrong.extend(outline.chain_fault());
        }
        wrong.truncate(MAX_MISFITS);
        if wrong.is_empty() { Ok(outline) } else { Err(wrong) }
    }

    fn is_fanning_out(&self) -> bool {
        let mut uses = vec![0_usize; self.parts.len()];
        uses.iter_mut().take(1).for_each(|root| *root = 1);
        let applied = self.parts.iter().flat_map(Part::applied);
        applied.for_each(|to| uses[to] += 1);
        uses.into_iter().any(|uses| uses > 1) || self.parts.iter().any(|part| part.looks_back)
    }

    /// What is wrong with the parts that apply to one value: they come back to themselves, or there are too many inside each
    /// other.
    fn chain_fault(&self) -> Option<Misfit> {
        // The length of the longest chain from each part on; 0 while it is not known.
        let mut lengths = vec![0_usize; self.parts.len()];
        let mut is_open = vec![false; self.parts.len()];
        for start in 0..self.parts.len() {
            // Without recursion: a chain may be as long as there are parts.
            let mut path = vec![(start, 0_usize)];
            while let Some((part, next)) = path.pop() {
                if lengths[part] > 0 {
                    continue;
                }
                is_open[part] = true;
                let of = &self.parts[part];
                match of.here.get(next).or_else(|| of.alternatives.get(next.checked_sub(of.here.len())?)) {
                    Some(to) if is_open[*to] => {
                        let detail = "a part refers to itself for the same value, which has no end; let it refer to \
                                      itself for a field or an item";
                        return Some(Misfit::new("/schema", "endless", detail));
                    }
                    Some(to) => path.extend([(part, next + 1), (*to, 0)]),
                    None => {
                        is_open[part] = false;
                        let inner = of.here.iter().chain(&of.alternatives).map(|to| lengths[*to]).max();
                        lengths[part] = 1 + inner.unwrap_or(0);
                    }
                }
            }
        }
        let longest = lengths.into_iter().max().unwrap_or(0);
        (longest > MAX_CHAIN).then(|| {
            let detail = format!(
                "{longest} parts apply inside each other to one value (references, `allOf` and the like); at most \
                 {MAX_CHAIN}"
            );
            Misfit::new("/schema", "too_deep", detail)
        })
    }
}

impl<'a> Reader<'a> {
    fn wrong(&mut self, place: String, code: &'static str, detail: impl Into<String>) {
        if self.wrong.len() < MAX_MISFITS {
            self.wrong.push(Misfit::new(format!("/schema{place}"), code, detail));
        }
    }

    /// The number of the part at this pointer. It and the parts that it holds are read, if they are new.
    fn part(&mut self, schema: &'a Value, place: String) -> usize {
        if let Some(known) = self.at.get(&place) {
            return *known;
        }
        let number = self.parts.len();
        self.parts.push(Part::default());
        self.at.insert(place.clone(), number);
        if let Value::Object(keywords) = schema {
            let part = self.read(number, keywords, &place);
            self.parts[number] = part;
        }
        number
    }

    fn read(&mut self, number: usize, keywords: &'a Map<String, Value>, place: &str) -> Part {
        let mut part = Part { keywords: keywords.len(), ..Part::default() };
        for (word, value) in keywords {
            let place = format!("{place}/{}", escaped(word));
            let word = word.as_str();
            if let Some((_, instead)) = REFUSED.iter().find(|(refused, _)| *refused == word) {
                self.wrong(place, "not_supported", *instead);
                continue;
            }
            match word {
                "$schema" => self.dialect(value, place),
                "$id" => self.name(value, place),
                "$anchor" => {
                    let anchor = value.as_str().unwrap_or_default();
                    self.anchors.insert(anchor, number);
                }
                "$ref" => {
                    if let Some(reference) = value.as_str() {
                        self.references.push((number, place, reference));
                    }
                }
                "pattern" => self.patterns += 1,
                "allOf" => part.here.extend(self.each(value, &place)),
                "prefixItems" => part.first_items = self.each(value, &place),
                "properties" => part.by_name = self.named(value, &place).collect(),
                "patternProperties" => {
                    let named: Vec<_> = self.named(value, &place).collect();
                    self.patterns += named.len();
                    part.fields.extend(named.into_iter().map(|(_, part)| part));
                }
                "propertyNames" => part.names = Some(self.part(value, place)),
                "required" | "enum" => part.compared += value.as_array().map_or(0, Vec::len),
                "dependentRequired" => {
                    let lists = value.as_object().into_iter().flat_map(Map::values);
                    part.compared +=
                        lists.map(|names| 1 + names.as_array().map_or(0, Vec::len)).sum::<usize>();
                }
                _ if HERE.contains(&word) => part.here.push(self.part(value, place)),
                _ if HERE_BY_NAME.contains(&word) => {
                    part.here.extend(self.named(value, &place).map(|(_, part)| part));
                }
                _ if ALTERNATIVES.contains(&word) => part.alternatives.extend(self.each(value, &place)),
                _ if ITEMS.contains(&word) => part.items.push(self.part(value, place)),
                _ if FIELDS.contains(&word) => part.fields.push(self.part(value, place)),
                _ if DEFINITIONS.contains(&word) => drop(self.named(value, &place).collect::<Vec<_>>()),
                _ => {}
            }
            part.looks_back |= word.starts_with("unevaluated");
            part.reads_whole |= READING_ALL.contains(&word);
        }
        part.keywords += part.compared;
        part
    }

    /// The parts of an array.
    fn each(&mut self, value: &'a Value, place: &str) -> Vec<usize> {
        let items = value.as_array().into_iter().flatten().enumerate();
        items.map(|(n, item)| self.part(item, format!("{place}/{n}"))).collect()
    }

    /// The parts of an object, by name.
    fn named(&mut self, value: &'a Value, place: &str) -> impl Iterator<Item = (String, usize)> + use<'a> {
        let fields = value.as_object().into_iter().flatten();
        let named: Vec<_> = fields
            .map(|(name, part)| (name.clone(), self.part(part, format!("{place}/{}", escaped(name)))))
            .collect();
        named.into_iter()
    }

    fn dialect(&mut self, value: &Value, place: String) {
        let named = value.as_str().map(|name| name.strip_suffix('#').unwrap_or(name));
        if named != Some(DIALECT) {
            self.wrong(place, "not_supported", format!("leave it out, or give {DIALECT}"));
        }
    }

    /// The schema's own name: it names nothing that is fetched. A part with one of its own would turn what its references
    /// are local to.
    fn name(&mut self, value: &Value, place: String) {
        if place != "/$id" {
            self.wrong(place, "not_supported", "only the whole schema may have a name; leave it out here");
        } else if value.as_str().is_some_and(|name| name.contains('#')) {
            self.wrong(
                place,
                "bad_name",
                "the schema's name has no fragment: leave out `#` and what follows",
            );
        }
    }

    /// The part that a reference means.
    fn target(&mut self, reference: &str) -> Result<usize, (&'static str, String)> {
        let Some(fragment) = reference.strip_prefix('#') else {
            let detail = "nothing is fetched: refer to a part of this schema, such as `#/$defs/address`";
            return Err(("remote_reference", detail.to_owned()));
        };
        let nothing = || {
            let detail =
                "there is no such part in this schema; such as `#/$defs/address`, or `#name` of an `$anchor`";
            ("no_such_part", detail.to_owned())
        };
        let pointer = percent_decode_str(fragment).decode_utf8().map_err(|_| nothing())?;
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return self.anchors.get(&*pointer).copied().ok_or_else(nothing);
        }
        let part = self.whole.pointer(&pointer).filter(|part| part.is_object() || part.is_boolean());
        Ok(self.part(part.ok_or_else(nothing)?, pointer.into_owned()))
    }
}

/// Arrays and objects inside each other.
fn depth_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}
