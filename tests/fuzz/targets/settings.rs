//! Settings: a file, or one value by its name (`section.key=value`). Either is taken, or refused in words.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mainspring::config::{Config, Error};

/// Written anew for each file of settings.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("settings-{}.toml", std::process::id())));

fn of_file(text: &str) -> Result<Config, Error> {
    std::fs::write(&*FILE, text).expect("a temporary file");
    Config::load(Some(&FILE), [], &[])
}

fuzz_target!(|text: &str| {
    let read = match text.strip_prefix('=') {
        Some(set) => Config::load(None, [], &[set.to_owned()]),
        None => of_file(text),
    };
    match read {
        // What is shown of it, which leaves out secrets, says the same again wherever it can be read.
        Ok(config) => {
            if let Ok(again) = of_file(&config.shown()) {
                assert_eq!(again.shown(), config.shown());
            }
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
});
