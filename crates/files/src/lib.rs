//! Files and directories that hold secrets: their modes, and replacing and erasing them. Configuration files in YAML. What directory
//! trees take of a disk, what is mounted where, and which ids and security modules this process has.
//!
//! Invariants:
//! - Created files and directories have the requested mode, whatever the process's umask is.
//! - Existing ones that other users may use are closed to them, with a warning. One that belongs to another user than this
//!   process's or root is rejected: its owner can read and replace it at any time.
//! - A file that is replaced is whole at any moment: the new one is synced under a temporary name and renamed.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

mod apparmor;
mod erase;
mod ids;
pub mod kubeconfig;
mod mounts;
mod usage;
mod within;
pub mod yaml;

pub use apparmor::{apparmor_parser, has_apparmor};
pub use erase::erase;
pub use ids::{MissingId, NamespaceIds, chown};
pub use mounts::{Mount, MountTable};
pub use usage::DirectoryUsage;
pub use within::open_within;

/// The mode of private directories.
pub const PRIVATE_DIR: u32 = 0o700;
/// The mode of private files.
pub const PRIVATE: u32 = 0o600;
/// The mode of files that every user may read.
pub const PUBLIC: u32 = 0o644;

/// Everything that other users could do.
const ANY: u32 = 0o077;
/// Other users' writing.
const WRITING: u32 = 0o022;
/// The bit of directories in which only owners rename and remove files.
const STICKY: u32 = 0o1000;
/// As many symbolic links as Linux follows.
const MOST_LINKS: usize = 40;

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(
        "it belongs to user {owner}, and this process runs as user {user}; change its owner, or choose another path"
    )]
    Owner { owner: u32, user: u32 },
    #[error("its mode {mode:04o} opens it to other users, and only root can change that")]
    Open { mode: u32 },
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, refused)
    }
}

/// Makes a directory and its missing parents for this user only; one that exists is closed to other users.
///
/// # Errors
/// When it cannot be created or closed, or belongs to another user.
pub fn private_dir(path: &Path) -> io::Result<()> {
    make_dirs(path, PRIVATE_DIR)?;
    close(path, ANY)
}

/// Makes the directory above private ones. One that exists may be seen by other users, but they must not be able to put
/// other directories into the place of those in it.
///
/// # Errors
/// When it cannot be created or closed, or belongs to another user.
pub fn parent_of_private(path: &Path) -> io::Result<()> {
    make_dirs(path, PRIVATE_DIR)?;
    let mode = fs::metadata(path)?.mode();
    match close(path, if mode & STICKY == 0 { WRITING } else { 0 }) {
        // A volume that root has created and opened: files in it belong to this user all the same, and are rejected later if
        // they do not.
        Err(error)
            if error.get_ref().is_some_and(|e| matches!(e.downcast_ref(), Some(Refused::Open { .. }))) =>
        {
            tracing::warn!(path = %path.display(), %error, "other users can rename files in this directory");
            Ok(())
        }
        outcome => outcome,
    }
}

/// Makes a directory and its missing parents with a mode; one that exists is left as it is.
///
/// # Errors
/// When it cannot be created.
pub fn make_dirs(path: &Path, mode: u32) -> io::Result<()> {
    let missing = !path.exists();
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    if missing { fs::set_permissions(path, Permissions::from_mode(mode)) } else { Ok(()) }
}

/// Closes a file to other users, if it exists.
///
/// # Errors
/// When it cannot be closed, or belongs to another user.
pub fn keep_private(path: &Path) -> io::Result<()> {
    existing(close(path, ANY))
}

/// Makes a directory as [`private_dir`] does, and closes the files that are in it; those in directories below it are left as they are.
///
/// # Errors
/// When it cannot be created, read or closed, or it or a file in it belongs to another user.
pub fn private_dir_and_files(path: &Path) -> io::Result<()> {
    private_dir(path)?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            keep_private(&entry.path())?;
        }
    }
    Ok(())
}

/// Keeps other users from writing a file, if it exists; they may read it.
///
/// # Errors
/// When that cannot be done, or the file belongs to another user.
pub fn keep_unwritable(path: &Path) -> io::Result<()> {
    existing(close(path, WRITING))
}

fn existing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Takes bits of a mode away.
fn close(path: &Path, bits: u32) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let (owner, user, mode) = (found.uid(), rustix::process::geteuid().as_raw(), found.mode() & 0o7777);
    if owner != user && owner != 0 {
        return Err(Refused::Owner { owner, user }.into());
    }
    if owner != user {
        // Root lets a group read keys where services run as separate users.
        let open = mode & bits & !0o040;
        let dir_of_group = if found.is_dir() { 0o010 } else { 0 };
        return if open & !dir_of_group == 0 { Ok(()) } else { Err(Refused::Open { mode }.into()) };
    }
    if mode & bits == 0 {
        return Ok(());
    }
    let closed = mode & !bits;
    fs::set_permissions(path, Permissions::from_mode(closed))?;
    let (mode, closed) = (format!("{mode:04o}"), format!("{closed:04o}"));
    tracing::warn!(path = %path.display(), mode, now = closed, "was open to other users, and is no longer");
    Ok(())
}

/// Replaces a file, or makes it.
///
/// # Errors
/// When it cannot be written; the former is as it was then.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary(path);
    // A file that a killed process left may have another mode.
    existing(fs::remove_file(&temporary))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    let written = write_all(&mut file, content, mode).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| {
        // The first error is returned; the temporary file is private, and the next attempt removes it.
        let _ = fs::remove_file(&temporary);
    })
}

fn write_all(file: &mut File, content: &[u8], mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

/// `path.tmp`, beside the file.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Replaces a user's file that holds a secret. Symbolic links stay and what they lead to is replaced. Owner and group stay;
/// so does the mode, unless users outside of the group may use the file or the group may write it: then it becomes private,
/// with a warning. What is no regular file (a pipe, a terminal) is written to.
///
/// # Errors
/// When it cannot be written; the former is as it was then.
pub fn replace_linked(path: &Path, content: &[u8]) -> io::Result<()> {
    let path = &followed(path)?;
    let found = match fs::metadata(path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if found.as_ref().is_some_and(|f| !f.is_file()) {
        return OpenOptions::new().write(true).open(path)?.write_all(content);
    }
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        make_dirs(parent, PRIVATE_DIR)?;
    }
    let Some(found) = found else { return replace(path, content, PRIVATE) };
    let former = found.mode() & 0o777;
    let mode = if former & 0o027 == 0 { former } else { PRIVATE };
    replace(path, content, mode)?;
    if mode != former {
        let (former, now) = (format!("{former:04o}"), format!("{mode:04o}"));
        tracing::warn!(path = %path.display(), mode = former, now, "was open to other users, and is no longer");
    }
    let replaced = fs::metadata(path)?;
    if (replaced.uid(), replaced.gid()) != (found.uid(), found.gid()) {
        give(path, &found)?;
    }
    Ok(())
}

/// Gives a file the owner and group of its predecessor, as far as this process may.
fn give(path: &Path, to: &fs::Metadata) -> io::Result<()> {
    match std::os::unix::fs::chown(path, Some(to.uid()), Some(to.gid())) {
        // Only root gives files away; a user's own file with a group of others stays theirs.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        outcome => outcome,
    }
}

/// What symbolic links lead to, which need not exist.
fn followed(path: &Path) -> io::Result<PathBuf> {
    // Pipes have links that lead nowhere by name.
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return Ok(path.to_owned());
    }
    let mut at = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&at) {
            Ok(next) => at = at.parent().map_or_else(|| next.clone(), |dir| dir.join(&next)),
            // No link, or nothing at all.
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound) => {
                return Ok(at);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

#[cfg(test)]
mod tests;
