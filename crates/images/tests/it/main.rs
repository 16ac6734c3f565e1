//! Integration tests of images: the store, archives, pulls from a registry in this process.

mod archives;
mod pulls;
mod registry_server;
mod samples;
