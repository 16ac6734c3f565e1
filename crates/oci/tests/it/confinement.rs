//! What containers may not do.

use crate::common::node;
use kaji_containers::{ContainerRuntime, Mount, SecurityProfile};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn the_default_profile_blocks_calls() {
    let Some(node) = node("seccomp").await else { return };
    let script = "unshare -r true; echo $?; grep Seccomp: /proc/self/status".replace("grep", "busybox grep");
    let mut config = node.script(&script);
    config.security.seccomp = SecurityProfile::RuntimeDefault;
    let (_, text) = node.run(config).await;
    assert!(text.contains("Operation not permitted") && text.contains("Seccomp:\t2"), "{text}");
    let (_, text) = node.run(node.script(&script)).await;
    assert!(text.contains("Seccomp:\t0"), "{text}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_localhost_profile_is_loaded() {
    let Some(node) = node("localhost").await else { return };
    let path = node.directory.path().join("profile.json");
    let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}]}"#;
    std::fs::write(&path, profile).unwrap();
    let mut config = node.script("mkdir /tmp/a");
    config.security.seccomp = SecurityProfile::Localhost(path.display().to_string());
    let (status, text) = node.run(config).await;
    assert!(status.exit_code == 1 && text.contains("No space left"), "{text}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_apparmor_profile_confines_containers_and_their_commands() {
    if !kaji_files::has_apparmor("/sys".as_ref()) || kaji_files::apparmor_parser().is_none() {
        return kaji_testing::skip::skipped("apparmor", "needs a kernel with AppArmor, and its parser");
    }
    let Some(node) = node("apparmor").await else { return };
    let script = "cat /proc/self/attr/current; mkdir /tmp/m; mount -t tmpfs m /tmp/m && echo mounted; sh -c 'kill -TERM $$'; echo $?";
    let with = |profile: Option<SecurityProfile>, privileged: bool| {
        let mut config = node.script(script);
        config.security.capabilities.add = vec!["SYS_ADMIN".into()];
        (config.security.apparmor, config.security.privileged) = (profile, privileged);
        config
    };
    // Without a profile that is asked for the default one confines, too.
    for profile in [None, Some(SecurityProfile::RuntimeDefault)] {
        let (_, text) = node.run(with(profile, false)).await;
        assert!(text.contains("kaji-default (enforce)") && text.contains("Permission denied"), "{text}");
        assert!(!text.contains("mounted") && text.contains("143"), "{text}");
    }
    for (profile, privileged) in [(Some(SecurityProfile::Unconfined), false), (None, true)] {
        let (_, text) = node.run(with(profile, privileged)).await;
        assert!(text.contains("unconfined") && text.contains("mounted"), "{text}");
    }
    let sandbox = node.sandbox().await;
    let unknown = with(Some(SecurityProfile::Localhost("no-such-profile".into())), false);
    let error = node.runtime().create_container(&sandbox, unknown).await.unwrap_err();
    assert_eq!(error.to_string(), "apparmor profile not found no-such-profile");
    // The runtime's signals reach it, and commands are confined as it is.
    let id = node.start(&sandbox, node.script("sleep 1000")).await;
    let command = ["cat", "/proc/self/attr/current"].map(str::to_owned).to_vec();
    let output = node.runtime().exec_sync(&id, command, Duration::from_secs(10)).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "kaji-default (enforce)");
    node.runtime().stop_container(&id, Duration::from_secs(0)).await.unwrap();
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn capabilities_are_those_configured() {
    let Some(node) = node("caps").await else { return };
    let script = "busybox grep -E 'Cap(Eff|Prm|Bnd|Inh|Amb)' /proc/self/status";
    let caps = |text: &str| -> Vec<u64> {
        text.lines().map(|l| u64::from_str_radix(l.rsplit('\t').next().unwrap(), 16).unwrap()).collect()
    };
    let (_, text) = node.run(node.script(script)).await;
    // Without the rules for devices that version 1 of cgroups has, CAP_MKNOD is not given.
    let unified = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let default = if unified { 0xa004_25fb } else { 0xa804_25fb };
    // Inheritable, permitted, effective, bounding, ambient.
    assert_eq!(caps(&text), [0, default, default, default, 0]);
    let mut config = node.script(script);
    config.security.capabilities.drop = vec!["ALL".into()];
    config.security.capabilities.add = vec!["NET_BIND_SERVICE".into()];
    config.security.seccomp = SecurityProfile::RuntimeDefault;
    let (_, text) = node.run(config).await;
    assert_eq!(caps(&text), [0, 0x400, 0x400, 0x400, 0]);
    let mut config = node.script(script);
    config.security.run_as_user = Some(33);
    let (_, text) = node.run(config).await;
    assert_eq!(caps(&text)[1..3], [0, 0]);
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_protected() {
    let Some(node) = node("files").await else { return };
    let mut config = node.script("touch /x; touch /tmp/v/y; echo 1 > /proc/sys/kernel/shmmax; cat /proc/keys; cat /etc/resolv.conf | head -1; mount | busybox grep -c ' / '; touch /tmp/w/z && echo written");
    config.security.readonly_rootfs = true;
    let volume = node.directory.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let host_path = volume.display().to_string();
    let mount = |path: &str, readonly| Mount {
        container_path: path.into(),
        host_path: host_path.clone(),
        readonly,
        ..Default::default()
    };
    config.mounts = vec![mount("/tmp/w", false), mount("/tmp/v", true)];
    for path in ["tmp/v", "tmp/w"] {
        std::fs::create_dir_all(node.directory.path().join("layer").join(path)).unwrap();
    }
    let (_, text) = node.run(config).await;
    assert_eq!(text.matches("Read-only file system").count(), 3, "{text}");
    assert!(
        text.contains("/proc/sys/kernel/shmmax: Read-only file system") || text.contains("can't create"),
        "{text}"
    );
    assert!(text.contains("written") && volume.join("z").exists(), "{text}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_looked_up_in_the_image() {
    let Some(node) = node("users").await else { return };
    let mut config = node.script("id -u; id -g; id -G; echo x > /dev/stderr && echo $HOME");
    config.security.run_as_username = "web".into();
    config.security.supplemental_groups = vec![1234];
    let (status, text) = node.run(config).await;
    assert_eq!(status.user.unwrap().supplemental_groups, [34, 50, 1234]);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert!(lines.contains(&"33") && lines.contains(&"34") && lines.contains(&"x"), "{text}");
    assert!(lines.contains(&"/home/web"), "{text}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_made_can_be_read_by_the_containers_user() {
    let Some(node) = node("umask").await else { return };
    let volume = node.directory.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("f"), "read\n").unwrap();
    let mut config = node.script("umask; cat /made/on/the/way/f");
    config.security.run_as_user = Some(1000);
    config.mounts = vec![Mount {
        container_path: "/made/on/the/way".into(),
        host_path: volume.display().to_string(),
        ..Default::default()
    }];
    let (_, text) = node.run(config).await;
    assert_eq!(text, "0022\nread\n");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_and_the_nodes_files_do_not_leak() {
    let Some(node) = node("leak").await else { return };
    let (_, text) = node.run(node.script("ls /proc/self/fd; ls /; env")).await;
    let descriptors = text.lines().filter(|line| line.parse::<u32>().is_ok()).count();
    // Standard streams and the directory that is listed.
    assert_eq!(descriptors, 4, "{text}");
    assert!(!text.contains("layer") && !text.contains("KAJI"), "{text}");
    node.finish().await;
}
