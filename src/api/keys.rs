//! `/v1/keys`: who may call, and what each may do.

use axum::Json;
use axum::extract::{Extension, Path, Request};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Serialize;

use super::auth::Caller;
use super::named::{MAX_BODY, RemovedAnswer, removed};
use super::namespaces::shown;
use super::problem::{ApiResult, FieldError, Problem};
use super::request::{self, ALL_NAMESPACES, KeyIn};
use super::schema;
use super::{ApiState, Within};
use crate::cold::{KeyMade, KeyRevoked, KeyRow, MAX_KEYS};
use crate::model::key::KeyId;
use crate::model::namespace::Namespace;
use crate::model::time::UnixMs;
use crate::service::Service;
use crate::service::keys::{fingerprint, make};

/// The key that a call is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "describes the path in the OpenAPI document")]
pub struct KeyPath {
    /// The key's id.
    #[param(value_type = schema::KeyId, example = "key_0123456789abcdef")]
    id: String,
}

/// A key in an answer.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct KeyView {
    #[schema(value_type = schema::KeyId)]
    id: KeyId,
    #[schema(value_type = schema::KeyName)]
    name: String,
    /// `*` is all namespaces.
    #[schema(value_type = schema::NamespaceOrAll)]
    namespace: String,
    /// What it may do, those that are included too.
    #[schema(value_type = schema::Scopes)]
    scopes: Vec<&'static str>,
    #[schema(value_type = schema::Moment)]
    created_at: UnixMs,
    /// From when on it is refused; `null`: it does not expire.
    #[schema(required, value_type = Option<schema::Moment>)]
    expires_at: Option<UnixMs>,
    /// To about half a minute; `null`: not used yet.
    #[schema(required, value_type = Option<schema::Moment>)]
    last_used_at: Option<UnixMs>,
    /// The SHA-256 of the certificate that it is; `null` for one that is shown as `Bearer`.
    #[schema(required, value_type = Option<schema::Fingerprint>)]
    certificate: Option<String>,
    /// The key itself: only in the answer that makes it, and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::KeyText>)]
    key: Option<String>,
}

/// The keys.
#[derive(Serialize, utoipa::ToSchema)]
pub struct KeysAnswer {
    items: Vec<KeyView>,
}

impl KeyView {
    /// A key of the namespace of this name; `key` is its text, if it was made just now.
    pub fn new(row: KeyRow, namespace: String, key: Option<String>) -> Self {
        Self {
            id: row.id,
            name: row.name,
            namespace,
            scopes: row.scope.included(),
            created_at: row.created_at,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
            certificate: row.is_certificate.then(|| fingerprint(&row.hash)),
            key,
        }
    }
}

/// Whether this caller sees the key: whoever is of one namespace sees those of that one.
fn sees(caller: Caller, row: &KeyRow) -> bool {
    caller.is_of_all() || row.namespace == caller.key_of
}

/// The keys that the caller may see, oldest first, expired ones too. Those of the settings are not among them.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", operation_id = "keys",
    responses((status = 200, body = KeysAnswer)))]
pub async fn list(Within(state): Within, Extension(caller): Extension<Caller>) -> ApiResult {
    let store = &state.service()?.store;
    let rows = store.keys().await?.into_iter().filter(|row| sees(caller, row));
    let view = |row: KeyRow| {
        let namespace = shown(&state, row.namespace);
        KeyView::new(row, namespace, None)
    };
    let items = rows.map(view).collect();
    Ok(Json(KeysAnswer { items }).into_response())
}

/// Make a key. The answer holds it, once: the service keeps a hash of it only. A server that had no key answers nobody
/// without one from then on.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", operation_id = "make_key", request_body = KeyIn,
    responses((status = 201, body = KeyView),
        (status = 409, body = Problem, description = "certificate_taken: the certificate is a key already")))]
pub async fn post(
    Within(state): Within,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> ApiResult {
    let store = &state.service()?.store;
    let body = state.body(request, MAX_BODY).await?;
    let wanted = request::key(&body.bytes, store.clock().now())?;
    let namespace = namespace_of(&state, caller, wanted.namespace.as_deref()).await?;
    let (mut new, text) = make(wanted.name, namespace, wanted.scope, wanted.expires_at).map_err(|why| {
        let detail = "this machine gives no random numbers";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail).because(why)
    })?;
    let mut key = Some(text);
    if let Some(certificate) = wanted.certificate {
        // Certificates are public: an admin of one namespace could take that of another's program, which would act in his then.
        if !caller.is_of_all() {
            let detail = "a certificate is made a key by a key of all namespaces, or by `mainspring key create --certificate` on the machine";
            return Err(Problem::new(StatusCode::FORBIDDEN, "scope", detail));
        }
        (new.hash, new.is_certificate, key) = (certificate, true, None);
    }
    let row = match store.make_key(&new).await? {
        KeyMade::Done(row) => row,
        KeyMade::Full => {
            let most = store.within(new.namespace.unwrap_or_default()).most_here(MAX_KEYS);
            return Err(Problem::too_many(most, "keys"));
        }
        KeyMade::Taken => {
            let detail = "this certificate is a key already; revoke that one first";
            return Err(Problem::new(StatusCode::CONFLICT, "certificate_taken", detail));
        }
    };
    tracing::info!(key = %row.id, by = %caller.id, scope = row.scope.word(), "a key was made");
    // It is made, whatever becomes of this reading.
    let _ = state.node.keys.read().await;
    let namespace = shown(&state, row.namespace);
    Ok((StatusCode::CREATED, Json(KeyView::new(row, namespace, key))).into_response())
}

/// The namespace that a new key is to be of; `None`: all. Without a name it is that of the call.
async fn namespace_of(
    state: &ApiState,
    caller: Caller,
    name: Option<&str>,
) -> Result<Option<Namespace>, Problem> {
    let wrong = |code, detail: &str| Problem::invalid(vec![FieldError::new("/namespace", code, detail)]);
    match name {
        None => Ok(Some(caller.namespace)),
        Some(ALL_NAMESPACES) if caller.is_of_all() => Ok(None),
        Some(ALL_NAMESPACES) => Err(wrong("not_yours", "a key of one namespace makes keys of that one only")),
        Some(name) => {
            let found = match caller.key_of {
                Some(own) => state.node.namespaces.get(own).filter(|row| row.name == name),
                None => state.node.namespaces.find(name).await?,
            };
            let found = found.map(|row| Some(row.number));
            found.ok_or_else(|| wrong("unknown_namespace", "there is no namespace of this name; `*` is all"))
        }
    }
}

/// Revoke a key. Other nodes refuse it within two seconds.
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys", operation_id = "revoke_key",
    params(KeyPath),
    responses((status = 200, body = RemovedAnswer), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "last_admin: without it nobody could make keys like it")))]
pub async fn remove(
    Within(state): Within,
    Extension(caller): Extension<Caller>,
    Path(text): Path<String>,
) -> ApiResult {
    let service = state.service()?;
    let id = known(service, caller, &text).await?;
    match service.store.revoke_key(id, !state.node.keys.has_settings()).await? {
        KeyRevoked::Done => {
            tracing::info!(key = %id, by = %caller.id, "a key was revoked");
            state.node.keys.forget(id);
            // What may have been read just before the revocation is read again. If this fails, the next reading does it.
            let _ = state.node.keys.read().await;
            Ok(removed())
        }
        KeyRevoked::NoSuch => Err(no_such(&text)),
        KeyRevoked::LastAdmin => {
            let detail = "it is the last key with the scope `admin` that can make keys like it: make another one first, or \
                          revoke it on the machine itself with `mainspring key revoke`";
            Err(Problem::new(StatusCode::CONFLICT, "last_admin", detail))
        }
    }
}

/// The id of a key that the caller may see.
async fn known(service: &Service, caller: Caller, text: &str) -> Result<KeyId, Problem> {
    let Some(id) = KeyId::parse(text) else {
        let detail = "`key_` and 16 of 0-9 a-f, as the list of keys shows it";
        return Err(Problem::invalid(vec![FieldError::new("?id", "bad_id", detail)]));
    };
    match service.store.key(id).await? {
        Some(row) if sees(caller, &row) => Ok(id),
        _ => Err(no_such(text)),
    }
}

fn no_such(text: &str) -> Problem {
    Problem::no_such("key", text)
}
