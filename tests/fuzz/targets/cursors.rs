//! Cursors of lists: what is read is what is written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainspring::cold::ListCursor;

fuzz_target!(|text: &str| {
    if let Ok(cursor) = text.parse::<ListCursor>() {
        let again: ListCursor = cursor.to_string().parse().expect("a cursor");
        assert_eq!(again, cursor);
    }
});
