//! What the OpenAPI document says of single values: patterns, lengths, ranges and examples.
//!
//! Each type here stands for one kind of value and exists in the document only; a field names it with
//! `value_type`. Limits are the constants that the checks in [`super::request`] and [`crate::model`] use.
//! Lengths in the document count characters, those of the checks bytes: outside ASCII the check is the tighter one.

use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{KnownFormat, SchemaFormat};

use super::request::{
    MAX_LABEL_NAME, MAX_LABEL_VALUE, MAX_LABELS, MAX_OWNER, MAX_RETRY_ATTEMPTS, MIN_RETRY_ATTEMPTS,
};
use super::timers::read::{DEFAULT_LIST, MAX_LIST};
use crate::model::destination::{MAX_CONCURRENCY, MAX_NAME, MAX_RATE};
use crate::model::id::MAX_ID_LEN;
use crate::model::key::Scope;
use crate::model::operation::{Action, Refusal};
use crate::model::place::{MAX_PLACE_NAME, MAX_TOPIC};
use crate::model::queue::MAX_TIMES;
use crate::model::schedule::{MAX_SCHEDULE_ID, MissedPolicy, Overlap, ScheduleState};
use crate::model::subscription::Lifecycle;
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
    Shift: "An ISO 8601 duration without months or years, with a minus before it for earlier." =
        text().pattern(Some(duration().replacen('^', "^-?", 1))).examples(["PT1H", "-PT15M"]);
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
    Secret: "The key that signs deliveries as Standard Webhooks asks: base64, usually behind `whsec_`. Two with a space between \
             them while a receiver changes over: deliveries are signed with both. Never shown again." =
        text().pattern(Some(secret())).write_only(true).examples(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
    Headers: "Static headers. Not those of the connection and the content, nor `ce-…` and `webhook-…`, which are the \
              service's own. Name and value together have a limit, too." =
        map(name("A-Za-z0-9!#$%&'*+.^_`|~-", MAX_HEADER_BYTES), text().max_length(Some(MAX_HEADER_BYTES - 1)).pattern(Some("^[ -~]*$")))
            .max_properties(Some(MAX_HEADERS)).examples([serde_json::json!({"x-tenant": "shop"})]);
    DestinationName: "A destination's name." =
        text().pattern(Some(format!("^[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{}}}$", MAX_NAME - 1))).examples(["shop-orders"]);
    ScheduleId: "A schedule's id." =
        text().pattern(Some(format!("^[A-Za-z0-9._:-]{{1,{MAX_SCHEDULE_ID}}}$"))).examples(["daily-report"]);
    Cron: "5 fields (minute, hour, day of month, month, day of week), 6 with the second first, or a name such as `@daily`." =
        text().min_length(Some(1)).max_length(Some(256)).examples(["0 9 * * 1-5"]);
    TimeOfDay: "A time of day, to the millisecond." =
        text().pattern(Some(r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,3})?)?$")).examples(["09:00"]);
    MissedWord: "`fire_all` fires those not older than `within`, `fire_once` the latest of those, `skip` none." =
        words(MissedPolicy::ALL.map(MissedPolicy::word));
    OverlapWord: "`skip`: the nominal time is skipped. `queue_one`: one waits until the one before has ended. `allow`: it fires \
                  all the same." = words(Overlap::ALL.map(Overlap::word));
    ScheduleStateWord: "`paused`: its nominal times are skipped. `ended`: there is none left." =
        words(ScheduleState::ALL.map(ScheduleState::word));
    SkippedWord: "`missed`: nobody could fire it for more than a minute. `overlap`: the occurrence before had not ended. \
                  `paused`: its schedule was." = words(["missed", "overlap", "paused"]);
    SchedulePatch: "Parts of a schedule, merged over what there is (RFC 7396): `null` removes." =
        ObjectBuilder::new().schema_type(Type::Object).examples([serde_json::json!({"cron": "0 10 * * 1-5"})]);
    QueueName: "A queue's name." =
        text().pattern(Some(format!("^[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{}}}$", MAX_NAME - 1))).examples(["reports"]);
    WorkerName: "A worker or a group, by the name that it is known by." =
        text().pattern(Some(format!("^[A-Za-z0-9._:-]{{1,{MAX_ID_LEN}}}$"))).examples(["w1"]);
    DispatchTo: "`any`, `worker:NAME` or `group:NAME`." =
        text().pattern(Some(format!("^(any|(worker|group):[A-Za-z0-9._:-]{{1,{MAX_ID_LEN}}})$"))).examples(["group:g7"]);
    DispatchTimes: "How often it is given out in all." =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(MAX_TIMES));
    LeaseToken: "What an item is settled with." = text().pattern(Some("^lse_[A-Za-z0-9_-]{58}[AEIMQUYcgkosw048]$"));
    SettleAction: "`ack`: it is done. `retry`: not now. `dead`: never again. `extend`: its worker keeps it." =
        words(["ack", "retry", "dead", "extend"]);
    Fingerprint: "The SHA-256 of a certificate." = text().pattern(Some("^[0-9a-f]{64}$"));
    Pem: "PEM." = text().max_length(Some(32 * 1024)).pattern(Some("-----BEGIN CERTIFICATE-----"))
        .examples(["-----BEGIN CERTIFICATE-----\n…\n-----END CERTIFICATE-----\n"]);
    KeyId: "A key's id, which is no secret." = text().pattern(Some("^key_[0-9a-f]{16}$")).examples(["key_0123456789abcdef"]);
    KeyName: "What a key is called." =
        text().pattern(Some(format!("^[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{}}}$", MAX_NAME - 1))).examples(["shop-backend"]);
    KeyText: "The key: what follows `Bearer ` in `Authorization`." =
        text().pattern(Some("^mainspring_[0-9a-f]{16}_[A-Za-z0-9_-]{43}$"));
    NamespaceName: "The name of a namespace." =
        text().pattern(Some(r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$")).examples(["billing"]);
    Network: "A network, an address, or `public` for all public addresses." =
        text().pattern(Some(r"^(public|[0-9A-Fa-f:.]{2,45}(/[0-9]{1,3})?)$")).examples(["10.1.0.0/16"]);
    NamespaceOrAll: "A namespace, or `*` for all." =
        text().pattern(Some(r"^(\*|[A-Za-z0-9._-]{1,64})$")).examples(["*"]);
    Scopes: "`view` reads. `register` makes, changes and cancels timers too, leases and settles. `operate` changes destinations, \
             queues, schedules, templates, subscriptions and operations too. `admin` makes and revokes keys too." =
        ArrayBuilder::new().items(words(Scope::ALL.map(Scope::word))).min_items(Some(1)).examples([serde_json::json!(["register"])]);
    AuditAction: "The kind of a thing, and the verb." =
        text().min_length(Some(1)).max_length(Some(64)).pattern(Some("^[a-z_.]+$")).examples(["destination.put"]);
    TemplateName: "A template's name." =
        text().pattern(Some(format!("^[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{}}}$", MAX_NAME - 1))).examples(["order-review"]);
    JsonSchema: "A JSON Schema of the dialect 2020-12, at most 64 KiB. References are local (`#…`); `$schema` is left out or names \
                 the dialect; patterns are without look-around and back references; `format` is not checked." =
        ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::Object, Type::Boolean]))
            .examples([serde_json::json!({"type": "object", "required": ["order"]})]);
    TemplateDefaults: "A JSON object that data is merged over." =
        ObjectBuilder::new().schema_type(Type::Object).examples([serde_json::json!({"kind": "review"})]);
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
    MqttVersion: "3 is 3.1.1." = ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some([3, 5]));
    TopicName: "A topic of MQTT, without wildcards and control characters; at most 255 bytes." =
        text().min_length(Some(1)).max_length(Some(MAX_PLACE_NAME)).pattern(Some(r"^[^+#\u0000-\u001f\u007f-\u009f]*$")).examples(["shop/orders"]);
    NatsUrl: "`nats` or, with TLS, `tls`; with user and password, or with a token in the place of the password and no user, where \
              there are any. The password or token is never shown again." =
        text().format(Some(SchemaFormat::Custom("uri".into()))).max_length(Some(MAX_URL))
            .pattern(Some("^(nats|tls)://[^?#]+$")).examples(["tls://shop:secret@nats.example"]);
    SubjectName: "A subject of NATS: words with dots between them, without wildcards and spaces; at most 255 bytes." =
        text().min_length(Some(1)).max_length(Some(MAX_PLACE_NAME)).pattern(Some(r"^[^\s.\u0000-\u001f\u007f-\u009f]+(\.[^\s.\u0000-\u001f\u007f-\u009f]+)*$")).examples(["shop.orders"]);
    Brokers: "Hosts with their ports, separated by commas; the port is 9092 where it is left out." =
        text().min_length(Some(1)).max_length(Some(MAX_URL)).pattern(Some(r"^[^\s/@?#]+(, *[^\s/@?#]+)*$")).examples(["kafka-1.example:9092,kafka-2.example:9092"]);
    KafkaTopic: "A topic of Kafka." =
        text().min_length(Some(1)).max_length(Some(MAX_TOPIC)).pattern(Some("^[A-Za-z0-9_-][A-Za-z0-9._-]*$")).examples(["shop.orders"]);
    KafkaMechanism: "How a password is shown to Kafka." = words(["plain", "scram-sha-256", "scram-sha-512"]);
    KafkaPassword: "Never shown again." = text().max_length(Some(MAX_PLACE_NAME)).write_only(true).examples(["secret"]);
    StreamName: "A key of Redis, without control characters." =
        text().min_length(Some(1)).max_length(Some(MAX_PLACE_NAME)).pattern(Some(NO_CONTROLS)).examples(["shop:viewings"]);
    ShownHeaders: "Headers by name; `null` where the value is not shown." =
        map(text(), text().schema_type(SchemaType::from_iter([Type::String, Type::Null])));
    DestinationState: "`failing`: its last attempts failed, and it is tried one at a time. `paused`: what falls due is kept." =
        words(["ok", "failing", "paused"]);
    DestinationPatch: "Parts of a destination, merged over what there is (RFC 7396): `null` removes." =
        ObjectBuilder::new().schema_type(Type::Object).examples([serde_json::json!({"rate_per_second": 500})]);
    ActionWord: "What is done to each timer." = words(Action::ALL.map(Action::word));
    OperationId: "An operation's id." = text().pattern(Some("^op_[0-9a-f]{32}$"));
    OperationState: "`running`: it works through its filter, or waits for a node, or for its turn: of those that `shift` or `fire` \
                     timers one goes on at a time. `stopped`: a caller ended it early. `failed`: it could not go on; `failure` \
                     says why." =
        words(crate::model::operation::OperationState::ALL.map(crate::model::operation::OperationState::word));
    OperationFilter: "The filters of the list of timers, as texts: `id` (or an array of ids), `state`, `owner`, `receiver`, \
                      `destination`, `queue`, `to`, `worker`, `schedule`, `label.NAME`, `due_after`, `due_before`." =
        ObjectBuilder::new().schema_type(Type::Object).min_properties(Some(1))
            .examples([serde_json::json!({"destination": "shop-orders", "label.app": "shop"})]);
    RefusedCounts: "How many, by reason. `in_flight`: an attempt is under way, or the outcome of one is not known; a cancel is \
                    recorded then, and no further attempt starts. `id_taken`: a live timer has its id again. `superseded`: its id was registered or \
                    re-driven again since, and that timer has ended. `no_destination`: its destination was removed. \
                    `removed`: its history was removed meanwhile. `unreadable`: another version wrote it." =
        map(text().enum_values(Some(Refusal::ALL.map(Refusal::word))), ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)));
    LifecycleWords: "Kinds of lifecycle events, or `*` alone for all. Those of queues are known, and nothing makes \
                     them yet. Every subscription also gets `mainspring.subscription.dropped.v1`, with the body `{\"subscription\": \
                     NAME, \"dropped\": COUNT, \"at\": TIME}`, when events of it were dropped because too many waited." =
        list(words_of(std::iter::once("*").chain(Lifecycle::asked_for().map(Lifecycle::word))))
            .examples([serde_json::json!(["timer.registered", "timer.delivered"])]);
    EventFilter: "Fields of the list of timers by name." =
        ObjectBuilder::new().schema_type(Type::Object).examples([serde_json::json!({"label.app": "shop"})]);
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
        words(["registered", "promoted", "replayed", "due", "claimed", "leased", "attempt", "delivered", "cancelled", "expired", "dead"]);
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

fn words_of(words: impl Iterator<Item = &'static str>) -> ObjectBuilder {
    text().enum_values(Some(words))
}

fn list(items: ObjectBuilder) -> ArrayBuilder {
    ArrayBuilder::new().items(items).min_items(Some(1)).unique_items(true)
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
    let one = format!(
        "(whsec_)?(({ONE}{{4}}){{1,{MOST}}}|({ONE}{{4}}){{0,{MOST}}}({ONE}[AQgw]==|{ONE}{{2}}[AEIMQUYcgkosw048]=))"
    );
    format!("^{one}( {one})?$")
}

/// All names. Not as an `enum`: code generators would make 600 constants of it, some of one name (`GMT+1`, `GMT-1`).
fn zone() -> String {
    format!("^({})$", chrono_tz::TZ_VARIANTS.map(chrono_tz::Tz::name).join("|").replace('+', "\\+"))
}
