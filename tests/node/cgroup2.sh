#!/usr/bin/env bash
# The container runtime's tests on a kernel with cgroup v2 alone: Debian's cloud kernel in qemu, with the tests and what they need as
# its initial file system.
#
#     bash tests/node/cgroup2.sh
#
# It needs qemu-system-x86_64, busybox (static), cpio, and the kernel's package, which it fetches with apt-get unless KAJI_KERNEL_PACKAGE
# is the file. Without them it is skipped. KAJI_OCI_TEST is the program of the tests of kaji-oci, if it is built already.
set -euo pipefail
for tool in qemu-system-x86_64 busybox cpio dpkg-deb apt-get; do
  command -v "$tool" >/dev/null || { echo "SKIPPED cgroup2: $tool is not there"; exit 0; }
done
[[ $(uname -m) == x86_64 ]] || { echo "SKIPPED cgroup2: another architecture than x86_64"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

package=${KAJI_KERNEL_PACKAGE-}
if [[ -z $package ]]; then
  name=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
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

root=$work/root
mkdir -p "$root"/{bin,usr/bin,etc,proc,sys,dev,tmp,run,mnt,new,lib64}
cp "$(command -v busybox)" "$root/usr/bin/busybox"
ln -s /usr/bin/busybox "$root/bin/sh"
cp "$test" "$root/tests"
cp "$shim" "$root/shim"
find "$work/kernel/lib/modules" -name 'overlay.ko*' -exec cp {} "$root/overlay.ko" \;
ldd "$test" "$shim" | grep -o '/[^ ]*' | grep '\.so' | sort -u | while read -r library; do
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
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=1777 tmpfs /tmp
insmod /overlay.ko
ip link set lo up
echo "kernel $(uname -r), $(stat -f -c %T /sys/fs/cgroup)"
# As the kubelet does at its start.
for controller in cpu cpuset memory pids io; do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
export KAJI_OCI_SHIM=/shim PATH=/bin:/usr/bin RUST_BACKTRACE=0 KAJI_TEST_SKIPS=/tmp/skips
/tests --test-threads 2
echo "exit code $?"
cat /tmp/skips 2>/dev/null
poweroff -f
I
chmod +x "$root/init" "$root/second"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initrd"

# By emulation: virtual machines within virtual machines are refused, or do not go on, on many hosts.
timeout 900 qemu-system-x86_64 -M q35,accel=tcg -cpu max -smp 2 -m 2048 -nographic -no-reboot -nic none \
  -kernel "$(echo "$work"/kernel/boot/vmlinuz-*)" -initrd "$work/initrd" \
  -append "console=ttyS0 panic=-1 quiet cgroup_no_v1=all" </dev/null 2>&1 | tr -d '\r' | tee "$work/log"
grep -q '^exit code 0$' "$work/log"
