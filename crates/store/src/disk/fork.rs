//! A second store that begins as a copy of one, which another process may have open and write to meanwhile.
//!
//! The files of a store are whole at any moment if they are read at once: a commit writes pages that the former one does not use, and
//! then the header; the journal belongs to the commit that the header names. So the copy is one of a moment if the header
//! is the same before and after it, and is made again otherwise. Where the file system can share blocks, the database is
//! cloned; otherwise it is copied by the system.
//!
//! Invariants: the source is only read, and not locked; the copy gets its names when it is complete, `FORMAT` last. It is not
//! synced: after a cut of the power the new store may be damaged, and says so.

use super::backend::io_error;
use super::format::{Directory, Found, Version};
use super::pages::PAGE;
use crate::StoreError;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// How often a copy is made that a commit of the source disturbs.
const ATTEMPTS: u32 = 40;
/// Before the next try.
const PAUSE: Duration = Duration::from_millis(3);

/// How a store was forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forked {
    /// Bytes of the database.
    pub bytes: u64,
    /// They are on the disk once, until either of the stores changes them.
    pub shared: bool,
    /// How often it was tried.
    pub attempts: u32,
}

/// What tells whether a commit came in between: the database's header, and which file it is of.
#[derive(PartialEq, Eq)]
struct Moment {
    header: Vec<u8>,
    file: (u64, u64),
}

impl Moment {
    fn of(file: &File) -> io::Result<Moment> {
        let mut header = vec![0; PAGE as usize];
        file.read_exact_at(&mut header, 0)?;
        let found = file.metadata()?;
        Ok(Moment { header, file: (found.dev(), found.ino()) })
    }
}

/// Makes a store in `to`, which must have none, that is as the one in `from` is now: the same keys, revisions, history and leases. The
/// source may be in use. Blocks.
///
/// # Errors
/// [`StoreError::Invalid`] when there is no store in `from`, or one in `to`; [`StoreError::Unavailable`] when the source was
/// written to all the time, and for a format of a later version; those of the file systems.
pub fn fork(from: &Path, to: &Path) -> Result<Forked, StoreError> {
    let source = Directory::unlocked(from);
    if source.version()? != Version::Known || !source.data().exists() {
        return Err(StoreError::Invalid(format!("{} has no store", from.display())));
    }
    let target = Directory::lock(to)?;
    if target.inspect()? == Found::Store {
        return Err(StoreError::Invalid(format!("{} has a store already", to.display())));
    }
    for attempts in 1..=ATTEMPTS {
        let copied = copy(&source, &target).map_err(|e| io_error(from, &e))?;
        if let Some((bytes, shared)) = copied {
            target.publish()?;
            target.mark_unsynced()?;
            return Ok(Forked { bytes, shared, attempts });
        }
        target.remove_draft()?;
        std::thread::sleep(PAUSE);
    }
    Err(StoreError::Unavailable(format!(
        "{} is written to faster than it can be copied; take a snapshot of the server, and fork that",
        from.display()
    )))
}

fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(kaji_files::PRIVATE).open(path)
}

/// Copies both files; `None` if the source changed meanwhile.
fn copy(source: &Directory, target: &Directory) -> io::Result<Option<(u64, bool)>> {
    let mut data = File::open(source.data())?;
    let before = Moment::of(&data)?;
    let mut draft = private(&target.new_data())?;
    let shared = clone_blocks(&draft, &data);
    let bytes = if shared { draft.metadata()?.len() } else { io::copy(&mut data, &mut draft)? };
    let journal = match fs::read(source.journal()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => vec![],
        other => other?,
    };
    // The file that has the name now: a store that writes its file anew replaces it.
    let after = Moment::of(&File::open(source.data())?)?;
    if after != before || Moment::of(&File::open(target.new_data())?)?.header != before.header {
        return Ok(None);
    }
    write_sparse(&private(&target.journal())?, &journal)?;
    Ok(Some((bytes, shared)))
}

/// Writes a file, but for its pages of zeros, which take no room then.
fn write_sparse(file: &File, bytes: &[u8]) -> io::Result<()> {
    file.set_len(bytes.len() as u64)?;
    for (n, page) in bytes.chunks(PAGE as usize).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, n as u64 * PAGE)?;
        }
    }
    Ok(())
}

/// Lets one file share the blocks of another. Whether that is possible here.
fn clone_blocks(to: &File, from: &File) -> bool {
    #[cfg(target_os = "linux")]
    {
        rustix::fs::ioctl_ficlone(to, from).is_ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (to, from);
        false
    }
}
