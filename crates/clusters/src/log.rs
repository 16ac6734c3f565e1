//! A server's log in its cluster's directory: opening it for a server, its last lines, and what is added.
//!
//! Invariants: a log that is too long is set aside when the next server starts, and only one such file is kept. Showing a log takes
//! memory for a block, however long the log is.

use crate::{ClusterError, io_error};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// The file's name.
const FILE: &str = "kaji.log";
/// The name of the file before.
const BEFORE: &str = "kaji.log.1";
/// From this size on a log is set aside at the next start.
const LONGEST: u64 = 16 << 20;
/// What is read at once.
const BLOCK: usize = 64 << 10;

/// The log of a cluster's server.
pub fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Opens the log for a server that is to write it.
///
/// # Errors
/// When it cannot be opened.
pub fn open_for_server(directory: &Path) -> Result<File, ClusterError> {
    let path = path(directory);
    if fs::metadata(&path).is_ok_and(|found| found.len() >= LONGEST) {
        fs::rename(&path, directory.join(BEFORE)).map_err(io_error(path.display()))?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(kaji_files::PRIVATE);
    options.open(&path).map_err(io_error(path.display()))
}

/// Where the last `lines` lines of a file begin. A file's last line need not be whole.
fn beginning_of_last(file: &mut File, lines: usize) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let (mut found, mut is_last_byte) = (0, true);
    let mut block = vec![0; BLOCK];
    while end > 0 {
        let length = usize::try_from(end.min(BLOCK as u64)).unwrap_or(BLOCK);
        let begin = end - length as u64;
        file.seek(SeekFrom::Start(begin))?;
        let block = &mut block[..length];
        file.read_exact(block)?;
        for (index, byte) in block.iter().enumerate().rev() {
            // The newline at the end ends the last line, the others begin one.
            if *byte == b'\n' && !is_last_byte {
                found += 1;
                if found == lines {
                    return Ok(begin + index as u64 + 1);
                }
            }
            is_last_byte = false;
        }
        end = begin;
    }
    Ok(0)
}

/// A log that is shown.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    position: u64,
}

impl Log {
    /// A cluster's log from its last `lines` lines on; from the beginning without.
    ///
    /// # Errors
    /// When there is none: a server in the foreground writes to its terminal.
    pub fn open(directory: &Path, lines: Option<usize>) -> Result<Log, ClusterError> {
        let path = path(directory);
        let failed = || io_error(path.display());
        let mut file = File::open(&path).map_err(failed())?;
        let position = match lines {
            Some(0) => file.seek(SeekFrom::End(0)).map_err(failed())?,
            Some(lines) => beginning_of_last(&mut file, lines).map_err(failed())?,
            None => 0,
        };
        Ok(Log { path, file, position })
    }

    /// Copies what the log has by now.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn copy_to(&mut self, out: &mut impl Write) -> Result<(), ClusterError> {
        let outcome = (|| {
            if fs::metadata(&self.path).is_ok_and(|found| found.len() < self.position) {
                // A new server has begun a new one.
                self.file = File::open(&self.path)?;
                self.position = 0;
            }
            self.file.seek(SeekFrom::Start(self.position))?;
            self.position += io::copy(&mut self.file, out)?;
            out.flush()
        })();
        outcome.map_err(io_error(self.path.display()))
    }
}

/// The last lines of a cluster's log, as text; empty if there is none.
pub fn last_lines(directory: &Path, lines: usize) -> String {
    let mut text = Vec::new();
    match Log::open(directory, Some(lines)).and_then(|mut log| log.copy_to(&mut text)) {
        Ok(()) => String::from_utf8_lossy(&text).trim_end().to_owned(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let text = |lines: Option<usize>| {
            let mut out = Vec::new();
            Log::open(dir.path(), lines).unwrap().copy_to(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        for (content, last) in [("a\nb\nc\n", "b\nc\n"), ("a\nb\nc", "b\nc"), ("c\n", "c\n"), ("", "")] {
            fs::write(path(dir.path()), content).unwrap();
            assert_eq!(text(Some(2)), last);
            assert_eq!(text(None), content);
            assert_eq!(text(Some(0)), "");
        }
        let long: String = (0..50_000).map(|n| format!("line {n}\n")).collect();
        fs::write(path(dir.path()), &long).unwrap();
        assert_eq!(text(Some(1)), "line 49999\n");
        assert_eq!(text(Some(30_000)).lines().count(), 30_000);
        assert_eq!(text(Some(60_000)), long);
    }

    #[test]
    fn follows_what_is_added_and_a_log_that_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(path(dir.path()), "a\nb\n").unwrap();
        let mut log = Log::open(dir.path(), Some(1)).unwrap();
        let mut out = Vec::new();
        log.copy_to(&mut out).unwrap();
        writeln!(open_for_server(dir.path()).unwrap(), "c").unwrap();
        log.copy_to(&mut out).unwrap();
        fs::write(path(dir.path()), "d\n").unwrap();
        log.copy_to(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "b\nc\nd\n");
    }

    #[test]
    fn a_long_log_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        File::create(path(dir.path())).unwrap().set_len(LONGEST).unwrap();
        let file = open_for_server(dir.path()).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(fs::metadata(dir.path().join(BEFORE)).unwrap().len(), LONGEST);
    }
}
