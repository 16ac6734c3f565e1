//! The server over real sockets, with resolvers of the test behind it.

#![allow(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod follow;
mod sockets;
