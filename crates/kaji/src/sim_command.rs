//! `kaji sim`: runs seeds of the simulation, and says how to run the ones that fail again.

use clap::{Args, ValueEnum};
use kaji::simulation::WholeCluster;
use kaji_files::yaml;
use kaji_sim::{Numbers, Outcome, Scenario, Settings, run, scenario::churn::LONGEST, shrink::shrink};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fmt,
    io::{self, Write},
    path::PathBuf,
    time::{Duration, Instant},
};

/// A failure is run again so many times at most, for fewer faults.
const SHRINK_RUNS: u32 = 60;

/// What happens in a run.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kind {
    /// A small workload, and faults of all kinds.
    Drawn,
    /// Deployments and jobs that come and go all the time, and nodes that die and return.
    Churn,
}

fn hours(text: &str) -> Result<f64, String> {
    let hours: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let most = LONGEST.as_secs_f64() / 3600.0;
    if hours > 0.0 && hours <= most { Ok(hours) } else { Err(format!("not in 0..={most}")) }
}

#[derive(Args)]
pub struct Sim {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds to run, one after the other.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Simulated nodes.
    #[arg(long, default_value_t = 3)]
    nodes: u16,
    /// Manifests in YAML or JSON: their objects are created at the start, in place of a drawn workload. May be given more than once.
    #[arg(long, short)]
    filename: Vec<PathBuf>,
    /// What happens.
    #[arg(long, value_enum, default_value = "drawn", conflicts_with = "filename")]
    scenario: Kind,
    /// How many hours of the cluster's time a churn takes, such as 0.5.
    #[arg(long, default_value_t = 1.0, value_parser = hours)]
    hours: f64,
    /// Only these faults come about, by the numbers that a former run printed, separated by commas; `none` for none.
    #[arg(long)]
    faults: Option<Numbers>,
    /// Runs every seed twice, and compares both traces.
    #[arg(long)]
    twice: bool,
    /// Looks for fewer faults with which a failed seed still fails.
    #[arg(long)]
    shrink: bool,
    /// Prints the last writes of every run.
    #[arg(long)]
    trace: bool,
}

/// Runs the seeds.
pub fn simulate(args: &Sim) -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout().lock();
    let (began, subject) = (Instant::now(), WholeCluster);
    let (mut failed, mut writes, mut simulated) = (0, 0, Duration::ZERO);
    let objects = manifests(&args.filename)?;
    let scenario = match args.scenario {
        Kind::Churn => Scenario::Churn(Duration::from_secs_f64(args.hours * 3600.0)),
        Kind::Drawn if objects.is_empty() => Scenario::Drawn,
        Kind::Drawn => Scenario::Objects(objects),
    };
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let allowed = args.faults.as_ref().map(|faults| faults.0.clone());
        let settings = Settings { seed, nodes: args.nodes, allowed, scenario: scenario.clone() };
        let mut outcome = run(&settings, &subject)?;
        if args.twice {
            compare(&settings, &subject, &mut outcome)?;
        }
        writes += outcome.writes;
        simulated += outcome.simulated;
        report(&mut out, args, &settings, &outcome)?;
        if !outcome.violations.is_empty() {
            failed += 1;
            if args.shrink {
                fewer_faults(&mut out, args, &settings, &subject, &outcome)?;
            }
        }
    }
    let took = began.elapsed().as_secs_f64();
    writeln!(
        out,
        "{} seeds, {failed} failed: {writes} writes in {} simulated seconds, {took:.1} s (1 s for {:.0} s)",
        args.seeds,
        simulated.as_secs(),
        simulated.as_secs_f64() / took.max(f64::MIN_POSITIVE)
    )?;
    if failed > 0 { Err(format!("{failed} seeds failed").into()) } else { Ok(()) }
}

/// The objects of manifests, and of the lists in them.
fn manifests(files: &[PathBuf]) -> Result<Vec<Value>, String> {
    let mut objects = vec![];
    for file in files {
        let failed = |error: &dyn fmt::Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
        for document in yaml::documents(&text).map_err(|error| failed(&error))? {
            match document["items"].as_array() {
                Some(items) => objects.extend(items.iter().cloned()),
                None if document["kind"].is_string() => objects.push(document),
                None => return Err(failed(&"a document is no object of the API")),
            }
        }
    }
    Ok(objects)
}

/// Runs once more; two traces that differ are a violation.
fn compare(settings: &Settings, subject: &WholeCluster, outcome: &mut Outcome) -> Result<(), String> {
    let again = run(settings, subject)?;
    if again.digest == outcome.digest {
        return Ok(());
    }
    let pairs = outcome.trace.iter().zip(&again.trace);
    let differing = pairs.clone().find(|(one, other)| one != other);
    let text = match differing {
        Some((one, other)) => format!("two runs differ:\n    {one}\n    {other}"),
        None => format!("two runs differ: {} and {} writes", outcome.writes, again.writes),
    };
    outcome.violations.push(kaji_sim::Violation { at_millis: 0, text });
    Ok(())
}

fn report(out: &mut dyn Write, args: &Sim, settings: &Settings, outcome: &Outcome) -> io::Result<()> {
    let Outcome { digest, writes, simulated, violations, faults, trace } = outcome;
    let verdict = if violations.is_empty() { "ok  " } else { "FAIL" };
    writeln!(
        out,
        "{verdict} seed {}: {writes} writes, {} faults, {} s, digest {digest:016x}",
        settings.seed,
        faults.len(),
        simulated.as_secs()
    )?;
    if args.trace {
        for line in trace {
            writeln!(out, "    {line}")?;
        }
    }
    for violation in violations {
        writeln!(
            out,
            "  at {}.{:03}: {}",
            violation.at_millis / 1000,
            violation.at_millis % 1000,
            violation.text
        )?;
    }
    if !violations.is_empty() {
        writeln!(out, "  again: {}", replay(args, settings.seed, args.faults.as_ref()))?;
    }
    Ok(())
}

/// The command that does the same again, with these faults alone if they are named.
fn replay(args: &Sim, seed: u64, faults: Option<&Numbers>) -> String {
    let mut command = format!("kaji sim --seed {seed} --nodes {}", args.nodes);
    if args.scenario == Kind::Churn {
        command += &format!(" --scenario churn --hours {}", args.hours);
    }
    command.extend(args.filename.iter().map(|file| format!(" -f {}", file.display())));
    command.extend(faults.map(|faults| format!(" --faults {faults}")));
    command
}

/// Looks for few faults with which a seed still fails, and says how to run exactly those.
fn fewer_faults(
    out: &mut dyn Write,
    args: &Sim,
    settings: &Settings,
    subject: &WholeCluster,
    outcome: &Outcome,
) -> io::Result<()> {
    let fails = |allowed: BTreeSet<u64>| {
        let settings = Settings { allowed: Some(allowed), ..settings.clone() };
        run(&settings, subject).is_ok_and(|outcome| !outcome.violations.is_empty())
    };
    let all = outcome.faults.iter().map(|fault| fault.number).collect();
    let few = Numbers(if fails(BTreeSet::new()) { BTreeSet::new() } else { shrink(all, SHRINK_RUNS, fails) });
    // The same faults may come about at other calls than in the whole run.
    let again = Settings { allowed: Some(few.0.clone()), ..settings.clone() };
    let faults = run(&again, subject).map(|outcome| outcome.faults).unwrap_or_default();
    writeln!(out, "  it fails with {} faults: {}", few.0.len(), replay(args, settings.seed, Some(&few)))?;
    for fault in faults {
        writeln!(out, "    {} at {} ms: {}", fault.number, fault.at_millis, fault.text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        sim: Sim,
    }

    fn parsed(line: &str) -> Option<Sim> {
        Program::try_parse_from(line.split(' ').skip(1)).ok().map(|program| program.sim)
    }

    #[test]
    fn a_printed_command_says_the_same_again() {
        for line in [
            "kaji sim --seed 7 --nodes 3",
            "kaji sim --seed 7 --nodes 5 --faults none",
            "kaji sim --seed 7 --nodes 3 --faults 1,7,1042",
            "kaji sim --seed 7 --nodes 500 --scenario churn --hours 2 --faults 4",
            "kaji sim --seed 7 --nodes 500 --scenario churn --hours 0.25",
            "kaji sim --seed 7 --nodes 3 -f a.yaml -f b.yaml --faults 4",
        ] {
            let args = parsed(line).unwrap();
            assert_eq!(replay(&args, args.seed, args.faults.as_ref()), line);
        }
        let empty = Program::try_parse_from(["sim", "--faults", ""]).unwrap().sim;
        assert!(empty.faults.unwrap().0.is_empty());
    }

    #[test]
    fn refuses_what_is_no_list_of_faults_and_no_scenario() {
        for line in [
            "kaji sim --faults 1,x",
            "kaji sim --faults -1",
            "kaji sim --scenario rest",
            "kaji sim --hours 0",
            "kaji sim --hours NaN",
            "kaji sim --hours 1e9",
            "kaji sim --scenario churn -f a.yaml",
        ] {
            assert!(parsed(line).is_none(), "{line}");
        }
    }
}
