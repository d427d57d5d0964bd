//! `completions`: the completion script of a shell.

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use serde_json::json;

use super::exit::Exit;
use super::out;

/// `completions …`
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    source <(mainspring completions bash)\n    \
      in this shell only\n  \
    mainspring completions zsh > ~/.zfunc/_mainspring\n  \
    mainspring completions fish > ~/.config/fish/completions/mainspring.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Prints the script; with `json` as `{"shell", "script"}`.
pub fn run(args: &Completions, mut command: Command, json: bool) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    let script = String::from_utf8(script).context("the script is not UTF-8")?;
    let text = match json {
        true => json!({ "shell": args.shell.to_string(), "script": script }).to_string(),
        false => script.trim_end().to_owned(),
    };
    out::print(&text)?;
    Ok(Exit::Ok)
}
