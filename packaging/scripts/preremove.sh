#!/bin/sh
# $1 is `remove` (deb) or 0 (rpm) where no other version follows. Jobs go on, and an installation finds them again.
set -e

[ "$1" = remove ] || [ "$1" = 0 ] || exit 0
[ -d /run/systemd/system ] || exit 0
systemctl disable --now @UNIT@
