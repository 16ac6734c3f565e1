//! `chaos-server`: `kaji apiserver` with a disk and a clock that obey orders from standard input, for `cargo xtask chaos`.
//!
//! It is built by the feature `chaos` alone and shipped nowhere: the program `kaji` has no flag, variable or file that could make it
//! fail like this. An order is a line:
//!
//! ```text
//! disk good | write-error | short-write | full | sync-error | slow MILLISECONDS
//! power-loss SEED          what is not synced is lost in part, and the process ends
//! clock SECONDS            a step, forward or back
//! ```

mod clock;
mod disk;

use clap::{Parser, Subcommand};
use clock::SteppedClock;
use disk::{FaultyDisk, Mode};
use kaji::{Cluster, Environment, StoreKind, kubeconfig};
use kaji_options::{Options, ServerFlags};
use kaji_store::disk::{DiskOptions, DiskStore};
use std::{
    io::{BufRead, Write},
    process::ExitCode,
    str::FromStr,
    sync::Arc,
    time::Duration,
};
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What the process ends with when the power is lost.
const POWER_LOST: i32 = 9;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// An API server.
    Apiserver(Box<ServerFlags>),
}

/// What can be made to fail.
#[derive(Clone, Default)]
struct Faults {
    disk: Arc<FaultyDisk>,
    clock: Arc<SteppedClock>,
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Disk(Mode),
    PowerLoss(u64),
    Clock(i64),
}

impl FromStr for Order {
    type Err = String;

    fn from_str(line: &str) -> Result<Order, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| text.parse::<i64>().map_err(|e| format!("{text:?}: {e}"));
        Ok(match words[..] {
            ["disk", "good"] => Order::Disk(Mode::Good),
            ["disk", "write-error"] => Order::Disk(Mode::WriteError),
            ["disk", "short-write"] => Order::Disk(Mode::ShortWrite),
            ["disk", "full"] => Order::Disk(Mode::Full),
            ["disk", "sync-error"] => Order::Disk(Mode::SyncError),
            ["disk", "slow", time] => {
                Order::Disk(Mode::Slow(Duration::from_millis(number(time)?.unsigned_abs())))
            }
            ["power-loss", seed] => Order::PowerLoss(number(seed)?.unsigned_abs()),
            ["clock", step] => Order::Clock(number(step)?),
            _ => return Err(format!("no order: {line:?}")),
        })
    }
}

impl Faults {
    fn obey(&self, order: Order) {
        match order {
            Order::Disk(mode) => self.disk.set(mode),
            Order::Clock(step) => self.clock.step(step),
            Order::PowerLoss(seed) => {
                if let Err(error) = self.disk.lose_power(seed) {
                    tracing::error!(%error, "the loss of power is not what it should be");
                }
                std::process::exit(POWER_LOST);
            }
        }
    }

    /// Reads orders until there are no more.
    fn listen(&self) {
        for line in std::io::stdin().lock().lines() {
            match line.map_err(|e| e.to_string()).and_then(|line| line.parse()) {
                Ok(order) => self.obey(order),
                Err(error) => {
                    tracing::error!(error, "an order is not understood");
                    return;
                }
            }
        }
    }

    /// The environment of a server, with a store of its own if that is a directory.
    async fn environment(&self, options: &Options) -> Result<Environment, Box<dyn std::error::Error>> {
        let mut environment =
            Environment { object_clock: self.clock.clone(), ..Environment::machine(options) };
        if options.store == StoreKind::Disk {
            let fault: Arc<dyn kaji_store::disk::Fault> = self.disk.clone();
            let disk =
                DiskOptions { clock: self.clock.clone(), fault: Some(fault), ..DiskOptions::default() };
            let (dir, path) = (options.data_dir.clone(), options.data_dir.join(kaji_storage::STORE));
            let opened = tokio::task::spawn_blocking(move || {
                kaji_files::parent_of_private(&dir)?;
                Ok::<_, std::io::Error>(DiskStore::open(path, disk))
            });
            environment.store = Some(Arc::new(opened.await???));
        }
        Ok(environment)
    }
}

async fn serve(flags: ServerFlags, faults: Faults) -> Result<(), Box<dyn std::error::Error>> {
    let (data_dir, path) = (flags.data_dir.clone(), flags.kubeconfig.clone());
    let (data_dir, path) = (data_dir.ok_or("--data-dir is needed")?, path.ok_or("--kubeconfig is needed")?);
    let options = flags.into_options(&data_dir, false)?;
    let environment = faults.environment(&options).await?;
    let cluster = Cluster::start_in(options, environment).await?;
    kubeconfig::write(
        &path,
        kubeconfig::NAME,
        &cluster.url(),
        &cluster.certificates.trust(),
        &cluster.pki.admin,
    )?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    cluster.stop().await;
    Ok(())
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("KAJI_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let Command::Apiserver(flags) = Cli::parse().command;
    let faults = Faults::default();
    let orders = faults.clone();
    // It ends with the process.
    std::thread::spawn(move || orders.listen());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serve(*flags, faults)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "chaos-server: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders() {
        let parsed = |line: &str| line.parse::<Order>().ok();
        assert_eq!(parsed("disk full"), Some(Order::Disk(Mode::Full)));
        assert_eq!(parsed("disk slow 250"), Some(Order::Disk(Mode::Slow(Duration::from_millis(250)))));
        assert_eq!(parsed("power-loss 7"), Some(Order::PowerLoss(7)));
        assert_eq!(parsed("clock -3600"), Some(Order::Clock(-3600)));
        assert_eq!([parsed("disk"), parsed("clock x"), parsed("")], [None; 3]);
    }
}
