//! The protocol between the manager and a shim: frames over a unix socket, each a length (u32, little-endian) and as many
//! bytes of JSON; file descriptors travel with the first byte of a frame.
//!
//! Invariants: a frame has at most [`MOST_BYTES`] bytes and [`MOST_DESCRIPTORS`] descriptors; received descriptors are
//! closed on exec.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The largest frame. Linux limits the arguments and the environment of a process to 2 MiB by default.
pub const MOST_BYTES: usize = 4 << 20;
/// Standard input, output and error.
pub const MOST_DESCRIPTORS: usize = 3;

/// What a manager asks of a shim. One request a connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Runs a process in the container. Descriptors: those of the streams that are connected, in order; with a terminal none,
    /// and the answer comes with the terminal. Closing the connection kills the process.
    Exec {
        /// An OCI process.
        process: serde_json::Value,
        /// Standard input is among the descriptors.
        stdin: bool,
        /// Standard output is among them.
        stdout: bool,
        /// Standard error is among them.
        stderr: bool,
    },
    /// Connects streams to the container's own process.
    Attach {
        /// A pipe to read from is among the descriptors.
        stdin: bool,
        /// A pipe to write to is among them.
        stdout: bool,
        /// A pipe to write to is among them.
        stderr: bool,
    },
    /// Sets the size of the container's terminal.
    Resize {
        /// Characters.
        width: u16,
        /// Characters.
        height: u16,
    },
    /// Sends a signal to the container's first process.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// Opens the log file anew.
    ReopenLog,
    /// Answers when the container has exited.
    Wait,
}

/// What a shim answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    /// It is done.
    Done,
    /// It could not be done.
    Failed {
        /// Why.
        message: String,
    },
    /// The process of an exec runs.
    Started {
        /// On the node.
        pid: i32,
    },
    /// The process of an exec, or the container, has exited.
    Exited {
        /// 128 plus the number of the signal that ended it.
        code: i32,
    },
}

/// The bytes of a frame.
///
/// # Errors
/// When it would be too large.
pub fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    if length > MOST_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message of {length} bytes is too large"),
        ));
    }
    frame[..4].copy_from_slice(&u32::try_from(length).unwrap_or_default().to_le_bytes());
    Ok(frame)
}

/// Sends what the socket takes of a frame, with descriptors. Answers how many bytes that were.
///
/// # Errors
/// Those of the socket; `WouldBlock` among them.
pub fn send_some(socket: impl AsFd, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    Ok(sendmsg(socket, &[IoSlice::new(frame)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// A frame that is being received.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// What became of a read.
#[derive(Debug)]
pub enum Received<T> {
    /// A whole message with its descriptors.
    Message(T, Vec<OwnedFd>),
    /// More has to be read.
    Partial,
    /// The peer has closed the connection.
    Closed,
}

impl Incoming {
    /// Reads once.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` among them, and frames that are too large or do not parse.
    pub fn receive<T: DeserializeOwned>(&mut self, socket: impl AsFd) -> io::Result<Received<T>> {
        let missing = self.missing()?;
        let received = self.read(socket, missing.min(1 << 16))?;
        if received == 0 {
            return Ok(Received::Closed);
        }
        if self.missing()? > 0 {
            return Ok(Received::Partial);
        }
        let message = serde_json::from_slice(&self.bytes[4..])?;
        self.bytes.clear();
        Ok(Received::Message(message, std::mem::take(&mut self.descriptors)))
    }

    /// Reads once what is not a frame: bytes that only carry descriptors.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn receive_descriptor(mut self, socket: impl AsFd) -> io::Result<Received<()>> {
        let received = self.read(socket, 4096)?;
        Ok(if received == 0 { Received::Closed } else { Received::Message((), self.descriptors) })
    }

    fn read(&mut self, socket: impl AsFd, most: usize) -> io::Result<usize> {
        let mut buffer = vec![0; most];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.bytes.extend_from_slice(&buffer[..received.bytes]);
        Ok(received.bytes)
    }

    /// How many bytes are to be read next.
    fn missing(&self) -> io::Result<usize> {
        let Some(header) = self.bytes.first_chunk::<4>() else { return Ok(4 - self.bytes.len()) };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MOST_BYTES || self.descriptors.len() > MOST_DESCRIPTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too large"));
        }
        Ok((4 + length).saturating_sub(self.bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn carries_messages_and_descriptors() {
        let (here, there) = UnixStream::pair().unwrap();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let frame = encode(&Request::Signal { signal: 9 }).unwrap();
        assert_eq!(send_some(&here, &frame, &[read.as_fd()]).unwrap(), frame.len());
        let mut incoming = Incoming::default();
        let (message, descriptors) = loop {
            match incoming.receive::<Request>(&there).unwrap() {
                Received::Message(message, descriptors) => break (message, descriptors),
                Received::Partial => {}
                Received::Closed => panic!("closed"),
            }
        };
        assert!(matches!(message, Request::Signal { signal: 9 }));
        assert_eq!(descriptors.len(), 1);
        drop(here);
        assert!(matches!(incoming.receive::<Request>(&there).unwrap(), Received::Closed));
    }

    #[test]
    fn refuses_frames_that_are_too_large() {
        let (here, there) = UnixStream::pair().unwrap();
        send_some(&here, &u32::MAX.to_le_bytes(), &[]).unwrap();
        let mut incoming = Incoming::default();
        assert!(incoming.receive::<Request>(&there).is_err());
    }
}
