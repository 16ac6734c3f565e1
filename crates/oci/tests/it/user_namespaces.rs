//! Pods with user namespaces.

use crate::common::{Node, node};
use kaji_containers::{
    ContainerConfig, ContainerRuntime, IdMapping, Mount, NamespaceMode, PodSandboxConfig, RuntimeError,
    SecurityProfile, UserNamespace,
};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const RANGE: IdMapping = IdMapping { host_id: 131_072, container_id: 0, length: 65_536 };

fn user() -> UserNamespace {
    UserNamespace { uids: vec![RANGE], gids: vec![RANGE] }
}

fn pod(node: &Node) -> PodSandboxConfig {
    let mut config = node.sandbox_config();
    config.security.namespaces.user = Some(user());
    config
}

fn script(node: &Node, text: &str) -> ContainerConfig {
    let mut config = node.script(text);
    config.security.namespaces.user = Some(user());
    config
}

async fn mapped_node() -> Option<Node> {
    let node = node("user-namespaces").await?;
    let handlers = node.runtime().status().await.unwrap().handlers;
    if !handlers[0].user_namespaces {
        kaji_testing::skip::skipped(
            "user-namespaces",
            "the kernel has no user namespaces with mapped mounts",
        );
        node.finish().await;
        return None;
    }
    Some(node)
}

fn volume(node: &Node, name: &str, path: &str) -> Mount {
    let directory = node.directory.path().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    Mount {
        container_path: path.into(),
        host_path: directory.display().to_string(),
        uid_mappings: vec![RANGE],
        gid_mappings: vec![RANGE],
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_in_the_pod_is_no_root_on_the_node() {
    let Some(node) = mapped_node().await else { return };
    let sandbox = node.runtime().run_pod_sandbox(pod(&node)).await.unwrap();
    // One pipe, or the order of what goes to two is open.
    let text = "exec 2>&1; id -u; cat /proc/self/uid_map /proc/self/gid_map; hostname; touch /tmp/made /v/made; ls -ln / /v /etc; \
                unshare -m true && echo unshared; mount -t tmpfs x /tmp && echo mounted; head -1 /etc/hostname; \
                echo x > /dev/shm/f && echo shared; echo x > /dev/null && echo devices; mkdir /proc/1/x; \
                ls -l /proc/1/ns/user; echo end; exec sleep 1000";
    let mut config = script(&node, text);
    config.mounts = vec![volume(&node, "volume", "/v")];
    std::fs::write(node.directory.path().join("volume/before"), "").unwrap();
    config.security.seccomp = SecurityProfile::RuntimeDefault;
    let id = node.start(&sandbox, config).await;
    node.printed(&id, "end").await;
    let status = node.runtime().container_status(&id).await.unwrap();
    let output = node.output(&status);
    assert!(
        output.starts_with("0\n         0     131072      65536\n         0     131072      65536\npod0\n"),
        "{output}"
    );
    // What was in the volume and in the image is root's in the pod, and what it makes there is root's on disk.
    let volumes = output.split_once("/etc:").unwrap().1;
    assert!(!volumes.contains(" 65534 ") && volumes.contains(" before\n"), "{output}");
    let made = std::fs::metadata(node.directory.path().join("volume/made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (0, 0));
    assert!(output.contains("shared\ndevices\n"), "{output}");
    assert!(!output.contains("unshared") && !output.contains("mounted"), "{output}");
    // Its processes are not root's on the node, and its layer is theirs.
    let owner = std::fs::metadata(format!("/proc/{}", status.pid)).unwrap();
    assert_eq!(owner.uid(), RANGE.host_id);
    let layer = node.state().join("containers").join(&id).join("upper/tmp/made");
    assert_eq!(std::fs::metadata(layer).unwrap().uid(), RANGE.host_id);
    let exec = ["/bin/sh", "-c", "id -u; cat /proc/self/uid_map; echo > /tmp/again && ls /v"];
    let exec = exec.map(str::to_owned).to_vec();
    let output = node.runtime().exec_sync(&id, exec, Duration::from_secs(20)).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.exit_code, 0, "{text} {}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("0\n         0     131072      65536\n") && text.contains("made"), "{text}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_users_and_groups_are_mapped() {
    let Some(node) = mapped_node().await else { return };
    let sandbox = node.runtime().run_pod_sandbox(pod(&node)).await.unwrap();
    let mut config = script(
        &node,
        "id -u; id -G; touch /v/made; echo error > /dev/stderr; chmod 600 /bin/sh || echo refused",
    );
    config.security.run_as_user = Some(33);
    config.security.supplemental_groups = vec![2000];
    config.mounts = vec![volume(&node, "volume", "/v")];
    std::os::unix::fs::chown(node.directory.path().join("volume"), Some(33), None).unwrap();
    let id = node.start(&sandbox, config).await;
    let status = node.ended(&id).await;
    let output = node.output(&status);
    assert!(
        output.contains("33\n34 50 2000\n") && output.contains("error") && output.contains("refused"),
        "{output}"
    );
    let made = std::fs::metadata(node.directory.path().join("volume/made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (33, 34));
    let mut config = script(&node, "true");
    config.security.run_as_user = Some(70_000);
    let refused = node.runtime().create_container(&sandbox, config).await.unwrap_err();
    assert!(matches!(refused, RuntimeError::InvalidArgument(_)), "{refused:?}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_of_processes_are_shared_in_it() {
    let Some(mut node) = mapped_node().await else { return };
    let mut config = pod(&node);
    config.security.namespaces.pid = NamespaceMode::Pod;
    config.sysctls = [("net.ipv4.ip_forward".to_owned(), "1".to_owned())].into();
    let sandbox = node.runtime().run_pod_sandbox(config).await.unwrap();
    let shared = |text: &str| {
        let mut config = script(&node, text);
        config.security.namespaces.pid = NamespaceMode::Pod;
        config
    };
    let first = node.start(&sandbox, shared("exec sleep 1000")).await;
    let second =
        node.start(&sandbox, shared("ps; cat /proc/sys/net/ipv4/ip_forward; kill -9 1; echo done")).await;
    let output = node.output(&node.ended(&second).await);
    assert!(output.contains("sleep 1000") && output.contains("\n1\n") && output.contains("done"), "{output}");
    // Unmasked, as only pods with user namespaces may ask for it.
    let mut unmasked = shared("unshare -rpfm mount -t proc proc /proc && echo nested; ls /proc/keys");
    (unmasked.security.masked_paths, unmasked.security.readonly_paths) = (vec![], vec![]);
    let unmasked = node.start(&sandbox, unmasked).await;
    let output = node.output(&node.ended(&unmasked).await);
    assert!(output.contains("nested\n/proc/keys\n"), "{output}");
    node.open().await;
    assert_eq!(
        node.runtime().container_status(&first).await.unwrap().info.state,
        kaji_containers::ContainerState::Running
    );
    node.runtime().exec_sync(&first, vec!["true".into()], Duration::from_secs(20)).await.unwrap();
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_mapped_is_refused() {
    let Some(node) = mapped_node().await else { return };
    let mut wrong = pod(&node);
    wrong.security.namespaces.user = Some(UserNamespace { uids: vec![RANGE], gids: vec![] });
    let refused = node.runtime().run_pod_sandbox(wrong).await;
    assert!(matches!(refused, Err(RuntimeError::InvalidArgument(_))), "{refused:?}");
    let mut wrong = pod(&node);
    wrong.security.namespaces.network = NamespaceMode::Node;
    let refused = node.runtime().run_pod_sandbox(wrong).await;
    assert!(matches!(refused, Err(RuntimeError::InvalidArgument(_))), "{refused:?}");
    let sandbox = node.runtime().run_pod_sandbox(pod(&node)).await.unwrap();
    let mut config = script(&node, "true");
    // A file system without mapped mounts.
    config.mounts = vec![Mount { host_path: "/proc".into(), ..volume(&node, "volume", "/v") }];
    let id = node.runtime().create_container(&sandbox, config).await.unwrap();
    let error = node.runtime().start_container(&id).await.unwrap_err();
    assert!(error.to_string().contains("failed to set MOUNT_ATTR_IDMAP on /proc"), "{error}");
    node.finish().await;
}
