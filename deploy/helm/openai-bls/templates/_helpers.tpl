{{- define "openai-bls.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Short, for the names of pods, Jobs and labels are made from it. */ -}}
{{- define "openai-bls.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "openai-bls.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "openai-bls.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "openai-bls.workload" -}}
{{- include "openai-bls.fullname" . }}{{ ternary "-group" "" (eq .Values.kind "LeaderWorkerSet") -}}
{{- end -}}

{{- define "openai-bls.selectorLabels" -}}
app.kubernetes.io/name: {{ include "openai-bls.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "openai-bls.labels" -}}
{{ include "openai-bls.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The pods that answer requests: all of a Deployment or StatefulSet, the leaders of a LeaderWorkerSet. */ -}}
{{- define "openai-bls.serverSelector" -}}
{{ include "openai-bls.selectorLabels" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "openai-bls.poolName" -}}
{{ default (include "openai-bls.fullname" .) .Values.inferencePool.existing }}
{{- end -}}

{{- /* The type by whose names for metrics an endpoint picker reads those on the port of /v1; empty if it finds none there. */ -}}
{{- define "openai-bls.engineType" -}}
{{- $names := default "nvidia" .Values.settings.gateway_metrics -}}
{{- if or (and (include "openai-bls.isMpi" .) (eq .Values.multinode.backend "cpp")) (eq $names "none") -}}
{{- else if eq $names "nvidia" -}}
triton-tensorrt-llm
{{- else -}}
vllm
{{- end -}}
{{- end -}}

{{- /* Name of `image` with its digest or tag, by default that of the chart of `context`. */ -}}
{{- define "openai-bls.imageName" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .context.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{- define "openai-bls.image" -}}
{{ include "openai-bls.imageName" (dict "context" . "image" .Values.image) }}
{{- end -}}

{{- /* The image that builds and runs the engine. */ -}}
{{- define "openai-bls.engineImage" -}}
{{ include "openai-bls.imageName" (dict "context" . "image" (ternary .Values.engine.sidecar.image .Values.image (eq .Values.engine.process "sidecar"))) }}
{{- end -}}

{{- define "openai-bls.enginePullPolicy" -}}
{{ ternary .Values.engine.sidecar.image.pullPolicy .Values.image.pullPolicy (eq .Values.engine.process "sidecar") }}
{{- end -}}

{{- /* A value as text. Helm reads numbers as floating-point ones, and would write a million as 1e+06. */ -}}
{{- define "openai-bls.scalar" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ toString . }}
{{- end -}}
{{- end -}}

{{- define "openai-bls.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "openai-bls.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* Options of build/engine.py, a YAML list. */ -}}
{{- define "openai-bls.buildArgs" -}}
- --model
- {{ required "engine.build.model: give the hub id or folder of the checkpoint to build the engine from" .Values.engine.build.model | quote }}
- --engine
- {{ .Values.engine.build.engine }}
{{- range $option, $value := .Values.engine.build.options }}
{{- if kindIs "bool" $value }}
{{- if $value }}
- --{{ $option }}
{{- end }}
{{- else }}
- --{{ $option }}
- {{ include "openai-bls.scalar" $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The model repository on the volume that is built into. Another image or other options have another one. */ -}}
{{- define "openai-bls.place" -}}
/models/{{ printf "%s %s" (include "openai-bls.engineImage" .) (include "openai-bls.buildArgs" .) | sha256sum | trunc 12 }}
{{- end -}}

{{- define "openai-bls.repository" -}}
{{- if eq .Values.engine.source "build" -}}
{{ include "openai-bls.place" . }}
{{- else if eq .Values.engine.source "claim" -}}
/models/{{ required "engine.path: give the folder on the volume that holds the model repository" .Values.engine.path | trimAll "/" }}
{{- else -}}
/models
{{- end -}}
{{- end -}}

{{- /* Name of the claim that pods share; empty if they have none, or each its own. */ -}}
{{- define "openai-bls.sharedClaim" -}}
{{- if eq .Values.engine.source "image" -}}
{{- else if .Values.storage.existingClaim -}}
{{ .Values.storage.existingClaim }}
{{- else if ne .Values.kind "StatefulSet" -}}
{{ include "openai-bls.fullname" . }}-models
{{- end -}}
{{- end -}}

{{- /* Combinations that would go wrong later, and not say why. */ -}}
{{- define "openai-bls.check" -}}
{{- $shared := include "openai-bls.sharedClaim" . -}}
{{- $several := or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) -}}
{{- if eq .Values.engine.source "build" -}}
{{- if and (eq .Values.engine.build.mode "job") (not $shared) -}}
{{- fail "engine.build.mode job needs a volume that the pods share: give storage.existingClaim, or kind Deployment" -}}
{{- end -}}
{{- if and (eq .Values.engine.build.mode "init") $shared $several -}}
{{- fail "engine.build.mode init with several replicas on one volume would build side by side: use engine.build.mode job, or kind StatefulSet without storage.existingClaim" -}}
{{- end -}}
{{- if and (eq .Values.engine.build.mode "init") (eq .Values.kind "LeaderWorkerSet") -}}
{{- fail "kind LeaderWorkerSet needs engine.build.mode job: the pods of a group share the engine" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.engine.source "claim") (eq .Values.kind "StatefulSet") (not .Values.storage.existingClaim) -}}
{{- fail "engine.source claim needs storage.existingClaim" -}}
{{- end -}}
{{- if include "openai-bls.isSidecar" . -}}
{{- if semverCompare "<1.29-0" .Capabilities.KubeVersion.Version -}}
{{- fail "engine.process sidecar needs Kubernetes 1.29 or later, which has sidecars of its own" -}}
{{- end -}}
{{- if eq .Values.engine.source "image" -}}
{{- fail "engine.process sidecar needs a model repository that both containers can mount: engine.source build or claim" -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.kind "LeaderWorkerSet" -}}
{{- if and (include "openai-bls.isMpi" .) (not .Values.multinode.sshSecret) -}}
{{- fail "kind LeaderWorkerSet needs multinode.sshSecret, for TensorRT-LLM's ranks (docs/operations/kubernetes-nodes.md says how to make it), or engine.process sidecar, for vLLM" -}}
{{- end -}}
{{- if and .Values.multinode.sshSecret (not (include "openai-bls.isMpi" .)) -}}
{{- fail "multinode.sshSecret is for TensorRT-LLM's ranks: vLLM's workers (engine.process sidecar) need none" -}}
{{- end -}}
{{- if lt (int .Values.gpus) 1 -}}
{{- fail "kind LeaderWorkerSet needs gpus: there is a rank for each" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.clientCaSecret (not .Values.tls.existingSecret) -}}
{{- fail "tls.clientCaSecret needs tls.existingSecret, the server's own certificate" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts: give at least one" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: name the gateway" -}}
{{- end -}}
{{- with .Values.inferencePool -}}
{{- if .enabled -}}
{{- if and (not .existing) (not .endpointPicker.name) -}}
{{- fail "inferencePool.endpointPicker.name: name the Service of the endpoint picker, or give inferencePool.existing" -}}
{{- end -}}
{{- if and .existing (not $.Values.httpRoute.enabled) -}}
{{- fail "inferencePool.existing is where httpRoute leads: set httpRoute.enabled" -}}
{{- end -}}
{{- if not (include "openai-bls.engineType" $) -}}
{{- fail "inferencePool needs metrics that an endpoint picker knows: settings.gateway_metrics other than none, and no multinode.backend cpp, which shows them on Triton's port alone" -}}
{{- end -}}
{{- if $.Values.tls.existingSecret -}}
{{- fail "inferencePool leads to /v1 by HTTP: leave tls.existingSecret empty, and end HTTPS at the gateway" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $targets := list .Values.autoscaling.waitingRequests .Values.autoscaling.runningSequences .Values.autoscaling.kvCacheUsagePercent | compact -}}
{{- if and .Values.autoscaling.enabled (not $targets) -}}
{{- fail "autoscaling: give waitingRequests, runningSequences or kvCacheUsagePercent to scale on" -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" -}}
{{- end -}}
{{- end -}}
