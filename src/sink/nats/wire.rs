//! What a NATS server and a publisher say to each other.
//!
//! Source: the client protocol of NATS, with headers. Lines end in CR LF; a message follows its line.

use std::io;

use serde::{Deserialize, Serialize};
use tokio_util::bytes::{Buf, BytesMut};
use tokio_util::codec::Decoder;

/// The longest line of a server: its `INFO` lists the servers of a cluster.
const LONGEST_LINE: usize = 256 * 1024;

/// The largest message that is read, in bytes: only confirmations are asked for.
const LARGEST_MESSAGE: usize = 1024 * 1024;

/// What a server says.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// About itself: first of all, and again when something changes.
    Info(Info),
    /// A message to this client.
    Message(Message),
    /// Asks whether the client is there.
    Ping,
    /// Everything up to a `PING` has been handled.
    Pong,
    /// Nothing that matters here.
    Fine,
    /// What is wrong, in the server's words.
    Trouble(String),
}

/// A message to this client.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// Its subject.
    pub subject: String,
    /// The status in its headers, such as 503: nobody listens.
    pub status: Option<u16>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// What a server says about itself. Other servers that it names are not used: their addresses are unchecked.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Info {
    /// The largest message that it takes, in bytes, headers included.
    pub max_payload: usize,
    /// Whether it knows headers.
    pub headers: bool,
    /// Whether it talks to nobody without TLS.
    pub tls_required: bool,
    /// Whether it can talk with TLS.
    pub tls_available: bool,
    /// It is about to stop, and wants its clients to go.
    pub ldm: bool,
}

/// How a client introduces itself.
#[derive(Serialize)]
pub struct Connect {
    /// Who it is; left out for a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The user's password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass: Option<String>,
    /// What lets in without a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_token: Option<String>,
    /// Whether the connection is encrypted.
    pub tls_required: bool,
}

impl Connect {
    /// The line of it.
    pub fn line(&self) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            #[serde(flatten)]
            who: &'a Connect,
            verbose: bool,
            pedantic: bool,
            echo: bool,
            headers: bool,
            // A message that nobody gets is answered by status 503.
            no_responders: bool,
            name: &'static str,
            lang: &'static str,
            version: &'static str,
            // The server may send its `INFO` again.
            protocol: u8,
        }
        let line = Line {
            who: self,
            verbose: false,
            pedantic: false,
            echo: false,
            headers: true,
            no_responders: true,
            name: "mainspring",
            lang: "rust",
            version: env!("CARGO_PKG_VERSION"),
            protocol: 1,
        };
        format!("CONNECT {}\r\n", serde_json::to_string(&line).unwrap_or_default())
    }
}

/// The bytes that publish a message: headers, then the payload.
pub fn publish(subject: &str, reply: Option<&str>, headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    let headers = header_block(headers);
    let line = format!(
        "HPUB {subject} {}{}{} {}\r\n",
        reply.unwrap_or_default(),
        if reply.is_some() { " " } else { "" },
        headers.len(),
        headers.len() + payload.len()
    );
    [line.as_bytes(), headers.as_bytes(), payload, b"\r\n"].concat()
}

/// The size of a message as a server counts it.
pub fn size(headers: &[(&str, &str)], payload: &[u8]) -> usize {
    header_block(headers).len() + payload.len()
}

fn header_block(headers: &[(&str, &str)]) -> String {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("NATS/1.0\r\n{lines}\r\n")
}

/// Reads what a server says.
#[derive(Debug, Default)]
pub struct Reader;

impl Decoder for Reader {
    type Item = Said;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Said>> {
        let Some(end) = buffer.iter().take(LONGEST_LINE).position(|&byte| byte == b'\n') else {
            return if buffer.len() < LONGEST_LINE {
                Ok(None)
            } else {
                Err(strange("a line without an end"))
            };
        };
        let line = std::str::from_utf8(&buffer[..end]).map_err(|_| strange("a line that is no text"))?.trim();
        let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let said = match word {
            "PING" => Said::Ping,
            "PONG" => Said::Pong,
            "+OK" => Said::Fine,
            "-ERR" => Said::Trouble(rest.trim().trim_matches('\'').chars().take(200).collect()),
            "INFO" => Said::Info(serde_json::from_str(rest).map_err(io::Error::other)?),
            "MSG" | "HMSG" => {
                let Announced { subject, headers, total } = announced(word, rest)?;
                let (begin, subject) = (end + 1, subject.to_owned());
                if buffer.len() < begin + total + 2 {
                    buffer.reserve(begin + total + 2 - buffer.len());
                    return Ok(None);
                }
                let status = status(&buffer[begin..begin + headers]);
                let payload = buffer[begin + headers..begin + total].to_vec();
                buffer.advance(begin + total + 2);
                return Ok(Some(Said::Message(Message { subject, status, payload })));
            }
            _ => return Err(strange("a word that is unknown")),
        };
        buffer.advance(end + 1);
        Ok(Some(said))
    }
}

/// The line before a message.
struct Announced<'a> {
    subject: &'a str,
    /// How many of its bytes are headers.
    headers: usize,
    /// How many it has in all.
    total: usize,
}

/// `MSG subject sid [reply-to] bytes`, `HMSG subject sid [reply-to] headers bytes`.
fn announced<'a>(word: &str, rest: &'a str) -> io::Result<Announced<'a>> {
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |back: usize| fields.iter().rev().nth(back).and_then(|text| text.parse::<usize>().ok());
    let headers = if word == "HMSG" { number(1) } else { Some(0) };
    match (fields.first(), headers, number(0)) {
        (Some(subject), Some(headers), Some(total)) if headers <= total && total <= LARGEST_MESSAGE => {
            Ok(Announced { subject, headers, total })
        }
        _ => Err(strange("a message that is too large or garbled")),
    }
}

/// The status of `NATS/1.0 503 …`.
fn status(headers: &[u8]) -> Option<u16> {
    let line = headers.split(|&byte| byte == b'\r').next()?;
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn strange(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no NATS server: it sent {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Said> {
        let mut buffer = BytesMut::new();
        let mut all = Vec::new();
        // Byte by byte: nothing is read before it is there.
        for byte in bytes {
            buffer.extend_from_slice(&[*byte]);
            while let Some(said) = Reader.decode(&mut buffer).expect("it is NATS") {
                all.push(said);
            }
        }
        assert!(buffer.is_empty());
        all
    }

    #[test]
    fn what_a_server_says_is_read() {
        let message = |subject: &str, status, payload: &str| {
            Said::Message(Message { subject: subject.into(), status, payload: payload.into() })
        };
        assert_eq!(
            read(
                b"INFO {\"max_payload\":9,\"headers\":true,\"connect_urls\":[\"10.0.0.1:4222\"]} \r\nPING\r\nPONG\r\n+OK\r\n\
                -ERR 'Authorization Violation'\r\nMSG a.b 1 5\r\nab\r\nc\r\nMSG a 1 r.1 0\r\n\r\n\
                HMSG _INBOX.x.1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nHMSG a 1 r 12 14\r\nNATS/1.0\r\n\r\n{}\r\n"
            ),
            [
                Said::Info(Info { max_payload: 9, headers: true, ..Info::default() }),
                Said::Ping,
                Said::Pong,
                Said::Fine,
                Said::Trouble("Authorization Violation".into()),
                message("a.b", None, "ab\r\nc"),
                message("a", None, ""),
                message("_INBOX.x.1", Some(503), ""),
                message("a", None, "{}"),
            ]
        );
    }

    #[test]
    fn what_is_no_nats_is_an_error() {
        for bytes in [
            "HTTP/1.1 400 Bad Request\r\n",
            "INFO nothing\r\n",
            "MSG a 1 99999999999\r\n",
            "MSG a 1 x\r\n",
            "HMSG a 1 9 2\r\n",
        ] {
            assert!(Reader.decode(&mut BytesMut::from(bytes)).is_err(), "{bytes}");
        }
        assert!(Reader.decode(&mut BytesMut::from(vec![b'x'; LONGEST_LINE].as_slice())).is_err());
    }

    #[test]
    fn a_message_is_written_with_its_sizes() {
        let headers = [("A", "b")];
        assert_eq!(
            String::from_utf8(publish("s", Some("r.1"), &headers, b"{}")).unwrap(),
            "HPUB s r.1 18 20\r\nNATS/1.0\r\nA: b\r\n\r\n{}\r\n"
        );
        assert_eq!(size(&headers, b"{}"), 20);
        assert!(publish("s", None, &headers, b"").starts_with(b"HPUB s 18 18\r\n"));
    }
}
