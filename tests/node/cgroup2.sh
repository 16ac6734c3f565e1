#!/usr/bin/env bash
# The container runtime's tests on a kernel with AppArmor and cgroup v2 alone: Debian's cloud kernel in qemu, with the tests and what they
# need as its initial file system. Then a node without root in a cgroup that belongs to its user, as systemd delegates one: limits
# count, and what pods use is known.
#
#     KAJI=target/release/kaji KUBECTL=kubectl bash tests/node/cgroup2.sh
#
# It needs qemu-system-x86_64, busybox (static), cpio, and the kernel's package, which it fetches with apt-get unless KAJI_KERNEL_PACKAGE
# is the file. Without them it is skipped, and the node without kaji and kubectl. The package apparmor, which has the parser of profiles,
# is fetched, too; without it the test of AppArmor is skipped. KAJI_OCI_TEST is the program of the tests of kaji-oci, if it is built already.
set -euo pipefail
KAJI=${KAJI:-target/release/kaji}
KUBECTL=$(command -v "${KUBECTL:-kubectl}" || true)
for tool in qemu-system-x86_64 busybox cpio dpkg-deb apt-get; do
  command -v "$tool" >/dev/null || { echo "SKIPPED cgroup2: $tool is not there"; exit 0; }
done
[[ $(uname -m) == x86_64 ]] || { echo "SKIPPED cgroup2: another architecture than x86_64"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

package=${KAJI_KERNEL_PACKAGE-}
if [[ -z $package ]]; then
  name=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | sed -n 1p)
  if [[ -z $name ]] || ! (cd "$work" && apt-get download -qq "$name" >/dev/null 2>&1); then
    echo "SKIPPED cgroup2: the package linux-image-cloud-amd64 cannot be fetched"
    exit 0
  fi
  package=$(echo "$work"/linux-image-*.deb)
fi
dpkg-deb -x "$package" "$work/kernel"

test=${KAJI_OCI_TEST-}
if [[ -z $test ]]; then
  test=$(cargo test -p kaji-oci --test it --no-run 2>&1 | sed -n 's/.*Executable.*(\(.*\))/\1/p')
fi
test=$(realpath "$test")
shim=$(dirname "$(dirname "$test")")/kaji-oci-shim

parser=
if (cd "$work" && apt-get download -qq apparmor >/dev/null 2>&1); then
  dpkg-deb -x "$work"/apparmor_*.deb "$work/apparmor"
  parser=$(find "$work/apparmor" -path '*sbin/apparmor_parser')
fi
[[ -n $parser ]] || echo "SKIPPED apparmor: the package apparmor cannot be fetched"

root=$work/root
mkdir -p "$root"/{bin,usr/bin,etc,proc,sys,dev,tmp,run,mnt,new,lib64}
cp "$(command -v busybox)" "$root/usr/bin/busybox"
ln -s /usr/bin/busybox "$root/bin/sh"
cp "$test" "$root/tests"
cp "$shim" "$root/shim"
# Modules for containers and their network; the kernel loads those of rules by itself.
version=$(basename "$work"/kernel/lib/modules/*)
for modules in fs/overlayfs lib net/802 net/bridge net/core net/ipv4 net/ipv6 net/llc net/netfilter net/sched drivers/net; do
  mkdir -p "$root/lib/modules/$version/kernel/$(dirname "$modules")"
  cp -r "$work/kernel/lib/modules/$version/kernel/$modules" "$root/lib/modules/$version/kernel/$modules" 2>/dev/null || true
done
find "$root/lib/modules" -name '*.ko.xz' -exec unxz {} +
touch "$root/lib/modules/$version/modules.builtin" "$root/lib/modules/$version/modules.order"
busybox depmod -b "$root" "$version"
programs=("$test" "$shim")
if [[ -n $parser ]]; then
  mkdir -p "$root/sbin" "$root/etc/apparmor.d"
  cp "$parser" "$root/sbin/apparmor_parser"
  cp -r "$work/apparmor/etc/apparmor.d/abi" "$root/etc/apparmor.d/"
  programs+=("$parser")
fi
if [[ -x $KAJI && -n $KUBECTL ]]; then
  cp "$KAJI" "$root/kaji"
  cp -L "$KUBECTL" "$root/kubectl"
  programs+=("$KAJI")
  ! file -L "$KUBECTL" 2>/dev/null | grep -q 'dynamically linked' || programs+=("$KUBECTL")
else
  echo "SKIPPED cgroup2-rootless: kaji or kubectl is not there"
fi
ldd "${programs[@]}" | grep -o '/[^ ]*' | grep '\.so' | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done
printf 'root:x:0:0::/:/bin/sh\n' >"$root/etc/passwd"
echo "nameserver 192.0.2.1" >"$root/etc/resolv.conf"

# A root file system of memory, since that of the kernel's own cannot be left, as containers have to.
cat >"$root/init" <<'I'
#!/usr/bin/busybox sh
/usr/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /new
for entry in /*; do case $entry in /new|/proc|/sys|/dev) ;; *) cp -a "$entry" /new/ ;; esac; done
mkdir -p /new/proc /new/sys /new/dev
umount /proc
exec switch_root /new /second
I
cat >"$root/second" <<'I'
#!/usr/bin/busybox sh
mount -t proc proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t securityfs securityfs /sys/kernel/security
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=1777 tmpfs /tmp
modprobe overlay
ip link set lo up
hostname walker
echo "kernel $(uname -r), $(stat -f -c %T /sys/fs/cgroup)"
# As the kubelet does at its start.
for controller in cpu cpuset memory pids io; do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
export KAJI_OCI_SHIM=/shim PATH=/bin:/usr/bin RUST_BACKTRACE=0 KAJI_TEST_SKIPS=/tmp/skips
/tests --test-threads 2
echo "exit code $?"
cat /tmp/skips 2>/dev/null
[ ! -x /kaji ] || /rootless
poweroff -f
I
cat >"$root/rootless" <<'I'
#!/usr/bin/busybox sh
modprobe -a bridge br_netfilter veth nf_tables nft_chain_nat nft_ct nft_masq nft_nat nft_fib nft_fib_inet nft_numgen nft_reject nft_reject_inet
export KUBECONFIG=/tmp/kubeconfig
home=/home/walker
mkdir -p $home /tmp/image/bin /tmp/image/etc /tmp/image/tmp
echo 'walker:x:1000:1000::/home/walker:/bin/sh' >>/etc/passwd
echo 'walker:x:1000:' >>/etc/group
chown 1000:1000 $home
chmod 755 / /home
cp /usr/bin/busybox /tmp/image/bin/busybox
for applet in sh sleep cat head tail echo; do ln -s /bin/busybox /tmp/image/bin/$applet; done
echo 'root:x:0:0::/:/bin/sh' >/tmp/image/etc/passwd
tar -C /tmp/image -cf /tmp/image.tar .
failures=0
soon() {
  text=$1
  shift
  end=$(($(date +%s) + 120))
  while [ "$(date +%s)" -lt $end ]; do
    if "$@" >/tmp/out 2>&1; then echo "ok   rootless: $text"; return; fi
    sleep 1
  done
  failures=$((failures + 1))
  echo "FAIL rootless: $text"
  tail -n 5 /tmp/out /tmp/kaji.log
}
shows() { wanted=$1; shift; "$@" 2>&1 | grep -qF -- "$wanted"; }
as_user() { su walker -c "cd $home && HOME=$home exec $*"; }
cgroup=/sys/fs/cgroup/walker.service
mkdir $cgroup
chown 1000:1000 $cgroup $cgroup/cgroup.procs $cgroup/cgroup.subtree_control $cgroup/cgroup.threads
cat >/tmp/kubelet.yaml <<'Y'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
memoryReservationPolicy: TieredReservation
memoryThrottlingFactor: 1.0
Y
chmod 644 /tmp/kubelet.yaml
as_user /kaji image --data-dir $home/data import /tmp/image.tar example.com/busybox:1 --cmd /bin/sh || failures=1
start() {
  (
    echo 0 >$cgroup/cgroup.procs
    as_user /kaji up --nodes real --data-dir $home/data --port 6443 --kubeconfig $home/kubeconfig --kubelet-config /tmp/kubelet.yaml >>/tmp/kaji.log 2>&1
  ) &
}
start
soon "it starts" test -s $home/kubeconfig
cp $home/kubeconfig $KUBECONFIG
# One process that waits is less work for an emulated machine than many that look.
becomes() { /kubectl wait "$1" --for "$2" --timeout 240s; }
soon "the node is there" shows node/ /kubectl get nodes -o name
node=$(/kubectl get nodes -o name)
soon "and ready" becomes "$node" condition=Ready
echo "     $(grep 'without root' /tmp/kaji.log)"
has_limits() { grep -q 'without root' /tmp/kaji.log && ! grep 'without root' /tmp/kaji.log | grep -q limits; }
soon "nothing is said of limits that do not count" has_limits
soon "accounts exist" becomes serviceaccount/default create
pod() {
  /kubectl apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers: [{name: $1, image: "example.com/busybox:1", command: [sh, -c, "$2"], resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 500m, memory: 32Mi}}}]
Y
}
pod limited "echo started; sleep 100000"
soon "a pod with limits runs" becomes pod/limited condition=Ready
inside=$(find $cgroup -type d -path '*kubepods*/pod*/*' -print -quit)
of_inside() { [ "$(cat "$inside/$1")" = "$2" ]; }
soon "its memory is limited" of_inside memory.max 33554432
soon "its processor time is limited" of_inside cpu.max "50000 100000"
soon "what it requests of memory is protected" of_inside memory.low 16777216
soon "and it is throttled from its limit on" of_inside memory.high 33554432
of_pod() { [ "$(cat "$(dirname "$inside")/$1")" = "$2" ]; }
soon "the pod's memory is protected" of_pod memory.low 16777216
of_tier() { [ "$(cat "$(dirname "$(dirname "$inside")")/$1")" = "$2" ]; }
soon "and its tier's" of_tier memory.low 16777216
sleeps_inside() { for pid in $(cat "$inside/cgroup.procs"); do grep -q 100000 /proc/$pid/cmdline && return; done; return 1; }
soon "its processes are there" sleeps_inside
pod greedy "head -c 100m /dev/zero | tail >/dev/null; exit 3"
soon "what takes too much memory is killed" becomes pod/greedy "jsonpath={.status.containerStatuses[0].state.terminated.reason}=OOMKilled"
uses_memory() { /kubectl get --raw "/api/v1/nodes/${node#node/}/proxy/stats/summary" | grep -A 40 '"name":"limited"' | grep -q '"workingSetBytes":[1-9]'; }
soon "what it uses is known" uses_memory
/kubectl patch pod limited --subresource resize --patch '{"spec":{"containers":[{"name":"limited","resources":{"limits":{"memory":"48Mi"}}}]}}' >/dev/null
soon "it is resized in place" of_inside memory.max 50331648
soon "and throttled from there on" of_inside memory.high 50331648
/kubectl delete pod limited greedy >/dev/null
no_pods() { [ -z "$(find $cgroup -type d -path '*kubepods*/pod*')" ]; }
soon "cgroups of pods that are gone are removed" no_pods
echo "rootless: $failures failed"
I
chmod +x "$root/init" "$root/second" "$root/rootless"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initrd"

# By emulation: virtual machines within virtual machines are refused, or do not go on, on many hosts.
timeout 1500 qemu-system-x86_64 -M q35,accel=tcg -cpu max -smp 2 -m 3072 -nographic -no-reboot -nic none \
  -kernel "$(echo "$work"/kernel/boot/vmlinuz-*)" -initrd "$work/initrd" \
  -append "console=ttyS0 panic=-1 quiet cgroup_no_v1=all" </dev/null 2>&1 | sed -u 's|\r||g' | tee "$work/log"
grep -q '^exit code 0$' "$work/log"
[[ ! -x $root/kaji ]] || grep -q '^rootless: 0 failed$' "$work/log"
