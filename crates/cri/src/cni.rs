//! Pods of a CRI runtime in the node's own pod network.
//!
//! A runtime has the network of a sandbox set up by CNI plug-ins, programs that it finds by a configuration in a directory. The
//! plug-in here is this program ([`plugin`]), run by a link named `kaji`; it hands what it is asked to the node ([`server`]), and the
//! node's pod network does it as for sandboxes of the built-in runtime. [`install`] puts configuration and links where the runtime looks.
//!
//! Invariant: a network that an administrator has configured is left alone, and used; ours is installed only where there is none.

pub mod install;
pub mod plugin;
pub mod server;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The plug-in's type, which is the name of its program, and of the network.
pub const NAME: &str = "kaji";
/// The plug-in that containerd asks for the loopback interface; the usual packages have one of the same name.
pub const LOOPBACK: &str = "loopback";
/// The most bytes of a configuration, with the result of a plug-in before.
const MOST: u64 = 1 << 20;

/// Codes of errors that CNI defines.
mod code {
    pub const ENVIRONMENT: u32 = 4;
    pub const IO: u32 = 5;
    pub const DECODING: u32 = 6;
    pub const CONFIGURATION: u32 = 7;
    pub const TRY_AGAIN: u32 = 11;
    /// Those from 100 on are the plug-in's own.
    pub const NETWORK: u32 = 100;
}

/// What the plug-in passes on to the node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// `CNI_COMMAND`
    pub command: String,
    /// `CNI_CONTAINERID`
    pub container_id: String,
    /// `CNI_NETNS`
    pub namespace: String,
    /// `CNI_IFNAME`
    pub interface: String,
    /// `CNI_ARGS`
    pub arguments: String,
    /// Standard input.
    pub config: Value,
}

/// What the node answers.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// What the plug-in prints: a result, or nothing.
    Done(Value),
    /// Why not.
    Failed(Failure),
}

/// An error as CNI has it.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Failure {
    /// See [`code`].
    pub code: u32,
    /// For people.
    pub msg: String,
}

impl Failure {
    fn new(code: u32, msg: impl std::fmt::Display) -> Failure {
        Failure { code, msg: msg.to_string() }
    }
}
