//! What a PostgreSQL server answers, read as far as is needed to see that a commit has happened.
//!
//! A plain struct over bytes: it never touches a connection. Source: "Message Formats" in PostgreSQL's
//! manual. A frame is a type byte, its length as an `i32` without that byte, and the rest. Before the first
//! one, the server answers a request for encryption with a single byte.
//!
//! Invariant: what goes in comes out, in order, or is dropped together with all that follows it. Nothing is
//! kept back but a frame that is being decided about, and what came between it and the decision.

/// The longest completion tag that is looked at, and then some; longer frames pass unread.
const FRAME_MAX: usize = 128;
/// As much as is kept back until it is known whether a write was a commit, in bytes.
const KEPT_MAX: usize = 64 << 10;
/// The type byte and the length.
const HEAD: usize = 5;

/// Which commits are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commits {
    /// Those that a client asked for with `COMMIT`.
    Explicit,
    /// Those, and the writes that commit by themselves, outside of a transaction. A write is what PostgreSQL
    /// calls `INSERT`, `UPDATE`, `DELETE` or `MERGE` in its answer, of at least one row; a `SELECT` over writes
    /// in its `WITH` is none. The answer to a write is kept back until the one to its `Sync` has come.
    AndWrites,
}

/// The answers of one connection.
#[derive(Debug)]
pub(super) struct Answers {
    at: At,
    /// The frame whose head or tag is not all there yet.
    frame: Vec<u8>,
    /// From a write's completion up to here, until the server says whether it was a commit.
    kept: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nothing but refusals of encryption so far.
    Greeting,
    /// Between two frames, or in the head or the tag of one.
    Frame,
    /// So many bytes before the end of a frame which is of no interest.
    Body(usize),
    /// It is encrypted, or not PostgreSQL at all.
    Unreadable,
}

impl Answers {
    pub(super) fn new() -> Self {
        Self { at: At::Greeting, frame: Vec::new(), kept: None }
    }

    /// Whether these are bytes that mean nothing to us: encrypted, or not PostgreSQL's.
    pub(super) fn unreadable(&self) -> bool {
        self.at == At::Unreadable
    }

    /// Reads on, and appends to `out` what may be passed on. True when a commit was met that `take`, asked
    /// about each of those meant by `wanted`, wants to be cut: from there on nothing may be passed on.
    pub(super) fn read(
        &mut self,
        mut bytes: &[u8],
        wanted: Option<Commits>,
        out: &mut Vec<u8>,
        mut take: impl FnMut() -> bool,
    ) -> bool {
        while let Some(&first) = bytes.first() {
            match self.at {
                At::Unreadable => {
                    out.extend_from_slice(bytes);
                    break;
                }
                At::Greeting => match first {
                    // Encryption refused; another request, or the first frame, follows.
                    b'N' => {
                        out.push(first);
                        bytes = &bytes[1..];
                    }
                    // Authentication, an error, a protocol version to agree on.
                    b'R' | b'E' | b'v' => self.at = At::Frame,
                    _ => self.at = At::Unreadable,
                },
                At::Body(left) => {
                    let (body, rest) = bytes.split_at(left.min(bytes.len()));
                    self.pass(body, out);
                    self.at = if body.len() == left { At::Frame } else { At::Body(left - body.len()) };
                    bytes = rest;
                }
                At::Frame => {
                    // One byte after the other: these are short, and few.
                    self.frame.push(first);
                    bytes = &bytes[1..];
                    if self.step(wanted, out, &mut take) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// What was kept back, when no more will come.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) {
        out.extend(self.kept.take().unwrap_or_default());
        out.append(&mut self.frame);
    }

    /// Looks at the frame begun, if there is enough of it.
    fn step(&mut self, wanted: Option<Commits>, out: &mut Vec<u8>, take: &mut impl FnMut() -> bool) -> bool {
        let &[kind, a, b, c, d, ..] = self.frame.as_slice() else { return false };
        // The length counts itself.
        let length = usize::try_from(i32::from_be_bytes([a, b, c, d])).unwrap_or(0);
        let Some(body) = length.checked_sub(4) else {
            self.at = At::Unreadable;
            self.end(out);
            return false;
        };
        if !matches!(kind, b'C' | b'Z') || body > FRAME_MAX {
            let head = std::mem::take(&mut self.frame);
            self.pass(&head, out);
            self.at = if body == 0 { At::Frame } else { At::Body(body) };
            return false;
        }
        if self.frame.len() < HEAD + body {
            return false;
        }
        let frame = std::mem::take(&mut self.frame);
        match (kind, wanted) {
            (b'C', Some(_)) if &frame[HEAD..] == b"COMMIT\0" => {
                self.release(out);
                if take() {
                    return true;
                }
            }
            (b'C', Some(Commits::AndWrites)) if is_write(&frame[HEAD..]) => {
                // In a pipeline the commit comes after this answer, with the ReadyForQuery.
                self.kept.get_or_insert_default();
            }
            (b'Z', _) => {
                let idle = frame.get(HEAD) == Some(&b'I');
                if idle && wanted == Some(Commits::AndWrites) && self.kept.is_some() && take() {
                    return true;
                }
                self.release(out);
            }
            _ => {}
        }
        self.pass(&frame, out);
        false
    }

    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match &mut self.kept {
            None => out.extend_from_slice(bytes),
            Some(kept) if kept.len() + bytes.len() <= KEPT_MAX => kept.extend_from_slice(bytes),
            Some(_) => {
                self.release(out);
                out.extend_from_slice(bytes);
            }
        }
    }

    fn release(&mut self, out: &mut Vec<u8>) {
        out.extend(self.kept.take().unwrap_or_default());
    }
}

/// A verb and how many rows it wrote; none is no write.
fn is_write(tag: &[u8]) -> bool {
    !tag.ends_with(b" 0\0")
        && ["INSERT ", "UPDATE ", "DELETE ", "MERGE "].iter().any(|verb| tag.starts_with(verb.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("short");
        [&[kind][..], &length.to_be_bytes(), body].concat()
    }

    fn tag(tag: &str) -> Vec<u8> {
        frame(b'C', format!("{tag}\0").as_bytes())
    }

    fn ready(status: u8) -> Vec<u8> {
        frame(b'Z', &[status])
    }

    fn greeting() -> Vec<u8> {
        [b"N".to_vec(), frame(b'R', &[0; 4]), frame(b'S', b"a\0b\0"), ready(b'I')].concat()
    }

    /// What comes out and whether it is cut, however the bytes are split; `spare` commits are let go first.
    fn run(bytes: &[u8], wanted: Option<Commits>, spare: usize) -> (Vec<u8>, bool) {
        let all = [1, 2, 3, 7, bytes.len()].map(|size| {
            let (mut answers, mut out, mut met) = (Answers::new(), Vec::new(), 0);
            let mut take = || {
                met += 1;
                met > spare
            };
            let cut = bytes.chunks(size).any(|chunk| answers.read(chunk, wanted, &mut out, &mut take));
            if !cut {
                answers.end(&mut out);
            }
            (out, cut)
        });
        assert!(all.iter().all(|one| *one == all[0]), "it depends on how the bytes are split: {all:?}");
        all[0].clone()
    }

    #[test]
    fn what_is_not_cut_passes_unchanged() {
        let long = frame(b'D', &[b'C'; 3000]);
        let talk = [
            greeting(),
            tag("BEGIN"),
            ready(b'T'),
            long,
            tag("INSERT 0 1"),
            ready(b'T'),
            frame(b'n', b""),
            tag("COMMIT"),
            ready(b'I'),
            tag("UPDATE 3"),
            ready(b'I'),
            b"C\0\0".to_vec(),
        ]
        .concat();
        for wanted in [None, Some(Commits::Explicit), Some(Commits::AndWrites)] {
            assert_eq!(run(&talk, wanted, 9), (talk.clone(), false), "{wanted:?}");
        }
        assert_eq!(run(&talk, None, 0), (talk, false));
    }

    #[test]
    fn nothing_passes_from_a_commit_on() {
        let before = [greeting(), tag("BEGIN"), ready(b'T'), tag("INSERT 0 1"), ready(b'T')].concat();
        let talk = [before.clone(), tag("COMMIT"), ready(b'I'), tag("SELECT 1")].concat();
        for wanted in [Commits::Explicit, Commits::AndWrites] {
            assert_eq!(run(&talk, Some(wanted), 0), (before.clone(), true));
        }
        let twice = [talk.clone(), ready(b'I'), tag("COMMIT"), ready(b'I')].concat();
        assert_eq!(run(&twice, Some(Commits::Explicit), 1), ([talk, ready(b'I')].concat(), true));
    }

    #[test]
    fn a_write_is_a_commit_only_outside_of_a_transaction() {
        let select = [greeting(), tag("SELECT 1"), ready(b'I')].concat();
        for write in ["INSERT 0 1", "UPDATE 10", "DELETE 2", "MERGE 1"] {
            let alone = [select.clone(), tag(write), ready(b'I')].concat();
            assert_eq!(run(&alone, Some(Commits::AndWrites), 0), (select.clone(), true), "{write}");
            assert_eq!(run(&alone, Some(Commits::Explicit), 0), (alone.clone(), false), "{write}");
            let within = [select.clone(), tag(write), ready(b'T'), tag("ROLLBACK"), ready(b'I')].concat();
            assert_eq!(run(&within, Some(Commits::AndWrites), 0), (within.clone(), false), "{write}");
        }
        let nothing = [select.clone(), tag("UPDATE 0"), ready(b'I')].concat();
        assert_eq!(run(&nothing, Some(Commits::AndWrites), 0), (nothing.clone(), false));
        let failed = [select.clone(), tag("INSERT 0 1"), frame(b'E', b"no\0"), ready(b'E')].concat();
        assert_eq!(run(&failed, Some(Commits::AndWrites), 0), (failed.clone(), false));
    }

    #[test]
    fn the_words_of_a_commit_within_data_are_no_commit() {
        let row = frame(b'D', &[tag("COMMIT"), ready(b'I')].concat());
        let talk = [greeting(), row, tag("COMMIT PREPARED"), ready(b'I')].concat();
        assert_eq!(run(&talk, Some(Commits::AndWrites), 0), (talk.clone(), false));
    }

    #[test]
    fn encryption_and_other_protocols_pass_and_are_told() {
        for bytes in [&b"S\x16\x03\x01COMMIT\0"[..], b"+PONG\r\n", b"NNG..."] {
            let mut answers = Answers::new();
            let mut out = Vec::new();
            assert!(!answers.read(bytes, Some(Commits::Explicit), &mut out, || true));
            assert_eq!((out.as_slice(), answers.unreadable()), (bytes, true));
        }
        let broken = [greeting(), b"C\0\0\0\x01COMMIT".to_vec()].concat();
        assert_eq!(run(&broken, Some(Commits::Explicit), 0), (broken.clone(), false));
    }

    #[test]
    fn no_more_is_kept_back_than_a_bound() {
        let mut answers = Answers::new();
        let mut out = Vec::new();
        let begin = [greeting(), tag("INSERT 0 1")].concat();
        answers.read(&begin, Some(Commits::AndWrites), &mut out, || true);
        assert_eq!(out.len(), greeting().len());
        let body = vec![0; KEPT_MAX];
        answers.read(&frame(b'D', &body), Some(Commits::AndWrites), &mut out, || true);
        assert_eq!(out.len(), begin.len() + HEAD + body.len());
        // What is out already cannot be cut any more.
        assert!(!answers.read(&ready(b'I'), Some(Commits::AndWrites), &mut out, || true));
    }
}
