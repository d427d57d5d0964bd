//! `man`: the manual pages, one for each verb.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man as Page;
use serde_json::json;

use super::exit::Exit;
use super::out;

/// `man …`
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    mainspring man | man -l -\n    \
      reads the first page\n  \
    mainspring man ~/.local/share/man/man1\n    \
      writes all pages; then: man mainspring-timer-put")]
pub struct Man {
    /// Write a page for each verb into this directory, which is made if it is missing; without it, mainspring(1) is
    /// printed
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the first page, or writes all pages and prints their paths; with `json` as `{"page"}` or `{"pages"}`.
pub fn run(args: &Man, command: Command, json: bool) -> anyhow::Result<Exit> {
    let text = match &args.dir {
        None => {
            let page = page(command)?;
            if json { json!({ "page": page }).to_string() } else { page.trim_end().to_owned() }
        }
        Some(dir) => {
            let pages = write_all(command, dir)?;
            if json { json!({ "pages": pages }).to_string() } else { pages.join("\n") }
        }
    };
    out::print(&text)?;
    Ok(Exit::Ok)
}

/// One page, in roff.
fn page(command: Command) -> anyhow::Result<String> {
    let mut page = Vec::new();
    Page::new(command).render(&mut page).context("the page cannot be made")?;
    String::from_utf8(page).context("the page is not UTF-8")
}

/// Writes the page of this command and those of its verbs; returns the paths, in the order of the verbs.
fn write_all(command: Command, dir: &Path) -> anyhow::Result<Vec<String>> {
    let unwritable = || format!("{} cannot be written", dir.display());
    std::fs::create_dir_all(dir).with_context(unwritable)?;
    let mut command = command.disable_help_subcommand(true);
    // Gives each verb its full name (`mainspring-timer-put`) and the global flags.
    command.build();
    let mut paths = Vec::new();
    let mut remaining = vec![command];
    while let Some(command) = remaining.pop() {
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let mut verbs: Vec<Command> = verbs.cloned().collect();
        verbs.reverse();
        remaining.extend(verbs);
        let path = dir.join(Page::new(command.clone()).get_filename());
        std::fs::write(&path, page(command)?).with_context(unwritable)?;
        paths.push(path.to_string_lossy().into_owned());
    }
    Ok(paths)
}
