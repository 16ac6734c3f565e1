//! Security contexts of pods and containers, sysctls, operating systems.

use super::{Cx, paths};
use crate::{
    core::pods::each_container,
    shared::{Fields, check},
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use regex::Regex;
use serde_json::Value;
use std::{collections::HashSet, sync::LazyLock};

pub(super) fn pod_security_context(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    let Some(sc) = cx.spec.get_field("securityContext") else { return };
    let id = |errs: &mut ErrorList, path: Path, n: i64| {
        check::each(errs, &path, n, validation::is_valid_group_id(n));
    };
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        if let Some(n) = sc.opt_int(field) {
            id(errs, path.child(field), n);
        }
    }
    for (i, n) in sc.list("supplementalGroups").iter().enumerate() {
        id(errs, path.child("supplementalGroups").index(i), n.as_i64().unwrap_or(0));
    }
    if cx.spec.flag("shareProcessNamespace") && cx.spec.flag("hostPID") {
        let text = "ShareProcessNamespace and HostPID cannot both be enabled";
        errs.push(Error::invalid(&path.child("shareProcessNamespace"), true, text));
    }
    sysctls(errs, cx, &path.child("sysctls"), sc);
    if let Some(p) = sc.opt_text("fsGroupChangePolicy") {
        check::one_of(errs, &path.child("fsGroupChangePolicy"), p, &["Always", "OnRootMismatch"]);
    }
    seccomp(errs, &path.child("seccompProfile"), sc.at("seccompProfile"));
    windows_options(errs, &path.child("windowsOptions"), sc.at("windowsOptions"));
    app_armor(errs, &path.child("appArmorProfile"), sc.at("appArmorProfile"));
    if let Some(p) = sc.opt_text("supplementalGroupsPolicy") {
        check::one_of(errs, &path.child("supplementalGroupsPolicy"), p, &["Merge", "Strict"]);
    }
    if let Some(p) = sc.opt_text("seLinuxChangePolicy") {
        check::one_of(errs, &path.child("seLinuxChangePolicy"), p, &["MountOption", "Recursive"]);
    }
}

pub(super) fn container(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, c: &Value) {
    let Some(sc) = c.get_field("securityContext") else { return };
    for field in ["runAsUser", "runAsGroup"] {
        if let Some(n) = sc.opt_int(field) {
            check::each(errs, &path.child(field), n, validation::is_valid_user_id(n));
        }
    }
    if let Some(mount) = sc.opt_text("procMount") {
        let path = path.child("procMount");
        check::one_of(errs, &path, mount, &["Default", "Unmasked"]);
        if cx.host_users && mount == "Unmasked" {
            errs.push(Error::invalid(&path, mount, "`hostUsers` must be false to use `Unmasked`"));
        }
    }
    seccomp(errs, &path.child("seccompProfile"), sc.at("seccompProfile"));
    if sc.opt_flag("allowPrivilegeEscalation") == Some(false) {
        if sc.flag("privileged") {
            let text = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errs.push(check::invalid_struct(path, "io.k8s.api.core.v1.SecurityContext", sc, text));
        }
        for _ in sc.at("capabilities").strings("add").filter(|c| *c == "CAP_SYS_ADMIN") {
            let text = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errs.push(check::invalid_struct(path, "io.k8s.api.core.v1.SecurityContext", sc, text));
        }
    }
    windows_options(errs, &path.child("windowsOptions"), sc.at("windowsOptions"));
    app_armor(errs, &path.child("appArmorProfile"), sc.at("appArmorProfile"));
}

/// The kernel namespace of a sysctl.
fn sysctl_namespace(name: &str) -> &'static str {
    // With a slash first, slashes separate and dots are part of a segment.
    let name = match name.find(['.', '/']) {
        Some(i) if name.as_bytes()[i] == b'/' => name
            .chars()
            .map(|c| {
                if c == '.' {
                    '/'
                } else if c == '/' {
                    '.'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    };
    let name = name.split('*').next().unwrap_or("");
    match name {
        "kernel.sem"
        | "kernel.shm"
        | "kernel.shmall"
        | "kernel.shmmax"
        | "kernel.shmmni"
        | "kernel.shm_rmid_forced"
        | "kernel.msg"
        | "kernel.msgmax"
        | "kernel.msgmnb"
        | "kernel.msgmni" => "ipc",
        n if n.starts_with("fs.mqueue.") => "ipc",
        n if n.starts_with("net.") => "net",
        _ => "",
    }
}

fn sysctls(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, sc: &Value) {
    let mut seen = HashSet::new();
    for (i, s) in sc.list("sysctls").iter().enumerate() {
        let path = path.index(i).child("name");
        let name = s.text("name");
        if name.is_empty() {
            errs.push(Error::required(&path, ""));
        } else if !paths::is_sysctl_name(name) {
            let text = format!("must have at most 253 characters and match regex {}", paths::SYSCTL);
            errs.push(Error::invalid(&path, name, text));
        } else if seen.contains(name) {
            errs.push(Error::duplicate(&path, name));
        }
        seen.insert(name);
        match sysctl_namespace(name) {
            "net" if cx.spec.flag("hostNetwork") => {
                errs.push(Error::invalid(&path, name, "may not be specified when 'hostNetwork' is true"));
            }
            "ipc" if cx.spec.flag("hostIPC") => {
                errs.push(Error::invalid(&path, name, "may not be specified when 'hostIPC' is true"));
            }
            _ => {}
        }
    }
}

fn seccomp(errs: &mut ErrorList, path: &Path, p: &Value) {
    if p.is_null() {
        return;
    }
    let ty = p.text("type");
    if ty.is_empty() {
        errs.push(Error::required(&path.child("type"), "type is required when seccompProfile is set"));
    } else {
        check::one_of(errs, &path.child("type"), ty, &["Localhost", "RuntimeDefault", "Unconfined"]);
    }
    let local = path.child("localhostProfile");
    match (ty, p.opt_text("localhostProfile")) {
        ("Localhost", None) => {
            errs.push(Error::required(&local, "must be set when seccomp type is Localhost"))
        }
        ("Localhost", Some(f)) => paths::local_descending(errs, &local, f),
        (_, Some(_)) => {
            let text = "can only be set when seccomp type is Localhost";
            errs.push(check::invalid_struct(&local, "io.k8s.api.core.v1.SeccompProfile", p, text));
        }
        (_, None) => {}
    }
}

fn app_armor(errs: &mut ErrorList, path: &Path, p: &Value) {
    if p.is_null() {
        return;
    }
    let local = path.child("localhostProfile");
    let profile = p.opt_text("localhostProfile");
    match p.text("type") {
        "Localhost" => match profile {
            None => errs.push(Error::required(&local, "must be set when AppArmor type is Localhost")),
            Some(f) => {
                if f.trim() != f {
                    errs.push(Error::invalid(&local, f, "must not be padded with whitespace"));
                } else if f.is_empty() {
                    errs.push(Error::required(&local, "must be set when AppArmor type is Localhost"));
                }
                if f.len() > 4095 {
                    errs.push(Error::too_long(&local, "", 4095));
                }
            }
        },
        "RuntimeDefault" | "Unconfined" => {
            if let Some(f) = profile {
                errs.push(Error::invalid(&local, f, "can only be set when AppArmor type is Localhost"));
            }
        }
        "" => errs.push(Error::required(&path.child("type"), "type is required when appArmorProfile is set")),
        other => {
            let allowed = ["Localhost", "RuntimeDefault", "Unconfined"];
            errs.push(Error::not_supported(&path.child("type"), other, &allowed));
        }
    }
}

fn windows_options(errs: &mut ErrorList, path: &Path, o: &Value) {
    if let Some(name) = o.opt_text("gmsaCredentialSpecName") {
        check::dns_subdomain(errs, &path.child("gmsaCredentialSpecName"), name);
    }
    if let Some(spec) = o.opt_text("gmsaCredentialSpec") {
        let path = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            errs.push(Error::invalid(&path, spec, "gmsaCredentialSpec cannot be an empty string"));
        } else if spec.len() > 64 * 1024 {
            errs.push(Error::invalid(&path, spec, "gmsaCredentialSpec size must be under 64 KiB"));
        }
    }
    if let Some(user) = o.opt_text("runAsUserName") {
        let path = path.child("runAsUserName");
        errs.extend(windows_user(user).into_iter().map(|m| Error::invalid(&path, user, m)));
    }
}

#[allow(clippy::expect_used)]
static NETBIOS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"^[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}$"#).expect("a constant pattern"));
#[allow(clippy::expect_used)]
static DNS: LazyLock<Regex> = LazyLock::new(|| {
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    Regex::new(&format!(r"^{label}(?:\.{label})*$")).expect("a constant pattern")
});

/// What is wrong with a Windows user name, `[domain\]user`.
fn windows_user(name: &str) -> Vec<&'static str> {
    if name.is_empty() {
        return vec!["runAsUserName cannot be an empty string"];
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        return vec!["runAsUserName cannot contain control characters"];
    }
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts[..] {
        [user] => (None, user),
        [domain, user] => (Some(domain), user),
        _ => return vec!["runAsUserName cannot contain more than one backslash"],
    };
    let mut out = vec![];
    if domain.is_some_and(|d| d.len() >= 256) {
        out.push("runAsUserName's Domain length must be under 256 characters");
    }
    if domain.is_some_and(|d| !NETBIOS.is_match(d) && !DNS.is_match(d)) {
        out.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        out.push("runAsUserName's User cannot be empty");
    } else if user.len() > 104 {
        out.push("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        out.push("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        out.push("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
    out
}

/// HostProcess containers: all of a pod's or none, and only on the host's network.
pub(super) fn windows_host_process(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    let of = |holder: &Value| holder.at("securityContext").at("windowsOptions").opt_flag("hostProcess");
    let pod = of(cx.spec.value());
    let (mut all, mut host) = (0, 0);
    each_container(cx.spec, path, |c, path| {
        all += 1;
        let own = of(c);
        if let (Some(p), Some(o)) = (pod, own)
            && p != o
        {
            let path = path.child("securityContext").child("windowsOptions").child("hostProcess");
            let text = format!("pod hostProcess value must be identical if both are specified, was {p}");
            errs.push(Error::invalid(&path, o, text));
        }
        if own.or(pod) == Some(true) {
            host += 1;
        }
    });
    if host == 0 {
        return;
    }
    if host != all {
        let text =
            "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errs.push(Error::invalid(path, "", text));
    }
    if !cx.spec.flag("hostNetwork") {
        let text = "hostNetwork must be true if pod contains any hostProcess containers";
        errs.push(Error::invalid(&path.child("hostNetwork"), false, text));
    }
}

/// What a pod with a user namespace may not share with the host.
pub(super) fn host_users(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    if cx.host_users {
        return;
    }
    for (flag, name) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if cx.spec.flag(flag) {
            errs.push(Error::forbidden(&path.child(name), "when `hostUsers` is false"));
        }
    }
    each_container(cx.spec, path, |c, path| {
        if !c.list("volumeDevices").is_empty() {
            errs.push(Error::forbidden(&path.child("volumeDevices"), "when `hostUsers` is false"));
        }
    });
}

/// Fields that a Windows pod's security context may not set.
const NOT_WINDOWS_POD: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
/// Fields that a Windows container's security context may not set.
const NOT_WINDOWS_CONTAINER: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

pub(super) fn operating_system(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    match cx.os {
        None => {}
        Some("") => errs.push(Error::required(&path.child("os").child("name"), "")),
        Some("linux") => linux(errs, cx, path),
        Some("windows") => windows(errs, cx, path),
        Some(other) => errs.push(Error::not_supported(&path.child("os"), other, &["linux", "windows"])),
    }
}

fn linux(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    let mut refuse = |holder: &Value, path: &Path| {
        if holder.at("securityContext").has("windowsOptions") {
            let path = path.child("securityContext").child("windowsOptions");
            errs.push(Error::forbidden(&path, "windows options cannot be set for a linux pod"));
        }
    };
    refuse(cx.spec.value(), path);
    each_container(cx.spec, path, |c, path| refuse(c, path));
}

fn windows(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    let text = "cannot be set for a windows pod";
    let sc = cx.spec.at("securityContext");
    for f in NOT_WINDOWS_POD {
        if sc.has(f) {
            errs.push(Error::forbidden(&path.child("securityContext").child(f), text));
        }
    }
    for f in ["hostUsers", "shareProcessNamespace"] {
        if cx.spec.has(f) {
            errs.push(Error::forbidden(&path.child(f), text));
        }
    }
    for f in ["hostPID", "hostIPC"] {
        if cx.spec.flag(f) {
            errs.push(Error::forbidden(&path.child(f), text));
        }
    }
    each_container(cx.spec, path, |c, path| {
        for f in NOT_WINDOWS_CONTAINER {
            if c.at("securityContext").has(f) {
                errs.push(Error::forbidden(&path.child("securityContext").child(f), text));
            }
        }
    });
}
