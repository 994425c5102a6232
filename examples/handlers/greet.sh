#!/bin/sh
# The smallest handler: payload on stdin, result on stdout, verdict as exit status.
set -eu

name=$(cat)
if [ -z "$name" ]; then
	echo "the payload is empty; submit a name" >&2
	exit 65 # rejected: another attempt would find the same
fi
echo "Hello, $name. This was command $TALLYMAN_ID, attempt $TALLYMAN_ATTEMPT."
