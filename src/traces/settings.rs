//! The standard environment of OpenTelemetry, as far as it decides whether and how spans are exported.
//!
//! It is read here and not by the SDK where the SDK would take a default for what it cannot read. The SDK reads the rest:
//! `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`, the sizes of queue and batch (`OTEL_BSP_…`).

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use opentelemetry_sdk::trace::Sampler;
use url::Url;

use super::ENDPOINTS;

/// How long one export may take, unless set.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How spans are exported.
#[derive(Debug)]
pub(super) struct Settings {
    /// Where spans are posted.
    pub endpoint: Url,
    /// How long one export may take, with all its tries.
    pub timeout: Duration,
    /// Which spans are recorded.
    pub sampler: Sampler,
}

impl Settings {
    /// Reads them; `None` if nothing is to be exported. An error names the variable, and never shows an endpoint or
    /// headers: they may hold a key.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<Self>> {
        if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        match variable("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(other) => bail!("`OTEL_TRACES_EXPORTER`: there is no exporter {other}; set otlp or none"),
        }
        let first = |names: [&'static str; 2]| {
            names.into_iter().find_map(|name| variable(name).map(|value| (name, value)))
        };
        let Some((name, text)) = first(ENDPOINTS) else { return Ok(None) };
        let endpoint = endpoint(&text, name == ENDPOINTS[1]).with_context(|| format!("`{name}`"))?;
        if let Some((name, protocol)) =
            first(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"])
        {
            ensure!(protocol == "http/protobuf", "`{name}`: {protocol} is not supported; set http/protobuf");
        }
        if let Some((name, headers)) =
            first(["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"])
        {
            ensure!(headers.split_terminator(',').all(is_header), "`{name}`: not of the form name=value,…");
        }
        let timeout = match first(["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"]) {
            None => TIMEOUT,
            Some((name, text)) => match text.parse() {
                Ok(ms @ 1..) => Duration::from_millis(ms),
                _ => bail!("`{name}`: {text} is not a number of milliseconds"),
            },
        };
        let sampler = sampler(
            variable("OTEL_TRACES_SAMPLER").as_deref(),
            variable("OTEL_TRACES_SAMPLER_ARG").as_deref(),
        )?;
        Ok(Some(Self { endpoint, timeout, sampler }))
    }
}

/// The URL of an endpoint. The one for all signals is a base, to which the path for traces is added.
fn endpoint(text: &str, is_base: bool) -> anyhow::Result<Url> {
    let example = if is_base { "http://127.0.0.1:4318" } else { "http://127.0.0.1:4318/v1/traces" };
    let mut url = Url::parse(text).map_err(|why| anyhow!("{why}; for example {example}"))?;
    ensure!(matches!(url.scheme(), "http" | "https"), "not an http or https URL; for example {example}");
    ensure!(
        url.username().is_empty() && url.password().is_none(),
        "a URL without user and password; put a key into `OTEL_EXPORTER_OTLP_HEADERS`"
    );
    if is_base {
        let path = format!("{}/v1/traces", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    Ok(url)
}

/// Whether it is `name=value`, with a name that HTTP allows.
fn is_header(pair: &str) -> bool {
    pair.split_once('=').is_some_and(|(name, _)| axum::http::HeaderName::try_from(name.trim()).is_ok())
}

/// The sampler of this name. The default is that of OpenTelemetry: as the caller decided, and everything else.
fn sampler(name: Option<&str>, argument: Option<&str>) -> anyhow::Result<Sampler> {
    let ratio = || match argument.map(str::parse::<f64>) {
        None => Ok(1.0),
        Some(Ok(ratio @ 0.0..=1.0)) => Ok(ratio),
        Some(_) => Err(anyhow!("`OTEL_TRACES_SAMPLER_ARG`: not a number from 0 to 1")),
    };
    let root = |name: &str| {
        Ok(Some(match name {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => Sampler::TraceIdRatioBased(ratio()?),
            _ => return anyhow::Ok(None),
        }))
    };
    let name = name.unwrap_or("parentbased_always_on");
    let sampler = match name.strip_prefix("parentbased_") {
        Some(name) => root(name)?.map(|root| Sampler::ParentBased(Box::new(root))),
        None => root(name)?,
    };
    sampler.with_context(|| {
        format!(
            "`OTEL_TRACES_SAMPLER`: there is no sampler {name}; set always_on, always_off or traceidratio, each also \
             with parentbased_ before it"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let value = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Settings::read(value).map_err(|why| format!("{why:#}"))
    }

    #[test]
    fn without_an_endpoint_nothing_is_exported() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        for variables in [
            &[][..],
            &[("OTEL_TRACES_SAMPLER", "always_on"), ("OTEL_SERVICE_NAME", "alarms")],
            &[endpoint, ("OTEL_SDK_DISABLED", "true")],
            &[endpoint, ("OTEL_TRACES_EXPORTER", "none")],
        ] {
            assert!(read(variables).expect("valid").is_none(), "{variables:?}");
        }
        assert!(read(&[endpoint]).expect("valid").is_some());
    }

    #[test]
    fn the_endpoint_of_all_signals_is_a_base_and_that_of_traces_is_whole() {
        let both = |of_all: &str, of_traces: &str| {
            let variables =
                [("OTEL_EXPORTER_OTLP_ENDPOINT", of_all), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", of_traces)];
            let set: Vec<_> = variables.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            read(&set).expect("valid").expect("an endpoint").endpoint.to_string()
        };
        assert_eq!(both("http://c:4318", ""), "http://c:4318/v1/traces");
        assert_eq!(both("https://c/otlp/", ""), "https://c/otlp/v1/traces");
        assert_eq!(both("http://c:4318", "http://d/in"), "http://d/in");
    }

    #[test]
    fn what_cannot_be_read_is_one_error_that_names_the_variable() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://name:hunter2@collector:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_TRACES_SAMPLER", "xray"),
            ("OTEL_TRACES_SAMPLER", "parentbased_"),
        ] {
            let why = read(&[(name, value), endpoint]).expect_err(value);
            assert!(why.contains(&format!("`{name}`")) && !why.contains("hunter2"), "{why}");
        }
        let ratio = [endpoint, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "1.5")];
        assert!(read(&ratio).expect_err("out of range").contains("`OTEL_TRACES_SAMPLER_ARG`"));
    }

    #[test]
    fn every_sampler_of_the_standard_has_its_name() {
        for (name, shown) in [
            (None, "ParentBased(AlwaysOn)"),
            (Some("always_on"), "AlwaysOn"),
            (Some("always_off"), "AlwaysOff"),
            (Some("traceidratio"), "TraceIdRatioBased(0.25)"),
            (Some("parentbased_always_on"), "ParentBased(AlwaysOn)"),
            (Some("parentbased_always_off"), "ParentBased(AlwaysOff)"),
            (Some("parentbased_traceidratio"), "ParentBased(TraceIdRatioBased(0.25))"),
        ] {
            assert_eq!(format!("{:?}", sampler(name, Some("0.25")).expect("known")), shown);
        }
    }
}
