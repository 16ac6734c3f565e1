//! `kaji console`: the console in a browser, on a loopback address, with a kubeconfig's credentials.

use clap::Args;
use kaji_access::client_connection::config_of_flags;
use kaji_console_proxy::{Proxy, serve};
use kaji_meta::random::SystemRandom;
use kaji_options::ClientConnectionFlags;
use std::{
    error::Error,
    io::{BufRead, IsTerminal, Write},
    net::Ipv4Addr,
    process::{Command, Stdio},
    sync::Arc,
};
use tokio::net::TcpListener;

/// Flags of `kaji console`.
#[derive(Args)]
pub struct Console {
    /// Opens the browser.
    #[arg(long)]
    open: bool,
    /// The port of the loopback address to listen on; 0 for any.
    #[arg(long, default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    connection: ClientConnectionFlags,
}

/// Serves the console until a signal comes.
pub async fn console(args: Console) -> Result<(), Box<dyn Error>> {
    let mut config = config_of_flags(&args.connection).await?;
    // A watch may be silent for long.
    config.read_timeout = None;
    let (cluster, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
    let client = kube::Client::try_from(config)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await?;
    let address = format!("http://{}/console/", listener.local_addr()?);
    let proxy = Arc::new(Proxy::new(client, cluster, namespace, Arc::new(SystemRandom)));
    let link = format!("{address}#code={}", proxy.sessions.code());
    writeln!(std::io::stdout().lock(), "{link}")?;
    writeln!(
        std::io::stderr(),
        "The link is good once, for five minutes. Enter prints another, Ctrl-C ends."
    )?;
    if args.open {
        open(&link)?;
    }
    if std::io::stdin().is_terminal() {
        let proxy = proxy.clone();
        std::thread::spawn(move || {
            for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
                if writeln!(std::io::stdout().lock(), "{address}#code={}", proxy.sessions.code()).is_err() {
                    break;
                }
            }
        });
    }
    tokio::select! {
        served = serve(listener, proxy) => served?,
        signal = crate::stop_signal() => signal?,
    }
    Ok(())
}

fn open(link: &str) -> Result<(), Box<dyn Error>> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|error| format!("{program}: {error}; open the link by hand"))?;
    Ok(())
}
