//! A client of a D-Bus message bus, as far as systemd-logind needs one: method calls, their replies with file descriptors, and signals.
//! Source: the D-Bus specification, "Message Protocol" and "Authentication Protocol".
//!
//! The crates for D-Bus bring an asynchronous runtime of their own or a C library; a handful of calls needs neither.
//!
//! Invariants: messages, lines of the authentication and queues are bounded; a message that is malformed ends the connection. A call
//! is over before the next one begins, and signals that come meanwhile are kept.

use super::wire::{self, Malformed, Message, Value};
use kaji_meta::text::hex;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// The bus itself.
pub const BUS: Endpoint = Endpoint {
    name: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};
/// Characters of a line of the authentication.
const MOST_LINE: usize = 1024;
/// Signals that wait for the caller.
const MOST_SIGNALS: usize = 16;
/// Descriptors that wait for their message.
const MOST_DESCRIPTORS: usize = 8;
/// How long the bus has to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// Why a bus cannot be used.
#[derive(Debug, Error)]
pub enum DbusError {
    /// The connection.
    #[error("the connection to the message bus: {0}")]
    Connection(#[from] io::Error),
    /// The bus does not take this process.
    #[error("the message bus refuses authentication: {0}")]
    Authentication(String),
    /// What came is no message.
    #[error("a message of the bus is malformed: {0}")]
    Malformed(#[from] Malformed),
    /// A call failed.
    #[error("{name}: {message}")]
    Call {
        /// Of the error.
        name: String,
        /// Its text.
        message: String,
    },
    /// A reply has other values than it should have.
    #[error("the reply to {0} has other values than expected")]
    Reply(&'static str),
    /// No reply.
    #[error("no reply to {0} in time")]
    Timeout(&'static str),
}

/// An object of a service, and one of its interfaces.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// Of the service.
    pub name: &'static str,
    /// Of the object.
    pub path: &'static str,
    /// The interface.
    pub interface: &'static str,
}

/// A connection to a bus.
pub struct Bus {
    stream: UnixStream,
    serial: u32,
    unread: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    signals: VecDeque<Message>,
}

impl Bus {
    /// Connects to a bus at a socket, as the user of this process.
    ///
    /// # Errors
    /// There is none, or it refuses the user.
    pub async fn connect(socket: &Path) -> Result<Bus, DbusError> {
        let connect = async {
            let mut stream = UnixStream::connect(socket).await?;
            authenticate(&mut stream).await?;
            let (unread, descriptors, signals) = (vec![], VecDeque::new(), VecDeque::new());
            let mut bus = Bus { stream, serial: 0, unread, descriptors, signals };
            bus.call(BUS, "Hello", &[]).await?;
            Ok(bus)
        };
        tokio::time::timeout(CALL_TIMEOUT, connect).await.map_err(|_| DbusError::Timeout("Hello"))?
    }

    /// Calls a method and waits for its reply.
    ///
    /// # Errors
    /// The connection, or what the service answers.
    pub async fn call(
        &mut self,
        endpoint: Endpoint,
        member: &'static str,
        arguments: &[Value],
    ) -> Result<Message, DbusError> {
        self.serial = self.serial.wrapping_add(1).max(1);
        let serial = self.serial;
        let message = Message::call(serial, endpoint, member, arguments);
        let exchange = async {
            self.stream.write_all(&message.encode()).await?;
            loop {
                let found = self.receive().await?;
                match found.kind {
                    wire::RETURN if found.reply_serial == Some(serial) => return Ok(found),
                    wire::ERROR if found.reply_serial == Some(serial) => {
                        let message = match found.body.first() {
                            Some(Value::Text(text)) => text.clone(),
                            _ => String::new(),
                        };
                        return Err(DbusError::Call { name: found.error.unwrap_or_default(), message });
                    }
                    _ => self.keep(found),
                }
            }
        };
        tokio::time::timeout(CALL_TIMEOUT, exchange).await.map_err(|_| DbusError::Timeout(member))?
    }

    /// The next signal.
    ///
    /// # Errors
    /// The connection.
    pub async fn signal(&mut self) -> Result<Message, DbusError> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            let found = self.receive().await?;
            self.keep(found);
        }
    }

    fn keep(&mut self, message: Message) {
        if message.kind == wire::SIGNAL && self.signals.len() < MOST_SIGNALS {
            self.signals.push_back(message);
        }
    }

    async fn receive(&mut self) -> Result<Message, DbusError> {
        loop {
            if let Some((mut message, length)) = Message::decode(&self.unread)? {
                self.unread.drain(..length);
                let count = usize::try_from(message.descriptor_count).unwrap_or(usize::MAX);
                if count > self.descriptors.len() {
                    return Err(Malformed("descriptors are missing").into());
                }
                message.descriptors = self.descriptors.drain(..count).collect();
                return Ok(message);
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Result<(), DbusError> {
        let mut buffer = [0; 4096];
        let (unread, descriptors) = (&mut self.unread, &mut self.descriptors);
        let stream = &self.stream;
        let read = stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
                let mut ancillary = RecvAncillaryBuffer::new(&mut space);
                let mut target = [IoSliceMut::new(&mut buffer)];
                let received = recvmsg(stream, &mut target, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
                for message in ancillary.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = message {
                        descriptors.extend(rights);
                    }
                }
                Ok(received.bytes)
            })
            .await?;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if descriptors.len() > MOST_DESCRIPTORS {
            return Err(Malformed("more descriptors than messages can have").into());
        }
        unread.extend_from_slice(&buffer[..read]);
        Ok(())
    }
}

/// Says as which user this process connects, which the bus knows from the kernel, and asks for descriptors.
async fn authenticate(stream: &mut UnixStream) -> Result<(), DbusError> {
    let user = rustix::process::geteuid().as_raw().to_string();
    let user = hex(user.as_bytes());
    stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).await?;
    expect(stream, "OK ").await?;
    stream.write_all(b"NEGOTIATE_UNIX_FD\r\n").await?;
    expect(stream, "AGREE_UNIX_FD").await?;
    stream.write_all(b"BEGIN\r\n").await?;
    Ok(())
}

async fn expect(stream: &mut UnixStream, start: &str) -> Result<(), DbusError> {
    let mut line = vec![];
    while !line.ends_with(b"\r\n") {
        if line.len() == MOST_LINE {
            return Err(DbusError::Authentication("a line is too long".to_owned()));
        }
        // Nothing follows a line before the next one of this side, so that single bytes do.
        line.push(stream.read_u8().await?);
    }
    let line = String::from_utf8_lossy(&line);
    if !line.starts_with(start) {
        return Err(DbusError::Authentication(line.trim_end().to_owned()));
    }
    Ok(())
}
