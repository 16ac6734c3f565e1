//! Cgroups of pods and containers, versions 1 and 2: directories, limits, what they use, and their end.
//!
//! Invariant: a container's cgroup is `<pod's>/<container's id>` in every hierarchy; nothing outside the pod's is touched. Where this
//! process may use no hierarchy, containers have no directories, and run without limits.

mod usage;

pub use usage::{CgroupFiles, CgroupUsage};

use kaji_containers::{LinuxResources, RuntimeError};
use kaji_files::MountTable;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

const ROOT: &str = "/sys/fs/cgroup";

/// What is mounted at `/sys/fs/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchies {
    /// One hierarchy for all controllers.
    Unified,
    /// One directory a controller.
    Legacy(Vec<String>),
}

/// What this machine has.
pub fn hierarchies() -> &'static Hierarchies {
    static FOUND: OnceLock<Hierarchies> = OnceLock::new();
    FOUND.get_or_init(|| {
        if Path::new(ROOT).join("cgroup.controllers").exists() {
            return Hierarchies::Unified;
        }
        let mut names = mounted_hierarchies(&MountTable::read().unwrap_or_default());
        // Without root, all of them are covered.
        names.retain(|name| Path::new(ROOT).join(name).join("cgroup.procs").exists());
        Hierarchies::Legacy(names)
    })
}

/// The hierarchies of version 1, as their directories below `/sys/fs/cgroup` are called.
pub fn mounted_hierarchies(table: &MountTable) -> Vec<String> {
    let mounts = table.iter().filter(|mount| mount.file_system == "cgroup");
    let names = mounts.filter_map(|mount| mount.point.strip_prefix(ROOT).ok()?.to_str());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Whether there are cgroups to make.
pub fn available() -> bool {
    *hierarchies() != Hierarchies::Legacy(vec![])
}

/// A directory that stands for a cgroup in every covered hierarchy.
const NONE: &str = "none";

/// What the container's configuration names as its cgroup: `libcontainer` joins one of version 1 whenever the table of mounts shows such
/// a hierarchy, also a covered one. It is led to a directory in which nothing counts then.
pub fn in_configuration(cgroup: &str) -> String {
    if available() { cgroup.to_owned() } else { format!("/{NONE}") }
}

/// Makes that directory where a hierarchy is covered, with the files that `libcontainer` reads and writes. What is written goes nowhere.
///
/// # Errors
/// Those of the file system.
pub fn cover(hierarchy: &Path) -> io::Result<()> {
    let none = hierarchy.join(NONE);
    fs::create_dir_all(&none)?;
    std::os::unix::fs::symlink("/dev/null", none.join("cgroup.procs"))?;
    for directory in [hierarchy, &none] {
        ["cpuset.cpus", "cpuset.mems"].iter().try_for_each(|file| fs::write(directory.join(file), "0\n"))?;
    }
    Ok(())
}

/// The directories of a cgroup, one a hierarchy.
pub fn directories(cgroup: &str) -> Vec<PathBuf> {
    let relative = cgroup.trim_start_matches('/');
    match hierarchies() {
        Hierarchies::Unified => vec![Path::new(ROOT).join(relative)],
        Hierarchies::Legacy(names) => {
            names.iter().map(|name| Path::new(ROOT).join(name).join(relative)).collect()
        }
    }
}

/// Controllers that containers have cgroups of in version 1: those that `libcontainer` knows.
const CONTROLLERS: [&str; 12] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "hugetlb",
    "memory",
    "pids",
    "perf_event",
    "blkio",
    "net_prio",
    "net_cls",
    "freezer",
];

/// The directories of a container's cgroup in version 1, by the names of their controllers.
pub fn controller_directories(cgroup: &str) -> Vec<(String, PathBuf)> {
    let Hierarchies::Legacy(names) = hierarchies() else { return vec![] };
    let known = names.iter().filter(|name| name.split(',').any(|part| CONTROLLERS.contains(&part)));
    let relative = cgroup.trim_start_matches('/');
    known.map(|name| (name.clone(), Path::new(ROOT).join(name).join(relative))).collect()
}

/// The directory of a controller.
fn controller(cgroup: &str, name: &str) -> PathBuf {
    let relative = cgroup.trim_start_matches('/');
    match hierarchies() {
        Hierarchies::Unified => Path::new(ROOT).join(relative),
        Hierarchies::Legacy(names) => {
            let found = names.iter().find(|mounted| mounted.split(',').any(|part| part == name));
            Path::new(ROOT).join(found.map_or(name, String::as_str)).join(relative)
        }
    }
}

/// Process ids in the first of the directories that exists.
pub fn processes(directories: &[PathBuf]) -> Vec<i32> {
    let text =
        directories.iter().find_map(|directory| fs::read_to_string(directory.join("cgroup.procs")).ok());
    text.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
}

/// Sends SIGKILL to all processes, until there are none or a hundred rounds have found new ones.
pub fn kill_all(directories: &[PathBuf]) {
    for round in 0..100 {
        let processes = processes(directories);
        if processes.is_empty() {
            return;
        }
        for pid in processes.into_iter().filter_map(rustix::process::Pid::from_raw) {
            // It may have ended since.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        if round > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How often the kernel killed a process for want of memory.
pub fn oom_kills(directories: &[PathBuf]) -> u64 {
    let count = |path: PathBuf| -> Option<u64> {
        fs::read_to_string(path)
            .ok()?
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    };
    let each = directories.iter().filter_map(|directory| {
        count(directory.join("memory.events")).or_else(|| count(directory.join("memory.oom_control")))
    });
    each.max().unwrap_or_default()
}

/// Removes a cgroup and those below it.
///
/// # Errors
/// When processes are left in it.
pub fn remove(directories: &[PathBuf]) -> io::Result<()> {
    directories.iter().try_for_each(|directory| remove_tree(directory))
}

fn remove_tree(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    // A process that was killed stays until its parent has collected it.
    for _ in 0..100 {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
    }
    fs::remove_dir(directory)
}

/// The weight of version 2 that stands for shares of version 1, as runc converts it since 1.3.2, and `libcontainer` when a container
/// is created. The kubelet's conversion for pods is another one.
pub fn weight_of_shares(shares: u64) -> u64 {
    match shares {
        0 => 0,
        1 | 2 => 1,
        262_144.. => 10_000,
        _ => {
            let logarithm = f64::from(u32::try_from(shares).unwrap_or(u32::MAX)).log2();
            let exponent = (logarithm * logarithm + 125.0 * logarithm) / 612.0 - 7.0 / 34.0;
            10_f64.powf(exponent).ceil() as u64
        }
    }
}

/// Writes what is set in `resources` to a cgroup.
///
/// # Errors
/// Those of the kernel, with the name of the file; a node without cgroups.
pub fn update(cgroup: &str, resources: &LinuxResources) -> Result<(), RuntimeError> {
    if !available() {
        return Err(RuntimeError::FailedPrecondition("this node has no cgroups, and so no limits".into()));
    }
    let unified = *hierarchies() == Hierarchies::Unified;
    for (name, file, value) in settings(resources, unified) {
        let path = controller(cgroup, name).join(&file);
        fs::write(&path, &value).map_err(|error| {
            RuntimeError::Internal(format!("failed to write {value:?} to {}: {error}", path.display()))
        })?;
    }
    Ok(())
}

/// Controller, file and value of each limit that is set. Memory with swap comes before memory when it is raised and after it
/// when it is lowered; both orders are tried by writing it twice.
fn settings(resources: &LinuxResources, unified: bool) -> Vec<(&'static str, String, String)> {
    let mut settings = vec![];
    let mut set = |controller, file: &str, value: String| settings.push((controller, file.to_owned(), value));
    let limit = |bytes: i64| if bytes < 0 { "max".to_owned() } else { bytes.to_string() };
    let period = if resources.cpu_period == 0 { 100_000 } else { resources.cpu_period };
    if unified {
        if resources.cpu_shares > 0 {
            set("cpu", "cpu.weight", weight_of_shares(resources.cpu_shares).to_string());
        }
        if resources.cpu_quota != 0 {
            set("cpu", "cpu.max", format!("{} {period}", limit(resources.cpu_quota)));
        }
        if resources.memory_limit_bytes != 0 {
            set("memory", "memory.max", limit(resources.memory_limit_bytes));
        }
        if resources.memory_swap_limit_bytes != 0 && resources.memory_limit_bytes > 0 {
            let swap = resources.memory_swap_limit_bytes;
            let beyond = if swap < 0 { -1 } else { (swap - resources.memory_limit_bytes).max(0) };
            set("memory", "memory.swap.max", limit(beyond));
        }
    } else {
        if resources.cpu_shares > 0 {
            set("cpu", "cpu.shares", resources.cpu_shares.to_string());
        }
        if resources.cpu_period > 0 {
            set("cpu", "cpu.cfs_period_us", resources.cpu_period.to_string());
        }
        if resources.cpu_quota != 0 {
            set("cpu", "cpu.cfs_quota_us", resources.cpu_quota.to_string());
        }
        if resources.memory_limit_bytes != 0 {
            set("memory", "memory.limit_in_bytes", resources.memory_limit_bytes.to_string());
        }
    }
    if !resources.cpuset_cpus.is_empty() {
        set("cpuset", "cpuset.cpus", resources.cpuset_cpus.clone());
    }
    if !resources.cpuset_mems.is_empty() {
        set("cpuset", "cpuset.mems", resources.cpuset_mems.clone());
    }
    if let Some(pids) = resources.pids_limit {
        set("pids", "pids.max", if pids <= 0 { "max".to_owned() } else { pids.to_string() });
    }
    for (file, value) in &resources.unified {
        if unified && !file.contains('/') {
            set("unified", file, value.clone());
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_shares() {
        assert_eq!([0, 2, 102, 1024, 262_144].map(weight_of_shares), [0, 1, 17, 100, 10_000]);
    }

    #[test]
    fn writes_only_what_is_set() {
        assert_eq!(settings(&LinuxResources::default(), true), []);
        let resources = LinuxResources { memory_limit_bytes: 1 << 20, cpu_quota: -1, ..Default::default() };
        let names = |unified| settings(&resources, unified).into_iter().map(|(_, f, v)| format!("{f}={v}"));
        assert_eq!(names(true).collect::<Vec<_>>(), ["cpu.max=max 100000", "memory.max=1048576"]);
        assert_eq!(
            names(false).collect::<Vec<_>>(),
            ["cpu.cfs_quota_us=-1", "memory.limit_in_bytes=1048576"]
        );
    }
}
