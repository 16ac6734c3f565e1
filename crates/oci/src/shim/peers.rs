//! Connections to a shim's socket.
//!
//! Invariants: one request a connection; at most [`MOST_PEERS`] connections; a frame that cannot be sent at once waits, and
//! nothing else waits for it.

use crate::protocol::{Incoming, Received, Reply, Request, encode, send_some};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Connections at once; further ones are closed.
pub const MOST_PEERS: usize = 256;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Its request is awaited.
    New,
    /// A process that is being created, or runs, belongs to it; its id is 0 until it runs.
    Exec(i32),
    /// Streams are attached for it.
    Attached,
    /// It waits for the exit.
    Waiting,
    /// It has its last answer.
    Done,
}

struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    descriptor: Option<OwnedFd>,
}

/// A connection.
pub struct Peer {
    /// Never used twice.
    pub id: u64,
    /// See the type.
    pub role: Role,
    stream: UnixStream,
    incoming: Incoming,
    outgoing: VecDeque<Frame>,
    closed: bool,
}

impl Peer {
    /// A connection that was accepted.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    pub fn new(id: u64, stream: UnixStream) -> io::Result<Peer> {
        stream.set_nonblocking(true)?;
        let (incoming, outgoing) = (Incoming::default(), VecDeque::new());
        Ok(Peer { id, role: Role::New, stream, incoming, outgoing, closed: false })
    }

    /// To poll for reading.
    pub fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether to poll for writing.
    pub fn has_pending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether the connection can be dropped.
    pub fn is_over(&self) -> bool {
        self.closed || (self.role == Role::Done && self.outgoing.is_empty())
    }

    /// Reads what there is; a request with its descriptors, if it is complete.
    pub fn advance(&mut self) -> Option<(Request, Vec<OwnedFd>)> {
        self.flush();
        loop {
            match self.incoming.receive(&self.stream) {
                Ok(Received::Partial) => {}
                Ok(Received::Message(request, descriptors)) if self.role == Role::New => {
                    return Some((request, descriptors));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Received::Message(..) | Received::Closed) | Err(_) => {
                    self.closed = true;
                    return None;
                }
            }
        }
    }

    /// Answers.
    pub fn reply(&mut self, reply: &Reply, descriptor: Option<OwnedFd>) {
        match encode(reply) {
            Ok(bytes) => self.outgoing.push_back(Frame { bytes, sent: 0, descriptor }),
            Err(_) => self.closed = true,
        }
        self.flush();
    }

    /// Answers for the last time.
    pub fn conclude(&mut self, reply: &Reply) {
        self.role = Role::Done;
        self.reply(reply, None);
    }

    fn flush(&mut self) {
        while let Some(frame) = self.outgoing.front_mut() {
            let descriptors: Vec<BorrowedFd<'_>> = frame.descriptor.iter().map(AsFd::as_fd).collect();
            match send_some(&self.stream, &frame.bytes[frame.sent..], &descriptors) {
                Ok(sent) => {
                    frame.sent += sent;
                    frame.descriptor = None;
                    if frame.sent == frame.bytes.len() {
                        self.outgoing.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.closed = true;
                    self.outgoing.clear();
                }
            }
        }
    }
}
