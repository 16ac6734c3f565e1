//! The container's standard streams: pipes by name in the bundle, or a terminal.
//!
//! Invariants:
//! - Pipes stay usable without a shim: the container's side is open for reading and writing, so that a write waits for the
//!   next shim instead of failing. What was written before the container exited is in the log before the exit is recorded.
//! - A stream that a client attached to is read only as fast as that client reads.

use super::log::{LogFile, Records};
use crate::records::now_nanos;
use nix::sys::stat::Mode;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes that are read from a stream at once.
const CHUNK: usize = 32 << 10;

/// A pipe to a client that attached.
pub struct Sink {
    pipe: File,
    pending: Vec<u8>,
    /// The connection that it belongs to.
    pub peer: u64,
}

impl Sink {
    /// A sink with nothing to write.
    ///
    /// # Errors
    /// When the pipe cannot be made non-blocking.
    pub fn new(pipe: OwnedFd, peer: u64) -> io::Result<Sink> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Sink { pipe: pipe.into(), pending: vec![], peer })
    }

    /// Writes what it can; false when the client has gone.
    fn flush(&mut self) -> bool {
        while !self.pending.is_empty() {
            match self.pipe.write(&self.pending) {
                Ok(0) => return false,
                Ok(written) => drop(self.pending.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}

/// An output stream of the container.
pub struct Output {
    source: File,
    records: Records,
    sinks: Vec<Sink>,
    /// Keeps a pipe from being at its end while no process of the container has it open.
    _writer: Option<File>,
    ended: bool,
}

impl Output {
    /// Makes a pipe in the bundle unless it exists. The second file is for the container.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn pipe(path: &Path, stream: &'static str, owner: (u32, u32)) -> io::Result<(Output, File)> {
        match nix::unistd::mkfifo(path, Mode::from_bits_truncate(0o600)) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // Programs open /dev/stdout by its name, as the user that they run as.
        std::os::unix::fs::chown(path, Some(owner.0), Some(owner.1))?;
        let writer = File::options().read(true).write(true).open(path)?;
        let source =
            File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
        let container = File::options().read(true).write(true).open(path)?;
        let output = Output {
            source,
            records: Records::of(stream),
            sinks: vec![],
            _writer: Some(writer),
            ended: false,
        };
        Ok((output, container))
    }

    /// The output of a terminal.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    pub fn terminal(master: &OwnedFd) -> io::Result<Output> {
        rustix::io::ioctl_fionbio(master, true)?;
        let source = File::from(master.try_clone()?);
        Ok(Output { source, records: Records::of("stdout"), sinks: vec![], _writer: None, ended: false })
    }

    /// To poll for reading, unless a client holds the stream up.
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        let held_up = self.sinks.iter().any(|sink| !sink.pending.is_empty());
        (!self.ended && !held_up).then(|| self.source.as_fd())
    }

    /// To poll for writing.
    pub fn writable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sinks.iter().filter(|sink| !sink.pending.is_empty()).map(|sink| sink.pipe.as_fd())
    }

    /// Adds a client.
    pub fn attach(&mut self, sink: Sink) {
        self.sinks.push(sink);
    }

    /// Removes those of a connection.
    pub fn detach(&mut self, peer: u64) {
        self.sinks.retain(|sink| sink.peer != peer);
    }

    /// Whether clients still have to get something.
    pub fn has_pending(&self) -> bool {
        self.sinks.iter().any(|sink| !sink.pending.is_empty())
    }

    /// Writes to clients, and reads once. Whether anything was read.
    pub fn advance(&mut self, log: Option<&mut LogFile>) -> bool {
        self.sinks.retain_mut(Sink::flush);
        if self.readable().is_none() {
            return false;
        }
        let mut buffer = vec![0; CHUNK];
        let length = match self.source.read(&mut buffer) {
            Ok(0) => {
                self.ended = true;
                return false;
            }
            Ok(length) => length,
            Err(error) => {
                // EIO: the last process that had the terminal open has ended.
                let again = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                self.ended |= !again;
                return false;
            }
        };
        let records = self.records.push(&buffer[..length], now_nanos());
        write_log(log, &records);
        for sink in &mut self.sinks {
            sink.pending.extend_from_slice(&buffer[..length]);
        }
        self.sinks.retain_mut(Sink::flush);
        true
    }

    /// Takes all that is in the stream when the container has exited; clients get what they take at once, and the rest while
    /// the shim lives.
    pub fn drain(&mut self, mut log: Option<&mut LogFile>) {
        for sink in &mut self.sinks {
            sink.flush();
        }
        let mut buffer = vec![0; CHUNK];
        while let Ok(length @ 1..) = self.source.read(&mut buffer) {
            write_log(log.as_deref_mut(), &self.records.push(&buffer[..length], now_nanos()));
            for sink in &mut self.sinks {
                sink.pending.extend_from_slice(&buffer[..length]);
            }
        }
        write_log(log, &self.records.finish(now_nanos()));
        self.ended = true;
        self.sinks.retain_mut(Sink::flush);
    }
}

/// A log that cannot be written (a full disk) does not stop the container.
fn write_log(log: Option<&mut LogFile>, records: &[u8]) {
    if let Some(log) = log
        && !records.is_empty()
        && let Err(error) = log.append(records)
    {
        tracing::warn!("the container's log cannot be written: {error}");
    }
}

/// What a client that attached sends to the container's standard input.
pub struct Input {
    /// The container's side.
    target: Option<File>,
    source: Option<(File, u64)>,
    pending: Vec<u8>,
    /// It is closed after the first client.
    once: bool,
    /// A client has attached.
    served: bool,
    /// Closing it ends nothing: it is also the output.
    terminal: bool,
}

impl Input {
    /// A standard input without a client.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    pub fn new(target: OwnedFd, once: bool, terminal: bool) -> io::Result<Input> {
        rustix::io::ioctl_fionbio(&target, true)?;
        Ok(Input {
            target: Some(target.into()),
            source: None,
            pending: vec![],
            once,
            served: false,
            terminal,
        })
    }

    /// Takes a client's input; the former client's is closed.
    ///
    /// # Errors
    /// When it is closed already, or the pipe cannot be made non-blocking.
    pub fn attach(&mut self, pipe: OwnedFd, peer: u64) -> io::Result<()> {
        if self.target.is_none() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "standard input is closed"));
        }
        rustix::io::ioctl_fionbio(&pipe, true)?;
        self.source = Some((pipe.into(), peer));
        self.served = true;
        Ok(())
    }

    /// To poll for reading.
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().filter(|_| self.pending.is_empty()).map(|(pipe, _)| pipe.as_fd())
    }

    /// To poll for writing.
    pub fn writable(&self) -> Option<BorrowedFd<'_>> {
        self.target.as_ref().filter(|_| !self.pending.is_empty()).map(|target| target.as_fd())
    }

    /// A connection is closed; its input ends.
    pub fn detach(&mut self, peer: u64) {
        if self.source.as_ref().is_some_and(|(_, owner)| *owner == peer) {
            self.source = None;
            self.close_if_once();
        }
    }

    fn close_if_once(&mut self) {
        if self.once && self.served && !self.terminal && self.pending.is_empty() {
            self.target = None;
        }
    }

    /// Writes what is pending, and reads once. Answers the connection of an input that has ended while the container's goes on.
    pub fn advance(&mut self) -> Option<u64> {
        let mut ended = None;
        if self.pending.is_empty()
            && let Some((pipe, peer)) = &mut self.source
        {
            let mut buffer = vec![0; CHUNK];
            match pipe.read(&mut buffer) {
                Ok(0) => {
                    ended = Some(*peer).filter(|_| !self.once || self.terminal);
                    self.source = None;
                }
                Ok(length) => self.pending.extend_from_slice(&buffer[..length]),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    return None;
                }
                Err(_) => self.source = None,
            }
        }
        if let Some(target) = &mut self.target
            && !self.pending.is_empty()
        {
            match target.write(&self.pending) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                // The container has closed it.
                Err(_) => self.pending.clear(),
            }
        }
        if self.source.is_none() {
            self.close_if_once();
        }
        ended
    }
}
