//! Cgroups of pods, v1 and v2: `/kubepods`, `/kubepods/burstable`, `/kubepods/besteffort`, and one a pod below them.
//!
//! Invariant: a cgroup is removed only when it has no processes: the kernel refuses otherwise. What is left in one that shall go is
//! killed, as upstream's kubelet does.

use crate::pods::context::{CgroupBounds, PodCgroups};
use kaji_containers::LinuxResources;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Controllers of v1 in which a runtime makes cgroups of containers, hence in which pods have one.
const V1: [&str; 12] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "pids",
    "devices",
    "freezer",
    "blkio",
    "hugetlb",
    "net_cls",
    "net_prio",
    "perf_event",
];
/// Controllers that are handed down in v2.
const V2: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "io"];

/// Bytes that stand for no limit in v1, less than the kernel's largest page counter.
const MOST_MEMORY: i64 = i64::MAX - (1 << 20);

enum Layout {
    /// The mount points of the hierarchies by controller; some share one.
    V1(Vec<(String, PathBuf)>),
    V2(PathBuf),
}

/// The kernel's cgroups below a mount point.
pub struct KernelCgroups {
    layout: Layout,
}

impl KernelCgroups {
    /// Finds out which version is mounted at a path, `/sys/fs/cgroup`. `None` when neither is, or when cgroups cannot be made
    /// there.
    #[must_use]
    pub fn detect(root: &Path) -> Option<KernelCgroups> {
        let layout = if root.join("cgroup.controllers").exists() {
            Layout::V2(root.to_owned())
        } else {
            let found = V1.iter().map(|c| ((*c).to_owned(), root.join(c)));
            let found: Vec<_> = found.filter(|(_, dir)| dir.join("cgroup.procs").exists()).collect();
            if !found.iter().any(|(c, _)| c == "memory" || c == "cpu") {
                return None;
            }
            Layout::V1(found)
        };
        let cgroups = KernelCgroups { layout };
        match cgroups.parents() {
            Ok(()) => Some(cgroups),
            Err(error) => {
                tracing::warn!(%error, "cgroups of pods cannot be made");
                None
            }
        }
    }

    fn parents(&self) -> io::Result<()> {
        for path in ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"] {
            self.make(path)?;
        }
        if let Layout::V1(found) = &self.layout
            && let Some((_, cpu)) = found.iter().find(|(c, _)| c == "cpu")
        {
            write(&cpu.join("kubepods/besteffort/cpu.shares"), "2")?;
        }
        Ok(())
    }

    fn make(&self, path: &str) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        match &self.layout {
            Layout::V1(found) => {
                for (controller, root) in found {
                    create(&root.join(path))?;
                    if controller == "cpuset" {
                        inherit_cpuset(root, path)?;
                    }
                }
            }
            Layout::V2(root) => {
                let mut dir = root.clone();
                for part in path.split('/') {
                    enable_controllers(&dir)?;
                    dir = dir.join(part);
                    create(&dir)?;
                }
                enable_controllers(&dir)?;
            }
        }
        Ok(())
    }

    fn limit(&self, path: &str, resources: &LinuxResources) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        match &self.layout {
            Layout::V1(found) => {
                let dir = |c: &str| found.iter().find(|(name, _)| name == c).map(|(_, root)| root.join(path));
                if let Some(cpu) = dir("cpu") {
                    write(&cpu.join("cpu.shares"), &resources.cpu_shares.max(2).to_string())?;
                    if cpu.join("cpu.cfs_quota_us").exists() {
                        write(&cpu.join("cpu.cfs_period_us"), &resources.cpu_period.to_string())?;
                        let quota = if resources.cpu_quota == 0 { -1 } else { resources.cpu_quota };
                        write(&cpu.join("cpu.cfs_quota_us"), &quota.to_string())?;
                    }
                }
                if let Some(memory) = dir("memory") {
                    let limit =
                        if resources.memory_limit_bytes <= 0 { -1 } else { resources.memory_limit_bytes };
                    write(&memory.join("memory.limit_in_bytes"), &limit.to_string())?;
                }
            }
            Layout::V2(root) => {
                let dir = root.join(path);
                let weight = weight(resources.cpu_shares);
                optional(&dir.join("cpu.weight"), &weight.to_string())?;
                let quota = match resources.cpu_quota {
                    q if q > 0 => q.to_string(),
                    _ => "max".to_owned(),
                };
                optional(&dir.join("cpu.max"), &format!("{quota} {}", resources.cpu_period))?;
                let memory = match resources.memory_limit_bytes {
                    m if m > 0 => m.to_string(),
                    _ => "max".to_owned(),
                };
                optional(&dir.join("memory.max"), &memory)?;
                for (file, text) in &resources.unified {
                    optional(&dir.join(file), text)?;
                }
            }
        }
        Ok(())
    }

    fn read_limits(&self, path: &str) -> Option<LinuxResources> {
        let path = path.trim_start_matches('/');
        let number = |file: PathBuf| -> Option<i64> {
            // More than there can be stands for no limit.
            let text = std::fs::read_to_string(file).ok()?;
            Some(text.trim().parse::<i64>().ok().filter(|n| *n < MOST_MEMORY).unwrap_or(-1))
        };
        match &self.layout {
            Layout::V1(found) => {
                let dir = |c: &str| found.iter().find(|(name, _)| name == c).map(|(_, root)| root.join(path));
                let (cpu, memory) = (dir("cpu")?, dir("memory")?);
                Some(LinuxResources {
                    cpu_shares: number(cpu.join("cpu.shares"))?.max(2).unsigned_abs(),
                    cpu_quota: number(cpu.join("cpu.cfs_quota_us")).unwrap_or(-1),
                    cpu_period: number(cpu.join("cpu.cfs_period_us")).unwrap_or(0).unsigned_abs(),
                    memory_limit_bytes: number(memory.join("memory.limit_in_bytes"))?,
                    ..LinuxResources::default()
                })
            }
            Layout::V2(root) => {
                let dir = root.join(path);
                let max = std::fs::read_to_string(dir.join("cpu.max")).ok()?;
                let mut max = max.split_whitespace().map(|word| word.parse::<i64>().unwrap_or(-1));
                Some(LinuxResources {
                    cpu_quota: max.next()?,
                    cpu_period: max.next()?.unsigned_abs(),
                    cpu_shares: shares(number(dir.join("cpu.weight"))?.max(1).unsigned_abs()),
                    memory_limit_bytes: number(dir.join("memory.max"))?,
                    ..LinuxResources::default()
                })
            }
        }
    }

    /// The directory of a cgroup in a controller's hierarchy.
    fn directory(&self, controller: &str, path: &str) -> Option<PathBuf> {
        let path = path.trim_start_matches('/');
        match &self.layout {
            Layout::V1(found) => {
                found.iter().find(|(name, _)| name == controller).map(|(_, root)| root.join(path))
            }
            Layout::V2(root) => Some(root.join(path)),
        }
    }

    /// The hierarchies in which pods may have a cgroup: other runtimes make them in those without controllers, too.
    fn roots(&self) -> Vec<PathBuf> {
        match &self.layout {
            Layout::V1(found) => {
                let mut roots: Vec<PathBuf> = found.iter().map(|(_, root)| root.clone()).collect();
                let beside = roots.first().and_then(|root| root.parent()).map(Path::to_owned);
                let named =
                    ["systemd", "unified"].iter().filter_map(|name| Some(beside.as_ref()?.join(name)));
                roots.extend(named.filter(|root| root.is_dir()));
                roots
            }
            Layout::V2(root) => vec![root.clone()],
        }
    }
}

/// What is written for bounds: controller, file, text.
fn files(unified: bool, bounds: &CgroupBounds) -> Vec<(&'static str, String, String)> {
    let mut all = vec![];
    let mut add = |controller, v1: &str, v2: &str, text: String| {
        all.push((controller, if unified { v2 } else { v1 }.to_owned(), text));
    };
    if let Some(shares) = bounds.cpu_shares {
        let own = if unified { weight(shares) } else { shares.max(2) };
        add("cpu", "cpu.shares", "cpu.weight", own.to_string());
    }
    if let Some(bytes) = bounds.memory {
        add("memory", "memory.limit_in_bytes", "memory.max", bytes.to_string());
    }
    let protected = [("memory.min", bounds.memory_min), ("memory.low", bounds.memory_low)];
    for (file, bytes) in protected.into_iter().filter(|_| unified) {
        if let Some(bytes) = bytes {
            add("memory", "", file, bytes.to_string());
        }
    }
    if let Some(processes) = bounds.pids {
        add("pids", "pids.max", "pids.max", processes.to_string());
    }
    for page in &bounds.hugepages {
        let file = |end: &str| format!("hugetlb.{}.{end}", page.page_size);
        add("hugetlb", &file("limit_in_bytes"), &file("max"), page.limit.to_string());
    }
    all
}

/// The weight of v2 for shares of v1. Source: KEP-2254.
fn weight(shares: u64) -> u64 {
    let shares = shares.clamp(2, 262_144);
    1 + (shares - 2) * 9999 / 262_142
}

/// Shares of v1 that have a weight of v2: the least of them.
fn shares(weight: u64) -> u64 {
    2 + ((weight.clamp(1, 10_000) - 1) * 262_142).div_ceil(9999)
}

fn create(dir: &Path) -> io::Result<()> {
    match std::fs::create_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    std::fs::write(file, text).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.display())))
}

/// Writes a file that the kernel has only with its controller.
fn optional(file: &Path, text: &str) -> io::Result<()> {
    if file.exists() { write(file, text) } else { Ok(()) }
}

/// Processors and memory nodes have to be set before a process can join a cgroup of v1.
fn inherit_cpuset(root: &Path, path: &str) -> io::Result<()> {
    let mut dir = root.to_owned();
    for part in path.split('/') {
        let parent = dir.clone();
        dir = dir.join(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let own = std::fs::read_to_string(dir.join(file))?;
            if own.trim().is_empty() {
                write(&dir.join(file), std::fs::read_to_string(parent.join(file))?.trim())?;
            }
        }
    }
    Ok(())
}

/// Enables the controllers of a v2 cgroup for its children.
fn enable_controllers(dir: &Path) -> io::Result<()> {
    let available = std::fs::read_to_string(dir.join("cgroup.controllers"))?;
    let enabled = std::fs::read_to_string(dir.join("cgroup.subtree_control"))?;
    let has = |list: &str, name: &str| list.split_whitespace().any(|c| c == name);
    for name in V2.iter().filter(|c| has(&available, c) && !has(&enabled, c)) {
        write(&dir.join("cgroup.subtree_control"), &format!("+{name}"))?;
    }
    Ok(())
}

/// How often a cgroup is tried to be removed, and how long to wait in between: a killed process is in it until it has ended.
const ATTEMPTS: u32 = 5;
const INTERVAL: Duration = Duration::from_millis(2);

/// Removes a cgroup and those below it, and kills what is in them.
fn remove(dir: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    for attempt in 1.. {
        match std::fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && attempt < ATTEMPTS => {
                kill_processes(dir);
                std::thread::sleep(INTERVAL);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io::Error::new(error.kind(), format!("{}: {error}", dir.display())));
            }
            _ => break,
        }
    }
    Ok(())
}

fn kill_processes(dir: &Path) {
    let Ok(processes) = std::fs::read_to_string(dir.join("cgroup.procs")) else { return };
    for pid in processes.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        // It may have ended since.
        let _ = kill_process(pid, Signal::KILL);
    }
}

impl PodCgroups for KernelCgroups {
    fn ensure(&self, path: &str, resources: &LinuxResources) -> Result<(), String> {
        self.make(path).and_then(|()| self.limit(path, resources)).map_err(|e| e.to_string())
    }

    fn limits(&self, path: &str) -> Option<LinuxResources> {
        self.read_limits(path)
    }

    fn remove(&self, path: &str) -> Result<(), String> {
        // One hierarchy that refuses does not keep the others.
        let mut all = Ok(());
        for root in self.roots() {
            all = all.and(remove(&root.join(path.trim_start_matches('/'))));
        }
        all.map_err(|e| e.to_string())
    }

    fn bound(&self, path: &str, bounds: &CgroupBounds) -> Result<Vec<String>, String> {
        let mut missing = vec![];
        for (controller, name, text) in files(matches!(self.layout, Layout::V2(_)), bounds) {
            match self.directory(controller, path).map(|dir| dir.join(&name)).filter(|file| file.exists()) {
                Some(file) => write(&file, &text).map_err(|e| e.to_string())?,
                None => missing.push(name),
            }
        }
        Ok(missing)
    }

    fn exists(&self, path: &str) -> bool {
        self.directory("cpu", path).is_some_and(|dir| dir.join("cgroup.procs").exists())
    }

    fn pods_memory(&self) -> Option<u64> {
        let (dir, usage, inactive) = match &self.layout {
            Layout::V1(found) => {
                let root = &found.iter().find(|(c, _)| c == "memory")?.1;
                (root.join("kubepods"), "memory.usage_in_bytes", "total_inactive_file")
            }
            Layout::V2(root) => (root.join("kubepods"), "memory.current", "inactive_file"),
        };
        let usage: u64 = std::fs::read_to_string(dir.join(usage)).ok()?.trim().parse().ok()?;
        let stat = std::fs::read_to_string(dir.join("memory.stat")).ok()?;
        let line = stat.lines().find_map(|l| l.strip_prefix(inactive)?.strip_prefix(' '));
        Some(usage.saturating_sub(line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)))
    }

    fn pods(&self) -> Vec<(String, String)> {
        let mut found = vec![];
        for parent in ["kubepods", "kubepods/burstable", "kubepods/besteffort"] {
            for root in self.roots() {
                let Ok(entries) = std::fs::read_dir(root.join(parent)) else { continue };
                for entry in entries.flatten() {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if let Some(uid) = name.strip_prefix("pod") {
                        found.push((uid.to_owned(), format!("/{parent}/{name}")));
                    }
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A directory that has a cgroup's files.
    fn cgroup(dir: &Path, files: &[&str]) {
        std::fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|file| std::fs::write(dir.join(file), "").unwrap());
    }

    #[test]
    fn bounds_are_written_where_the_kernel_has_them() {
        let root = tempfile::tempdir().unwrap();
        let page = kaji_containers::HugepageLimit { page_size: "2MB".into(), limit: 4 << 20 };
        let bounds = CgroupBounds {
            cpu_shares: Some(1024),
            memory: Some(1 << 30),
            memory_min: Some(1 << 29),
            memory_low: Some(1 << 28),
            pids: Some(100),
            hugepages: vec![page],
        };
        let v1: Vec<_> = ["cpu", "memory", "pids"].map(|c| (c.to_owned(), root.path().join(c))).into();
        for (controller, file) in
            [("cpu", "cpu.shares"), ("memory", "memory.limit_in_bytes"), ("pids", "pids.max")]
        {
            cgroup(&root.path().join(controller).join("kubepods"), &[file, "cgroup.procs"]);
        }
        cgroup(&root.path().join("v2/kubepods"), &["cpu.weight", "memory.max", "memory.min", "cgroup.procs"]);
        let mut shown = vec![];
        for layout in [Layout::V1(v1), Layout::V2(root.path().join("v2"))] {
            let unified = matches!(layout, Layout::V2(_));
            let cgroups = KernelCgroups { layout };
            assert!(cgroups.exists("/kubepods") && !cgroups.exists("/system.slice"));
            let missing = cgroups.bound("/kubepods", &bounds).unwrap();
            for (controller, file, _) in
                files(unified, &bounds).iter().filter(|(_, f, _)| !missing.contains(f))
            {
                let file = cgroups.directory(controller, "/kubepods").unwrap().join(file);
                let text = std::fs::read_to_string(&file).unwrap();
                shown.push(format!("{}={text}", file.strip_prefix(root.path()).unwrap().display()));
            }
            shown.push(format!("missing: {}", missing.join(" ")));
        }
        expect_test::expect![[r#"
            cpu/kubepods/cpu.shares=1024
            memory/kubepods/memory.limit_in_bytes=1073741824
            pids/kubepods/pids.max=100
            missing: hugetlb.2MB.limit_in_bytes
            v2/kubepods/cpu.weight=39
            v2/kubepods/memory.max=1073741824
            v2/kubepods/memory.min=536870912
            missing: memory.low pids.max hugetlb.2MB.max"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn a_pod_s_cgroup_has_what_protects_its_memory() {
        let root = tempfile::tempdir().unwrap();
        let files = ["cgroup.controllers", "cgroup.subtree_control"];
        cgroup(root.path(), &files);
        cgroup(&root.path().join("pod"), &[files.as_slice(), &["memory.max", "memory.min"]].concat());
        let cgroups = KernelCgroups { layout: Layout::V2(root.path().to_owned()) };
        let unified = [("memory.min", "4096"), ("memory.low", "0")];
        let unified = unified.map(|(file, text)| (file.to_owned(), text.to_owned())).into();
        cgroups.ensure("/pod", &LinuxResources { unified, ..LinuxResources::default() }).unwrap();
        let text = |file: &str| std::fs::read_to_string(root.path().join("pod").join(file)).ok();
        let shown = ["memory.max", "memory.min", "memory.low"].map(text);
        assert_eq!(shown, [Some("max".to_owned()), Some("4096".to_owned()), None]);
    }

    proptest! {
        #[test]
        fn shares_of_a_weight_have_that_weight(of in 1..=10_000_u64) {
            prop_assert_eq!(weight(shares(of)), of);
        }
    }
}
