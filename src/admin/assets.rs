//! The files that pages load: style, scripts, icon. They are part of the binary.
//!
//! A file's address ends in a hash of its content, so a browser may keep it for good and a new version of the server
//! has new addresses.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

struct Asset {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:literal = $kind:literal),* $(,)?) => {
        const ASSETS: &[Asset] =
            &[$(Asset { name: $name, kind: $kind, bytes: include_bytes!(concat!("assets/", $name)) }),*];
    };
}

assets! {
    "page.css" = "text/css; charset=utf-8",
    "page.js" = "text/javascript; charset=utf-8",
    "icon.svg" = "image/svg+xml",
    "vendor/htmx.min.js" = "text/javascript; charset=utf-8",
}

/// The hash of each asset's content, in their order.
static HASHES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let hex = |bytes: &[u8]| Sha256::digest(bytes)[..6].iter().map(|b| format!("{b:02x}")).collect();
    ASSETS.iter().map(|asset| hex(asset.bytes)).collect()
});

/// The address of an asset.
pub fn address(name: &str) -> String {
    let known = ASSETS.iter().zip(HASHES.iter()).find(|(asset, _)| asset.name == name);
    debug_assert!(known.is_some(), "no asset {name}");
    known.map_or_else(String::new, |(asset, hash)| format!("/assets/{hash}/{}", asset.name))
}

/// One asset. An address with another hash is that of another version of the server.
pub async fn asset(Path(path): Path<String>) -> Response {
    let found = ASSETS.iter().zip(HASHES.iter()).find(|(asset, hash)| {
        path.split_once('/').is_some_and(|(asked, name)| asked == hash.as_str() && name == asset.name)
    });
    let Some((asset, _)) = found else {
        return (StatusCode::NOT_FOUND, "no such file").into_response();
    };
    let keep = "public, max-age=31536000, immutable";
    ([(header::CONTENT_TYPE, asset.kind), (header::CACHE_CONTROL, keep)], asset.bytes).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_script_stays_small() {
        let script = ASSETS.iter().find(|asset| asset.name == "page.js").unwrap();
        assert!(script.bytes.len() < 8 * 1024, "{} bytes", script.bytes.len());
    }

    #[test]
    fn an_asset_is_at_its_address() {
        for asset in ASSETS {
            assert!(address(asset.name).ends_with(asset.name), "{}", asset.name);
        }
    }
}
