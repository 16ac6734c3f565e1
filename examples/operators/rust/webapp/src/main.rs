//! An operator as it is put to use: a controller for `WebApp` objects, their webhooks, and leader election.
//!
//! Start with `types.rs` (the kind), then `controller.rs` (what is done about it).

mod controller;
mod hosts;
mod lease;
mod types;
mod webhook;

use clap::{Parser, Subcommand};
use hosts::Hosts;
use kube::{Api, Client, CustomResourceExt};
use std::{io::Write, path::PathBuf, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

type Error = Box<dyn std::error::Error>;

/// Runs web applications: image, replicas and port become a deployment and a service.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// The operator's own namespace: the lease and the list of hosts are there.
    #[arg(long, default_value = "default")]
    namespace: String,
    /// What distinguishes this instance from others.
    #[arg(long, env = "HOSTNAME")]
    identity: Option<String>,
    /// After how many seconds another instance takes over from one that is silent.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..))]
    lease_seconds: u64,
    /// A folder with tls.crt and tls.key; no webhooks are served without it.
    #[arg(long, value_name = "DIR")]
    webhook_cert_dir: Option<PathBuf>,
    /// Where webhooks are served.
    #[arg(long, default_value = "127.0.0.1:9443")]
    webhook_bind_address: String,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the definition of the kind and ends.
    Crd,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let cli = Cli::parse();
    if let Some(Command::Crd) = cli.command {
        let definition = serde_saphyr::to_string(&types::WebApp::crd())?;
        return Ok(std::io::stdout().write_all(definition.as_bytes())?);
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    run(cli).await
}

async fn run(cli: Cli) -> Result<(), Error> {
    let client = Client::try_default().await?;
    let hosts = Hosts::new(client.clone(), &cli.namespace);
    // Every instance answers webhooks; one of them runs the controller.
    if let Some(dir) = &cli.webhook_cert_dir {
        let listener = tokio::net::TcpListener::bind(&cli.webhook_bind_address).await?;
        tracing::info!("webhooks are served on {}", listener.local_addr()?);
        tokio::spawn(webhook::serve(listener, webhook::tls(dir)?, hosts.clone()));
    }

    let (stopping, mut stopped) = tokio::sync::watch::channel(());
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        drop(stopping);
    });

    let identity = cli.identity.unwrap_or_else(|| format!("{}-{}", controller::NAME, std::process::id()));
    let leases = Api::namespaced(client.clone(), &cli.namespace);
    let duration = Duration::from_secs(cli.lease_seconds);
    let mut candidate = lease::Candidate::new(leases, controller::NAME, &identity, duration);
    let mut stopped_waiting = stopped.clone();
    tokio::select! {
        () = candidate.lead() => {}
        _ = stopped_waiting.changed() => return Ok(()),
    }
    tracing::info!(%identity, "leading");
    let until_stopped = async move {
        let _ = stopped.changed().await;
    };
    let work = controller::run(client, hosts, identity, until_stopped);
    tokio::select! {
        () = work => {}
        // Another may lead already: nothing may be written any more, not even to finish something.
        () = candidate.keep() => return Err("the lease is lost".into()),
    }
    candidate.step_down().await?;
    Ok(())
}
