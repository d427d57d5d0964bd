//! What a check costs, counted before it is made.
//!
//! A schema of a few lines can ask for more steps than there are atoms: alternatives that hold alternatives, level by level,
//! or references that fan out. The check itself cannot be stopped; so its steps are counted first, by a walk that follows
//! the outline as the check follows the schema, and that ends when there were too many. A keyword counts by what it may
//! read. The walk takes every part that may apply, and the check leaves out some: what is counted is more than what is done.

use serde_json::Value;

use super::outline::Outline;

/// The most steps of a check: some ten milliseconds.
pub const MAX_STEPS: usize = 250_000;

/// The most that the faults of one check may weigh: each is some hundred bytes, and those of alternatives come with a copy of
/// the value.
pub const MAX_FAULTS: usize = 100_000;

/// Parts inside each other, all levels of the value together: each takes some of the thread's stack. Twice as many fit one
/// of 2 MiB, also in builds that are not optimised.
pub const MAX_NESTED: usize = 1000;

/// The bytes of a text that are read in a step.
const TEXT_STEP: usize = 16;

/// It costs more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooCostly;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// The steps of a check.
    Steps,
    /// What the faults weigh that it may find.
    Faults,
}

struct Meter<'a> {
    outline: &'a Outline,
    count: Count,
    left: usize,
}

/// Counts a check of this value; an error, if it costs more than it may.
pub fn measure(outline: &Outline, value: &Value, count: Count) -> Result<(), TooCostly> {
    let left = match count {
        Count::Steps => MAX_STEPS,
        Count::Faults => MAX_FAULTS,
    };
    Meter { outline, count, left }.part(0, value, 0, false)
}

impl Meter<'_> {
    fn spend(&mut self, cost: usize) -> Result<(), TooCostly> {
        self.left = self.left.checked_sub(cost).ok_or(TooCostly)?;
        Ok(())
    }

    /// Counts one part. `copies`: it is within an alternative.
    fn part(&mut self, number: usize, value: &Value, depth: usize, copies: bool) -> Result<(), TooCostly> {
        let outline = self.outline;
        let Some(part) = outline.parts.get(number).filter(|_| depth < MAX_NESTED) else {
            return Err(TooCostly);
        };
        self.spend(match self.count {
            Count::Steps if part.reads_whole => 1 + part.compared + size_of(value),
            Count::Steps => 1 + part.compared,
            Count::Faults if copies => part.keywords * size_of(value),
            Count::Faults => part.keywords,
        })?;
        // Who looks back asks the others again, for each field or item.
        let times = if part.looks_back { 1 + length_of(value) } else { 1 };
        for _ in 0..times {
            for to in &part.here {
                self.part(*to, value, depth + 1, copies)?;
            }
            for to in &part.alternatives {
                self.part(*to, value, depth + 1, true)?;
            }
        }
        match value {
            Value::Object(fields) if part.looks_into_fields() => {
                for (name, value) in fields {
                    self.spend(1 + name.len() / TEXT_STEP * part.fields.len())?;
                    for to in part.by_name.get(name).into_iter().chain(&part.fields) {
                        self.part(*to, value, depth + 1, copies)?;
                    }
                    if let Some(to) = part.names {
                        self.part(to, &Value::String(name.clone()), depth + 1, copies)?;
                    }
                }
            }
            Value::Array(items) => {
                for (to, value) in part.first_items.iter().zip(items) {
                    self.part(*to, value, depth + 1, copies)?;
                }
                for to in &part.items {
                    for value in items {
                        self.part(*to, value, depth + 1, copies)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn length_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    }
}

/// How much there is of a value, to copy or to read.
fn size_of(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len() / TEXT_STEP,
        Value::Array(items) => 1 + items.iter().map(size_of).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(|value| 1 + size_of(value)).sum::<usize>(),
        _ => 1,
    }
}
