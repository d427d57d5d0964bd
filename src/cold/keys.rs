//! API keys, as the store has them: a hash of each, never the key.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::audit::Deed;
use super::copies::{Copied, Mark};
use super::sql::{Column, Row, Statement};
use super::{ColdStore, Error};
use crate::model::key::{KeyHash, KeyId, Scope};
use crate::model::namespace::Namespace;
use crate::model::time::UnixMs;

/// The most keys of a store: every node knows them all.
pub const MAX_KEYS: i64 = 10_000;

/// A key as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Its id.
    pub id: KeyId,
    /// What it is called.
    pub name: String,
    /// The namespace that it is of; `None`: all.
    pub namespace: Option<Namespace>,
    /// What it may do.
    pub scope: Scope,
    /// The SHA-256 of its text, or of the certificate that it is.
    pub hash: KeyHash,
    /// It is a certificate, which a client shows in its handshake for TLS.
    pub is_certificate: bool,
    /// When it was made.
    pub created_at: UnixMs,
    /// From when on it is not accepted; `None`: it does not expire.
    pub expires_at: Option<UnixMs>,
    /// When it was last used, to half a minute; `None`: never.
    pub last_used_at: Option<UnixMs>,
}

/// The columns of [`KeyRow`], in order.
const COLUMNS: &str = "id, name, namespace, scope, hash, created_at, expires_at, last_used_at, certificate";

/// The place of `created_at` among the columns.
const CREATED_AT: usize = 5;

impl KeyRow {
    fn read(row: &Row) -> Result<Self, Error> {
        let corrupt = |what: &str| Error::Corrupt(format!("the {what} of a key cannot be read back"));
        let namespace: Option<i16> = row.get(2)?;
        Ok(Self {
            id: KeyId::parse(&row.get::<String>(0)?).ok_or_else(|| corrupt("id"))?,
            name: row.get(1)?,
            namespace: namespace.map(Namespace),
            scope: Scope::from_code(row.get(3)?).ok_or_else(|| corrupt("scope"))?,
            hash: row.get::<Vec<u8>>(4)?.try_into().map_err(|_| corrupt("hash"))?,
            created_at: UnixMs::new(row.get(CREATED_AT)?),
            expires_at: row.get::<Option<i64>>(6)?.map(UnixMs::new),
            last_used_at: row.get::<Option<i64>>(7)?.map(UnixMs::new),
            is_certificate: row.get(8)?,
        })
    }

    /// As the audit has it.
    fn audited(&self) -> Value {
        let namespace = self.namespace.map(|namespace| namespace.0);
        json!({"name": self.name, "namespace": namespace, "scopes": self.scope.included(),
            "certificate": self.is_certificate, "expires_at": self.expires_at})
    }
}

/// A key to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Its id, random.
    pub id: KeyId,
    /// What it is called.
    pub name: String,
    /// The namespace that it is of; `None`: all.
    pub namespace: Option<Namespace>,
    /// What it may do.
    pub scope: Scope,
    /// The SHA-256 of its text, or of the certificate that it is.
    pub hash: KeyHash,
    /// It is a certificate.
    pub is_certificate: bool,
    /// From when on it is not accepted.
    pub expires_at: Option<UnixMs>,
}

/// What differs when a key was made or revoked: their number, and the sum of the moments when they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeysMark {
    /// How many keys there are.
    pub count: i64,
    sum: i64,
}

impl From<KeysMark> for Mark {
    fn from(KeysMark { count, sum }: KeysMark) -> Self {
        Self::summed(count, [sum])
    }
}

/// The outcome of making a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyMade {
    /// It is in force.
    Done(KeyRow),
    /// The store has as many as it takes ([`MAX_KEYS`]).
    Full,
    /// There is one of this certificate already.
    Taken,
}

/// The outcome of revoking a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRevoked {
    /// It is gone.
    Done,
    /// It is the last one with the scope `admin` that could make one like it.
    LastAdmin,
    /// There is none of this id.
    NoSuch,
}

impl ColdStore {
    /// All keys, oldest first. One that this version cannot read is left out, and is in no answer: it opens nothing.
    pub async fn keys(&self) -> Result<Vec<KeyRow>, Error> {
        Ok(self.copy_of_keys().await?.0)
    }

    /// The same, and the mark of all.
    pub async fn copy_of_keys(&self) -> Result<(Vec<KeyRow>, KeysMark), Error> {
        let mut s = Statement::new(self.dialect(), "keys");
        s.push(&format!("SELECT {COLUMNS} FROM api_keys ORDER BY created_at, id"));
        let rows = self.pool.read(s).await?;
        let mut mark = KeysMark { count: 0, sum: 0 };
        for row in &rows {
            mark.count += 1;
            mark.sum += row.get::<i64>(CREATED_AT)?;
        }
        let keys = rows
            .iter()
            .filter_map(|row| {
                KeyRow::read(row).inspect_err(|why| tracing::warn!(%why, "a key is left out")).ok()
            })
            .collect();
        Ok((keys, mark))
    }

    /// One key.
    pub async fn key(&self, id: KeyId) -> Result<Option<KeyRow>, Error> {
        let mut s = Statement::new(self.dialect(), "key");
        let id = s.text(&id.to_string());
        s.push(&format!("SELECT {COLUMNS} FROM api_keys WHERE id = {id}"));
        self.pool.read(s).await?.first().map(KeyRow::read).transpose()
    }

    /// What differs when a key was made or revoked.
    pub async fn keys_mark(&self) -> Result<KeysMark, Error> {
        let mut s = Statement::new(self.dialect(), "keys_mark");
        s.push("SELECT CAST(count(*) AS BIGINT), CAST(COALESCE(sum(created_at), 0) AS BIGINT) FROM api_keys");
        match self.urgent.read(s).await?.first() {
            Some(row) => Ok(KeysMark { count: row.get(0)?, sum: row.get(1)? }),
            None => Err(Error::Corrupt("the keys cannot be counted".into())),
        }
    }

    /// Makes a key. Other nodes are notified.
    pub async fn make_key(&self, new: &NewKey) -> Result<KeyMade, Error> {
        let mut tx = self.pool.begin().await?;
        if let Some(namespace) = new.namespace {
            self.hold_namespaces(&mut tx, &BTreeSet::from([namespace])).await?;
        }
        let mut s = Statement::new(self.dialect(), "make_key");
        let now = s.now(self.bound_now());
        let (id, name, scope) =
            (s.text(&new.id.to_string()), s.text(&new.name), s.int(new.scope.code().into()));
        let hash = s.bytes(Some(&new.hash));
        let namespace =
            new.namespace.map_or_else(|| "NULL".to_owned(), |namespace| s.int(namespace.0.into()));
        let expires_at = new.expires_at.map_or_else(|| "NULL".to_owned(), |at| s.int(at.get()));
        s.push(&format!(
            "INSERT INTO api_keys (id, name, namespace, scope, hash, created_at, expires_at, certificate) \
             SELECT {id}, {name}, {namespace}, {scope}, {hash}, {now}, {expires_at}, {is_certificate} \
             WHERE (SELECT count(*) FROM api_keys) < {MAX_KEYS} \
               AND (SELECT count(*) FROM api_keys WHERE namespace = {namespace}) < {most} \
             ON CONFLICT DO NOTHING RETURNING {COLUMNS}",
            is_certificate = new.is_certificate,
            most = self.within(new.namespace.unwrap_or_default()).most_here(MAX_KEYS),
        ));
        let Some(row) = tx.fetch(s).await?.first().map(KeyRow::read).transpose()? else {
            let mut s = Statement::new(self.dialect(), "key_taken");
            let hash = s.bytes(Some(&new.hash));
            s.push(&format!("SELECT 1 FROM api_keys WHERE hash = {hash}"));
            return Ok(if tx.fetch(s).await?.is_empty() { KeyMade::Full } else { KeyMade::Taken });
        };
        let (object, became) = (row.id.to_string(), Some(row.audited()));
        let within = self.within(new.namespace.unwrap_or_default());
        within.audit(&mut tx, Deed { action: "key.make", object: &object, was: None, became }).await?;
        self.tell_changed(&mut tx, Copied::Keys).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(KeyMade::Done(row))
    }

    /// Revokes a key. With `keep_admin` one with the scope `admin` stays if no other that is accepted now could make one like it,
    /// of all namespaces or of its own. Other nodes are notified.
    pub async fn revoke_key(&self, id: KeyId, keep_admin: bool) -> Result<KeyRevoked, Error> {
        let mut tx = self.pool.begin().await?;
        let id = id.to_string();
        // Locked, so that of two calls that revoke the last two the second one sees what the first has done.
        let mut s = Statement::new(self.dialect(), "admin_keys");
        let now = s.now(self.bound_now());
        s.push(&format!(
            "SELECT id, namespace FROM api_keys WHERE scope = {} AND COALESCE(expires_at > {now}, true) ORDER BY id {}",
            Scope::Admin.code(),
            self.dialect().lock("FOR UPDATE"),
        ));
        let admins = tx.fetch(s).await?;
        let admins: Vec<(String, Option<i16>)> =
            admins.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, Error>>()?;
        let own = admins.iter().find(|(one, _)| *one == id).map(|(_, namespace)| *namespace);
        // One of a single namespace makes no keys of all, nor of another.
        let is_in_place = |namespace: Option<i16>| namespace.is_none() || Some(namespace) == own;
        if keep_admin
            && own.is_some()
            && !admins.iter().any(|(one, namespace)| *one != id && is_in_place(*namespace))
        {
            return Ok(KeyRevoked::LastAdmin);
        }
        let mut s = Statement::new(self.dialect(), "revoke_key");
        let bound = s.text(&id);
        s.push(&format!("DELETE FROM api_keys WHERE id = {bound} RETURNING {COLUMNS}"));
        let removed = tx.fetch(s).await?;
        let Some(before) = removed.first() else { return Ok(KeyRevoked::NoSuch) };
        // One that this version cannot read goes too.
        let before = KeyRow::read(before).ok();
        let within = self.within(before.as_ref().and_then(|row| row.namespace).unwrap_or_default());
        let was = before.map(|row| row.audited());
        within.audit(&mut tx, Deed { action: "key.revoke", object: &id, was, became: None }).await?;
        self.tell_changed(&mut tx, Copied::Keys).await?;
        tx.commit().await.map_err(Error::at_commit)?;
        Ok(KeyRevoked::Done)
    }

    /// Writes down when these keys were last used.
    pub async fn note_keys_used(&self, used: &[(KeyId, UnixMs)]) -> Result<(), Error> {
        if used.is_empty() {
            return Ok(());
        }
        let mut used: Vec<_> = used.iter().map(|(id, at)| (id.to_string(), at.get())).collect();
        used.sort_unstable();
        let mut s = Statement::new(self.dialect(), "note_keys_used");
        let (ids, times) = used.into_iter().unzip();
        let batch = s.batch("b", vec![("b_id", Column::Text(ids)), ("b_at", Column::Int(times))]);
        s.push(&format!(
            "WITH {batch} UPDATE api_keys SET last_used_at = b_at FROM b \
             WHERE id = b_id AND COALESCE(last_used_at < b_at, true)"
        ));
        self.pool.write(s).await.map(drop)
    }
}
