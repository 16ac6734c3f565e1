//! JSON as the server itself writes it, read and written without detours: objects pass through here many times (stored,
//! scanned, sent to every control loop), and most of their bytes are of no interest to the reader.
//!
//! Invariants: what [`write()`] writes is the value, byte for byte as Go's encoder would write it; [`from_slice`] gives what
//! `serde_json::from_slice` gives for every valid document that has no `null` in place of a struct's member. Bytes that a [`Reader`] passes over are only checked for balanced brackets and closed
//! strings: this is for documents that were valid when they were written, not for input from clients.

mod de;
mod indent;
mod read;
mod write;

pub use de::{from_slice, from_value};
pub use indent::{Indenter, indent};
pub use read::{Malformed, Reader};
pub use write::{write, write_plain, write_string};

#[cfg(test)]
mod tests;
