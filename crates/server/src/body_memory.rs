//! A memory budget for the bodies of all requests in flight.
//!
//! Seats bound the number of requests in flight, not the memory of their decoded bodies: a few bytes become a map of several
//! hundred, and an object exists more than once while it is merged, admitted and encoded. So a request with a body reserves
//! memory before the body is decoded, and is rejected while others have reserved too much.
//!
//! Invariants: reservations never exceed the limit; a reservation is released when its request is answered or has failed; a
//! request without a body reserves nothing, so that watches and lists hold none.

use bytes::Bytes;
use kaji_engine::MemoryReservation;
use kaji_meta::{
    Status,
    budget::{BODY_BYTES, footprint_of_json},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// How often an object exists while it is written: as it is stored, as it was sent or merged, as it will be stored.
const COPIES: usize = 3;
/// Bodies up to this length are not looked at: they reserve what a body can take.
const SMALL: usize = 16 << 10;
/// What a byte of a body takes, decoded, in the worst case that is likely.
const PER_BYTE: usize = 64;
/// The smallest limit of a process.
const LEAST: usize = 128 << 20;
/// The fraction of the process' memory.
const PART: usize = 4;

/// The budget.
#[derive(Debug)]
pub struct BodyMemory {
    limit: usize,
    used: AtomicUsize,
}

impl BodyMemory {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Arc<BodyMemory> {
        Arc::new(BodyMemory { limit, used: AtomicUsize::new(0) })
    }

    /// A quarter of the memory that this process may use.
    pub fn of_process() -> Arc<BodyMemory> {
        BodyMemory::new((available() / PART).max(LEAST))
    }

    /// Bytes that are reserved.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> Result<(), Status> {
        if bytes > self.limit {
            return Err(Status::request_entity_too_large(format!("limit is {} bytes of memory", self.limit)));
        }
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.limit {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Status::too_many_requests("Too many requests, please try again later.", 1));
        }
        Ok(())
    }

    /// Reserves memory for a body of this length while it arrives.
    ///
    /// # Errors
    /// 429 when there is none now.
    pub fn reserve(self: &Arc<Self>, length: usize) -> Result<Reservation, Status> {
        self.take(length)?;
        Ok(Reservation { body_memory: self.clone(), bytes: AtomicUsize::new(length) })
    }
}

/// Memory that a request has reserved. Dropping it gives that back.
#[derive(Debug)]
pub struct Reservation {
    body_memory: Arc<BodyMemory>,
    bytes: AtomicUsize,
}

impl Reservation {
    /// Reserves what a body takes once it is decoded.
    ///
    /// # Errors
    /// 429 when there is not as much now, 413 when there never is.
    pub fn decoded(&self, body: &Bytes) -> Result<(), Status> {
        let json = matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
        let footprint =
            if json && body.len() > SMALL { footprint_of_json(body) } else { body.len() * PER_BYTE };
        // What is more is refused by the decoder.
        self.grow(footprint.min(BODY_BYTES))
    }
}

impl MemoryReservation for Reservation {
    fn grow(&self, footprint: usize) -> Result<(), Status> {
        let bytes = footprint.saturating_mul(COPIES);
        self.body_memory.take(bytes)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.body_memory.used.fetch_sub(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The memory that this process may use: what the machine has, or less if its group or its own limits say so.
fn available() -> usize {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let groups = group.iter().filter_map(|path| read(path).trim().parse().ok());
    let (machine, own) = (read("/proc/meminfo"), read("/proc/self/limits"));
    least(groups.chain(machine_bytes(&machine)).chain(own_bytes(&own)))
}

fn least(limits: impl Iterator<Item = usize>) -> usize {
    // Nothing is known of other systems: what any machine has.
    limits.filter(|bytes| *bytes > 0).min().unwrap_or(4 << 30)
}

/// `MemTotal:  24675000 kB`
fn machine_bytes(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// `Max data size    1073741824    unlimited    bytes`: the first number of each limit that has one.
fn own_bytes(limits: &str) -> impl Iterator<Item = usize> {
    let names = ["Max data size", "Max address space", "Max resident set"];
    let lines = limits.lines().filter_map(move |line| names.iter().find_map(|name| line.strip_prefix(name)));
    lines.filter_map(|rest| rest.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_away_what_exceeds_the_limit_and_frees_what_has_ended() {
        let body_memory = BodyMemory::new(1 << 20);
        let first = body_memory.reserve(1000).unwrap();
        first.decoded(&Bytes::from(vec![b'x'; 1000])).unwrap();
        assert_eq!(body_memory.used(), 1000 + 1000 * PER_BYTE * COPIES);
        first.grow(200_000).unwrap();
        let second = body_memory.reserve(1000).unwrap();
        let refused = second.grow(100_000).unwrap_err();
        assert_eq!((refused.code, refused.details.unwrap().retry_after_seconds), (429, 1));
        // Never, however long it waits.
        assert_eq!(second.grow(1 << 20).unwrap_err().code, 413);
        drop(first);
        second.grow(100_000).unwrap();
        drop(second);
        assert_eq!(body_memory.used(), 0);
    }

    #[test]
    fn a_body_of_many_maps_reserves_what_they_take() {
        let body_memory = BodyMemory::new(1 << 30);
        let reserved = |body: String| {
            let reservation = body_memory.reserve(0).unwrap();
            reservation.decoded(&Bytes::from(body)).unwrap();
            body_memory.used() / COPIES
        };
        let maps = format!("[{}]", vec![r#"{"":0}"#; 30_000].join(","));
        assert!(reserved(maps) > 30_000 * 600);
        let text = format!(r#"{{"a":"{}"}}"#, "x".repeat(210_000));
        assert!(reserved(text) < 250_000);
    }

    #[test]
    fn limits_of_the_process_are_found() {
        let meminfo = "MemTotal:       24675000 kB\nMemFree:   1 kB\n";
        assert_eq!(machine_bytes(meminfo), Some(24_675_000 << 10));
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max cpu time              unlimited            unlimited            seconds   \n\
            Max data size             1073741824           1073741824           bytes     \n\
            Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(own_bytes(limits).collect::<Vec<_>>(), [1 << 30]);
        assert_eq!(least([0, 1 << 30, 2 << 30].into_iter()), 1 << 30);
        assert!(available() > 0);
    }
}
