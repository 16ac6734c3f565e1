//! Chores of the repository: `cargo xtask <command>`. Each command is one module; nothing here is part of the product.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod codegen;

#[derive(Parser)]
#[command(name = "xtask", about = "Chores of the Kaji repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the table of built-in types from public Kubernetes sources.
    Codegen(codegen::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Codegen(args) => codegen::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("xtask: {e}");
            }
            ExitCode::FAILURE
        }
    }
}
