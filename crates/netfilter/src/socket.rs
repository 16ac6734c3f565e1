//! A netlink socket. It belongs to the network namespace of the thread that opens it, for good.
//!
//! Invariants: every wait is bounded by [`TIMEOUT`]; an answer larger than the buffer is an error, not a cut message.

use crate::netlink::{self, Message};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink as address, recv, sendto,
        socket_with,
        sockopt::{
            Timeout, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force,
            set_socket_send_buffer_size, set_socket_send_buffer_size_force, set_socket_timeout,
        },
    },
};
use std::{io, os::fd::OwnedFd, time::Duration};

/// How long an answer may take.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A datagram of a dump has 32 KiB at most.
const RECEIVE: usize = 64 * 1024;

/// Why an operation on the kernel's tables failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket.
    #[error("netlink: {0}")]
    Io(#[from] io::Error),
    /// The kernel refused a message.
    #[error("{what}: {}", io::Error::from_raw_os_error(*errno))]
    Refused {
        /// The operation and its object.
        what: String,
        /// A positive number.
        errno: i32,
        /// Which message of those that were sent, from 0.
        index: usize,
    },
    /// The answer is not what the protocol says.
    #[error("netlink: malformed answer to {0}")]
    Malformed(&'static str),
}

impl NetlinkError {
    /// The kernel's error number.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            NetlinkError::Refused { errno, .. } => Some(*errno),
            NetlinkError::Io(error) => error.raw_os_error(),
            NetlinkError::Malformed(_) => None,
        }
    }
}

/// A protocol of netlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, neighbours, queueing.
    Route,
    /// nftables, connection tracking.
    Netfilter,
}

/// A bound socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Root of a user namespace cannot go beyond the machine's limits (`net.core.wmem_max`, `net.core.rmem_max`): it gets the most that
/// they allow.
fn unless_forbidden(
    forced: rustix::io::Result<()>,
    limited: impl FnOnce() -> rustix::io::Result<()>,
) -> io::Result<()> {
    match forced {
        Err(Errno::PERM) => Ok(limited()?),
        result => Ok(result?),
    }
}

impl Socket {
    /// Opens a socket in the network namespace of this thread.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(protocol: Protocol) -> io::Result<Socket> {
        let protocol = match protocol {
            // NETLINK_ROUTE is 0, the default.
            Protocol::Route => None,
            Protocol::Netfilter => Some(address::NETFILTER),
        };
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        bind(&fd, &address::SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&fd, Timeout::Recv, Some(TIMEOUT))?;
        Ok(Socket { fd, sequence: 1, buffer: vec![0; RECEIVE] })
    }

    /// Sequence numbers for `count` messages; answers the first.
    pub fn sequence(&mut self, count: usize) -> u32 {
        // Small numbers that do not wrap within a batch.
        if self.sequence > u32::MAX / 2 {
            self.sequence = 1;
        }
        let first = self.sequence;
        self.sequence += count as u32;
        first
    }

    /// Sends a datagram of any length.
    ///
    /// # Errors
    /// Those of the system.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        // The default is 208 KiB. Twice the length, since the kernel counts its own structures too.
        const DEFAULT: usize = 100 * 1024;
        if bytes.len() > DEFAULT {
            unless_forbidden(set_socket_send_buffer_size_force(&self.fd, bytes.len() * 2), || {
                set_socket_send_buffer_size(&self.fd, bytes.len() * 2)
            })?;
        }
        let sent = sendto(&self.fd, bytes, SendFlags::empty(), &address::SocketAddrNetlink::new(0, 0))?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Room for answers that arrive before they are read.
    ///
    /// # Errors
    /// Those of the system.
    pub fn reserve_answers(&self, bytes: usize) -> io::Result<()> {
        unless_forbidden(set_socket_recv_buffer_size_force(&self.fd, bytes), || {
            set_socket_recv_buffer_size(&self.fd, bytes)
        })
    }

    /// One datagram; `None` when there is none and `wait` is false.
    ///
    /// # Errors
    /// Those of the system; a timeout.
    pub fn receive(&mut self, wait: bool) -> io::Result<Option<&[u8]>> {
        let flags = RecvFlags::TRUNC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        loop {
            return match recv(&self.fd, &mut self.buffer[..], flags) {
                Ok((filled, whole)) if whole > filled => Err(io::ErrorKind::FileTooLarge.into()),
                Ok((filled, _)) => Ok(Some(&self.buffer[..filled])),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if !wait => Ok(None),
                Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Sends messages of which each asks for an acknowledgement, and waits for all. Answers each message's error number, 0
    /// for success. `first` is the first sequence number.
    ///
    /// # Errors
    /// The socket's; a refusal is an answer.
    pub fn acknowledged(&mut self, bytes: &[u8], first: u32, count: usize) -> Result<Vec<i32>, NetlinkError> {
        self.send(bytes)?;
        let (mut results, mut missing) = (vec![None; count], count);
        while missing > 0 {
            let Some(datagram) = self.receive(true)? else { continue };
            for message in netlink::messages(datagram).filter(|m| m.kind == netlink::TYPE_ERROR) {
                let index = message.sequence.wrapping_sub(first) as usize;
                let errno = error_number(&message)?;
                if let Some(slot @ None) = results.get_mut(index) {
                    *slot = Some(errno);
                    missing -= 1;
                }
            }
        }
        Ok(results.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Sends a request for a dump and hands every message of the answer to `each`.
    ///
    /// # Errors
    /// The socket's, a refusal.
    pub fn dump(
        &mut self,
        what: &'static str,
        bytes: &[u8],
        sequence: u32,
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<(), NetlinkError> {
        self.send(bytes)?;
        loop {
            let Some(datagram) = self.receive(true)? else { continue };
            for message in netlink::messages(datagram).filter(|m| m.sequence == sequence) {
                match message.kind {
                    netlink::TYPE_DONE => return Ok(()),
                    netlink::TYPE_ERROR => {
                        return match error_number(&message)? {
                            0 => Ok(()),
                            errno => Err(NetlinkError::Refused { what: what.into(), errno, index: 0 }),
                        };
                    }
                    _ => each(&message),
                }
            }
        }
    }
}

/// The error number of an acknowledgement.
pub(crate) fn error_number(message: &Message<'_>) -> Result<i32, NetlinkError> {
    let number = netlink::u32_at(message.payload, 0).ok_or(NetlinkError::Malformed("a request"))?;
    Ok((number as i32).wrapping_neg())
}
