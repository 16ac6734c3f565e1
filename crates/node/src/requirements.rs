//! Whether this machine can be a node that runs containers, and if not, why not: `kaji up` without `--nodes` asks.
//!
//! Invariant: nothing is changed, but that modules of the kernel are loaded which a node needs.

use rustix::fs::Access;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What is looked at. A test has files of its own.
#[derive(Clone, Debug)]
pub struct Machine {
    /// `/proc`
    pub proc: PathBuf,
    /// Where cgroup hierarchies are mounted.
    pub cgroups: PathBuf,
}

impl Default for Machine {
    fn default() -> Self {
        Machine { proc: "/proc".into(), cgroups: "/sys/fs/cgroup".into() }
    }
}

/// What a node needs of the kernel, and the files that show it below `/proc`.
const MODULES: [&str; 2] = ["overlay", "br_netfilter"];
/// Bits of capabilities: making mounts and namespaces, and interfaces and rules.
const CAPABILITIES: [(u32, &str); 2] = [(21, "CAP_SYS_ADMIN"), (12, "CAP_NET_ADMIN")];
/// `statfs` of an overlay.
const OVERLAY_MAGIC: u64 = 0x794c_7630;

impl Machine {
    /// Whether the machine can be a node with this data directory, which need not exist.
    ///
    /// # Errors
    /// The first thing that is missing, for one line.
    pub fn can_run_containers(&self, data_dir: &Path) -> Result<(), String> {
        self.missing(data_dir).into_iter().next().map_or(Ok(()), Err)
    }

    /// All that is missing for a node with this data directory, a line each. Modules of the kernel are loaded if nothing else is.
    pub fn missing(&self, data_dir: &Path) -> Vec<String> {
        let mut missing: Vec<String> =
            [self.has_rights(), self.has_cgroups()].into_iter().filter_map(Result::err).collect();
        if missing.is_empty() && !self.has_modules() {
            load_modules();
        }
        if !self.has_overlays() {
            missing.push("the kernel has no overlay file systems (modprobe overlay)".into());
        }
        if !self.has_bridge_filter() {
            missing.push("the kernel does not filter packets of bridges (modprobe br_netfilter)".into());
        }
        if on_overlay(data_dir) {
            missing.push(format!(
                "{} is on an overlay file system, which cannot hold layers of containers; --data-dir names another directory",
                data_dir.display()
            ));
        }
        missing
    }

    fn has_rights(&self) -> Result<(), String> {
        let status = fs::read_to_string(self.proc.join("self/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // Real, effective, saved and file-system ids.
        let user = field("Uid:").and_then(|ids| ids.split_whitespace().nth(1));
        if user != Some("0") {
            return Err("containers need root".into());
        }
        let effective = field("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0);
        match CAPABILITIES.iter().find(|(bit, _)| effective & (1 << bit) == 0) {
            None => Ok(()),
            Some((_, name)) => {
                Err(format!("containers need {name}, which a container has only if it is privileged"))
            }
        }
    }

    fn has_cgroups(&self) -> Result<(), String> {
        let v2 = self.cgroups.join("cgroup.controllers").exists();
        let directory = if v2 { self.cgroups.clone() } else { self.cgroups.join("memory") };
        if !directory.join("cgroup.procs").exists() {
            return Err(format!("no cgroups are mounted at {}", self.cgroups.display()));
        }
        rustix::fs::access(&directory, Access::WRITE_OK).map_err(|error| {
            format!("cgroups cannot be made in {}: {}", directory.display(), io::Error::from(error))
        })
    }

    fn has_modules(&self) -> bool {
        self.has_overlays() && self.has_bridge_filter()
    }

    fn has_overlays(&self) -> bool {
        let known = fs::read_to_string(self.proc.join("filesystems")).unwrap_or_default();
        known.lines().any(|line| line.split_whitespace().last() == Some("overlay"))
    }

    fn has_bridge_filter(&self) -> bool {
        self.proc.join("sys/net/bridge/bridge-nf-call-iptables").exists()
    }
}

/// Modules are loaded on demand only for some of what uses them; containerd's service does this as well. Without the program or
/// the modules nothing happens.
fn load_modules() {
    let modprobe = |program: &str| {
        let mut command = Command::new(program);
        command.arg("-a").args(MODULES).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status()
    };
    if let Err(error) = modprobe("modprobe").or_else(|_| modprobe("/sbin/modprobe")) {
        tracing::debug!(%error, "kernel modules could not be loaded");
    }
}

/// Whether a directory, or the first above it that exists, is on an overlay.
fn on_overlay(directory: &Path) -> bool {
    let existing = directory.ancestors().find(|path| path.exists());
    let kind = existing.and_then(|path| rustix::fs::statfs(path).ok()).map(|found| found.f_type);
    kind.and_then(|kind| u64::try_from(kind).ok()) == Some(OVERLAY_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that has everything, but for what `change` takes away.
    fn reason(change: impl Fn(&Path)) -> String {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine { proc: root.path().join("proc"), cgroups: root.path().join("cgroup") };
        for (path, text) in [
            ("proc/self/status", "Name:\tkaji\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"),
            ("proc/filesystems", "nodev\tsysfs\nnodev\toverlay\n\text4\n"),
            ("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n"),
            ("cgroup/cgroup.controllers", "cpu memory\n"),
            ("cgroup/cgroup.procs", ""),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        change(root.path());
        let data_dir = machine.proc.join("data/of/a/cluster");
        let missing = machine.missing(&data_dir);
        assert_eq!(machine.can_run_containers(&data_dir).err(), missing.first().cloned());
        missing.join("; ").replace(&*root.path().to_string_lossy(), "")
    }

    #[test]
    fn says_what_is_missing() {
        let status =
            |text: &'static str| move |root: &Path| fs::write(root.join("proc/self/status"), text).unwrap();
        let all = [
            reason(status("Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n")),
            reason(status("Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n")),
            reason(status("Uid:\t0\t0\t0\t0\nCapEff:\t0000000000200000\n")),
            reason(|root| fs::remove_dir_all(root.join("cgroup")).unwrap()),
            reason(|root| {
                fs::remove_dir_all(root.join("cgroup")).unwrap();
                fs::remove_dir_all(root.join("proc")).unwrap();
            }),
        ];
        expect_test::expect![[r#"
            containers need root
            containers need CAP_SYS_ADMIN, which a container has only if it is privileged
            containers need CAP_NET_ADMIN, which a container has only if it is privileged
            no cgroups are mounted at /cgroup
            containers need root; no cgroups are mounted at /cgroup; the kernel has no overlay file systems (modprobe overlay); the kernel does not filter packets of bridges (modprobe br_netfilter)"#]]
        .assert_eq(&all.join("\n"));
    }
}
