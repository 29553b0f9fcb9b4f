#!/bin/sh
# Wait until the build job has put the engine into the model repository $PLACE. Its manifest comes last.
set -eu
trap 'exit 143' TERM
while [ ! -e "$PLACE/tensorrt_llm/1/engine.json" ]; do
    echo "waiting for the build job to finish the engine in $PLACE"
    sleep 10 & wait $!
done
