#!/usr/bin/env bash
# What the walks of real nodes share: counting checks, waiting, reading the cluster, an image, and the end of a walk.
#
# A walk sources this in its mount namespace, with $KAJI, $KUBECTL and $work set, and then calls
#   soon TEXT COMMAND...    passes when the command succeeds within $patience seconds
#   shows WANTED COMMAND... whether what a command prints has a text in it
#   is WANTED COMMAND...    whether what a command prints is that
#   k, field KIND NAME PATH kubectl, and a field of an object
#   log POD [CONTAINER]     the log files of a container, of the pod's name if left out
#   make_image APPLET...    makes $work/busybox.tar with these applets
#   conclude NAME CODE      kills the shims that are left, removes $work, prints the counts and ends the walk
# shellcheck shell=bash
passed=0
failed=0
patience=${patience:-20}

soon() {
  local text=$1 i
  shift
  for ((i = 0; i < 10 * patience; i++)); do
    if "$@" >"$work/out" 2>&1; then
      passed=$((passed + 1))
      echo "ok   $text"
      return
    fi
    sleep 0.1
  done
  failed=$((failed + 1))
  echo "FAIL $text"
  tail -n 5 "$work/out"
}

shows() {
  local wanted=$1
  shift
  "$@" 2>&1 | grep -qF -- "$wanted"
}

k() { "$KUBECTL" "$@"; }
field() { k get "$1" "$2" -o "jsonpath=$3"; }
is() { [[ $("${@:2}") == "$1" ]]; }
log() { cat /var/log/pods/default_"$1"_*/"${2:-$1}"/*.log; }

make_image() {
  local applet
  mkdir -p "$work"/root/{bin,etc,tmp,proc,sys,dev}
  cp "$(command -v busybox)" "$work/root/bin/busybox"
  for applet in "$@"; do ln "$work/root/bin/busybox" "$work/root/bin/$applet"; done
  printf 'root:x:0:0:root:/:/bin/sh\n' >"$work/root/etc/passwd"
  printf 'root:x:0:\n' >"$work/root/etc/group"
  tar -C "$work/root" -cf "$work/busybox.tar" .
}

conclude() {
  local name=$1 code=$2 pid
  # Of a walk that failed half-way.
  for pid in $(pgrep -f "^$KAJI shim .*$work" || true); do kill -9 "$pid" 2>/dev/null || true; done
  rm -rf --one-file-system "$work" 2>/dev/null || true
  echo "$name: $passed passed, $failed failed"
  ((code != 0 || failed == 0)) || code=1
  exit "$code"
}
