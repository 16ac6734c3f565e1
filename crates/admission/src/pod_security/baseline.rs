//! The checks of the baseline level, against known privilege escalations.

use super::{
    checks::{Found, all, bad_profiles, containers_text, context, name, own_users, plural, quoted, setters},
    policy::Version,
};
use kaji_meta::{object, text::quote};
use serde_json::Value;
use std::collections::BTreeSet;

/// Containers for which something holds.
fn which(pod: &Value, bad: impl Fn(&Value) -> bool) -> Vec<&str> {
    all(pod).filter(|c| bad(c)).map(name).collect()
}

pub(super) fn app_armor(pod: &Value, _: Version) -> Option<Found> {
    const PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
    let (whole, names, values) = bad_profiles(pod, "appArmorProfile");
    let allowed = |v: &str| v.is_empty() || v == "runtime/default" || v.starts_with("localhost/");
    let mut annotations: Vec<String> = object::annotations(pod)
        .filter(|(k, v)| k.starts_with(PREFIX) && !allowed(v))
        .map(|(k, v)| format!("{k}={}", quote(v)))
        .collect();
    annotations.sort();
    let mut setters_text: Vec<String> = setters(whole, &names).into_iter().collect();
    let values: Vec<&str> = values.into_iter().chain(annotations.iter().map(String::as_str)).collect();
    if !annotations.is_empty() {
        setters_text.push(plural("annotation", "annotations", annotations.len()).to_owned());
    }
    (!setters_text.is_empty()).then(|| Found {
        reason: if values.len() == 1 { "forbidden AppArmor profile" } else { "forbidden AppArmor profiles" },
        detail: format!(
            "{} must not set AppArmor profile type to {}",
            setters_text.join(" and "),
            quoted(values)
        ),
    })
}

pub(super) fn capabilities(pod: &Value, _: Version) -> Option<Found> {
    const DEFAULT: [&str; 13] = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    added_capabilities(pod, &DEFAULT).map(|detail| Found { reason: "non-default capabilities", detail })
}

/// The containers that add capabilities that are not among the allowed ones, in words.
pub(super) fn added_capabilities(pod: &Value, allowed: &[&str]) -> Option<String> {
    let (mut names, mut bad) = (vec![], BTreeSet::new());
    for container in all(pod) {
        let added = object::strs_at(container, &["securityContext", "capabilities", "add"]);
        let before = bad.len();
        let extra: Vec<&str> = added.filter(|c| !allowed.contains(c)).collect();
        bad.extend(extra.iter().copied());
        if !extra.is_empty() || bad.len() > before {
            names.push(name(container));
        }
    }
    (!names.is_empty()).then(|| {
        format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers_text(&names),
            quoted(bad)
        )
    })
}

pub(super) fn host_namespaces(pod: &Value, _: Version) -> Option<Found> {
    let set = |f: &&str| object::bool_at(pod, &["spec", f]) == Some(true);
    let fields: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|f| set(f))
        .map(|f| format!("{f}=true"))
        .collect();
    (!fields.is_empty()).then(|| Found { reason: "host namespaces", detail: fields.join(", ") })
}

pub(super) fn host_path_volumes(pod: &Value, _: Version) -> Option<Found> {
    let volumes = object::arr_at(pod, &["spec", "volumes"]);
    let names: Vec<&str> = volumes.iter().filter(|v| v["hostPath"].is_object()).map(name).collect();
    (!names.is_empty()).then(|| Found {
        reason: "hostPath volumes",
        detail: format!("{} {}", plural("volume", "volumes", names.len()), quoted(&names)),
    })
}

pub(super) fn host_ports(pod: &Value, _: Version) -> Option<Found> {
    let (mut names, mut ports) = (vec![], BTreeSet::new());
    for container in all(pod) {
        let bad = object::arr_at(container, &["ports"]).iter().filter_map(|p| p["hostPort"].as_i64());
        let bad: Vec<String> = bad.filter(|p| *p != 0).map(|p| p.to_string()).collect();
        if !bad.is_empty() {
            names.push(name(container));
        }
        ports.extend(bad);
    }
    (!names.is_empty()).then(|| Found {
        reason: "hostPort",
        detail: format!(
            "{} {} {} {}",
            containers_text(&names),
            plural("uses", "use", names.len()),
            plural("hostPort", "hostPorts", ports.len()),
            ports.into_iter().collect::<Vec<_>>().join(", ")
        ),
    })
}

pub(super) fn host_probes(pod: &Value, version: Version) -> Option<Found> {
    if !version.since(34) {
        return None;
    }
    const HANDLERS: [&[&str]; 5] = [
        &["livenessProbe"],
        &["readinessProbe"],
        &["startupProbe"],
        &["lifecycle", "postStart"],
        &["lifecycle", "preStop"],
    ];
    let (mut names, mut hosts) = (BTreeSet::new(), BTreeSet::new());
    for container in all(pod) {
        for handler in HANDLERS.iter().filter_map(|path| object::at(container, path)) {
            for host in ["httpGet", "tcpSocket"].map(|way| object::str_at(handler, &[way, "host"])) {
                if !host.is_empty() {
                    names.insert(name(container));
                    hosts.insert(host);
                }
            }
        }
    }
    let names: Vec<&str> = names.into_iter().collect();
    (!names.is_empty()).then(|| Found {
        reason: "probe or lifecycle host",
        detail: format!(
            "{} {} {} {}",
            containers_text(&names),
            plural("uses", "use", names.len()),
            plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()),
            quoted(hosts)
        ),
    })
}

pub(super) fn privileged(pod: &Value, _: Version) -> Option<Found> {
    let names = which(pod, |c| context(c, &["privileged"]) == &Value::Bool(true));
    (!names.is_empty()).then(|| Found {
        reason: "privileged",
        detail: format!("{} must not set securityContext.privileged=true", containers_text(&names)),
    })
}

pub(super) fn proc_mount(pod: &Value, version: Version) -> Option<Found> {
    if version.since(35) && own_users(pod) { None } else { unusual_proc_mount(pod) }
}

/// Containers with an unmasked `/proc`.
pub(super) fn unusual_proc_mount(pod: &Value) -> Option<Found> {
    let bad = |c: &Value| context(c, &["procMount"]).as_str().filter(|p| *p != "Default").map(str::to_owned);
    let names = which(pod, |c| bad(c).is_some());
    let types: BTreeSet<String> = all(pod).filter_map(bad).collect();
    (!names.is_empty()).then(|| Found {
        reason: "procMount",
        detail: format!(
            "{} must not set securityContext.procMount to {}",
            containers_text(&names),
            quoted(types)
        ),
    })
}

pub(super) fn se_linux(pod: &Value, version: Version) -> Option<Found> {
    let engine = version.since(31);
    let known = |ty: &str| {
        matches!(ty, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || engine && ty == "container_engine_t"
    };
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let mut bad = |of: &Value| {
        let text =
            |field: &str| context(of, &["seLinuxOptions", field]).as_str().unwrap_or_default().to_owned();
        let (ty, has_user, has_role) = (text("type"), !text("user").is_empty(), !text("role").is_empty());
        user |= has_user;
        role |= has_role;
        let wrong = !known(&ty);
        if wrong {
            types.insert(ty);
        }
        wrong || has_user || has_role
    };
    let whole = bad(pod);
    let names: Vec<&str> = all(pod).filter(|c| bad(c)).map(name).collect();
    let setters_text = setters(whole, &names)?;
    let mut what = vec![];
    if !types.is_empty() {
        what.push(format!("{} {}", plural("type", "types", types.len()), quoted(types)));
    }
    what.extend(user.then(|| "user may not be set".to_owned()));
    what.extend(role.then(|| "role may not be set".to_owned()));
    let detail = format!("{setters_text} set forbidden securityContext.seLinuxOptions: {}", what.join("; "));
    Some(Found { reason: "seLinuxOptions", detail })
}

pub(super) fn seccomp(pod: &Value, version: Version) -> Option<Found> {
    if !version.since(19) {
        return seccomp_annotations(pod);
    }
    let (whole, names, values) = bad_profiles(pod, "seccompProfile");
    let setters_text = setters(whole, &names)?;
    let detail =
        format!("{setters_text} must not set securityContext.seccompProfile.type to {}", quoted(values));
    Some(Found { reason: "seccompProfile", detail })
}

/// What there was before the fields.
fn seccomp_annotations(pod: &Value) -> Option<Found> {
    const POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    let keys = all(pod).map(|c| format!("container.seccomp.security.alpha.kubernetes.io/{}", name(c)));
    let allowed = |v: &str| matches!(v, "runtime/default" | "docker/default") || v.starts_with("localhost/");
    let bad = |key: String| {
        let value = object::annotation(pod, &key).filter(|v| !allowed(v))?;
        Some(format!("{key}={}", quote(value)))
    };
    let forbidden: BTreeSet<String> = [POD.to_owned()].into_iter().chain(keys).filter_map(bad).collect();
    (!forbidden.is_empty()).then(|| Found {
        reason: "seccompProfile",
        detail: format!(
            "forbidden {} {}",
            plural("annotation", "annotations", forbidden.len()),
            forbidden.into_iter().collect::<Vec<_>>().join(", ")
        ),
    })
}

pub(super) fn sysctls(pod: &Value, version: Version) -> Option<Found> {
    /// Safe ones, with the version since which they are.
    const SAFE: [(&str, u32); 12] = [
        ("kernel.shm_rmid_forced", 0),
        ("net.ipv4.ip_local_port_range", 0),
        ("net.ipv4.tcp_syncookies", 0),
        ("net.ipv4.ping_group_range", 0),
        ("net.ipv4.ip_unprivileged_port_start", 0),
        ("net.ipv4.ip_local_reserved_ports", 27),
        ("net.ipv4.tcp_keepalive_time", 29),
        ("net.ipv4.tcp_fin_timeout", 29),
        ("net.ipv4.tcp_keepalive_intvl", 29),
        ("net.ipv4.tcp_keepalive_probes", 29),
        ("net.ipv4.tcp_rmem", 32),
        ("net.ipv4.tcp_wmem", 32),
    ];
    let safe = |name: &str| SAFE.iter().any(|(known, minor)| *known == name && version.since(*minor));
    let all = context(pod, &["sysctls"]).as_array().map(Vec::as_slice).unwrap_or_default();
    let bad: Vec<&str> = all.iter().map(name).filter(|n| !safe(n)).collect();
    (!bad.is_empty()).then(|| Found { reason: "forbidden sysctls", detail: bad.join(", ") })
}

pub(super) fn windows_host_process(pod: &Value, _: Version) -> Option<Found> {
    let bad = |of: &Value| context(of, &["windowsOptions", "hostProcess"]) == &Value::Bool(true);
    let setters_text = setters(bad(pod), &which(pod, bad))?;
    let detail = format!("{setters_text} must not set securityContext.windowsOptions.hostProcess=true");
    Some(Found { reason: "hostProcess", detail })
}
