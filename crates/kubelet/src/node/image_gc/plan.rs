//! Garbage collection of images: what the kubelet's image manager decides. Pure.
//!
//! Images are removed by age, once the kubelet has run for that long; and when the disk is used above the high threshold, until
//! it would be at the low one: the least recently used first, none in use, none pinned, none younger than the minimum age.

use jiff::{SignedDuration, Timestamp};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Reason of the event for a file system without a size.
pub const INVALID_DISK_CAPACITY: &str = "InvalidDiskCapacity";
/// Reason of the event when too little could be freed.
pub const FREE_DISK_SPACE_FAILED: &str = "FreeDiskSpaceFailed";

/// An image as the image manager has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownImage {
    /// Of the image.
    pub id: String,
    /// Bytes.
    pub size: u64,
    /// When it was seen first.
    pub first_detected: Timestamp,
    /// When a container used it last; `None` if none has.
    pub last_used: Option<Timestamp>,
    /// It stays.
    pub pinned: bool,
}

/// When images are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Percent of the disk; at or above it, space is freed. 100 turns that off.
    pub high_percent: u8,
    /// Percent of the disk that freeing aims at.
    pub low_percent: u8,
    /// Younger images stay.
    pub min_age: SignedDuration,
    /// Images unused for longer are removed; zero turns that off.
    pub max_age: SignedDuration,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            high_percent: 85,
            low_percent: 80,
            min_age: SignedDuration::from_mins(2),
            max_age: SignedDuration::ZERO,
        }
    }
}

/// The disk that holds images, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// All of it.
    pub capacity: u64,
    /// What is free.
    pub available: u64,
}

/// What to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Ids of images that are too old.
    pub by_age: Vec<String>,
    /// Ids of images to remove for the space that they take, in this order.
    pub by_space: Vec<String>,
    /// Bytes that `by_space` frees.
    pub freed: u64,
    /// An event of type Warning for the node, by reason and message.
    pub event: Option<(&'static str, String)>,
}

/// Decides which images to remove. `began` is when the kubelet started; `in_use` has ids.
#[must_use]
pub fn plan(
    images: &[KnownImage],
    in_use: &BTreeSet<String>,
    (now, began): (Timestamp, Timestamp),
    disk: Disk,
    thresholds: &Thresholds,
) -> Plan {
    let mut plan = Plan::default();
    let mut images = in_eviction_order(images, in_use);
    if !thresholds.max_age.is_zero() && now.duration_since(began) > thresholds.max_age {
        let old = |image: &&KnownImage| match image.last_used {
            Some(used) => now.duration_since(used) > thresholds.max_age,
            None => true,
        };
        plan.by_age = images.iter().copied().filter(old).map(|image| image.id.clone()).collect();
        images.retain(|image| !old(image));
    }
    if disk.capacity == 0 {
        plan.event = Some((INVALID_DISK_CAPACITY, "invalid capacity 0 on image filesystem".into()));
        return plan;
    }
    let (capacity, available) = (u128::from(disk.capacity), u128::from(disk.available.min(disk.capacity)));
    let used = 100 - available * 100 / capacity;
    if used < u128::from(thresholds.high_percent) {
        return plan;
    }
    let wanted = capacity * u128::from(100 - thresholds.low_percent.min(100)) / 100;
    let to_free = u64::try_from(wanted.saturating_sub(available)).unwrap_or(u64::MAX);
    free(&mut plan, &images, to_free, now, thresholds);
    if plan.freed < to_free {
        let message = format!(
            "Insufficient free disk space on the node's image filesystem ({used}% of {} used). Failed to free \
             sufficient space by deleting unused images (freed {} bytes). Investigate disk usage, as it could be used \
             by active images, logs, volumes, or other data.",
            shown(disk.capacity),
            plan.freed
        );
        plan.event = Some((FREE_DISK_SPACE_FAILED, message));
    }
    plan
}

/// Decides which images to remove when the node is under disk pressure: all that are unused.
#[must_use]
pub fn plan_all(
    images: &[KnownImage],
    in_use: &BTreeSet<String>,
    now: Timestamp,
    thresholds: &Thresholds,
) -> Plan {
    let mut plan = Plan::default();
    free(&mut plan, &in_eviction_order(images, in_use), u64::MAX, now, thresholds);
    plan
}

/// The least recently used first, then the one that was seen first.
fn in_eviction_order<'a>(images: &'a [KnownImage], in_use: &BTreeSet<String>) -> Vec<&'a KnownImage> {
    let mut images: Vec<_> =
        images.iter().filter(|image| !image.pinned && !in_use.contains(&image.id)).collect();
    images.sort_by(|a, b| match a.last_used.cmp(&b.last_used) {
        Ordering::Equal => a.first_detected.cmp(&b.first_detected),
        order => order,
    });
    images
}

fn free(plan: &mut Plan, images: &[&KnownImage], to_free: u64, now: Timestamp, thresholds: &Thresholds) {
    for image in images {
        if image.last_used.is_some_and(|used| used >= now)
            || now.duration_since(image.first_detected) < thresholds.min_age
        {
            continue;
        }
        plan.by_space.push(image.id.clone());
        plan.freed = plan.freed.saturating_add(image.size);
        if plan.freed >= to_free {
            break;
        }
    }
}

/// As upstream shows sizes: `100.0 GiB`; terabytes are the largest unit.
fn shown(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10).min(4);
    let unit = 1_u128 << (10 * power);
    let tenths = (u128::from(bytes) * 10 + unit / 2) / unit;
    let name = units.get(power as usize - 1).copied().unwrap_or("TiB");
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn image(id: &str, size: u64, seen: i64, used: Option<i64>) -> KnownImage {
        KnownImage { id: id.into(), size, first_detected: at(seen), last_used: used.map(at), pinned: false }
    }

    #[test]
    fn the_least_recently_used_go_until_the_low_threshold() {
        let mut images = vec![
            image("new", 50, 990, None),
            image("b", 6, 2, Some(500)),
            image("a", 6, 1, Some(400)),
            image("c", 6, 3, Some(600)),
        ];
        images.push(KnownImage { pinned: true, ..image("pinned", 99, 0, None) });
        images.push(image("used", 99, 0, None));
        let in_use = ["used".to_owned()].into();
        let thresholds = Thresholds::default();
        let decide = |available, thresholds: &Thresholds| {
            plan(&images, &in_use, (at(1000), at(0)), Disk { capacity: 100, available }, thresholds)
        };
        assert_eq!(decide(16, &thresholds), Plan::default());
        let freed = decide(10, &thresholds);
        assert_eq!((freed.by_space, freed.freed, freed.event), (vec!["a".into(), "b".into()], 12, None));
        let failed = decide(0, &thresholds);
        expect![[r#"Some(("FreeDiskSpaceFailed", "Insufficient free disk space on the node's image filesystem (100% of 100 B used). Failed to free sufficient space by deleting unused images (freed 18 bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data."))"#]]
        .assert_eq(&format!("{:?}", failed.event));
        let aged = Thresholds { max_age: SignedDuration::from_secs(450), ..thresholds };
        assert_eq!(decide(50, &aged).by_age, ["new", "a", "b"]);
        assert_eq!(plan_all(&images, &in_use, at(1000), &thresholds).by_space, ["a", "b", "c"]);
        assert_eq!(
            plan(&[], &in_use, (at(1), at(0)), Disk { capacity: 0, available: 0 }, &aged).event.unwrap().0,
            INVALID_DISK_CAPACITY
        );
        assert_eq!(
            (shown(100 << 30), shown(3 << 29), shown(1023)),
            ("100.0 GiB".into(), "1.5 GiB".into(), "1023 B".into())
        );
    }
}
