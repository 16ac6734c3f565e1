//! `kaji test`: tests of an operator by faults, and `kaji test replay` for a plan that found something.
//!
//! Exit codes: 0 when all laws hold, 1 when there is no outcome, 3 when a law does not hold.

use clap::{Args, Subcommand};
use kaji::operator_tests::in_process;
use kaji_operator_test::{
    explore::{Exploration, Settings, explore, replay},
    operator,
    plan::PlanFile,
    report,
    scenario::Scenario,
};
use std::{
    error::Error,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

const FAILED: u8 = 3;
/// As shells have it of a program that a signal ended.
const STOPPED: i32 = 130;
/// Below the directory of the report, what runs leave: their logs and kubeconfigs.
const RUNS: &str = "runs";

/// Flags of `kaji test`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Test {
    #[command(subcommand)]
    command: Option<TestCommand>,
    /// The file of the scenario.
    #[arg(required = true, value_name = "SCENARIO")]
    scenario: Option<PathBuf>,
    /// Draws which points are tried if there are more than the limit, and combinations of faults.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Runs at the same time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// So many plans of three faults, besides those of one.
    #[arg(long, default_value_t = 0)]
    combinations: usize,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct Output {
    /// The directory of the report: JUnit, JSON, plans and timelines.
    #[arg(long, short, value_name = "DIR", default_value = "kaji-test-report")]
    output: PathBuf,
}

#[derive(Subcommand)]
enum TestCommand {
    /// Runs a plan again.
    Replay(Replay),
}

/// Flags of `kaji test replay`.
#[derive(Args)]
struct Replay {
    /// The file of the plan.
    plan: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Tests an operator.
pub async fn test(args: Test) -> Result<ExitCode, Box<dyn Error>> {
    // Runs are on threads of their own, which end with the process.
    let stop = async {
        let stopped = crate::stop_signal().await;
        operator::kill_all();
        stopped
    };
    tokio::select! {
        outcome = carry_out(args) => outcome,
        stopped = stop => {
            stopped?;
            std::process::exit(STOPPED)
        }
    }
}

async fn carry_out(args: Test) -> Result<ExitCode, Box<dyn Error>> {
    let (seed, jobs) = (args.seed, usize::from(args.jobs));
    match args.command {
        Some(TestCommand::Replay(args)) => {
            let plan = PlanFile::read(&args.plan)?;
            let scenario = Arc::new(Scenario::read(&plan.scenario)?);
            let runs = runs_directory(&args.output.output)?;
            let explored = replay(scenario, in_process(), runs, plan.faults).await?;
            conclude(&explored, (&plan.scenario, plan.seed), &args.output.output, true)
        }
        None => {
            let path = args.scenario.ok_or("there is no scenario")?;
            let path = std::path::absolute(path)?;
            let scenario = Arc::new(Scenario::read(&path)?);
            let runs = runs_directory(&args.output.output)?;
            let settings = Settings { seed, jobs, combinations: args.combinations };
            let progress = |text: &str| {
                // Progress that is not shown changes nothing.
                let _ = writeln!(std::io::stderr(), "{text}");
            };
            let explored = explore(scenario, in_process(), runs, settings, progress).await?;
            conclude(&explored, (&path, seed), &args.output.output, false)
        }
    }
}

/// An empty directory for runs.
fn runs_directory(output: &Path) -> std::io::Result<PathBuf> {
    let runs = std::path::absolute(output)?.join(RUNS);
    if runs.exists() {
        std::fs::remove_dir_all(&runs)?;
    }
    std::fs::create_dir_all(&runs)?;
    Ok(runs)
}

fn conclude(
    explored: &Exploration,
    scenario: (&Path, u64),
    directory: &Path,
    with_timeline: bool,
) -> Result<ExitCode, Box<dyn Error>> {
    let written = report::write_all(explored, scenario, directory)?;
    let mut out = std::io::stdout().lock();
    if with_timeline {
        for tried in &explored.tried {
            write!(out, "{}", report::timeline(&tried.run))?;
        }
    }
    write!(out, "{}", report::summary(explored, &written))?;
    writeln!(out, "{}\nThe report is in {}.", report::REPEATABLE, directory.display())?;
    let holds = explored.reference.violations.is_empty()
        && explored.tried.iter().all(|tried| tried.violations.is_empty());
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
