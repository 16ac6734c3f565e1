//! How many seats a request takes and for how long, estimated before it runs.
//! Source: KEP-1040, "Width of requests"; the defaults are those of Kubernetes 1.34 and later (size-based list cost).

use crate::Nanos;

/// Bytes that a list may hold in memory for one seat.
const BYTES_PER_SEAT: u64 = 100_000;
/// Lists from the cache are sent piece by piece; more than this does not lie in memory at once.
const STREAMED_AT_ONCE: u64 = 1_000_000;
/// What an object is taken to weigh when nothing is known.
const LARGEST_OBJECT: u64 = 1_500_000;
const MOST_LIST_SEATS: u32 = 100;
const MOST_WRITE_SEATS: u32 = 10;
/// So many watchers that hear of a write cost one seat for [`FAN_OUT`].
const WATCHES_PER_SEAT: u64 = 10;
/// How long handing one event on takes.
const FAN_OUT: Nanos = 5_000_000;

/// The size of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Seats while it runs.
    pub initial: u32,
    /// Seats that stay taken after it has answered, while its event goes out to watchers.
    pub last: u32,
    /// For how long they do.
    pub linger: Nanos,
}

impl Estimate {
    /// The ordinary request.
    pub const ONE: Estimate = Estimate { initial: 1, last: 0, linger: 0 };

    /// Seats that are held for it throughout.
    pub fn seats(&self) -> u32 {
        self.initial.max(self.last)
    }
}

/// What a list walks over.
#[derive(Clone, Copy, Debug)]
pub struct Collection {
    /// Objects stored.
    pub objects: u64,
    /// Their average size in bytes; 0 when it is not known.
    pub average: u64,
}

/// A list (or a watch that begins with one). `level_most` is the most that the priority level gives one request; 0 when
/// it does not say.
pub fn list(what: Collection, limit: Option<u64>, single: bool, level_most: u32) -> Estimate {
    let most = if level_most == 0 { MOST_LIST_SEATS } else { level_most.min(MOST_LIST_SEATS) };
    let average = if what.average == 0 && what.objects > 0 { LARGEST_OBJECT } else { what.average };
    let loaded = match limit {
        _ if single => 1,
        Some(limit) if limit > 0 => what.objects.min(limit),
        _ => what.objects,
    };
    let bytes = loaded.saturating_mul(average).min(STREAMED_AT_ONCE);
    let seats = u32::try_from(bytes.div_ceil(BYTES_PER_SEAT)).unwrap_or(u32::MAX);
    Estimate { initial: seats.min(most).max(1), ..Estimate::ONE }
}

/// A write of which so many watchers will hear.
pub fn write(watchers: u64, level_most: u32) -> Estimate {
    if watchers < WATCHES_PER_SEAT {
        return Estimate::ONE;
    }
    let most = if level_most == 0 { MOST_WRITE_SEATS } else { level_most.min(MOST_WRITE_SEATS) };
    let seats = watchers.div_ceil(WATCHES_PER_SEAT);
    let last = u32::try_from(seats).unwrap_or(u32::MAX).min(most);
    // The same work, reshaped to fewer seats for longer.
    Estimate { initial: 1, last, linger: seats.saturating_mul(FAN_OUT) / u64::from(last.max(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_cost_what_they_hold_in_memory() {
        let pods = Collection { objects: 1_000, average: 2_000 };
        let got: Vec<u32> = [
            list(pods, None, false, 0),
            list(pods, Some(100), false, 0),
            list(pods, Some(5), false, 0),
            list(pods, None, true, 0),
            list(pods, None, false, 4),
            list(Collection { objects: 0, average: 0 }, None, false, 0),
            list(Collection { objects: 3, average: 0 }, None, false, 0),
        ]
        .iter()
        .map(Estimate::seats)
        .collect();
        assert_eq!(got, [10, 2, 1, 1, 4, 1, 10]);
    }

    #[test]
    fn writes_cost_what_their_watchers_do() {
        assert_eq!(write(9, 0), Estimate::ONE);
        assert_eq!(write(10, 0), Estimate { initial: 1, last: 1, linger: 5_000_000 });
        assert_eq!(write(95, 0), Estimate { initial: 1, last: 10, linger: 5_000_000 });
        // 50 seats' work on 10 seats takes five times as long.
        assert_eq!(write(500, 0), Estimate { initial: 1, last: 10, linger: 25_000_000 });
    }
}
