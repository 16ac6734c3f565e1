//! A second store that begins as a copy of one, which another process may have open and write to meanwhile.
//!
//! The files of a store are whole at any moment if they are read at once: a commit writes pages that the former one does not use, and
//! a header that names them; the journal belongs to the commit that the header names. So the copy is one of a moment if the header
//! is the same before and after it and all that it names is there: the header may be written first. The copy is opened, and made again if it
//! is not whole. Frames that are appended to the journal meanwhile are in the copy up to
//! one of them ([`read_journal`]). Where the file system can share blocks, the database is
//! cloned; otherwise it is copied by the system.
//!
//! Invariants: the source is only read, and not locked; the copy gets its names when it is complete, `FORMAT` last. It is not
//! synced: after a cut of the power the new store may be damaged, and says so.

use super::DiskOptions;
use super::backend::{self, Unsynced, io_error};
use super::format::{Directory, Found, Version};
use super::journal::{first_generation, read_frames};
use super::log::DiskLog;
use super::pages::PAGE;
use crate::StoreError;
use std::fs::{File, OpenOptions};
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
        if let Some((bytes, shared)) = copied
            && is_whole(to, &target)?
        {
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

/// Whether a copy can be opened: its pages are those that its header names, and its journal continues them. What the journal has is in
/// the database afterwards.
fn is_whole(to: &Path, target: &Directory) -> Result<bool, StoreError> {
    let (options, unsynced) = (DiskOptions::default(), Unsynced::default());
    let opened = backend::open(&target.new_data(), false, &options, &unsynced);
    let outcome =
        opened.and_then(|opened| DiskLog::new((opened, unsynced), Directory::unlocked(to), options).replay());
    match outcome {
        Ok(()) => Ok(true),
        Err(StoreError::Corrupt(what)) => {
            tracing::debug!(what, "a commit was written during the copy");
            Ok(false)
        }
        Err(error) => Err(error),
    }
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
    let Some(journal) = read_journal(&source.journal())? else { return Ok(None) };
    // The file that has the name now: a store that writes its file anew replaces it.
    let after = Moment::of(&File::open(source.data())?)?;
    if after != before || Moment::of(&File::open(target.new_data())?)?.header != before.header {
        return Ok(None);
    }
    write_sparse(&private(&target.journal())?, &journal)?;
    Ok(Some((bytes, shared)))
}

/// The journal at `path`, which another process may append to: its frames until a moment, the last of which may be cut off. `None`
/// if it was not to be read so, and has to be tried again.
///
/// A page is read before those in front of it: where a later frame or the mark was written in time, all that came before it was, too.
///
/// # Errors
/// Those of the file system.
fn read_journal(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Some(vec![])),
        opened => opened?,
    };
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    for (n, page) in bytes.chunks_mut(PAGE as usize).enumerate().rev() {
        match file.read_exact_at(page, n as u64 * PAGE) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            outcome => outcome?,
        }
    }
    let in_order = first_generation(&bytes).is_none_or(|first| read_frames(first, &bytes).is_ok());
    Ok(in_order.then_some(bytes))
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
