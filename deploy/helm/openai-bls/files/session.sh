#!/bin/sh
# What runs for each session over ssh: the command that was asked for, in the environment of the pod.
. /tmp/openai_bls-environment
exec /bin/sh -c "${SSH_ORIGINAL_COMMAND:-true}"
