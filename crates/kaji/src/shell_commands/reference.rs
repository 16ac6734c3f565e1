//! All commands and flags as one page in Markdown, `docs/reference.md`.

use super::{OTHERS, groups};
use clap::{Arg, Command};
use std::fmt::Write;

/// The page.
pub fn page(command: &Command) -> String {
    let mut out = String::from("# Commands and flags\n\nWritten by `kaji man --markdown`.\n");
    for (title, commands) in groups(command) {
        if commands.is_empty() || title == OTHERS {
            continue;
        }
        // Writing to a string does not fail.
        let _ = write!(out, "\n## {title}\n");
        for command in commands.into_iter().filter(|command| command.get_name() != "help") {
            section(&mut out, command, &format!("kaji {}", command.get_name()), 3);
        }
    }
    out
}

fn section(out: &mut String, command: &Command, path: &str, depth: usize) {
    let _ = write!(out, "\n{} {path}\n\n", "#".repeat(depth));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        let _ = writeln!(out, "{}.", about.to_string().trim_end_matches('.'));
    }
    let arguments: Vec<&Arg> =
        command.get_arguments().filter(|arg| !arg.is_hide_set() && !is_help(arg)).collect();
    let mut headings: Vec<Option<&str>> = vec![];
    for heading in arguments.iter().map(|arg| arg.get_help_heading()) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    for heading in headings {
        let _ = writeln!(out);
        if let Some(heading) = heading {
            let _ = write!(out, "**{heading}**\n\n");
        }
        for argument in arguments.iter().filter(|arg| arg.get_help_heading() == heading) {
            let _ = writeln!(out, "- {}", line(argument));
        }
    }
    for command in
        command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        section(out, command, &format!("{path} {}", command.get_name()), depth + 1);
    }
}

fn is_help(argument: &Arg) -> bool {
    matches!(argument.get_id().as_str(), "help" | "version")
}

/// A flag with its value, its default and what else there is to know.
fn line(argument: &Arg) -> String {
    let takes_value = argument.get_action().takes_values();
    let names: Vec<&str> =
        argument.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let value = names.join(" ");
    let mut text = String::from("`");
    if let Some(short) = argument.get_short() {
        let _ = write!(text, "-{short}`, `");
    }
    match argument.get_long() {
        Some(long) if takes_value => {
            let _ = write!(text, "--{long} {value}`");
        }
        Some(long) => {
            let _ = write!(text, "--{long}`");
        }
        None => {
            let _ = write!(text, "{value}`");
        }
    }
    if let Some(help) = argument.get_long_help().or(argument.get_help()) {
        let help = help.to_string().replace('\n', " ").replace('<', "\\<");
        let _ = write!(text, ": {}.", help.trim().trim_end_matches('.'));
    }
    if takes_value && !argument.is_hide_possible_values_set() {
        let values: Vec<String> = argument
            .get_possible_values()
            .iter()
            .filter(|v| !v.is_hide_set())
            .map(|v| format!("`{}`", v.get_name()))
            .collect();
        if !values.is_empty() {
            let _ = write!(text, " Values: {}.", values.join(", "));
        }
    }
    let defaults: Vec<String> = argument
        .get_default_values()
        .iter()
        .filter(|v| !v.is_empty())
        .map(|value| format!("`{}`", value.display()))
        .collect();
    if takes_value && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        let _ = write!(text, " Default: {}.", defaults.join(", "));
    }
    if let Some(variable) = argument.get_env().filter(|_| !argument.is_hide_env_set()) {
        let _ = write!(text, " Also from the variable `{}`.", variable.display());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect_file;

    /// `UPDATE_EXPECT=1` writes the page anew.
    #[test]
    fn the_page_of_the_documentation_is_current() {
        let mut command = crate::command();
        command.build();
        expect_file!["../../../../docs/reference.md"].assert_eq(&page(&command));
    }
}
