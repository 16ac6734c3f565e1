//! Which sysctls pods may set: safe ones, and those that an administrator allows. Upstream's `pkg/kubelet/sysctl`.
//!
//! Pure. Invariant: only sysctls of namespaces are allowed, and none in a namespace that is the node's.

use super::admission::PodRejection;
use super::core::Pod;
use super::model;
use std::collections::BTreeSet;

/// Sysctls of namespaces of the pod that change nothing for other pods, on the kernels that this node runs on.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
/// Names, and what patterns begin with, of the ipc namespace's.
const OF_IPC: [&str; 10] = [
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
    "kernel.shm",
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.msg",
];
/// Upstream's bound.
const MOST_CHARACTERS: usize = 253;
/// Upstream's pattern, which its message shows.
const PATTERN: &str = "([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*([a-z0-9]([-_a-z0-9]*)?)?\\*?";

/// The sysctls that pods may set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedSysctls {
    names: BTreeSet<String>,
    /// Without their `*`.
    prefixes: BTreeSet<String>,
}

impl Default for AllowedSysctls {
    fn default() -> AllowedSysctls {
        AllowedSysctls { names: SAFE.map(str::to_owned).into(), prefixes: BTreeSet::new() }
    }
}

/// The namespace that a sysctl, or all that begin so, are of; none for those of the machine.
fn namespace(name: &str) -> Option<&'static str> {
    if OF_IPC.contains(&name) || name.starts_with("fs.mqueue.") {
        return Some("IPC");
    }
    name.starts_with("net.").then_some("Net")
}

/// A name with dots between its parts. If its first separator is a slash, there are dots within parts.
fn dotted(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name.as_bytes()[at] == b'.') {
        return name.to_owned();
    }
    let swapped = name.chars().map(|c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    });
    swapped.collect()
}

/// Whether a text has the form of [`PATTERN`].
fn is_pattern(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let part = |part: &str, last: bool| {
        part.starts_with(plain)
            && part.chars().all(|c| plain(c) || matches!(c, '-' | '_'))
            && (last || part.ends_with(plain))
    };
    let (body, any) = text.strip_suffix('*').map_or((text, false), |body| (body, true));
    let mut parts: Vec<&str> = body.split(['.', '/']).collect();
    let last = parts.pop().unwrap_or_default();
    text.len() <= MOST_CHARACTERS
        && !text.is_empty()
        && (if last.is_empty() { any } else { part(last, true) })
        && parts.iter().all(|p| part(p, false))
}

impl AllowedSysctls {
    /// The safe ones, and these: names, or patterns that end with `*`.
    ///
    /// # Errors
    /// Upstream's texts: what is no name, and what is of no namespace.
    pub fn with(patterns: &[String]) -> Result<AllowedSysctls, String> {
        let mut allowed = AllowedSysctls::default();
        for text in patterns {
            if !is_pattern(text) {
                return Err(format!(
                    "sysctl {text:?} must have at most {MOST_CHARACTERS} characters and match regex ^{PATTERN}$"
                ));
            }
            let name = dotted(text);
            let (name, all) = name.strip_suffix('*').map_or((name.as_str(), false), |prefix| (prefix, true));
            // Of a pattern, what comes before its last dot or star.
            if namespace(name).or_else(|| namespace(name.trim_end_matches('.'))).is_none() {
                return Err(format!("the sysctls {name:?} are not known to be namespaced"));
            }
            let known = if all { &mut allowed.prefixes } else { &mut allowed.names };
            known.insert(name.to_owned());
        }
        Ok(allowed)
    }

    fn allows(&self, name: &str) -> bool {
        self.names.contains(name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// Whether a pod sets allowed ones only.
    ///
    /// # Errors
    /// The refusal.
    pub fn check(&self, pod: &Pod) -> Result<(), PodRejection> {
        let spec = model::spec(pod);
        let listed = spec.security_context.as_ref().and_then(|context| context.sysctls.as_ref());
        for sysctl in listed.into_iter().flatten() {
            let name = dotted(&sysctl.name);
            let (space, of_node) = if name.starts_with("net.") {
                ("Net", model::host_network(pod))
            } else {
                ("IPC", spec.host_ipc.unwrap_or(false))
            };
            let why = match (self.allows(&name), of_node) {
                (false, _) => "not allowlisted".to_owned(),
                (true, true) => format!("not allowed with host {space} enabled"),
                (true, false) => continue,
            };
            let message = format!("forbidden sysctl: {name:?} {why}");
            return Err(PodRejection { reason: "SysctlForbidden".to_owned(), message });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn checked(allowed: &AllowedSysctls, name: &str, mut spec: Value) -> String {
        spec["containers"] = json!([]);
        spec["securityContext"] = json!({"sysctls": [{"name": name, "value": "1"}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let refused = allowed.check(&pod).err();
        refused.map_or_else(|| "admitted".to_owned(), |r| format!("{}: {}", r.reason, r.message))
    }

    #[test]
    fn sysctls_that_are_not_safe_are_refused_unless_they_are_allowed() {
        let safe = AllowedSysctls::default();
        let more = ["kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/*"].map(str::to_owned);
        let more = AllowedSysctls::with(&more).unwrap();
        let shown = [
            checked(&safe, "kernel.shm_rmid_forced", json!({})),
            checked(&safe, "kernel/shm_rmid_forced", json!({})),
            checked(&safe, "net/ipv4/tcp_rmem", json!({"hostIPC": true})),
            checked(&safe, "kernel.msgmax", json!({})),
            checked(&safe, "net/core/somaxconn", json!({})),
            checked(&safe, "kernel.shm_rmid_forced", json!({"hostIPC": true})),
            checked(&safe, "net.ipv4.tcp_rmem", json!({"hostNetwork": true})),
            checked(&more, "kernel.msgmax", json!({})),
            checked(&more, "kernel.msgmax", json!({"hostIPC": true})),
            checked(&more, "net.core.somaxconn", json!({})),
            checked(&more, "net/ipv4/conf/eth0.1/forwarding", json!({})),
            checked(&more, "net.core.rmem_max", json!({})),
        ];
        expect_test::expect![[r#"
            admitted
            admitted
            admitted
            SysctlForbidden: forbidden sysctl: "kernel.msgmax" not allowlisted
            SysctlForbidden: forbidden sysctl: "net.core.somaxconn" not allowlisted
            SysctlForbidden: forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host IPC enabled
            SysctlForbidden: forbidden sysctl: "net.ipv4.tcp_rmem" not allowed with host Net enabled
            admitted
            SysctlForbidden: forbidden sysctl: "kernel.msgmax" not allowed with host IPC enabled
            admitted
            admitted
            SysctlForbidden: forbidden sysctl: "net.core.rmem_max" not allowlisted"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn only_sysctls_of_namespaces_can_be_allowed() {
        let wrong =
            ["vm.swappiness", "kernel.*", "Net.x", "net", "", "*", "net.*", "fs.mqueue.*", "kernel.shm*"];
        let shown = wrong.map(|text| match AllowedSysctls::with(&[text.to_owned()]) {
            Ok(_) => format!("{text}: allowed"),
            Err(error) => error,
        });
        expect_test::expect![[r#"
            the sysctls "vm.swappiness" are not known to be namespaced
            the sysctls "kernel." are not known to be namespaced
            sysctl "Net.x" must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9]([-_a-z0-9]*)?)?\*?$
            the sysctls "net" are not known to be namespaced
            sysctl "" must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9]([-_a-z0-9]*)?)?\*?$
            the sysctls "" are not known to be namespaced
            net.*: allowed
            fs.mqueue.*: allowed
            kernel.shm*: allowed"#]].assert_eq(&shown.join("\n"));
    }
}
