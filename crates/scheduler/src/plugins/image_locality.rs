//! ImageLocality: prefers nodes that have the pod's images, those of volumes too, large ones more, but not images that hardly any
//! node has.

use super::Entry;
use crate::{
    framework::{Cycle, CycleState, Outcome, Plugin, Points, PreScore, PreScored, Score, points::MAX_SCORE},
    snapshot::{ImageState, NodeInfo},
};
use std::{collections::HashMap, sync::Arc};

/// The plugin's line in the table.
pub const PLUGIN: Entry = Entry {
    name: "ImageLocality",
    weight: 1,
    arguments: None,
    build: |_| {
        let plugin = Arc::new(ImageLocality);
        Points::of(&plugin).pre_score(&plugin).score(&plugin)
    },
};

const MEBIBYTE: i64 = 1 << 20;
/// Images below this size in all make no difference.
const LEAST: i64 = 23 * MEBIBYTE;
/// Beyond this size an image makes no further difference.
const MOST_PER_IMAGE: i64 = 1000 * MEBIBYTE;

struct ImageLocality;

/// The pod's images that some node has: how often it uses each, and its state.
#[derive(Clone)]
struct Images {
    known: HashMap<String, (i64, ImageState)>,
    /// How many images it uses, one for each use.
    used: i64,
    nodes: usize,
}

impl Images {
    fn of(cycle: &Cycle<'_>) -> Self {
        let spec = &cycle.pod.pod.spec;
        let mut known: HashMap<String, (i64, ImageState)> = HashMap::new();
        let of_containers = spec.containers.iter().chain(&spec.init_containers).map(|c| &c.image);
        for image in of_containers.chain(&spec.volume_images) {
            let name = normalized(image);
            if let Some(image) = cycle.snapshot.image(&name) {
                known.entry(name).or_insert((0, image)).0 += 1;
            }
        }
        let used = spec.containers.len() + spec.init_containers.len() + spec.volume_images.len();
        let used = i64::try_from(used).unwrap_or(i64::MAX);
        Images { known, used, nodes: cycle.snapshot.len() }
    }
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        PLUGIN.name
    }
}

impl PreScore for ImageLocality {
    fn pre_score(
        &self,
        cycle: &Cycle<'_>,
        state: &mut CycleState,
        _nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored> {
        let images = Images::of(cycle);
        if images.known.is_empty() {
            return Ok(PreScored::Skip);
        }
        state.put(images);
        Ok(PreScored::Scored)
    }
}

impl Score for ImageLocality {
    fn score(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> i64 {
        // Upstream's plugin scores alone: a profile may have disabled the preparation.
        let made;
        let images = match state.get::<Images>() {
            Some(images) => images,
            None => {
                made = Images::of(cycle);
                &made
            }
        };
        let names = node.node.status.images.iter().map(|image| (image.size_bytes, &image.names));
        let mut sum = 0_i64;
        for (size, names) in names {
            for (uses, image) in names.iter().filter_map(|name| images.known.get(name.as_str())) {
                sum = sum.saturating_add(uses * spread(size, image.nodes, images.nodes));
            }
        }
        let most = MOST_PER_IMAGE.saturating_mul(images.used).max(LEAST + 1);
        MAX_SCORE * (sum.clamp(LEAST, most) - LEAST) / (most - LEAST)
    }
}

/// An image's size, by the share of nodes that have it: otherwise the first node with a large image would get every pod.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "sizes of images are below 2^52"
)]
fn spread(size: i64, nodes: usize, of: usize) -> i64 {
    (size as f64 * (nodes as f64 / of.max(1) as f64)) as i64
}

/// An image's name with its tag.
fn normalized(name: &str) -> String {
    match (name.rfind(':'), name.rfind('/')) {
        (Some(colon), slash) if slash.is_none_or(|slash| colon > slash) => name.to_owned(),
        _ => format!("{name}:latest"),
    }
}

#[cfg(test)]
mod tests {
    use crate::{configuration::Configuration, testing::Cluster};
    use serde_json::json;

    #[test]
    fn images_of_volumes_count_as_those_of_containers() {
        let images = json!([{"names": ["model:v1"], "sizeBytes": 500 << 20}]);
        let nodes = [json!({"name": "a"}), json!({"name": "b", "images": images})];
        let scores = |image: &str| {
            let volume = json!({"name": "v", "image": {"reference": "model:v1"}});
            let spec = json!({"containers": [{"name": "c", "image": image}], "volumes": [volume]});
            Cluster::new(&nodes).scores(super::PLUGIN.name, &json!({"name": "p", "spec": spec}))
        };
        assert_eq!([scores("other"), scores("model:v1")], ["a=0 b=11", "a=0 b=24"]);
    }

    #[test]
    fn scores_without_preparation() {
        let images = json!([{"names": ["large:v1"], "sizeBytes": 3_000_000_000_u64}]);
        let others = (0..10).map(|n| json!({"name": format!("n{n}")}));
        let nodes: Vec<_> = others.chain([json!({"name": "with", "images": images})]).collect();
        let mut cluster = Cluster::new(&nodes);
        let pod = json!({"name": "p", "spec": {"containers": [{"name": "c", "image": "large:v1"}]}});
        assert_eq!(cluster.show(&pod), "-> with");
        let file = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- plugins: {preScore: {disabled: [{name: '*'}]}, score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality}]}}\n";
        cluster.profiles = Configuration::parse(file, kaji_meta::Features::default()).unwrap().profiles;
        assert_eq!(cluster.show(&pod), "-> with");
    }
}
