//! What shells and manuals need: the commands in groups, completions, manual pages, and versions.
//!
//! Invariant: everything is generated from the command line's own description, so it cannot differ from what is accepted.

mod reference;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use serde_json::json;
use std::{
    error::Error,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// The commands by what they are for, in the order in which a new user needs them.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Clusters",
        &["up", "list", "status", "kubeconfig", "logs", "stop", "start", "delete", "fork", "doctor"],
    ),
    ("Questions", &["why", "history", "diff", "blame", "get", "restore", "tree", "events", "top", "console"]),
    ("Data", &["snapshot", "store", "etcd"]),
    ("Nodes", &["agent", "token", "node", "image"]),
    ("Tests", &["test", "envtest", "sim"]),
    ("Components alone", &["apiserver", "controller-manager", "scheduler"]),
    ("Shell", &["completion", "man", "version", "help"]),
];
/// The title of commands without a group.
const OTHERS: &str = "Other commands";

/// Flags of `kaji completion`.
#[derive(Args)]
pub struct Completion {
    /// The shell.
    shell: Shell,
}

/// Flags of `kaji man`.
#[derive(Args)]
pub struct Man {
    /// Writes a page for each command into this directory, instead of the first one to standard output.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Prints all commands and flags as one page in Markdown.
    #[arg(long, conflicts_with = "dir")]
    markdown: bool,
}

/// Flags of `kaji version`.
#[derive(Args)]
pub struct Version {
    /// The form of the answer.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Form,
}

#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// Names of a command's subcommands that are shown, in groups.
fn groups(command: &Command) -> Vec<(&'static str, Vec<&Command>)> {
    let shown: Vec<&Command> = command.get_subcommands().filter(|c| !c.is_hide_set()).collect();
    let in_group = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let mut groups: Vec<(&'static str, Vec<&Command>)> = Vec::new();
    for (title, names) in GROUPS {
        let members = names.iter().filter_map(|name| shown.iter().find(|c| c.get_name() == *name).copied());
        groups.push((title, members.collect()));
    }
    groups.push((OTHERS, shown.iter().filter(|c| !in_group(c.get_name())).copied().collect()));
    groups.retain(|(_, members)| !members.is_empty());
    groups
}

/// Shows the commands in groups in the help of the program.
pub fn group_commands(command: Command) -> Command {
    let mut text = String::new();
    for (title, members) in groups(&command) {
        text.push_str(&format!("\n{title}:\n"));
        for member in members {
            let about = member.get_about().map(ToString::to_string).unwrap_or_default();
            // The first clause: the command's own help has the rest.
            let about = about.split(['.', ';', ':']).next().unwrap_or_default();
            text.push_str(&format!("  {:<20}{about}\n", member.get_name()));
        }
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{text}\nOptions:\n{{options}}"
    ))
}

/// Writes a shell's completions to standard output.
pub fn completion(args: &Completion, mut command: Command) -> Result<(), Box<dyn Error>> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}

/// Writes manual pages.
pub fn man(args: &Man, command: Command) -> Result<(), Box<dyn Error>> {
    match &args.dir {
        Some(dir) => write_pages(dir, command)?,
        None if args.markdown => {
            let mut command = command;
            command.build();
            std::io::stdout().lock().write_all(reference::page(&command).as_bytes())?;
        }
        None => clap_mangen::Man::new(command).render(&mut std::io::stdout().lock())?,
    }
    Ok(())
}

fn write_pages(dir: &Path, mut command: Command) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    command.build();
    let mut pending = vec![command];
    while let Some(command) = pending.pop() {
        // `kaji-store-check.1`, as git names its pages.
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        pending.extend(
            command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help").cloned(),
        );
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        let path = dir.join(format!("{name}.1"));
        fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Shows the versions of the program and of the Kubernetes that it is.
pub fn version(args: &Version) -> Result<(), Box<dyn Error>> {
    let (kaji, kubernetes) = (env!("CARGO_PKG_VERSION"), kaji_server::version());
    let mut out = std::io::stdout().lock();
    match args.output {
        Form::Text => writeln!(out, "Kaji {kaji}\nKubernetes {kubernetes}")?,
        Form::Json => writeln!(out, "{:#}", json!({"kaji": kaji, "kubernetes": kubernetes}))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_group() {
        let command = crate::command();
        let all = groups(&command);
        let missing: Vec<&str> = all
            .iter()
            .filter(|(title, _)| *title == OTHERS)
            .flat_map(|(_, c)| c)
            .map(|c| c.get_name())
            .collect();
        assert_eq!(missing, Vec::<&str>::new());
        let named = GROUPS.iter().flat_map(|(_, names)| *names).filter(|name| **name != "help");
        let named = named.filter(|name| **name != "console" || cfg!(feature = "console"));
        let unknown: Vec<_> = named.filter(|name| command.find_subcommand(name).is_none()).collect();
        assert_eq!(unknown, Vec::<&&str>::new());
    }

    /// The flags that the short help of a command shows.
    fn main_flags(name: &str) -> Vec<String> {
        let mut command = crate::command();
        command.build();
        let found = command.find_subcommand(name).unwrap();
        let shown = found
            .get_arguments()
            .filter(|arg| !arg.is_positional() && !arg.is_hide_set() && !arg.is_hide_short_help_set());
        shown.map(|arg| arg.get_id().to_string()).filter(|id| id != "help").collect()
    }

    #[test]
    fn a_first_look_at_a_command_shows_few_flags() {
        assert_eq!(main_flags("up"), ["name", "detach", "data_dir", "port", "kubeconfig", "nodes"]);
        for command in crate::command().get_subcommands().filter(|command| !command.has_subcommands()) {
            let flags = main_flags(command.get_name());
            assert!(flags.len() <= 12, "{}: {flags:?}", command.get_name());
        }
        assert_eq!(main_flags("diff"), ["from", "to", "output", "kubeconfig", "context", "namespace"]);
    }

    /// As upstream's components: of a flag of one value the last counts, of a list all.
    #[test]
    fn flags_may_be_repeated() {
        let line =
            ["kaji", "apiserver", "--etcd-prefix=/a", "--etcd-prefix=/b", "--tls-san=x", "--tls-san=y"];
        let matches = crate::command().try_get_matches_from(line).unwrap();
        let (_, given) = matches.subcommand().unwrap();
        assert_eq!(given.get_many::<String>("names").map(Iterator::count), Some(2));
        assert_eq!(given.get_one::<String>("etcd_prefix").map(String::as_str), Some("/b"));
    }

    #[test]
    fn completions_know_commands_and_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut crate::command(), "kaji", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("doctor") && script.contains("detach"), "{shell}");
        }
    }

    #[test]
    fn each_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(dir.path(), crate::command()).unwrap();
        for (page, text) in [("kaji.1", "kaji"), ("kaji-up.1", "detach"), ("kaji-store-check.1", "data")] {
            assert!(fs::read_to_string(dir.path().join(page)).unwrap().contains(text), "{page}");
        }
    }
}
