# Races of the acceptance walk that any cluster may lose. Sourced.
# shellcheck shell=bash

# pods_went_between_requests FILE: whether all failures in what a walk printed are of this kind: the steps "describe" and "self-healing"
# list the pods of a deployment that was just changed, and describe or delete the first in another request. A pod that the rolling
# update removes in between is not found.
pods_went_between_requests() {
  local failures causes
  failures=$(grep '^FAIL' "$1") || return 1
  causes=$(grep -A1 '^FAIL' "$1" | grep -vE '^(FAIL|--)') || return 1
  ! grep -qvE '^FAIL +(describe|self-healing: delete a pod)$' <<<"$failures" \
    && ! grep -qvE 'Error from server \(NotFound\): pods "[^"]*" not found' <<<"$causes"
}
