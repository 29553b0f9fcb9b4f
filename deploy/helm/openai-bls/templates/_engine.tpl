{{- /* The engine in a container of its own (engine.process: sidecar), and vLLM's workers on other nodes. */ -}}
{{- define "openai-bls.isSidecar" -}}
{{- if eq .Values.engine.process "sidecar" }}yes{{ end -}}
{{- end -}}

{{- /* TensorRT-LLM on several nodes, by an mpirun between the pods; isHeadless is vLLM on several nodes. */ -}}
{{- define "openai-bls.isMpi" -}}
{{- if and (eq .Values.kind "LeaderWorkerSet") (not (include "openai-bls.isSidecar" .)) }}yes{{ end -}}
{{- end -}}

{{- define "openai-bls.isHeadless" -}}
{{- if and (eq .Values.kind "LeaderWorkerSet") (include "openai-bls.isSidecar" .) }}yes{{ end -}}
{{- end -}}

{{- /* A folder in the volume, for everybody may write to an emptyDir itself. The engine makes it, for its user alone. */ -}}
{{- define "openai-bls.socket" -}}
/run/openai_bls/engine/engine.sock
{{- end -}}

{{- /* Settings that go to the engine's process; the others are the server's. */ -}}
{{- define "openai-bls.engineSettings" -}}
kv_cache_free_gpu_mem_fraction max_tokens_in_paged_kv_cache kv_cache_host_memory_bytes enable_kv_cache_reuse max_attention_window_size enable_chunked_context batch_scheduler_policy verify_weights guided_decoding_backend kv_events_endpoint kv_events_replay_endpoint kv_events_topic
{{- end -}}

{{- define "openai-bls.engineEnv" -}}
{{ include "openai-bls.commonEnv" . }}
{{ include "openai-bls.offlineEnv" . }}
{{- $own := include "openai-bls.engineSettings" . | splitList " " }}
{{- range $name, $value := .Values.settings }}
{{- if has $name $own }}
- name: OPENAI_BLS_{{ upper $name }}
  value: {{ include "openai-bls.scalar" $value | quote }}
{{- end }}
{{- end }}
{{- include "openai-bls.engineOptionsEnv" . }}
{{- if include "openai-bls.isHeadless" . }}
# The first pod has 0.
- name: NODE_RANK
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']
{{- end }}
{{- with .Values.engine.sidecar.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Options of `openai-bls engine`, a YAML list. LeaderWorkerSet sets LWS_GROUP_SIZE and LWS_LEADER_ADDRESS. */ -}}
{{- define "openai-bls.engineArgs" -}}
- engine
- --model-dir
- {{ include "openai-bls.repository" . }}/tensorrt_llm/1
{{- if include "openai-bls.isHeadless" . }}
- --option
- nnodes=$(LWS_GROUP_SIZE)
- --option
- node_rank=$(NODE_RANK)
- --option
- master_addr=$(LWS_LEADER_ADDRESS)
- --option
- master_port={{ .Values.multinode.masterPort }}
- --option
- join_timeout_s={{ .Values.multinode.workerTimeoutSeconds }}
{{- end }}
{{- range .Values.engine.sidecar.args }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "openai-bls.engineMounts" -}}
- name: engine-tmp
  mountPath: /tmp
- name: shm
  mountPath: /dev/shm
- name: models
  mountPath: /models
  readOnly: true
{{- end -}}

{{- /* A sidecar in Kubernetes' own sense: it is started before the server, which waits for its startup probe, starts again
       by itself, and is stopped after the server, whose last requests need it. */ -}}
{{- define "openai-bls.engineContainer" -}}
{{- $engine := .Values.engine.sidecar -}}
- name: engine
  image: {{ include "openai-bls.engineImage" . | quote }}
  imagePullPolicy: {{ $engine.image.pullPolicy }}
  restartPolicy: Always
  args:
    {{- include "openai-bls.engineArgs" . | nindent 4 }}
    - --socket
    - {{ include "openai-bls.socket" . }}
  env:
    {{- include "openai-bls.engineEnv" . | nindent 4 }}
  # That the engine has been loaded.
  startupProbe:
    exec:
      command: [{{ $engine.image.sourceDir }}/venv/bin/openai-bls, engine, --status, --socket, {{ include "openai-bls.socket" . }}]
    periodSeconds: {{ .Values.probes.startup.periodSeconds }}
    timeoutSeconds: 10
    failureThreshold: {{ include "openai-bls.startupFailures" . }}
  {{- with .Values.probes.liveness }}
  {{- if .enabled }}
  # The server's requests, seen from here: the containers of a pod share its network.
  livenessProbe:
    exec:
      command: [python3, /etc/openai_bls/scripts/liveness.py, {{ $.Values.ports.openai | quote }}, {{ .timeoutSeconds | quote }}, --of, engine{{ if $.Values.tls.existingSecret }}, --https{{ end }}]
    periodSeconds: {{ .periodSeconds }}
    timeoutSeconds: {{ add .timeoutSeconds 15 }}
    failureThreshold: {{ .failureThreshold }}
  {{- end }}
  {{- end }}
  resources:
    {{- include "openai-bls.resources" (dict "context" . "gpus" .Values.gpus "resources" $engine.resources) | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    {{- include "openai-bls.engineMounts" . | nindent 4 }}
    - name: engine-socket
      mountPath: /run/openai_bls
    - name: scripts
      mountPath: /etc/openai_bls/scripts
      readOnly: true
{{- end -}}

{{- /* vLLM's workers on another node than the leader's. Whoever ends has ended for the whole group. */ -}}
{{- define "openai-bls.headlessContainer" -}}
{{- $engine := .Values.engine.sidecar -}}
- name: worker
  image: {{ include "openai-bls.engineImage" . | quote }}
  imagePullPolicy: {{ $engine.image.pullPolicy }}
  args:
    {{- include "openai-bls.engineArgs" . | nindent 4 }}
    - --headless
  env:
    {{- include "openai-bls.engineEnv" . | nindent 4 }}
  resources:
    {{- include "openai-bls.resources" (dict "context" . "gpus" .Values.gpus "resources" $engine.resources) | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    {{- include "openai-bls.engineMounts" . | nindent 4 }}
{{- end -}}
