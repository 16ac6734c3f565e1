//! The folder that `KUBEBUILDER_ASSETS` names: `kube-apiserver`, `etcd` and `kubectl`.
//!
//! Invariants: writing it again does not disturb processes that use it meanwhile; an existing program that is none of
//! these links is never replaced.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::{OpenOptionsExt, symlink},
    path::{Path, PathBuf},
};

pub(super) const APISERVER: &str = "kube-apiserver";
pub(super) const ETCD: &str = "etcd";
const KUBECTL: &str = "kubectl";

/// Identifies the script that replaces a missing kubectl.
const STAND_IN: &str = "# kaji envtest: no kubectl";

/// Why the folder could not be written.
#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
    /// A file.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Something that this program did not make.
    #[error("{0} is there already and is no link; remove it or choose another folder")]
    Taken(PathBuf),
}

/// Writes the folder and returns its absolute path. `program` is this program; kubectl is searched in `search`, a list
/// as in `PATH`.
///
/// # Errors
/// When a file cannot be written or is in the way.
pub fn write(dir: &Path, program: &Path, search: &OsStr) -> Result<PathBuf, AssetsError> {
    // Programs are started from here: other users must not be able to put theirs into it.
    kaji_files::make_dirs(dir, 0o755).map_err(at(dir))?;
    let dir = dir.canonicalize().map_err(at(dir))?;
    for name in [APISERVER, ETCD] {
        put(&dir.join(name), |path| symlink(program, path))?;
    }
    let kubectl = dir.join(KUBECTL);
    match find(search, &dir) {
        Some(found) => put(&kubectl, |path| symlink(&found, path))?,
        None => put(&kubectl, |path| stand_in(path, &dir))?,
    }
    Ok(dir)
}

fn at(path: &Path) -> impl Fn(io::Error) -> AssetsError + use<> {
    let path = path.to_owned();
    move |source| AssetsError::Io { path: path.clone(), source }
}

/// Puts what `make` makes in the place of what is there, at once.
fn put(path: &Path, make: impl Fn(&Path) -> io::Result<()>) -> Result<(), AssetsError> {
    match fs::symlink_metadata(path) {
        Ok(found) => {
            let ours = || fs::read(path).is_ok_and(|b| String::from_utf8_lossy(&b).contains(STAND_IN));
            if !found.is_symlink() && !ours() {
                return Err(AssetsError::Taken(path.into()));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(at(path)(error)),
    }
    // A name of this process's own: several may write at once.
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&temporary)(error)),
        _ => {}
    }
    make(&temporary).map_err(at(&temporary))?;
    fs::rename(&temporary, path).map_err(at(path))
}

/// The first kubectl in `search`, except in `dir` itself.
fn find(search: &OsStr, dir: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let here = |folder: &PathBuf| folder.canonicalize().is_ok_and(|f| f == dir);
    let runs =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let folders = std::env::split_paths(search).filter(|folder| folder.is_absolute() && !here(folder));
    folders.map(|folder| folder.join(KUBECTL)).find(runs)
}

fn stand_in(path: &Path, dir: &Path) -> io::Result<()> {
    use std::{io::Write, os::unix::fs::PermissionsExt};
    let text = format!(
        "#!/bin/sh\n{STAND_IN}\n\
         echo \"kubectl: there was none on the PATH when these assets were made;\" >&2\n\
         echo \"install one, then run: kaji envtest --print-assets '{}'\" >&2\n\
         exit 127\n",
        dir.display()
    );
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn program(path: &Path) {
        let mut file = fs::OpenOptions::new();
        file.write(true).create_new(true).mode(0o755).open(path).unwrap();
    }

    #[test]
    fn writes_links_and_rewrites_them() {
        let base = tempfile::tempdir().unwrap();
        let (dir, bin) = (base.path().join("new/assets"), base.path().join("bin"));
        fs::create_dir(&bin).unwrap();
        let kaji = bin.join("kaji");
        let written = write(&dir, &kaji, bin.as_os_str()).unwrap();
        assert!(written.is_absolute());
        assert_eq!(fs::read_link(dir.join("etcd")).unwrap(), kaji);
        assert_eq!(fs::read_link(dir.join("kube-apiserver")).unwrap(), kaji);
        // Nothing named kubectl yet: the script says so.
        let output = Command::new(dir.join("kubectl")).arg("version").output().unwrap();
        assert_eq!(output.status.code(), Some(127));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("kubectl: there was none on the PATH"), "{said}");
        assert!(said.contains(&format!("--print-assets '{}'", written.display())), "{said}");

        program(&bin.join("kubectl"));
        // The folder itself is on the PATH as well, and must not be linked to itself.
        let search = std::env::join_paths([&dir, &bin]).unwrap();
        for _ in 0..2 {
            write(&dir, &kaji, &search).unwrap();
            assert_eq!(fs::read_link(dir.join("kubectl")).unwrap(), bin.join("kubectl"));
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
    }

    #[test]
    fn refuses_to_replace_another_program() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("etcd"), "a real one").unwrap();
        let error = write(dir.path(), Path::new("/bin/kaji"), OsStr::new("")).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("/etcd is there already and is no link; remove it or choose another folder")
        );
        assert_eq!(fs::read_to_string(dir.path().join("etcd")).unwrap(), "a real one");
    }
}
