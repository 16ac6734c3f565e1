//! `kaji envtest`: programs for controller-runtime's envtest, and clusters for the tests of a suite, with forks, faults and clocks.

use clap::{Args, Subcommand};
use kaji::operator_tests::in_process;
use kaji_envtest as envtest;
use kaji_meta::random::SystemRandom;
use kaji_operator_test::{
    control::{Announcement, Settings, serve},
    scenario::{ClusterSpec, Limits},
};
use std::{
    error::Error,
    io::{Read, Write},
    path::PathBuf,
    time::Duration,
};
use tokio::sync::oneshot;

/// Flags of `kaji envtest`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Envtest {
    #[command(subcommand)]
    command: Option<EnvtestCommand>,
    /// Writes kube-apiserver, etcd and kubectl into this folder and prints its path, which KUBEBUILDER_ASSETS takes.
    #[arg(long, value_name = "DIR", required = true)]
    print_assets: Option<PathBuf>,
}

#[derive(Subcommand)]
enum EnvtestCommand {
    /// Serves a cluster for a suite of tests, and a control of it by HTTP on the loopback: forks for single tests, faults, jumps of the clock.
    /// Prints the control's URL, its token and the cluster's kubeconfig as one line of JSON; a signal ends everything.
    Serve(Serve),
}

#[derive(Args)]
struct Serve {
    /// Which controllers run: names, * for all, -name for all but one (the scheduler counts as one). Default: none.
    #[arg(long, env = envtest::CONTROLLERS, value_delimiter = ',')]
    controllers: Vec<String>,
    /// Simulated nodes.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1000))]
    nodes: u16,
    /// The port of the control on 127.0.0.1; 0 for any.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// For the data of the clusters: a directory in it, which is removed at the end. Default: that of temporary files.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// How long events are held back where a fault says so.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = Limits::default().delay_millis)]
    delay_millis: u64,
    /// Ends with the standard input, too: with the process that has the other end of it, however that ends.
    #[arg(long)]
    until_stdin_closes: bool,
}

/// Writes the programs, or serves until a signal comes.
pub async fn envtest(args: Envtest) -> Result<(), Box<dyn Error>> {
    match (args.command, args.print_assets) {
        (Some(EnvtestCommand::Serve(args)), _) => serve_clusters(args).await,
        (None, Some(dir)) => {
            let search = std::env::var_os("PATH").unwrap_or_default();
            let dir = envtest::write_assets(&dir, &std::env::current_exe()?, &search)?;
            writeln!(std::io::stdout().lock(), "{}", dir.display())?;
            Ok(())
        }
        (None, None) => Err("there is no --print-assets".into()),
    }
}

async fn serve_clusters(args: Serve) -> Result<(), Box<dyn Error>> {
    let mut controllers = args.controllers;
    if args.nodes > 0 {
        // It takes the taint off nodes that have become ready.
        controllers.push("node-lifecycle-controller".into());
    }
    let settings = Settings {
        spec: ClusterSpec { controllers, nodes: args.nodes, pods_without_accounts: true },
        port: args.port,
        directory: args.directory.unwrap_or_else(std::env::temp_dir),
        delay: Duration::from_millis(args.delay_millis),
    };
    let announce = |announcement: &Announcement| {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, announcement)?;
        writeln!(out)?;
        out.flush()
    };
    let until_stdin_closes = args.until_stdin_closes;
    let stop = async move {
        let closed = async {
            match until_stdin_closes {
                true => closed_stdin().await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = crate::stop_signal() => {
                if let Err(error) = signal {
                    tracing::warn!(%error, "signals are not received");
                }
            }
            () = closed => {}
        }
    };
    Ok(serve(settings, in_process(), &SystemRandom, announce, stop).await?)
}

/// Resolves when there is nothing more to read. A thread waits: the runtime's reader would hold up the end of the process.
async fn closed_stdin() {
    let (sender, closed) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while matches!(std::io::stdin().lock().read(&mut buffer), Ok(1..)) {}
        drop(sender);
    });
    // It is dropped, never sent to.
    let _ = closed.await;
}
