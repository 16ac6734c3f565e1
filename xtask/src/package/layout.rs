//! The files of an installation, below a prefix such as `/usr`.

use super::{Error, NAME, PLUGIN, file, output};
use std::{fs, path::Path, process::Command};

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path below the prefix.
    pub path: String,
    /// Whether it can be run.
    pub executable: bool,
    /// What is in it.
    pub bytes: Vec<u8>,
    /// What it is a symbolic link to, relative to its directory; nothing is in it then.
    pub link: Option<&'static str>,
}

impl File {
    /// A file that is read.
    pub fn new(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> File {
        File { path: path.into(), executable: false, bytes: bytes.into(), link: None }
    }

    /// A program.
    pub fn program(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> File {
        File { executable: true, ..File::new(path, bytes) }
    }

    /// A symbolic link.
    pub fn symlink(path: impl Into<String>, target: &'static str) -> File {
        File { link: Some(target), ..File::new(path, []) }
    }

    /// Its mode.
    pub fn mode(&self) -> u32 {
        if self.executable { 0o755 } else { 0o644 }
    }
}

/// All files, sorted by path.
pub struct Layout {
    /// Below the prefix.
    pub files: Vec<File>,
}

impl Layout {
    /// Of a program and what does not depend on its target.
    pub fn new(program: &[u8], shared: &[File]) -> Layout {
        let mut files = shared.to_vec();
        files.push(File::program(format!("bin/{NAME}"), program));
        files.push(File::symlink(format!("bin/{PLUGIN}"), NAME));
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Layout { files }
    }
}

/// What does not depend on the target; `program` is run for completions and for manual pages, which it writes below `out`.
///
/// # Errors
/// When the program fails, or a file of the repository cannot be read.
pub fn shared(root: &Path, program: &Path, out: &Path) -> Result<Vec<File>, Error> {
    let mut files = vec![];
    for (from, to) in [
        ("README.md", "share/doc/kaji/README.md"),
        ("CHANGELOG.md", "share/doc/kaji/CHANGELOG.md"),
        ("LICENSE", "share/doc/kaji/LICENSE"),
        ("packaging/kaji-as-control-plane.yaml", "share/doc/kaji/examples/kaji-as-control-plane.yaml"),
        ("packaging/kaji.service", "lib/systemd/system/kaji.service"),
        ("packaging/kaji-control-plane.service", "lib/systemd/system/kaji-control-plane.service"),
    ] {
        let path = root.join(from);
        files.push(File::new(to, fs::read(&path).map_err(|e| file(&path, e))?));
    }
    for (shell, to) in [
        ("bash", "share/bash-completion/completions/kaji"),
        ("zsh", "share/zsh/site-functions/_kaji"),
        ("fish", "share/fish/vendor_completions.d/kaji.fish"),
        ("powershell", "share/powershell/kaji.ps1"),
    ] {
        files.push(File::new(to, output(Command::new(program).args(["completion", shell]))?));
    }
    let dir = out.join(".man");
    fs::create_dir_all(&dir).map_err(|e| file(&dir, e))?;
    let pages = manual_pages(program, &dir);
    let removed = fs::remove_dir_all(&dir).map_err(|e| file(&dir, e));
    files.extend(pages?);
    removed.map(|()| files)
}

fn manual_pages(program: &Path, dir: &Path) -> Result<Vec<File>, Error> {
    output(Command::new(program).args(["man", "--dir"]).arg(dir))?;
    let entries = fs::read_dir(dir).map_err(|e| file(dir, e))?;
    let mut pages = vec![];
    for entry in entries.flatten() {
        let bytes = fs::read(entry.path()).map_err(|e| file(&entry.path(), e))?;
        pages.push(File::new(format!("share/man/man1/{}", entry.file_name().display()), bytes));
    }
    if pages.is_empty() {
        return Err(Error::Failed(program.display().to_string(), "it writes no manual pages".into()));
    }
    Ok(pages)
}
