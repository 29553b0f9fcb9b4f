{{- /* Secrets that are files in the server's container: whole directories, which the kubelet brings up to date. Each has
       the value that names it, a folder below /etc/openai_bls, and the settings that say where its files lie. */ -}}
{{- define "openai-bls.secretFiles" -}}
{{- if .Values.apiKeysFile.existingSecret }}
- secret: {{ .Values.apiKeysFile.existingSecret }}
  folder: keys
  files:
    api_keys_file: {{ .Values.apiKeysFile.key }}
{{- end }}
{{- if .Values.tls.existingSecret }}
- secret: {{ .Values.tls.existingSecret }}
  folder: tls
  files:
    ssl_certfile: tls.crt
    ssl_keyfile: tls.key
{{- end }}
{{- if .Values.tls.clientCaSecret }}
- secret: {{ .Values.tls.clientCaSecret }}
  folder: client-ca
  files:
    ssl_ca_certs: {{ .Values.tls.clientCaKey }}
{{- end }}
{{- end -}}

{{- define "openai-bls.secretEnv" -}}
{{- range $secret := include "openai-bls.secretFiles" . | fromYamlArray }}
{{- range $setting, $file := $secret.files }}
- name: OPENAI_BLS_{{ upper $setting }}
  value: /etc/openai_bls/{{ $secret.folder }}/{{ $file }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "openai-bls.secretMounts" -}}
{{- range include "openai-bls.secretFiles" . | fromYamlArray }}
- name: {{ .folder }}
  mountPath: /etc/openai_bls/{{ .folder }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "openai-bls.secretVolumes" -}}
{{- range include "openai-bls.secretFiles" . | fromYamlArray }}
- name: {{ .folder }}
  secret:
    secretName: {{ .secret }}
    # For the group that podSecurityContext.fsGroup gives to it, and nobody else.
    defaultMode: 0440
    items:
      {{- range .files }}
      - key: {{ . }}
        path: {{ . }}
      {{- end }}
{{- end }}
{{- end -}}

{{- define "openai-bls.scheme" -}}
{{ ternary "HTTPS" "HTTP" (ne .Values.tls.existingSecret "") }}
{{- end -}}
