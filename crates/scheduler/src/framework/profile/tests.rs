//! What is said of a pod when a plugin fails before its node is chosen.

use crate::{
    framework::Status,
    testing::{Cluster, answering},
};
use serde_json::json;

#[test]
fn the_text_of_a_failure_begins_with_the_extension_point() {
    let show = |point: &'static str, status: Status| {
        let mut cluster = Cluster::new(&[json!({"name": "a"}), json!({"name": "b"})]);
        cluster.profiles = vec![answering::profile(point, status)];
        format!("{point}: {}", cluster.show(&json!({"name": "p"})))
    };
    let mut lines = vec![];
    for point in ["PreFilter", "Filter", "PostFilter", "PreScore"] {
        lines.push(show(point, Status::error("no answer")));
        lines.push(show(point, Status::unschedulable("not here")));
    }
    expect_test::expect![[r#"
        PreFilter: failed: running PreFilter plugin "Answering": no answer
        PreFilter: 0/2 nodes are available: not here.
        Filter: failed: running "Answering" filter plugin: no answer
        Filter: 0/2 nodes are available: 2 not here.
        PostFilter: 0/2 nodes are available: 2 no. no answer
        PostFilter: 0/2 nodes are available: 2 no. not here
        PreScore: failed: running PreScore plugin "Answering": no answer
        PreScore: failed: running PreScore plugin "Answering": not here"#]]
    .assert_eq(&lines.join("\n"));
}
