#!/bin/sh
# Nothing is enabled or started by an installation: a node that nobody has told its mesh has no work. An upgrade restarts
# a node that runs; its jobs go on. $1 is `configure` and $2 the former version (deb), or $1 the number of versions (rpm).
set -e

[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
case "$1:$2" in
configure:?* | 2:*) systemctl try-restart @UNIT@ ;;
esac
