//! `PodTopologyLabels`: copies the zone and region labels of a node to its pods, for the downward API (KEP-4742).

use crate::find;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::BoxFuture;

/// The plugin.
pub(super) struct PodTopologyLabels;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

impl Admission for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::MUTATING.when(operation == Operation::Create && (group, resource) == ("", "pods"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        matches!(a.subresource, "" | "binding")
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(object) = a.new_object() else { return Ok(()) };
            let node = match a.subresource {
                "binding" if object["target"]["kind"] == "Node" => {
                    object::str_at(object, &["target", "name"])
                }
                "binding" => "",
                _ => object::str_at(object, &["spec", "nodeName"]),
            };
            if node.is_empty() {
                return Ok(());
            }
            // A node that is not there has no labels; whether that is an error is for others to say.
            let Some(node) = find(a, &GroupResource::new("", "nodes"), node).await? else { return Ok(()) };
            let Some(object) = a.object.as_deref_mut() else { return Ok(()) };
            for key in LABELS {
                if let Some(value) = object::label(&node, key) {
                    object::set_at(object, &["metadata", "labels", key], value);
                }
            }
            Ok(())
        })
    }
}
