#!/bin/sh
# Before the files, some of which belong to the user. deb and rpm run it alike.
set -e

getent group @USER@ >/dev/null || groupadd --system @USER@
getent passwd @USER@ >/dev/null ||
    useradd --system --gid @USER@ --home-dir /var/lib/@USER@ --no-create-home --shell /usr/sbin/nologin \
        --comment "Mesh node" @USER@
