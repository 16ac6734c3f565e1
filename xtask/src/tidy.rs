//! Tidy: the rules of the tree that no compiler checks. Run by `cargo xtask tidy` and by `cargo test`.
//!
//! - Crates depend only on crates further down the list, which is that of ARCHITECTURE.md (`arrows`).
//! - Every Rust file opens with `//!`, has at most `MOST_LINES` lines, and a module's root is `name.rs`, never `mod.rs`.
//! - `unsafe` appears in the listed files only; leftovers (`todo!`, `dbg!`) appear nowhere.
//! - The vocabulary is the field's (`vocabulary`), in comments, pages and messages (`comments`).
//! - A kind, a controller and a plugin are named in few files (`places`).
//! - The crate `kaji` is wiring (`wiring`).
//! - `select!` in what runs in a simulation is `biased` (`selects`).
//! - Paths that pages name, between backquotes or as links, exist, and so do the tests that docs/security.md names, and the
//!   types and methods of ARCHITECTURE.md.
//! - The limits are the same here, in clippy.toml and in CONTRIBUTING.md.
//!
//! Lists of exceptions only shrink: an exception that is not needed any more is a complaint. Each rule is broken on purpose in
//! `tests.rs`.

use source::Source;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

mod arrows;
mod comments;
mod places;
mod selects;
mod source;
mod vocabulary;
mod wiring;

/// The longest file.
const MOST_LINES: usize = 600;

/// Files that are longer still. Only remove lines here.
const TOO_LONG: &[&str] = &[];

const UNSAFE_KEYWORD: &str = "unsafe";

/// Crates that still have a `mod.rs`. Only remove lines here.
const MOD_FILES: &[&str] = &[];

/// Files with unsafe code: system calls without a safe wrapper. Only remove lines here.
const UNSAFE: &[&str] = &["crates/oci/src/shim/system.rs"];

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
    /// Functions, and those that pages name, with the page.
    functions: BTreeSet<String>,
    named_functions: Vec<(String, String)>,
    /// Types, and those that `MAP` names.
    types: BTreeSet<String>,
    named_types: Vec<String>,
    places: places::Places,
    wiring: wiring::Wiring,
    too_long: Vec<String>,
    with_unsafe_code: Vec<String>,
    drawing: Vec<String>,
    mod_files: Vec<String>,
}

/// All complaints about the workspace at `root`.
pub fn check(root: &Path) -> Result<Vec<String>, TidyError> {
    let mut findings = files_of(root)?;
    findings.complaints.extend(arrows::complaints(&arrows::metadata(root)?));
    findings.complaints.extend(findings.wiring.needless());
    Ok(findings.complaints(UNSAFE, selects::EXCEPTIONS))
}

/// What the files of the workspace at `root` say.
fn files_of(root: &Path) -> Result<Findings, TidyError> {
    let mut findings = Findings::default();
    for dir in ["crates", "examples", "fuzz", "xtask"] {
        visit(&root.join(dir), &|e| e == "rs", &mut |path, text| findings.rust(&shown(root, path), text))?;
    }
    for dir in [".ci", "crates", "docs", "examples", "fuzz", "packaging", "tests", "xtask"] {
        let dir = root.join(dir);
        if dir.is_dir() {
            let has_prose = |extension: &str| comments::scanner(extension).is_some();
            visit(&dir, &has_prose, &mut |path, text| findings.prose(root, path, text))?;
        }
    }
    for path in entries(root)?.iter().filter(|path| extension(path) == "md") {
        findings.prose(root, path, &read(path)?);
    }
    // The one script without an extension.
    if let Ok(text) = read(&root.join(".ci/run")) {
        findings.words(".ci/run", ".ci/run", vocabulary::prose(&comments::hashes(&text)));
    }
    let page = |name: &str| read(&root.join(name));
    findings.complaints.extend(limits(&page("clippy.toml")?, &page("CONTRIBUTING.md")?));
    findings.complaints.extend(arrows::page(&page("ARCHITECTURE.md")?));
    Ok(findings)
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
        if source.identifiers.iter().any(|(_, name)| name == UNSAFE_KEYWORD) {
            self.with_unsafe_code.push(path.to_owned());
        }
        if selects::draws(path, text) {
            self.drawing.push(path.to_owned());
        }
        // Tests at the end of a file are none of the product's places.
        let product = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        self.places.visit(path, &Source::parse(product));
        self.wiring.visit(path, text);
        for ((_, keyword), (_, name)) in source.identifiers.iter().zip(source.identifiers.iter().skip(1)) {
            match keyword.as_str() {
                "fn" => self.functions.insert(name.clone()),
                "struct" | "enum" | "trait" | "type" => self.types.insert(name.clone()),
                _ => false,
            };
        }
        self.words(&unit, path, vocabulary::rust(&source));
    }

    /// A page, a script or a source in another language.
    fn prose(&mut self, root: &Path, path: &Path, text: &str) {
        let name = shown(root, path);
        if extension(path) == "md" {
            self.complaints.extend(missing_paths(root, &name, text));
            self.complaints.extend(missing_targets(root, &name, text));
        }
        let functions = match name.as_str() {
            TESTED => named_tests(text),
            MAP => {
                let (types, methods) = named_methods(text).into_iter().unzip();
                self.named_types = types;
                methods
            }
            _ => vec![],
        };
        self.named_functions.extend(functions.into_iter().map(|function| (name.clone(), function)));
        if let Some(texts) = comments::scanner(extension(path)) {
            self.words(&name, &name, vocabulary::prose(&texts(text)));
        }
    }

    fn words(&mut self, unit: &str, path: &str, words: Vec<(usize, String)>) {
        if !self.units.iter().any(|known| known == unit) {
            self.units.push(unit.to_owned());
        }
        self.words
            .extend(words.into_iter().map(|(line, word)| (unit.to_owned(), path.to_owned(), line, word)));
    }

    /// `unsafe_files` are those that may have unsafe code, `drawing` those that may have a `select!` without `biased;`.
    fn complaints(self, unsafe_files: &[&str], drawing: &[&str]) -> Vec<String> {
        let mut complaints = self.complaints;
        let lines = format!("has more than {MOST_LINES} lines");
        complaints.extend(exceptions(&self.too_long, TOO_LONG, &lines));
        complaints.extend(exceptions(&self.mod_files, MOD_FILES, "has a mod.rs"));
        complaints.extend(exceptions(&self.with_unsafe_code, unsafe_files, "holds unsafe code"));
        complaints.extend(exceptions(&self.drawing, drawing, "has a select! without biased;"));
        let missing = self.named_functions.iter().filter(|(_, function)| !self.functions.contains(function));
        complaints.extend(
            missing.map(|(page, function)| {
                format!("{page} names the function {function}, which does not exist")
            }),
        );
        let missing = self.named_types.iter().filter(|name| !self.types.contains(*name));
        complaints.extend(missing.map(|name| format!("{MAP} names the type {name}, which does not exist")));
        complaints.extend(self.places.complaints());
        complaints.extend(self.wiring.complaints());
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
    complaints.extend(needless.map(|a| {
        format!("{a} is listed as one that {what}, and is not: remove it from its list (xtask/src/tidy)")
    }));
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

/// Folders with files of others, or without sources.
const SKIPPED: &[&str] = &["target", "vendor", "node_modules"];

/// The extension of a file's name; `""` without one.
fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// Hands over the files below a directory with an extension that is accepted.
fn visit(
    dir: &Path,
    accepts: &dyn Fn(&str) -> bool,
    visitor: &mut dyn FnMut(&Path, &str),
) -> Result<(), TidyError> {
    for path in entries(dir)? {
        if path.is_dir() {
            if !SKIPPED.iter().any(|skipped| path.ends_with(skipped)) {
                visit(&path, accepts, visitor)?;
            }
        } else if accepts(extension(&path)) {
            visitor(&path, &read(&path)?);
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
    complaints
}

/// Complaints about paths of the tree, between backquotes on a page, that do not exist.
fn missing_paths(root: &Path, page: &str, text: &str) -> Vec<String> {
    let places = [".ci/", "crates/", "docs/", "examples/", "fuzz/", "packaging/", "tests/", "xtask/"];
    let character = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let quoted = text.split('`').skip(1).step_by(2);
    let paths =
        quoted.filter(|q| places.iter().any(|place| q.starts_with(place)) && q.chars().all(character));
    let missing = paths.filter(|path| !root.join(path).exists());
    missing.map(|path| format!("{page} names {path}, which does not exist")).collect()
}

/// Complaints about links of a page to files that do not exist; addresses of other hosts are not looked at.
fn missing_targets(root: &Path, page: &str, text: &str) -> Vec<String> {
    let page_path = root.join(page);
    let folder = page_path.parent().unwrap_or(root);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ', '\n']).next());
    let files = targets.filter(|target| !target.is_empty() && !target.contains(':'));
    let missing = files.filter(|target| !folder.join(target).exists());
    missing.map(|target| format!("{page} links to {target}, which does not exist")).collect()
}

/// The page with a promise in each row of its tables and, in the last column, the tests that hold it.
const TESTED: &str = "docs/security.md";

/// The functions between backquotes in the last columns of a page's tables.
fn named_tests(text: &str) -> Vec<String> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit('|').next());
    let quoted = columns.flat_map(|column| column.split('`').skip(1).step_by(2));
    let is_function =
        |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    quoted.filter(|name| !name.is_empty()).filter(is_function).map(str::to_owned).collect()
}

/// The page that says where to find what.
const MAP: &str = "ARCHITECTURE.md";

/// The types and methods between backquotes on a page, as in `Type::method`.
fn named_methods(text: &str) -> Vec<(String, String)> {
    let quoted = text.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once("::"));
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_type = |name: &str| name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(word);
    let is_method = |name: &str| name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(word);
    let methods = quoted.filter(|(name, method)| is_type(name) && is_method(method));
    methods.map(|(name, method)| (name.to_owned(), method.to_owned())).collect()
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
mod tests;
