//! Templates, as this node uses them: ready ones, kept by name.
//!
//! What is kept may be old: another node changes a template at any time. That costs nobody anything but another look. The
//! transaction that writes a timer compares what its payload was fitted to with what the template says then; and a payload
//! is refused only by a template that was looked at after the call had come in.

mod check;
mod meter;
mod outline;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

pub use check::{Schema, Template};

use crate::cold::{ColdStore, Error, TemplateRow};
use crate::model::namespace::Namespace;

/// The most faults that are told of one schema or payload.
pub const MAX_MISFITS: usize = 16;

/// About the bytes that ready templates take.
const MAX_KEPT: usize = 128 * 1024 * 1024;

/// What is wrong with a schema or a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Where, as a JSON pointer into the body.
    pub pointer: String,
    /// Stable word for programs.
    pub code: &'static str,
    /// What is wrong and what would be right.
    pub detail: String,
}

impl Misfit {
    fn new(pointer: impl Into<String>, code: &'static str, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), code, detail: detail.into() }
    }
}

/// Templates by name; `None` where there is none of this name.
pub type Book = BTreeMap<String, Option<Arc<Template>>>;

/// The templates of a store.
pub struct Templates {
    store: ColdStore,
    kept: Mutex<Kept>,
    /// One is made ready at a time.
    readying: tokio::sync::Mutex<()>,
}

/// Ready templates, and about the bytes that they take.
struct Kept {
    by_name: LruCache<String, Arc<Template>>,
    weight: usize,
}

impl Kept {
    fn put(&mut self, name: &str, template: Arc<Template>) {
        self.weight += template.weight();
        if let Some((_, former)) = self.by_name.push(name.to_owned(), template) {
            self.weight -= former.weight();
        }
        while self.weight > MAX_KEPT
            && let Some((_, oldest)) = self.by_name.pop_lru()
        {
            self.weight -= oldest.weight();
        }
    }

    fn forget(&mut self, name: &str) {
        if let Some(former) = self.by_name.pop(name) {
            self.weight -= former.weight();
        }
    }
}

impl Templates {
    /// The templates of this store, none ready yet.
    pub fn new(store: ColdStore) -> Self {
        let kept = Mutex::new(Kept { by_name: LruCache::unbounded(), weight: 0 });
        Self { store, kept, readying: tokio::sync::Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // A panic while the lock is held leaves plain data, which stays usable.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These templates: as they are kept here, otherwise as the store has them.
    pub async fn get(&self, namespace: Namespace, names: &[String]) -> Result<Book, Error> {
        let mut book = Book::new();
        {
            let mut kept = self.kept();
            for name in names {
                if let Some(template) = kept.by_name.get(&*namespace.qualified(name)) {
                    book.insert(name.clone(), Some(Arc::clone(template)));
                }
            }
        }
        let missing: Vec<String> = names.iter().filter(|name| !book.contains_key(*name)).cloned().collect();
        if !missing.is_empty() {
            book.extend(self.load(namespace, missing).await?);
        }
        Ok(book)
    }

    /// These templates as the store has them now.
    pub async fn renew(&self, namespace: Namespace, names: &[String]) -> Result<Book, Error> {
        let hashes = self.store.within(namespace).template_hashes(names).await?;
        let (mut book, mut changed) = (Book::new(), Vec::new());
        {
            let mut kept = self.kept();
            for name in names {
                let known = kept.by_name.get(&*namespace.qualified(name)).cloned();
                let hash = hashes.get(name);
                if hash.is_some() && hash == known.as_ref().map(|template| &template.hash) {
                    book.insert(name.clone(), known);
                    continue;
                }
                kept.forget(&namespace.qualified(name));
                match hash {
                    Some(_) => changed.push(name.clone()),
                    None => drop(book.insert(name.clone(), None)),
                }
            }
        }
        if !changed.is_empty() {
            book.extend(self.load(namespace, changed).await?);
        }
        Ok(book)
    }

    /// Reads templates from the store and makes them ready.
    async fn load(&self, namespace: Namespace, names: Vec<String>) -> Result<Book, Error> {
        let _one = self.readying.lock().await;
        let rows = self.store.within(namespace).templates(Some(&names)).await?;
        let mut book: Book = names.into_iter().map(|name| (name, None)).collect();
        for row in rows {
            let name = row.name.clone();
            let key = namespace.qualified(&name).into_owned();
            let kept = self.kept().by_name.get(&key).filter(|template| template.hash == row.hash).cloned();
            let template = match kept {
                // Another call was faster.
                Some(template) => template,
                None => ready(row).await,
            };
            self.kept().put(&key, Arc::clone(&template));
            book.insert(name, Some(template));
        }
        Ok(book)
    }
}

/// Makes a template ready, beside the runtime: that may take some ten milliseconds.
async fn ready(row: TemplateRow) -> Arc<Template> {
    let TemplateRow { name, schema, defaults, hash, .. } = row;
    let bytes = schema.len() + defaults.as_ref().map_or(0, String::len);
    let read = tokio::task::spawn_blocking(move || Schema::read(&schema).ok());
    let schema = read.await.ok().flatten();
    if schema.is_none() {
        // It was ready where it was written.
        tracing::error!(
            template = name,
            "this template cannot be read by this version; nothing is registered by it here"
        );
    }
    Arc::new(Template::new(hash, bytes, defaults, schema))
}
