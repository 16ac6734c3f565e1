//! Published ways out of containers, tried from inside.

use crate::common::{Node, node};
use kaji_containers::{
    ContainerConfig, ContainerRuntime, ContainerState, Device, Mount, NamespaceMode, SecurityProfile,
};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

/// A container as the kubelet asks for one of a pod that sets nothing.
fn plain(node: &Node, text: &str) -> ContainerConfig {
    let mut config = node.script(text);
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    config.security.masked_paths = paths(&[
        "/proc/asound",
        "/proc/acpi",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/sys/firmware",
    ]);
    config.security.readonly_paths =
        paths(&["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]);
    config
}

/// A device of the node, `/dev/mem`, by its numbers.
const MEMORY: &str = "c 1 1";

/// Each line tries something that would reach the node, and prints ESCAPED where it was not refused.
const TRIES: &str = r#"
tried() { "$@" 2>/dev/null && echo "ESCAPED: $*"; }
wrote() { sh -c "echo '$1' > $2" 2>/dev/null && echo "ESCAPED: wrote $2"; }
wrote core /proc/sys/kernel/core_pattern
wrote x /proc/sys/kernel/modprobe
wrote b /proc/sysrq-trigger
wrote 1 /proc/sys/vm/drop_caches
wrote x /sys/kernel/uevent_helper
wrote 0 /proc/self/oom_score_adj.none
for f in $(busybox find /sys -maxdepth 2 -type f 2>/dev/null | head -n 50); do [ ! -e "$f" ] || tried touch "$f"; done
for f in /proc/kcore /proc/keys /proc/timer_list /proc/interrupts; do
  [ -z "$(head -c 16 $f 2>/dev/null)" ] || echo "ESCAPED: read $f"
done
[ -z "$(ls /sys/firmware 2>/dev/null)" ] || echo "ESCAPED: /sys/firmware"
mknod /tmp/memory DEVICE 2>/dev/null && tried head -c 1 /tmp/memory
mknod /dev/memory DEVICE 2>/dev/null && tried head -c 1 /dev/memory
for d in $(busybox find /sys/fs/cgroup -type d); do
  tried mkdir "$d/kaji-escape" && rmdir "$d/kaji-escape"
  for f in release_agent notify_on_release memory.limit_in_bytes memory.max cgroup.procs devices.allow tasks; do
    [ ! -e "$d/$f" ] || wrote 1 "$d/$f"
  done
done
[ ! -e /sys/fs/cgroup/release_agent ] || echo "ESCAPED: the root of a hierarchy"
tried mount -t proc proc /tmp
tried mount --bind / /tmp
tried mount -o remount,rw /proc/sys
tried mount -o remount,rw /sys
tried chroot /proc/1/root/.. busybox true.none
tried busybox nsenter -t 1 -m true.none
tried busybox insmod /tmp/x.ko
tried busybox swapoff -a
tried busybox hostname escaped
for p in /proc/[0-9]*; do
  [ "$p" = /proc/$$ ] || [ ! -e "$p/root/MARKER" ] || echo "ESCAPED: $p/root"
done
[ ! -e /MARKER ] || echo "ESCAPED: the node's files"
echo tried
"#;

async fn tries(node: &Node, change: impl Fn(&mut ContainerConfig), network: NamespaceMode) -> String {
    let marker = node.directory.path().join("marker");
    std::fs::write(&marker, "of the node").unwrap();
    let text = TRIES.replace("/MARKER", &marker.display().to_string()).replace("DEVICE", MEMORY);
    let mut config = plain(node, &text);
    change(&mut config);
    let mut pod = node.sandbox_config();
    pod.security.namespaces.network = network;
    config.security.namespaces.network = network;
    let sandbox = node.runtime().run_pod_sandbox(pod).await.unwrap();
    let id = node.start(&sandbox, config).await;
    let output = node.output(&node.ended(&id).await);
    node.runtime().remove_pod_sandbox(&sandbox).await.unwrap();
    assert!(output.ends_with("tried\n"), "{output}");
    output.lines().filter(|line| line.starts_with("ESCAPED")).map(|line| format!("{line}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel_interfaces_are_out_of_reach() {
    let Some(node) = node("interfaces").await else { return };
    let escaped = tries(&node, |_| {}, NamespaceMode::Pod).await;
    assert_eq!(escaped, "", "without a profile");
    let confined = |config: &mut ContainerConfig| config.security.seccomp = SecurityProfile::RuntimeDefault;
    assert_eq!(tries(&node, confined, NamespaceMode::Pod).await, "", "with the default profile");
    assert_eq!(tries(&node, confined, NamespaceMode::Node).await, "", "in the node's network");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_working_directory_leads_out() {
    let Some(node) = node("workdir").await else { return };
    let marker = node.directory.path().join("marker");
    std::fs::write(&marker, "of the node").unwrap();
    let sandbox = node.sandbox().await;
    let text = format!("cat ../../../../../../../../{0} && echo ESCAPED; echo tried", marker.display());
    for number in 3..24 {
        for directory in [format!("/proc/self/fd/{number}"), format!("/proc/self/fd/{number}/../../..")] {
            let mut config = plain(&node, &text);
            config.working_dir = directory.clone();
            let id = node.runtime().create_container(&sandbox, config).await.unwrap();
            if node.runtime().start_container(&id).await.is_ok() {
                let output = node.output(&node.ended(&id).await);
                assert!(!output.contains("ESCAPED"), "{directory}: {output}");
            }
            node.runtime().remove_container(&id).await.unwrap();
        }
    }
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runtimes_program_cannot_be_written() {
    let Some(node) = node("program").await else { return };
    let sandbox = node.sandbox().await;
    // The program that enters the container is the runtime's own.
    symlink("/proc/self/exe", node.directory.path().join("layer/bin/evil")).unwrap();
    let id = node.start(&sandbox, plain(&node, "exec sleep 1000")).await;
    let evil = vec!["/bin/evil".to_owned()];
    let ran = node.runtime().exec_sync(&id, evil, Duration::from_secs(20)).await;
    assert!(ran.as_ref().is_err() || ran.as_ref().is_ok_and(|output| output.exit_code != 0), "{ran:?}");
    // Not "text file busy", which ends when no process runs the program.
    let pid = node.runtime().container_status(&id).await.unwrap().pid.cast_signed();
    let shim = crate::recovery::shim_of(pid.cast_unsigned());
    let opened = std::fs::File::options().write(true).truncate(true).open(format!("/proc/{shim}/exe"));
    assert_eq!(opened.map(drop).map_err(|error| error.raw_os_error()), Err(Some(30)));
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_in_images_do_not_lead_mounts_out() {
    let Some(node) = node("links").await else { return };
    let outside = node.directory.path().join("outside");
    let volume = node.directory.path().join("volume");
    for directory in [&outside, &volume] {
        std::fs::create_dir(directory).unwrap();
    }
    let layer = node.directory.path().join("layer");
    symlink(&outside, layer.join("absolute")).unwrap();
    symlink(format!("../../../../../../..{}", outside.display()), layer.join("relative")).unwrap();
    symlink(outside.join("file"), layer.join("file")).unwrap();
    let mut config = plain(&node, "echo x > /absolute/made/here; ls /absolute; echo done");
    config.mounts = ["/absolute/made", "/relative/made", "/file"]
        .map(|path| Mount {
            container_path: path.into(),
            host_path: volume.display().to_string(),
            ..Default::default()
        })
        .to_vec();
    let sandbox = node.sandbox().await;
    let id = node.runtime().create_container(&sandbox, config).await.unwrap();
    if node.runtime().start_container(&id).await.is_ok() {
        node.ended(&id).await;
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "the node's directory was written");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_became_a_link_is_not_followed() {
    let Some(node) = node("log-link").await else { return };
    let sandbox = node.sandbox().await;
    let script = "echo one; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo two; exec sleep 1000";
    let id = node.start(&sandbox, plain(&node, script)).await;
    node.printed(&id, "one").await;
    let log = node.runtime().container_status(&id).await.unwrap().log_path;
    let secret = node.directory.path().join("secret");
    std::fs::write(&secret, "of the node\n").unwrap();
    std::fs::remove_file(&log).unwrap();
    symlink(&secret, &log).unwrap();
    assert!(node.runtime().reopen_container_log(&id).await.is_err());
    let go = ["touch", "/tmp/go"].map(str::to_owned).to_vec();
    node.runtime().exec_sync(&id, go, Duration::from_secs(20)).await.unwrap();
    node.runtime().stop_container(&id, Duration::ZERO).await.unwrap();
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of the node\n");
    let again = node.runtime().create_container(&sandbox, plain(&node, "echo three")).await.unwrap();
    let path = node.runtime().container_status(&again).await.unwrap().log_path;
    symlink(&secret, &path).unwrap();
    assert!(node.runtime().start_container(&again).await.is_err());
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of the node\n");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_volumes_cannot_be_written() {
    let Some(node) = node("image-volume").await else { return };
    let text = "touch /i/new || echo refused; rm -f /i/bin/busybox; echo x > /i/etc/passwd; chmod 777 /i/etc; cat /i/etc/passwd | head -1";
    let mut config = plain(&node, text);
    config.mounts = vec![Mount {
        container_path: "/i".into(),
        image: Some("busybox".into()),
        readonly: true,
        ..Default::default()
    }];
    let (_, output) = node.run(config).await;
    assert!(output.contains("refused") && output.contains("root:x:0:0"), "{output}");
    let passwd = std::fs::read_to_string(node.directory.path().join("layer/etc/passwd")).unwrap();
    assert!(passwd.starts_with("root:x:0:0"), "{passwd}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_sees_its_own_devices_and_descriptors() {
    let Some(node) = node("devices").await else { return };
    let sandbox = node.sandbox().await;
    let mut config = plain(&node, "ls /dev; echo end; exec sleep 1000");
    config.devices = vec![Device {
        container_path: "/dev/given".into(),
        host_path: "/dev/zero".into(),
        permissions: "r".into(),
    }];
    let id = node.start(&sandbox, config).await;
    node.printed(&id, "end").await;
    let listed = node.output(&node.runtime().container_status(&id).await.unwrap());
    let expected = "fd full given mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero end";
    assert_eq!(words(&listed), expected);
    let command = ["/bin/sh", "-c", "ls -l /proc/self/fd; head -c 1 /dev/given | busybox wc -c"];
    let exec = command.map(str::to_owned).to_vec();
    let output = node.runtime().exec_sync(&id, exec, Duration::from_secs(20)).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Three streams; the directory that is listed leads nowhere any more.
    assert_eq!(text.matches(" -> ").count(), 3, "{text}");
    assert!(!text.contains(&node.directory.path().display().to_string()), "{text}");
    assert!(text.ends_with("\n1\n"), "{text}");
    node.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shims_socket_is_for_root_on_the_node_alone() {
    use std::os::unix::fs::PermissionsExt;
    let Some(node) = node("socket").await else { return };
    let sandbox = node.sandbox().await;
    let id = node.start(&sandbox, plain(&node, "exec sleep 1000")).await;
    assert_eq!(node.runtime().container_status(&id).await.unwrap().info.state, ContainerState::Running);
    let bundle = node.state().join("containers").join(&id);
    for directory in [node.state().as_path(), node.state().join("containers").as_path(), bundle.as_path()] {
        let mode = std::fs::metadata(directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", directory.display());
    }
    // No socket of a shim has an abstract name, which all of the node's network could connect to.
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let state = node.state().display().to_string();
    assert!(sockets.lines().all(|line| !line.contains('@') || !line.contains(&state)));
    assert!(Path::new(&bundle).join("shim.sock").exists());
    node.finish().await;
}

/// But for the link to `/proc/kcore`, where the kernel has that.
fn words(listed: &str) -> String {
    listed.split_whitespace().filter(|name| *name != "kcore").collect::<Vec<_>>().join(" ")
}
