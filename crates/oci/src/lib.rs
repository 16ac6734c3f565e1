//! The built-in container runtime: containers run by `libcontainer` below a shim process each, pods without a pause process.
//!
//! Invariants:
//! - `libcontainer` runs in shim processes only, which are single-threaded ([`shim`]); the process of the [`Manager`] never
//!   calls it.
//! - What the manager knows of a sandbox or container is in a file of its state directory before it has an effect, so that
//!   another manager continues from the files alone.
//! - A container is started at most once: the shim claims its bundle with a file that is created exclusively.

mod apparmor;
mod cdi;
mod cgroup;
mod leaks;
mod manager;
mod process_usage;
mod protocol;
mod records;
pub mod rootless;
mod seccomp;
pub mod shim;
mod spec;
mod user_namespaces;

pub use cdi::directories as cdi_directories;
pub use leaks::{Leftover, leftovers};
pub use manager::{Manager, ManagerOptions, OpenError, create_network_namespace};
