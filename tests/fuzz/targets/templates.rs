//! A schema, and data that is to fit it: a zero byte stands between the two.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainspring::model::template::TemplateHash;
use mainspring::templates::{MAX_MISFITS, Schema, Template};

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |&byte| byte == 0);
    let Some(Ok(text)) = parts.next().map(str::from_utf8) else { return };
    match Schema::read(text) {
        Ok(schema) => {
            let defaults = Some(r#"{"n":1,"kind":"task"}"#.to_owned());
            let template = Template::new(TemplateHash([0; 16]), text.len(), defaults, Some(schema));
            if let Err(misfits) = template.fit(parts.next()) {
                assert!(!misfits.is_empty() && misfits.len() <= MAX_MISFITS);
                assert!(misfits.iter().all(|misfit| misfit.pointer.starts_with("/data")));
            }
        }
        Err(misfits) => assert!(misfits.iter().all(|misfit| misfit.pointer.starts_with("/schema"))),
    }
});
