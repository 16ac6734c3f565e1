//! Capabilities of containers.
//!
//! Invariant: a container never gets one that this process does not have; asking for such a one by name is refused.

use crate::records::FinalCapabilities;
use kaji_containers::{ContainerSecurity, RuntimeError};

/// What every container has, as containerd's default.
pub const DEFAULT: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// The capabilities of a container, sorted. Without `device_rules` of its cgroup, `CAP_MKNOD` would open the node's devices:
/// it is not a default then.
///
/// # Errors
/// [`RuntimeError::InvalidArgument`] for names that are not known or cannot be given.
pub fn of(
    security: &ContainerSecurity,
    available: &[String],
    device_rules: bool,
) -> Result<FinalCapabilities, RuntimeError> {
    let changes = &security.capabilities;
    if security.privileged {
        return Ok(FinalCapabilities { bounding: available.to_vec(), ambient: vec![] });
    }
    let is_all = |name: &String| name.eq_ignore_ascii_case("ALL");
    let safe = |name: &&&str| device_rules || **name != "CAP_MKNOD";
    let default =
        || DEFAULT.iter().filter(safe).map(|name| (*name).to_owned()).filter(|name| available.contains(name));
    let mut bounding: Vec<String> =
        if changes.add.iter().any(is_all) { available.to_vec() } else { default().collect() };
    if changes.drop.iter().any(is_all) {
        bounding.clear();
    }
    let ambient = named(&changes.add_ambient, available)?;
    bounding.extend(named(&changes.add, available)?);
    bounding.extend(ambient.iter().cloned());
    for name in &changes.drop {
        let dropped = full_name(name);
        bounding.retain(|name| *name != dropped);
    }
    bounding.sort();
    bounding.dedup();
    Ok(FinalCapabilities { bounding, ambient })
}

fn named(names: &[String], available: &[String]) -> Result<Vec<String>, RuntimeError> {
    let given = |name: &String| {
        let full = full_name(name);
        if available.contains(&full) {
            Ok(full)
        } else {
            Err(RuntimeError::InvalidArgument(format!(
                "capability {full:?} is unknown or not available on this node"
            )))
        }
    };
    names.iter().filter(|name| !name.eq_ignore_ascii_case("ALL")).map(given).collect()
}

fn full_name(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    if name.starts_with("CAP_") { name } else { format!("CAP_{name}") }
}

/// Those of this process.
///
/// # Errors
/// When the kernel does not say.
pub fn available() -> Result<Vec<String>, RuntimeError> {
    let read = caps::read(None, caps::CapSet::Permitted)
        .map_err(|error| RuntimeError::Internal(format!("reading capabilities: {error}")))?;
    let bounded = |capability: &caps::Capability| {
        caps::has_cap(None, caps::CapSet::Bounding, *capability).unwrap_or(false)
    };
    let mut names: Vec<String> = read.into_iter().filter(bounded).map(|c| c.to_string()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_nodes_can_be_made_only_where_rules_restrict_them() {
        let available: Vec<String> = DEFAULT.iter().map(|name| (*name).to_owned()).collect();
        let has = |security: &ContainerSecurity, device_rules| {
            let all = of(security, &available, device_rules).unwrap().bounding;
            (all.len(), all.iter().any(|name| name == "CAP_MKNOD"))
        };
        let mut security = ContainerSecurity::default();
        assert_eq!(has(&security, true), (14, true));
        assert_eq!(has(&security, false), (13, false));
        security.capabilities.add = vec!["MKNOD".into()];
        assert_eq!(has(&security, false), (14, true));
    }
}
