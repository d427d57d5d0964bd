//! Times, spans and local times: what is read is what is written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainspring::model::time::{LAST, Span, UnixMs};

fuzz_target!(|text: &str| {
    if let Ok(at) = UnixMs::parse_rfc3339(text) {
        assert!(at <= LAST);
        assert_eq!(UnixMs::parse_rfc3339(&at.to_string()), Ok(at));
    }
    if let Ok(span) = Span::parse(text) {
        assert_eq!(Span::parse(&span.to_string()), Ok(span));
    }
    let (local, zone) = text.split_once(' ').unwrap_or((text, "Europe/Berlin"));
    if let Ok(at) = UnixMs::from_local(local, zone) {
        assert_eq!(UnixMs::parse_rfc3339(&at.to_string()), Ok(at));
    }
});
