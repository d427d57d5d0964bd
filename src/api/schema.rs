//! What the OpenAPI document says of single values: patterns, lengths, ranges and examples.
//!
//! Each type here stands for one kind of value and exists in the document only; a field names it with
//! `value_type`. Limits are the constants that the checks in [`super::request`] and [`crate::model`] use.
//! Lengths in the document count characters, those of the checks bytes: outside ASCII the check is the tighter one.

use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{KnownFormat, SchemaFormat};

use super::request::{
    MAX_LABEL_NAME, MAX_LABEL_VALUE, MAX_LABELS, MAX_OWNER, MAX_RETRY_ATTEMPTS, MIN_RETRY_ATTEMPTS,
};
use super::timers::read::{DEFAULT_LIST, MAX_LIST};
use crate::model::destination::{MAX_CONCURRENCY, MAX_NAME, MAX_RATE};
use crate::model::id::MAX_ID_LEN;
use crate::model::place::MAX_PLACE_NAME;
use crate::model::target::{MAX_HEADER_BYTES, MAX_HEADERS, MAX_SECRET_BYTES, MAX_URL};

/// Declares a schema of the document: its name, what it is, and how it is built.
macro_rules! schemas {
    ($($name:ident: $description:literal = $build:expr;)*) => {$(
        #[doc = $description]
        pub struct $name;

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $build.description(Some($description)).into()
            }
        }

        impl utoipa::ToSchema for $name {}
    )*};
}

schemas! {
    TimerId: "A timer's id. Ids of the form `tmr_` and 32 hex digits are made by the service." =
        text().pattern(Some(format!("^[A-Za-z0-9._:-]{{1,{MAX_ID_LEN}}}$"))).examples(["order-8841-review"]);
    Instant: "RFC 3339 with an offset; finer than a millisecond is rounded up." =
        text().format(format(KnownFormat::DateTime)).examples(["2026-12-01T09:00:00+08:00"]);
    Moment: "RFC 3339 in UTC, with milliseconds." =
        text().format(format(KnownFormat::DateTime)).examples(["2026-12-01T01:00:00.000Z"])
            .pattern(Some(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$"));
    Duration: "An ISO 8601 duration without months or years." =
        text().pattern(Some(duration())).examples(["PT48H", "P2D", "PT0.5S"]);
    LocalTime: "Wall time without an offset." =
        text().examples(["2026-12-01T09:00:00"])
            .pattern(Some(format!("^{DATE}T([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\\.[0-9]+)?)?$")));
    Zone: "An IANA time zone that this build knows." =
        text().pattern(Some(zone())).examples(["Asia/Shanghai"]);
    Owner: "Whom a timer is about: text without control characters, counted in bytes of UTF-8." =
        text().min_length(Some(1)).max_length(Some(MAX_OWNER)).pattern(Some(NO_CONTROLS)).examples(["user:123"]);
    Labels: "Texts by name." =
        map(name("A-Za-z0-9._/-", MAX_LABEL_NAME), text().max_length(Some(MAX_LABEL_VALUE)).pattern(Some(NO_CONTROLS)))
            .max_properties(Some(MAX_LABELS)).examples([serde_json::json!({"app": "shop"})]);
    Url: "`http` or `https`, without credentials or fragment. Addresses that are not public are refused unless the \
          settings allow them." =
        text().format(Some(SchemaFormat::Custom("uri".into()))).max_length(Some(MAX_URL)).pattern(Some(url()))
            .examples(["https://shop.example/hooks/review"]);
    Receiver: "Scheme, host and port." =
        text().format(Some(SchemaFormat::Custom("uri".into()))).max_length(Some(MAX_URL)).pattern(Some(url()))
            .examples(["https://shop.example"]);
    Secret: "The key that signs deliveries as Standard Webhooks asks: base64, usually behind `whsec_`. Never shown again." =
        text().pattern(Some(secret())).write_only(true).examples(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
    Headers: "Static headers. Not those of the connection and the content, nor `ce-…` and `webhook-…`, which are the \
              service's own. Name and value together have a limit, too." =
        map(name("A-Za-z0-9!#$%&'*+.^_`|~-", MAX_HEADER_BYTES), text().max_length(Some(MAX_HEADER_BYTES - 1)).pattern(Some("^[ -~]*$")))
            .max_properties(Some(MAX_HEADERS)).examples([serde_json::json!({"x-tenant": "shop"})]);
    DestinationName: "A destination's name." =
        text().pattern(Some(format!("^[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{}}}$", MAX_NAME - 1))).examples(["shop-orders"]);
    RedisUrl: "`redis` or, with TLS, `rediss`; with user and password, and the number of the database as path, where \
               there are any. The password is never shown again." =
        text().format(Some(SchemaFormat::Custom("uri".into()))).max_length(Some(MAX_URL))
            .pattern(Some("^rediss?://[^?#]+$")).examples(["rediss://shop:secret@redis.example/0"]);
    AmqpUrl: "`amqp` or, with TLS, `amqps`; with user and password, and the virtual host as path, where there are any. \
              `/` alone is the virtual host `/`. The password is never shown again." =
        text().format(Some(SchemaFormat::Custom("uri".into()))).max_length(Some(MAX_URL))
            .pattern(Some("^amqps?://[^?#]+$")).examples(["amqps://shop:secret@rabbit.example/shop"]);
    PlaceName: "A name that the broker knows, without control characters; at most 255 bytes." =
        text().max_length(Some(MAX_PLACE_NAME)).pattern(Some(NO_CONTROLS)).examples(["orders"]);
    MqttUrl: "`mqtt` or, with TLS, `mqtts`; with user and password where there are any. The password is never shown again." =
        text().format(Some(SchemaFormat::Custom("uri".into()))).max_length(Some(MAX_URL))
            .pattern(Some("^mqtts?://[^?#]+$")).examples(["mqtts://shop:secret@mqtt.example"]);
    TopicName: "A topic of MQTT, without wildcards and control characters; at most 255 bytes." =
        text().min_length(Some(1)).max_length(Some(MAX_PLACE_NAME)).pattern(Some(r"^[^+#\u0000-\u001f\u007f-\u009f]*$")).examples(["shop/orders"]);
    StreamName: "A key of Redis, without control characters." =
        text().min_length(Some(1)).max_length(Some(MAX_PLACE_NAME)).pattern(Some(NO_CONTROLS)).examples(["shop:viewings"]);
    ShownHeaders: "Headers by name; `null` where the value is not shown." =
        map(text(), text().schema_type(SchemaType::from_iter([Type::String, Type::Null])));
    DestinationState: "`failing`: its last attempts failed, and it is tried one at a time. `paused`: what falls due is kept." =
        words(["ok", "failing", "paused"]);
    DestinationPatch: "Parts of a destination, merged over what there is (RFC 7396): `null` removes." =
        ObjectBuilder::new().schema_type(Type::Object).examples([serde_json::json!({"rate_per_second": 500})]);
    RemovedWord: "It is gone." = words(["removed"]);
    Concurrency: "Attempts at once." =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(MAX_CONCURRENCY));
    Rate: "Attempts a second." =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(MAX_RATE));
    RetryAttempts: "Attempts in all, the first included." =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(MIN_RETRY_ATTEMPTS)).maximum(Some(MAX_RETRY_ATTEMPTS));
    TimerState: "Where a timer stands. The last four are its ends." =
        words(crate::model::timer::State::ALL.map(crate::model::timer::State::word));
    AttemptResult: "How an attempt came out." =
        words(crate::model::timer::AttemptResult::ALL.map(crate::model::timer::AttemptResult::word));
    CancelOutcome: "`cancelled`: nothing was or ever will be sent. `stopped`: earlier attempts all surely failed, and \
                    nothing more will be sent." = words(["cancelled", "stopped"]);
    EventWord: "What happened; one of the four ends comes last." =
        words(["registered", "promoted", "replayed", "due", "claimed", "attempt", "delivered", "cancelled", "expired", "dead"]);
    HealthWord: "`degraded`: it can serve, and `checks` says what is not as it should be." =
        words(["ok", "degraded", "starting", "stopping", "unavailable"]);
    WheelWord: "The wheel's level; `whole_minute` holds timers of `precision: minute`." =
        words(["second", "minute", "whole_minute"]);
    ItemStatus: "201 new, 200 the same again, 409 taken, 422 not valid, 429 beyond the quota (in a stream), 503 not \
                 committed." =
        ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some([200, 201, 409, 422, 429, 503]));
    ReceiverState: "`failing`: its last attempts failed." = words(["ok", "failing"]);
    ListLimit: "How many timers a page may have." =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(MAX_LIST))
            .default(Some(DEFAULT_LIST.into()));
    Cursor: "`next` of the page before, unchanged." =
        text().pattern(Some("^-?[0-9]{1,15}\\.[0-9a-f]{32}\\.[0-9]{1,9}$"));
    EntityTag: "An `ETag` as an answer gave it, or `*` for any." =
        text().pattern(Some(r#"^(\*|"[0-9]{1,9}")$"#)).examples([r#""1""#]);
    IdempotencyKey: "1 to 255 printable ASCII characters." =
        text().pattern(Some("^[!-~]([ -~]{0,253}[!-~])?$"));
}

/// From the year 1 on: in the year 0 the zone decides whether the instant can be kept.
const DATE: &str =
    "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
const NO_CONTROLS: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn words<const N: usize>(words: [&str; N]) -> ObjectBuilder {
    text().enum_values(Some(words))
}

fn format(known: KnownFormat) -> Option<SchemaFormat> {
    Some(SchemaFormat::KnownFormat(known))
}

fn name(allowed: &str, most: usize) -> ObjectBuilder {
    text().pattern(Some(format!("^[{allowed}]{{1,{most}}}$")))
}

fn map(names: ObjectBuilder, values: ObjectBuilder) -> ObjectBuilder {
    let values: utoipa::openapi::RefOr<utoipa::openapi::Schema> = values.into();
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .property_names(Some(names))
        .additional_properties(Some(AdditionalProperties::RefOr(values)))
}

/// As [`crate::model::time::Span::parse`] reads it. Without look-ahead, which not every generator knows.
fn duration() -> String {
    const SECONDS: &str = "[0-9]+([.,][0-9]{1,9})?S";
    let time = format!("T([0-9]+H([0-9]+M)?({SECONDS})?|[0-9]+M({SECONDS})?|{SECONDS})");
    format!("^P([0-9]+W([0-9]+D)?({time})?|[0-9]+D({time})?|{time})$")
}

/// A name whose last label starts with a letter, an IPv4 or an IPv6 address; a port; the rest as RFC 3986 has it.
fn url() -> String {
    const NAME: &str = r"([A-Za-z0-9_-]+\.)*[A-Za-z_][A-Za-z0-9_-]*\.?";
    const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const V6: &str = "([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}\
        |([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4}){0,3})?::([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4}){0,2})?";
    const PORT: &str =
        "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";
    const REST: &str = "([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*";
    format!(r"^https?://({NAME}|({BYTE}\.){{3}}{BYTE}|\[({V6})\])(:{PORT})?([/?]{REST})?$")
}

/// Base64 of at least one byte, whose last character holds no bits beyond the last byte.
fn secret() -> String {
    const ONE: &str = "[A-Za-z0-9+/]";
    const MOST: usize = MAX_SECRET_BYTES / 3;
    format!(
        "^(whsec_)?(({ONE}{{4}}){{1,{MOST}}}|({ONE}{{4}}){{0,{MOST}}}({ONE}[AQgw]==|{ONE}{{2}}[AEIMQUYcgkosw048]=))$"
    )
}

/// All names. Not as an `enum`: code generators would make 600 constants of it, some of one name (`GMT+1`, `GMT-1`).
fn zone() -> String {
    format!("^({})$", chrono_tz::TZ_VARIANTS.map(chrono_tz::Tz::name).join("|").replace('+', "\\+"))
}
