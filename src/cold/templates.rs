//! Templates, as the store has them. What they say is text that this room does not read.
//!
//! A change of a template holds for every registration after it, and a removal excludes registrations that name it. So a
//! transaction that writes timers of a template holds its lock, shared, until the commit, and compares what the payloads
//! were fitted to with what the template says; a change and a removal hold the lock alone. On PostgreSQL these are advisory
//! locks. Locks of the row would do, but whoever shares one lets others share it for ever while a change waits; here
//! those who come after the change wait for it. SQLite has one writer.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::audit::Deed;
use super::destinations::{AMONG, MOST_COUNTED, Named, counted, named};
use super::sql::{Column, Dialect, Row, Statement, Tx};
use super::{ColdStore, Error};
use crate::model::namespace::Namespace;
use crate::model::template::{TemplateHash, TemplateUse, lock_key};
use crate::model::time::UnixMs;

/// The most templates of a store.
pub const MAX_TEMPLATES: i64 = 1000;

/// The most characters of all templates together: a list shows them all.
pub const MAX_TEMPLATE_TEXT: i64 = 16 * 1024 * 1024;

/// A template as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRow {
    /// Its name.
    pub name: String,
    /// The schema, JSON as it was written.
    pub schema: String,
    /// The defaults, a JSON object as it was written; `None` for none.
    pub defaults: Option<String>,
    /// Of both.
    pub hash: TemplateHash,
    /// Rises with every change.
    pub version: i32,
    /// When it was made.
    pub created_at: UnixMs,
    /// When it was last changed.
    pub changed_at: UnixMs,
}

/// The columns of [`TemplateRow`], in order.
const COLUMNS: &str = "name, schema, defaults, hash, version, created_at, changed_at";

impl TemplateRow {
    fn audited(&self) -> Value {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        json!({"schema": value(&self.schema), "defaults": self.defaults.as_deref().map(value), "version": self.version})
    }

    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            name: row.get(0)?,
            schema: row.get(1)?,
            defaults: row.get(2)?,
            hash: hash_of(row.get(3)?)?,
            version: row.get(4)?,
            created_at: UnixMs::new(row.get(5)?),
            changed_at: UnixMs::new(row.get(6)?),
        })
    }
}

fn hash_of(stored: Vec<u8>) -> Result<TemplateHash, Error> {
    let bad = |_| Error::Corrupt("a template's hash cannot be read back".into());
    stored.try_into().map(TemplateHash).map_err(bad)
}

/// What a template shall say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateEdit {
    /// Its name.
    pub name: String,
    /// The schema.
    pub schema: String,
    /// The defaults.
    pub defaults: Option<String>,
    /// Of both.
    pub hash: TemplateHash,
}

/// The outcome of writing a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateWritten {
    /// It is so now; `true` if it is new.
    Done(TemplateRow, bool),
    /// The store has as many as it takes ([`MAX_TEMPLATES`], [`MAX_TEMPLATE_TEXT`]).
    Full,
}

/// The outcome of removing a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateRemoved {
    /// It is gone.
    Done,
    /// So many live timers use it, counted up to [`MOST_COUNTED`], and so many schedules.
    InUse(i64, i64),
    /// There is none of this name.
    NoSuch,
}

/// Who holds a template's lock.
#[derive(Clone, Copy)]
enum Hold {
    /// Who writes timers of it.
    Shared,
    /// Who changes or removes it.
    Alone,
}

impl ColdStore {
    /// All templates, by name; with `names`, only these.
    pub async fn templates(&self, names: Option<&[String]>) -> Result<Vec<TemplateRow>, Error> {
        let mut s = Statement::new(self.dialect(), "templates");
        let here = self.here(&mut s);
        let only = names.map_or_else(String::new, |names| format!("AND name {}", s.among_texts(names)));
        s.push(&format!("SELECT {COLUMNS} FROM templates WHERE namespace = {here} {only} ORDER BY name"));
        self.pool.read(s).await?.iter().map(TemplateRow::read).collect()
    }

    /// What those of these templates say that there are.
    pub async fn template_hashes(&self, names: &[String]) -> Result<BTreeMap<String, TemplateHash>, Error> {
        let mut s = Statement::new(self.dialect(), "template_hashes");
        let (here, among) = (self.here(&mut s), s.among_texts(names));
        s.push(&format!("SELECT name, hash FROM templates WHERE namespace = {here} AND name {among}"));
        self.pool.read(s).await?.iter().map(|row| Ok((row.get(0)?, hash_of(row.get(1)?)?))).collect()
    }

    /// What these templates say, where there are any. They say so until the end of the transaction.
    pub(super) async fn templates_in_use(
        &self,
        tx: &mut Tx,
        uses: impl Iterator<Item = (Namespace, &TemplateUse)>,
    ) -> Result<BTreeMap<Named, TemplateHash>, Error> {
        let names: BTreeSet<Named> = uses.map(|(namespace, one)| (namespace, one.name.clone())).collect();
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.lock_templates(tx, &names, Hold::Shared).await?;
        // A statement of its own, after the lock: it sees the change that the lock waited for.
        let mut s = Statement::new(self.dialect(), "template_hashes_in_use");
        let batch = s.batch("b", named(names.iter().map(|(namespace, name)| (*namespace, name))));
        s.push(&format!("WITH {batch} SELECT namespace, name, hash FROM templates WHERE {AMONG}"));
        let read = |row: &Row| Ok(((Namespace(row.get(0)?), row.get(1)?), hash_of(row.get(2)?)?));
        tx.fetch(s).await?.iter().map(read).collect()
    }

    async fn lock_templates(&self, tx: &mut Tx, names: &BTreeSet<Named>, hold: Hold) -> Result<(), Error> {
        if self.dialect() == Dialect::Sqlite {
            return Ok(());
        }
        // Sorted, so that two transactions do not deadlock.
        let keys: BTreeSet<i64> =
            names.iter().map(|(namespace, name)| lock_key(&namespace.qualified(name))).collect();
        let mut s = Statement::new(self.dialect(), "lock_templates");
        let batch = s.batch("b", vec![("b_key", Column::Int(keys.into_iter().collect()))]);
        let lock = match hold {
            Hold::Shared => "pg_advisory_xact_lock_shared",
            Hold::Alone => "pg_advisory_xact_lock",
        };
        s.push(&format!("WITH {batch} SELECT {lock}(b_key) FROM b"));
        tx.execute(s).await.map(drop)
    }

    /// Writes a template, new or in place of the one of this name. One that says the same stays as it is.
    pub async fn put_template(&self, edit: &TemplateEdit) -> Result<TemplateWritten, Error> {
        let mut tx = self.pool.begin().await?;
        self.hold_here(&mut tx).await?;
        let before = self.lock_template(&mut tx, &edit.name).await?;
        let has = before.is_some();
        if let Some(same) = before.as_ref().filter(|row| row.hash == edit.hash) {
            return Ok(TemplateWritten::Done(same.clone(), false));
        }
        let mut s = Statement::new(self.dialect(), "put_template");
        let here = self.here(&mut s);
        let now = s.now(self.bound_now());
        let (name, schema) = (s.text(&edit.name), s.text(&edit.schema));
        // Bound as text or NULL.
        let defaults = match &edit.defaults {
            Some(defaults) => s.text(defaults),
            None => "NULL".to_owned(),
        };
        let hash = s.bytes(Some(&edit.hash.0));
        let text = "length(schema) + COALESCE(length(defaults), 0)";
        let (most, room) =
            (self.most_here(MAX_TEMPLATES), self.most_here(MAX_TEMPLATE_TEXT) - text_length(edit));
        s.push(&format!(
            "INSERT INTO templates (namespace, name, schema, defaults, hash, version, created_at, changed_at) \
             SELECT {here}, {name}, {schema}, {defaults}, {hash}, 1, {now}, {now} \
             WHERE ({has} OR (SELECT count(*) FROM templates WHERE namespace = {here}) < {most}) \
             AND (SELECT COALESCE(sum({text}), 0) FROM templates WHERE namespace = {here} AND name <> {name}) <= {room} \
             ON CONFLICT (namespace, name) DO UPDATE SET schema = excluded.schema, defaults = excluded.defaults, \
             hash = excluded.hash, version = templates.version + 1, changed_at = excluded.changed_at \
             RETURNING {COLUMNS}"
        ));
        let Some(row) = tx.fetch(s).await?.first().map(TemplateRow::read).transpose()? else {
            return Ok(TemplateWritten::Full);
        };
        let (was, became) = (before.map(|row| row.audited()), Some(row.audited()));
        self.audit(&mut tx, Deed { action: "template.put", object: &edit.name, was, became }).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(TemplateWritten::Done(row, !has))
    }

    /// Removes a template that no live timer and no schedule uses.
    pub async fn remove_template(&self, name: &str) -> Result<TemplateRemoved, Error> {
        // Counted without the lock, for which registrations would wait.
        let timers = counted(&self.pool.read(self.template_uses(name, MOST_COUNTED)).await?)?;
        let schedules = counted(&self.pool.read(self.templated_schedules(name)).await?)?;
        if timers + schedules > 0 {
            return Ok(TemplateRemoved::InUse(timers, schedules));
        }
        let mut tx = self.pool.begin().await?;
        let Some(before) = self.lock_template(&mut tx, name).await? else {
            return Ok(TemplateRemoved::NoSuch);
        };
        // A statement of its own, after the lock: it sees what was registered meanwhile.
        let timers = counted(&tx.fetch(self.template_uses(name, 1)).await?)?;
        let schedules = counted(&tx.fetch(self.templated_schedules(name)).await?)?;
        if timers + schedules > 0 {
            return Ok(TemplateRemoved::InUse(timers, schedules));
        }
        let mut s = Statement::new(self.dialect(), "remove_template");
        let here = self.here(&mut s);
        let bound = s.text(name);
        s.push(&format!("DELETE FROM templates WHERE namespace = {here} AND name = {bound}"));
        tx.execute(s).await?;
        let was = Some(before.audited());
        self.audit(&mut tx, Deed { action: "template.remove", object: name, was, became: None }).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(TemplateRemoved::Done)
    }

    /// Takes a template's lock alone; returns the template, if there is one.
    async fn lock_template(&self, tx: &mut Tx, name: &str) -> Result<Option<TemplateRow>, Error> {
        self.lock_templates(tx, &BTreeSet::from([(self.namespace(), name.to_owned())]), Hold::Alone).await?;
        let mut s = Statement::new(self.dialect(), "lock_template");
        let here = self.here(&mut s);
        let name = s.text(name);
        s.push(&format!("SELECT {COLUMNS} FROM templates WHERE namespace = {here} AND name = {name}"));
        tx.fetch(s).await?.first().map(TemplateRow::read).transpose()
    }

    /// The number of live timers that use a template, counted up to `most`.
    fn template_uses(&self, name: &str, most: i64) -> Statement {
        let mut s = Statement::new(self.dialect(), "template_uses");
        let name = s.text(&self.namespace().qualified(name));
        s.push(&format!(
            "SELECT CAST(count(*) AS BIGINT) FROM (SELECT 1 FROM timers WHERE template = {name} LIMIT {most}) x"
        ));
        s
    }
}

/// As the database counts it: in characters.
fn text_length(edit: &TemplateEdit) -> i64 {
    let characters = |text: &str| i64::try_from(text.chars().count()).unwrap_or(i64::MAX / 4);
    characters(&edit.schema) + edit.defaults.as_deref().map_or(0, characters)
}
