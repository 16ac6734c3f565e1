//! `cargo xtask codegen`: writes `crates/schema/src/types/builtin.tbl`, the table of facts about built-in types, and
//! `docs.txt` beside it, the documentation of their fields.
//!
//! Sources, all public: the type definitions of the PyPI package `kubernetes-validate` (`_definitions.json`: names,
//! JSON types, `x-kubernetes-*` keys), and directory trees of the Kubernetes API modules: their `generated.proto` files
//! give protobuf field numbers, their Go declarations what JSON schemas cannot say (pointers, `omitempty`,
//! inlined structs, names and values of string enums).
//!
//! The output is deterministic: same inputs, same bytes. Its grammar is described in `emit`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

mod docs;
mod emit;
mod gosrc;
mod proto;

/// Arguments of `codegen`.
#[derive(clap::Args)]
pub struct Args {
    /// `_definitions.json` of kubernetes-validate.
    #[arg(long)]
    definitions: PathBuf,
    /// Directory trees that hold `generated.proto` files with their Go packages beside them.
    #[arg(long, num_args = 1.., required = true)]
    protos: Vec<PathBuf>,
    /// Where to write the table.
    #[arg(long, default_value = "crates/schema/src/types/builtin.tbl")]
    out: PathBuf,
    /// Where to write the documentation of fields.
    #[arg(long, default_value = "crates/schema/src/types/docs.txt")]
    docs: PathBuf,
    /// Fail when a table on disk differs, instead of writing it.
    #[arg(long)]
    check: bool,
}

/// What can go wrong; all of it is wrong input.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{0}: {1}")]
    Io(PathBuf, std::io::Error),
    /// The definitions are no JSON.
    #[error("{0}: {1}")]
    Json(PathBuf, serde_json::Error),
    /// The sources contradict each other or say something that the table cannot hold.
    #[error("{0}")]
    Facts(String),
}

/// Everything known of one API package ("io.k8s.api.core.v1").
#[derive(Default)]
pub struct Package {
    proto: proto::Messages,
    go: gosrc::Declarations,
}

/// Packages by name.
pub type Packages = BTreeMap<String, Package>;

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Error> {
    let text = read(&args.definitions)?;
    let definitions = serde_json::from_str(&text).map_err(|e| Error::Json(args.definitions.clone(), e))?;
    let mut packages = Packages::new();
    for dir in &args.protos {
        walk(dir, &mut packages)?;
    }
    for (path, table) in
        [(&args.out, emit::table(&definitions, &packages)?), (&args.docs, docs::table(&definitions)?)]
    {
        if !args.check {
            fs::write(path, table).map_err(|e| Error::Io(path.clone(), e))?;
        } else if read(path)? != table {
            return Err(Error::Facts(format!("{} is out of date", path.display())));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|e| Error::Io(path.to_path_buf(), e))
}

/// Reads every package under `dir`: a package is a directory with a `generated.proto`.
fn walk(dir: &Path, packages: &mut Packages) -> Result<(), Error> {
    let io = |e| Error::Io(dir.to_path_buf(), e);
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        paths.push(entry.map_err(io)?.path());
    }
    paths.sort();
    for path in paths.iter().filter(|p| p.is_dir()) {
        walk(path, packages)?;
    }
    let source = dir.join("generated.proto");
    if !source.is_file() {
        return Ok(());
    }
    let (name, messages) = proto::parse(&read(&source)?);
    if !name.starts_with("io.k8s.") {
        return Ok(());
    }
    let package = packages.entry(name.clone()).or_default();
    package.proto = messages;
    for path in paths.iter().filter(|p| is_go_source(p)) {
        gosrc::parse(&name, &read(path)?, &mut package.go);
    }
    Ok(())
}

/// Hand-written declarations only: generated Go files repeat them in other forms.
fn is_go_source(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
    name.ends_with(".go")
        && !name.ends_with("_test.go")
        && !name.starts_with("zz_generated")
        && !name.starts_with("generated")
        && !name.ends_with("_generated.go")
}
