#!/usr/bin/env bash
# Runs a command in an image's files as Kubernetes runs a container that may do little: a user in group 0, no
# capabilities, a root that nobody writes to, /tmp and /dev/shm in memory, the machine's names of hosts. The namespaces are
# the caller's (unshare).
#
#   run.sh ROOT USER [FOLDER:PATH ...] -- COMMAND...
set -euo pipefail
root=$1 user=$2
shift 2
for name in hosts resolv.conf; do
    touch "$root/etc/$name"
done
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
for name in hosts resolv.conf; do
    mount --bind "/etc/$name" "$root/etc/$name"
done
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [ "$1" != -- ]; do
    mount --bind "${1%%:*}" "$root${1#*:}"
    shift
done
shift
# It ends with who has started it, which another user would forget.
exec chroot "$root" setpriv --reuid "$user" --regid 0 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \
    --pdeathsig keep "$@"
