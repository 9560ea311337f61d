//! `ulpf pages`: generates manual pages and completions of shells from the definition of the command line.
#![forbid(unsafe_code)]

use clap::{Arg, ArgAction, Args, Command, ValueHint};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;
use std::path::PathBuf;
use ulpf_server::options::USAGE;
use ulpf_server::plugin::folder;

const PLACES: &str = "\
Below DIR they lie where man and the shells look for them:
  ulpf pages /usr/local/share     for everybody (`make install` and the packages do so)
  ulpf pages ~/.local/share       for you; zsh needs fpath+=(~/.local/share/zsh/site-functions) before compinit";

/// Environment variables of all subcommands.
const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "DEBUGINFOD_URLS, DEBUGINFOD_TIMEOUT",
        "Servers that are asked for debug information which is not on this machine (by debuginfod-find), and how long.",
    ),
    (
        "NO_COLOR",
        "Not empty: no colours. Neither are there any where TERM is dumb or missing, or where the output is no terminal.",
    ),
    (
        "PATH",
        "Where programs are looked for that are named without a slash, gdb and debuginfod-find among them.",
    ),
    (
        "SHELL",
        "The shell by which ulpf gdb and ulpf server start programs (/bin/sh if it is missing).",
    ),
    (
        "ULPF_HOT_CACHE",
        "off: which accesses were hot in a program whose heap is watched is neither kept in the cache folder for its next run nor read from it.",
    ),
    (
        "ULPF_SYMBOL_CACHE",
        "off: where names were found in large programs is neither kept in the cache folder nor read from it.",
    ),
    (
        "XDG_CACHE_HOME",
        "Below it, in ulpf, lies what the last runs have recorded, where they found names in large programs, and which accesses were hot (~/.cache if it is missing).",
    ),
    (
        "XDG_RUNTIME_DIR, TMPDIR",
        "Where ulpf gdb makes the folder with its socket and its plugin: the first if it is yours alone, else the second (/tmp).",
    ),
];

#[derive(Debug, Args)]
#[command(after_help = PLACES)]
pub struct PagesArgs {
    /// The folder, as a rule PREFIX/share; it is made if need be
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

/// `ulpf pages DIR`: returns the exit status.
pub fn main(args: &PagesArgs, command: Command) -> i32 {
    let written = files(complete(command))
        .and_then(|files| folder::write(&args.dir, &files, "shells run what lies there"));
    match written {
        Ok(()) => 0,
        Err(e) => {
            ulpf_host::say::message!(
                "ulpf pages: {} cannot be written: {e}. Name another folder.",
                args.dir.display()
            );
            1
        }
    }
}

/// Adds the options that clap does not parse: those of `server`, and our options of `gdb`.
fn complete(command: Command) -> Command {
    command
        .mut_subcommand("server", |server| {
            server
                .disable_help_flag(true)
                .args(options(USAGE))
                .override_usage(forms(USAGE).join("\n"))
        })
        .mut_subcommand("gdb", |gdb| {
            gdb.arg(
                own("placement", "WHERE", "Where watches live").value_parser([
                    "auto",
                    "guard",
                    "debug-register",
                ]),
            )
            .arg(
                own(
                    "backend",
                    "NAME",
                    "Who has the program and serves its watchpoints",
                )
                .value_parser(["auto", "signal", "kernel", "sim"]),
            )
        })
}

fn own(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name(value)
        .help(help)
        .require_equals(true)
}

/// The forms of the command line at the beginning of a usage text.
fn forms(usage: &str) -> Vec<&str> {
    let head = usage.split("\n\n").next().unwrap_or_default();
    head.lines()
        .map(|line| line.trim_start_matches("Usage:").trim())
        .collect()
}

/// The options that a `--help` text lists: `  --name VALUE  what it does`.
fn options(usage: &'static str) -> Vec<Arg> {
    let mut lines = usage.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let Some(entry) = line.strip_prefix("  --") else {
            continue;
        };
        let (head, said) = entry.split_once("  ").unwrap_or((entry, ""));
        let mut help = vec![said.trim()];
        while let Some(more) = lines.next_if(|l| l.starts_with("          ")) {
            help.push(more.trim());
        }
        let help = help.join(" ");
        let end = head.find([' ', '=']).unwrap_or(head.len());
        let (name, value) = (&head[..end], head[end..].trim_matches([' ', '=']));
        let arg = Arg::new(name).long(name).help(help.trim().to_owned());
        found.push(match value {
            "" => arg.action(ArgAction::SetTrue),
            _ => arg
                .value_name(value)
                .require_equals(head[end..].starts_with('=')),
        });
    }
    found
}

/// Paths below the folder, with texts.
fn files(mut command: Command) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    // `help` needs no page, but is completed.
    let mut paged = command.clone().disable_help_subcommand(true);
    for (shell, path) in [
        (Shell::Bash, "bash-completion/completions/ulpf"),
        (Shell::Zsh, "zsh/site-functions/_ulpf"),
        (Shell::Fish, "fish/vendor_completions.d/ulpf.fish"),
    ] {
        let mut text = Vec::new();
        generate(shell, &mut command, "ulpf", &mut text);
        files.push((path.into(), text));
    }
    paged.build();
    let mut all: Vec<String> = paged
        .get_subcommands()
        .map(|sub| format!("ulpf-{}(1)", sub.get_name()))
        .collect();
    all.sort();
    for sub in paged.get_subcommands() {
        let name = format!("man/man1/ulpf-{}.1", sub.get_name());
        files.push((name.into(), page(sub.clone(), &["ulpf(1)".into()])?));
    }
    files.push(("man/man1/ulpf.1".into(), page(paged, &all)?));
    Ok(files)
}

/// The manual page of a command.
fn page(command: Command, see: &[String]) -> io::Result<Vec<u8>> {
    let name = command.get_name().to_owned();
    let whole = command.has_subcommands();
    let after = command
        .get_after_long_help()
        .or(command.get_after_help())
        .map(ToString::to_string);
    let man = Man::new(command)
        .manual("ulpf")
        .source(concat!("ulpf ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if name == "server" {
        // Printed unchanged: the options are explained in tables, which a paragraph would lose.
        let options = USAGE.split_once("\n\n").map_or(USAGE, |(_, rest)| rest);
        preformatted("OPTIONS", options, &mut text)?;
    } else {
        man.render_options_section(&mut text)?;
    }
    if whole {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(after) = after {
        preformatted("NOTES", &after, &mut text)?;
    }
    if whole {
        environment(&mut text)?;
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(see.join(", "))]);
    if whole {
        roff.control("PP", []);
        roff.text([roman(
            "The library for programs that watch themselves has pages of its own: ulpf(3).",
        )]);
    }
    roff.to_writer(&mut text)?;
    Ok(text)
}

fn environment(text: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["ENVIRONMENT"]);
    for (names, what) in ENVIRONMENT {
        roff.control("TP", []);
        roff.text([roman(*names)]);
        roff.text([roman(*what)]);
    }
    roff.to_writer(text)
}

/// Lines unchanged, in a section for each heading: a line of capitals, with or without text in brackets.
fn preformatted(first: &str, lines: &str, text: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    let mut open = false;
    for line in lines.trim_matches('\n').lines() {
        let heading = is_heading(line);
        if heading || !open {
            if open {
                roff.control("fi", []);
            }
            roff.control("SH", [if heading { line } else { first }]);
            roff.control("nf", []);
            open = true;
        }
        if !heading {
            roff.text([roman(line)]);
        }
    }
    if open {
        roff.control("fi", []);
    }
    roff.to_writer(text)
}

fn is_heading(line: &str) -> bool {
    let words = line.split(" (").next().unwrap_or_default();
    words.len() > 3
        && words.chars().all(|c| c.is_ascii_uppercase() || c == ' ')
        && !line.starts_with(' ')
}
