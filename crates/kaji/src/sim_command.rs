//! `kaji sim`: runs seeds of the simulation, and says how to run the ones that fail again.

use clap::Args;
use kaji::simulation::WholeCluster;
use kaji_files::yaml;
use kaji_sim::{Outcome, Settings, run, shrink::shrink};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fmt,
    io::{self, Write},
    path::PathBuf,
    time::Instant,
};

/// A failure is run again so many times at most, for fewer faults.
const SHRINK_RUNS: u32 = 60;

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
    /// Only these faults come about, by the numbers that a former run printed; an empty list for none.
    #[arg(long, value_delimiter = ',', num_args = 0..)]
    faults: Option<Vec<u64>>,
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
    let (began, subject) = (Instant::now(), WholeCluster::new());
    let (mut failed, mut writes, mut simulated) = (0, 0, 0);
    let objects = manifests(&args.filename)?;
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let allowed = args.faults.as_ref().map(|faults| faults.iter().copied().collect());
        let settings = Settings { seed, nodes: args.nodes, allowed, objects: objects.clone() };
        let mut outcome = run(&settings, &subject)?;
        if args.twice {
            compare(&settings, &subject, &mut outcome)?;
        }
        writes += outcome.writes;
        simulated += outcome.simulated.as_secs();
        report(&mut out, args, &settings, &outcome)?;
        if !outcome.violations.is_empty() {
            failed += 1;
            if args.shrink {
                fewer_faults(&mut out, &settings, &subject, &outcome)?;
            }
        }
    }
    writeln!(
        out,
        "{} seeds, {failed} failed: {writes} writes in {simulated} simulated seconds, {:.1} s",
        args.seeds,
        began.elapsed().as_secs_f64()
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
        let files: String = args.filename.iter().map(|file| format!(" -f {}", file.display())).collect();
        writeln!(out, "  again: kaji sim --seed {} --nodes {}{files}", settings.seed, settings.nodes)?;
    }
    Ok(())
}

fn fewer_faults(
    out: &mut dyn Write,
    settings: &Settings,
    subject: &WholeCluster,
    outcome: &Outcome,
) -> io::Result<()> {
    let fails = |allowed: BTreeSet<u64>| {
        let settings = Settings { allowed: Some(allowed), ..settings.clone() };
        run(&settings, subject).is_ok_and(|outcome| !outcome.violations.is_empty())
    };
    if fails(BTreeSet::new()) {
        writeln!(out, "  it fails without any faults: --faults ''")?;
        return Ok(());
    }
    let all = outcome.faults.iter().map(|fault| fault.number).collect();
    let few = shrink(all, SHRINK_RUNS, fails);
    let numbers: Vec<String> = few.iter().map(u64::to_string).collect();
    writeln!(out, "  it fails with {} faults: --faults {}", few.len(), numbers.join(","))?;
    for fault in outcome.faults.iter().filter(|fault| few.contains(&fault.number)) {
        writeln!(out, "    {} at {} ms: {}", fault.number, fault.at_millis, fault.text)?;
    }
    Ok(())
}
