//! HTTP/1.1 as the load needs it: one call after another on a kept connection, prepared bytes in, status and
//! body out.
//!
//! It shares the machine with what it measures, so it does no more than it must. It speaks to Mainspring
//! only, whose answers have a length or come in chunks; it is no client for anything else.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// More headers than this is no answer of a Mainspring server.
const MAX_HEAD: usize = 64 * 1024;

/// A connection to the server. After an error it is of no further use.
pub struct Connection {
    /// What comes from the server.
    pub answers: Answers,
    /// What goes to it.
    pub requests: OwnedWriteHalf,
}

/// The answers of one connection, with what was read and not yet used.
pub struct Answers {
    stream: OwnedReadHalf,
    buffer: Vec<u8>,
}

/// The head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The status.
    pub status: u16,
    /// How its body ends.
    pub body: Body,
    /// Whether the server closes the connection after it.
    pub closes: bool,
}

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// After so many bytes.
    Length(usize),
    /// With the empty chunk.
    Chunked,
}

impl Connection {
    /// Connects to `address`, host and port.
    pub async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (read, requests) = stream.into_split();
        Ok(Self { answers: Answers { stream: read, buffer: Vec::with_capacity(4096) }, requests })
    }

    /// Sends `request` and waits for the answer, whose body replaces what is in `body`.
    pub async fn call(&mut self, request: &[u8], body: &mut Vec<u8>) -> Result<Head> {
        self.requests.write_all(request).await?;
        let head = self.answers.head().await?;
        body.clear();
        self.answers.body(head.body, body).await?;
        Ok(head)
    }
}

impl Answers {
    /// Reads the head of an answer.
    pub async fn head(&mut self) -> Result<Head> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head = read_head(&self.buffer[..end + 2])?;
                self.buffer.drain(..end + 4);
                return Ok(head);
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(strange("its head has no end"));
            }
            self.fill().await?;
        }
    }

    /// Appends a whole body to `into`.
    pub async fn body(&mut self, body: Body, into: &mut Vec<u8>) -> Result<()> {
        match body {
            Body::Length(length) => {
                while self.buffer.len() < length {
                    self.fill().await?;
                }
                into.extend_from_slice(&self.buffer[..length]);
                self.buffer.drain(..length);
            }
            Body::Chunked => while self.chunk(into).await? {},
        }
        Ok(())
    }

    /// Appends one chunk of a body to `into`; false after the last.
    pub async fn chunk(&mut self, into: &mut Vec<u8>) -> Result<bool> {
        let (size, start) = loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let line = self.buffer[..end].split(|&b| b == b';').next().unwrap_or_default();
                let line = std::str::from_utf8(line).unwrap_or_default().trim();
                let size = usize::from_str_radix(line, 16).map_err(|_| strange("a chunk has no size"))?;
                break (size, end + 2);
            }
            self.fill().await?;
        };
        while self.buffer.len() < start + size + 2 {
            self.fill().await?;
        }
        into.extend_from_slice(&self.buffer[start..start + size]);
        self.buffer.drain(..start + size + 2);
        Ok(size > 0)
    }

    async fn fill(&mut self) -> Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
            _ => Ok(()),
        }
    }
}

/// Where `what` begins in `bytes`.
pub fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The value of a header line with this name, in lower case; `None` if the line has another.
pub fn header<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let rest = line.split_at_checked(name.len()).filter(|(start, _)| start.eq_ignore_ascii_case(name))?.1;
    Some(rest.strip_prefix(b":")?.trim_ascii())
}

/// The lines of a head, without their ends.
pub fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// A decimal number.
pub fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn read_head(head: &[u8]) -> Result<Head> {
    let status = head.get(9..12).filter(|_| head.starts_with(b"HTTP/1.1 ")).and_then(number);
    let status: u16 = status.ok_or_else(|| strange("it does not begin as HTTP/1.1"))?;
    let mut body = if matches!(status, 204 | 304) { Some(Body::Length(0)) } else { None };
    let mut closes = false;
    for line in lines(head).skip(1) {
        if let Some(value) = header(line, b"content-length") {
            body = Some(Body::Length(number(value).ok_or_else(|| strange("its length is no number"))?));
        } else if header(line, b"transfer-encoding").is_some_and(|value| value == b"chunked") {
            body = Some(Body::Chunked);
        } else if header(line, b"connection").is_some_and(|value| value.eq_ignore_ascii_case(b"close")) {
            closes = true;
        }
    }
    let body = body.ok_or_else(|| strange("its body has no end"))?;
    Ok(Head { status, body, closes })
}

fn strange(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the server's answer cannot be read: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_tell_status_and_end() {
        for (text, status, body, closes) in [
            ("HTTP/1.1 201 Created\r\ncontent-length: 12\r\n", 201, Body::Length(12), false),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", 200, Body::Chunked, false),
            ("HTTP/1.1 204 No Content\r\n", 204, Body::Length(0), false),
            ("HTTP/1.1 503 X\r\nConnection: close\r\ncontent-length:0\r\n", 503, Body::Length(0), true),
        ] {
            assert_eq!(read_head(text.as_bytes()).unwrap(), Head { status, body, closes }, "{text}");
        }
        for bad in ["HTTP/1.0 200 OK\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: x\r\n"]
        {
            assert!(read_head(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_header_is_found_by_its_whole_name() {
        assert_eq!(header(b"Content-Length:  5 ", b"content-length"), Some(&b"5"[..]));
        assert_eq!(header(b"Content-Length-X: 5", b"content-length"), None);
        assert_eq!(header(b"Cont", b"content-length"), None);
    }

    #[tokio::test]
    async fn bodies_in_chunks_and_of_a_length_follow_each_other() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 2];
            for answer in [
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
                "HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\nno",
            ] {
                stream.read_exact(&mut request).await.unwrap();
                // Byte by byte: an answer may be torn anywhere.
                for byte in answer.as_bytes() {
                    stream.write_all(&[*byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut connection = Connection::open(&address).await.unwrap();
        let mut body = Vec::new();
        assert_eq!(connection.call(b"?\n", &mut body).await.unwrap().status, 200);
        assert_eq!(body, b"abcde");
        assert_eq!(connection.call(b"?\n", &mut body).await.unwrap().status, 409);
        assert_eq!(body, b"no");
        assert!(connection.call(b"?\n", &mut body).await.is_err());
    }
}
