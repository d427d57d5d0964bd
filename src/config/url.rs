//! URLs of stores: checked, and shown without their password.

use ::url::Url;

/// Reads the URL of a store. A `/`, `?` or `#` of a password that is not encoded would end the host too early, and another
/// host would be connected to: what shows it is refused. The error shows nothing of the URL.
pub fn store_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|why| why.to_string())?;
    // The client of Redis would take `#insecure` for the wish to check no certificate.
    if url.fragment().is_some() {
        return Err("what stands behind `#` means nothing here (in a password write %23)".into());
    }
    let first_option = url.query().and_then(|query| query.split('=').next()).unwrap_or_default();
    let is_of_nobody = url.username().is_empty() && url.path().is_empty();
    let in_options = if is_of_nobody { url.query().unwrap_or_default() } else { first_option };
    if url.path().contains('@') || in_options.contains('@') {
        return Err("an `@` stands behind a `/` or `?` (in a password write %2F and %3F)".into());
    }
    Ok(url)
}

/// A database URL with its password replaced by `hidden`, for logs and `config show`.
pub fn shown_url(text: &str) -> String {
    // A file has no password, and its name may have any character.
    if text.starts_with("sqlite:") {
        return text.to_owned();
    }
    // A password that is not encoded ends a URL too early: what stands before the `@` is then no user.
    let is_whole = |url: &Url| !text.contains('@') || url.password().is_some() || !url.username().is_empty();
    let whole = Url::parse(text).ok().filter(is_whole);
    let hidden = || without_password(text);
    let Some(mut url) = whole.or_else(|| Url::parse(&hidden()).ok()) else { return hidden() };
    if url.password().is_some() {
        // Fails only for URLs that cannot have a password, and this one has.
        let _ = url.set_password(Some("hidden"));
    }
    if url.query_pairs().any(|(name, _)| name == "password") {
        let kept: Vec<(String, String)> =
            url.query_pairs().into_owned().filter(|(name, _)| name != "password").collect();
        url.query_pairs_mut().clear().extend_pairs(kept).append_pair("password", "hidden");
    }
    // The rest of a password with a `#` that is not encoded.
    url.set_fragment(None);
    url.to_string()
}

/// The same for a text that is not a URL by the standard: several hosts with ports, or a mistake.
fn without_password(text: &str) -> String {
    let Some((before, hosts)) = text.rsplit_once('@') else { return without_password_in_query(text) };
    let hosts = without_password_in_query(hosts);
    let (scheme, user) = before.split_once("://").map_or(("", before), |(scheme, user)| (scheme, user));
    match user.split_once(':') {
        Some((name, _)) => format!("{scheme}://{name}:hidden@{hosts}"),
        None => format!("{before}@{hosts}"),
    }
}

fn without_password_in_query(text: &str) -> String {
    let text = text.split_once('#').map_or(text, |(text, _)| text);
    let Some((place, query)) = text.split_once('?') else { return text.to_owned() };
    let shown = |field| if str::starts_with(field, "password=") { "password=hidden" } else { field };
    format!("{place}?{}", query.split('&').map(shown).collect::<Vec<_>>().join("&"))
}
