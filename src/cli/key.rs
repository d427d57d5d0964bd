//! `key create|ls|revoke`: who may call. Without a server it works on the store itself, so that the first key is made on
//! the machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::client::{Client, Connection, Reply};
use super::config::Settings;
use super::exit::{Exit, usage};
use super::show::{self, Fields};
use super::{input, out, store};
use crate::clock::{Clock, SystemClock};
use crate::cold::{ColdStore, KeyMade, KeyRevoked, KeyRow, MAX_KEYS, NamespaceRow, acting};
use crate::model::key::{KeyId, Scope};
use crate::model::namespace::Namespace;
use crate::model::time::UnixMs;
use crate::service::keys::{certificate_hash, fingerprint, make};

/// Which keys: those of the store of the settings, or a running server's.
#[derive(Args)]
pub struct Key {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    verb: Verb,
}

/// `key …`
#[derive(Subcommand)]
pub enum Verb {
    /// Make a key, and print it: it is shown this once
    Create(Create),
    /// List all keys, oldest first; none is shown itself
    Ls(Settings),
    /// Revoke a key: running servers refuse it within two seconds
    Revoke(Revoke),
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring key create ops --scope admin --namespace '*'\n    \
      the first key, made on the machine: the database of the settings gets it, no server is needed\n  \
    MAINSPRING_API_KEY=$(mainspring key create shop --scope register --expires-in 90d)\n    \
      one for a program that registers timers\n  \
    mainspring key create shop-2 --scope register --server http://127.0.0.1:7600\n    \
      the same by a running server, with the key in $MAINSPRING_API_KEY\n\n\
    To replace a key, make the new one, give it to its user, and revoke the old one when `key ls` shows that it is not\n\
    used any more.")]
pub struct Create {
    /// What it is called: who uses it
    #[arg(value_parser = input::name)]
    name: String,
    /// What it may do: view, register, operate or admin; each includes those before it
    #[arg(long, value_parser = scope)]
    scope: Scope,
    /// The namespace in which it holds, * for all [default: the store's own]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// How long it is accepted, such as 90d [default: until it is revoked]
    #[arg(long, value_name = "DURATION", value_parser = input::duration, conflicts_with = "expires_at")]
    expires_in: Option<Duration>,
    /// From when on it is refused (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = input::instant)]
    expires_at: Option<String>,
    /// A client's certificate (PEM), which becomes the key: whoever shows it in TLS needs no other
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Args)]
pub struct Revoke {
    /// The key's id, as `key ls` shows it
    #[arg(value_parser = id)]
    id: KeyId,
    #[command(flatten)]
    settings: Settings,
}

fn scope(text: &str) -> Result<Scope, String> {
    Scope::from_word(text).ok_or_else(|| format!("one of {}", Scope::ALL.map(Scope::word).join(", ")))
}

fn id(text: &str) -> Result<KeyId, String> {
    KeyId::parse(text).ok_or_else(|| "`key_` and 16 of 0-9 a-f, as `mainspring key ls` shows it".into())
}

impl Create {
    /// The certificate in its file.
    fn certificate(&self) -> anyhow::Result<Option<String>> {
        self.certificate.as_deref().map(|path| input::file("--certificate", path)).transpose()
    }

    fn expires_at(&self) -> anyhow::Result<Option<UnixMs>> {
        let now = SystemClock.now();
        let at = match (&self.expires_at, self.expires_in) {
            (Some(text), _) => Some(UnixMs::parse_rfc3339(text)?),
            (None, after) => after.map(|after| now.plus(after)),
        };
        match at {
            Some(at) if at <= now => Err(usage("--expires-at lies in the past")),
            at => Ok(at),
        }
    }
}

/// Runs one `key` verb.
pub async fn run(key: &Key, before: &Settings, json: bool) -> anyhow::Result<Exit> {
    if key.connection.names_a_server() {
        let client = Client::new(&key.connection)?;
        return match &key.verb {
            Verb::Create(create) => {
                let body = json!({
                    "name": create.name, "scopes": [create.scope.word()], "namespace": create.namespace,
                    "expires_at": create.expires_at()?.map(UnixMs::rfc3339), "certificate": create.certificate()?,
                });
                created(&client.call(Method::POST, "/v1/keys", &[], Some(&body)).await?, json)
            }
            Verb::Ls(_) => listed(&client.ask(Method::GET, "/v1/keys", &[]).await?, json),
            Verb::Revoke(Revoke { id, .. }) => {
                let reply = client.ask(Method::DELETE, &format!("/v1/keys/{id}"), &[]).await?;
                show::removed(&reply, json, &id.to_string())?;
                Ok(Exit::Ok)
            }
        };
    }
    let (Verb::Create(Create { settings, .. }) | Verb::Ls(settings) | Verb::Revoke(Revoke { settings, .. })) =
        &key.verb;
    let config = before.and(settings).load()?;
    let missing = store::missing_file(&config);
    if let (Some(path), Verb::Ls(_) | Verb::Revoke(_)) = (&missing, &key.verb) {
        out::note(&format!("mainspring: {} does not exist; there are no keys", path.display()));
        return Ok(Exit::NotFound);
    }
    let cold = store::open(&config)?;
    if let Some(path) = missing {
        out::note(&format!(
            "mainspring: made {}, for `mainspring serve` with the same settings",
            path.display()
        ));
    }
    let done = acting(store::on_this_machine(), on_the_machine(&cold, &key.verb, json)).await;
    cold.close().await;
    done
}

/// The same on the store itself. A server may be running on it.
async fn on_the_machine(cold: &ColdStore, verb: &Verb, json: bool) -> anyhow::Result<Exit> {
    cold.prepare().await?;
    match verb {
        Verb::Create(create) => {
            let namespaces = cold.namespaces().await?;
            let namespace = match create.namespace.as_deref() {
                None => Some(Namespace::OWN),
                Some("*") => None,
                Some(name) => {
                    let names: Vec<&str> = namespaces.iter().map(|row| row.name.as_str()).collect();
                    let found = namespaces.iter().find(|row| row.name == name);
                    let found = found.ok_or_else(|| {
                        usage(format!("--namespace {name}: there is {}; `*` is all", names.join(", ")))
                    })?;
                    Some(found.number)
                }
            };
            let (mut new, text) = make(create.name.clone(), namespace, create.scope, create.expires_at()?)?;
            let mut text = Some(text);
            if let Some(pem) = create.certificate()? {
                let hash = certificate_hash(pem.as_bytes());
                let hash =
                    hash.ok_or_else(|| usage("--certificate: the file holds no certificate in PEM"))?;
                (new.hash, new.is_certificate, text) = (hash, true, None);
            }
            let row = match cold.make_key(&new).await? {
                KeyMade::Done(row) => row,
                KeyMade::Full => anyhow::bail!("there are {MAX_KEYS} keys; revoke some first"),
                KeyMade::Taken => {
                    out::note("mainspring: this certificate is a key already; revoke that one first");
                    return Ok(Exit::Conflict);
                }
            };
            let mut shown = shown(&row, &namespaces);
            if let Some(text) = text {
                shown["key"] = text.into();
            }
            created(&reply(StatusCode::CREATED, &shown), json)
        }
        Verb::Ls(_) => {
            let namespaces = cold.namespaces().await?;
            let items: Vec<Value> = cold.keys().await?.iter().map(|row| shown(row, &namespaces)).collect();
            listed(&reply(StatusCode::OK, &json!({ "items": items })), json)
        }
        Verb::Revoke(Revoke { id, .. }) => {
            if cold.revoke_key(*id, false).await? != KeyRevoked::Done {
                out::note(&format!("mainspring: there is no key {id}"));
                return Ok(Exit::NotFound);
            }
            show::removed(&reply(StatusCode::OK, &json!({"outcome": "removed"})), json, &id.to_string())?;
            if cold.keys_mark().await?.count == 0 {
                out::note(
                    "that was the last key of the store: a server on loopback that has none in `server.api_keys` is open \
                     to everyone on its machine from its next start on",
                );
            }
            Ok(Exit::Ok)
        }
    }
}

/// A key as the API shows it.
fn shown(row: &KeyRow, namespaces: &[NamespaceRow]) -> Value {
    let named = |number| namespaces.iter().find(|one| one.number == number).map(|one| one.name.as_str());
    let namespace = row.namespace.map_or(Some("*"), named);
    json!({
        "id": row.id, "name": row.name, "namespace": namespace,
        "scopes": row.scope.included(), "created_at": row.created_at, "expires_at": row.expires_at,
        "last_used_at": row.last_used_at, "certificate": row.is_certificate.then(|| fingerprint(&row.hash)),
    })
}

fn reply(status: StatusCode, body: &Value) -> Reply {
    Reply { status, json: body.to_string() }
}

/// Prints a new key alone, so that a script can take it; what it is goes beside it.
fn created(reply: &Reply, json: bool) -> anyhow::Result<Exit> {
    let key: Fields = reply.read()?;
    if json || key.contains_key("key") {
        show::one(reply, json, |key| show::text(key, "key"))?;
    }
    if !json {
        let [id, name, namespace] = ["id", "name", "namespace"].map(|field| show::text(&key, field));
        let scope = last_scope(&key);
        let how = if key.contains_key("key") {
            "The key is shown this once."
        } else {
            "The certificate is the key."
        };
        out::note(&format!("{id} {name}: {scope}, namespace {namespace}. {how}"));
    }
    Ok(Exit::Ok)
}

fn listed(reply: &Reply, json: bool) -> anyhow::Result<Exit> {
    show::all(reply, json, "there are no keys yet", table)?;
    Ok(Exit::Ok)
}

/// The scope that includes all others of a key.
fn last_scope(key: &Fields) -> String {
    let scopes = key.get("scopes").and_then(|scopes| serde_json::from_str::<Vec<String>>(scopes.get()).ok());
    scopes.and_then(|mut scopes| scopes.pop()).unwrap_or_default()
}

fn table(keys: &[Fields]) -> String {
    let mut rows = vec![
        ["ID", "NAME", "SCOPE", "NAMESPACE", "CREATED", "EXPIRES", "LAST USED"].map(str::to_owned).to_vec(),
    ];
    let now = SystemClock.now();
    for key in keys {
        let text = |field: &str| show::text(key, field);
        let at = |field: &str, none: &str| match text(field) {
            never if never.is_empty() || never == "null" => none.to_owned(),
            at => show::instant(&at, now),
        };
        rows.push(vec![
            text("id"),
            text("name"),
            last_scope(key),
            text("namespace"),
            at("created_at", ""),
            at("expires_at", "never"),
            at("last_used_at", "never"),
        ]);
    }
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_the_largest_scope_and_what_never_happens() {
        let key: Fields = serde_json::from_value(json!({
            "id": "key_0123456789abcdef", "name": "shop", "namespace": "*", "scopes": ["view", "register"],
            "created_at": "2026-12-01T01:00:00.000Z", "expires_at": null, "last_used_at": null,
        }))
        .expect("fields");
        let text = table(&[key]);
        let cells: Vec<&str> = text.lines().nth(1).expect("a line").split_whitespace().collect();
        assert_eq!(cells[..4], ["key_0123456789abcdef", "shop", "register", "*"]);
        assert_eq!(cells[cells.len() - 2..], ["never", "never"]);
    }
}
