#!/bin/sh
# Usage: local-webhooks.sh DIR [PORT] | kubectl apply -f -
# Makes a certificate for 127.0.0.1 in DIR (tls.crt, tls.key) and prints the webhooks' configuration for an operator that
# serves them there.
set -eu
dir=${1:?usage: local-webhooks.sh DIR [PORT]} port=${2:-9443}
mkdir -p "$dir"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=webapp-operator \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$dir/tls.key" -out "$dir/tls.crt" 2>"$dir/openssl.log" || {
    cat "$dir/openssl.log" >&2
    exit 1
}
trust=$(base64 <"$dir/tls.crt" | tr -d '\n')
sed "s|clientConfig: .*path: \([^}]*\)}}|clientConfig: {url: \"https://127.0.0.1:$port\1\", caBundle: $trust}|" \
    "$(dirname "$0")/webapp-webhooks.yaml"
