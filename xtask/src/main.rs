//! Chores of the repository: `cargo xtask <command>`. Each command is one module; nothing here is part of the product.

use std::{error::Error, io::Write, path::Path, process::ExitCode};

use clap::{Parser, Subcommand};

mod bench;
mod chaos;
mod codegen;
mod console_vendor;
mod dist;
mod fuzz;
mod package;
mod tidy;
mod watches;

#[derive(Parser)]
#[command(name = "xtask", about = "Chores of the Kaji repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure a running API server from outside.
    Bench(Box<bench::Args>),
    /// Kill and pause real servers and etcd members under load, and compare what clients saw with one order of all writes.
    Chaos(chaos::Args),
    /// Compare watches and lists under random writes with what was acknowledged.
    CheckWatches(watches::Args),
    /// Write the table of built-in types from public Kubernetes sources.
    Codegen(codegen::Args),
    /// Bundle the console's libraries anew, with npm.
    ConsoleVendor,
    /// Build the program as it is shipped.
    Dist(dist::Args),
    /// Run the fuzz targets, each for a while.
    Fuzz(fuzz::Args),
    /// Make what is released of programs that were built for their targets.
    Package(package::Args),
    /// Check the rules of the tree that no compiler checks.
    Tidy,
}

/// Cargo as it is in the environment. Started by its path in a toolchain instead, it would leave rustup to choose the compiler
/// by the folder of each dependency.
fn cargo() -> std::process::Command {
    std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn main() -> ExitCode {
    let result: Result<(), Box<dyn Error>> = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args).map_err(Into::into),
        Command::Chaos(args) => chaos::run(root(), &args).map_err(Into::into),
        Command::CheckWatches(args) => watches::run(root(), &args).map_err(Into::into),
        Command::Codegen(args) => codegen::run(&args).map_err(Into::into),
        Command::ConsoleVendor => console_vendor::run(root()).map_err(Into::into),
        Command::Dist(args) => dist(&args),
        Command::Fuzz(args) => fuzz::run(root(), &args).map_err(Into::into),
        Command::Package(args) => package::run(root(), &args).map(drop).map_err(Into::into),
        Command::Tidy => tidy(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Nothing is left to be done when standard error is gone.
            let _ = writeln!(std::io::stderr(), "xtask: {e}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Builds the program, and says how large it is.
fn dist(args: &dist::Args) -> Result<(), Box<dyn Error>> {
    let program = dist::run(root(), args)?;
    let bytes = std::fs::metadata(&program)?.len();
    writeln!(std::io::stderr(), "{}: {:.1} MB", program.display(), bytes as f64 / 1e6)?;
    Ok(())
}

/// Prints every complaint; fails if there is any.
fn tidy() -> Result<(), Box<dyn Error>> {
    let complaints = tidy::check(root())?;
    for complaint in &complaints {
        writeln!(std::io::stderr(), "{complaint}")?;
    }
    if complaints.is_empty() { Ok(()) } else { Err(format!("{} complaints", complaints.len()).into()) }
}
