//! What is measured of volumes that are attached: upstream's names, labels and texts.
//!
//! Source: upstream's `pkg/controller/volume/attachdetach/metrics`. Volumes are CSI drivers': nothing here attaches others.

use super::NodeAttachments;
use kaji_runtime::{
    Metric, Moment, Plan, Sample, Target, View,
    objects::{CsiSource, Node, Pod, VolumeAttachment},
};
use std::collections::{BTreeMap, BTreeSet};

/// Reasons of forced detachments.
pub const TIMEOUT: &str = "timeout";
/// The node has the taint.
pub const OUT_OF_SERVICE: &str = "out-of-service";

static IN_USE: Metric = Metric::gauge(
    "storage_count_attachable_volumes_in_use",
    "[ALPHA] Measure number of volumes in use",
    &["node", "volume_plugin"],
);
static TOTAL: Metric = Metric::gauge(
    "attachdetach_controller_total_volumes",
    "[ALPHA] Number of volumes in A/D Controller",
    &["plugin_name", "state"],
);
static FORCED: Metric = Metric::counter(
    "attach_detach_controller_attachdetach_controller_forced_detaches",
    "[ALPHA] Number of times the A/D Controller performed a forced detach",
    &["reason"],
);

/// The metrics of the controller.
pub static METRICS: [&Metric; 3] = [&IN_USE, &TOTAL, &FORCED];

/// The plug-in of a CSI volume, with its driver.
fn plugin(csi: &CsiSource) -> String {
    format!("kubernetes.io/csi:{}", csi.driver)
}

/// Counts detachments that were forced, once they are written.
pub fn forced(plan: Plan, forced: Vec<(Target, &'static str)>) -> Plan {
    forced.into_iter().fold(plan, |plan, (target, reason)| {
        plan.observe(Moment::Written(target), FORCED.one([reason.into()]))
    })
}

/// Volumes of pods on nodes; volumes that are to be attached, and those that are.
pub fn gauges(view: &View) -> Vec<Sample> {
    let pods = view.get::<Pod>();
    let with_claims = pods.iter().filter(|pod| !pod.spec.volumes.claims.is_empty());
    let on_nodes = with_claims.map(|pod| &*pod.spec.node_name).filter(|node| !node.is_empty());
    // A node that is gone may still have pods and attachments.
    let attachments = view.get::<VolumeAttachment>();
    let mut names: BTreeSet<String> = on_nodes.map(str::to_owned).collect();
    names.extend(view.get::<Node>().iter().map(|node| node.metadata.name.clone()));
    names.extend(attachments.iter().map(|attachment| attachment.spec.node_name.clone()));
    let mut in_use = BTreeMap::<(String, String), usize>::new();
    let mut total = BTreeMap::<(String, &str), usize>::new();
    for name in names {
        let node = NodeAttachments::of(view, &name);
        for csi in node.used().iter().filter_map(|volume| volume.spec.csi.as_deref()) {
            *in_use.entry((name.clone(), plugin(csi))).or_default() += 1;
        }
        for csi in node.wanted().values().filter_map(|wanted| wanted.volume.spec.csi.as_deref()) {
            *total.entry((plugin(csi), "desired_state_of_world")).or_default() += 1;
        }
        let attached = node.attached();
        // Where attaching failed it is not known whether the volume is attached.
        let there = attached.values().filter(|attached| {
            let status = &attached.object.status;
            status.attached || status.attach_error.is_some()
        });
        for csi in there.filter_map(|attached| attached.volume.spec.csi.as_deref()) {
            *total.entry((plugin(csi), "actual_state_of_world")).or_default() += 1;
        }
    }
    let in_use = in_use.into_iter().map(|((node, plugin), n)| IN_USE.count([node.into(), plugin.into()], n));
    let total = total.into_iter().map(|((plugin, state), n)| TOTAL.count([plugin.into(), state.into()], n));
    in_use.chain(total).collect()
}
