//! Pods in the network of CNI plug-ins: real ones where they are installed, and a script that shows what it is asked.

use crate::support::{World, setup};
use kaji_containers::{NetworkSetup, PodNetwork};
use kaji_network::{CniNetwork, CniOptions};
use kaji_testing::netns::Netns;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{text}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn open(dir: &Path) -> CniNetwork {
    let options = CniOptions {
        configurations: dir.join("net.d"),
        programs: vec![dir.join("bin")],
        state_dir: dir.join("state"),
    };
    CniNetwork::open(options).unwrap()
}

fn configure(dir: &Path, list: &Value) {
    fs::create_dir_all(dir.join("net.d")).unwrap();
    fs::write(dir.join("net.d/10-test.conflist"), list.to_string()).unwrap();
}

/// Shows each call, fails where there is a file `fail-<command>`, and answers with an address.
const SHOWS: &str = r#"
d=$(dirname "$0")/..
{ echo "$CNI_COMMAND ${0##*/} $CNI_CONTAINERID ${CNI_NETNS:+ns} $CNI_IFNAME $CNI_ARGS"; cat; echo; } >>"$d/calls"
if [ -e "$d/fail-$CNI_COMMAND" ]; then echo '{"code": 50, "msg": "not now", "details": "later"}'; exit 1; fi
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.7/16"}], "of": "'${0##*/}'"}'
"#;

fn calls(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join("calls")).unwrap_or_default();
    let _ = fs::remove_file(dir.join("calls"));
    text
}

#[tokio::test]
async fn plug_ins_are_asked_as_the_specification_says() {
    let Some(pod) = Netns::new("cni_specification") else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let network = open(dir);
    let expected = "Network plugin returns error: cni plugin not initialized";
    assert_eq!(network.unavailable_reason().await.as_deref(), Some(expected));
    assert!(network.set_up(setup(&pod, "none", &[])).await.is_err());
    for name in ["first", "second"] {
        script(&dir.join("bin").join(name), SHOWS);
    }
    configure(
        dir,
        &json!({"cniVersion": "1.1.0", "name": "shown", "plugins": [
            {"type": "first", "own": 1, "capabilities": {"portMappings": true, "bandwidth": true, "ipRanges": true, "other": true}},
            {"type": "second", "capabilities": {"portMappings": false}},
        ]}),
    );
    network.update_pod_cidrs(vec!["10.9.0.0/16".to_owned()]).await.unwrap();
    assert_eq!(network.unavailable_reason().await, None);
    let annotations = [("kubernetes.io/ingress-bandwidth".to_owned(), "8M".to_owned())].into();
    let wanted = NetworkSetup { annotations, ..setup(&pod, "box", &[(8080, 80)]) };
    let addresses = network.set_up(wanted.clone()).await.unwrap().addresses;
    assert_eq!(addresses, ["10.9.0.7".parse::<std::net::IpAddr>().unwrap()]);
    // Again: nothing is run. After a restart it is checked.
    assert_eq!(network.set_up(wanted.clone()).await.unwrap().addresses, addresses);
    let network = open(dir);
    assert_eq!(network.adopt(wanted.clone()).await.unwrap().addresses, addresses);
    network.sweep(vec!["box".to_owned()]).await.unwrap();
    // The configuration of the removal is that of the attachment.
    configure(dir, &json!({"cniVersion": "1.0.0", "name": "changed", "plugins": [{"type": "absent"}]}));
    network.tear_down(wanted.clone()).await.unwrap();
    network.tear_down(wanted).await.unwrap();
    expect_test::expect![[r#"
        STATUS first    
        {"cniVersion":"1.1.0","name":"shown","own":1,"type":"first"}
        STATUS second    
        {"cniVersion":"1.1.0","name":"shown","type":"second"}
        ADD first box ns eth0 IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=box;K8S_POD_INFRA_CONTAINER_ID=box;K8S_POD_UID=
        {"cniVersion":"1.1.0","name":"shown","own":1,"runtimeConfig":{"bandwidth":{"ingressBurst":4294967295,"ingressRate":8000000},"ipRanges":[[{"subnet":"10.9.0.0/16"}]],"portMappings":[{"containerPort":80,"hostIP":"","hostPort":8080,"protocol":"tcp"}]},"type":"first"}
        ADD second box ns eth0 IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=box;K8S_POD_INFRA_CONTAINER_ID=box;K8S_POD_UID=
        {"cniVersion":"1.1.0","name":"shown","prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.7/16"}],"of":"first"},"type":"second"}
        CHECK first box ns eth0 IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=box;K8S_POD_INFRA_CONTAINER_ID=box;K8S_POD_UID=
        {"cniVersion":"1.1.0","name":"shown","own":1,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.7/16"}],"of":"second"},"runtimeConfig":{"bandwidth":{"ingressBurst":4294967295,"ingressRate":8000000},"ipRanges":[[{"subnet":"10.9.0.0/16"}]],"portMappings":[{"containerPort":80,"hostIP":"","hostPort":8080,"protocol":"tcp"}]},"type":"first"}
        CHECK second box ns eth0 IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=box;K8S_POD_INFRA_CONTAINER_ID=box;K8S_POD_UID=
        {"cniVersion":"1.1.0","name":"shown","prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.7/16"}],"of":"second"},"type":"second"}
        GC first    
        {"cni.dev/valid-attachments":[{"containerID":"box","ifname":"eth0"}],"cniVersion":"1.1.0","name":"shown","own":1,"type":"first"}
        GC second    
        {"cni.dev/valid-attachments":[{"containerID":"box","ifname":"eth0"}],"cniVersion":"1.1.0","name":"shown","type":"second"}
        DEL second box ns eth0 IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=box;K8S_POD_INFRA_CONTAINER_ID=box;K8S_POD_UID=
        {"cniVersion":"1.1.0","name":"shown","prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.7/16"}],"of":"second"},"type":"second"}
        DEL first box ns eth0 IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=box;K8S_POD_INFRA_CONTAINER_ID=box;K8S_POD_UID=
        {"cniVersion":"1.1.0","name":"shown","own":1,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.7/16"}],"of":"second"},"runtimeConfig":{"bandwidth":{"ingressBurst":4294967295,"ingressRate":8000000},"ipRanges":[[{"subnet":"10.9.0.0/16"}]],"portMappings":[{"containerPort":80,"hostIP":"","hostPort":8080,"protocol":"tcp"}]},"type":"first"}
    "#]].assert_eq(&calls(dir));
    let error = network.set_up(setup(&pod, "late", &[])).await.unwrap_err().to_string();
    let text = r#"failed to setup network for sandbox "late": failed to find plugin "absent" in path ["#;
    assert!(error.contains(text), "{error}");
}

#[tokio::test]
async fn what_fails_is_taken_back_or_kept_until_it_can_be() {
    let Some(pod) = Netns::new("cni_failures") else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    script(&dir.join("bin/shows"), SHOWS);
    configure(dir, &json!({"cniVersion": "1.1.0", "name": "shown", "plugins": [{"type": "shows"}]}));
    let network = open(dir);
    let fail = |command: &str, fails: bool| {
        let file = dir.join(format!("fail-{command}"));
        if fails { fs::write(file, "").unwrap() } else { fs::remove_file(file).unwrap() }
    };
    let commands = || -> Vec<String> {
        let text = calls(dir);
        let lines = text.lines().filter(|line| line.contains(" shows "));
        lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    fail("STATUS", true);
    let reason = network.unavailable_reason().await.unwrap();
    assert!(reason.ends_with("plugin type=\"shows\" failed (status): not now; later"), "{reason}");
    fail("ADD", true);
    let error = network.set_up(setup(&pod, "box", &[])).await.unwrap_err().to_string();
    assert!(error.contains("plugin type=\"shows\" failed (add): not now; later"), "{error}");
    assert_eq!(commands(), ["STATUS", "ADD", "DEL"]);
    // Neither can be done: it is on record, and taken back before it is made anew.
    fail("DEL", true);
    assert!(network.set_up(setup(&pod, "box", &[])).await.is_err());
    assert!(network.tear_down(setup(&pod, "box", &[])).await.is_err());
    fail("ADD", false);
    fail("DEL", false);
    network.set_up(setup(&pod, "box", &[])).await.unwrap();
    assert_eq!(commands(), ["ADD", "DEL", "DEL", "DEL", "ADD"]);
    fail("CHECK", true);
    fail("GC", true);
    let network = open(dir);
    network.adopt(setup(&pod, "box", &[])).await.unwrap();
    network.sweep(vec![]).await.unwrap();
    assert_eq!(commands(), ["CHECK", "DEL", "GC"]);
    assert!(network.adopt(setup(&pod, "box", &[])).await.is_err());
}

/// The usual packages' plug-ins, run in a node of its own.
fn installed(node: &Netns, bin: &Path) -> Option<()> {
    let found =
        ["/usr/lib/cni", "/opt/cni/bin"].map(PathBuf::from).into_iter().find(|d| d.join("bridge").exists());
    let Some(found) = found else {
        kaji_testing::skip::skipped(
            "cni-plugins",
            "there are no CNI plug-ins in /usr/lib/cni and /opt/cni/bin",
        );
        return None;
    };
    for name in ["bridge", "host-local", "portmap"] {
        script(
            &bin.join(name),
            &format!("exec nsenter --net={} {}/{name}\n", node.path().display(), found.display()),
        );
    }
    Some(())
}

#[tokio::test]
async fn pods_are_in_the_network_of_a_bridge_plug_in() {
    let Some(world) = World::new("cni_bridge") else { return };
    let (Some(a), Some(b)) = (Netns::new("pods"), Netns::new("pods")) else { return };
    let dir = world.state.path();
    let Some(()) = installed(&world.node, &dir.join("bin")) else { return };
    let data = dir.join("addresses");
    configure(
        dir,
        &json!({"cniVersion": "1.0.0", "name": "real", "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
            "capabilities": {"ipRanges": true},
            "ipam": {"type": "host-local", "dataDir": data, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
        }]}),
    );
    let network = open(dir);
    network.update_pod_cidrs(vec!["10.9.1.0/24".to_owned(), "fd09::/64".to_owned()]).await.unwrap();
    let first = network.set_up(setup(&a, "sandbox-a", &[])).await.unwrap().addresses;
    let second = network.set_up(setup(&b, "sandbox-b", &[])).await.unwrap().addresses;
    assert_eq!((first.len(), second.len()), (2, 2));
    b.serve(80, "b");
    assert_eq!(a.ask(second[0], 80), Ok(format!("b {}", first[0])));
    open(dir).adopt(setup(&a, "sandbox-a", &[])).await.unwrap();
    network.tear_down(setup(&a, "sandbox-a", &[])).await.unwrap();
    // A namespace that is gone.
    let gone = setup(&b, "sandbox-b", &[]);
    drop(b);
    network.tear_down(gone).await.unwrap();
    let kept =
        fs::read_dir(data.join("real")).unwrap().flatten().map(|e| e.file_name().into_string().unwrap());
    let kept: Vec<String> =
        kept.filter(|name| name.contains(['.', ':']) && !name.starts_with("last_")).collect();
    assert_eq!(kept, Vec::<String>::new());
    assert_eq!(fs::read_dir(dir.join("state")).unwrap().count(), 0);
}
