//! The machine that a node is: its processors, memory, kernel, operating system.

use super::allocatable::Reservations;
use super::usage::{FileSystem, counter};
use std::collections::BTreeMap;
use std::path::Path;

/// Pods that a node takes: upstream's default.
const MOST_PODS: u32 = 110;

/// Facts of a machine, read once when the node starts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// Processors that can be used.
    pub processors: u32,
    /// Bytes.
    pub memory: i64,
    /// Bytes of swap; 0 for none.
    pub swap: i64,
    /// Whether the kubelet is in another user namespace than the machine's first one.
    pub user_namespace: bool,
    /// Bytes of the file system that holds pods' volumes and layers.
    pub storage: i64,
    /// Pods.
    pub pods: u32,
    /// Bytes of pages by size, `2Mi`.
    pub hugepages: BTreeMap<String, i64>,
    /// `/etc/machine-id`
    pub machine_id: String,
    /// The mainboard's, else the machine's id.
    pub system_uuid: String,
    /// Of this boot.
    pub boot_id: String,
    /// `uname -r`
    pub kernel: String,
    /// `PRETTY_NAME` of `/etc/os-release`.
    pub os_image: String,
    /// As Go names it: `amd64`, `arm64`.
    pub architecture: String,
    /// The host's name.
    pub hostname: String,
    /// Processes that it can run.
    pub processes: i64,
    /// What pods may not use.
    pub reservations: Reservations,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_default()
}

/// An amount of `/proc/meminfo`, in bytes.
fn meminfo(text: &str, key: &str) -> i64 {
    let kib = counter(text, key).and_then(|n| i64::try_from(n).ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

impl Machine {
    /// Reads this machine's facts; `root` is where volumes and layers are.
    #[must_use]
    pub fn read(root: &Path) -> Machine {
        let machine_id = read("/etc/machine-id");
        let uuid = read("/sys/class/dmi/id/product_uuid");
        let release = read("/etc/os-release");
        let pretty = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
        let storage = FileSystem::of(root).map_or(0, |disk| disk.capacity);
        Machine {
            processors: std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(1)),
            memory: meminfo(&read("/proc/meminfo"), "MemTotal"),
            swap: meminfo(&read("/proc/meminfo"), "SwapTotal"),
            user_namespace: std::fs::read_to_string("/proc/self/uid_map")
                .is_ok_and(|map| is_of_namespace(&map)),
            storage: i64::try_from(storage).unwrap_or(i64::MAX),
            pods: MOST_PODS,
            hugepages: hugepages(),
            system_uuid: if uuid.is_empty() { machine_id.clone() } else { uuid },
            machine_id,
            boot_id: read("/proc/sys/kernel/random/boot_id"),
            kernel: read("/proc/sys/kernel/osrelease"),
            os_image: pretty.map(|p| p.trim_matches('"').to_owned()).unwrap_or_else(|| "linux".to_owned()),
            architecture: match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                "x86" => "386",
                other => other,
            }
            .to_owned(),
            hostname: read("/proc/sys/kernel/hostname").to_lowercase(),
            processes: most_processes(&MOST_PROCESSES.map(read)).unwrap_or(0),
            reservations: Reservations::default(),
        }
    }

    /// `status.capacity`
    #[must_use]
    pub fn capacity(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([
            ("cpu".to_owned(), self.processors.to_string()),
            ("memory".to_owned(), format!("{}Ki", self.memory / 1024)),
            ("ephemeral-storage".to_owned(), format!("{}Ki", self.storage / 1024)),
            ("pods".to_owned(), self.pods.to_string()),
            ("hugepages-2Mi".to_owned(), "0".to_owned()),
            ("hugepages-1Gi".to_owned(), "0".to_owned()),
        ]);
        for (size, bytes) in &self.hugepages {
            let amount = if *bytes == 0 { "0".to_owned() } else { format!("{}Ki", bytes / 1024) };
            all.insert(format!("hugepages-{size}"), amount);
        }
        all
    }

    /// `status.allocatable`: the capacity less what is reserved, what hard thresholds of eviction keep free, and the memory of
    /// huge pages.
    #[must_use]
    pub fn allocatable(&self) -> BTreeMap<String, String> {
        let mut all = self.capacity();
        let pages: i64 = self.hugepages.values().sum();
        let left = |name: &str, capacity: i64| {
            capacity.saturating_sub(self.reservations.with_eviction(name, capacity)).max(0)
        };
        let milli = left("cpu", i64::from(self.processors) * 1000);
        let cpu = if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") };
        let memory = (left("memory", self.memory) - pages).max(0);
        let memory = if memory % 1024 == 0 { format!("{}Ki", memory / 1024) } else { memory.to_string() };
        let storage = left("ephemeral-storage", self.storage).to_string();
        let texts = [("cpu", cpu), ("memory", memory), ("ephemeral-storage", storage)];
        all.extend(texts.map(|(name, text)| (name.to_owned(), text)));
        all
    }
}

/// Where the kernel shows how many processes there can be.
pub(super) const MOST_PROCESSES: [&str; 2] = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];

/// The least of the texts of these files.
pub(super) fn most_processes(texts: &[String]) -> Option<i64> {
    texts.iter().filter_map(|text| text.trim().parse().ok()).min()
}

/// Whether a map of user ids is another one than that of a machine's first namespace, which has all. An empty one was not written yet.
fn is_of_namespace(map: &str) -> bool {
    let first = map.lines().next().unwrap_or_default();
    let numbers: Vec<u32> = first.split_whitespace().map_while(|n| n.parse().ok()).collect();
    first.is_empty() || numbers.len() == 3 && numbers != [0, 0, u32::MAX]
}

fn hugepages() -> BTreeMap<String, i64> {
    let Ok(entries) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return BTreeMap::new() };
    let of = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kib: i64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count: i64 =
            std::fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
        let size = match kib {
            k if k >= 1 << 20 => format!("{}Gi", k >> 20),
            k if k >= 1 << 10 => format!("{}Mi", k >> 10),
            k => format!("{k}Ki"),
        };
        Some((size, count.saturating_mul(kib * 1024)))
    };
    entries.flatten().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_namespaces_are_known_by_their_maps() {
        let maps = ["", "         0          0 4294967295\n", "0 1000 1\n1 100000 65536\n", "none\n"];
        assert_eq!(maps.map(is_of_namespace), [true, false, true, false]);
    }

    #[test]
    fn subtracts_reservations_from_capacity() {
        let machine = Machine {
            processors: 4,
            memory: 8 << 30,
            storage: 100 << 30,
            pods: 110,
            hugepages: BTreeMap::from([("2Mi".to_owned(), 4 << 20)]),
            ..Machine::default()
        };
        expect_test::expect![[r#"
            {"cpu": "4", "ephemeral-storage": "104857600Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "4096Ki", "memory": "8388608Ki", "pods": "110"}
            {"cpu": "4", "ephemeral-storage": "96636764000", "hugepages-1Gi": "0", "hugepages-2Mi": "4096Ki", "memory": "8282112Ki", "pods": "110"}"#]]
        .assert_eq(&format!("{:?}\n{:?}", machine.capacity(), machine.allocatable()));
        assert_eq!(meminfo("MemTotal:       16 kB\nMemFree: 1 kB", "MemTotal"), 16 << 10);
    }
}
