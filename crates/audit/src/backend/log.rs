//! The log backend: events in a file, or on standard output.
//!
//! Invariants: an event is one line; a file is rotated before it exceeds its size; a partially written line is ended before
//! the next one is written. At most one thread of the async runtime is in a write, and none for a while after a slow one.
//!
//! Names and order of rotated files are upstream's (lumberjack's).

use super::{
    AuditError,
    buffer::{Backend, LossReporter},
};
use crate::{Event, Fit, Format, LogOptions, TruncateOptions, fit};
use flate2::{Compression, write::GzEncoder};
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use kaji_resource::BoxFuture;
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, TryLockError},
    time::{Duration, Instant},
};

/// The time in the names of rotated files, in UTC.
const STAMP: &str = "%Y-%m-%dT%H-%M-%S%.3f";
/// Lines are written together up to this many bytes.
const GROUP_BYTES: usize = 64 << 10;
/// A write to the page cache takes microseconds. One that takes this long waits for the disk.
const SLOW_WRITE: Duration = Duration::from_millis(1);
/// How long after a slow write none is made on a thread of the async runtime.
const SLOW_PAUSE: Duration = Duration::from_secs(1);

/// How a file is rotated.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// Size limit in bytes; 0 for none.
    pub max_size: u64,
    /// How many rotated files are kept; 0 for all.
    pub max_backups: usize,
    /// Days that rotated files are kept; 0 for no limit.
    pub max_age: i64,
    /// Whether rotated files are compressed.
    pub compress: bool,
}

/// A file of lines that is rotated when it is full.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    options: FileOptions,
    file: File,
    size: u64,
    torn: bool,
}

impl LogFile {
    /// Opens the file, or creates it and its directory, readable by the owner only.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(path: &Path, options: FileOptions) -> io::Result<LogFile> {
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            kaji_files::make_dirs(dir, kaji_files::PRIVATE_DIR)?;
        }
        if fs::metadata(path).is_ok_and(|m| m.is_file()) {
            // Collectors may read it; what is recorded is nothing for other users to change.
            if let Err(error) = kaji_files::keep_unwritable(path) {
                tracing::warn!(path = %path.display(), %error, "other users may be able to write the audit log");
            }
        }
        let (file, size) = append(path, 0o600)?;
        Ok(LogFile { path: path.into(), options, file, size, torn: false })
    }

    /// Whether a file will be put aside for a line of this length.
    fn rotates_for(&self, length: usize) -> bool {
        self.options.max_size > 0 && self.size + length as u64 > self.options.max_size
    }

    /// Writes a line, or several that fit into the file, given with their ends. True when a file was put aside for it: see
    /// [`clean`].
    ///
    /// # Errors
    /// When it could not be written, or is larger than a file may be.
    pub fn write(&mut self, line: &[u8], now: Timestamp) -> io::Result<bool> {
        let (length, most) = (line.len() as u64, self.options.max_size);
        let mut rotated = false;
        if most > 0 {
            if length > most {
                let text = format!("write length {length} exceeds maximum file size {most}");
                return Err(io::Error::other(text));
            }
            if self.rotates_for(line.len()) {
                self.rotate(now)?;
                rotated = true;
            }
        }
        if std::mem::take(&mut self.torn) {
            self.file.write_all(b"\n").inspect_err(|_| self.torn = true)?;
            self.size += 1;
        }
        self.file.write_all(line).inspect_err(|_| self.torn = true)?;
        self.size += length;
        Ok(rotated)
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        let mode = self.file.metadata().map_or(0o600, |m| m.permissions().mode() & 0o777);
        match fs::rename(&self.path, aside(&self.path, now)) {
            // Another process has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => outcome?,
        }
        (self.file, self.size) = append(&self.path, mode)?;
        self.torn = false;
        Ok(())
    }
}

fn append(path: &Path, mode: u32) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(mode).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// `dir/audit-2006-01-02T15-04-05.000.log` for `dir/audit.log`; a millisecond later if there is one already.
fn aside(path: &Path, now: Timestamp) -> PathBuf {
    let (stem, extension) = name_parts(path);
    let mut at = now;
    loop {
        let stamp = at.to_zoned(TimeZone::UTC).strftime(STAMP);
        let candidate = path.with_file_name(format!("{stem}-{stamp}{extension}"));
        if !candidate.exists() {
            return candidate;
        }
        at += SignedDuration::from_millis(1);
    }
}

/// `audit` and `.log`
fn name_parts(path: &Path) -> (String, String) {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    match name.rfind('.') {
        Some(dot) => (name[..dot].to_owned(), name[dot..].to_owned()),
        None => (name, String::new()),
    }
}

/// Files that were put aside: when, and under which name. Newest first.
fn old_files(path: &Path) -> io::Result<Vec<(Timestamp, PathBuf)>> {
    let (stem, extension) = name_parts(path);
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = vec![];
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let plain = name.strip_suffix(".gz").unwrap_or(&name);
        let stamp = plain
            .strip_prefix(stem.as_str())
            .and_then(|rest| rest.strip_prefix('-'))
            .and_then(|rest| rest.strip_suffix(extension.as_str()));
        let at = stamp
            .and_then(|s| DateTime::strptime(STAMP, s).ok())
            .and_then(|t| t.to_zoned(TimeZone::UTC).ok());
        if let Some(at) = at {
            found.push((at.timestamp(), entry.path()));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Removes rotated files that are too old or too many, and compresses the others if configured.
///
/// # Errors
/// The first error; the other files are processed nevertheless.
pub fn clean(path: &Path, options: &FileOptions, now: Timestamp) -> io::Result<()> {
    let cutoff = now - SignedDuration::from_hours(24 * options.max_age);
    let mut outcome = Ok(());
    let mut kept = BTreeSet::new();
    for (at, file) in old_files(path)? {
        let zipped = file.extension().is_some_and(|e| e == "gz");
        // A file and its compressed form count once.
        let base = if zipped { file.with_extension("") } else { file.clone() };
        kept.insert(base);
        let too_many = options.max_backups > 0 && kept.len() > options.max_backups;
        let done = if too_many || (options.max_age > 0 && at < cutoff) {
            fs::remove_file(&file)
        } else if options.compress && !zipped {
            zip(&file)
        } else {
            Ok(())
        };
        outcome = outcome.and(done);
    }
    outcome
}

fn zip(file: &Path) -> io::Result<()> {
    let name = |end: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let (target, unfinished) = (name(".gz"), name(".gz.tmp"));
    let mode = fs::metadata(file)?.permissions().mode() & 0o777;
    let out = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&unfinished)?;
    let mut encoder = GzEncoder::new(out, Compression::default());
    io::copy(&mut File::open(file)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    fs::rename(unfinished, target)?;
    fs::remove_file(file)
}

/// The destination of lines.
enum Output {
    Stdout,
    File(LogFile),
}

impl Output {
    fn write(&mut self, lines: &[u8], now: Timestamp) -> io::Result<bool> {
        match self {
            Output::Stdout => io::stdout().lock().write_all(lines).map(|()| false),
            Output::File(file) => file.write(lines, now),
        }
    }

    fn rotates_for(&self, length: usize) -> bool {
        matches!(self, Output::File(file) if file.rotates_for(length))
    }
}

/// The output, and what its writes have cost.
struct Destination {
    output: Output,
    /// No writes on threads of the async runtime before this time.
    slow_until: Option<Instant>,
}

/// The log.
pub(super) struct Log(Arc<Inner>);

struct Inner {
    /// Whether the destination is a regular file. What reads a pipe or a terminal may stop to do so.
    regular: bool,
    destination: Mutex<Destination>,
    /// Held while rotated files are cleaned up.
    cleaning: Mutex<()>,
    path: PathBuf,
    options: FileOptions,
    format: Format,
    truncate: TruncateOptions,
    losses: LossReporter,
}

impl Log {
    pub fn open(options: &LogOptions, losses: LossReporter) -> Result<Log, AuditError> {
        let format = options.format().map_err(|e| AuditError::Options(vec![e]))?;
        let path = PathBuf::from(&options.path);
        let file = FileOptions {
            max_size: u64::try_from(options.max_size).unwrap_or_default().saturating_mul(1 << 20),
            max_backups: usize::try_from(options.max_backups).unwrap_or_default(),
            // A thousand years, which can still be subtracted from a time.
            max_age: options.max_age.min(365_000),
            compress: options.compress,
        };
        let output = if options.path == "-" {
            Output::Stdout
        } else {
            let opened = LogFile::open(&path, file.clone());
            Output::File(opened.map_err(|source| AuditError::Log { path: options.path.clone(), source })?)
        };
        let regular = match &output {
            Output::Stdout => false,
            Output::File(file) => file.file.metadata().is_ok_and(|m| m.is_file()),
        };
        let destination = Mutex::new(Destination { output, slow_until: None });
        let (cleaning, truncate) = (Mutex::default(), options.truncate.clone());
        let options = file;
        Ok(Log(Arc::new(Inner { regular, destination, cleaning, path, options, format, truncate, losses })))
    }
}

impl Backend for Log {
    /// Lines are written one after the other.
    fn parallel(&self) -> usize {
        1
    }

    fn deliver(&self, events: Vec<Arc<Event>>) -> BoxFuture<'_, bool> {
        let inner = self.0.clone();
        Box::pin(async move {
            let all = events.clone();
            let written = tokio::task::spawn_blocking(move || inner.write(&events)).await;
            let (delivered, rotated) = written.unwrap_or_else(|_| {
                self.0.losses.report(self.0.losses.plugin, "the writer panicked", &all);
                (false, false)
            });
            if rotated {
                let inner = self.0.clone();
                tokio::task::spawn_blocking(move || inner.clean());
            }
            delivered
        })
    }

    fn deliver_inline(&self, event: &Arc<Event>) -> Option<bool> {
        self.0.write_inline(event)
    }
}

/// Lines that are written together, and their events.
#[derive(Default)]
struct Group<'a> {
    lines: Vec<u8>,
    events: Vec<&'a Arc<Event>>,
}

impl Inner {
    /// The line of an event; `None`, and the event is reported, if it is too large.
    fn encode(&self, event: &Arc<Event>) -> Option<Vec<u8>> {
        let encode = |event: &Event| match self.format {
            Format::Json => event.json(),
            Format::Legacy => (event.line() + "\n").into_bytes(),
        };
        if let Fit::Encoded(line) = fit(event, &self.truncate, encode) {
            return Some(line);
        }
        let error = "event is too large even after truncating";
        self.losses.report("truncate", error, std::slice::from_ref(event));
        None
    }

    /// Writes the event if the destination is free and fast; see [`Backend::deliver_inline`].
    fn write_inline(&self, event: &Arc<Event>) -> Option<bool> {
        if !self.regular {
            return None;
        }
        let Some(line) = self.encode(event) else { return Some(true) };
        let mut destination = match self.destination.try_lock() {
            Ok(destination) => destination,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let started = Instant::now();
        if line.len() > GROUP_BYTES
            || destination.slow_until.is_some_and(|until| started < until)
            || destination.output.rotates_for(line.len())
        {
            return None;
        }
        let written = destination.output.write(&line, self.losses.now());
        destination.slow_until = (started.elapsed() >= SLOW_WRITE).then(|| started + SLOW_PAUSE);
        drop(destination);
        let written = written.map_err(|error| {
            self.losses.report(self.losses.plugin, &error.to_string(), std::slice::from_ref(event));
        });
        Some(written.is_ok())
    }

    /// Whether all events were written, and whether the file was rotated.
    fn write(&self, events: &[Arc<Event>]) -> (bool, bool) {
        let mut destination = self.destination.lock().unwrap_or_else(PoisonError::into_inner);
        let output = &mut destination.output;
        let mut group = Group::default();
        let (mut delivered, mut rotated) = (true, false);
        let mut flush = |group: &mut Group<'_>, output: &mut Output| {
            if group.events.is_empty() {
                return;
            }
            match output.write(&group.lines, self.losses.now()) {
                Ok(now_rotated) => rotated |= now_rotated,
                Err(error) => {
                    delivered = false;
                    let lost: Vec<_> = group.events.iter().map(|&event| event.clone()).collect();
                    self.losses.report(self.losses.plugin, &error.to_string(), &lost);
                }
            }
            group.lines.clear();
            group.events.clear();
        };
        for event in events {
            let Some(line) = self.encode(event) else { continue };
            let length = group.lines.len() + line.len();
            // A line that begins a file does not do so with lines before it.
            if length > GROUP_BYTES || output.rotates_for(length) {
                flush(&mut group, output);
            }
            group.lines.extend_from_slice(&line);
            group.events.push(event);
        }
        flush(&mut group, output);
        (delivered, rotated)
    }

    fn clean(&self) {
        let _one = self.cleaning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = clean(&self.path, &self.options, self.losses.now()) {
            tracing::warn!(%error, "rotated audit logs could not be cleaned up");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::event, *};
    use crate::Metrics;
    use kaji_meta::SystemClock;
    use prometheus_client::registry::Registry;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn show(dir: &Path) -> String {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| {
                let mode = e.metadata().unwrap().permissions().mode() & 0o777;
                let text = fs::read(e.path()).unwrap();
                let text = String::from_utf8(text).unwrap_or_else(|_| "(compressed)".into());
                format!("{} {mode:o} {text:?}", e.file_name().to_string_lossy())
            })
            .collect();
        names.sort();
        names.join("\n")
    }

    #[test]
    fn a_full_file_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs/audit.log");
        let options = FileOptions { max_size: 10, ..FileOptions::default() };
        let mut file = LogFile::open(&path, options.clone()).unwrap();
        let mut rotations = vec![];
        for (line, time) in [
            ("one\n", "2026-01-02T03:04:05.0061Z"),
            ("two\n", "2026-01-02T03:04:06Z"),
            ("three\n", "2026-01-02T03:04:07Z"),
            ("four\n", "2026-01-02T03:04:07Z"),
        ] {
            rotations.push(file.write(line.as_bytes(), at(time)).unwrap());
        }
        assert_eq!(rotations, [false, false, true, true]);
        // A file that is opened again has its size.
        let mut file = LogFile::open(&path, options).unwrap();
        assert!(file.write(b"five__\n", at("2026-01-02T03:04:08Z")).unwrap());
        let error = file.write(b"too long a line\n", at("2026-01-02T03:04:08Z")).unwrap_err();
        assert_eq!(error.to_string(), "write length 16 exceeds maximum file size 10");
        expect_test::expect![[r#"
            audit-2026-01-02T03-04-07.000.log 600 "one\ntwo\n"
            audit-2026-01-02T03-04-07.001.log 600 "three\n"
            audit-2026-01-02T03-04-08.000.log 600 "four\n"
            audit.log 600 "five__\n""#]]
        .assert_eq(&show(path.parent().unwrap()));
    }

    fn log(path: &Path) -> Log {
        let metrics = Arc::new(Metrics::new(&mut Registry::default()));
        let losses = LossReporter { metrics, clock: Arc::new(SystemClock), plugin: "log" };
        let path = path.to_str().unwrap().to_owned();
        Log::open(&LogOptions { path, format: "json".into(), max_size: 0, ..LogOptions::default() }, losses)
            .unwrap()
    }

    #[test]
    fn events_written_together_rotate_as_single_ones_do() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let events: Vec<_> = (0..20).map(|n| event(&"x".repeat(n), 0)).collect();
        for (dir, together) in dirs.iter().zip([1, 20]) {
            let log = log(&dir.path().join("audit.log"));
            if let Output::File(file) = &mut log.0.destination.lock().unwrap().output {
                file.options.max_size = 700;
            }
            for group in events.chunks(together) {
                assert!(log.0.write(group).0);
            }
        }
        let files = dirs.map(|dir| {
            let files = old_files(&dir.path().join("audit.log")).unwrap();
            files.iter().rev().map(|(_, path)| fs::read_to_string(path).unwrap()).collect::<Vec<_>>()
        });
        assert!(files[0].len() > 5);
        assert_eq!(files[0], files[1]);
    }

    #[test]
    fn writes_inline_while_the_destination_is_a_free_and_fast_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let log = log(&path);
        let lines = || fs::read_to_string(&path).unwrap().lines().count();
        assert_eq!((log.deliver_inline(&event("a", 0)), lines()), (Some(true), 1));
        {
            let mut destination = log.0.destination.lock().unwrap();
            assert_eq!(log.deliver_inline(&event("busy", 0)), None);
            destination.slow_until = Some(Instant::now() + Duration::from_secs(3600));
        }
        assert_eq!((log.deliver_inline(&event("slow", 0)), lines()), (None, 1));
        {
            let mut destination = log.0.destination.lock().unwrap();
            destination.slow_until = Some(Instant::now());
            let Output::File(file) = &mut destination.output else { panic!("no file") };
            file.options.max_size = 1;
        }
        assert_eq!((log.deliver_inline(&event("full", 0)), lines()), (None, 1));
        assert_eq!(log.deliver_inline(&event(&"x".repeat(GROUP_BYTES), 0)), None);
    }

    #[test]
    fn leaves_what_is_no_file_to_the_queue() {
        let log = log(Path::new("-"));
        assert_eq!(log.deliver_inline(&event("a", 0)), None);
    }

    #[test]
    fn old_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("audit.log", "now"),
            ("audit-2026-01-01T00-00-00.000.log.gz", "too old"),
            ("audit-2026-01-08T00-00-00.000.log", "too many"),
            ("audit-2026-01-08T12-00-00.000.log.gz", "kept"),
            ("audit-2026-01-09T00-00-00.000.log", "kept"),
            ("audit-of-another.log", "not ours"),
            ("audit-2026-01-01T00-00-00.000.txt", "not ours"),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let options = FileOptions { max_backups: 2, max_age: 7, compress: true, ..FileOptions::default() };
        clean(&dir.path().join("audit.log"), &options, at("2026-01-10T00:00:00Z")).unwrap();
        expect_test::expect![[r#"
            audit-2026-01-01T00-00-00.000.txt 644 "not ours"
            audit-2026-01-08T12-00-00.000.log.gz 644 "kept"
            audit-2026-01-09T00-00-00.000.log.gz 644 "(compressed)"
            audit-of-another.log 644 "not ours"
            audit.log 644 "now""#]]
        .assert_eq(&show(dir.path()));
        let options = FileOptions { max_age: 1, ..FileOptions::default() };
        clean(&dir.path().join("audit.log"), &options, at("2026-01-10T00:00:00Z")).unwrap();
        let left = show(dir.path());
        assert!(!left.contains("2026-01-08") && left.contains("2026-01-09"), "{left}");
    }
}
