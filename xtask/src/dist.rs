//! `cargo xtask dist`: the program as it is shipped. It is built, run under callgrind until it is ready and for a while after,
//! and linked once more with the functions that ran next to each other.
//!
//! A server that idles runs a sixth of its code, which lies all over it, and the kernel maps 64 KiB around each page that is
//! touched; functions that run together in few pages are what keeps the rest of the code out of memory.
//!
//! Invariants: both links are of the same compilation, because names of functions differ between others; functions that run
//! while the server idles come first, then those of its start, then the rest in the compiler's order. Nothing depends on functions
//! having different addresses: the compiler may merge them as well.

mod build;

use crate::bench::{self, start};
use build::Build;
use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

/// Functions that run until a server is ready, at least; it is ten times as many.
const FEWEST: usize = 1000;

/// Functions with the same machine code are linked once, as glue that frees values often is.
const SAME_CODE_ONCE: &str = "--icf=all";

/// What is built, and how it is run.
#[derive(clap::Args)]
pub struct Args {
    /// The profile of cargo.
    #[arg(long, default_value = "dist")]
    profile: String,
    /// The port of the server that is observed.
    #[arg(long, default_value_t = 7690)]
    port: u16,
    /// How many seconds it is observed once it is ready.
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// A target with a C library of its own, *-linux-musl: the program is linked statically, and its C code is compiled by the zig of
    /// PyPI's ziglang. Without one, the program is for this machine.
    #[arg(long)]
    target: Option<String>,
}

/// Why the program could not be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, or a program that could not be started.
    #[error("{0}: {1}")]
    File(String, io::Error),
    /// A program that failed.
    #[error("{0} failed: {1}")]
    Failed(String, String),
    /// The server that is observed.
    #[error(transparent)]
    Server(#[from] bench::Error),
}

/// Builds, observes and links.
///
/// # Errors
/// When a step fails; valgrind has to be installed.
pub fn run(root: &Path, args: &Args) -> Result<PathBuf, Error> {
    let dir = std::env::temp_dir().join(format!("kaji-dist-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(|e| file(&dir, e))?;
    let outcome = Build::new(root, &dir, args).and_then(|build| {
        // Callgrind names functions by the symbols, which the profile strips.
        let program = build.run("debuginfo", &[])?;
        if !build.runs_here() {
            return build.run("symbols", &[]);
        }
        let order = dir.join("order");
        fs::write(&order, observe(&program, &dir, args)?).map_err(|e| file(&order, e))?;
        let ordering = format!("--symbol-ordering-file={}", order.display());
        build.run("symbols", &[&ordering, "--no-warn-symbol-ordering"])
    });
    let removed = fs::remove_dir_all(&dir).map_err(|e| file(&dir, e));
    outcome.and_then(|program| removed.map(|()| program))
}

fn file(path: &Path, error: io::Error) -> Error {
    Error::File(path.display().to_string(), error)
}

fn check(outcome: io::Result<(bool, String)>, program: &str) -> Result<(), Error> {
    match outcome {
        Ok((true, _)) => Ok(()),
        Ok((false, text)) => Err(Error::Failed(program.into(), text)),
        Err(error) => Err(Error::File(program.into(), error)),
    }
}

/// Runs the program; names of functions, one a line, in the order in which they are to lie.
fn observe(program: &Path, dir: &Path, args: &Args) -> Result<String, Error> {
    let kubeconfig = dir.join("kubeconfig");
    let out = dir.join("callgrind.out");
    let command = format!(
        "valgrind -q --tool=callgrind --demangle=no --callgrind-out-file={} {} up --data-dir {} --port {} --kubeconfig {} --nodes sim:1",
        out.display(),
        program.display(),
        dir.join("data").display(),
        args.port,
        kubeconfig.display(),
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::File("tokio".into(), e))?;
    runtime.block_on(async {
        let server = start::start(&command, &kubeconfig).await?;
        let dump = || {
            let pid = server.exec.pid().to_string();
            let done = Command::new("callgrind_control").args(["--dump", &pid]).output();
            let said = |o: Output| (o.status.success(), String::from_utf8_lossy(&o.stderr).into_owned());
            check(done.map(said), "callgrind_control")
        };
        dump()?;
        tokio::time::sleep(Duration::from_secs(args.idle)).await;
        dump()
    })?;
    let read = |part: u32| {
        let path = dir.join(format!("callgrind.out.{part}"));
        fs::read_to_string(&path).map_err(|e| file(&path, e))
    };
    let parts = [read(2)?, read(1)?];
    let names = order(&parts.each_ref().map(|part| costs(part)));
    let found = names.lines().filter(|name| name.starts_with('_')).count();
    if found < FEWEST {
        let text = format!("it names {found} functions only: has the program symbols?");
        return Err(Error::Failed("callgrind".into(), text));
    }
    Ok(names)
}

/// Instructions of each function itself, by the text of a profile.
fn costs(profile: &str) -> HashMap<&str, u64> {
    let (mut names, mut costs) = (HashMap::new(), HashMap::new());
    let (mut function, mut inclusive) = ("", false);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = resolve(&mut names, name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            resolve(&mut names, name);
        } else if line.starts_with("calls=") {
            inclusive = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*')) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
            // The line after a call counts what was called.
            if let (Some(cost), false) = (cost, std::mem::take(&mut inclusive)) {
                *costs.entry(function).or_default() += cost;
            }
        }
    }
    costs
}

/// `(number) name` names a function, `(number)` one that was named before. Recursion levels are left out.
fn resolve<'a>(names: &mut HashMap<&'a str, &'a str>, text: &'a str) -> &'a str {
    let (number, name) = text.split_once(' ').unwrap_or((text, ""));
    let name = name.split('\'').next().unwrap_or_default();
    if name.is_empty() {
        return names.get(number).copied().unwrap_or_default();
    }
    names.insert(number, name);
    name
}

/// Functions of the parts in turn, the dearest of each first; none twice.
fn order(parts: &[HashMap<&str, u64>]) -> String {
    let (mut seen, mut out) = (HashSet::new(), String::new());
    for part in parts {
        let mut functions: Vec<_> = part.iter().filter(|(name, _)| !name.is_empty()).collect();
        functions.sort_by_key(|(name, cost)| (std::cmp::Reverse(**cost), **name));
        for (name, _) in functions {
            if seen.insert(*name) {
                // Writing to a string does not fail.
                let _ = writeln!(out, "{name}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{costs, order};

    const PROFILE: &str = "version: 1\nevents: Ir\n\nfl=(1) a.rs\nfn=(1) _ZN1aE\n12 5\n+3 7\ncfn=(2) _ZN1bE\ncalls=3 4\n15 900\n* 1\n\nfn=(2)\n4 300\n\nfn=(3) _ZN1cE'2\n1 2\ntotals: 315\n";

    #[test]
    fn costs_are_of_the_functions_themselves() {
        let costs = costs(PROFILE);
        assert_eq!([costs["_ZN1aE"], costs["_ZN1bE"], costs["_ZN1cE"]], [13, 300, 2]);
        assert_eq!(costs.len(), 3);
    }

    #[test]
    fn the_first_part_comes_first_and_the_dearest_of_each() {
        let idle = [("a", 1), ("b", 2)].into_iter().collect();
        let start = [("b", 9), ("c", 5), ("d", 6)].into_iter().collect();
        assert_eq!(order(&[idle, start]), "b\na\nd\nc\n");
    }
}
