# Races of the acceptance walk that any cluster may lose. Sourced.
# shellcheck shell=bash

# pod_went_between_requests FILE: whether the one failure in what a walk printed is that of the step "describe". It lists the pods of a
# deployment that it has just changed, and describes the first in another request: a pod that the rolling update removes in between is
# not found.
pod_went_between_requests() {
  [[ $(grep '^FAIL' "$1") == "FAIL  describe" ]] \
    && grep -A1 '^FAIL  describe' "$1" | grep -qE 'Error from server \(NotFound\): pods "test-[^"]*" not found'
}
