//! Tidy: the rules of the tree that no compiler checks. Run by `cargo xtask tidy` and by `cargo test`.
//!
//! - Crates depend only on crates further down the list in `ORDER` (ARCHITECTURE.md shows the same list).
//! - Every Rust file opens with `//!`.
//! - No Rust file outgrows `MOST_LINES`.
//! - `unsafe` appears nowhere; leftovers (`todo!`, `dbg!`) appear nowhere.

use serde_json::Value;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Crates from top to bottom; arrows point down only.
const ORDER: &[&str] = &[
    "xtask",
    "example-list",
    "example-webapp",
    "kaji-testenv",
    "kaji",
    "kaji-controllers",
    "kaji-scheduler",
    "kaji-kubelet",
    "kaji-runtime",
    "kaji-server",
    "kaji-aggregator",
    "kaji-apiextensions",
    "kaji-admission",
    "kaji-engine",
    "kaji-builtins",
    "kaji-flowcontrol",
    "kaji-audit",
    "kaji-auth",
    "kaji-outbound",
    "kaji-quota",
    "kaji-resource",
    "kaji-schema",
    "kaji-cel",
    "kaji-encryption",
    "kaji-store",
    "kaji-files",
    "kaji-meta",
];

/// Arrows that would point down but must not exist: the engine names no kind; loops reach the API through its client.
const FORBIDDEN: &[(&str, &str)] = &[
    ("kaji-engine", "kaji-builtins"),
    ("kaji-server", "kaji-builtins"),
    ("kaji-server", "kaji-admission"),
    ("kaji-admission", "kaji-builtins"),
    ("kaji-auth", "kaji-store"),
    ("kaji-apiextensions", "kaji-builtins"),
    ("kaji-controllers", "kaji-scheduler"),
    ("kaji-controllers", "kaji-kubelet"),
    ("kaji-scheduler", "kaji-kubelet"),
    ("kaji-runtime", "kaji-server"),
    ("kaji-runtime", "kaji-engine"),
    ("kaji-controllers", "kaji-engine"),
    ("kaji-controllers", "kaji-server"),
    ("kaji-scheduler", "kaji-engine"),
    ("kaji-scheduler", "kaji-server"),
    ("kaji-kubelet", "kaji-engine"),
    ("kaji-kubelet", "kaji-server"),
    ("kaji-schema", "kaji-store"),
    ("kaji-cel", "kaji-store"),
    ("kaji-resource", "kaji-store"),
    ("kaji-builtins", "kaji-store"),
];

const MOST_LINES: usize = 700;

/// Why the tree could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TidyError {
    /// A file.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// `cargo metadata`.
    #[error("cargo metadata: {0}")]
    Metadata(String),
}

/// All complaints about the workspace at `root`.
pub fn check(root: &Path) -> Result<Vec<String>, TidyError> {
    let mut complaints = arrows(&metadata(root)?);
    for dir in ["crates", "examples", "xtask"] {
        files(&root.join(dir), &mut |path, text| complaints.extend(file(root, path, text)))?;
    }
    Ok(complaints)
}

fn metadata(root: &Path) -> Result<Value, TidyError> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()
        .map_err(|e| TidyError::Metadata(e.to_string()))?;
    if !output.status.success() {
        return Err(TidyError::Metadata(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| TidyError::Metadata(e.to_string()))
}

fn arrows(metadata: &Value) -> Vec<String> {
    let rank = |name: &str| ORDER.iter().position(|n| *n == name);
    let mut complaints = vec![];
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(from) = rank(name) else {
            complaints.push(format!("{name} has no place in the order of crates (xtask/src/tidy.rs)"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let development = dependency["kind"] == "dev";
            if rank(to).is_some_and(|to| to <= from) || (!development && FORBIDDEN.contains(&(name, to))) {
                complaints.push(format!("{name} must not depend on {to}"));
            }
        }
    }
    complaints
}

fn files(dir: &Path, visit: &mut dyn FnMut(&Path, &str)) -> Result<(), TidyError> {
    let error = |e| TidyError::Io(dir.into(), e);
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)
        .map_err(error)?
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()
        .map_err(error)?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                files(&path, visit)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).map_err(|e| TidyError::Io(path.clone(), e))?;
            visit(&path, &text);
        }
    }
    Ok(())
}

fn file(root: &Path, path: &Path, text: &str) -> Vec<String> {
    let shown = path.strip_prefix(root).unwrap_or(path).display();
    let mut complaints = vec![];
    if !text.starts_with("//!") {
        complaints.push(format!("{shown} does not open with //!"));
    }
    let lines = text.lines().count();
    if lines > MOST_LINES {
        complaints.push(format!("{shown} has {lines} lines; find the missing idea"));
    }
    // Spelt so that this file does not complain about itself.
    for leftover in [concat!("todo", "!("), concat!("dbg", "!("), concat!("unimplemented", "!(")] {
        if text.contains(leftover) {
            complaints.push(format!("{shown} holds {leftover}"));
        }
    }
    if text.lines().any(|l| l.trim_start().starts_with(concat!("uns", "afe "))) {
        complaints.push(format!("{shown} holds unsafe code"));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(check(root).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn complaints_are_found() {
        let bad = serde_json::json!({"packages": [
            {"name": "kaji-meta", "dependencies": [{"name": "kaji-store", "kind": null}]},
            {"name": "kaji-engine", "dependencies": [{"name": "kaji-builtins", "kind": null}]},
            {"name": "kaji-new", "dependencies": []},
        ]});
        assert_eq!(arrows(&bad).len(), 3);
        let text = format!("fn a() {{ {}) }}\n", concat!("todo", "!("));
        assert_eq!(file(Path::new("/"), Path::new("/a.rs"), &text).len(), 2);
    }
}
