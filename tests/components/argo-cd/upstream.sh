#!/usr/bin/env bash
# Argo CD's own end-to-end tests for argo-cd.sh, which sources this: what `make start-e2e-local` starts, and then the tests one by one,
# so that one that ends its process takes no other with it. As upstream's own run does, a test that fails is tried again.
# shellcheck shell=bash disable=SC2154

# Its tests have this folder, and the ports below. The script that started this one removes it.
folder=/tmp/argo-e2e
# They are in a folder beside one with the program; a module's files are not to be written to, nor to be executed.
mkdir -p "$work/argo-cd/dist"
ln -s "$COMPONENTS_BIN/argocd" "$work/argo-cd/dist/argocd"
cp -r "$tree/test" "$tree/manifests" "$work/argo-cd"
chmod -R u+w "$work/argo-cd"
for tool in gpg-wrapper git-verify-wrapper git-ask-pass; do install -m 755 "$tree/hack/$tool.sh" "$work/tools/$tool.sh"; done
# They end every gpg-agent by name; here there are only their own.
export GNUPGHOME=$work/home/gnupg
mkdir -m 700 -p "$GNUPGHOME" "$folder"/app/config/{gpg/keys,gpg/source,plugin,tls,ssh}
chmod 700 "$folder"/app/config/{gpg/keys,gpg/source,plugin}
unset GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
git config --global user.name a
git config --global user.email a@example.com

kubectl config set-context --current --namespace=argocd-e2e >/dev/null
for namespace in argocd-e2e argocd-e2e-external argocd-e2e-external-2; do kubectl create namespace "$namespace" >/dev/null; done
ok "the manifests of upstream's tests are applied" eval "kubectl kustomize '$work/argo-cd/test/manifests/base' | kubectl apply --server-side --force-conflicts -f -"
ok "and the CRD of placements" kubectl apply -f "$ARGO_CD_CLUSTERS/cluster/v1alpha1/0000_04_clusters.open-cluster-management.io_placementdecisions.crd.yaml"

export ARGOCD_SSH_DATA_PATH=$folder/app/config/ssh ARGOCD_TLS_DATA_PATH=$folder/app/config/tls ARGOCD_GPG_DATA_PATH=$folder/app/config/gpg/source
export ARGOCD_GNUPGHOME=$folder/app/config/gpg/keys ARGOCD_GPG_ENABLED=true ARGOCD_PLUGINCONFIGFILEPATH=$folder/app/config/plugin
export ARGOCD_PLUGINSOCKFILEPATH=$folder/app/config/plugin ARGOCD_ZJWT_FEATURE_FLAG=always ARGOCD_E2E_TEST=true ARGOCD_HYDRATOR_ENABLED=true
export ARGOCD_APPLICATION_NAMESPACES=argocd-e2e-external,argocd-e2e-external-2 ARGOCD_CLUSTER_CACHE_EVENTS_PROCESSING_INTERVAL=1ms
export ARGOCD_APPLICATIONSET_CONTROLLER_NAMESPACES=$ARGOCD_APPLICATION_NAMESPACES ARGOCD_APPLICATIONSET_CONTROLLER_TOKENREF_STRICT_MODE=true
export ARGOCD_APPLICATIONSET_CONTROLLER_ALLOWED_SCM_PROVIDERS=http://127.0.0.1:8341,http://127.0.0.1:8342,http://127.0.0.1:8343,http://127.0.0.1:8344
# As upstream's own runs say it: no API server that validates fields itself refuses what one of the tests applies.
export ARGOCD_E2E_K3S=true
export ARGOCD_CONFIG_DIR=$work/home/argocd ARGOCD_E2E_DEFAULT_TIMEOUT=$patience NO_PROXY='*' ARGOCD_FAKE_IN_CLUSTER=true
start git python3 "$here/serve.py" "$folder" "$tree/test/fixture/certs" 9080:password 9081:open 9443:tls 9444:client
start redis redis-server --save '' --appendonly no --bind 127.0.0.1 --port 6379
program commit-server "$COMPONENTS_BIN/argocd" --port 8086
program repo-server "$COMPONENTS_BIN/argocd" --port 8081 --redis localhost:6379
program application-controller HOSTNAME=testappcontroller-1 "$COMPONENTS_BIN/argocd" --redis localhost:6379 --repo-server localhost:8081 \
  --commit-server localhost:8086 --application-namespaces="$ARGOCD_APPLICATION_NAMESPACES" --hydrator-enabled=true
program server "$COMPONENTS_BIN/argocd" --redis localhost:6379 --disable-auth=false --insecure --dex-server http://localhost:5556 \
  --repo-server localhost:8081 --port 8080 --application-namespaces="$ARGOCD_APPLICATION_NAMESPACES" --hydrator-enabled=true
program applicationset-controller "$COMPONENTS_BIN/argocd" --metrics-addr localhost:12345 --probe-addr localhost:12346 --argocd-repo-server localhost:8081
program notifications "$COMPONENTS_BIN/argocd" --application-namespaces="$ARGOCD_APPLICATION_NAMESPACES" --self-service-notification-enabled=false
soon "upstream's API server is there" listens 8080 /healthz

mkdir -p "$work/tests"
# upstream_test NAME: runs one; what it says is in $work/tests/NAME.log.
upstream_test() {
  (cd "$work/argo-cd/test/e2e" && exec "$COMPONENTS_BIN/argo-cd-e2e.test" -test.run "^$1\$" -test.v -test.timeout 3m) >"$work/tests/$1.log" 2>&1
}
(cd "$work/argo-cd/test/e2e" && "$COMPONENTS_BIN/argo-cd-e2e.test" -test.list .) 2>/dev/null | grep '^Test' >"$work/all-tests" || true
ok "upstream's tests can be listed" test -s "$work/all-tests"
if (($#)); then
  printf '^(%s)$\n' "$@" >"$work/patterns"
else
  sed -n 's/^\(Test.*\)$/^(\1)$/p' "$here/tests.txt" >"$work/patterns"
fi
while read -r test; do
  reason=$(awk -v "test=$test" '$1 !~ /^#/ && NF > 1 && test ~ "^(" $1 ")$" { sub(/^[^ ]+ +/, ""); print; exit }' "$here/left-out.txt")
  if [[ -n $reason ]]; then
    skipped "$test" "$reason"
    continue
  fi
  began=$SECONDS again=
  until upstream_test "$test"; do
    [[ -z $again ]] || { again=failed; break; }
    again=", the second time"
    cp "$work/tests/$test.log" "$work/tests/$test.first.log"
  done
  if [[ -n ${ARGO_CD_LOGS:-} ]]; then cp "$work/tests/$test"*.log "$ARGO_CD_LOGS"; fi
  if [[ $again == failed ]]; then
    verdict 1 "$test"
    grep -E 'Error:|Error Trace|panic:|timeout waiting|level=fatal|expected|actual' "$work/tests/$test.log" | tail -n 8 | cut -c-400 | sed 's/^/    /'
  elif grep -q "^--- SKIP: $test " "$work/tests/$test.log"; then
    skipped "$test" "its own code says so"
  else
    verdict 0 "$test ($((SECONDS - began)) s$again)"
  fi
done < <(grep -Ef "$work/patterns" "$work/all-tests")
if [[ -n ${ARGO_CD_LOGS:-} ]]; then cp "$work"/*.log "$ARGO_CD_LOGS"; fi
