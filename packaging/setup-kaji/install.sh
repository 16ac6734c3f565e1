#!/usr/bin/env bash
# Downloads a release of Kaji, or takes the cached one, compares its checksum, and puts it into the PATH of later steps.
#
#     KAJI_VERSION, KAJI_BASE_URL   the release: BASE_URL/vVERSION/kaji-VERSION-linux-ARCH.tar.gz
#     KAJI_CHECKSUM                 its SHA-256; when empty, that of the release's SHA256SUMS
set -euo pipefail
: "${KAJI_VERSION:?}" "${KAJI_BASE_URL:?}"
case $(uname -m) in
  x86_64) arch=amd64 ;;
  aarch64 | arm64) arch=arm64 ;;
  *) echo "::error::there is no Kaji for $(uname -m)" && exit 1 ;;
esac
cache=$HOME/.cache/setup-kaji/$KAJI_VERSION
archive=kaji-$KAJI_VERSION-linux-$arch.tar.gz
release=${KAJI_BASE_URL%/}/v$KAJI_VERSION
mkdir -p "$cache"

download() { curl --fail --silent --show-error --location --retry 5 --retry-all-errors --retry-delay 2 --output "$1.part" "$2" && mv "$1.part" "$1"; }

sum=${KAJI_CHECKSUM:-}
if [[ -z $sum ]]; then
  [[ -f $cache/SHA256SUMS ]] || download "$cache/SHA256SUMS" "$release/SHA256SUMS"
  sum=$(awk -v name="$archive" '$2 == name || $2 == "*" name { print $1 }' "$cache/SHA256SUMS")
  [[ -n $sum ]] || { echo "::error::SHA256SUMS does not name $archive" && exit 1; }
fi
matches() { [[ -f $cache/$archive && $(sha256sum "$cache/$archive" | cut -d ' ' -f 1) == "$sum" ]]; }
matches || download "$cache/$archive" "$release/$archive"
matches || { rm -f "$cache/$archive" && echo "::error::$archive does not have the checksum $sum" && exit 1; }

tools=${RUNNER_TEMP:?}/kaji
mkdir -p "$tools"
tar -xzf "$cache/$archive" -C "$tools" --strip-components 1
echo "$tools/bin" >>"${GITHUB_PATH:?}"
assets=$("$tools/bin/kaji" envtest --print-assets "$tools/envtest")
echo "assets=$assets" >>"${GITHUB_OUTPUT:?}"
echo "KUBEBUILDER_ASSETS=$assets" >>"${GITHUB_ENV:?}"
"$tools/bin/kaji" --version
