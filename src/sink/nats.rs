//! One attempt at a subject of NATS: published with one structured CloudEvent as its body.
//!
//! In core NATS it is taken when the server has answered a `PING` that followed it; with JetStream, when a stream has
//! acknowledged it, under the delivery id as `Nats-Msg-Id`. Every event names an inbox for replies, so that the server says
//! when nobody gets it.
//!
//! The protocol is spoken here (`wire.rs`), on a connection that [`Dialer`] made: the usual client connects by itself, also
//! to servers that the broker names, and does not tell of the `PONG`.

mod wire;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::codec::FramedRead;

use self::wire::{Connect, Info, Reader, Said};
use super::broker::{Broker, Message, NotConnected};
use super::dial::{Dialer, Io};
use super::{Outcome, event};
use crate::model::place::Nats;
use crate::model::timer::AttemptResult;

/// The most events that are written together, before one `PING`.
const BATCH: usize = 64;

/// The most events that wait for the connection.
const WAITING: usize = 256;

/// JetStream's words for an event that is larger than the stream allows (its `err_code`).
const TOO_LARGE: u32 = 10054;

/// A connection to a server, for one subject.
pub struct Connection {
    events: mpsc::Sender<(u64, Vec<u8>)>,
    next: AtomicU64,
    shared: Arc<Shared>,
    /// Reads and writes it; ends with it.
    driver: JoinHandle<()>,
    place: Nats,
}

/// What the attempts and the driver of a connection share.
struct Shared {
    waiting: Mutex<Waiting>,
    /// Where replies go: this, a dot and the number of the event.
    inbox: String,
    /// A stream acknowledges events, not the server by itself.
    jetstream: bool,
    max_payload: AtomicUsize,
    /// The server wants its clients to go.
    leaving: AtomicBool,
    /// The server asked whether this client is there.
    asked: Notify,
}

#[derive(Default)]
struct Waiting {
    /// Who waits for an answer, by the number of the event.
    answers: HashMap<u64, oneshot::Sender<Answer>>,
    /// What was written before each `PING` that has no `PONG` yet, the oldest first.
    written: VecDeque<Written>,
    /// The server's last words of trouble.
    trouble: Option<String>,
}

struct Written {
    events: Vec<u64>,
    /// Why the server does not let this user publish: it says so before the `PONG`.
    refused: Option<String>,
}

/// What became of an event.
enum Answer {
    /// The server has handled it.
    Handled,
    /// It did not let it pass.
    Refused(String),
    /// It gave it to nobody.
    Nobody,
    /// A stream has answered.
    Acknowledged(Outcome),
}

impl Connection {
    /// Connects, encrypts the connection where the URL says so, and logs in.
    pub async fn open(place: &Nats, dialer: &Dialer) -> Result<Self, NotConnected> {
        let address = &place.url;
        let mut plain = FramedRead::new(dialer.open_plain(address).await?, Reader);
        let info = match heard(plain.next().await)? {
            Said::Info(info) => info,
            _ => return Err(NotConnected::NotReached("no connection: there is no NATS server".into())),
        };
        let io: Box<dyn Io> = match (address.is_tls(), info.tls_required, info.tls_available) {
            (false, false, _) => Box::new(plain.into_inner()),
            (false, true, _) => {
                let detail = "the server talks with TLS only: write tls:// in the URL";
                return Err(NotConnected::NotAllowed(detail.into()));
            }
            // What came before the encryption might be anybody's.
            (true, ..) if !plain.read_buffer().is_empty() => {
                return Err(NotConnected::NotReached("no connection with TLS: the server talks on".into()));
            }
            (true, true, _) | (true, _, true) => dialer.encrypt(address, plain.into_inner()).await?,
            (true, false, false) => {
                return Err(NotConnected::NotReached("no connection with TLS: the server has none".into()));
            }
        };
        if !info.headers {
            return Err(NotConnected::NotAllowed(
                "the server knows no headers; NATS has them since 2.2".into(),
            ));
        }
        let (reader, mut writer) = tokio::io::split(io);
        let inbox = format!("_INBOX.{}", uuid::Uuid::now_v7().simple());
        let hello = format!("{}SUB {inbox}.* 1\r\nPING\r\n", introduction(place).line());
        let sent = async { writer.write_all(hello.as_bytes()).await.and(writer.flush().await) };
        sent.await.map_err(|why| NotConnected::NotReached(format!("no connection: {why}")))?;
        let mut reader = FramedRead::new(reader, Reader);
        greeted(&mut reader).await?;
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            inbox,
            jetstream: place.jetstream,
            max_payload: AtomicUsize::new(usize::MAX),
            leaving: AtomicBool::new(false),
            asked: Notify::new(),
        });
        shared.informed(&info);
        let (events, taken) = mpsc::channel(WAITING);
        let driver = tokio::spawn(drive(reader, writer, taken, Arc::clone(&shared)));
        Ok(Self { events, next: AtomicU64::new(1), shared, driver, place: place.clone() })
    }

    fn answered(&self, answer: Answer) -> Outcome {
        let subject = &self.place.subject;
        match answer {
            Answer::Handled => Outcome::without_answer(AttemptResult::Ok, None),
            Answer::Refused(why) => failed(format!("the user of the URL may not publish: {why}")),
            Answer::Nobody if self.place.jetstream => {
                failed(format!("there is no stream for `{subject}`, or no JetStream"))
            }
            Answer::Nobody => failed(format!("nobody subscribes to `{subject}`, and the server dropped it")),
            Answer::Acknowledged(outcome) => outcome,
        }
    }
}

impl Broker for Connection {
    fn publish<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Outcome> {
        async move {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let body = event::structured(&message.attributes, &message.body);
            let id =
                message.attributes.iter().find(|(name, _)| *name == "id").filter(|_| self.place.jetstream);
            let headers: Vec<(&str, &str)> = [("Content-Type", event::STRUCTURED)]
                .into_iter()
                .chain(id.map(|(_, id)| ("Nats-Msg-Id", id.as_str())))
                .collect();
            let (size, most) = (wire::size(&headers, &body), self.shared.max_payload.load(Ordering::Relaxed));
            if size > most {
                let detail = format!("{size} bytes; the server takes at most {most} (max_payload)");
                return Outcome { gone: true, ..failed(detail) };
            }
            let reply = format!("{}.{number}", self.shared.inbox);
            let bytes = wire::publish(&self.place.subject, Some(&reply), &headers, &body);
            let answer = self.shared.wait(number);
            if self.events.send((number, bytes)).await.is_err() {
                let detail = "the connection has ended before the event was sent";
                return Outcome::without_answer(AttemptResult::Refused, Some(detail.into()));
            }
            match answer.get().await {
                Some(answer) => self.answered(answer),
                None => {
                    let mut detail = "the connection broke before a confirmation came".to_owned();
                    if let Some(trouble) = self.shared.waiting().trouble.clone() {
                        detail = format!("{detail}: {trouble}");
                    }
                    Outcome::without_answer(AttemptResult::Unknown, Some(detail))
                }
            }
        }
        .boxed()
    }

    fn is_closed(&self) -> bool {
        self.driver.is_finished() || self.shared.leaving.load(Ordering::Relaxed)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn informed(&self, info: &Info) {
        if info.max_payload > 0 {
            self.max_payload.store(info.max_payload, Ordering::Relaxed);
        }
        if info.ldm {
            self.leaving.store(true, Ordering::Relaxed);
        }
    }

    /// Waits for the answer to the event of this number.
    fn wait(self: &Arc<Self>, number: u64) -> Awaited {
        let (tell, told) = oneshot::channel();
        self.waiting().answers.insert(number, tell);
        Awaited { told, number, shared: Arc::clone(self) }
    }

    fn tell(&self, number: u64, answer: Answer) {
        if let Some(tell) = self.waiting().answers.remove(&number) {
            // Who has given up does not listen.
            let _ = tell.send(answer);
        }
    }

    /// A `PONG`: the server has handled the oldest of what was written. A stream's acknowledgement may come later.
    fn handled(&self) {
        let Some(Written { events, refused }) = self.waiting().written.pop_front() else { return };
        for number in events {
            match &refused {
                Some(why) => self.tell(number, Answer::Refused(why.clone())),
                None if self.jetstream => {}
                None => self.tell(number, Answer::Handled),
            }
        }
    }

    /// A reply to an event. What is neither the server's word that nobody gets the event nor a stream's acknowledgement is a
    /// subscriber's: it says nothing of what the stream does.
    fn replied(&self, reply: &wire::Message) {
        let number = reply.subject.strip_prefix(&self.inbox).and_then(|rest| rest.strip_prefix('.'));
        let answer = match reply.status {
            Some(503) => Some(Answer::Nobody),
            _ if self.jetstream => acknowledged(&reply.payload).map(Answer::Acknowledged),
            _ => None,
        };
        if let (Some(number), Some(answer)) = (number.and_then(|number| number.parse().ok()), answer) {
            self.tell(number, answer);
        }
    }

    fn trouble(&self, said: String) {
        let mut waiting = self.waiting();
        if said.starts_with("Permissions Violation")
            && let Some(written) = waiting.written.front_mut()
        {
            written.refused = Some(said.clone());
        }
        waiting.trouble = Some(said);
    }
}

/// The answer to one event. Nobody waits for it any more once this is dropped.
struct Awaited {
    told: oneshot::Receiver<Answer>,
    number: u64,
    shared: Arc<Shared>,
}

impl Awaited {
    /// The answer; `None` when the connection ends first.
    async fn get(mut self) -> Option<Answer> {
        (&mut self.told).await.ok()
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.shared.waiting().answers.remove(&self.number);
    }
}

/// A password without a user is a token.
fn introduction(place: &Nats) -> Connect {
    let (user, password) = (place.url.user(), place.url.password());
    let (pass, auth_token) = if user.is_some() { (password, None) } else { (None, password) };
    Connect { user, pass, auth_token, tls_required: place.url.is_tls() }
}

/// Waits until the server lets the client in.
async fn greeted<R: AsyncRead + Unpin>(reader: &mut FramedRead<R, Reader>) -> Result<(), NotConnected> {
    loop {
        match heard(reader.next().await)? {
            Said::Pong => return Ok(()),
            Said::Trouble(said) if said.starts_with("Permissions Violation") => {
                let detail = format!("the user of the URL may not have an inbox for confirmations: {said}");
                return Err(NotConnected::NotAllowed(detail));
            }
            Said::Trouble(said) => {
                let detail = format!("the server does not let this node in: {said}");
                return Err(NotConnected::NotAllowed(detail));
            }
            _ => {}
        }
    }
}

fn heard(said: Option<io::Result<Said>>) -> Result<Said, NotConnected> {
    let why = match said {
        Some(Ok(said)) => return Ok(said),
        Some(Err(why)) => why.to_string(),
        None => "the server closed it".to_owned(),
    };
    Err(NotConnected::NotReached(format!("no connection: {why}")))
}

/// Moves what there is to send and to read, until the connection ends. What has no answer by then is unknown.
async fn drive(
    reader: FramedRead<ReadHalf<Box<dyn Io>>, Reader>,
    writer: impl AsyncWrite + Unpin,
    events: mpsc::Receiver<(u64, Vec<u8>)>,
    shared: Arc<Shared>,
) {
    tokio::select! {
        () = listen(reader, &shared) => {}
        _ = write(writer, events, &shared) => {}
    }
    shared.waiting().answers.clear();
}

/// Takes what the server says, until it says nothing more.
async fn listen(mut reader: FramedRead<ReadHalf<Box<dyn Io>>, Reader>, shared: &Shared) {
    while let Some(Ok(said)) = reader.next().await {
        match said {
            Said::Pong => shared.handled(),
            Said::Message(reply) => shared.replied(&reply),
            Said::Ping => shared.asked.notify_one(),
            Said::Info(info) => shared.informed(&info),
            Said::Trouble(said) => shared.trouble(said),
            Said::Fine => {}
        }
    }
}

/// Writes events, and a `PING` after as many as there are.
async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut events: mpsc::Receiver<(u64, Vec<u8>)>,
    shared: &Shared,
) -> io::Result<()> {
    let (mut batch, mut bytes) = (Vec::with_capacity(BATCH), Vec::new());
    loop {
        tokio::select! {
            taken = events.recv_many(&mut batch, BATCH) => if taken == 0 { return Ok(()) },
            () = shared.asked.notified() => bytes.extend_from_slice(b"PONG\r\n"),
        }
        if !batch.is_empty() {
            let numbers = batch.iter().map(|(number, _)| *number).collect();
            batch.drain(..).for_each(|(_, event): (u64, Vec<u8>)| bytes.extend_from_slice(&event));
            bytes.extend_from_slice(b"PING\r\n");
            // Before it is written: the answer may come at once.
            shared.waiting().written.push_back(Written { events: numbers, refused: None });
        }
        writer.write_all(&bytes).await?;
        writer.flush().await?;
        bytes.clear();
    }
}

/// What a stream says to an event.
#[derive(Deserialize)]
struct Acknowledgement {
    stream: Option<String>,
    seq: Option<u64>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    err_code: u32,
    #[serde(default)]
    description: String,
}

/// What a stream's acknowledgement says; `None` if this is none.
fn acknowledged(reply: &[u8]) -> Option<Outcome> {
    match serde_json::from_slice(reply).ok()? {
        Acknowledgement { error: Some(Refusal { err_code, description }), .. } => {
            let said: String = description.chars().take(200).collect();
            // It will not become smaller.
            let gone = err_code == TOO_LARGE;
            Some(Outcome { gone, ..failed(format!("the stream refused it: {said} ({err_code})")) })
        }
        Acknowledgement { stream: Some(stream), seq: Some(seq), .. } => {
            let reply = Some(format!("{stream} {seq}"));
            Some(Outcome { reply, ..Outcome::without_answer(AttemptResult::Ok, None) })
        }
        _ => None,
    }
}

fn failed(detail: String) -> Outcome {
    Outcome::without_answer(AttemptResult::Failed, Some(detail))
}
