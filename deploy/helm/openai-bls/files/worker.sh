#!/bin/sh
# Every other pod of a group: let the leader's mpirun in, and stay until its ranks have ended.
set -eu
# A session over ssh begins with an empty environment; without the image's PATH and LD_LIBRARY_PATH, and the settings
# of this pod, mpirun's daemon and the ranks would not start. session.sh reads it.
(umask 077 && export -p > /tmp/openai_bls-environment)

# A rank of the C++ backend, or of the LLM API. In brackets, so that grep does not find its own command line.
serving() {
    grep -qsx tritonserver /proc/[0-9]*/comm || grep -qsa '[m]gmn_worker_node' /proc/[0-9]*/cmdline
}

stop() {
    # Kubernetes stops all pods of a group at once. The leader's requests need this pod's ranks to the end, and the
    # leader stops them itself.
    while serving; do sleep 1; done
    kill "$sshd"
    exit 0
}

/usr/sbin/sshd -D -e -f /etc/openai_bls/scripts/sshd_config &
sshd=$!
trap stop TERM
wait "$sshd"
