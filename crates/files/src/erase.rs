//! Erasing a file: its bytes are overwritten before it is removed.
//!
//! A file system that does not write in place (copy on write, a journal of data, a flash translation layer) may keep former
//! blocks, which a program cannot overwrite.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::Path,
};

/// Overwrites a file with zeros, syncs it and removes it. True if there was one.
///
/// # Errors
/// When it cannot be written or removed.
pub fn erase(path: &Path) -> io::Result<bool> {
    let mut file = match OpenOptions::new().write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let zeros = vec![0; 1 << 20];
    let mut left = file.metadata()?.len();
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
        file.write_all(&zeros[..part])?;
        left -= part as u64;
    }
    file.sync_all()?;
    drop(file);
    fs::remove_file(path)?;
    Ok(true)
}
