//! kube-apiserver's command line as one of kaji's.
//!
//! Invariant: what kaji's own command line has is handed on as it is, but for flags of the store: it is in memory. See
//! [`crate`] for all else.

use crate::flags::{self, Kind};
use clap::{ArgAction, Command};
use std::collections::BTreeMap;

/// A flag in addition to kube-apiserver's: the controllers to run with it.
const CONTROLLERS: &str = "kaji-controllers";

/// Why a command line is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// kube-apiserver has none of that name.
    #[error("unknown flag: --{0}")]
    Unknown(String),
    /// Something that is no flag.
    #[error("unknown command {0:?} for \"kube-apiserver\"")]
    Argument(String),
    /// No value.
    #[error("flag needs an argument: --{0}")]
    NoValue(String),
    /// A switch that is neither on nor off.
    #[error("invalid argument {value:?} for \"--{flag}\" flag: expected true or false")]
    Switch {
        /// The flag.
        flag: String,
        /// Its value.
        value: String,
    },
    /// It would change what this server does, and cannot.
    #[error("--{flag}={value} is not supported by kaji's kube-apiserver: {why}")]
    Unsupported {
        /// The flag.
        flag: String,
        /// Its value.
        value: String,
        /// What is lacking.
        why: String,
    },
}

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandLine {
    /// `--help`, `--version`: a text to print.
    Print(String),
    /// A server: kaji's command line, without the program.
    Start(Vec<String>),
}

/// Translates the arguments of kube-apiserver (without the program) for the subcommand `kaji apiserver`, which is
/// `command`. `controllers` names the controllers to run, unless the arguments do.
///
/// # Errors
/// For what kube-apiserver would not understand, and for what would change this server in a way that it cannot.
pub fn apiserver(
    args: impl IntoIterator<Item = String>,
    command: &Command,
    controllers: Option<&str>,
) -> Result<CommandLine, FlagError> {
    let mut kept = Kept { command, values: BTreeMap::new(), without_effect: vec![] };
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some((name, value)) = split(&arg)? else { continue };
        match name {
            "help" => return Ok(CommandLine::Print(help(command))),
            "version" => return Ok(CommandLine::Print(format!("Kubernetes {}\n", kaji_server::version()))),
            _ => {}
        }
        let kind = match flags::find(name) {
            _ if name == CONTROLLERS => Kind::Value,
            Some((kind, _)) => kind,
            None => return Err(FlagError::Unknown(name.into())),
        };
        let value = match (value, kind) {
            (Some(value), Kind::Switch) => switch(name, value)?.to_string(),
            (Some(value), Kind::Value) => value.to_owned(),
            (None, Kind::Switch) => "true".into(),
            (None, Kind::Value) => args.next().ok_or_else(|| FlagError::NoValue(name.into()))?,
        };
        kept.flag(name, value)?;
    }
    if let Some(controllers) = controllers {
        kept.values.entry(format!("--{}", controllers_flag())).or_insert_with(|| vec![controllers.into()]);
    }
    let mut args: Vec<String> = ["apiserver", "--store=memory", "--no-kubeconfig"].map(String::from).into();
    args.extend(kept.values.into_iter().flat_map(|(flag, values)| {
        values
            .into_iter()
            .map(move |value| if value.is_empty() { flag.clone() } else { format!("{flag}={value}") })
    }));
    if !kept.without_effect.is_empty() {
        tracing::info!(flags = kept.without_effect.join(" "), "without effect here");
    }
    Ok(CommandLine::Start(args))
}

fn controllers_flag() -> &'static str {
    CONTROLLERS.trim_start_matches("kaji-")
}

/// Name and value of a flag; `None` for the end of flags.
fn split(arg: &str) -> Result<Option<(&str, Option<&str>)>, FlagError> {
    if arg == "--" {
        return Ok(None);
    }
    if let Some(flag) = arg.strip_prefix("--") {
        return Ok(Some(flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)))));
    }
    match arg.strip_prefix('-').map(|flag| flag.split_at(flag.len().min(1))) {
        Some(("h", "")) => Ok(Some(("help", None))),
        Some(("v", "")) => Ok(Some(("v", None))),
        Some(("v", value)) => Ok(Some(("v", Some(value.trim_start_matches('='))))),
        _ => Err(FlagError::Argument(arg.into())),
    }
}

/// Go's `strconv.ParseBool`.
fn switch(flag: &str, value: &str) -> Result<bool, FlagError> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(FlagError::Switch { flag: flag.into(), value: value.into() }),
    }
}

struct Kept<'a> {
    command: &'a Command,
    /// By kaji's flag; a value may be empty for a switch that is on.
    values: BTreeMap<String, Vec<String>>,
    without_effect: Vec<String>,
}

impl Kept<'_> {
    fn flag(&mut self, name: &str, value: String) -> Result<(), FlagError> {
        let own = if name == CONTROLLERS { controllers_flag() } else { name };
        if let Some(arg) = find(self.command, own) {
            let flag = format!("--{}", arg.get_long().unwrap_or(own));
            let values = self.values.entry(flag.clone()).or_default();
            match arg.get_action() {
                ArgAction::Append => values.push(value),
                ArgAction::SetTrue if value == "true" => *values = vec![String::new()],
                ArgAction::SetTrue => drop(self.values.remove(&flag)),
                // As in Go, the last one counts.
                _ => *values = vec![value],
            }
            return Ok(());
        }
        let meaning = flags::find(name).map_or(flags::Meaning::Refused, |(_, meaning)| meaning);
        if !meaning.accepts(&value) {
            return Err(FlagError::Unsupported { flag: name.into(), value, why: meaning.why() });
        }
        self.without_effect.push(format!("--{name}={value}"));
        Ok(())
    }
}

/// kaji's flag of a name or another name.
fn find<'a>(command: &'a Command, name: &str) -> Option<&'a clap::Arg> {
    if ["etcd-", "storage-"].iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    command.get_arguments().find(|arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    })
}

/// One flag a line, at its start, where envtest searches for flags.
fn help(command: &Command) -> String {
    let mut text = String::from(
        "kube-apiserver, as kaji has it for tests: objects are kept in memory and end with it.\n\nCarried out:\n",
    );
    let (own, other): (Vec<_>, Vec<_>) = flags::names().partition(|name| find(command, name).is_some());
    let (refused, accepted): (Vec<_>, Vec<_>) = other
        .into_iter()
        .partition(|name| flags::find(name).is_some_and(|(_, meaning)| meaning == flags::Meaning::Refused));
    for name in own.into_iter().chain([CONTROLLERS]) {
        text += &format!("  --{name}\n");
    }
    text += "\nAccepted without effect, where they ask for nothing else than what is so anyway:\n";
    for name in accepted {
        text += &format!("  --{name}\n");
    }
    text + "\nNot supported: " + &refused.join(", ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn kaji() -> Command {
        Command::new("apiserver")
            .arg(Arg::new("port").long("port").alias("secure-port"))
            .arg(Arg::new("ca").long("client-ca-file"))
            .arg(
                Arg::new("ranges")
                    .long("service-cidr")
                    .alias("service-cluster-ip-range")
                    .action(ArgAction::Append),
            )
            .arg(Arg::new("controllers").long("controllers").action(ArgAction::Append))
            .arg(Arg::new("profiling").long("profiling").action(ArgAction::SetTrue))
            .arg(Arg::new("modes").long("authorization-mode").action(ArgAction::Append))
            .arg(Arg::new("plugins").long("disable-admission-plugins").action(ArgAction::Append))
            .arg(Arg::new("data").long("data-dir"))
            .arg(Arg::new("etcd").long("etcd-servers"))
    }

    fn line(args: &[&str]) -> Result<String, String> {
        match apiserver(args.iter().map(|a| (*a).to_owned()), &kaji(), None) {
            Ok(CommandLine::Start(args)) => Ok(args.join(" ")),
            Ok(CommandLine::Print(text)) => Err(text),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn what_envtest_passes_is_understood() {
        let args = [
            "--allow-privileged=true",
            "--authorization-mode=RBAC",
            "--client-ca-file=/tmp/x/client-cert-auth-ca.crt",
            "--disable-admission-plugins=ServiceAccount",
            "--etcd-servers=http://127.0.0.1:41133",
            "--secure-port=40099",
            "--service-account-issuer=https://127.0.0.1:40099/",
            "--service-cluster-ip-range=10.0.0.0/24",
        ];
        expect_test::expect!["apiserver --store=memory --no-kubeconfig --authorization-mode=RBAC --client-ca-file=/tmp/x/client-cert-auth-ca.crt --disable-admission-plugins=ServiceAccount --port=40099 --service-cidr=10.0.0.0/24"]
            .assert_eq(&line(&args).unwrap());
    }

    #[test]
    fn values_are_read_as_go_reads_them() {
        let start = "apiserver --store=memory --no-kubeconfig";
        let own = |args: &[&str]| line(args).map(|own| own[start.len()..].trim().to_owned());
        assert_eq!(own(&["--secure-port", "1", "--secure-port=2"]), Ok("--port=2".into()));
        assert_eq!(
            own(&["--service-cluster-ip-range=a,b", "--service-cluster-ip-range", "c"]),
            Ok("--service-cidr=a,b --service-cidr=c".into())
        );
        assert_eq!(own(&["--profiling"]), Ok("--profiling".into()));
        assert_eq!(own(&["--profiling=t", "--profiling=0"]), Ok("".into()));
        assert_eq!(own(&["-v=4", "-v2", "-v", "9", "--v=1", "--"]), Ok("".into()));
        assert_eq!(own(&["--kaji-controllers=namespace"]), Ok("--controllers=namespace".into()));
        let chosen = apiserver([], &kaji(), Some("gc")).unwrap();
        let CommandLine::Start(args) = chosen else { panic!("{chosen:?}") };
        assert_eq!(args.last().unwrap(), "--controllers=gc");
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for (args, error) in [
            (&["--insecure-port=0"][..], "unknown flag: --insecure-port"),
            // kaji's own flags are none of kube-apiserver's.
            (&["--data-dir=x"], "unknown flag: --data-dir"),
            (&["--etcd-servers"], "flag needs an argument: --etcd-servers"),
            (&["serve"], "unknown command \"serve\" for \"kube-apiserver\""),
            (
                &["--allow-privileged=maybe"],
                "invalid argument \"maybe\" for \"--allow-privileged\" flag: expected true or false",
            ),
            (
                &["--allow-privileged=F"],
                "--allow-privileged=false is not supported by kaji's kube-apiserver: only true is supported",
            ),
            (
                &["--audit-policy-file", "p.yaml"],
                "--audit-policy-file=p.yaml is not supported by kaji's kube-apiserver: this server does not have it",
            ),
        ] {
            assert_eq!(line(args), Err(error.into()), "{args:?}");
        }
    }

    #[test]
    fn help_lists_what_envtest_looks_for() {
        let help = line(&["--help"]).unwrap_err();
        let has = |flag: &str| help.lines().any(|l| l.trim_start() == flag);
        assert!(has("--secure-port"));
        assert!(has("--etcd-servers"));
        assert!(!has("--insecure-port"));
        assert!(!has("--audit-policy-file"));
        assert!(line(&["--version"]).unwrap_err().starts_with("Kubernetes v1.37"));
    }
}
