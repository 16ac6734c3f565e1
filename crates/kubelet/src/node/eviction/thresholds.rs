//! Signals of pressure, and the thresholds at which pods are evicted. Upstream's `eviction/api` and `ParseThresholdConfig`.

use super::usage::DiskLayout;
use kaji_meta::quantity::{Format, Quantity};
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// What is observed of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    /// Memory of the node that is not in use, in bytes.
    MemoryAvailable,
    /// The same of what pods may use.
    AllocatableMemoryAvailable,
    /// Bytes of the file system of volumes and logs.
    NodeFsAvailable,
    /// Its inodes.
    NodeFsInodesFree,
    /// Bytes of the file system of images and writable layers.
    ImageFsAvailable,
    /// Its inodes.
    ImageFsInodesFree,
    /// Bytes of the file system of writable layers: that of images, or that of volumes.
    ContainerFsAvailable,
    /// Its inodes.
    ContainerFsInodesFree,
    /// Process ids.
    PidAvailable,
}

/// A condition of a node under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pressure {
    /// `DiskPressure`
    Disk,
    /// `MemoryPressure`
    Memory,
    /// `PIDPressure`
    Pid,
}

impl Pressure {
    /// The condition's type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Pressure::Disk => "DiskPressure",
            Pressure::Memory => "MemoryPressure",
            Pressure::Pid => "PIDPressure",
        }
    }
}

/// What there is too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EvictionResource {
    /// Bytes.
    Memory,
    /// Bytes.
    EphemeralStorage,
    /// Files.
    Inodes,
    /// Processes.
    Pids,
}

impl EvictionResource {
    /// As messages name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EvictionResource::Memory => "memory",
            EvictionResource::EphemeralStorage => "ephemeral-storage",
            EvictionResource::Inodes => "inodes",
            EvictionResource::Pids => "pids",
        }
    }

    /// An amount of it, as messages show it.
    #[must_use]
    pub fn quantity(self, amount: i64) -> Quantity {
        let bytes = matches!(self, EvictionResource::Memory | EvictionResource::EphemeralStorage);
        Quantity::new(amount, if bytes { Format::BinarySi } else { Format::DecimalSi })
    }
}

impl Signal {
    const ALL: [Signal; 9] = [
        Signal::MemoryAvailable,
        Signal::AllocatableMemoryAvailable,
        Signal::NodeFsAvailable,
        Signal::NodeFsInodesFree,
        Signal::ImageFsAvailable,
        Signal::ImageFsInodesFree,
        Signal::ContainerFsAvailable,
        Signal::ContainerFsInodesFree,
        Signal::PidAvailable,
    ];

    /// As configurations name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Signal::MemoryAvailable => "memory.available",
            Signal::AllocatableMemoryAvailable => "allocatableMemory.available",
            Signal::NodeFsAvailable => "nodefs.available",
            Signal::NodeFsInodesFree => "nodefs.inodesFree",
            Signal::ImageFsAvailable => "imagefs.available",
            Signal::ImageFsInodesFree => "imagefs.inodesFree",
            Signal::ContainerFsAvailable => "containerfs.available",
            Signal::ContainerFsInodesFree => "containerfs.inodesFree",
            Signal::PidAvailable => "pid.available",
        }
    }

    /// The condition that the node has while it is below a threshold.
    #[must_use]
    pub fn pressure(self) -> Pressure {
        match self.resource() {
            EvictionResource::Memory => Pressure::Memory,
            EvictionResource::EphemeralStorage | EvictionResource::Inodes => Pressure::Disk,
            EvictionResource::Pids => Pressure::Pid,
        }
    }

    /// What pods use too much of.
    #[must_use]
    pub fn resource(self) -> EvictionResource {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => EvictionResource::Memory,
            Signal::NodeFsAvailable | Signal::ImageFsAvailable | Signal::ContainerFsAvailable => {
                EvictionResource::EphemeralStorage
            }
            Signal::NodeFsInodesFree | Signal::ImageFsInodesFree | Signal::ContainerFsInodesFree => {
                EvictionResource::Inodes
            }
            Signal::PidAvailable => EvictionResource::Pids,
        }
    }
}

/// A part of a capacity, or an amount.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Bytes, inodes or processes.
    Units(i64),
    /// Between 0 and 1. As precise as upstream's, and its rounding shows in messages.
    Part(f32),
}

impl Amount {
    /// In units, of a capacity.
    #[must_use]
    pub fn of(self, capacity: i64) -> i64 {
        match self {
            Amount::Units(units) => units,
            #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
            Amount::Part(part) => (capacity as f64 * f64::from(part)) as i64,
        }
    }
}

/// When a node is under pressure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// What is observed.
    pub signal: Signal,
    /// What has to be available at least.
    pub least: Amount,
    /// How long less than that may be available before pods are evicted; zero for a hard threshold.
    pub grace: Duration,
    /// What has to be available beyond `least` before pressure ends.
    pub reclaim: Option<Amount>,
}

impl Threshold {
    /// Whether pods are evicted at once, without grace of their own.
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// Same threshold, whatever has to be reclaimed.
    pub(super) fn same(&self, other: &Threshold) -> bool {
        self.signal == other.signal && self.least == other.least && self.grace == other.grace
    }
}

/// When a node evicts pods.
#[derive(Debug, Clone, PartialEq)]
pub struct EvictionSettings {
    /// Hard and soft ones.
    pub thresholds: Vec<Threshold>,
    /// Seconds that a pod gets to end at a soft threshold, at most.
    pub most_pod_grace: i64,
    /// How long a condition stays after pressure was observed last.
    pub transition: Duration,
}

/// Settings that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EvictionSettingsError {
    /// A name.
    #[error("unsupported eviction signal {0}")]
    Signal(String),
    /// A value of a threshold.
    #[error("eviction threshold {0} must be positive: {1}")]
    Threshold(&'static str, String),
    /// A percentage of a threshold.
    #[error("eviction percentage threshold {0} must be between 0% and 100%: {1}")]
    Percentage(&'static str, String),
    /// A value of a minimum reclaim.
    #[error("negative eviction minimum reclaim specified for {0}")]
    Reclaim(&'static str),
    /// A percentage of a minimum reclaim.
    #[error("eviction percentage minimum reclaim {0} must be positive: {1}")]
    ReclaimPercentage(&'static str, String),
    /// A soft threshold without grace.
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    Grace(&'static str),
}

/// Amounts by the names of signals, as configurations have them.
pub type Statements = BTreeMap<String, String>;

impl Default for EvictionSettings {
    fn default() -> EvictionSettings {
        let hard = [
            (Signal::MemoryAvailable, Amount::Units(100 << 20)),
            (Signal::AllocatableMemoryAvailable, Amount::Units(100 << 20)),
            (Signal::NodeFsAvailable, Amount::Part(0.1)),
            (Signal::NodeFsInodesFree, Amount::Part(0.05)),
            (Signal::ImageFsAvailable, Amount::Part(0.15)),
            (Signal::ImageFsInodesFree, Amount::Part(0.05)),
        ];
        let of = |(signal, least)| Threshold { signal, least, grace: Duration::ZERO, reclaim: None };
        EvictionSettings {
            thresholds: hard.map(of).into(),
            most_pod_grace: 0,
            transition: Duration::from_secs(300),
        }
    }
}

impl EvictionSettings {
    /// Reads `evictionHard`, `evictionSoft`, `evictionSoftGracePeriod` and `evictionMinimumReclaim`.
    ///
    /// # Errors
    /// Names and values that upstream refuses too.
    pub fn parse(
        hard: &Statements,
        soft: &Statements,
        grace: &BTreeMap<String, Duration>,
        reclaim: &Statements,
    ) -> Result<EvictionSettings, EvictionSettingsError> {
        for name in grace.keys() {
            signal(name)?;
        }
        let mut least_reclaims = BTreeMap::new();
        for (name, text) in reclaim {
            let signal = signal(name)?;
            let amount = match amount(text) {
                Some(Amount::Part(part)) if part <= 0.0 => {
                    return Err(EvictionSettingsError::ReclaimPercentage(signal.name(), text.clone()));
                }
                amount => amount.ok_or(EvictionSettingsError::Reclaim(signal.name()))?,
            };
            least_reclaims.insert(signal, amount);
        }
        let mut thresholds = vec![];
        for (statements, is_soft) in [(hard, false), (soft, true)] {
            for (name, text) in statements {
                let signal = signal(name)?;
                let Some(least) = least(signal, text)? else { continue };
                let grace = match (is_soft, grace.get(name)) {
                    (false, _) => Duration::ZERO,
                    (true, Some(grace)) => *grace,
                    (true, None) => return Err(EvictionSettingsError::Grace(signal.name())),
                };
                let reclaim = least_reclaims.get(&signal).copied();
                thresholds.push(Threshold { signal, least, grace, reclaim });
            }
        }
        // What holds for the node's memory holds for that of its pods.
        let of_node = |t: &&Threshold| t.signal == Signal::MemoryAvailable && t.is_hard();
        let of_pods = thresholds.iter().find(of_node).copied();
        thresholds.extend(of_pods.map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..t }));
        Ok(EvictionSettings { thresholds, ..EvictionSettings::default() })
    }

    /// With thresholds of the file system of writable layers that are those of the one that it is: what is configured for it is replaced.
    /// Upstream's `UpdateContainerFsThresholds`. Whether anything else was configured.
    #[must_use]
    pub fn on_disks(mut self, layout: DiskLayout) -> (EvictionSettings, bool) {
        let follows = match layout {
            DiskLayout::ImagesAndLayers => [Signal::ImageFsAvailable, Signal::ImageFsInodesFree],
            DiskLayout::Shared | DiskLayout::Images => [Signal::NodeFsAvailable, Signal::NodeFsInodesFree],
        };
        let own = [Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree];
        let (configured, mut thresholds): (Vec<Threshold>, Vec<Threshold>) =
            self.thresholds.into_iter().partition(|t| own.contains(&t.signal));
        let of = |t: &Threshold| {
            let (_, signal) = follows.into_iter().zip(own).find(|(follows, _)| *follows == t.signal)?;
            Some(Threshold { signal, ..*t })
        };
        let derived: Vec<Threshold> = thresholds.iter().filter_map(of).collect();
        let differs = configured.iter().any(|t| !derived.contains(t));
        thresholds.extend(derived);
        self.thresholds = thresholds;
        (self, differs)
    }
}

fn signal(name: &str) -> Result<Signal, EvictionSettingsError> {
    let found = Signal::ALL.into_iter().find(|s| s.name() == name);
    found.ok_or_else(|| EvictionSettingsError::Signal(name.to_owned()))
}

fn amount(text: &str) -> Option<Amount> {
    match text.strip_suffix('%') {
        Some(percent) => {
            percent.parse::<f32>().ok().filter(|p| p.is_finite()).map(|p| Amount::Part(p / 100.0))
        }
        None => Quantity::parse(text).ok().filter(|q| q.sign() >= 0).map(|q| Amount::Units(q.value())),
    }
}

/// `None` for a threshold that is turned off.
fn least(signal: Signal, text: &str) -> Result<Option<Amount>, EvictionSettingsError> {
    if matches!(text, "0%" | "100%") {
        return Ok(None);
    }
    match amount(text) {
        Some(Amount::Part(part)) if !(0.0..=1.0).contains(&part) => {
            Err(EvictionSettingsError::Percentage(signal.name(), text.to_owned()))
        }
        None | Some(Amount::Units(..=0)) => {
            Err(EvictionSettingsError::Threshold(signal.name(), text.to_owned()))
        }
        amount => Ok(amount),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statements(of: &[(&str, &str)]) -> Statements {
        of.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn thresholds_are_read_as_upstream_reads_them() {
        let hard = statements(&[
            ("memory.available", "150Mi"),
            ("nodefs.available", "10%"),
            ("imagefs.available", "0%"),
        ]);
        let soft = statements(&[("memory.available", "30%")]);
        let grace = BTreeMap::from([("memory.available".to_owned(), Duration::from_secs(30))]);
        let reclaim = statements(&[("memory.available", "0"), ("nodefs.available", "500Mi")]);
        let parsed = EvictionSettings::parse(&hard, &soft, &grace, &reclaim).unwrap();
        let shown: Vec<String> = parsed
            .thresholds
            .iter()
            .map(|t| format!("{} {:?} {:?} {:?}", t.signal.name(), t.least, t.grace, t.reclaim))
            .collect();
        expect_test::expect![[r#"
            memory.available Units(157286400) 0ns Some(Units(0))
            nodefs.available Part(0.1) 0ns Some(Units(524288000))
            memory.available Part(0.3) 30s Some(Units(0))
            allocatableMemory.available Units(157286400) 0ns Some(Units(0))"#]]
        .assert_eq(&shown.join("\n"));
        let none = Statements::new();
        let wrong = |hard: &Statements, soft: &Statements| {
            EvictionSettings::parse(hard, soft, &BTreeMap::new(), &none).unwrap_err().to_string()
        };
        let errors = [
            wrong(&statements(&[("memory", "1")]), &none),
            wrong(&statements(&[("memory.available", "-1")]), &none),
            wrong(&statements(&[("memory.available", "110%")]), &none),
            wrong(&none, &soft),
            EvictionSettings::parse(&none, &none, &BTreeMap::new(), &statements(&[("pid.available", "0%")]))
                .unwrap_err()
                .to_string(),
        ];
        expect_test::expect![[r#"
            unsupported eviction signal memory
            eviction threshold memory.available must be positive: -1
            eviction percentage threshold memory.available must be between 0% and 100%: 110%
            grace period must be specified for the soft eviction threshold memory.available
            eviction percentage minimum reclaim pid.available must be positive: 0%"#]]
        .assert_eq(&errors.join("\n"));
    }

    #[test]
    fn thresholds_of_writable_layers_follow_their_disk() {
        let hard = statements(&[
            ("nodefs.available", "10%"),
            ("imagefs.available", "15%"),
            ("containerfs.available", "30%"),
        ]);
        let soft = statements(&[("imagefs.inodesFree", "7%")]);
        let grace = BTreeMap::from([("imagefs.inodesFree".to_owned(), Duration::from_secs(30))]);
        let settings = EvictionSettings::parse(&hard, &soft, &grace, &Statements::new()).unwrap();
        let shown: Vec<String> = [DiskLayout::Shared, DiskLayout::ImagesAndLayers, DiskLayout::Images]
            .into_iter()
            .map(|layout| {
                let (settings, replaced) = settings.clone().on_disks(layout);
                let thresholds = settings.thresholds.iter().map(|t| {
                    let kind = if t.is_hard() { "" } else { " soft" };
                    format!("{}{kind} {:?}", t.signal.name(), t.least)
                });
                format!("{layout:?} {replaced}: {}", thresholds.collect::<Vec<_>>().join(", "))
            })
            .collect();
        expect_test::expect![[r#"
            Shared true: imagefs.available Part(0.15), nodefs.available Part(0.1), imagefs.inodesFree soft Part(0.07), containerfs.available Part(0.1)
            ImagesAndLayers true: imagefs.available Part(0.15), nodefs.available Part(0.1), imagefs.inodesFree soft Part(0.07), containerfs.available Part(0.15), containerfs.inodesFree soft Part(0.07)
            Images true: imagefs.available Part(0.15), nodefs.available Part(0.1), imagefs.inodesFree soft Part(0.07), containerfs.available Part(0.1)"#]].assert_eq(&shown.join("\n"));
        let (twice, _) = EvictionSettings::default().on_disks(DiskLayout::Shared);
        assert_eq!(twice.clone().on_disks(DiskLayout::Shared), (twice, false));
    }
}
