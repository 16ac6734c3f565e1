//! What this machine has and lacks for clusters: disk, inodes, ports, limits, the clock, and what containers without root take.
//!
//! Invariant: nothing is changed; a port is bound for a moment at most.

use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::{
    fs,
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Less free disk than this does not hold a cluster's objects and images for long, in bytes.
const LITTLE_DISK: u64 = 2 << 30;
/// The kubelet's default thresholds: below them nodes have DiskPressure and pods are evicted, in percent.
const EVICTION_DISK: u64 = 15;
const EVICTION_INODES: u64 = 5;
/// Each connection and watched file is a descriptor.
const OPEN_FILES: u64 = 4096;
/// A few for each pod that watches files; distributions have 128.
const INOTIFY_INSTANCES: u64 = 512;
/// What limits of containers need of cgroups.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];
/// 2025-01-01: no clock that is set shows less, in seconds since 1970.
const OLDEST: u64 = 1_735_689_600;
/// By how much a clock may differ from another machine's that has written a file, in seconds.
const TOLERANCE: u64 = 60;

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// A cluster runs, but with less.
    Warning,
    /// A cluster does not run.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub subject: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// What was found.
    pub text: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    /// Something that is as it should be.
    pub fn good(subject: &'static str, text: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Good, text: text.into(), advice: None }
    }

    /// Something that a cluster does without.
    pub fn warning(subject: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Warning, text: text.into(), advice: Some(advice.into()) }
    }

    /// Something that a cluster needs.
    pub fn bad(subject: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Bad, text: text.into(), advice: Some(advice.into()) }
    }
}

/// What is looked at. A test has files of its own.
#[derive(Clone, Debug)]
pub struct Machine {
    /// `/proc`
    pub proc: PathBuf,
    /// `/etc`
    pub etc: PathBuf,
    /// Where cgroups are mounted.
    pub cgroups: PathBuf,
    /// Where programs are.
    pub programs: Vec<PathBuf>,
}

impl Machine {
    /// This machine; `search` is the variable `PATH`.
    pub fn this(search: Option<&std::ffi::OsStr>) -> Machine {
        let programs = search.map(|search| std::env::split_paths(search).collect()).unwrap_or_default();
        Machine { proc: "/proc".into(), etc: "/etc".into(), cgroups: "/sys/fs/cgroup".into(), programs }
    }

    fn number(&self, name: &str) -> Option<u64> {
        fs::read_to_string(self.proc.join(name)).ok()?.trim().parse().ok()
    }

    /// Whether a user without root can have a node: `user` is the name, `id` the number.
    pub fn without_root(&self, user: &str, id: u32) -> Vec<Finding> {
        const SUBJECT: &str = "containers without root";
        let forbidden = [
            ("sys/user/max_user_namespaces", 0, "sysctl user.max_user_namespaces=10000"),
            ("sys/kernel/unprivileged_userns_clone", 0, "sysctl kernel.unprivileged_userns_clone=1"),
            (
                "sys/kernel/apparmor_restrict_unprivileged_userns",
                1,
                "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
            ),
        ];
        let found = forbidden.iter().find(|(name, value, _)| self.number(name) == Some(*value));
        if let Some((name, _, advice)) = found {
            let text = format!("/proc/{name} forbids user namespaces");
            return vec![Finding::warning(
                SUBJECT,
                text,
                format!("{advice}, as root; until then nodes are simulated"),
            )];
        }
        let mut findings = vec![Finding::good(SUBJECT, "user namespaces are not forbidden")];
        let has_range = |file: &str| {
            let text = fs::read_to_string(self.etc.join(file)).unwrap_or_default();
            let id = id.to_string();
            text.lines().filter_map(|line| line.split(':').next()).any(|owner| owner == user || owner == id)
        };
        let has_programs = ["newuidmap", "newgidmap"]
            .iter()
            .all(|program| self.programs.iter().any(|directory| directory.join(program).is_file()));
        findings.push(match (has_range("subuid") && has_range("subgid"), has_programs) {
            (true, true) => Finding::good("users of containers", "a range of subordinate ids"),
            (false, _) => Finding::warning(
                "users of containers",
                format!("/etc/subuid or /etc/subgid has no range of {user}: containers have one user, root"),
                format!("usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}, as root"),
            ),
            (true, false) => Finding::warning(
                "users of containers",
                "newuidmap or newgidmap is missing: containers have one user, root",
                "install the package uidmap (Debian) or shadow-utils (Fedora)",
            ),
        });
        if !self.proc.join("sys/net/bridge/bridge-nf-call-iptables").exists() {
            findings.push(Finding::warning(
                "network of pods",
                "the kernel does not filter packets of bridges",
                "modprobe br_netfilter, as root; until then nodes are simulated",
            ));
        }
        findings.push(self.delegation());
        findings
    }

    /// Whether the caller's cgroup is its own: limits of containers need that.
    fn delegation(&self) -> Finding {
        const SUBJECT: &str = "limits without root";
        let own = fs::read_to_string(self.proc.join("self/cgroup")).unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).map(|path| self.cgroups.join(path));
        let writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
        match own {
            Some(own) if writable(&own) && writable(&own.join("cgroup.subtree_control")) => {
                Finding::good(SUBJECT, "the cgroup is delegated")
            }
            _ => Finding::warning(
                SUBJECT,
                "no cgroup of version 2 is delegated: containers run without limits",
                "systemd-run --user --scope -p Delegate=yes kaji up",
            ),
        }
    }

    /// Which cgroups there are, and whether they have what limits of containers need.
    pub fn cgroup_controllers(&self) -> Finding {
        const SUBJECT: &str = "cgroups";
        let Ok(present) = fs::read_to_string(self.cgroups.join("cgroup.controllers")) else {
            return match self.cgroups.join("memory").is_dir() {
                true => Finding::good(SUBJECT, "version 1; without root limits need version 2"),
                false => Finding::warning(
                    SUBJECT,
                    format!("none are mounted at {}", self.cgroups.display()),
                    "mount -t cgroup2 none /sys/fs/cgroup, as root; until then nodes are simulated",
                ),
            };
        };
        let present: Vec<&str> = present.split_whitespace().collect();
        let missing: Vec<&str> = CONTROLLERS.iter().copied().filter(|name| !present.contains(name)).collect();
        match missing.as_slice() {
            [] => Finding::good(SUBJECT, "version 2, with all controllers that are needed"),
            missing => Finding::warning(
                SUBJECT,
                format!("version 2, without {}: limits of these do not count", missing.join(", ")),
                "on the kernel's command line: cgroup_enable=memory cgroup_enable=cpuset (Raspberry Pi), or no cgroup_disable=",
            ),
        }
    }

    /// Limits that many pods reach.
    pub fn limits(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let files = getrlimit(Resource::Nofile).maximum;
        findings.push(match files {
            Some(most) if most < OPEN_FILES => Finding::warning(
                "open files",
                format!("a process may have {most}"),
                format!("ulimit -n {OPEN_FILES}, or LimitNOFILE= of the service"),
            ),
            Some(most) => Finding::good("open files", format!("a process may have {most}")),
            None => Finding::good("open files", "not limited"),
        });
        if let Some(instances) = self.number("sys/fs/inotify/max_user_instances") {
            let text = format!("a user may have {instances}");
            findings.push(match instances < INOTIFY_INSTANCES {
                true => Finding::warning(
                    "inotify instances",
                    format!("{text}: with many pods that watch files, watches fail"),
                    format!("sysctl fs.inotify.max_user_instances={INOTIFY_INSTANCES}, as root"),
                ),
                false => Finding::good("inotify instances", text),
            });
        }
        findings
    }
}

/// Whether containers of a node that is run by root are confined by AppArmor, where the kernel has it.
pub fn confinement(has_apparmor: bool, has_parser: bool) -> Option<Finding> {
    const SUBJECT: &str = "AppArmor";
    has_apparmor.then(|| match has_parser {
        true => Finding::good(SUBJECT, "containers get the profile kaji-default"),
        false => Finding::warning(
            SUBJECT,
            "apparmor_parser is missing: containers run without a profile",
            "install the package apparmor",
        ),
    })
}

/// The directory of clusters: whether it can be written, and what its file system has left.
pub fn disk(directory: &Path) -> Vec<Finding> {
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let shown = directory.display();
    let mut findings = Vec::new();
    findings.push(match rustix::fs::access(existing, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Finding::good("directory", format!("{shown} can be written")),
        Err(error) => Finding::bad(
            "directory",
            format!("{} cannot be written: {}", existing.display(), std::io::Error::from(error)),
            "--data-dir or KAJI_DATA_DIR names another one",
        ),
    });
    match rustix::fs::statvfs(existing) {
        Ok(found) => {
            findings.push(space(
                found.f_bavail.saturating_mul(found.f_frsize),
                found.f_blocks.saturating_mul(found.f_frsize),
            ));
            // Some file systems have no table of inodes.
            if found.f_files > 0 {
                findings.push(inodes(found.f_favail, found.f_files));
            }
        }
        Err(error) => findings.push(Finding::warning(
            "disk",
            format!("{}: {}", existing.display(), std::io::Error::from(error)),
            "the file system does not say what is free",
        )),
    }
    findings
}

fn percent(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 100 / u128::from(whole.max(1))).unwrap_or(100)
}

fn space(free: u64, all: u64) -> Finding {
    let (gib, percent) = (free >> 30, percent(free, all));
    let text = format!("{gib} GiB free, {percent} %");
    match (free < LITTLE_DISK, percent < EVICTION_DISK) {
        (true, _) => Finding::bad("disk", text, "free some, or choose another directory by --data-dir"),
        (false, true) => Finding::warning(
            "disk",
            format!(
                "{text}: below {EVICTION_DISK} % a real node has DiskPressure, removes images and evicts pods"
            ),
            "free some, or change evictionHard in the file of --kubelet-config",
        ),
        (false, false) => Finding::good("disk", text),
    }
}

fn inodes(free: u64, all: u64) -> Finding {
    let percent = percent(free, all);
    let text = format!("{percent} % free");
    match percent < EVICTION_INODES {
        true => Finding::warning(
            "inodes",
            format!("{text}: below {EVICTION_INODES} % a real node has DiskPressure"),
            "remove files that are not needed; images have many small ones",
        ),
        false => Finding::good("inodes", text),
    }
}

/// A port that a server takes. `owner` is the cluster that is known to have it.
pub fn port(subject: &'static str, port: u16, owner: Option<&str>) -> Finding {
    match (TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)), owner) {
        (Ok(_), _) => Finding::good(subject, format!("{port} is free")),
        (Err(_), Some(owner)) => Finding::good(subject, format!("{port} is the cluster {owner}'s")),
        (Err(error), None) if error.kind() == ErrorKind::AddrInUse => Finding::warning(
            subject,
            format!("{port} is in use by another program"),
            "a cluster with a --name takes a free one; --port chooses one",
        ),
        (Err(error), None) => {
            Finding::warning(subject, format!("{port}: {error}"), "--port chooses another one")
        }
    }
}

/// The clock, compared with the files that a cluster has written: certificates are not valid before they were made.
pub fn clock(directory: &Path, now: SystemTime) -> Finding {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let newest = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.metadata().ok()?.modified().ok())
        .map(seconds)
        .max();
    let now = seconds(now);
    let advice = "set it, for example by timedatectl set-ntp true";
    match newest {
        _ if now < OLDEST => Finding::bad("clock", "it is not set", advice),
        Some(newest) if newest > now + TOLERANCE => Finding::bad(
            "clock",
            format!("it is {} s behind what the cluster has written", newest - now),
            advice,
        ),
        _ => Finding::good("clock", "it is set"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn lines(findings: &[Finding]) -> String {
        let line = |f: &Finding| {
            format!("{:?} {}: {} ({})\n", f.verdict, f.subject, f.text, f.advice.as_deref().unwrap_or("-"))
        };
        findings.iter().map(line).collect()
    }

    #[test]
    fn judges_what_a_disk_has_left() {
        let gib = 1 << 30;
        let all = [
            space(50 * gib, 100 * gib),
            space(10 * gib, 100 * gib),
            space(gib, gib),
            inodes(1, 100),
            inodes(5, 100),
        ];
        expect_test::expect![[r#"
            Good disk: 50 GiB free, 50 % (-)
            Warning disk: 10 GiB free, 10 %: below 15 % a real node has DiskPressure, removes images and evicts pods (free some, or change evictionHard in the file of --kubelet-config)
            Bad disk: 1 GiB free, 100 % (free some, or choose another directory by --data-dir)
            Warning inodes: 1 % free: below 5 % a real node has DiskPressure (remove files that are not needed; images have many small ones)
            Good inodes: 5 % free (-)
        "#]]
        .assert_eq(&lines(&all));
    }

    #[test]
    fn says_what_a_user_lacks() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine {
            proc: root.path().join("proc"),
            etc: root.path().join("etc"),
            cgroups: root.path().join("cgroup"),
            programs: vec![root.path().join("bin")],
        };
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let mut found = lines(&machine.without_root("ann", 1000));
        write("etc/subuid", "bob:1:2\nann:100000:65536\n");
        write("etc/subgid", "1000:100000:65536\n");
        found += &lines(&machine.without_root("ann", 1000));
        write("bin/newuidmap", "");
        write("bin/newgidmap", "");
        found += &lines(&machine.without_root("ann", 1000));
        write("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n");
        write("proc/self/cgroup", "0::/user.slice\n");
        write("cgroup/user.slice/cgroup.subtree_control", "");
        found += &lines(&machine.without_root("ann", 1000));
        write("proc/sys/user/max_user_namespaces", "0\n");
        found += &lines(&machine.without_root("ann", 1000));
        expect_test::expect![[r#"
            Good containers without root: user namespaces are not forbidden (-)
            Warning users of containers: /etc/subuid or /etc/subgid has no range of ann: containers have one user, root (usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ann, as root)
            Warning network of pods: the kernel does not filter packets of bridges (modprobe br_netfilter, as root; until then nodes are simulated)
            Warning limits without root: no cgroup of version 2 is delegated: containers run without limits (systemd-run --user --scope -p Delegate=yes kaji up)
            Good containers without root: user namespaces are not forbidden (-)
            Warning users of containers: newuidmap or newgidmap is missing: containers have one user, root (install the package uidmap (Debian) or shadow-utils (Fedora))
            Warning network of pods: the kernel does not filter packets of bridges (modprobe br_netfilter, as root; until then nodes are simulated)
            Warning limits without root: no cgroup of version 2 is delegated: containers run without limits (systemd-run --user --scope -p Delegate=yes kaji up)
            Good containers without root: user namespaces are not forbidden (-)
            Good users of containers: a range of subordinate ids (-)
            Warning network of pods: the kernel does not filter packets of bridges (modprobe br_netfilter, as root; until then nodes are simulated)
            Warning limits without root: no cgroup of version 2 is delegated: containers run without limits (systemd-run --user --scope -p Delegate=yes kaji up)
            Good containers without root: user namespaces are not forbidden (-)
            Good users of containers: a range of subordinate ids (-)
            Good limits without root: the cgroup is delegated (-)
            Warning containers without root: /proc/sys/user/max_user_namespaces forbids user namespaces (sysctl user.max_user_namespaces=10000, as root; until then nodes are simulated)
        "#]]
        .assert_eq(&found);
    }

    #[test]
    fn says_which_cgroups_there_are() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = root.path().join("cgroup");
        let machine = Machine {
            proc: root.path().join("proc"),
            etc: root.path().join("etc"),
            cgroups: cgroups.clone(),
            programs: vec![],
        };
        let mut found = vec![machine.cgroup_controllers()];
        fs::create_dir_all(cgroups.join("memory")).unwrap();
        found.push(machine.cgroup_controllers());
        fs::write(cgroups.join("cgroup.controllers"), "cpu io pids\n").unwrap();
        found.push(machine.cgroup_controllers());
        fs::write(cgroups.join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        found.push(machine.cgroup_controllers());
        expect_test::expect![[r#"
            Warning cgroups: none are mounted at /cgroup (mount -t cgroup2 none /sys/fs/cgroup, as root; until then nodes are simulated)
            Good cgroups: version 1; without root limits need version 2 (-)
            Warning cgroups: version 2, without cpuset, memory: limits of these do not count (on the kernel's command line: cgroup_enable=memory cgroup_enable=cpuset (Raspberry Pi), or no cgroup_disable=)
            Good cgroups: version 2, with all controllers that are needed (-)
        "#]].assert_eq(&lines(&found).replace(&*root.path().to_string_lossy(), ""));
    }

    #[test]
    fn says_whether_containers_have_an_apparmor_profile() {
        let found = [confinement(true, true), confinement(true, false), confinement(false, true)];
        expect_test::expect![[r"
            Good AppArmor: containers get the profile kaji-default (-)
            Warning AppArmor: apparmor_parser is missing: containers run without a profile (install the package apparmor)
        "]]
        .assert_eq(&lines(&found.into_iter().flatten().collect::<Vec<_>>()));
    }

    #[test]
    fn compares_the_clock_with_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let now = SystemTime::now();
        assert_eq!(clock(dir.path(), now).verdict, Verdict::Good);
        assert_eq!(clock(dir.path(), now - Duration::from_secs(3600)).verdict, Verdict::Bad);
        assert_eq!(clock(&dir.path().join("missing"), UNIX_EPOCH).text, "it is not set");
    }

    #[test]
    fn a_port_with_a_listener_is_in_use() {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let taken = listener.local_addr().unwrap().port();
        assert_eq!(port("API server", taken, None).verdict, Verdict::Warning);
        assert_eq!(port("API server", taken, Some("a")).verdict, Verdict::Good);
        drop(listener);
        assert_eq!(port("API server", taken, None).verdict, Verdict::Good);
    }
}
