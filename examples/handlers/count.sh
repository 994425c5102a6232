#!/bin/sh
# Counts to the number in the payload and can be stopped anywhere: it resumes
# at the last offset, with the sum so far as its checkpoint.
set -eu

end=$(cat)
case $end in
'' | *[!0-9]*)
	echo "the payload must be a whole number" >&2
	exit 65
	;;
esac

i=$TALLYMAN_OFFSET
sum=$(cat <&3) # descriptor 3: the previous checkpoint, empty at first
sum=${sum:-0}

while [ "$i" -lt "$end" ]; do
	i=$((i + 1))
	sum=$((sum + i))
	echo "$i $sum" >&4 # descriptor 4: saved before anyone takes over
	sleep "${PAUSE:-0}"
done
echo "$sum"
