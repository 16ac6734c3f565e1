#!/usr/bin/env bash
# What the walk over CRI needs of a runtime, which KAJI_CRI names: containerd (by default) or crio.
#
#   programs                the programs that it consists of
#   scheme                  of containers' ids
#   unknown_handler         its words for a handler that it does not have
#   absent_is_shown         whether a pod's status shows that its program is absent, where that is no StartError
#   configure_runtime       writes its configuration, with everything in $work and the socket $endpoint
#   start_runtime           its process is $runtime
#   runtime_answers         whether it does
#   import_image            example.com/busybox:1, of $work/image.tar
#   containers_left         a line for each
#   kill_monitors           of a walk that failed half-way: the processes that look after its containers, and what they run
# shellcheck shell=bash disable=SC2034
runtime=

case ${KAJI_CRI:-containerd} in
  containerd)
    programs=(containerd ctr runc)
    scheme=containerd
    unknown_handler='no runtime for "missing" is configured'
    configure_runtime() {
      export CONTAINERD_ADDRESS=$work/containerd.sock CONTAINERD_NAMESPACE=k8s.io
      endpoint=$CONTAINERD_ADDRESS
      configure_containerd
    }
    start_runtime() {
      containerd --config "$work/containerd.toml" >>"$work/runtime.log" 2>&1 &
      runtime=$!
    }
    runtime_answers() { ctr version; }
    import_image() { ctr images import "$work/image.tar" >/dev/null; }
    containers_left() { ctr containers ls -q; }
    kill_monitors() { kill_containerd_shims; }
    ;;
  crio)
    programs=(crio pinns conmon runc skopeo curl)
    scheme=cri-o
    unknown_handler='runtime handler missing'
    # It looks for the program when it creates the container.
    absent_is_shown() { is CreateContainerError field pod absent '{.status.containerStatuses[0].state.waiting.reason}'; }
    configure_runtime() {
      endpoint=$work/crio.sock
      # Its directories of CNI are asked of no runtime but containerd: the usual ones are covered.
      mkdir -p "$work"/cni/{net.d,bin} /etc/cni/net.d /opt/cni/bin
      mount --bind "$work/cni/net.d" /etc/cni/net.d
      mount --bind "$work/cni/bin" /opt/cni/bin
      echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$work/policy.json"
      printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/crio/root" "$work/crio/run" >"$work/storage.conf"
      cat >"$work/crio.toml" <<T
[crio]
root = "$work/crio/root"
runroot = "$work/crio/run"
storage_driver = "overlay"
version_file = "$work/crio/version"
version_file_persist = ""
clean_shutdown_file = ""
[crio.api]
listen = "$endpoint"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "$(command -v pinns)"
namespaces_dir = "$work/crio/namespaces"
container_exits_dir = "$work/crio/exits"
container_attach_socket_dir = "$work/crio/attach"
hooks_dir = []
apparmor_profile = "unconfined"
[crio.runtime.runtimes.runc]
runtime_path = "$(command -v runc)"
runtime_root = "$work/crio/runc"
monitor_path = "$(command -v conmon)"
[crio.image]
pause_image = "example.com/busybox:1"
pause_command = "/bin/sleep 1000000"
signature_policy = "$work/policy.json"
[crio.stats]
stats_collection_period = 0
T
    }
    start_runtime() {
      CONTAINERS_STORAGE_CONF=$work/storage.conf crio --config "$work/crio.toml" --config-dir "" >>"$work/runtime.log" 2>&1 &
      runtime=$!
    }
    runtime_answers() { curl -sf --unix-socket "$endpoint" http://crio/info; }
    import_image() {
      CONTAINERS_STORAGE_CONF=$work/storage.conf skopeo --policy "$work/policy.json" copy -q "docker-archive:$work/image.tar" \
        containers-storage:example.com/busybox:1
    }
    containers_left() { pgrep -fa "conmon .*$work/crio" || true; }
    kill_monitors() { pkill -9 -f "conmon .*$work/crio" || true; }
    ;;
  *)
    echo "KAJI_CRI is containerd or crio"
    exit 1
    ;;
esac
