//! Laws and golden bytes of schemas and of the protobuf form.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod laws;
mod protobuf;
