#!/usr/bin/env bash
# Builds every image that docker-compose.yml names, from Go source alone and
# without pulling anything: static binaries compiled on this host, each put into
# an image made from scratch. The tags are read from docker-compose.yml, so the
# same file runs with the official nats image where that can be pulled.
#
#   images/build.sh                 all images
#   images/build.sh tallyman ...    only those (tallyman, nats-cli, nats-server)
#
# Needs go, docker and a running daemon. No buildx: the classic builder does.
set -euo pipefail
cd "$(dirname "$0")/.."

# The classic builder is everywhere; BuildKit needs a plugin that some Debian
# installations lack.
export DOCKER_BUILDKIT=0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# tag PATTERN: the one image name in docker-compose.yml that matches.
tag() {
	local found
	found=$(sed -nE 's/^ *image: *"?([^" #]+)"?.*$/\1/p' docker-compose.yml | sed -E 's/^\$\{[A-Z_]+:-(.*)\}$/\1/' | sort -u | grep -E "^$1:") || true
	if [[ $(wc -w <<<"$found") != 1 ]]; then
		echo "build.sh: want one image $1 in docker-compose.yml, found: ${found:-none}" >&2
		exit 1
	fi
	echo "$found"
}

# build IMAGE TAG DOCKERFILE
build() {
	local image=$1 tag=$2 dockerfile=$3 started=$SECONDS
	images/stage.sh "$image" "$work/$image"
	# The last stage alone, fed from the host instead of from the build stage.
	sed -n '/^FROM scratch/,$p' "$dockerfile" | sed 's|--from=build ||; s| /out/| |' >"$work/$image.Dockerfile"
	if grep -qE -- '--from=|/out/' "$work/$image.Dockerfile"; then
		echo "build.sh: the last stage of $dockerfile takes files from elsewhere than --from=build /out/" >&2
		exit 1
	fi
	docker build --quiet --rm --label "tallyman.built=local" -t "$tag" -f "$work/$image.Dockerfile" "$work/$image" >/dev/null
	printf 'built %-24s %4d s  %s\n' "$tag" $((SECONDS - started)) \
		"$(docker image inspect --format '{{.Size}}' "$tag" | awk '{printf "%.1f MB", $1 / 1e6}')"
}

(($# > 0)) || set -- tallyman nats-cli nats-server
for image in "$@"; do
	case $image in
	tallyman) build "$image" "$(tag tallyman)" Dockerfile ;;
	nats-cli) build "$image" "$(tag tallyman-nats-cli)" images/nats-cli.Dockerfile ;;
	nats-server)
		tag=$(tag nats)
		# The tag promises a version; building another one under it would lie.
		want=nats:$(go list -m -f '{{.Version}}' github.com/nats-io/nats-server/v2 | sed 's/^v//')
		if [[ $tag != "$want" ]]; then
			echo "build.sh: docker-compose.yml names $tag, go.mod asks for $want" >&2
			exit 1
		fi
		build "$image" "$tag" images/nats-server.Dockerfile
		;;
	*)
		echo "build.sh: unknown image $image" >&2
		exit 2
		;;
	esac
done
