#!/bin/sh
# Runs a command that says nothing for long, and shows a dot each second until it ends.
trap 'exit 130' INT TERM
trap 'kill $dots; echo >&2' EXIT
(while sleep 1; do printf . >&2; done) &
dots=$!
"$@"
