//! The console's libraries: bundled by npm's packages of `xtask/console`, one file a library, named by what is in it.
//!
//! Invariants: versions are pinned by `xtask/console/package-lock.json`, and no package's scripts are run. What is written to
//! `crates/console/vendor` is committed, so that npm is needed only to change a version. `crates/console/web/vendor.js` names
//! the files, and `NOTICE` has each package's version and licence; both are written here.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Bundles, and the styles of packages as they are.
const BUNDLES: [&str; 6] = ["preact", "uplot", "dagre", "yaml", "codemirror", "xterm"];
const STYLES: [(&str, &str); 2] =
    [("uplot", "uplot/dist/uPlot.min.css"), ("xterm", "@xterm/xterm/css/xterm.css")];
/// Not needed for the first page: loaded by the views that use them.
const LAZY: [&str; 5] = ["uplot", "dagre", "yaml", "codemirror", "xterm"];

/// Why the bundles were not made.
#[derive(Debug, thiserror::Error)]
pub enum VendorError {
    /// A file.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// A program failed.
    #[error("{0} failed")]
    Program(String),
    /// A package says too little of itself.
    #[error("{0}: {1}")]
    Package(PathBuf, String),
}

/// Makes the bundles anew.
///
/// # Errors
/// When npm or the bundler fails, or a file cannot be written.
pub fn run(root: &Path) -> Result<(), VendorError> {
    let source = root.join("xtask/console");
    let work = root.join("target/console-vendor");
    copy(&source, &work)?;
    program(
        Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&work),
    )?;
    let vendor = root.join("crates/console/vendor");
    for old in list(&vendor)? {
        fs::remove_file(&old).map_err(|e| VendorError::Io(old.clone(), e))?;
    }
    let mut names = vec![];
    for bundle in BUNDLES {
        let out = work.join(format!("{bundle}.js"));
        program(
            Command::new(work.join("node_modules/.bin/esbuild"))
                .arg(format!("entries/{bundle}.js"))
                .args(["--bundle", "--minify", "--format=esm", "--target=es2022", "--legal-comments=none"])
                .arg("--log-level=warning")
                .arg(format!("--outfile={}", out.display()))
                .current_dir(&work),
        )?;
        names.push((bundle, place(&out, bundle, "js", &vendor)?));
    }
    let mut styles = vec![];
    for (name, path) in STYLES {
        styles.push((name, place(&work.join("node_modules").join(path), name, "css", &vendor)?));
    }
    write(&root.join("crates/console/web/vendor.js"), &index(&names, &styles))?;
    write(&vendor.join("NOTICE"), &notice(&work.join("node_modules"))?)
}

/// The module that names the bundles.
fn index(names: &[(&str, String)], styles: &[(&str, String)]) -> String {
    let mut text = "// Written by `cargo xtask console-vendor`: where the libraries are.\nimport { load } from \"./load.js\";\n".to_owned();
    for (name, file) in names {
        // Writing to a string does not fail.
        let _ = match LAZY.contains(name) {
            false => writeln!(text, "export * from \"../vendor/{file}\";"),
            true => writeln!(
                text,
                "export const {name} = () => load(new URL(\"../vendor/{file}\", import.meta.url).href);"
            ),
        };
    }
    text.push_str("export const styles = {\n");
    for (name, file) in styles {
        let _ = writeln!(text, "  {name}: new URL(\"../vendor/{file}\", import.meta.url).href,");
    }
    text.push_str("};\n");
    text
}

/// Copies a file under a name with the digest of what is in it.
fn place(from: &Path, name: &str, extension: &str, vendor: &Path) -> Result<String, VendorError> {
    let bytes = fs::read(from).map_err(|e| VendorError::Io(from.to_owned(), e))?;
    let file = format!("{name}-{:016x}.{extension}", digest(&bytes));
    write(&vendor.join(&file), &String::from_utf8_lossy(&bytes))?;
    Ok(file)
}

/// FNV-1a: names differ when bytes do, by accident; nothing is protected by it.
fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Versions and licences of all packages but the bundler.
fn notice(modules: &Path) -> Result<String, VendorError> {
    let mut text =
        "The bundles beside this file hold these packages, minified, each under its licence:\n".to_owned();
    for dir in packages(modules)? {
        let path = dir.join("package.json");
        let json = fs::read(&path).map_err(|e| VendorError::Io(path.clone(), e))?;
        let json: serde_json::Value =
            serde_json::from_slice(&json).map_err(|e| VendorError::Package(path.clone(), e.to_string()))?;
        let field = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        let (name, licence) = (field("name"), field("license"));
        if name == "esbuild" || name.starts_with("@esbuild/") {
            continue;
        }
        if licence.is_empty() {
            return Err(VendorError::Package(path, "it names no licence".into()));
        }
        let _ = write!(text, "\n== {name} {}, {licence}\n\n", field("version"));
        let file = list(&dir)?.into_iter().find(|f| {
            let name = f.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
            name.starts_with("license") || name.starts_with("licence")
        });
        if let Some(file) = file {
            let licence = fs::read_to_string(&file).map_err(|e| VendorError::Io(file, e))?;
            let _ = writeln!(text, "{}", licence.replace('\r', "").trim());
        }
    }
    Ok(text)
}

/// The directories of packages, those with a scope as well.
fn packages(modules: &Path) -> Result<Vec<PathBuf>, VendorError> {
    let mut found = vec![];
    for dir in list(modules)? {
        let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        match name.chars().next() {
            Some('.') | None => {}
            Some('@') => found.extend(list(&dir)?),
            Some(_) => found.push(dir),
        }
    }
    Ok(found)
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, VendorError> {
    let error = |e| VendorError::Io(dir.to_owned(), e);
    let entries = fs::read_dir(dir).map_err(error)?.map(|e| e.map(|e| e.path()));
    let mut entries: Vec<PathBuf> = entries.collect::<Result<_, _>>().map_err(error)?;
    entries.sort();
    Ok(entries)
}

fn copy(from: &Path, to: &Path) -> Result<(), VendorError> {
    fs::create_dir_all(to).map_err(|e| VendorError::Io(to.to_owned(), e))?;
    for path in list(from)? {
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target).map_err(|e| VendorError::Io(path.clone(), e))?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), VendorError> {
    fs::write(path, text).map_err(|e| VendorError::Io(path.to_owned(), e))
}

fn program(command: &mut Command) -> Result<(), VendorError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|e| VendorError::Io(name.clone().into(), e))?;
    if status.success() { Ok(()) } else { Err(VendorError::Program(name)) }
}
