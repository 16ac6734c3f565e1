//! Configurations from fixtures.

use super::*;
use kaji_containers::{Capabilities, ContainerSecurity, Device, Mount, MountPropagation};

fn with<T>(config: &ContainerConfig, work: impl FnOnce(&Parts<'_>) -> T) -> T {
    with_edits(config, &Edits::default(), work)
}

fn with_edits<T>(config: &ContainerConfig, cdi: &Edits, work: impl FnOnce(&Parts<'_>) -> T) -> T {
    let image = ImageConfig {
        env: vec!["PATH=/image".into(), "A=image".into()],
        entrypoint: vec!["/entry".into()],
        cmd: vec!["default".into()],
        working_dir: "/work".into(),
        ..Default::default()
    };
    let sandbox = PodSandboxConfig {
        hostname: "pod".into(),
        cgroup_parent: "/kubepods/a".into(),
        ..Default::default()
    };
    let available: Vec<String> =
        ["CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN", "CAP_SYS_ADMIN"].map(str::to_owned).to_vec();
    work(&Parts {
        id: "c1",
        config,
        sandbox: &sandbox,
        image: &image,
        rootfs: Path::new("/nowhere"),
        namespaces: &[("network", "/pin/net".into())],
        pod_files: &[("/etc/resolv.conf", "/pin/resolv.conf".into())],
        image_mounts: &[],
        cdi,
        available: &available,
        staging: None,
        apparmor: None,
    })
}

#[test]
fn takes_what_the_pod_leaves_out_from_the_image() {
    let config = ContainerConfig { envs: vec![("A".into(), "pod".into())], ..Default::default() };
    let built = with(&config, |parts| build(parts).unwrap());
    let process = &built.spec["process"];
    assert_eq!(process["args"], json!(["/entry", "default"]));
    assert_eq!(process["env"], json!(["PATH=/image", "HOSTNAME=pod", "A=pod"]));
    assert_eq!(process["cwd"], "/work");
    assert_eq!(built.spec["linux"]["cgroupsPath"], "/kubepods/a/c1");
    assert_eq!(built.shim.capabilities.bounding, ["CAP_CHOWN", "CAP_KILL"]);
}

#[test]
fn a_command_replaces_the_images_arguments() {
    let config = ContainerConfig { command: vec!["sh".into()], ..Default::default() };
    assert_eq!(with(&config, |parts| arguments(config_of(parts), parts.image)), ["sh"]);
    let config = ContainerConfig { args: vec!["x".into()], ..Default::default() };
    assert_eq!(with(&config, |parts| arguments(config_of(parts), parts.image)), ["/entry", "x"]);
}

fn config_of<'a>(parts: &Parts<'a>) -> &'a ContainerConfig {
    parts.config
}

fn bounding(add: &[&str], drop: &[&str]) -> Result<Vec<String>, RuntimeError> {
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    let capabilities = Capabilities { add: names(add), drop: names(drop), ..Default::default() };
    let security = ContainerSecurity { capabilities, ..Default::default() };
    with(&ContainerConfig { security, ..Default::default() }, |parts| {
        build(parts).map(|built| built.shim.capabilities.bounding)
    })
}

#[test]
fn capabilities_are_added_and_dropped() {
    assert_eq!(bounding(&["NET_ADMIN"], &["ALL"]).unwrap(), ["CAP_NET_ADMIN"]);
    assert_eq!(bounding(&["ALL"], &["CHOWN"]).unwrap(), ["CAP_KILL", "CAP_NET_ADMIN", "CAP_SYS_ADMIN"]);
    assert!(matches!(bounding(&["SYS_TIME"], &[]), Err(RuntimeError::InvalidArgument(_))));
}

#[test]
fn refuses_mounts_that_lead_out() {
    let mount = Mount { container_path: "/a/../../b".into(), host_path: "/tmp".into(), ..Default::default() };
    let config = ContainerConfig { mounts: vec![mount], ..Default::default() };
    assert!(matches!(with(&config, |parts| build(parts).map(|_| ())), Err(RuntimeError::InvalidArgument(_))));
}

#[test]
fn creates_the_absent_source_of_a_mount_unless_something_else_is_in_its_place() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let built = |source: &Path| {
        let host_path = source.display().to_string();
        let mount = Mount { container_path: "/data".into(), host_path, ..Default::default() };
        let config = ContainerConfig { mounts: vec![mount], ..Default::default() };
        with(&config, |parts| build(parts).map(|_| ()).map_err(|error| error.to_string()))
    };
    let absent = directory.path().join("a/b");
    built(&absent).unwrap();
    assert_eq!(absent.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    built(&file).unwrap();
    assert!(built(&file.join("below")).unwrap_err().contains("failed to stat"));
    std::os::unix::fs::symlink("/nowhere/at/all", directory.path().join("dangling")).unwrap();
    assert!(built(&directory.path().join("dangling")).unwrap_err().contains("failed to mkdir"));
}

#[test]
fn devices_below_dev_are_made_and_others_are_mounted() {
    let device = |path: &str| Device {
        container_path: path.into(),
        host_path: "/dev/null".into(),
        permissions: "r".into(),
    };
    let devices = vec![device("/dev/own"), device("/mnt/volume")];
    let shown = |privileged: bool| {
        let security = ContainerSecurity { privileged, ..Default::default() };
        let config = ContainerConfig { devices: devices.clone(), security, ..Default::default() };
        let spec = with(&config, |parts| build(parts).unwrap()).spec;
        let nodes = spec["linux"]["devices"].as_array().unwrap().clone();
        let rules = spec["linux"]["resources"]["devices"].as_array().unwrap().clone();
        let own = nodes.iter().filter(|node| node["path"] == "/dev/own").count();
        let outside = nodes.iter().filter(|node| node["path"] == "/mnt/volume").count();
        let read = rules.iter().filter(|rule| rule["access"] == "r" && rule["minor"] == 3).count();
        let mounts = spec["mounts"].as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["destination"] == "/mnt/volume").unwrap();
        (own, outside, read, mount["source"].clone())
    };
    assert_eq!(shown(false), (1, 0, 2, json!("/dev/null")));
    assert_eq!(shown(true), (1, 0, 0, json!("/dev/null")));
}

#[test]
fn the_roots_propagation_is_one_that_the_runtime_knows() {
    let shown =
        [MountPropagation::Private, MountPropagation::HostToContainer, MountPropagation::Bidirectional].map(
            |propagation| {
                let (container_path, host_path) = ("/a".into(), "/".into());
                let mount = Mount { container_path, host_path, propagation, ..Default::default() };
                let config = ContainerConfig { mounts: vec![mount], ..Default::default() };
                with(&config, |parts| build(parts).unwrap().spec["linux"]["rootfsPropagation"].clone())
            },
        );
    assert_eq!(shown, ["private", "slave", "shared"]);
}

#[test]
fn cdi_devices_change_the_configuration() {
    let edits: Edits = serde_json::from_value(json!({
        "env": ["A=device", "NEW=1"],
        "deviceNodes": [
            {"path": "/dev/gpu0", "hostPath": "/dev/null", "permissions": "rw"},
            {"path": "/opt/null", "hostPath": "/dev/null"},
        ],
        "mounts": [
            {"hostPath": "/usr/lib/driver", "containerPath": "/lib/driver", "options": ["ro", "nosuid"]},
            {"hostPath": "/new", "containerPath": "/own"},
        ],
        "hooks": [{"hookName": "createRuntime", "path": "/bin/hook", "args": ["hook"]}],
        "additionalGids": [44],
    }))
    .unwrap();
    let config = ContainerConfig {
        envs: vec![("A".into(), "pod".into())],
        mounts: vec![Mount { container_path: "/own".into(), host_path: "/".into(), ..Default::default() }],
        ..Default::default()
    };
    let spec = with_edits(&config, &edits, |parts| build(parts).unwrap()).spec;
    assert_eq!(spec["process"]["env"], json!(["PATH=/image", "HOSTNAME=pod", "A=device", "NEW=1"]));
    assert_eq!(spec["process"]["user"]["additionalGids"], json!([0, 44]));
    assert_eq!(spec["hooks"], json!({"createRuntime": [{"path": "/bin/hook", "args": ["hook"], "env": []}]}));
    let mount = |path: &str| {
        let mounts = spec["mounts"].as_array().unwrap();
        let found: Vec<&Value> = mounts.iter().filter(|m| m["destination"] == path).collect();
        assert_eq!(found.len(), 1, "{path}");
        format!("{} {}", found[0]["source"], found[0]["options"])
    };
    assert_eq!(mount("/lib/driver"), r#""/usr/lib/driver" ["ro","nosuid","rbind"]"#);
    assert_eq!(mount("/own"), r#""/new" ["rbind"]"#);
    assert!(mount("/opt/null").starts_with(r#""/dev/null""#));
    let node = &spec["linux"]["devices"][0];
    assert_eq!((&node["path"], &node["major"], &node["minor"]), (&json!("/dev/gpu0"), &json!(1), &json!(3)));
    let rules = spec["linux"]["resources"]["devices"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule["access"] == "rw" && rule["minor"] == 3));
}
