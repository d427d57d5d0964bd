//! Brokers of a tool's own, one place on each, and a publisher that has no node before it.

use std::any::Any;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use futures::{StreamExt, stream};
#[cfg(feature = "amqp")]
use lapin::{options::BasicConsumeOptions, types::FieldTable};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::process::Process;
use super::servers::{Keeps, Mosquitto, Nats, RabbitMq, Redis, Tansu};
use crate::clock::Monotonic;
use crate::config::Config;
use crate::model::place::Place;
use crate::model::timer::AttemptResult;
use crate::sink;

/// The name of everything at a broker.
pub const NAME: &str = "mainspring";

/// What a destination can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A receiver of the tool's own.
    Webhook,
    /// A stream of Redis.
    RedisStream,
    /// A queue of RabbitMQ.
    Amqp,
    /// A topic of Mosquitto, by MQTT 5, with a subscriber.
    Mqtt,
    /// The same by MQTT 3.1.1.
    Mqtt3,
    /// A subject of NATS with a subscriber.
    Nats,
    /// A subject of NATS that a stream keeps, in files.
    Jetstream,
    /// A topic of Tansu, which speaks Kafka's protocol and keeps it in memory.
    Kafka,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Webhook,
        Self::RedisStream,
        Self::Amqp,
        Self::Mqtt,
        Self::Mqtt3,
        Self::Nats,
        Self::Jetstream,
        Self::Kafka,
    ];

    /// Its word in the report.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::RedisStream => "redis_stream",
            Self::Amqp => "amqp",
            Self::Mqtt => "mqtt",
            Self::Mqtt3 => "mqtt 3.1.1",
            Self::Nats => "nats",
            Self::Jetstream => "jetstream",
            Self::Kafka => "kafka",
        }
    }

    /// The name of its kind, as in a request for a destination.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::RedisStream => "redis_stream",
            Self::Amqp => "amqp",
            Self::Mqtt | Self::Mqtt3 => "mqtt",
            Self::Nats | Self::Jetstream => "nats",
            Self::Kafka => "kafka",
        }
    }

    /// Fails, with the reason, if this build or this machine does not have it.
    pub fn check(self) -> anyhow::Result<()> {
        ensure!(
            self.is_built(),
            "this build has no {}: build it with --features {}",
            self.word(),
            self.key()
        );
        match self {
            Self::Webhook => Ok(()),
            Self::RedisStream => Redis::check(),
            Self::Amqp => RabbitMq::check(),
            Self::Mqtt | Self::Mqtt3 => Mosquitto::check(),
            Self::Nats | Self::Jetstream => Nats::check(),
            Self::Kafka => Tansu::check(),
        }
    }

    /// Whether this build has it.
    pub const fn is_built(self) -> bool {
        match self {
            Self::Webhook | Self::RedisStream => true,
            Self::Amqp => cfg!(feature = "amqp"),
            Self::Mqtt | Self::Mqtt3 => cfg!(feature = "mqtt"),
            Self::Nats | Self::Jetstream => cfg!(feature = "nats"),
            Self::Kafka => cfg!(feature = "kafka"),
        }
    }
}

/// How a broker refuses what it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// What keeps the events is at its limit.
    Limit,
    /// It is short of disk and takes nothing from any publisher: RabbitMQ's alarm.
    Alarm,
}

/// A broker with one place, or a webhook without a broker. Dropping it ends the broker.
pub struct Broker {
    /// What it is.
    pub kind: Kind,
    /// The place, as in a request for a destination.
    pub place: Value,
    server: Server,
    /// Who listens, where what nobody listens to is dropped.
    audience: Vec<Box<dyn Any + Send + Sync>>,
}

enum Server {
    None,
    Redis(Redis),
    RabbitMq(RabbitMq),
    Mosquitto(Mosquitto),
    Nats(Nats),
    Tansu(Tansu),
}

/// Does the same with the server of a broker, whichever it is.
macro_rules! with_server {
    ($server:expr, $one:ident => $done:expr) => {
        match $server {
            Server::None => bail!("a webhook has no broker"),
            Server::Redis($one) => $done,
            Server::RabbitMq($one) => $done,
            Server::Mosquitto($one) => $done,
            Server::Nats($one) => $done,
            Server::Tansu($one) => $done,
        }
    };
}

impl Broker {
    /// A receiver that is there already.
    pub fn webhook(url: &str) -> Self {
        Self::of(Kind::Webhook, json!({"webhook": {"url": url}}), Server::None)
    }

    /// Starts a broker in `dir` and makes a place there. What it has confirmed it still has when it was killed and started
    /// again, but for Mosquitto and Tansu, which keep it in memory.
    pub async fn start(kind: Kind, dir: &Path) -> anyhow::Result<Self> {
        let (place, server) = match kind {
            Kind::Webhook => bail!("a webhook has no broker"),
            Kind::RedisStream => {
                // To a Redis without a password only 127.0.0.1 is this machine, and nodes of a drill have other addresses. It
                // listens on the loopback.
                let options = ["--protected-mode", "no"].map(str::to_owned).to_vec();
                let redis = Redis::start_with(dir, None, Keeps::Writes, options).await?;
                (json!({"url": redis.url(), "stream": NAME}), Server::Redis(redis))
            }
            Kind::Amqp => {
                let rabbit = RabbitMq::start(dir, &[]).await?;
                // A policy that brings both a limit and the refusal sets the limit first, and in between the queue drops what
                // it has confirmed.
                let refuses = "[{<<\"x-overflow\">>, longstr, <<\"reject-publish\">>}]";
                let declare = format!(
                    "rabbit_amqqueue:declare(rabbit_misc:r(<<\"/\">>, queue, <<\"{NAME}\">>), true, false, {refuses}, none, <<\"{NAME}\">>)."
                );
                run(rabbit.ctl(&["eval", &declare])?).await?;
                let url = url("amqp", rabbit.address());
                (json!({"url": url, "exchange": "", "routing_key": NAME}), Server::RabbitMq(rabbit))
            }
            Kind::Mqtt | Kind::Mqtt3 => {
                let mosquitto = Mosquitto::start(dir, &["max_queued_messages 1000000".to_owned()]).await?;
                let version = if kind == Kind::Mqtt { 5 } else { 3 };
                let url = url("mqtt", mosquitto.address());
                (
                    json!({"url": url, "topic": NAME, "qos": 1, "version": version}),
                    Server::Mosquitto(mosquitto),
                )
            }
            Kind::Nats | Kind::Jetstream => {
                let nats = Nats::start(dir, "", "").await?;
                let jetstream = kind == Kind::Jetstream;
                if jetstream {
                    let mut client = NatsClient::connect(nats.address()).await?;
                    client.api("STREAM.CREATE", &stream_of(UNLIMITED)).await?;
                }
                let url = url("nats", nats.address());
                (json!({"url": url, "subject": NAME, "jetstream": jetstream}), Server::Nats(nats))
            }
            Kind::Kafka => {
                let tansu = Tansu::start(dir, None).await?;
                run(tansu.create_topic(NAME, PARTITIONS)).await?;
                (json!({"brokers": tansu.address().to_string(), "topic": NAME}), Server::Tansu(tansu))
            }
        };
        Ok(Self::of(kind, json!({kind.key(): place}), server))
    }

    fn of(kind: Kind, place: Value, server: Server) -> Self {
        Self { kind, place, server, audience: Vec::new() }
    }

    /// Where it listens. Fails for a webhook.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(with_server!(&self.server, one => one.address()))
    }

    /// Has somebody listen who throws away what comes, where a broker drops what nobody listens to, and at a queue, which
    /// would grow: a RabbitMQ with a long queue stands still at times.
    pub async fn listen(&mut self) -> anyhow::Result<()> {
        match &self.server {
            #[cfg(feature = "amqp")]
            Server::RabbitMq(_) => {
                let place: Place = serde_json::from_value(self.place.clone()).context("the place")?;
                let connection = sink::amqp_connection(&Arc::default(), &place).await?;
                let channel = connection.create_channel().await?;
                let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
                let came =
                    channel.basic_consume(NAME.into(), "".into(), options, FieldTable::default()).await?;
                let listening = AbortOnDropHandle::new(tokio::spawn(came.for_each(async |_| ())));
                self.audience.push(Box::new((listening, connection)));
            }
            Server::Mosquitto(mosquitto) => {
                let port = mosquitto.address().port().to_string();
                let audience = |more: &[&str]| {
                    let mut command = Command::new("mosquitto_sub");
                    command.args(["-V", "5", "-q", "1", "-h", "127.0.0.1", "-p", &port, "-t", NAME]);
                    command.args(["-u", Mosquitto::USER, "-P", Mosquitto::PASSWORD]);
                    // A session that outlives its connection.
                    command.args(["-i", "audience", "-c", "-x", "3600"]).args(more);
                    command
                };
                // This one ends when its session has the subscription; so nothing is dropped before the other is there.
                run(audience(&["-E"])).await?;
                let mut command = audience(&[]);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                self.audience.push(Box::new(Process::spawn(&mut command)?));
            }
            Server::Nats(nats) if self.kind == Kind::Nats => {
                let listening = NatsClient::connect(nats.address()).await?.listen().await?;
                self.audience.push(Box::new(listening));
            }
            _ => {}
        }
        Ok(())
    }

    /// SIGKILL; returns when it is gone.
    pub async fn kill(&self) -> anyhow::Result<()> {
        with_server!(&self.server, one => one.kill().await)
    }

    /// Starts it again after it was killed, with what it kept; returns when it takes connections.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        with_server!(&mut self.server, one => one.start_again().await)
    }

    /// Stops it in its tracks: connections stay, nothing is answered.
    pub fn stop(&self) -> anyhow::Result<()> {
        with_server!(&self.server, one => one.stop())
    }

    /// Lets it go on where it was stopped.
    pub fn resume(&self) -> anyhow::Result<()> {
        with_server!(&self.server, one => one.resume())
    }

    /// From now on it refuses what it is sent; what it has can be read. Fails for kinds that have no such limit.
    pub async fn fill(&self, full: Full) -> anyhow::Result<()> {
        match (&self.server, full) {
            (Server::Redis(redis), Full::Limit) => redis.ask(&["CONFIG", "SET", "maxmemory", "1"]).await,
            (Server::Nats(nats), Full::Limit) => limit_stream(nats, 1).await,
            (Server::RabbitMq(rabbit), Full::Limit) => {
                run(rabbit.ctl(&["set_policy", "full", NAME, r#"{"max-length": 0}"#])?).await
            }
            (Server::RabbitMq(rabbit), Full::Alarm) => {
                run(rabbit.ctl(&["set_disk_free_limit", "1000000GB"])?).await
            }
            _ => bail!("{} has no such limit", self.kind.word()),
        }
    }

    /// From now on it takes what it is sent again.
    pub async fn make_room(&self, full: Full) -> anyhow::Result<()> {
        match (&self.server, full) {
            (Server::Redis(redis), Full::Limit) => redis.ask(&["CONFIG", "SET", "maxmemory", "0"]).await,
            (Server::Nats(nats), Full::Limit) => limit_stream(nats, UNLIMITED).await,
            (Server::RabbitMq(rabbit), Full::Limit) => run(rabbit.ctl(&["clear_policy", "full"])?).await,
            (Server::RabbitMq(rabbit), Full::Alarm) => {
                run(rabbit.ctl(&["set_disk_free_limit", "1MB"])?).await
            }
            _ => bail!("{} has no such limit", self.kind.word()),
        }
    }

    /// Publishes `count` events of this size as fast as they are confirmed, with at most so many under way, and without a
    /// server. Returns how many a second; `None` for a webhook.
    pub async fn bare(&self, count: u64, bytes: usize, under_way: usize) -> anyhow::Result<Option<f64>> {
        let place: Place = serde_json::from_value(self.place.clone()).context("the place")?;
        if matches!(place, Place::Webhook(_)) {
            return Ok(None);
        }
        let config = Arc::new(Config::default());
        let (connection, limit) = (sink::connection(&config, &place).await?, config.webhook.timeout.get());
        let body = json!({"p": "x".repeat(bytes)}).to_string().into_bytes();
        let publish = async |number: u64| {
            let mut attributes = vec![("specversion", "1.0".to_owned()), ("type", "bench".to_owned())];
            attributes.extend([("source", "/bench".to_owned()), ("id", format!("bare-{number}"))]);
            attributes.push(("subject", number.to_string()));
            let until = Monotonic::now().plus(limit);
            connection.publish(&sink::Message { attributes, body: body.clone(), until }).await
        };
        let began = Monotonic::now();
        let mut outcomes = stream::iter(0..count).map(publish).buffer_unordered(under_way);
        while let Some(outcome) = outcomes.next().await {
            ensure!(outcome.result == AttemptResult::Ok, "an event was not taken: {:?}", outcome.detail);
        }
        Ok(Some(count as f64 / began.elapsed().as_secs_f64()))
    }
}

/// How many partitions the topic has.
pub const PARTITIONS: u32 = 3;

/// No limit to the messages of a stream.
const UNLIMITED: i64 = -1;

/// The stream that keeps the subject, with at most so many messages; more are refused.
fn stream_of(most: i64) -> Value {
    json!({"name": NAME, "subjects": [NAME], "storage": "file", "max_msgs": most, "discard": "new"})
}

async fn limit_stream(nats: &Nats, most: i64) -> anyhow::Result<()> {
    NatsClient::connect(nats.address()).await?.api("STREAM.UPDATE", &stream_of(most)).await.map(drop)
}

/// The users of the throwaway brokers have one name and one password.
fn url(scheme: &str, address: SocketAddr) -> String {
    format!("{scheme}://shop:t0p%2Fsecret@{address}")
}

async fn run(mut command: Command) -> anyhow::Result<()> {
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A client of NATS that asks one thing at a time.
pub struct NatsClient {
    stream: BufReader<TcpStream>,
    /// Where its answers come: nobody else's do.
    answers: String,
}

impl NatsClient {
    /// Connects as the user that may do everything.
    pub async fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let answers = format!("answers.{}", uuid::Uuid::now_v7().simple());
        let mut client = Self { stream: BufReader::new(TcpStream::connect(address).await?), answers };
        let who = json!({"user": Nats::USER, "pass": Nats::PASSWORD, "verbose": false, "pedantic": false});
        client.say(&format!("CONNECT {who}\r\nSUB {} 1\r\nPING\r\n", client.answers)).await?;
        while client.line().await? != "PONG" {}
        Ok(client)
    }

    /// Asks JetStream about the stream; returns its answer. Fails with its error.
    pub async fn api(&mut self, what: &str, body: &Value) -> anyhow::Result<Value> {
        let body = body.to_string();
        let line = format!("PUB $JS.API.{what}.{NAME} {} {}", self.answers, body.len());
        self.say(&format!("{line}\r\n{body}\r\n")).await?;
        loop {
            let line = self.line().await?;
            let Some(("MSG", rest)) = line.split_once(' ') else { continue };
            let bytes = rest.rsplit(' ').next().and_then(|bytes| bytes.parse::<usize>().ok());
            let mut answer = vec![0; bytes.context("a message has a length")? + 2];
            self.stream.read_exact(&mut answer).await?;
            let answer: Value = serde_json::from_slice(&answer)?;
            match answer.get("error") {
                Some(error) => return Err(ApiError(error.clone()).into()),
                None => return Ok(answer),
            }
        }
    }

    /// Throws away what comes to the subject, for as long as the handle is kept.
    async fn listen(mut self) -> anyhow::Result<AbortOnDropHandle<()>> {
        self.say(&format!("SUB {NAME} 2\r\nPING\r\n")).await?;
        while self.line().await? != "PONG" {}
        Ok(AbortOnDropHandle::new(tokio::spawn(async move {
            let mut chunk = Vec::new();
            // Pings come on lines of their own.
            while let Ok(1..) = self.stream.read_until(b'\n', &mut chunk).await {
                if chunk == b"PING\r\n" && self.say("PONG\r\n").await.is_err() {
                    return;
                }
                chunk.clear();
            }
        })))
    }

    async fn say(&mut self, words: &str) -> anyhow::Result<()> {
        Ok(self.stream.write_all(words.as_bytes()).await?)
    }

    /// The next line. Pings are answered on the way.
    async fn line(&mut self) -> anyhow::Result<String> {
        loop {
            let mut line = String::new();
            ensure!(self.stream.read_line(&mut line).await? > 0, "NATS closed the connection");
            let line = line.trim_end();
            match line.split(' ').next() {
                Some("PING") => self.say("PONG\r\n").await?,
                Some("-ERR") => bail!("NATS: {line}"),
                _ => return Ok(line.to_owned()),
            }
        }
    }
}

/// What JetStream answers when it does not do what it is asked.
#[derive(Debug, thiserror::Error)]
#[error("JetStream: {0}")]
pub struct ApiError(Value);

impl ApiError {
    /// Whether there is no such message.
    pub fn is_not_found(&self) -> bool {
        self.0["code"] == 404
    }
}
