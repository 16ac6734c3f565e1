#!/usr/bin/env bash
# Starts JobSet's manager. Its webhook server, which is not called here, cannot be turned off: it gets a port by the process's id, as
# several of them run at once, and the certificate in certs/.
set -euo pipefail
port=$((12000 + $$ % 20000))
config=$(mktemp "${TMPDIR:-/tmp}/jobset.XXXXXX")
cat >"$config" <<YAML
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
health: {healthProbeBindAddress: "0"}
metrics: {bindAddress: "0"}
webhook: {host: 127.0.0.1, port: $port, certDir: $PWD/certs}
leaderElection: {leaderElect: true, resourceName: jobset, resourceNamespace: default}
internalCertManagement: {enable: false}
clientConnection: {qps: 500, burst: 500}
YAML
exec bin/jobset --config "$config"
