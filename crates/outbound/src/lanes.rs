//! How many requests to one stranger are under way.
//!
//! Invariant: what stays open leaves room for what is short, and both leave room for what this server asks for itself; so
//! nobody can make another server seem to be gone by watching it.

use crate::CallError;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a request is to those who wait behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// It stays open by design: a watch, or another protocol.
    Open,
    /// Somebody waits for its end.
    Short,
    /// This server wants to know something for itself: whether the other is there, what it serves.
    Own,
}

/// The right to one request, and to the connection that it is on if it has one to itself.
#[derive(Clone, Debug)]
pub struct Slot(#[allow(dead_code, reason = "held")] Arc<OwnedSemaphorePermit>);

struct Room {
    /// Requests with a connection each.
    connections: Arc<Semaphore>,
    /// Requests that share connections.
    streams: Arc<Semaphore>,
}

impl Room {
    fn new(connections: usize, streams: usize) -> Room {
        Room {
            connections: Arc::new(Semaphore::new(connections)),
            streams: Arc::new(Semaphore::new(streams)),
        }
    }
}

pub(crate) struct Rooms {
    open: Room,
    short: Room,
    own: Room,
}

impl Default for Rooms {
    fn default() -> Rooms {
        Rooms { open: Room::new(512, 4096), short: Room::new(512, 1024), own: Room::new(16, 32) }
    }
}

impl Rooms {
    /// Waits for a place.
    pub async fn take(&self, lane: Lane, shared: bool) -> Result<Slot, CallError> {
        let room = match lane {
            Lane::Open => &self.open,
            Lane::Short => &self.short,
            Lane::Own => &self.own,
        };
        let places = if shared { &room.streams } else { &room.connections };
        let place = places.clone().acquire_owned().await;
        place.map(|p| Slot(Arc::new(p))).map_err(|e| CallError::Transport(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn what_stays_open_leaves_room() {
        let rooms = Rooms::default();
        for shared in [false, true] {
            let take = |lane| rooms.take(lane, shared).now_or_never();
            let all: Vec<Slot> = std::iter::from_fn(|| take(Lane::Open)).map(Result::unwrap).collect();
            assert!(all.len() >= 512);
            let short: Vec<Slot> = std::iter::from_fn(|| take(Lane::Short)).map(Result::unwrap).collect();
            assert!(short.len() >= 512);
            assert!(take(Lane::Own).is_some());
            drop(all);
            assert!(take(Lane::Open).is_some());
        }
    }
}
