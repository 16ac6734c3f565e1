//! Tidy: the rules of the tree that no compiler checks. Run by `cargo xtask tidy` and by `cargo test`.
//!
//! - Crates depend only on crates further down the list (`arrows`).
//! - Every Rust file opens with `//!`, has at most `MOST_LINES` lines, and a module's root is `name.rs`, never `mod.rs`.
//! - `unsafe` appears nowhere; leftovers (`todo!`, `dbg!`) appear nowhere.
//! - The vocabulary is the field's (`vocabulary`).
//! - A kind, a controller and a plugin are named in few files (`places`).
//! - The limits are the same here, in clippy.toml and in CONTRIBUTING.md.
//!
//! Lists of exceptions only shrink: an exception that is not needed any more is a complaint.

use source::Source;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

mod arrows;
mod places;
mod source;
mod vocabulary;

/// The longest file.
const MOST_LINES: usize = 600;

/// Files that are longer still. Only remove lines here.
const TOO_LONG: &[&str] = &[];

/// Crates that still have a `mod.rs`. Only remove lines here.
const MOD_FILES: &[&str] = &[];

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

/// What the walk over the files collects.
#[derive(Default)]
struct Findings {
    complaints: Vec<String>,
    units: Vec<String>,
    /// Unit, file, line and word.
    words: Vec<(String, String, usize, String)>,
    places: places::Places,
    too_long: Vec<String>,
    mod_files: Vec<String>,
}

/// All complaints about the workspace at `root`.
pub fn check(root: &Path) -> Result<Vec<String>, TidyError> {
    let mut findings =
        Findings { complaints: arrows::complaints(&arrows::metadata(root)?), ..Findings::default() };
    for dir in ["crates", "examples", "fuzz", "xtask"] {
        files(&root.join(dir), &mut |path, text| findings.rust(&shown(root, path), text))?;
    }
    for dir in ["", "docs"] {
        let dir = root.join(dir);
        for path in entries(&dir)?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "md")) {
            findings.markdown(&shown(root, &path), &read(&path)?);
        }
    }
    findings
        .complaints
        .extend(limits(&read(&root.join("clippy.toml"))?, &read(&root.join("CONTRIBUTING.md"))?));
    Ok(findings.complaints())
}

impl Findings {
    fn rust(&mut self, path: &str, text: &str) {
        self.complaints.extend(file(path, text));
        if text.lines().count() > MOST_LINES {
            self.too_long.push(path.to_owned());
        }
        let unit = unit(path);
        if path.ends_with("/mod.rs") {
            self.mod_files.push(unit.clone());
        }
        let source = Source::parse(text);
        self.places.visit(path, &source);
        self.words(&unit, path, vocabulary::rust(&source));
    }

    fn markdown(&mut self, path: &str, text: &str) {
        self.words(path, path, vocabulary::markdown(text));
    }

    fn words(&mut self, unit: &str, path: &str, words: Vec<(usize, String)>) {
        if !self.units.iter().any(|known| known == unit) {
            self.units.push(unit.to_owned());
        }
        self.words
            .extend(words.into_iter().map(|(line, word)| (unit.to_owned(), path.to_owned(), line, word)));
    }

    fn complaints(self) -> Vec<String> {
        let mut complaints = self.complaints;
        let lines = format!("has more than {MOST_LINES} lines");
        complaints.extend(exceptions(&self.too_long, TOO_LONG, &lines));
        complaints.extend(exceptions(&self.mod_files, MOD_FILES, "has a mod.rs"));
        complaints.extend(self.places.complaints());
        complaints.extend(vocabulary::complaints(&self.units, &self.words, vocabulary::NOT_CLEAN));
        complaints
    }
}

/// Complaints about findings that are no exceptions, and about exceptions without a finding.
fn exceptions(found: &[String], allowed: &[&str], what: &str) -> Vec<String> {
    let mut complaints: Vec<String> =
        found.iter().filter(|f| !allowed.contains(&f.as_str())).map(|f| format!("{f} {what}")).collect();
    complaints.dedup();
    let needless = allowed.iter().filter(|a| !found.iter().any(|f| f == *a));
    complaints.extend(
        needless
            .map(|a| format!("{a} is listed as one that {what}, and is not: remove it (xtask/src/tidy.rs)")),
    );
    complaints
}

/// The crate of a file, or the folder that stands for one.
fn unit(path: &str) -> String {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    path.split('/').take(depth).collect::<Vec<_>>().join("/")
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

fn read(path: &Path) -> Result<String, TidyError> {
    fs::read_to_string(path).map_err(|e| TidyError::Io(path.to_owned(), e))
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, TidyError> {
    let error = |e| TidyError::Io(dir.into(), e);
    let entries = fs::read_dir(dir).map_err(error)?.map(|e| e.map(|e| e.path()));
    let mut entries: Vec<PathBuf> = entries.collect::<Result<_, _>>().map_err(error)?;
    entries.sort();
    Ok(entries)
}

fn files(dir: &Path, visit: &mut dyn FnMut(&Path, &str)) -> Result<(), TidyError> {
    for path in entries(dir)? {
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                files(&path, visit)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            visit(&path, &read(&path)?);
        }
    }
    Ok(())
}

fn file(path: &str, text: &str) -> Vec<String> {
    let mut complaints = vec![];
    if !text.starts_with("//!") {
        complaints.push(format!("{path} does not open with //!"));
    }
    // Spelt so that this file does not complain about itself.
    for leftover in [concat!("todo", "!("), concat!("dbg", "!("), concat!("unimplemented", "!(")] {
        if text.contains(leftover) {
            complaints.push(format!("{path} holds {leftover}"));
        }
    }
    if text.lines().any(|l| l.trim_start().starts_with(concat!("uns", "afe "))) {
        complaints.push(format!("{path} holds unsafe code"));
    }
    complaints
}

/// Complaints about limits that differ between here, clippy's configuration and the page for contributors.
fn limits(clippy: &str, contributing: &str) -> Vec<String> {
    let threshold = clippy.lines().find_map(|line| line.strip_prefix("too-many-lines-threshold = "));
    let functions = threshold.unwrap_or("?").trim();
    let page = contributing.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = format!("Files have at most {MOST_LINES} lines, functions at most {functions}");
    if page.contains(&sentence) { vec![] } else { vec![format!("CONTRIBUTING.md does not say {sentence:?}")] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(check(root).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn rejects_missing_heads_and_leftovers() {
        let text = format!("fn a() {{ {}) }}\n", concat!("todo", "!("));
        assert_eq!(file("a.rs", &text).len(), 2);
    }

    #[test]
    fn rejects_long_files_and_mod_files_that_are_no_exceptions() {
        let mut findings = Findings::default();
        findings.places.visit("", &Source::default());
        let before = findings.mod_files.len() + findings.too_long.len();
        findings.rust("crates/new/src/a/mod.rs", &"//!\n".repeat(MOST_LINES));
        findings.rust("crates/new/src/long.rs", &"//!\n".repeat(MOST_LINES + 1));
        assert_eq!(before, 0);
        assert_eq!(
            (findings.mod_files, findings.too_long),
            (vec!["crates/new".into()], vec!["crates/new/src/long.rs".into()])
        );
        let found = ["a".to_owned()];
        assert_eq!(exceptions(&found, &["a"], "x"), [""; 0]);
        assert_eq!(exceptions(&found, &[], "x").len(), 1);
        assert_eq!(exceptions(&[], &["a"], "x").len(), 1);
    }

    #[test]
    fn rejects_limits_that_differ() {
        let clippy = "too-many-lines-threshold = 70\n";
        assert_eq!(limits(clippy, "Files have at most 600 lines,\n  functions at most 70."), [""; 0]);
        assert_eq!(limits(clippy, "Files have at most 600 lines, functions at most 80.").len(), 1);
        assert_eq!(limits("", "Files have at most 600 lines, functions at most 70.").len(), 1);
    }
}
