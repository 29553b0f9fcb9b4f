{{- /* Environment that the server and the build share. */ -}}
{{- define "openai-bls.commonEnv" -}}
# The root file system cannot be written to; caches of compiled kernels and the like go here.
- name: HOME
  value: /tmp
- name: PYTHONDONTWRITEBYTECODE
  value: "1"
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "openai-bls.offlineEnv" -}}
# The engine is there, nothing is fetched.
- name: HF_HUB_OFFLINE
  value: "1"
- name: HF_HOME
  value: /tmp/huggingface
{{- end -}}

{{- define "openai-bls.serverEnv" -}}
{{ include "openai-bls.commonEnv" . }}
{{ include "openai-bls.offlineEnv" . }}
{{- $engines := list }}
{{- if include "openai-bls.isSidecar" . }}
{{- $engines = include "openai-bls.engineSettings" . | splitList " " }}
- name: OPENAI_BLS_ENGINE_ADDRESS
  value: unix:{{ include "openai-bls.socket" . }}
# Where NVIDIA's runtime is the default one: no GPU, which are the engine's.
- name: NVIDIA_VISIBLE_DEVICES
  value: void
{{- else }}
{{- include "openai-bls.engineOptionsEnv" . }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- if not (has $name $engines) }}
- name: OPENAI_BLS_{{ upper $name }}
  value: {{ include "openai-bls.scalar" $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "openai-bls.engineOptionsEnv" -}}
{{- range $name, $value := .Values.engineOptions }}
- name: OPENAI_BLS_ENGINE_{{ upper $name }}
  value: {{ include "openai-bls.scalar" $value | quote }}
{{- end }}
{{- end -}}

{{- /* Options of `python3 -m openai_bls serve`, a YAML list. */ -}}
{{- define "openai-bls.serveArgs" -}}
- --model-repository
- {{ include "openai-bls.repository" . }}
- --host
- 0.0.0.0
- --triton-host
- 0.0.0.0
- --openai-port
- {{ .Values.ports.openai | quote }}
- --http-port
- {{ .Values.ports.http | quote }}
- --grpc-port
- {{ .Values.ports.grpc | quote }}
- --metrics-port
- {{ .Values.ports.metrics | quote }}
- --exit-timeout
- {{ .Values.serve.exitTimeoutSeconds | quote }}
{{- if .Values.serve.verbose }}
- --verbose
{{- end }}
{{- range .Values.serve.args }}
- {{ . | quote }}
{{- end }}
{{- with .Values.serve.tritonArgs }}
- "--"
{{- range . }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* `resources` with `gpus` of the GPU resource that the values of `context` name. */ -}}
{{- define "openai-bls.resources" -}}
{{- $gpus := dict -}}
{{- if gt (int .gpus) 0 -}}
{{- $_ := set $gpus .context.Values.gpuResource (int .gpus) -}}
{{- end -}}
{{- $requests := merge (dict) $gpus (.resources.requests | default dict) -}}
{{- $limits := merge (dict) $gpus (.resources.limits | default dict) -}}
{{- toYaml (dict "requests" $requests "limits" $limits) -}}
{{- end -}}

{{- define "openai-bls.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: shm
  mountPath: /dev/shm
- name: scripts
  mountPath: /etc/openai_bls/scripts
  readOnly: true
{{- end -}}

{{- /* The container that builds the engine. */ -}}
{{- define "openai-bls.buildContainer" -}}
{{- $build := .Values.engine.build -}}
- name: build-engine
  image: {{ include "openai-bls.engineImage" . | quote }}
  imagePullPolicy: {{ include "openai-bls.enginePullPolicy" . }}
  args:
    - build
    {{- include "openai-bls.buildArgs" . | nindent 4 }}
  env:
    - name: OPENAI_BLS_MODEL_REPOSITORY
      value: {{ include "openai-bls.place" . }}
    # Downloads are kept, so that a build with other options does not fetch them again.
    - name: HF_HOME
      value: /models/huggingface
    {{- with .Values.huggingFace }}
    {{- if .endpoint }}
    - name: HF_ENDPOINT
      value: {{ .endpoint | quote }}
    {{- end }}
    {{- if .existingSecret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ .existingSecret }}
          key: {{ .key }}
    {{- end }}
    {{- end }}
    {{- include "openai-bls.commonEnv" . | nindent 4 }}
  resources:
    {{- $gpus := ternary .Values.gpus $build.gpus (kindIs "invalid" $build.gpus) }}
    {{- $engines := ternary .Values.engine.sidecar.resources .Values.resources (eq .Values.engine.process "sidecar") }}
    {{- include "openai-bls.resources" (dict "context" . "gpus" $gpus "resources" ($build.resources | default $engines)) | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    {{- include "openai-bls.volumeMounts" . | nindent 4 }}
    - name: models
      mountPath: /models
{{- end -}}

{{- /* The part of a pod's spec that all pods of the release have. */ -}}
{{- define "openai-bls.podBase" -}}
serviceAccountName: {{ include "openai-bls.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "openai-bls.volumes" -}}
- name: tmp
  emptyDir: {}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.shmSize }}
- name: scripts
  configMap:
    name: {{ include "openai-bls.fullname" . }}-scripts
{{- with include "openai-bls.sharedClaim" . }}
- name: models
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- if include "openai-bls.isSidecar" . }}
- name: engine-tmp
  emptyDir: {}
- name: engine-socket
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- end }}
{{- if include "openai-bls.isMpi" . }}
- name: ssh
  secret:
    secretName: {{ .Values.multinode.sshSecret }}
    defaultMode: 0400
{{- end }}
{{- end -}}

{{- define "openai-bls.serverMounts" -}}
{{ include "openai-bls.volumeMounts" . }}
{{- if ne .Values.engine.source "image" }}
- name: models
  mountPath: /models
  readOnly: true
{{- end }}
{{- if include "openai-bls.isSidecar" . }}
- name: engine-socket
  mountPath: /run/openai_bls
{{- end }}
{{- if include "openai-bls.isMpi" . }}
- name: ssh
  mountPath: /etc/openai_bls/ssh
  readOnly: true
{{- end }}
{{- end -}}

{{- /* Seconds from the order to stop to the kill. A sidecar ends after the server. */ -}}
{{- define "openai-bls.gracePeriod" -}}
{{ add .Values.serve.exitTimeoutSeconds .Values.serve.preStopSeconds 30 (ternary 30 0 (eq .Values.engine.process "sidecar")) }}
{{- end -}}

{{- define "openai-bls.startupFailures" -}}
{{- $wait := ternary .Values.multinode.workerTimeoutSeconds 0 (eq .Values.kind "LeaderWorkerSet") -}}
{{ div (add .Values.probes.startup.seconds $wait .Values.probes.startup.periodSeconds -1) .Values.probes.startup.periodSeconds }}
{{- end -}}

{{- define "openai-bls.waitContainer" -}}
- name: wait-for-engine
  image: {{ include "openai-bls.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/bin/sh, /etc/openai_bls/scripts/wait-for-engine.sh]
  env:
    - name: PLACE
      value: {{ include "openai-bls.place" . }}
  resources:
    requests:
      cpu: 10m
      memory: 32Mi
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    - name: scripts
      mountPath: /etc/openai_bls/scripts
      readOnly: true
    - name: models
      mountPath: /models
      readOnly: true
{{- end -}}

{{- /* A server's pod: of a Deployment, a StatefulSet, or the leader of a group. */ -}}
{{- define "openai-bls.serverPod" -}}
metadata:
  labels:
    {{- include "openai-bls.serverSelector" . | nindent 4 }}
    {{- with include "openai-bls.engineType" . }}
    # By which an endpoint picker knows what to read from /metrics.
    llm-d.ai/engine-type: {{ . }}
    {{- end }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Pods that run other scripts than these are replaced.
    checksum/scripts: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "openai-bls.podBase" . | nindent 2 }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    {{- $selector := dict "labelSelector" (dict "matchLabels" (include "openai-bls.serverSelector" $ | fromYaml)) }}
    - {{- toYaml (merge (dict) . $selector) | nindent 6 }}
    {{- end }}
  {{- end }}
  terminationGracePeriodSeconds: {{ include "openai-bls.gracePeriod" . }}
  {{- if or (eq .Values.engine.source "build") (include "openai-bls.isSidecar" .) }}
  initContainers:
    {{- if ne .Values.engine.source "build" }}
    {{- else if eq .Values.engine.build.mode "init" }}
    {{- include "openai-bls.buildContainer" . | nindent 4 }}
    {{- else }}
    {{- include "openai-bls.waitContainer" . | nindent 4 }}
    {{- end }}
    {{- if include "openai-bls.isSidecar" . }}
    {{- include "openai-bls.engineContainer" . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: server
      image: {{ include "openai-bls.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- if include "openai-bls.isMpi" . }}
      command: [/bin/sh, /etc/openai_bls/scripts/leader.sh]
      {{- end }}
      args:
        {{- if not (include "openai-bls.isMpi" .) }}
        - serve
        {{- end }}
        {{- include "openai-bls.serveArgs" . | nindent 8 }}
      env:
        {{- if include "openai-bls.isMpi" . }}
        - name: SOURCE_DIR
          value: {{ .Values.image.sourceDir }}
        - name: BACKEND
          value: {{ .Values.multinode.backend }}
        - name: GPUS_PER_NODE
          value: {{ .Values.gpus | quote }}
        - name: WORKER_TIMEOUT
          value: {{ .Values.multinode.workerTimeoutSeconds | quote }}
        {{- end }}
        {{- with .Values.apiKey }}
        {{- if .existingSecret }}
        - name: OPENAI_BLS_API_KEY
          valueFrom:
            secretKeyRef:
              name: {{ .existingSecret }}
              key: {{ .key }}
        {{- end }}
        {{- end }}
        {{- with include "openai-bls.secretEnv" . | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- include "openai-bls.serverEnv" . | nindent 8 }}
      ports:
        - name: openai
          containerPort: {{ .Values.ports.openai }}
        - name: http
          containerPort: {{ .Values.ports.http }}
        - name: grpc
          containerPort: {{ .Values.ports.grpc }}
        - name: metrics
          containerPort: {{ .Values.ports.metrics }}
      # Triton opens its port when every model is loaded.
      startupProbe:
        httpGet:
          path: /v2/health/ready
          port: http
        periodSeconds: {{ .Values.probes.startup.periodSeconds }}
        timeoutSeconds: 5
        failureThreshold: {{ include "openai-bls.startupFailures" . }}
      # 503 while a stop waits for the last requests.
      readinessProbe:
        httpGet:
          path: /health
          port: openai
          scheme: {{ include "openai-bls.scheme" . }}
        periodSeconds: {{ .Values.probes.readiness.periodSeconds }}
        timeoutSeconds: {{ .Values.probes.readiness.timeoutSeconds }}
        failureThreshold: {{ .Values.probes.readiness.failureThreshold }}
      {{- with .Values.probes.liveness }}
      {{- if .enabled }}
      livenessProbe:
        exec:
          command: [python3, /etc/openai_bls/scripts/liveness.py, {{ $.Values.ports.openai | quote }}, {{ .timeoutSeconds | quote }}{{ if include "openai-bls.isSidecar" $ }}, --of, server{{ end }}]
        periodSeconds: {{ .periodSeconds }}
        timeoutSeconds: {{ add .timeoutSeconds 15 }}
        failureThreshold: {{ .failureThreshold }}
      {{- end }}
      {{- end }}
      {{- if gt (int .Values.serve.preStopSeconds) 0 }}
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ .Values.serve.preStopSeconds | quote }}]
      {{- end }}
      resources:
        {{- $gpus := ternary 0 .Values.gpus (eq .Values.engine.process "sidecar") }}
        {{- include "openai-bls.resources" (dict "context" . "gpus" $gpus "resources" .Values.resources) | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        {{- include "openai-bls.serverMounts" . | nindent 8 }}
        {{- with include "openai-bls.secretMounts" . | trim }}
        {{- . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "openai-bls.volumes" . | nindent 4 }}
    {{- with include "openai-bls.secretVolumes" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- /* TensorRT-LLM's ranks on another node than the leader's, which mpirun starts over ssh. */ -}}
{{- define "openai-bls.mpiWorkerContainer" -}}
- name: worker
  image: {{ include "openai-bls.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/bin/sh, /etc/openai_bls/scripts/worker.sh]
  env:
    {{- include "openai-bls.serverEnv" . | nindent 4 }}
  ports:
    - name: ssh
      containerPort: 2222
  readinessProbe:
    tcpSocket:
      port: ssh
    periodSeconds: 5
  livenessProbe:
    tcpSocket:
      port: ssh
    periodSeconds: 30
  resources:
    {{- include "openai-bls.resources" (dict "context" . "gpus" .Values.gpus "resources" .Values.resources) | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    {{- include "openai-bls.serverMounts" . | nindent 4 }}
{{- end -}}

{{- /* A worker's pod: its GPUs, and vLLM's workers or an sshd. */ -}}
{{- define "openai-bls.workerPod" -}}
metadata:
  labels:
    {{- include "openai-bls.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/component: worker
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/scripts: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "openai-bls.podBase" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ include "openai-bls.gracePeriod" . }}
  {{- if and (include "openai-bls.isHeadless" .) (eq .Values.engine.source "build") }}
  # So that the time in which the pods wait for each other begins on all of them when the engine is there.
  initContainers:
    {{- include "openai-bls.waitContainer" . | nindent 4 }}
  {{- end }}
  containers:
    {{- if include "openai-bls.isHeadless" . }}
    {{- include "openai-bls.headlessContainer" . | nindent 4 }}
    {{- else }}
    {{- include "openai-bls.mpiWorkerContainer" . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "openai-bls.volumes" . | nindent 4 }}
{{- end -}}
