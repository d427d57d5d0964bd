//! The trace context of the call that registered a timer ([W3C Trace Context](https://www.w3.org/TR/trace-context/)).
//!
//! It is kept with the timer and sent with each delivery as `ce-traceparent`, as the distributed tracing extension of
//! CloudEvents has it.

/// The bytes that are kept.
pub const PACKED: usize = 25;

/// The length of a `traceparent` of version 00.
const TEXT: usize = 55;

/// A `traceparent`: trace id (16 bytes), parent id (8), flags (1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace([u8; PACKED]);

impl Trace {
    /// Reads the value of a `traceparent` header. `None` if it is not valid: a header that nobody can use is dropped, as
    /// the standard asks. Of a later version the part that version 00 knows is read.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (known, more) = text.split_at_checked(TEXT)?;
        let mut parts = known.split('-');
        let version = hex::<1>(parts.next()?)?;
        let (trace, parent, flags) =
            (hex::<16>(parts.next()?)?, hex::<8>(parts.next()?)?, hex::<1>(parts.next()?)?);
        let is_whole = match version {
            [0] => more.is_empty(),
            [0xff] => false,
            _ => more.is_empty() || more.starts_with('-'),
        };
        let is_valid = is_whole && trace != [0; 16] && parent != [0; 8] && parts.next().is_none();
        let mut packed = [0; PACKED];
        packed[..16].copy_from_slice(&trace);
        packed[16..24].copy_from_slice(&parent);
        packed[24..].copy_from_slice(&flags);
        is_valid.then_some(Self(packed))
    }

    /// The bytes as they are stored.
    pub const fn packed(&self) -> [u8; PACKED] {
        self.0
    }

    /// From the bytes as they are stored; `None` for another number of bytes.
    pub fn from_packed(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl std::fmt::Display for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("00-")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 16 | 24) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Lower-case hex digits of `N` bytes.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().map(digit).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if digits.len() == 2 * N { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_kept_as_it_came() {
        let trace = Trace::parse(GOOD).expect("valid");
        assert_eq!(trace.to_string(), GOOD);
        assert_eq!(Trace::from_packed(&trace.packed()), Some(trace));
        assert_eq!(Trace::from_packed(&[1; 24]), None);
        let later = GOOD.replacen("00", "cc", 1) + "-what-comes";
        assert_eq!(Trace::parse(&later), Some(trace), "a later version");
    }

    #[test]
    fn what_is_not_valid_is_dropped() {
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &GOOD.to_uppercase(),
            &GOOD.replacen("00", "ff", 1),
            &format!("{GOOD}-x"),
            &GOOD.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ä",
        ] {
            assert_eq!(Trace::parse(bad), None, "{bad}");
        }
    }
}
