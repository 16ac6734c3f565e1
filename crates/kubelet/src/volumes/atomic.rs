//! Writes the files of a volume so that a reader sees the former ones or the new ones, never some of each. Upstream's
//! `AtomicWriter`: files are in a directory named by time, `..data` is a link to it, and the visible names are links through
//! `..data`. The link is replaced by a rename.

use super::content::{Content, ContentFile};
use rustix::fs::{CWD, renameat};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::Path;

const DATA: &str = "..data";
const NEW: &str = "..data_tmp";

/// Brings a volume's files up to date. `group` may read them then.
///
/// # Errors
/// Of the file system; what readers see is whole then, too.
pub(super) fn write(dir: &Path, content: &Content, group: Option<u32>) -> io::Result<()> {
    let present = std::fs::read_link(dir.join(DATA)).ok();
    if let Some(present) = &present
        && same(&dir.join(present), content)?
    {
        return links(dir, content);
    }
    let stamp = stamped(dir)?;
    let target = dir.join(&stamp);
    for (path, file) in &content.files {
        let path = target.join(path);
        if let Some(parent) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        write_file(&path, file, group)?;
    }
    if let Some(group) = group {
        kaji_files::chown(&target, None, Some(group))?;
    }
    let new = dir.join(NEW);
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(&stamp, &new)?;
    renameat(CWD, &new, CWD, dir.join(DATA))?;
    links(dir, content)?;
    sweep(dir, content, &stamp)
}

fn write_file(path: &Path, file: &ContentFile, group: Option<u32>) -> io::Result<()> {
    std::fs::write(path, &file.bytes)?;
    let mut mode = file.mode;
    if let Some(group) = group {
        mode |= 0o440;
        kaji_files::chown(path, file.user, Some(group))?;
    } else if file.user.is_some() {
        kaji_files::chown(path, file.user, None)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// A new directory, named by the present time and a number.
fn stamped(dir: &Path) -> io::Result<String> {
    let now = jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S").to_string();
    for number in 0_u32.. {
        let name = format!("..{now}.{number:010}");
        match std::fs::create_dir(dir.join(&name)) {
            Ok(()) => {
                std::fs::set_permissions(dir.join(&name), std::fs::Permissions::from_mode(0o755))?;
                return Ok(name);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("no name is free"))
}

fn walk(root: &Path, dir: &Path, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            walk(root, &entry.path(), found)?;
        } else if let Ok(path) = entry.path().strip_prefix(root) {
            found.insert(path.display().to_string());
        }
    }
    Ok(())
}

fn same(dir: &Path, content: &Content) -> io::Result<bool> {
    let mut found = BTreeSet::new();
    match walk(dir, dir, &mut found) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    }
    if found.len() != content.files.len() {
        return Ok(false);
    }
    for (path, file) in &content.files {
        if !found.contains(path) || std::fs::read(dir.join(path))? != file.bytes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first parts of the files' paths: these are the visible names.
fn names(content: &Content) -> BTreeSet<&str> {
    content.files.keys().filter_map(|p| p.split('/').next()).collect()
}

fn links(dir: &Path, content: &Content) -> io::Result<()> {
    for name in names(content) {
        let link = dir.join(name);
        if std::fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), link)?;
        }
    }
    Ok(())
}

fn sweep(dir: &Path, content: &Content, stamp: &str) -> io::Result<()> {
    let names = names(content);
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == DATA || name == stamp || names.contains(name.as_str()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(files: &[(&str, &str)]) -> Content {
        let file = |text: &str| ContentFile { bytes: text.into(), mode: 0o640, user: None };
        Content { files: files.iter().map(|(p, t)| ((*p).to_owned(), file(t))).collect() }
    }

    fn shown(dir: &Path) -> String {
        let mut lines = vec![];
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with("..") {
                let path = entry.path();
                let text = if path.is_dir() { "dir".into() } else { std::fs::read_to_string(path).unwrap() };
                lines.push(format!("{name}={text}"));
            }
        }
        lines.sort();
        lines.join(" ")
    }

    #[test]
    fn files_change_together_and_unchanged_ones_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, &content(&[("a", "1"), ("d/b", "2")]), None).unwrap();
        assert_eq!(shown(dir), "a=1 d=dir");
        assert_eq!(std::fs::read_to_string(dir.join("d/b")).unwrap(), "2");
        let mode = std::fs::metadata(dir.join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        let first = std::fs::read_link(dir.join(DATA)).unwrap();
        write(dir, &content(&[("a", "1"), ("d/b", "2")]), None).unwrap();
        assert_eq!(std::fs::read_link(dir.join(DATA)).unwrap(), first, "nothing changed");
        write(dir, &content(&[("a", "3"), ("c", "4")]), None).unwrap();
        assert_eq!(shown(dir), "a=3 c=4");
        assert!(!dir.join(first).exists(), "the former files are gone");
    }
}
