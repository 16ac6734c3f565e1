//! gRPC over unix sockets: calls of plug-ins and container runtimes, and services that plug-ins call. Over other connections,
//! which the caller opens: [`Channel`].
//!
//! Messages are types that implement [`prost::Message`], and a method is named by its path,
//! `/csi.v1.Identity/GetPluginInfo`; there is no generated code.
//!
//! Invariants: a message is of bounded size, in both directions; a call has a deadline, which is sent to the peer, and ends at it;
//! a connection is made when a call needs one, and anew after one that failed.

mod channel;
mod client;
mod coalesced;
mod error;
mod server;

pub use channel::{Channel, ChannelOptions};
pub use client::{Client, Messages};
pub use error::CallError;
pub use server::{Router, bind, serve};
pub use tonic::{Code, Status};

/// Bytes of a message, unless a client or a service says otherwise: gRPC's own default.
pub const MESSAGE_LIMIT: usize = 4 << 20;
