//! Spans by the SDK of OpenTelemetry: bounded queue, batches, a thread of its own.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use axum::http::{Request, Response, header};
use opentelemetry::trace::{
    Link, Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer, TracerProvider,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{Sampler, SamplingResult, SdkTracer, SdkTracerProvider, ShouldSample, Span};

use super::client::Client;
use super::settings::Settings;
use super::{Started, variable};
use crate::model::id::TimerId;
use crate::model::target::Target;
use crate::model::timer::AttemptResult;
use crate::model::trace::Trace;

/// How long a stop waits for the last batches.
const FLUSH: Duration = Duration::from_secs(2);

/// Makes the spans of this process. Empty as long as nothing is exported.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// The export of spans: it runs until [`Export::end`].
#[derive(Debug)]
pub struct Export(Option<SdkTracerProvider>);

impl Export {
    /// Starts the export if the environment names a collector. It need not answer. An error names the variable that
    /// cannot be read.
    pub fn start(node: &str) -> anyhow::Result<Self> {
        let Some(settings) = Settings::read(variable).context("environment")? else { return Ok(Self(None)) };
        let client = Client::new(settings.timeout).context("the HTTP client cannot be made")?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(settings.endpoint.as_str())
            .with_timeout(settings.timeout)
            .build()
            .context("the export of traces cannot start")?;
        let provider = SdkTracerProvider::builder()
            .with_sampler(AsLinked(settings.sampler))
            .with_resource(resource(node))
            .with_batch_exporter(exporter)
            .build();
        let scope =
            InstrumentationScope::builder("mainspring").with_version(env!("CARGO_PKG_VERSION")).build();
        // Set already only if one process runs several services; then the first one's export is used.
        let _ = TRACER.set(provider.tracer_with_scope(scope));
        tracing::info!("spans are exported to {}", settings.endpoint.origin().ascii_serialization());
        Ok(Self(Some(provider)))
    }

    /// Exports what is left, for two seconds at most.
    pub async fn end(self) {
        let Some(provider) = self.0 else { return };
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH));
        if !matches!(ended.await, Ok(Ok(()))) {
            tracing::info!("the last spans were not exported in time");
        }
    }
}

/// Whose spans they are. The environment has the last word.
fn resource(node: &str) -> Resource {
    let ours = [
        KeyValue::new("service.name", "mainspring"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", node.to_owned()),
    ];
    Resource::builder_empty()
        .with_attributes(ours)
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())])
        .with_attributes(variable("OTEL_SERVICE_NAME").map(|name| KeyValue::new("service.name", name)))
        .build()
}

/// A sampler that decides about a span with a link as about a child of the linked one.
#[derive(Debug, Clone)]
struct AsLinked(Sampler);

impl ShouldSample for AsLinked {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        match links.first() {
            Some(Link { span_context: linked, .. }) => {
                let parent = Context::new().with_remote_span_context(linked.clone());
                self.0.should_sample(Some(&parent), linked.trace_id(), name, kind, attributes, links)
            }
            None => self.0.should_sample(parent, trace, name, kind, attributes, links),
        }
    }
}

/// A call of the API under way.
#[derive(Debug)]
pub struct Call(Option<Span>);

impl Call {
    /// Begins the span of a call to `route`, under the span that its `traceparent` names. Only calls below `/v1/` have
    /// spans.
    pub fn begin<B>(request: &Request<B>, route: &str) -> Self {
        let Some(tracer) = TRACER.get().filter(|_| route.starts_with("/v1/")) else { return Self(None) };
        let header = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
        let parent = match header.and_then(Trace::parse) {
            Some(trace) => Context::new().with_remote_span_context(context_of(trace)),
            None => Context::new(),
        };
        let (method, named) = match request.method().as_str() {
            known @ ("GET" | "HEAD" | "PUT" | "POST" | "PATCH" | "DELETE" | "OPTIONS") => (known, known),
            _ => ("_OTHER", "HTTP"),
        };
        let builder = tracer.span_builder(format!("{named} {route}")).with_kind(SpanKind::Server);
        let mut span = tracer.build_with_context(builder, &parent);
        if span.is_recording() {
            span.set_attribute(KeyValue::new("http.request.method", method.to_owned()));
            span.set_attribute(KeyValue::new("http.route", route.to_owned()));
            if let Some(id) = timer_in(route, request.uri().path()) {
                span.set_attribute(KeyValue::new("mainspring.timer.id", id));
            }
        }
        Self(Some(span))
    }

    /// Ends the span. A call that its caller broke off ends without.
    pub fn end<B>(self, response: &Response<B>) {
        let Some(mut span) = self.0.filter(Span::is_recording) else { return };
        let status = response.status();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_server_error() {
            span.set_attribute(KeyValue::new("error.type", status.as_str().to_owned()));
            span.set_status(Status::error(""));
        }
        let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
        if let Some(id) = location.and_then(|path| timer_in("/v1/timers/{id}", path)) {
            span.set_attribute(KeyValue::new("mainspring.timer.id", id));
        }
        span.end();
    }
}

/// The id of the timer that a path of this route names.
fn timer_in(route: &str, path: &str) -> Option<String> {
    let (_, encoded) = route.split('/').zip(path.split('/')).find(|(pattern, _)| *pattern == "{id}")?;
    let id = percent_encoding::percent_decode_str(encoded).decode_utf8().ok()?;
    TimerId::parse(&id).ok().map(|id| id.as_str().to_owned())
}

/// An attempt under way.
#[derive(Debug)]
pub struct Attempt(Option<Span>);

impl Attempt {
    /// Begins the span of an attempt, in a trace of its own with a link to the call that registered the timer.
    pub fn begin(started: Started<'_>) -> Self {
        let Some(tracer) = TRACER.get() else { return Self(None) };
        let links = started.registered.map(|trace| vec![Link::with_context(context_of(trace))]);
        let builder = tracer
            .span_builder(format!("deliver {}", started.target.kind_word()))
            .with_kind(SpanKind::Client)
            .with_links(links.unwrap_or_default());
        let mut span = tracer.build_with_context(builder, &Context::new());
        if span.is_recording() {
            let late_ms = i64::try_from(started.late.as_millis()).unwrap_or(i64::MAX);
            span.set_attributes([
                KeyValue::new("mainspring.timer.id", started.timer.to_owned()),
                KeyValue::new("mainspring.delivery.id", started.delivery.to_owned()),
                KeyValue::new("mainspring.generation", i64::from(started.generation.0)),
                KeyValue::new("mainspring.attempt", i64::from(started.attempt)),
                KeyValue::new("mainspring.due_at", started.due_at.rfc3339()),
                KeyValue::new("mainspring.lateness_ms", late_ms),
            ]);
            span.set_attributes(receiver(started.target));
        }
        Self(Some(span))
    }

    /// What its receiver gets.
    pub fn onward(&self) -> Onward {
        let of = |span: &Span| {
            let context = span.span_context();
            let mut packed = [0; 25];
            packed[..16].copy_from_slice(&context.trace_id().to_bytes());
            packed[16..24].copy_from_slice(&context.span_id().to_bytes());
            packed[24] = context.trace_flags().to_u8();
            context.is_valid().then(|| Trace::from_packed(&packed))?
        };
        Onward(self.0.as_ref().and_then(of))
    }

    /// Ends the span.
    pub fn end(self, result: AttemptResult, status: Option<u16>, detail: Option<&str>) {
        let Some(mut span) = self.0.filter(Span::is_recording) else { return };
        span.set_attribute(KeyValue::new("mainspring.result", result.word()));
        if let Some(status) = status {
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        if result != AttemptResult::Ok {
            let kind = status.map_or_else(|| result.word().to_owned(), |status| status.to_string());
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(detail.unwrap_or_default().to_owned()));
        }
        span.end();
    }
}

/// Scheme, host and port of a receiver.
fn receiver(target: &Target) -> Vec<KeyValue> {
    match target {
        Target::Webhook(hook) => vec![
            KeyValue::new("http.request.method", "POST"),
            KeyValue::new("url.scheme", hook.url.scheme().to_owned()),
            KeyValue::new("server.address", hook.url.host_str().unwrap_or_default().to_owned()),
            KeyValue::new("server.port", i64::from(hook.url.port_or_known_default().unwrap_or_default())),
        ],
        Target::Destination(name) => vec![KeyValue::new("mainspring.destination", name.clone())],
        Target::Queue(_) | Target::Unknown { .. } => Vec::new(),
    }
}

/// The trace context that an attempt gives to its receiver.
#[derive(Debug, Clone, Copy, Default)]
pub struct Onward(Option<Trace>);

impl Onward {
    /// The value of its `traceparent`. None while nothing is exported.
    pub fn traceparent(self) -> Option<Trace> {
        self.0
    }
}

fn context_of(trace: Trace) -> SpanContext {
    let packed = trace.packed();
    let (mut trace, mut span) = ([0; 16], [0; 8]);
    trace.copy_from_slice(&packed[..16]);
    span.copy_from_slice(&packed[16..24]);
    SpanContext::new(
        TraceId::from_bytes(trace),
        SpanId::from_bytes(span),
        TraceFlags::new(packed[24]),
        true,
        TraceState::NONE,
    )
}
