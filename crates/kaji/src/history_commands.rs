//! `kaji history`, `diff`, `blame`, `get --at`, `restore` and `tree`: how an object came to be as it is, with the rights of the caller.
//!
//! Exit codes: 0; 1 when there is no answer, or when a restoration was not confirmed; 2 for a malformed command line.

mod restore;

pub use restore::{Restore, restore};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kaji_access::client_connection::config_of_flags;
use kaji_explain::{
    ApiServer, Subject,
    history::{
        self, FieldChange, Moment, ObjectHistory, RecentChange, RecentChanges, RecentError, Revision,
        recent_table,
    },
};
use kaji_options::ClientConnectionFlags;
use serde_json::Value;
use std::{
    error::Error,
    fmt::Display,
    io::{self, ErrorKind, Write},
};

/// The object, and how its server is reached.
#[derive(Args)]
pub struct Object {
    /// KIND/NAME or KIND NAME, as kubectl takes it.
    #[arg(required = true, num_args = 1..=2, value_name = "KIND/NAME")]
    subject: Vec<String>,
    #[command(flatten)]
    connection: ClientConnectionFlags,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ObjectForm {
    Yaml,
    Json,
}

/// Flags of `kaji history`.
#[derive(Args)]
pub struct History {
    /// KIND/NAME or KIND NAME, as kubectl takes it. Default: what changed in the namespace.
    #[arg(num_args = 0..=2, value_name = "KIND/NAME")]
    subject: Vec<String>,
    /// What changed in all namespaces, and outside of them.
    #[arg(long, short = 'A', conflicts_with_all = ["subject", "namespace"])]
    all_namespaces: bool,
    /// Since when: a time (2026-01-31T12:00:00Z), or how long ago (5m).
    #[arg(long, value_name = "TIME", default_value = "1h", conflicts_with = "subject")]
    since: String,
    /// Goes on with each change as it comes, until Ctrl-C.
    #[arg(long, short, visible_short_alias = 'w', visible_alias = "watch", conflicts_with = "subject")]
    follow: bool,
    /// The form of the answer; JSON has the states as well, and a change a line where they are followed.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    connection: ClientConnectionFlags,
}

/// Flags of `kaji diff`.
#[derive(Args)]
pub struct Diff {
    /// From when: a time (2026-01-31T12:00:00Z), how long ago (5m), or a resourceVersion. Default: before the change that --to ends with.
    #[arg(long, value_name = "MOMENT")]
    from: Option<String>,
    /// To when. Default: the end of what is recorded.
    #[arg(long, value_name = "MOMENT")]
    to: Option<String>,
    /// The form of the answer.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    object: Object,
}

/// Flags of `kaji blame`.
#[derive(Args)]
pub struct Blame {
    /// The form of the answer.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    object: Object,
}

/// Flags of `kaji get`.
#[derive(Args)]
pub struct Get {
    /// When: a time (2026-01-31T12:00:00Z), how long ago (5m), or a resourceVersion.
    #[arg(long, value_name = "MOMENT")]
    at: String,
    /// The form of the object.
    #[arg(long, short, value_name = "FORM", default_value = "yaml")]
    output: ObjectForm,
    #[command(flatten)]
    object: Object,
}

/// Flags of `kaji tree`.
#[derive(Args)]
pub struct Tree {
    /// The form of the answer.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    object: Object,
}

impl Object {
    /// The server, the object's name, and the namespace.
    async fn connect(&self) -> Result<(ApiServer, Subject, String), Box<dyn Error>> {
        let config = config_of_flags(&self.connection).await?;
        let namespace = config.default_namespace.clone();
        let server = ApiServer::new(kube::Client::try_from(config)?);
        Ok((server, Subject::parse(&self.subject)?, namespace))
    }

    async fn history(&self) -> Result<(ApiServer, ObjectHistory), Box<dyn Error>> {
        let (server, subject, namespace) = self.connect().await?;
        let history = ObjectHistory::read(&server, &subject, &namespace).await?;
        Ok((server, history))
    }
}

/// A moment of the command line.
fn moment(text: &str) -> Result<Moment, String> {
    Moment::parse(text, Timestamp::now())
}

/// The state at a moment; what is missing before it goes to standard error.
fn state<'a>(history: &'a ObjectHistory, moment: &Moment) -> Result<&'a Revision, Box<dyn Error>> {
    let (found, missing) = history.at(moment)?;
    for gap in missing {
        tell(&format!("revisions {} to {} are missing: {}", gap.since, gap.revision, gap.message));
    }
    Ok(found)
}

/// Says something beside the answer.
fn tell(text: &dyn Display) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn print(text: &dyn Display) -> Result<(), Box<dyn Error>> {
    Ok(write!(std::io::stdout().lock(), "{text}")?)
}

fn lines(changes: &[FieldChange]) -> String {
    changes.iter().map(ToString::to_string).collect()
}

/// Shows all revisions of an object, or what changed in a namespace.
pub async fn history(args: History) -> Result<(), Box<dyn Error>> {
    if args.subject.is_empty() {
        return recent(args).await;
    }
    let object = Object { subject: args.subject, connection: args.connection };
    let (_, history) = object.history().await?;
    match args.output {
        Form::Text => print(&history.table()),
        Form::Json => print(&format!("{}\n", serde_json::to_string_pretty(&history.revisions)?)),
    }
}

async fn recent(args: History) -> Result<(), Box<dyn Error>> {
    let Moment::Time(since) = moment(&args.since)? else {
        return Err(format!("--since {}: it takes a time or a duration", args.since).into());
    };
    let config = config_of_flags(&args.connection).await?;
    let namespace = if args.all_namespaces { String::new() } else { config.default_namespace.clone() };
    let server = ApiServer::new(kube::Client::try_from(config)?);
    let mut recent = RecentChanges::open(&server, &namespace, since, args.output == Form::Json).await?;
    if args.follow {
        let (form, all) = (args.output, args.all_namespaces);
        let mut show = |change: &RecentChange| show_line(change, form, all);
        return match recent.follow(&mut show, &mut |text| tell(&text)).await {
            // The reader has seen enough.
            Err(RecentError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(()),
        };
    }
    let found = recent.read().await?;
    match args.output {
        Form::Json => print(&format!("{}\n", serde_json::to_string_pretty(&found)?)),
        Form::Text if found.is_empty() => {
            tell(&format!("Nothing changed since {since}, of what you may see."));
            Ok(())
        }
        Form::Text => print(&recent_table(&found, args.all_namespaces)),
    }
}

fn show_line(change: &RecentChange, form: Form, all_namespaces: bool) -> io::Result<()> {
    let line = match form {
        Form::Text => change.line(all_namespaces),
        Form::Json => serde_json::to_string(change)?,
    };
    writeln!(io::stdout().lock(), "{line}")
}

/// Shows what differs between two states.
pub async fn diff(args: Diff) -> Result<(), Box<dyn Error>> {
    let (_, history) = args.object.history().await?;
    let to = args.to.as_deref().map_or(Ok(Moment::Latest), moment)?;
    let after = state(&history, &to)?;
    let before = match args.from.as_deref().map(moment).transpose()? {
        Some(from) => Some(state(&history, &from)?),
        None => history.before(after.revision)?,
    };
    let value = |revision: Option<&Revision>| revision.and_then(|r| r.state.clone()).unwrap_or(Value::Null);
    let changes = history::changes(&value(before), &value(Some(after)));
    match args.output {
        Form::Text => print(&lines(&changes)),
        Form::Json => print(&format!("{}\n", serde_json::to_string_pretty(&changes)?)),
    }
}

/// Shows the request that each field is from.
pub async fn blame(args: Blame) -> Result<(), Box<dyn Error>> {
    let (_, history) = args.object.history().await?;
    match args.output {
        Form::Text => print(&history::blame(&history)),
        Form::Json => print(&format!("{}\n", serde_json::to_string_pretty(&history::origins(&history))?)),
    }
}

/// Shows the object as it was.
pub async fn get(args: Get) -> Result<(), Box<dyn Error>> {
    let at = moment(&args.at)?;
    let (_, history) = args.object.history().await?;
    let found = state(&history, &at)?.state.clone().unwrap_or_default();
    match args.output {
        ObjectForm::Yaml => print(&kaji_schema::yaml::document(&found)),
        ObjectForm::Json => print(&format!("{found:#}\n")),
    }
}

/// Shows what an object hangs on and what hangs on it.
pub async fn tree(args: Tree) -> Result<(), Box<dyn Error>> {
    let (server, subject, namespace) = args.object.connect().await?;
    let tree = kaji_explain::tree(&server, &subject, &namespace).await?;
    match args.output {
        Form::Text => print(&tree),
        Form::Json => print(&format!("{}\n", serde_json::to_string_pretty(&tree)?)),
    }
}
