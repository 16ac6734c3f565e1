//! CDI devices of containers that run.

use crate::common::node;
use kaji_containers::{ContainerRuntime, RuntimeError};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_what_its_devices_bring() {
    let Some(node) = node("cdi").await else { return };
    let directory = node.cdi_directory();
    let (shared, seen) = (directory.join("shared"), directory.join("hook"));
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::write(shared.join("driver"), "of the node").unwrap();
    let hook = format!("cat > {}", seen.display());
    let specification = json!({
        "cdiVersion": "0.6.0",
        "kind": "vendor.com/device",
        "containerEdits": {"env": ["VENDOR=1"]},
        "devices": [{"name": "x", "containerEdits": {
            "env": ["DEVICE=x"],
            "deviceNodes": [{"path": "/dev/vendor0", "hostPath": "/dev/zero", "permissions": "r"}],
            "mounts": [{"hostPath": shared, "containerPath": "/opt/vendor", "options": ["ro", "nosuid", "bind"]}],
            "hooks": [{"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", hook]}],
            "additionalGids": [4711],
        }}],
    });
    std::fs::write(directory.join("vendor.json"), specification.to_string()).unwrap();
    let script = "echo $VENDOR $DEVICE; cat /opt/vendor/driver; echo; head -c 3 /dev/vendor0 | wc -c; id -G; \
                  touch /opt/vendor/new 2>/dev/null || echo read-only";
    let mut config = node.script(&script.replace("| wc -c", "| busybox wc -c"));
    config.cdi_devices = vec!["vendor.com/device=x".into()];
    let (status, text) = node.run(config).await;
    let expected = "1 x\nof the node\n3\n0 4711\nread-only\n";
    assert_eq!((status.exit_code, text.as_str()), (0, expected));
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(&seen).unwrap()).unwrap();
    assert!(state["pid"].as_i64() > Some(0), "{state}");

    let mut unknown = node.script("true");
    unknown.cdi_devices = vec!["vendor.com/device=y".into()];
    let sandbox = node.sandbox().await;
    let refused = node.runtime().create_container(&sandbox, unknown).await.unwrap_err();
    assert!(matches!(refused, RuntimeError::InvalidArgument(_)), "{refused}");
    node.finish().await;
}
