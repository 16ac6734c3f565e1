//! The frames of a watch on their way to the client.
//!
//! Invariant: frames leave in the order in which they came; what is gathered leaves when it is flushed.

use bytes::Bytes;
use std::collections::VecDeque;

/// Frames are gathered up to about this many bytes, so that many small events cost one write.
const CHUNK: usize = 64 << 10;
/// Frames this long are passed on by themselves, sharing the cache's memory.
const LARGE: usize = 16 << 10;

/// Frames to be sent, small ones gathered.
#[derive(Default)]
pub(super) struct Frames {
    ready: VecDeque<Bytes>,
    /// A first small frame, which stays shared if no other joins it.
    one: Option<Bytes>,
    buffer: Vec<u8>,
    /// None are gathered.
    separate: bool,
}

impl Frames {
    /// Frames that are gathered, unless they are to stay `separate`.
    pub fn new(separate: bool) -> Frames {
        Frames { separate, ..Frames::default() }
    }

    /// The next that is to be sent now.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    /// Whether none is to be sent now.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Drops what is to be sent now.
    pub fn clear(&mut self) {
        self.ready.clear();
    }

    /// Appends a frame.
    pub fn push(&mut self, frame: Bytes) {
        if self.separate || frame.len() >= LARGE {
            self.flush();
            self.ready.push_back(frame);
        } else if self.one.is_none() && self.buffer.is_empty() {
            self.one = Some(frame);
        } else {
            if let Some(first) = self.one.take() {
                self.buffer.extend_from_slice(&first);
            }
            self.buffer.extend_from_slice(&frame);
            if self.buffer.len() >= CHUNK {
                self.flush();
            }
        }
    }

    /// Sends what is gathered.
    pub fn flush(&mut self) {
        self.ready.extend(self.one.take());
        if !self.buffer.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.buffer).into());
        }
    }
}
