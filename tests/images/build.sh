#!/usr/bin/env bash
# Makes the images that tests name, and packs them into an archive: build.sh ARCHIVE [CHECKOUT]. See README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
archive=$(realpath -m "$1")
checkout=${2:-}
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
for tool in mmdebstrap busybox bash-static gcc python3; do
  command -v "$tool" >/dev/null || { echo "SKIPPED images: $tool is not there"; exit 0; }
done
e2e=registry.k8s.io/e2e-test-images
path=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
plan=$work/plan.py
echo 'plan = {"layers": {}, "images": []}' >"$plan"

# layer NAME: a new empty directory that becomes a layer.
layer() {
  mkdir -p "$work/$1"
  echo "plan['layers']['$1'] = '$work/$1'" >>"$plan"
}

# image LAYERS CONFIG NAME...: an image of layers, both in Python's syntax.
image() {
  local layers=$1 config=$2
  shift 2
  echo "plan['images'].append({'names': '$*'.split(), 'layers': $layers, 'config': $config})" >>"$plan"
}

layer pause
gcc -Os -static -s -o "$work/pause/pause" "$here/pause.c"
image "['pause']" "{'Entrypoint': ['/pause'], 'User': '65535:65535', 'Env': ['$path']}" registry.k8s.io/pause:3.10.2 registry.k8s.io/pause:3.10

# The first applet is busybox itself.
layer busybox
mkdir -p "$work"/busybox/{bin,etc,home,root,usr/bin,var/www,dev,proc,sys}
mkdir -m 1777 "$work/busybox/tmp"
cp "$(command -v busybox)" "$work/busybox/bin/busybox"
for applet in $("$work/busybox/bin/busybox" --list); do
  [[ $applet == busybox ]] || ln "$work/busybox/bin/busybox" "$work/busybox/bin/$applet"
done
ln -s ../../bin/env "$work/busybox/usr/bin/env"
# Before busybox 1.36 its shell kept variables from programs with names that no shell can set; tests have such names.
cp "$(command -v bash-static)" "$work/busybox/bin/bash"
ln -sf bash "$work/busybox/bin/sh"
printf 'root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n' >"$work/busybox/etc/passwd"
printf 'root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n' >"$work/busybox/etc/group"
image "['busybox']" "{'Cmd': ['sh'], 'Env': ['$path']}" "$e2e/busybox:1.37.0-1" "$e2e/busybox:1.36.1-1" docker.io/library/busybox:latest
image "['busybox']" "{'Cmd': ['sh'], 'User': '1234', 'Env': ['$path']}" "$e2e/nonroot:1.5" "$e2e/nonroot:1.4"

layer debian
packages=netcat-openbsd,iproute2,bind9-dnsutils,curl,ca-certificates,util-linux,procps,iputils-ping,iperf,wget,net-tools
mmdebstrap --quiet --variant=essential --include="bash,$packages" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  bookworm "$work/debian"
rm -rf "$work"/debian/{var/lib/apt/lists,var/cache/apt,dev} && mkdir -p "$work/debian/dev"
debian="{'Cmd': ['bash'], 'Env': ['$path']}"
image "['debian']" "$debian" "$e2e/glibc-dns-testing:2.0.0" "$e2e/ipc-utils:1.4" "$e2e/perl:5.26" docker.io/library/debian:bookworm

# What nginx's package adds to the base.
layer nginx
(cd "$work" && apt-get download -q nginx nginx-common >/dev/null 2>&1 && mkdir debs && mv ./*.deb debs/)
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/nginx"; done
# A directory would replace the base's link; only units for systemd are in it.
rm -rf "$work/nginx/lib"
# Without its postinst: a configuration of ours, that writes to the standard streams.
# Scripts of tests use [[ ]], which upstream's shell in these images has and Debian's has not.
mkdir -p "$work/nginx/usr/bin" && ln -sf bash "$work/nginx/usr/bin/sh"
mkdir -p "$work"/nginx/{usr/share/nginx/html,var/lib/nginx,var/log/nginx,run,etc/nginx/conf.d}
rm -rf "$work/nginx/etc/nginx/sites-enabled" "$work/nginx/usr/share/doc"
cat >"$work/nginx/etc/nginx/nginx.conf" <<'N'
daemon off;
error_log /dev/stderr;
worker_processes 1;
events {}
http {
  include mime.types;
  access_log /dev/stdout;
  server {
    listen 80;
    root /usr/share/nginx/html;
  }
}
N
cat >"$work/nginx/usr/share/nginx/html/index.html" <<'N'
<!DOCTYPE html>
<html><head><title>Welcome to nginx!</title></head><body><h1>Welcome to nginx!</h1></body></html>
N
image "['debian', 'nginx']" "{'Cmd': ['nginx'], 'ExposedPorts': {'80/tcp': {}}, 'StopSignal': 'SIGQUIT', 'Env': ['$path']}" \
  "$e2e/nginx:1.15-4" "$e2e/nginx:1.27-0" "$e2e/httpd:2.4.38-4" docker.io/library/nginx:latest

# The sample API server stores in an etcd of its own.
if command -v etcd >/dev/null; then
  layer etcd
  mkdir -p "$work/etcd/usr/local/bin" && cp "$(command -v etcd)" "$work/etcd/usr/local/bin/etcd"
  image "['debian', 'etcd']" "{'Cmd': ['etcd'], 'Env': ['$path']}" registry.k8s.io/etcd:3.6.8-0
else
  echo "SKIPPED image of etcd: etcd is not there"
fi

# programs: those of the checkout.
programs() {
  local images=$checkout/test/images
  layer agnhost
  mkdir -p "$work/agnhost/uploads" "$work/agnhost/etc"
  go_build agnhost agnhost/agnhost
  ln -s agnhost "$work/agnhost/agnhost-2"
  cp "$images"/agnhost/porter/localhost.{crt,key} "$work/agnhost/"
  cp "$work"/debian/etc/{passwd,group} "$work/agnhost/etc/"
  echo 'user-defined-in-image:x:1000:1000::/:/bin/sh' >>"$work/agnhost/etc/passwd"
  printf 'user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n' >>"$work/agnhost/etc/group"
  image "['debian', 'agnhost']" "{'Entrypoint': ['/agnhost'], 'Cmd': ['pause'], 'Env': ['$path']}" "$e2e/agnhost:2.63.0" "$e2e/agnhost:2.55"
  for animal in kitten nautilus; do
    layer "$animal"
    cp "$images/$animal"/html/* "$work/$animal/"
    image "['debian', 'agnhost', '$animal']" "{'Entrypoint': ['/agnhost'], 'Cmd': ['test-webserver'], 'Env': ['$path']}" "$e2e/$animal:1.8"
  done
  layer nonewprivs
  go_build nonewprivs nonewprivs/usr/local/bin/nnp
  chmod 6755 "$work/nonewprivs/usr/local/bin/nnp"
  image "['busybox', 'nonewprivs']" "{'Cmd': ['nnp'], 'Env': ['$path']}" "$e2e/nonewprivs:1.4"
  layer consumer
  go_build resource-consumer consumer/consumer
  go_build resource-consumer/consume-cpu consumer/consume-cpu
  image "['debian', 'consumer']" "{'Entrypoint': ['/consumer'], 'ExposedPorts': {'8080/tcp': {}}, 'Env': ['$path']}" "$e2e/resource-consumer:1.14"
  layer sample-apiserver
  go_build ../../staging/src/k8s.io/sample-apiserver sample-apiserver/sample-apiserver
  image "['debian', 'sample-apiserver']" "{'Entrypoint': ['/sample-apiserver'], 'Env': ['$path']}" "$e2e/sample-apiserver:1.29.2"
  layer regression
  go_build regression-issue-74839 regression/regression-issue-74839
  image "['busybox', 'regression']" "{'Entrypoint': ['/regression-issue-74839'], 'Env': ['$path']}" "$e2e/regression-issue-74839:1.5"
}

# go_build SOURCE FILE: a program of the checkout's test/images.
go_build() {
  mkdir -p "$(dirname "$work/$2")"
  (cd "$checkout" && CGO_ENABLED=0 GOFLAGS='-mod=vendor -buildvcs=false' go build -ldflags '-s -w' -o "$work/$2" "./test/images/$1")
}

if [[ -n $checkout ]] && command -v go >/dev/null; then
  programs
else
  echo "SKIPPED images of programs: a checkout of Kubernetes and go are needed"
fi
(cat "$plan" && echo "import json; json.dump(plan, open('$work/plan.json', 'w'))") | python3
python3 "$here/pack.py" "$archive" "$work/plan.json"
