//! The flags that a process runs with, for `/flagz`.

use clap::{ArgAction as Action, ArgMatches, Command};
use kaji_server::FlagValues;

/// The flags of the subcommand that was given, and their values. Those that are not shown in help because they are secret are
/// confidential here, too.
pub fn flag_values(command: &Command, matches: &ArgMatches) -> FlagValues {
    let Some((name, matches)) = matches.subcommand() else { return FlagValues::default() };
    let Some(command) = command.find_subcommand(name) else { return FlagValues::default() };
    let flags = command.get_arguments().filter_map(|argument| {
        let name = argument.get_long()?;
        // What prints instead of running is no setting.
        if matches!(
            argument.get_action(),
            Action::Help | Action::HelpShort | Action::HelpLong | Action::Version
        ) {
            return None;
        }
        let raw = matches.try_get_raw(argument.get_id().as_str()).ok()?;
        let values: Vec<_> =
            raw.into_iter().flatten().map(|value| value.to_string_lossy().into_owned()).collect();
        Some((name.to_owned(), values.join(","), argument.is_hide_env_values_set()))
    });
    FlagValues::new(flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Parser, Subcommand};
    use http::HeaderMap;
    use kaji_meta::time::SystemClock;
    use kaji_server::ZPages;
    use std::sync::Arc;

    #[derive(Args)]
    struct Flags {
        #[arg(long, default_value_t = 6443)]
        port: u16,
        #[arg(long, value_delimiter = ',')]
        names: Vec<String>,
        #[arg(long)]
        quiet: bool,
        #[arg(long, env = "KAJI_TEST_NO_SUCH_TOKEN", hide_env_values = true)]
        token: Option<String>,
    }

    #[derive(Subcommand)]
    enum Commands {
        Serve(Flags),
    }

    #[derive(Parser)]
    struct Cli {
        #[arg(long, global = true, default_value = "text")]
        format: String,
        #[command(subcommand)]
        _command: Commands,
    }

    #[test]
    fn shows_given_and_default_values_but_no_secrets() {
        let mut command = <Cli as clap::CommandFactory>::command();
        let line = ["kaji", "serve", "--names=a,b", "--names", "c", "--token", "abc"];
        let matches = command.try_get_matches_from_mut(line).unwrap();
        let pages = ZPages::new("test", flag_values(&command, &matches), Arc::new(SystemClock));
        let body = pages.flagz(&HeaderMap::new()).unwrap().body;
        let flags: Vec<&str> = body.lines().skip(3).collect();
        assert_eq!(flags, ["format=text", "names=a,b,c", "port=6443", "quiet=false", "token=CLASSIFIED"]);
    }
}
