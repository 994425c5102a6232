#!/usr/bin/env bash
# Lays out the files of one image: stage.sh (tallyman|nats-cli|nats-server) DIR
#
# DIR/root is copied into the image as root's, DIR/owned as the image's user's.
# Runs on the host (images/build.sh) and in the build stages of the Dockerfiles.
set -euo pipefail
cd "$(dirname "$0")/.."

image=${1:?usage: images/stage.sh (tallyman|nats-cli|nats-server) DIR}
out=${2:?usage: images/stage.sh (tallyman|nats-cli|nats-server) DIR}
rm -rf "$out"
mkdir -p "$out/root" "$out/owned"

# compile PATH PACKAGE: a static binary without symbol table or build paths.
compile() {
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$1" "$2"
}

# writable DIR...: directories of the image's user. Git and docker keep no empty
# directory with a mode of its own everywhere, so the mode is set here.
writable() {
	local dir
	for dir in "$@"; do
		mkdir -p "$out/owned/$dir"
		chmod 0755 "$out/owned/$dir"
	done
}

certificates() {
	local bundle=/etc/ssl/certs/ca-certificates.crt
	if [[ ! -r $bundle ]]; then
		echo "stage.sh: $bundle is missing; install ca-certificates" >&2
		exit 1
	fi
	install -D -m 0644 "$bundle" "$out/root$bundle"
}

case $image in
tallyman)
	for name in worker producer tallyman; do
		compile "$out/root/$name" "./cmd/$name"
	done
	compile "$out/owned/probe/healthcheck" ./images/healthcheck
	certificates
	writable tmp data data/n1 data/n2 data/n3
	;;
nats-cli)
	install -m 0755 "$(.ci/tool nats)" "$out/root/nats"
	certificates
	writable tmp home
	;;
nats-server)
	install -m 0755 "$(.ci/tool nats-server)" "$out/root/nats-server"
	certificates
	;;
*)
	echo "stage.sh: unknown image $image" >&2
	exit 2
	;;
esac
