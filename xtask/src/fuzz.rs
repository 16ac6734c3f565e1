//! `cargo xtask fuzz`: builds the targets of `fuzz/` with coverage counters and runs each for a while.
//!
//! Stable Rust and a C++ compiler suffice. What a target finds stays in `fuzz/corpus/<target>`; an input that breaks
//! it, in `fuzz/artifacts/<target>`.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

/// What the command takes.
#[derive(clap::Args)]
pub struct Args {
    /// Only these targets.
    targets: Vec<String>,
    /// How long each runs.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Build the targets, but do not run them.
    #[arg(long)]
    build_only: bool,
}

/// What ends the command early.
#[derive(Debug, thiserror::Error)]
pub enum FuzzError {
    /// A folder or a program.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// The targets do not build.
    #[error("the targets do not build")]
    Build,
    /// A target broke.
    #[error("{0} failed; the input is in fuzz/artifacts/{0}")]
    Broke(String),
    /// No such target.
    #[error("no target of these names")]
    Unknown,
}

/// What cargo-fuzz passes, but for the sanitizers, which need an unstable compiler.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Runs the targets one after the other.
///
/// # Errors
/// The first one that breaks.
pub fn run(root: &Path, args: &Args) -> Result<(), FuzzError> {
    let home = root.join("fuzz");
    let at = |path: &Path| {
        let path = path.to_owned();
        move |e| FuzzError::Io(path, e)
    };
    let built = crate::cargo()
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(home.join("Cargo.toml"))
        // A target triple keeps the flags away from build scripts.
        .args(["--target", &host(), "--target-dir"])
        .arg(home.join("target"))
        .env("RUSTFLAGS", FLAGS)
        .status()
        .map_err(at(Path::new("cargo")))?;
    if !built.success() {
        return Err(FuzzError::Build);
    }
    if args.build_only {
        return Ok(());
    }
    let mut names: Vec<String> = fs::read_dir(home.join("targets"))
        .map_err(at(&home))?
        .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned))
        .filter(|name| args.targets.is_empty() || args.targets.contains(name))
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(FuzzError::Unknown);
    }
    for name in names {
        one(&home, &name, args.seconds)?;
    }
    Ok(())
}

fn one(home: &Path, name: &str, seconds: u32) -> Result<(), FuzzError> {
    let program = home.join("target").join(host()).join("release").join(name);
    let folder = |kind: &str| {
        let path = home.join(kind).join(name);
        fs::create_dir_all(&path).map_err(|e| FuzzError::Io(path.clone(), e)).map(|()| path)
    };
    let (corpus, seeds, artifacts) = (folder("corpus")?, folder("seeds")?, folder("artifacts")?);
    let output = Command::new(&program)
        .arg(&corpus)
        .arg(&seeds)
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-rss_limit_mb=1024", "-max_len=4096", "-print_final_stats=1", "-verbosity=0"])
        .output()
        .map_err(|e| FuzzError::Io(program, e))?;
    let log = String::from_utf8_lossy(&output.stderr);
    let runs =
        log.lines().find_map(|l| l.strip_prefix("stat::number_of_executed_units:")).unwrap_or("0").trim();
    let say =
        |text: String| io::stderr().write_all(text.as_bytes()).map_err(|e| FuzzError::Io("stderr".into(), e));
    if output.status.success() {
        return say(format!("fuzz {name}: {runs} runs\n"));
    }
    say(log.into_owned())?;
    Err(FuzzError::Broke(name.into()))
}

/// The triple this program was built for.
fn host() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}
