//! Reads a container's log file, from its end or its start, and goes on as it grows and is rotated.
//!
//! Invariants:
//! - Memory is bounded: a block of the file, and one line of at most [`MAX_LINE`] bytes.
//! - A file is opened below the directory of logs without following a symbolic link, and read only if it is a regular file: a pod that
//!   has that directory as a volume cannot make the kubelet read another file.
//! - A file that was rotated is read to its end before the new one is opened.
//!
//! As upstream's: only the newest file is read, rotated ones are not; without `follow`, `tail` is the most that is sent.

use crate::pods::log_record::{self, Record, Writer};
use bytes::Bytes;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The longest line that is read: runtimes write at most 16 KiB of text in one.
const MAX_LINE: usize = 1 << 20;
/// Bytes of a file that are read at once.
const BLOCK: usize = 64 << 10;

/// Where a log file is.
#[derive(Debug, Clone)]
pub struct LogFile {
    root: PathBuf,
    /// Below the root.
    path: PathBuf,
}

impl LogFile {
    /// A file below the directory of logs.
    ///
    /// # Errors
    /// When it is not below it.
    pub fn new(root: &Path, path: &Path) -> io::Result<LogFile> {
        let below = path.strip_prefix(root).map_err(|_| {
            let text = format!("log file {:?} is not below {:?}", path.display(), root.display());
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        Ok(LogFile { root: root.to_owned(), path: below.to_owned() })
    }

    fn open_path(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &self.root, directory, Mode::empty())?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(kaji_files::open_within(&root, path, flags | OFlags::CLOEXEC, resolve)?)
    }

    /// Opens the file.
    ///
    /// # Errors
    /// When it is absent or no regular file.
    pub fn open(&self) -> io::Result<File> {
        // A pipe would not be opened until its other end is.
        let file = self.open_path(&self.path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        }
    }

    /// Opens its directory, to be watched.
    ///
    /// # Errors
    /// When it is absent.
    pub fn open_directory(&self) -> io::Result<OwnedFd> {
        let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty());
        self.open_path(parent.unwrap_or(Path::new(".")), OFlags::PATH | OFlags::DIRECTORY)
    }
}

/// The start of the last `count` lines; a last line without its end is not counted.
///
/// # Errors
/// When the file cannot be read.
pub fn tail_start(file: &File, count: u64) -> io::Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut end = file.metadata()?.len();
    let mut found = 0_u64;
    while end > 0 {
        let start = end.saturating_sub(BLOCK as u64);
        let part = &mut block[..usize::try_from(end - start).unwrap_or(BLOCK)];
        file.read_exact_at(part, start)?;
        for (index, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            found += 1;
            if found > count {
                return Ok(start + index as u64 + 1);
            }
        }
        end = start;
    }
    Ok(0)
}

/// What reading a block led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Text for the client, which may be empty.
    Text(Bytes),
    /// All that is in the file has been read.
    AtEnd,
    /// The client has all it asked for.
    Done,
}

/// Reads a log file.
#[derive(Debug)]
pub struct Reader {
    place: LogFile,
    file: File,
    /// The file that has taken its place; it is next when this one has been read to its end.
    next: Option<File>,
    /// A line that is not whole yet.
    line: Vec<u8>,
    writer: Writer,
    /// How many records are still sent; `None` for all.
    records_left: Option<u64>,
    /// Whether a line was understood.
    understood: bool,
}

impl Reader {
    /// Opens a log. `tail` is where it begins, in lines from the end; with `at_most_tail`, no more lines than that are sent.
    ///
    /// # Errors
    /// When the file cannot be opened or read.
    pub fn open(place: LogFile, tail: Option<u64>, at_most_tail: bool, writer: Writer) -> io::Result<Reader> {
        let mut file = place.open()?;
        if let Some(count) = tail {
            let start = tail_start(&file, count)?;
            file.seek(SeekFrom::Start(start))?;
        }
        let records_left = tail.filter(|_| at_most_tail);
        Ok(Reader { place, file, next: None, line: vec![], writer, records_left, understood: false })
    }

    /// Reads a block.
    ///
    /// # Errors
    /// When the file cannot be read, or is no log.
    pub fn step(&mut self) -> io::Result<Step> {
        if self.records_left == Some(0) {
            return Ok(Step::Done);
        }
        let mut block = vec![0; BLOCK];
        let count = self.file.read(&mut block)?;
        if count == 0 {
            let Some(next) = self.next.take() else { return Ok(Step::AtEnd) };
            self.file = next;
            self.line.clear();
            return Ok(Step::Text(Bytes::new()));
        }
        let mut out = Vec::with_capacity(count);
        let mut more = true;
        for part in block[..count].split_inclusive(|byte| *byte == b'\n') {
            if !more {
                break;
            }
            if self.line.len() + part.len() > MAX_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line of the log is too long"));
            }
            if part.last() != Some(&b'\n') {
                self.line.extend_from_slice(part);
            } else if self.line.is_empty() {
                more = self.take(part, &mut out)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(part);
                more = self.take(&line, &mut out)?;
            }
        }
        if !more {
            // What is left goes out with the next step.
            self.records_left = Some(0);
        }
        Ok(Step::Text(out.into()))
    }

    /// The last line of a file that has no end, at the end of a log that is not followed.
    ///
    /// # Errors
    /// When the file is no log.
    pub fn rest(&mut self) -> io::Result<Bytes> {
        let line = std::mem::take(&mut self.line);
        let mut out = vec![];
        if !line.is_empty() && self.records_left != Some(0) {
            self.take(&line, &mut out)?;
        }
        Ok(out.into())
    }

    /// Whether another file has taken the place of the one that is read. The steps that follow read what was written to this one
    /// until then, and go on with the other one.
    ///
    /// # Errors
    /// When the new one cannot be opened.
    pub fn follow_rotation(&mut self) -> io::Result<bool> {
        let new = match self.place.open() {
            Ok(file) => file,
            // Between the renaming and the new file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let id = |file: &File| rustix::fs::fstat(file).map(|s| (s.st_dev, s.st_ino, s.st_size));
        let (old, now) = (id(&self.file)?, id(&new)?);
        let at = i64::try_from(self.file.stream_position()?).unwrap_or(i64::MAX);
        if (old.0, old.1) == (now.0, now.1) && now.2 >= at {
            return Ok(false);
        }
        self.next = Some(new);
        Ok(true)
    }

    /// Takes a line. Whether there may be more.
    fn take(&mut self, line: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
        let record: Record<'_> = match log_record::parse(line) {
            Ok(record) => record,
            Err(error) if self.understood => {
                tracing::debug!(%error, "a line of a container's log is skipped");
                return Ok(true);
            }
            Err(_) => {
                let shown = String::from_utf8_lossy(&line[..line.len().min(200)]);
                let text = format!("failed to get parse function: unsupported log format: {shown:?}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        };
        self.understood = true;
        if !self.writer.write(&record, out) {
            return Ok(false);
        }
        if let Some(left) = &mut self.records_left {
            *left = left.saturating_sub(1);
        }
        Ok(self.records_left != Some(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::log_record::Selection;
    use proptest::prelude::*;
    use std::io::Write;

    fn place(dir: &Path) -> LogFile {
        LogFile::new(dir, &dir.join("c/0.log")).unwrap()
    }

    fn line(text: &str) -> String {
        format!("2026-01-01T00:00:00Z stdout F {text}\n")
    }

    fn append(dir: &Path, text: &str) {
        std::fs::create_dir_all(dir.join("c")).unwrap();
        let mut file = File::options().append(true).create(true).open(dir.join("c/0.log")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn open(dir: &Path, tail: Option<u64>, at_most_tail: bool) -> Reader {
        Reader::open(place(dir), tail, at_most_tail, Writer::new(Selection::default())).unwrap()
    }

    /// All text until the end, and what the end was.
    fn read(reader: &mut Reader) -> String {
        let mut all = String::new();
        loop {
            match reader.step().unwrap() {
                Step::Text(text) => all += std::str::from_utf8(&text).unwrap(),
                end => return format!("{all:?} {end:?}"),
            }
        }
    }

    #[test]
    fn a_file_that_grows_and_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        append(dir, &line("a"));
        let mut reader = open(dir, None, false);
        assert_eq!(read(&mut reader), r#""a\n" AtEnd"#);
        let (start, end) = ("2026-01-01T00:00:00Z std", "out F b\n");
        append(dir, start);
        assert_eq!(read(&mut reader), r#""" AtEnd"#);
        append(dir, end);
        assert_eq!(read(&mut reader), r#""b\n" AtEnd"#);
        assert!(!reader.follow_rotation().unwrap());
        std::fs::rename(dir.join("c/0.log"), dir.join("c/0.log.20260101-000000")).unwrap();
        assert!(!reader.follow_rotation().unwrap(), "there is no new file yet");
        append(dir, &line("d"));
        // The writer has not noticed the new file before this.
        let mut old = File::options().append(true).open(dir.join("c/0.log.20260101-000000")).unwrap();
        old.write_all(line("c").as_bytes()).unwrap();
        assert!(reader.follow_rotation().unwrap());
        assert_eq!(read(&mut reader), r#""c\nd\n" AtEnd"#);
        assert!(!reader.follow_rotation().unwrap());
    }

    #[test]
    fn a_last_line_without_an_end() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), &(line("a") + line("b").trim_end()));
        let mut reader = open(dir.path(), Some(2), true);
        assert_eq!(read(&mut reader), r#""a\n" AtEnd"#);
        assert_eq!(reader.rest().unwrap(), "b");
        let mut reader = open(dir.path(), Some(1), true);
        assert_eq!(read(&mut reader), r#""a\n" Done"#);
    }

    #[test]
    fn what_is_no_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        append(dir, "hello\n");
        assert_eq!(
            open(dir, None, false).step().unwrap_err().to_string(),
            "failed to get parse function: unsupported log format: \"hello\\n\""
        );
        append(dir, &"x".repeat(MAX_LINE + 1));
        let mut reader = open(dir, Some(0), false);
        let failed = std::iter::from_fn(|| Some(reader.step())).find_map(Result::err).unwrap();
        assert_eq!(failed.to_string(), "a line of the log is too long");
    }

    #[test]
    fn links_and_special_files_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        std::fs::create_dir(dir.join("c")).unwrap();
        std::fs::write(dir.join("secret"), line("secret")).unwrap();
        std::os::unix::fs::symlink(dir.join("secret"), dir.join("c/0.log")).unwrap();
        assert!(place(dir).open().is_err());
        std::os::unix::fs::symlink(dir.join("c"), dir.join("d")).unwrap();
        std::fs::write(dir.join("c/1.log"), line("x")).unwrap();
        assert!(LogFile::new(dir, &dir.join("d/1.log")).unwrap().open().is_err());
        assert!(LogFile::new(dir, &dir.join("c/1.log")).unwrap().open().is_ok());
        assert!(LogFile::new(dir, &dir.join("c/../../x")).unwrap().open().is_err());
        assert!(LogFile::new(dir, &dir.join("c")).unwrap().open().is_err());
        assert!(LogFile::new(dir, Path::new("/etc/passwd")).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn reads_the_last_lines(
            lines in proptest::collection::vec(0_usize..3000, 0..120),
            count in 0_u64..130,
            whole in any::<bool>(),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut all: Vec<String> = lines.iter().map(|length| "x".repeat(*length) + "\n").collect();
            if !whole {
                all.push("rest".to_owned());
            }
            append(dir.path(), &all.concat());
            let file = place(dir.path()).open().unwrap();
            let start = usize::try_from(tail_start(&file, count).unwrap()).unwrap();
            let left_out = lines.len().saturating_sub(usize::try_from(count).unwrap());
            prop_assert_eq!(&all.concat()[start..], all[left_out..].concat());
        }
    }
}
