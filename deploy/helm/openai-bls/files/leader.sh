#!/bin/sh
# The first pod of a group: wait until every worker can be reached, then start all ranks from here.
#
# LeaderWorkerSet sets LWS_LEADER_ADDRESS (<pod>.<service>.<namespace>) and LWS_GROUP_SIZE; its workers are called
# <leader's pod>-1, -2 and so on, in the same service.
#
# BACKEND          python: the LLM API, or cpp: Triton's C++ backend
# GPUS_PER_NODE    ranks on each pod
# WORKER_TIMEOUT   seconds to wait for each worker
# SOURCE_DIR       where the image has docker/start.py
# "$@"             options of `python3 -m openai_bls serve`
set -eu
# As process 1 of its container a shell would otherwise not heed it.
trap 'exit 143' TERM
ssh_config=/etc/openai_bls/scripts/ssh_config
pod=${LWS_LEADER_ADDRESS%%.*}
domain=${LWS_LEADER_ADDRESS#*.}
hosts=$LWS_LEADER_ADDRESS:$GPUS_PER_NODE
index=1
while [ "$index" -lt "$LWS_GROUP_SIZE" ]; do
    worker=$pod-$index.$domain
    waited=0
    until ssh -F "$ssh_config" "$worker" true; do
        if [ "$waited" -ge "$WORKER_TIMEOUT" ]; then
            echo "$worker has not answered on its ssh port for $WORKER_TIMEOUT s: see that pod's log" >&2
            exit 1
        fi
        sleep 2 & wait $!
        waited=$((waited + 2))
    done
    hosts=$hosts,$worker:$GPUS_PER_NODE
    index=$((index + 1))
done
# Open MPI 4 reads the first name, 5 the second.
export OMPI_MCA_plm_rsh_agent="ssh -F $ssh_config"
export PRTE_MCA_plm_ssh_agent="ssh -F $ssh_config"
if [ "$BACKEND" = python ]; then
    set -- --launcher mpirun --gpus-per-node "$GPUS_PER_NODE" "$@"
fi
exec python3 "$SOURCE_DIR/docker/start.py" serve --world-size "$((LWS_GROUP_SIZE * GPUS_PER_NODE))" --hosts "$hosts" "$@"
