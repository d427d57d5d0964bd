//! `completions` and `man`.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{FAILED, Ran, Shell, USAGE};

/// Runs a script of bash with this on its standard input, and returns what it prints.
fn bash(script: &str, input: &str) -> String {
    use std::io::Write;
    let mut command = Command::new("bash");
    command
        .args(["--norc", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("bash is there");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
async fn completions_complete_verbs_and_flags() {
    let script = Shell::new().run("completions bash").await.printed();
    // As bash does at a tab: it asks the function that the script has bound.
    let complete = |line: &str| {
        let words = line.split(' ').map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ");
        let ask = format!(
            "source /dev/stdin; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _mainspring mainspring \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        bash(&ask, &script).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("mainspring ser"), ["serve"]);
    assert_eq!(complete("mainspring timer exp"), ["explain"]);
    assert_eq!(complete("mainspring destination res"), ["resume"]);
    assert_eq!(complete("mainspring timer put --prio"), ["--priority"]);
    assert_eq!(complete("mainspring timer put --priority h"), ["high"]);
    assert_eq!(complete("mainspring serve --hot"), ["--hot-url"]);
    assert_eq!(complete("mainspring doctor --only w"), ["wheels"]);
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let json = Shell::new().run(&format!("completions {shell} --json")).await.json();
        let has_verbs = |text: &Value| text.as_str().is_some_and(|text| text.contains("explain"));
        assert!(json["shell"] == shell && has_verbs(&json["script"]), "{json}");
    }
    assert_eq!(Shell::new().run("completions tcsh").await.code, USAGE);
}

#[tokio::test]
async fn man_prints_the_first_page() {
    let shell = Shell::new();
    let page = shell.run("man").await.printed();
    assert!(page.contains(".TH mainspring 1"), "{page}");
    for named in ["mainspring\\-serve(1)", "mainspring\\-timer(1)", "Exit codes"] {
        assert!(page.contains(named), "no {named}: {page}");
    }
    let json = shell.run("man --json").await.json();
    assert_eq!(json["page"].as_str().map(str::trim_end), Some(page.trim_end()));
}

#[tokio::test]
async fn man_writes_a_page_for_each_verb() {
    let shell = Shell::new();
    let pages = shell.run("man share/man1").await.printed();
    let names: Vec<&str> = pages.lines().filter_map(|path| path.strip_prefix("share/man1/")).collect();
    assert_eq!(names.len(), pages.lines().count(), "paths as they were asked for: {pages}");
    for name in [
        "mainspring.1",
        "mainspring-serve.1",
        "mainspring-timer-put.1",
        "mainspring-destination-put.1",
        "mainspring-config-check.1",
    ] {
        assert!(names.contains(&name), "no {name}: {pages}");
    }
    assert!(names.iter().all(|name| !name.contains("help")), "{pages}");
    for name in &names {
        let page = std::fs::read_to_string(shell.path().join("share/man1").join(name)).expect("a page");
        let verb = name.trim_end_matches(".1");
        assert!(page.contains(&format!(".TH {verb} 1")), "{page}");
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH OPTIONS"), "{page}");
    }
    let put =
        std::fs::read_to_string(shell.path().join("share/man1/mainspring-timer-put.1")).expect("a page");
    assert!(put.contains("\\-\\-webhook") && put.contains("mainspring timer put"), "{put}");

    let again = shell.run("man share/man1 --json").await.json();
    assert_eq!(again["pages"].as_array().map(Vec::len), Some(names.len()), "over those that are there");
    let Ran { code, stdout, stderr } = shell.run("man /proc/none").await;
    assert_eq!((code, stdout.as_str()), (FAILED, ""));
    assert!(stderr.contains("/proc/none cannot be written"), "{stderr}");
}
