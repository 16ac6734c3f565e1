//! `kaji why`, also as `kubectl why`: explains the state of an object, or a refusal, with the rights of the caller.
//!
//! Exit codes: 0 when nothing is wrong, 1 when the explanation could not be made, 2 for a malformed command line, and those of
//! `kaji_explain::Sort` by the first cause.

use crate::Cli;
use clap::{Args, Parser, ValueEnum};
use kaji_access::client_connection::config_of_flags;
use kaji_explain::{ApiServer, Report, Subject, explain, explain_text};
use kaji_options::ClientConnectionFlags;
use std::{ffi::OsStr, io::Write, path::Path, process::ExitCode};

/// The name under which kubectl finds a plug-in for `kubectl why`.
const PLUGIN: &str = "kubectl-why";

/// Flags of `kaji why`.
#[derive(Args)]
pub struct Why {
    /// KIND/NAME or KIND NAME, as kubectl takes it; or the text of a refusal: 'pods is forbidden: User "bob" cannot list …', 'Apply failed
    /// with 1 conflict: …' (KIND/NAME before it says of which object), '… failed calling webhook …'.
    #[arg(required = true, num_args = 1..=2, value_name = "KIND/NAME")]
    subject: Vec<String>,
    /// The form of the answer.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    connection: ClientConnectionFlags,
}

#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// Whether this program was started as a plug-in of kubectl.
pub fn is_plugin(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == PLUGIN || name == "kubectl-why.exe")
}

/// The command line of the plug-in.
pub fn as_plugin() -> Cli {
    Cli::parse_from(["kaji".into(), "why".into()].into_iter().chain(std::env::args_os().skip(1)))
}

/// Explains, and exits by the cause.
pub async fn why(args: Why) -> ExitCode {
    match answer(&args).await {
        Ok(report) => match print(&report, args.output) {
            Ok(()) => ExitCode::from(report.exit_code()),
            Err(error) => crate::fail(&error),
        },
        Err(error) => crate::fail(&*error),
    }
}

fn print(report: &Report, form: Form) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match form {
        Form::Text => write!(out, "{report}"),
        Form::Json => {
            serde_json::to_writer_pretty(&mut out, report)?;
            writeln!(out)
        }
    }
}

async fn answer(args: &Why) -> Result<Report, Box<dyn std::error::Error>> {
    let config = config_of_flags(&args.connection).await?;
    let namespace = config.default_namespace.clone();
    let server = ApiServer::new(kube::Client::try_from(config)?);
    let now = jiff::Timestamp::now();
    // The text is the last argument; what is before it, if anything, the object.
    if let Some((text, before)) = args.subject.split_last() {
        let subject = Subject::parse(before).ok();
        if let Some(report) = explain_text(&server, text, subject.as_ref(), &namespace, now).await? {
            return Ok(report);
        }
    }
    let subject = Subject::parse(&args.subject)?;
    Ok(explain(&server, &subject, &namespace, now).await?)
}
