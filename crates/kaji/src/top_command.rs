//! `kaji top`: what nodes and pods use at present, once or again and again.
//!
//! Exit codes: 0; 1 when there are no figures; 2 for a malformed command line.

use clap::{Args, ValueEnum};
use kaji_access::client_connection::config_of_flags;
use kaji_explain::{
    ApiServer,
    top::{self, Order, UsageQuery},
};
use kaji_options::ClientConnectionFlags;
use std::{
    error::Error,
    io::{self, ErrorKind, IsTerminal, Write},
    time::Duration,
};

/// Between two requests.
const SHORTEST: Duration = Duration::from_millis(200);

/// Flags of `kaji top`.
#[derive(Args)]
pub struct Top {
    /// What. Default: nodes, and the pods of the namespace.
    #[arg(value_name = "KIND", ignore_case = true)]
    what: Option<What>,
    /// One object.
    #[arg(value_name = "NAME", conflicts_with = "selector")]
    name: Option<String>,
    /// Only objects with these labels.
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    selector: Option<String>,
    /// Pods of all namespaces.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Each container of the pods.
    #[arg(long)]
    containers: bool,
    /// The largest first, by what.
    #[arg(long, value_name = "COLUMN", default_value = "name")]
    sort_by: SortBy,
    /// Again and again until Ctrl-C; on a terminal in place.
    #[arg(long, short)]
    watch: bool,
    /// How long to wait before each further time.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    interval: Duration,
    /// The form of the answer.
    #[arg(long, short, value_name = "FORM", default_value = "text", conflicts_with = "watch")]
    output: Form,
    #[command(flatten)]
    connection: ClientConnectionFlags,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    #[value(aliases = ["node", "no"])]
    Nodes,
    #[value(aliases = ["pod", "po"])]
    Pods,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SortBy {
    Name,
    Cpu,
    Memory,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

fn duration(text: &str) -> Result<Duration, String> {
    Ok(kaji_meta::duration::parse_non_negative(text)?.max(SHORTEST))
}

/// Shows what is used.
pub async fn top(args: Top) -> Result<(), Box<dyn Error>> {
    let config = config_of_flags(&args.connection).await?;
    let namespace = if args.all_namespaces { String::new() } else { config.default_namespace.clone() };
    let server = ApiServer::new(kube::Client::try_from(config)?);
    let order = match args.sort_by {
        SortBy::Name => Order::Name,
        SortBy::Cpu => Order::Cpu,
        SortBy::Memory => Order::Memory,
    };
    let query = UsageQuery { namespace, name: args.name.clone(), selector: args.selector.clone(), order };
    let mut text = answer(&server, &args, &query).await?;
    if !args.watch {
        return Ok(show(&text, false)?);
    }
    loop {
        match show(&text, true) {
            // The reader has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
        tokio::time::sleep(args.interval).await;
        // A server that is away for a moment ends nothing.
        text = answer(&server, &args, &query).await.unwrap_or_else(|error| format!("{error}\n"));
    }
}

fn show(text: &str, in_place: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let size = rustix::termios::tcgetwinsize(&out).ok().filter(|_| in_place && out.is_terminal());
    match size {
        Some(size) => out.write_all(top::screen(text, size.ws_row, size.ws_col).as_bytes())?,
        None => out.write_all(text.as_bytes())?,
    }
    out.flush()
}

async fn answer(server: &ApiServer, args: &Top, query: &UsageQuery) -> Result<String, Box<dyn Error>> {
    let nodes = match args.what {
        Some(What::Pods) => None,
        Some(What::Nodes) => Some(top::nodes(server, query).await?),
        None => match top::nodes(server, query).await {
            Ok(nodes) => Some(nodes),
            // Pods can be shown without.
            Err(error) => {
                writeln!(io::stderr(), "{error}")?;
                None
            }
        },
    };
    let pods = match args.what {
        Some(What::Nodes) => None,
        _ => Some(top::pods(server, query).await?),
    };
    if args.output == Form::Json {
        let value = match (&nodes, &pods) {
            (Some(nodes), None) => serde_json::json!(nodes),
            (None, Some(pods)) if args.what.is_some() => serde_json::json!(pods),
            _ => serde_json::json!({"nodes": nodes, "pods": pods}),
        };
        return Ok(format!("{value:#}\n"));
    }
    let mut tables = vec![];
    tables.extend(nodes.map(|nodes| top::node_table(&nodes)));
    tables.extend(pods.map(|pods| top::pod_table(&pods, args.containers, args.all_namespaces)));
    Ok(tables.join("\n"))
}
