//! What is kept from pods: `systemReserved`, `kubeReserved` and the fields that go with them.

use super::File;
use crate::node::allocatable::{Amounts, Enforcement, Reservations, kept_free};
use crate::node::eviction::thresholds::Threshold;
use crate::resource_managers::cpu_set::CpuSet;
use kaji_meta::quantity::Quantity;
use std::collections::{BTreeMap, BTreeSet};

/// Resources that can be reserved.
const RESERVED: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

/// The processors that are reserved by their numbers.
pub(super) fn reserved_cpus(file: &File) -> Result<Option<CpuSet>, String> {
    let text = file.reserved_system_cpus.as_deref().unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    let named = |cgroup: &Option<String>| cgroup.as_deref().is_some_and(|name| !name.is_empty());
    if named(&file.system_reserved_cgroup) || named(&file.kube_reserved_cgroup) {
        return Err("invalid configuration: can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)".to_owned());
    }
    let parsed = CpuSet::parse(text);
    parsed.map(Some).map_err(|error| format!("unable to parse reservedSystemCPUs: {error}"))
}

pub(super) fn parse(
    file: &File,
    cpus: Option<&CpuSet>,
    thresholds: &[Threshold],
) -> Result<Reservations, String> {
    let (mut system, mut kube) =
        (amounts(file.system_reserved.as_ref())?, amounts(file.kube_reserved.as_ref())?);
    if let Some(cpus) = cpus {
        // The named processors stand for what is reserved of them.
        kube.remove("cpu");
        system.insert("cpu".to_owned(), i64::try_from(cpus.len() * 1000).unwrap_or(i64::MAX));
    }
    let reservations = Reservations {
        system,
        kube,
        system_cgroup: file.system_reserved_cgroup.clone().unwrap_or_default(),
        kube_cgroup: file.kube_reserved_cgroup.clone().unwrap_or_default(),
        enforced: enforced(file.enforce_node_allocatable.as_deref())?,
        eviction: kept_free(thresholds),
    };
    check_cgroups(&reservations)?;
    Ok(reservations)
}

fn amounts(given: Option<&BTreeMap<String, String>>) -> Result<Amounts, String> {
    let of = |(name, text): (&String, &String)| {
        if !RESERVED.contains(&name.as_str()) {
            return Err(format!("cannot reserve {name:?} resource"));
        }
        let amount = Quantity::parse(text)
            .map_err(|error| format!("failed to parse quantity {text:?} for {name:?} resource: {error}"))?;
        if amount.sign() < 0 {
            return Err(format!("resource quantity for {name:?} cannot be negative: {text}"));
        }
        Ok((name.clone(), if name == "cpu" { amount.milli_value() } else { amount.value() }))
    };
    given.into_iter().flatten().map(of).collect()
}

fn enforced(given: Option<&[String]>) -> Result<BTreeSet<Enforcement>, String> {
    const FIELD: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";
    let Some(given) = given else { return Ok(Reservations::default().enforced) };
    if given.iter().any(|name| name == "none") {
        return match given {
            [_] => Ok(BTreeSet::new()),
            _ => Err(format!(
                "invalid configuration: {FIELD} may not contain additional enforcements when \"none\" is specified"
            )),
        };
    }
    let of = |name: &String| {
        Enforcement::ALL.into_iter().find(|e| e.name() == name).ok_or_else(|| {
            let valid = Enforcement::ALL.map(|e| format!("{:?}", e.name())).join(", ");
            format!(
                "invalid configuration: option {name:?} specified for {FIELD}. Valid options are {valid}, or \"none\""
            )
        })
    };
    let found: BTreeSet<Enforcement> = given.iter().map(of).collect::<Result<_, _>>()?;
    use Enforcement::{KubeReserved, KubeReservedCompressible, SystemReserved, SystemReservedCompressible};
    for (all, some) in
        [(SystemReserved, SystemReservedCompressible), (KubeReserved, KubeReservedCompressible)]
    {
        if found.contains(&all) && found.contains(&some) {
            let (all, some) = (all.name(), some.name());
            return Err(format!(
                "invalid configuration: both {all:?} and {some:?} cannot be specified in {FIELD}"
            ));
        }
    }
    Ok(found)
}

fn check_cgroups(reservations: &Reservations) -> Result<(), String> {
    for enforcement in &reservations.enforced {
        let (cgroup, field) = match enforcement {
            Enforcement::Pods => continue,
            Enforcement::SystemReserved | Enforcement::SystemReservedCompressible => {
                (&reservations.system_cgroup, "systemReservedCgroup (--system-reserved-cgroup)")
            }
            Enforcement::KubeReserved | Enforcement::KubeReservedCompressible => {
                (&reservations.kube_cgroup, "kubeReservedCgroup (--kube-reserved-cgroup)")
            }
        };
        if cgroup.is_empty() {
            return Err(format!(
                "invalid configuration: {field} must be specified when {:?} contained in enforceNodeAllocatable (--enforce-node-allocatable)",
                enforcement.name()
            ));
        }
        if cgroup.split('/').any(|part| part == "..") {
            return Err(format!("invalid configuration: {field} {cgroup:?} is no path of a cgroup"));
        }
    }
    Ok(())
}
