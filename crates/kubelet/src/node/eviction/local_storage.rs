//! Pods that use more of the node's disk than they may. Pure. Upstream's `localStorageEviction`.

use super::rank::{AT_ONCE, Eviction};
use super::usage::PodUsage;
use crate::pods::core::Pod;
use crate::pods::model;
use kaji_files::DirectoryUsage;
use kaji_meta::quantity::Quantity;
use std::collections::HashMap;
use std::sync::Arc;

const RESOURCE: &str = "ephemeral-storage";

/// Whether anything limits what a pod uses of the node's disk.
#[must_use]
pub fn is_limited(pod: &Pod) -> bool {
    let volumes = model::spec(pod).volumes.iter().flatten();
    let sized = volumes.filter_map(|v| v.empty_dir.as_ref()).any(|e| e.size_limit.is_some());
    let limited = |r: Option<&_>| model::limits(r).is_some_and(|l| l.contains_key(RESOURCE));
    sized
        || limited(model::spec(pod).resources.as_ref())
        || model::containers(pod)
            .iter()
            .chain(model::init_containers(pod))
            .any(|c| limited(c.resources.as_ref()))
}

/// The pods that exceed a limit. `layers` says whether writable layers are on the same disk and count for containers.
#[must_use]
pub fn exceeding(pods: &[Arc<Pod>], usage: &HashMap<String, PodUsage>, layers: bool) -> Vec<Eviction> {
    let of = |pod: &Arc<Pod>| {
        let used = usage.get(model::uid(pod)).filter(|_| !model::is_critical(pod))?;
        let (message, signal) = volume(pod, used)
            .map(|message| (message, "emptydirfs.limit"))
            .or_else(|| whole(pod, used).map(|message| (message, "ephemeralpodfs.limit")))
            .or_else(|| container(pod, used, layers).map(|m| (m, "ephemeralcontainerfs.limit")))?;
        let (uid, signal) = (model::uid(pod).to_owned(), signal.to_owned());
        Some(Eviction { uid, grace: AT_ONCE, message, disruption: false, signal })
    };
    pods.iter().filter_map(of).collect()
}

fn exceeds(used: u64, limit: &Quantity) -> bool {
    u64::try_from(limit.value()).is_ok_and(|limit| used > limit)
}

fn volume(pod: &Pod, usage: &PodUsage) -> Option<String> {
    model::spec(pod).volumes.iter().flatten().find_map(|volume| {
        let limit = model::quantity(volume.empty_dir.as_ref()?.size_limit.as_ref()?);
        let used = usage.volumes.get(&volume.name)?.bytes;
        let over = limit.sign() > 0 && exceeds(used, &limit);
        over.then(|| format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{limit}\". ", volume.name))
    })
}

/// The limits of all containers together hold for the pod, also when only some of them have one.
fn whole(pod: &Pod, usage: &PodUsage) -> Option<String> {
    let of = |r: Option<&_>| model::limits(r).and_then(|l| l.get(RESOURCE)).map(model::quantity);
    let add = |sum: Option<Quantity>, more: Option<Quantity>| match (sum, more) {
        (Some(a), Some(b)) => Some(a.add(&b)),
        (a, b) => a.or(b),
    };
    let larger = |a: Option<Quantity>, b: Option<Quantity>| match (a, b) {
        (Some(a), Some(b)) => Some(if b.value() > a.value() { b } else { a }),
        (a, b) => a.or(b),
    };
    let mut limit = model::containers(pod).iter().fold(None, |sum, c| add(sum, of(c.resources.as_ref())));
    let (mut sidecars, mut most) = (None, None);
    for init in model::init_containers(pod) {
        let own = of(init.resources.as_ref());
        most = larger(most, add(sidecars.clone(), own.clone()));
        if model::is_sidecar(init) {
            limit = add(limit, own.clone());
            sidecars = add(sidecars, own);
        }
    }
    limit = larger(limit, most);
    if let Some(own) = of(model::spec(pod).resources.as_ref()) {
        limit = Some(own);
    }
    let limit = limit?;
    let containers = usage.containers.iter().map(|c| c.layer + c.logs);
    let used: DirectoryUsage = containers.chain(usage.volumes.values().copied()).sum();
    exceeds(used.bytes, &limit)
        .then(|| format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "))
}

fn container(pod: &Pod, usage: &PodUsage, layers: bool) -> Option<String> {
    usage.containers.iter().find_map(|used| {
        let spec = model::containers(pod).iter().find(|c| c.name == used.name)?;
        let limit = model::quantity(model::limits(spec.resources.as_ref())?.get(RESOURCE)?);
        let disk = if layers { used.logs + used.layer } else { used.logs };
        let over = limit.value() != 0 && exceeds(disk.bytes, &limit);
        over.then(|| {
            format!("Container {} exceeded its local ephemeral storage limit \"{limit}\". ", used.name)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::usage::ContainerUsage;
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn verdict(spec: Value, volume: u64, containers: &[(&str, u64, u64)], layers: bool) -> String {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec});
        let pods = [Arc::new(serde_json::from_value(pod).unwrap())];
        let disk = |bytes| DirectoryUsage { bytes, inodes: 1 };
        let container = |(name, layer, logs): &(&str, u64, u64)| ContainerUsage {
            name: (*name).to_owned(),
            memory: 0,
            layer: disk(*layer),
            logs: disk(*logs),
        };
        let usage = PodUsage {
            containers: containers.iter().map(container).collect(),
            volumes: BTreeMap::from([("v".to_owned(), disk(volume))]),
            ..PodUsage::default()
        };
        let found = exceeding(&pods, &HashMap::from([("u".to_owned(), usage)]), layers);
        let limited = is_limited(&pods[0]);
        assert!(limited || found.is_empty());
        found.into_iter().map(|e| e.message).collect()
    }

    #[test]
    fn limits_of_volumes_pods_and_containers_hold() {
        let limit = |amount: &str| json!({"limits": {"ephemeral-storage": amount}});
        let volume = json!([{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}]);
        let plain = json!([{"name": "a"}]);
        let two = json!([{"name": "a", "resources": limit("1Ki")}, {"name": "b", "resources": limit("1Ki")}]);
        let sized = json!({"volumes": volume, "containers": plain});
        let shown = [
            verdict(sized.clone(), 1024, &[("a", 9999, 0)], true),
            verdict(sized, 1025, &[], true),
            verdict(json!({"containers": two}), 500, &[("a", 900, 0), ("b", 800, 0)], true),
            verdict(json!({"containers": two}), 0, &[("a", 1000, 30), ("b", 0, 0)], true),
            verdict(json!({"containers": two}), 0, &[("a", 1000, 30), ("b", 0, 0)], false),
            verdict(json!({"containers": two, "priority": 2_000_000_000}), 9999, &[], false),
        ];
        expect_test::expect![[r#"

            Usage of EmptyDir volume "v" exceeds the limit "1Ki". 
            Pod ephemeral local storage usage exceeds the total limit of containers 2Ki. 
            Container a exceeded its local ephemeral storage limit "1Ki". 

"#]]
        .assert_eq(&shown.join("\n"));
    }
}
