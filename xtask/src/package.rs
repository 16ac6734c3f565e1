//! `cargo xtask package`: what is released, of programs that `cargo xtask dist --target` has built: archives, packages of distributions and
//! of languages, a container image, the bill of materials, checksums.
//!
//! Invariants: the same programs and the same commit make the same bytes: entries are sorted, owned by root and as old as the
//! commit (`SOURCE_DATE_EPOCH`). All of it is made from one layout of files below a prefix ([`layout`]).

mod archive;
mod deb;
mod image;
mod layout;
mod npm;
mod rpm;
mod sbom;
mod wheel;

use kaji_meta::text::hex;
use layout::Layout;
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

/// The name of the program and of its packages.
const NAME: &str = "kaji";
/// The name by which kubectl finds it for `kubectl why`.
const PLUGIN: &str = "kubectl-why";
const SUMMARY: &str = "Kubernetes in one binary";
const DESCRIPTION: &str = "API server, control loops, scheduler, kubelet, container runtime, pod network, service proxy and DNS of a \
    Kubernetes cluster in one program, for kubectl, client-go, controller-runtime, kube-rs and helm as they are.";
const LICENSE: &str = "Apache-2.0";
const MAINTAINER: &str = "The Kaji maintainers <maintainers@kaji.invalid>";

/// What is packaged.
#[derive(clap::Args)]
pub struct Args {
    /// A program and the target that it was built for; may be given more than once.
    #[arg(long = "binary", required = true, value_name = "TARGET=PATH")]
    binaries: Vec<Binary>,
    /// A build that this machine can run: it writes completions and manual pages. Default: the first of --binary.
    #[arg(long, value_name = "PATH")]
    runnable: Option<PathBuf>,
    /// The directory of the artefacts.
    #[arg(long, default_value = "target/packages")]
    out: PathBuf,
}

/// Why there are no packages.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, or a program that could not be started.
    #[error("{0}: {1}")]
    File(String, io::Error),
    /// A program that failed.
    #[error("{0} failed: {1}")]
    Failed(String, String),
    /// What a library refuses to write.
    #[error("{0}: {1}")]
    Format(&'static str, String),
    /// A command line that names no target.
    #[error("{0}: expected TARGET=PATH with one of {targets}", targets = Target::ALL.map(|target| target.triple).join(", "))]
    Target(String),
}

/// A platform, in the words of each kind of package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    /// Rust's.
    triple: &'static str,
    /// Debian's and Go's.
    debian: &'static str,
    /// RPM's.
    rpm: &'static str,
    /// Python's platform tags.
    wheel: &'static str,
    /// Node's.
    npm: &'static str,
}

impl Target {
    /// Statically linked programs run with any C library; others where they were built, and on newer ones.
    const ALL: [Target; 3] = [
        Target {
            triple: "x86_64-unknown-linux-musl",
            debian: "amd64",
            rpm: "x86_64",
            wheel: "manylinux_2_17_x86_64.musllinux_1_1_x86_64",
            npm: "x64",
        },
        Target {
            triple: "aarch64-unknown-linux-musl",
            debian: "arm64",
            rpm: "aarch64",
            wheel: "manylinux_2_17_aarch64.musllinux_1_1_aarch64",
            npm: "arm64",
        },
        Target {
            triple: "x86_64-unknown-linux-gnu",
            debian: "amd64",
            rpm: "x86_64",
            wheel: "linux_x86_64",
            npm: "x64",
        },
    ];
}

/// A program for a target.
#[derive(Clone, Debug)]
struct Binary {
    target: Target,
    path: PathBuf,
}

impl FromStr for Binary {
    type Err = Error;

    fn from_str(text: &str) -> Result<Binary, Error> {
        let parsed = text.split_once('=').and_then(|(triple, path)| {
            let target = Target::ALL.into_iter().find(|target| target.triple == triple)?;
            Some(Binary { target, path: path.into() })
        });
        parsed.ok_or_else(|| Error::Target(text.to_owned()))
    }
}

/// What all packages of one release have in common.
struct Release {
    version: &'static str,
    /// Seconds since 1970.
    time: u32,
    out: PathBuf,
}

impl Release {
    /// Writes an artefact.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.out.join(name);
        fs::write(&path, bytes).map_err(|e| file(&path, e))
    }
}

/// Makes all packages; their directory.
///
/// # Errors
/// When a program cannot be read or run, or the directory not be written to.
pub fn run(root: &Path, args: &Args) -> Result<PathBuf, Error> {
    let release = Release { version: env!("CARGO_PKG_VERSION"), time: time_of(root)?, out: args.out.clone() };
    fs::create_dir_all(&release.out).map_err(|e| file(&release.out, e))?;
    let runnable = args.runnable.as_ref().or_else(|| args.binaries.first().map(|binary| &binary.path));
    let shared = match runnable {
        Some(program) => layout::shared(root, program, &release.out)?,
        None => vec![],
    };
    let mut images = vec![];
    for Binary { target, path } in &args.binaries {
        let program = fs::read(path).map_err(|e| file(path, e))?;
        let layout = Layout::new(&program, &shared);
        let stem = format!("{NAME}-{}-linux-{}", release.version, target.debian);
        release.write(
            &format!("{stem}.tar.gz"),
            &archive::gzip(&archive::tar(&release, &stem, &layout.files)?)?,
        )?;
        deb::write(&release, target, &layout)?;
        rpm::write(&release, target, &layout)?;
        wheel::write(&release, target, &program)?;
        npm::write_platform(&release, target, &program)?;
        images.push((*target, image::layer(&release, &program)?));
    }
    npm::write_launcher(&release, args.binaries.iter().map(|binary| binary.target))?;
    image::write(&release, &images)?;
    if let Some(binary) = args.binaries.first() {
        sbom::write(&release, root, &binary.target)?;
    }
    write_checksums(&release)?;
    Ok(release.out)
}

/// `SOURCE_DATE_EPOCH`, else the time of the commit.
fn time_of(root: &Path) -> Result<u32, Error> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => output(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]))?,
    };
    text.trim().parse().map_err(|_| Error::Format("time of the commit", text))
}

/// Checksums of all that is in the directory, as `sha256sum --check` reads them.
fn write_checksums(release: &Release) -> Result<(), Error> {
    const SUMS: &str = "SHA256SUMS";
    let entries = fs::read_dir(&release.out).map_err(|e| file(&release.out, e))?;
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name()).filter(|name| name != SUMS).collect();
    names.sort();
    let mut sums = String::new();
    for name in names {
        let path = release.out.join(&name);
        let bytes = fs::read(&path).map_err(|e| file(&path, e))?;
        // Writing to a string does not fail.
        let _ = writeln!(sums, "{}  {}", hex(&Sha256::digest(&bytes)), name.display());
    }
    release.write(SUMS, sums.as_bytes())
}

/// What a program prints.
fn output(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|e| Error::File(name.clone(), e))?;
    if !output.status.success() {
        return Err(Error::Failed(name, String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    String::from_utf8(output.stdout).map_err(|e| Error::Failed(name, e.to_string()))
}

fn file(path: &Path, error: io::Error) -> Error {
    Error::File(path.display().to_string(), error)
}

#[cfg(test)]
mod tests;
