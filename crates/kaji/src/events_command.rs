//! `kaji events`: the events of an object and of all that it owns, or of a namespace, once or as they come.
//!
//! Exit codes: 0; 1 when they cannot be read, also of a stream that ends because the server refuses to go on; 2 for a malformed command line.

use clap::{Args, ValueEnum};
use kaji_access::client_connection::config_of_flags;
use kaji_explain::{
    ApiServer, Subject,
    events::{Event, EventQuery, Events, FollowError, event_table},
};
use kaji_options::ClientConnectionFlags;
use kaji_runtime::{Client, ClientFeed};
use std::{
    error::Error,
    io::{self, ErrorKind, Write},
};

/// Flags of `kaji events`.
#[derive(Args)]
pub struct EventsFlags {
    /// KIND/NAME or KIND NAME, as kubectl takes it: its events, and those of all that it owns. Default: all events of the namespace.
    #[arg(num_args = 0..=2, value_name = "KIND/NAME")]
    subject: Vec<String>,
    /// Goes on with each event as it comes, until Ctrl-C. The server may end watches and be restarted meanwhile.
    #[arg(long, short, visible_short_alias = 'w', visible_alias = "watch")]
    follow: bool,
    /// Of all namespaces.
    #[arg(long, short = 'A', conflicts_with_all = ["subject", "namespace"])]
    all_namespaces: bool,
    /// Only events of these types.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', ignore_case = true)]
    types: Vec<EventType>,
    /// The form of the answer; JSON that is followed has an event a line.
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    connection: ClientConnectionFlags,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EventType {
    #[value(name = "Normal")]
    Normal,
    #[value(name = "Warning")]
    Warning,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// Shows events.
pub async fn events(args: EventsFlags) -> Result<(), Box<dyn Error>> {
    let mut config = config_of_flags(&args.connection).await?;
    if args.follow {
        // A watch may be silent for long.
        config.read_timeout = None;
    }
    let namespace = if args.all_namespaces { String::new() } else { config.default_namespace.clone() };
    let subject = if args.subject.is_empty() { None } else { Some(Subject::parse(&args.subject)?) };
    let name = |sort: &EventType| match sort {
        EventType::Normal => "Normal".to_owned(),
        EventType::Warning => "Warning".to_owned(),
    };
    let query = EventQuery { subject, namespace, types: args.types.iter().map(name).collect() };
    let client = kube::Client::try_from(config)?;
    let (server, feed) = (ApiServer::new(client.clone()), ClientFeed::new(Client::new(client, "kaji")));
    let mut events = Events::open(&server, &feed, &query).await?;
    if args.follow {
        let mut show = |event: &Event| show_line(event, args.output, args.all_namespaces);
        return match events.follow(&mut show, &mut tell).await {
            // The reader has seen enough.
            Err(FollowError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(()),
        };
    }
    let found = events.list().await?;
    events.unknown().iter().for_each(|text| tell(text));
    let mut out = io::stdout().lock();
    match args.output {
        Form::Json => writeln!(out, "{}", serde_json::to_string_pretty(&found)?)?,
        Form::Text if found.is_empty() => tell(&none_of(&query)),
        Form::Text => {
            out.write_all(event_table(&found, args.all_namespaces, jiff::Timestamp::now()).as_bytes())?
        }
    }
    Ok(())
}

fn none_of(query: &EventQuery) -> String {
    let of = query
        .subject
        .as_ref()
        .map_or_else(String::new, |s| format!(" of {}/{} and what it owns", s.kind, s.name));
    let place = if query.namespace.is_empty() { "any namespace" } else { &query.namespace };
    format!(
        "There are no events{of} in {place}. A server forgets events after an hour, unless it was told otherwise (--event-ttl)."
    )
}

fn show_line(event: &Event, form: Form, all_namespaces: bool) -> io::Result<()> {
    let line = match form {
        Form::Text => event.line(all_namespaces),
        Form::Json => serde_json::to_string(event)?,
    };
    writeln!(io::stdout().lock(), "{line}")
}

/// Says something beside the events.
fn tell(text: &str) {
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "{text}");
}
